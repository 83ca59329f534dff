"""The VPC router: follows EC2's events and makes the kernel agree with them.

Guards: a packet passes only if EC2 says that its source is on the ENI it comes from, and arrives only where EC2
says that its destination is. Events come in commit order from one thread, and each is applied before the next is
taken, so after `Vpc.drain` the wires are as EC2 says. An address that moves from one ENI to another is given up
first: two ports never own it.

Lifetime: the namespace is held by this object alone; closing it, or the death of the process, destroys every port, and
with the ports the nodes' interfaces.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_network

from lab.fabric import groups, port, source_check, vlan
from lab.fabric.advertise import Advertiser
from lab.fabric.errors import FabricError
from lab.fabric.groups import Refusal
from lab.fabric.netns import Netns
from lab.fabric.source_check import Drop
from lab.vpc.model import (
    Address,
    AddressesChanged,
    AdmissionChanged,
    Eni,
    EniAttached,
    EniDetached,
    Network,
    TrunkAssociation,
    VpcEvent,
)

log = logging.getLogger(__name__)

ROUTER_SYSCTLS = {
    "ipv4/ip_forward": "1",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/all/send_redirects": "0",
    "ipv4/icmp_ratelimit": "0",
}
ROUTE_S, ROUTE_POLL_S = 10.0, 0.05
WITHOUT_IPV6 = {"ipv6/conf/all/disable_ipv6": "1", "ipv6/conf/default/disable_ipv6": "1"}
WITH_IPV6 = {
    "ipv6/conf/all/forwarding": "1",
    "ipv6/conf/default/addr_gen_mode": "1",  # none: the router has the address that it is given
    "ipv6/conf/all/accept_redirects": "0",
    "ipv6/icmp/ratelimit": "0",
}


@dataclass
class _Plug:
    """One plugged ENI: what EC2 says of it, and what of that the kernel has been told."""

    eni: Eni
    instance_id: str
    told: frozenset[Network] | None = None  # None: no wire yet, its instance has no namespace


@dataclass
class _State:
    netns_of: dict[str, Netns] = field(default_factory=dict)
    plugs: dict[str, _Plug] = field(default_factory=dict)
    wanted: dict[str, frozenset[Network]] = field(default_factory=dict)
    admitted: dict[str, frozenset[Network] | None] = field(default_factory=dict)  # who may send to an ENI; None: everybody
    port_owner: dict[str, str] = field(default_factory=dict)  # port name -> ENI, also of ENIs long gone: drops outlive them


class Fabric:
    """Subscribe `handle` to a Vpc, `connect` each instance's namespace; the rest follows from events."""

    def __init__(self, *, has_ipv6: bool = False) -> None:
        self._state = _State()
        self._changed = threading.Condition(threading.RLock())
        self._problems: list[str] = []
        self._netns = Netns.new("fabric")
        self._netns.sysctl(ROUTER_SYSCTLS | (WITH_IPV6 if has_ipv6 else WITHOUT_IPV6))
        self._netns.tool(["nft", "-f", "-"], script=source_check.RULESET + groups.RULESET)  # from now on nothing passes
        self._advertiser = Advertiser(self._netns) if has_ipv6 else None

    @property
    def router(self) -> Netns:
        """The router's namespace, for what else stands in it (internet.py); this object closes it."""
        return self._netns

    @property
    def problems(self) -> list[str]:
        """Events that could not be applied, in words; a sound lab has none."""
        with self._changed:
            return list(self._problems)

    def connect(self, instance_id: str, netns: Netns) -> None:
        """Tell which namespace an instance is, and wire the ENIs that it has by now."""
        with self._changed:
            self._state.netns_of[instance_id] = netns
            for plug in self._state.plugs.values():
                if plug.instance_id == instance_id and plug.told is None:
                    self._wire(plug)
            self._changed.notify_all()

    def handle(self, event: VpcEvent) -> None:
        """Apply one event of the Vpc; a failure is recorded in `problems`, for the dispatcher has other listeners."""
        with self._changed:
            try:
                self._apply(event)
            except (FabricError, OSError) as exc:
                log.error("the fabric could not apply %s: %s", event, exc)
                self._problems.append(f"{type(event).__name__}: {exc}")
            self._changed.notify_all()

    def wait_for(self, claim: Callable[[Fabric], bool], *, timeout_s: float) -> bool:
        """Wait until `claim` holds, looking after each event; False at the deadline."""
        with self._changed:
            return self._changed.wait_for(lambda: claim(self), timeout_s)

    def is_wired(self, eni_id: str) -> bool:
        """Whether the ENI's interface exists in its instance's namespace."""
        with self._changed:
            plug = self._state.plugs.get(eni_id)
            return plug is not None and plug.told is not None

    def drops(self) -> list[Drop]:
        """Tell what the source check refused since the start, by ENI and source address, ascending."""
        counts = source_check.drop_counts(self._netns)
        with self._changed:
            owner = dict(self._state.port_owner)
        found = [Drop(owner.get(name, name), source, count) for (name, source), count in counts.items()]
        return sorted(found, key=lambda drop: (drop.eni_id, drop.source.version, int(drop.source)))

    def dropped(self, source: Address) -> int:
        """Count the refused packets of one source address over all ENIs."""
        return sum(drop.packet_count for drop in self.drops() if drop.source == source)

    def refusals(self) -> list[Refusal]:
        """Tell what security groups kept away since the start, by ENI and source address, ascending."""
        counts = groups.refusal_counts(self._netns)
        with self._changed:
            owner = dict(self._state.port_owner)
        found = [Refusal(owner.get(name, name), source, count) for (name, source), count in counts.items()]
        return sorted(found, key=lambda one: (one.eni_id, one.source.version, int(one.source)))

    def refused(self, eni_id: str, source: Address) -> int:
        """Count the packets of one source that the groups of an ENI kept away."""
        return sum(one.packet_count for one in self.refusals() if (one.eni_id, one.source) == (eni_id, source))

    def close(self) -> None:
        """Destroy the router and every wire; idempotent."""
        if self._advertiser is not None:
            self._advertiser.close()
            self._advertiser = None
        self._netns.close()

    def _apply(self, event: VpcEvent) -> None:
        match event:
            case EniAttached(instance_id=instance_id, eni=eni):
                if eni.eni_id in self._state.plugs or not eni.has_link:
                    return
                plug = _Plug(eni, instance_id)
                self._state.plugs[eni.eni_id] = plug
                self._state.wanted[eni.eni_id] = _networks(eni.all_addresses, eni.all_prefixes)
                self._wire(plug)
            case EniDetached(eni_id=eni_id):
                gone = self._state.plugs.pop(eni_id, None)
                if gone is not None:
                    self._cut(gone)
            case AddressesChanged(eni_id=eni_id, addresses=addresses, prefixes=prefixes):
                self._state.wanted[eni_id] = _networks(addresses, prefixes)
                if self._state.admitted.get(eni_id) is not None:
                    self._name_members()
                present = self._state.plugs.get(eni_id)
                if present is not None and present.told is not None:
                    self._tell(present)
            case AdmissionChanged(eni_id=eni_id, sources=sources):
                before = self._state.admitted.get(eni_id)
                self._state.admitted[eni_id] = sources
                groups.change(self._netns, port.port_name(eni_id), before=before, after=sources)
                self._state.port_owner[port.port_name(eni_id)] = eni_id
                self._name_members()

    def _name_members(self) -> None:
        guarded = [eni_id for eni_id, sources in self._state.admitted.items() if sources is not None]
        groups.name_members(self._netns, [one for eni_id in guarded for one in self._state.wanted.get(eni_id, ())])

    def _wire(self, plug: _Plug) -> None:
        node = self._state.netns_of.get(plug.instance_id)
        if node is None:
            return  # `connect` comes back to it
        if plug.eni.association is not None:
            self._wire_branch(plug, plug.eni.association)
            return
        eni = plug.eni
        self._state.port_owner[port.port_name(eni.eni_id)] = eni.eni_id
        self._netns.ip(
            [
                f"addr replace {port.gateway(eni.subnet_cidr)}/32 dev lo",
                *port.create_lines(eni, node_netns_path=node.path),
                *(port.ipv6_lines(eni) if self._advertiser is not None else ()),
            ]
        )
        self._netns.sysctl(port.port_sysctls(eni.eni_id))
        node.sysctl(port.interface_sysctls(eni) | (port.ipv6_sysctls(eni) if self._advertiser is not None else {}))
        plug.told = frozenset()
        self._tell(plug)
        if port.is_primary(eni):
            node.ip(port.dhcp_lines(eni))
        if self._advertiser is not None:
            self._advertiser.add(port.port_name(eni.eni_id))
            if port.is_primary(eni):
                self._await_route(self._advertiser, eni, node)

    def _wire_branch(self, plug: _Plug, bond: TrunkAssociation) -> None:
        """A port of its own for a branch, on the trunk's; what the node makes of the tagged frames is the node's affair."""
        trunk = self._state.plugs.get(bond.trunk_id)
        if trunk is None or trunk.told is None:
            return  # the trunk's own event comes first; its instance has no namespace
        eni, name = plug.eni, port.port_name(plug.eni.eni_id)
        self._state.port_owner[name] = eni.eni_id
        self._netns.call(lambda: vlan.make(port.port_name(bond.trunk_id), name, bond.vlan))
        has_ipv6 = self._advertiser is not None
        self._netns.sysctl(port.port_sysctls(eni.eni_id))
        own_gateway = f"addr replace {port.gateway(eni.subnet_cidr)}/32 dev lo"
        self._netns.ip([own_gateway, *port.branch_lines(eni), *(port.ipv6_lines(eni) if has_ipv6 else ())])
        plug.told = frozenset()
        self._tell(plug)
        if self._advertiser is not None:
            self._advertiser.add(name)

    def _await_route(self, advertiser: Advertiser, eni: Eni, node: Netns) -> None:
        """Advertise until an instance has its default route, as one has that has booted: its link may not hear the first."""
        deadline = time.monotonic() + ROUTE_S
        while not node.tool(["ip", "-6", "route", "show", "default"]):
            if time.monotonic() > deadline:
                raise FabricError(f"{node.name} took no default route from the router's advertisements in {ROUTE_S:.0f} s")
            advertiser.advertise(port.port_name(eni.eni_id))
            time.sleep(ROUTE_POLL_S)

    def _tell(self, plug: _Plug) -> None:
        """Bring routes and source check from what the kernel was told to what EC2 wants."""
        eni_id, told = plug.eni.eni_id, plug.told or frozenset()
        wanted = self._state.wanted.get(eni_id, frozenset())
        added, removed = wanted - told, told - wanted
        for other in self._state.plugs.values():
            if other is not plug and other.told is not None and other.told & added:
                self._retract(other, other.told & added)
        source_check.change(self._netns, port.port_name(eni_id), added=added, removed=removed)
        self._netns.ip(port.route_lines(eni_id, added=added, removed=removed))
        plug.told = wanted

    def _retract(self, plug: _Plug, networks: frozenset[Network]) -> None:
        name = port.port_name(plug.eni.eni_id)
        source_check.change(self._netns, name, added=(), removed=networks)
        self._netns.ip(port.route_lines(plug.eni.eni_id, added=(), removed=networks))
        plug.told = (plug.told or frozenset()) - networks

    def _cut(self, plug: _Plug) -> None:
        if plug.told is None:
            return
        name = port.port_name(plug.eni.eni_id)
        node, trunk_index = self._state.netns_of.get(plug.instance_id), 0
        if plug.eni.interface_type == "trunk":
            self._cut_branches(plug)
            with suppress(OSError):  # the node may have lost the link by itself
                trunk_index = node.call(lambda: socket.if_nametoindex(port.interface_name(plug.eni))) if node is not None else 0
        source_check.change(self._netns, name, added=(), removed=plug.told)
        self._netns.ip([f"link del {name}"])
        plug.told = None
        if node is not None and trunk_index:
            node.call(lambda: vlan.lose_all(trunk_index))

    def _cut_branches(self, trunk: _Plug) -> None:
        """As the kernel does on the VPC's side: the links on a trunk go with it. On the node's they do after it (`vlan.lose_all`)."""
        for plug in self._state.plugs.values():
            if plug.eni.association is not None and plug.eni.association.trunk_id == trunk.eni.eni_id:
                self._cut(plug)


def _networks(addresses: tuple[Address, ...], prefixes: tuple[Network, ...]) -> frozenset[Network]:
    return frozenset([*(ip_network(address) for address in addresses), *prefixes])
