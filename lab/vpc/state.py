"""The simulated VPC. The lab builds it, the servers for EC2 and instance metadata show it, and the lab's network follows its changes.

All state of the cloud is here: the HTTP servers (lab/ec2, lab/imds) and the network (lab/fabric) derive theirs from it. The lab
builds the VPC by the methods `add_*`. API calls of clients arrive through `interfaces`, and the servers write them into the call
log. Rejected: moto as the basis, because it enforces no limits, subnets or delays, and reports no changes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from random import Random

from lab.errors import LabError
from lab.vpc import errors
from lab.vpc.addresses import AddressRequest
from lab.vpc.calls import Call, CallLog
from lab.vpc.crowding import Crowding
from lab.vpc.dispatch import Listener
from lab.vpc.faults import Faults
from lab.vpc.hands import Hands
from lab.vpc.ids import Ids
from lab.vpc.interfaces import NO_DELAYS, Delays, Interfaces
from lab.vpc.ipv6 import SUBNET_LENGTH, Ipv6Request
from lab.vpc.limits import LIMITS, InstanceLimits
from lab.vpc.model import (
    AttachmentStatus,
    Eni,
    GroupRule,
    Instance,
    Network,
    ReservationKind,
    SecurityGroup,
    Subnet,
    SubnetReservation,
)
from lab.vpc.space import AddressChoice
from lab.vpc.store import Store
from lab.vpc.trunks import Trunks
from lab.vpc.views import Views
from lab.vpc.world import Change, World

REGION = "us-west-2"
HOST_TYPE = "t3.nano"  # ours: the smallest type in the table, because a plain host needs only its primary ENI


class Vpc:
    """One VPC in one region. Thread-safe; `close` it, or use it as a context manager."""

    def __init__(
        self,
        *,
        cidr: str = "10.0.0.0/16",
        ipv6_cidr: str = "",
        clock: Callable[[], float] = time.monotonic,
        limits: Mapping[str, InstanceLimits] = LIMITS,
        delays: Delays = NO_DELAYS,
        choice: AddressChoice = AddressChoice.RANDOM,
        seed: int = 0,
    ) -> None:
        """Make an empty VPC.

        Args:
            cidr: the VPC's CIDR block, or several with commas between them, such as 10.0.0.0/16,100.64.0.0/16.
            ipv6_cidr: the VPC's /56; "" for a VPC without IPv6.
            clock: returns seconds, for delays, lags, throttling and the call log.
            delays: the time that EC2 takes to attach and detach an ENI.
            choice: which free addresses EC2 chooses.
            seed: the seed of IDs and chosen addresses. With the same seed the same calls give the same answers.
        """
        self.cidrs = tuple(IPv4Network(block) for block in cidr.split(","))
        self.cidr = self.cidrs[0]
        self.ipv6_cidr = IPv6Network(ipv6_cidr) if ipv6_cidr else None
        self.region = REGION
        self.clock = clock
        self.faults = Faults(clock=clock, seed=seed)
        self.limits = limits
        self.ids = Ids(Random(seed))
        self.vpc_id = self.ids.make("vpc")
        self.default_group_id = self.ids.make("sg")
        self._log = CallLog()
        self._store = Store(clock=clock, rng=Random(seed + 1), choice=choice)
        self.interfaces = Interfaces(
            self._store,
            ids=self.ids,
            limits=self.limits,
            faults=self.faults,
            delays=delays,
            wall_clock=self.wall_clock,
            seed=seed + 2,
        )
        with self._store.transaction() as tx:
            tx.put_group(SecurityGroup(group_id=self.default_group_id, name="default"))
        self.trunks = Trunks(self._store, self.interfaces, ids=self.ids, limits=limits)
        self.hands = Hands(self._store, self.interfaces, group_id=self.default_group_id, retag=self.retag)
        self._crowding = Crowding(self._store)
        self._views = Views(self._store, self.faults, clock=clock)
        self.faults.on_change(self._faults_changed)

    def __enter__(self) -> Vpc:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread that delivers events, if it runs; idempotent. Events that were not delivered yet are dropped."""
        self._store.dispatcher.close()

    def wall_clock(self) -> datetime:
        """Return the time in UTC that answers of EC2 and metadata show. No decision depends on it."""
        return datetime.now(UTC)

    def add_subnet(
        self, cidr: str, *, az: str = "us-west-2a", tags: Mapping[str, str] | None = None, ipv6_cidr: str = ""
    ) -> Subnet:
        """Create a subnet. `ipv6_cidr`: its IPv6 block, a /64 of the VPC's; "" for none.

        Raises: LabError if a block is not within the VPC, has a wrong size, or overlaps another subnet.
        """
        network, ipv6_network = IPv4Network(cidr), IPv6Network(ipv6_cidr) if ipv6_cidr else None
        with self._store.transaction() as tx:
            if not any(network.subnet_of(cidr) for cidr in self.cidrs) or not 16 <= network.prefixlen <= 28:
                raise LabError(f"subnet {network} must be a /16 to /28 within {' or '.join(map(str, self.cidrs))}")
            if any(network.overlaps(other.cidr) for other in tx.world.subnets.values()):
                raise LabError(f"subnet {network} overlaps another one")
            if ipv6_network is not None:
                self._check_ipv6(ipv6_network, tx.world)
            subnet = Subnet(subnet_id=self.ids.make("subnet"), cidr=network, az=az, tags=dict(tags or {}), ipv6_cidr=ipv6_network)
            tx.put_subnet(subnet)
        return subnet

    def delete_subnet(self, subnet_id: str) -> None:
        """Delete a subnet. Raises: Ec2Error if it does not exist, or has ENIs."""
        with self._store.transaction() as tx:
            tx.world.subnet(subnet_id)
            if any(eni.subnet_id == subnet_id for eni in tx.world.enis.values()):
                raise errors.subnet_in_use(subnet_id)
            tx.drop_subnet(subnet_id)

    def _check_ipv6(self, network: IPv6Network, world: World) -> None:
        if self.ipv6_cidr is None or not network.subnet_of(self.ipv6_cidr) or network.prefixlen != SUBNET_LENGTH:
            raise LabError(f"subnet {network} must be a /{SUBNET_LENGTH} within {self.ipv6_cidr or 'a VPC with IPv6'}")
        if any(other.ipv6_cidr is not None and network.overlaps(other.ipv6_cidr) for other in world.subnets.values()):
            raise LabError(f"subnet {network} overlaps another one")

    def add_instance(
        self, *, name: str, instance_type: str = "m5.large", subnet_id: str, tags: Mapping[str, str] | None = None
    ) -> Instance:
        """Start an instance with its primary ENI, which is attached at once (device index 0, deleted on termination)."""
        if instance_type not in self.limits:
            raise LabError(f"instance type {instance_type} is not in the lab's table (lab/vpc/limits.py)")
        with self._store.transaction() as tx:
            if any(other.name == name and other.running for other in tx.world.instances.values()):
                raise LabError(f"an instance named {name} is running")
            instance = Instance(
                instance_id=self.ids.make("i"),
                name=name,
                instance_type=instance_type,
                subnet_id=subnet_id,
                az=tx.world.subnet(subnet_id).az,
                launched_at=self.wall_clock(),
                ordinal=self._store.next_number(),
                tags=dict(tags or {}),
            )
            tx.put_instance(instance)
            # In a subnet with IPv6 an instance gets one IPv6 address, besides its IPv4 address.
            ipv6 = Ipv6Request(address_count=1 if tx.world.subnet(subnet_id).ipv6_cidr else 0)
            eni = self.interfaces.create_in(tx, subnet_id, AddressRequest(), groups=(self.default_group_id,), ipv6=ipv6)
            attachment = self.interfaces.new_attachment(instance.instance_id, device_index=0)
            plugged = replace(attachment, status=AttachmentStatus.ATTACHED, delete_on_termination=True)
            tx.put_eni(replace(eni, attachment=plugged))
        return instance

    def add_host(self, *, name: str, subnet_id: str) -> Instance:
        """Start a plain host of the VPC: an instance with one ENI that nobody manages."""
        return self.add_instance(name=name, instance_type=HOST_TYPE, subnet_id=subnet_id)

    def terminate_instance(self, instance_id: str) -> None:
        """Terminate an instance. ENIs with DeleteOnTermination are deleted, and the others become available."""
        with self._store.transaction() as tx:
            instance = tx.world.instance(instance_id)
            tx.put_instance(replace(instance, running=False))
            for eni in tx.world.attached_to(instance_id):
                if eni.attachment is not None and eni.attachment.delete_on_termination:
                    tx.drop_eni(eni.eni_id)
                else:
                    tx.put_eni(replace(eni, attachment=None))
                for branch in tx.world.branches_of(eni.eni_id):  # they stay without a trunk, until the controller deletes them
                    tx.put_eni(replace(branch, association=None, interface_type="interface"))

    def stop_instance(self, instance_id: str, *, is_stopped: bool = True) -> None:
        """Let EC2 show an instance as stopped, or as running again. Its ENIs stay, and the lab's node runs on."""
        with self._store.transaction() as tx:
            tx.put_instance(replace(tx.world.instance(instance_id), stopped=is_stopped))

    def add_security_group(self, name: str, *, sources: Iterable[Network | str] | None = None) -> str:
        """Create a security group and return its ID. `sources`: the networks and groups that may send to its members; None: all."""
        group_id = self.ids.make("sg")
        allowed = tuple(sources) if sources is not None else None
        with self._store.transaction() as tx:
            tx.put_group(SecurityGroup(group_id=group_id, name=name, sources=allowed))
        return group_id

    def admit(self, group_id: str, sources: Iterable[Network | str] | None) -> None:
        """Replace the networks and groups that may send to the members of a group; None: everybody may."""
        with self._store.transaction() as tx:
            tx.put_group(replace(tx.world.groups[group_id], sources=tuple(sources) if sources is not None else None))

    def authorize(self, group_id: str, rules: frozenset[GroupRule]) -> None:
        """Add rules to a security group. Raises: Ec2Error if there is no such group, or it has one of the rules."""
        with self._store.transaction() as tx:
            group = tx.world.group(group_id)
            if group.rules & rules:
                raise errors.duplicate_permission()
            tx.put_group(replace(group, rules=group.rules | rules))

    def revoke(self, group_id: str, rules: frozenset[GroupRule]) -> None:
        """Remove rules from a security group. Raises: Ec2Error if there is no such group, or it lacks one of the rules."""
        with self._store.transaction() as tx:
            group = tx.world.group(group_id)
            if not rules <= group.rules:
                raise errors.permission_not_found()
            tx.put_group(replace(group, rules=group.rules - rules))

    def group_name(self, group_id: str) -> str | None:
        """Return the name of a security group; None if there is no such group."""
        group = self.world.groups.get(group_id)
        return group.name if group is not None else None

    def retag(self, resource_id: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> bool:
        """Replace the tags of an ENI, instance or subnet; False if there is no such resource."""
        with self._store.transaction() as tx:
            if eni := tx.world.enis.get(resource_id):
                tx.put_eni(replace(eni, tags=change(eni.tags)))
            elif instance := tx.world.instances.get(resource_id):
                tx.put_instance(replace(instance, tags=change(instance.tags)))
            elif subnet := tx.world.subnets.get(resource_id):
                tx.put_subnet(replace(subnet, tags=change(subnet.tags)))
            else:
                return False
        return True

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with events of the present state, and then of every change in commit order, in the dispatcher's thread."""
        self._store.subscribe(listener)

    def unsubscribe(self, listener: Listener) -> None:
        """Stop calling `listener`. A call that has begun may still run."""
        self._store.dispatcher.unsubscribe(listener)

    def drain(self, timeout_s: float = 5.0) -> None:
        """Wait until every listener has got every event committed so far. Raises: TimeoutError."""
        self._store.settle()
        self._store.dispatcher.drain(timeout_s)

    @property
    def listener_errors(self) -> list[Exception]:
        """Exceptions that listeners raised; none in a healthy lab."""
        return list(self._store.dispatcher.listener_errors)

    def tick(self) -> None:
        """Apply the delayed changes that are due now. Call this after moving an injected clock."""
        self._store.settle()

    @property
    def world(self) -> World:
        """The present state, as one immutable value."""
        return self._store.world

    def shown_by(self, api: str) -> World:
        """Return the VPC as an API shows it now, which may be false by a fault. `api`: the name of the API, or `imds` for metadata."""
        return self._views.world(api)

    def world_at(self, age_s: float) -> World:
        """Return the VPC as it was `age_s` seconds ago."""
        return self._store.world_at(age_s)

    def enis(self) -> list[Eni]:
        """List the ENIs in order of creation."""
        return list(self.world.enis.values())

    def enis_of(self, instance_id: str) -> list[Eni]:
        """List the ENIs of an instance, also attaching and detaching ones, by network card and device index."""
        return self.world.attached_to(instance_id)

    def eni(self, eni_id: str) -> Eni:
        """Return one ENI. Raises: KeyError if it does not exist."""
        return self.world.enis[eni_id]

    def subnets(self) -> list[Subnet]:
        """List the subnets in order of creation."""
        return list(self.world.subnets.values())

    def instances(self) -> list[Instance]:
        """List the instances in order of creation, also terminated ones."""
        return list(self.world.instances.values())

    def instance(self, id_or_name: str) -> Instance:
        """Return the instance with this ID, or the youngest with this name. Raises: KeyError if there is none."""
        world = self.world
        named = [instance for instance in world.instances.values() if instance.name == id_or_name]
        return named[-1] if named else world.instances[id_or_name]

    def owner_of(self, address: IPv4Address) -> str | None:
        """Return the ID of the ENI that has an address, alone or within a prefix; None if no ENI has it."""
        return self._store.owner_of(address)

    def add_enis(self, enis: Iterable[Eni]) -> None:
        """Add ready-made ENIs in one change, for an account with thousands of them. Their addresses must be free."""
        with self._store.transaction() as tx:
            numbered = [replace(eni, ordinal=self._store.next_number()) for eni in enis]
            tx.world = replace(tx.world, enis={**tx.world.enis, **{eni.eni_id: eni for eni in numbered}})

    def free_prefixes(self, subnet_id: str) -> list[IPv4Network]:
        """List the /28s that EC2 may choose in a subnet, lowest first."""
        with self._store.transaction() as tx:
            return tx.space(subnet_id).free_prefixes()

    def exhaust_subnet(self, subnet_id: str, *, leave: int = 0) -> None:
        """Hold free addresses of a subnet, lowest first, until only `leave` are free."""
        self._crowding.exhaust(subnet_id, leave=leave)

    def fragment_subnet(self, subnet_id: str) -> None:
        """Hold one address in each free aligned /28, so that EC2 can choose no prefix although many addresses are free."""
        self._crowding.fragment(subnet_id)

    def restore_subnet(self, subnet_id: str) -> None:
        """Undo exhaust_subnet and fragment_subnet."""
        self._crowding.restore(subnet_id)

    def hold_ipv6_prefixes(self, subnet_id: str, *, is_held: bool = True) -> None:
        """Let a subnet have no free /80 (`is_held`), or have free ones again."""
        self._crowding.hold_ipv6_prefixes(subnet_id, is_held=is_held)

    def reserve_cidr(self, subnet_id: str, cidr: str, kind: ReservationKind) -> None:
        """Reserve a range of a subnet, as CreateSubnetCidrReservation does."""
        network = IPv4Network(cidr)
        subnet = self.world.subnet(subnet_id)
        if not network.subnet_of(subnet.cidr) or any(network.overlaps(other.cidr) for other in subnet.reservations):
            raise LabError(f"reservation {network} must be within {subnet.cidr} and overlap no other one")
        self._crowding.reserve(subnet_id, SubnetReservation(reservation_id=self.ids.make("scr"), cidr=network, kind=kind))

    def attach_volumes(self, instance_name: str, count: int) -> None:
        """Let an instance have `count` EBS volumes from now on; its root volume is one of them."""
        volumes = {**(self.faults.conditions.volumes or {}), instance_name: count}
        self.faults.apply({"volumes": volumes})

    def changes(self) -> tuple[Change, ...]:
        """List the changes of ENIs by API calls in the last ten minutes (`world.KEPT_S`), oldest first."""
        return self._store.changes()

    def record_call(self, call: Call) -> None:
        """Write one API call into the log. The servers call this."""
        self._log.record(call)

    def calls(self, *, instance: str | None = None) -> list[Call]:
        """List the EC2 calls in the order of their completion: all, or those of one instance."""
        return self._log.calls(instance=instance)

    def call_counts(self, *, instance: str | None = None) -> Counter[str]:
        """Count the EC2 calls per API."""
        return self._log.counts(instance=instance)

    def clear_calls(self) -> None:
        """Remove all calls from the log, for the start of a measurement."""
        self._log.clear()

    def _faults_changed(self) -> None:
        self._views.follow()
        self._crowding.follow(self.faults.conditions.subnets or {})
