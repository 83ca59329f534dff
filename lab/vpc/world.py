"""The VPC at one moment (`World`), and at earlier moments (`History`).

A `World` is immutable; each commit makes a new one. An API that lags shows an older world, which is consistent in itself. Copying the
maps takes microseconds at the lab's sizes (hundreds of ENIs).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network

from lab.vpc import errors
from lab.vpc.model import Eni, Instance, Network, SecurityGroup, Subnet
from lab.vpc.space import BLOCK_SIZE, RESERVED_HEAD

KEPT_S = 600.0  # ours: no test sets a longer lag, so older worlds are dropped


@dataclass(frozen=True)
class World:
    """All objects of the simulated EC2 at one moment, by ID, in order of creation."""

    subnets: Mapping[str, Subnet] = field(default_factory=dict)
    instances: Mapping[str, Instance] = field(default_factory=dict)
    enis: Mapping[str, Eni] = field(default_factory=dict)
    groups: Mapping[str, SecurityGroup] = field(default_factory=dict)

    def subnet(self, subnet_id: str) -> Subnet:
        """Return one subnet. Raises: Ec2Error if there is none of this ID."""
        found = self.subnets.get(subnet_id)
        if found is None:
            raise errors.subnet_not_found(subnet_id)
        return found

    def group(self, group_id: str) -> SecurityGroup:
        """Return one security group. Raises: Ec2Error if there is none of this ID."""
        found = self.groups.get(group_id)
        if found is None:
            raise errors.group_not_found(group_id)
        return found

    def instance(self, instance_id: str) -> Instance:
        """Return one instance. Raises: Ec2Error if there is none of this ID."""
        found = self.instances.get(instance_id)
        if found is None:
            raise errors.instance_not_found(instance_id)
        return found

    def eni(self, eni_id: str) -> Eni:
        """Return one ENI. Raises: Ec2Error if there is none of this ID."""
        found = self.enis.get(eni_id)
        if found is None:
            raise errors.interface_not_found([eni_id])
        return found

    def attached_to(self, instance_id: str) -> list[Eni]:
        """List the ENIs of an instance, also attaching and detaching ones, by network card and device index."""
        bound = [(eni.attachment, eni) for eni in self.enis.values() if eni.attachment is not None]
        mine = [(at.network_card, at.device_index, eni) for at, eni in bound if at.instance_id == instance_id]
        return [eni for _, _, eni in sorted(mine, key=lambda item: item[:2])]

    def plugged_into(self, eni: Eni) -> Instance | None:
        """Return the instance that has the interface now; None if none has it. A branch ENI is in the instance of its trunk."""
        if eni.association is not None:
            trunk = self.enis.get(eni.association.trunk_id)
            return self.plugged_into(trunk) if trunk is not None else None
        if eni.attachment is None or not eni.is_plugged:
            return None
        return self.instances[eni.attachment.instance_id]

    def branches_of(self, trunk_id: str) -> list[Eni]:
        """List the branch ENIs of a trunk, by VLAN ID."""
        bound = [
            (eni.association.vlan, eni) for eni in self.enis.values() if eni.association and eni.association.trunk_id == trunk_id
        ]
        return [eni for _, eni in sorted(bound, key=lambda item: item[0])]

    def admitted(self, eni: Eni) -> frozenset[Network] | None:
        """Return the networks that may send to an ENI, by its security groups; None: everybody may."""
        networks: set[Network] = set()
        for group_id in eni.security_groups:
            group = self.groups.get(group_id)
            if group is None or group.sources is None:
                return None
            for source in (*group.sources, *(rule.peer for rule in group.rules if not rule.is_egress)):
                networks |= self._members(source) if isinstance(source, str) else {source}
        return frozenset(networks)

    def _members(self, group_id: str) -> set[Network]:
        having = [eni for eni in self.enis.values() if group_id in eni.security_groups]
        return {network for eni in having for network in (*map(ip_network, eni.all_addresses), *eni.all_prefixes)}

    def free_count(self, subnet: Subnet) -> int:
        """Count the free addresses of a subnet at this moment, as AvailableIpAddressCount does."""
        inside = [eni for eni in self.enis.values() if eni.subnet_id == subnet.subnet_id]
        taken = sum(len(eni.addresses) + BLOCK_SIZE * len(eni.prefixes) for eni in inside)
        return subnet.cidr.num_addresses - RESERVED_HEAD - 1 - subnet.held_count - taken


@dataclass(frozen=True)
class Change:
    """A change of one ENI by an API. `before`, `after`: the ENI before and after the change; None if it did not exist then."""

    at: float
    api: str
    eni_id: str
    before: Eni | None
    after: Eni | None


class History:
    """The worlds of the last KEPT_S seconds. Not thread-safe: the caller holds the store's lock."""

    def __init__(self, at: float, world: World) -> None:
        self._moments: deque[tuple[float, World]] = deque([(at, world)])
        self._changes: deque[Change] = deque()

    def append(self, at: float, world: World, *, api: str = "") -> None:
        """Add the newest world with the changes of an API since the last one, and drop worlds that are too old to be requested."""
        if api:
            before = self._moments[-1][1].enis
            for eni_id in dict.fromkeys([*before, *world.enis]):
                if before.get(eni_id) is not world.enis.get(eni_id):
                    self._changes.append(Change(at, api, eni_id, before.get(eni_id), world.enis.get(eni_id)))
        while self._changes and self._changes[0].at <= at - KEPT_S:
            self._changes.popleft()
        self._moments.append((at, world))
        while len(self._moments) > 1 and self._moments[1][0] <= at - KEPT_S:
            self._moments.popleft()

    def changes(self) -> tuple[Change, ...]:
        """List the changes by APIs, in the order of time."""
        return tuple(self._changes)

    def at(self, when: float) -> World:
        """Return the world as it was at `when`; the oldest world that is kept if `when` is before it."""
        for at, world in reversed(self._moments):
            if at <= when:
                return world
        return self._moments[0][1]
