"""The VPC router: a network namespace that follows the events of the simulated EC2.

A *port* is the router's end of the veth pair of an ENI. A packet passes the router only if EC2 has its source address on the ENI of
the port on which it arrives, and it leaves by the port of the ENI that has its destination address. Events come in commit order from
one thread, and each is applied before the next is taken. So after `Vpc.drain` the router agrees with EC2. If an address moves to
another ENI, it is first removed from the old port, so that two ports never have it.

Only this object holds the namespace. When it is closed or the process dies, the kernel removes every port, and with it the node's end.
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
    "ipv6/conf/default/addr_gen_mode": "1",  # no generated link-local address, because `port.ipv6_lines` gives the router its own
    "ipv6/conf/all/accept_redirects": "0",
    "ipv6/icmp/ratelimit": "0",
}


@dataclass
class _Plug:
    """An ENI that is in an instance. `told`: the networks that routes and source check of its port have; None while it has no port,
    because the namespace of its instance is not known yet."""

    eni: Eni
    instance_id: str
    told: frozenset[Network] | None = None


@dataclass
class _State:
    netns_of: dict[str, Netns] = field(default_factory=dict)
    plugs: dict[str, _Plug] = field(default_factory=dict)
    wanted: dict[str, frozenset[Network]] = field(default_factory=dict)
    admitted: dict[str, frozenset[Network] | None] = field(default_factory=dict)  # ENI -> networks that may send to it; None: all
    port_owner: dict[str, str] = field(default_factory=dict)  # port -> ENI, also of removed ports, whose counters stay


class Fabric:
    """The router. Subscribe `handle` to a Vpc, and call `connect` for each instance; everything else follows from the events."""

    def __init__(self, *, has_ipv6: bool = False) -> None:
        self._state = _State()
        self._changed = threading.Condition(threading.RLock())
        self._problems: list[str] = []
        self._netns = Netns.new("fabric")
        self._netns.sysctl(ROUTER_SYSCTLS | (WITH_IPV6 if has_ipv6 else WITHOUT_IPV6))
        self._netns.tool(["nft", "-f", "-"], script=source_check.RULESET + groups.RULESET)  # at first they let no packet pass
        self._advertiser = Advertiser(self._netns) if has_ipv6 else None

    @property
    def router(self) -> Netns:
        """The router's namespace, in which internet.py adds its gateways. This object closes it."""
        return self._netns

    @property
    def problems(self) -> list[str]:
        """A text for each event that could not be applied. A sound lab has none."""
        with self._changed:
            return list(self._problems)

    def connect(self, instance_id: str, netns: Netns) -> None:
        """Set the namespace of an instance, and wire the ENIs that the instance has already."""
        with self._changed:
            self._state.netns_of[instance_id] = netns
            for plug in self._state.plugs.values():
                if plug.instance_id == instance_id and plug.told is None:
                    self._wire(plug)
            self._changed.notify_all()

    def handle(self, event: VpcEvent) -> None:
        """Apply one event of the Vpc. A failure is recorded in `problems` and not raised, because other listeners follow."""
        with self._changed:
            try:
                self._apply(event)
            except (FabricError, OSError) as exc:
                log.error("the fabric could not apply %s: %s", event, exc)
                self._problems.append(f"{type(event).__name__}: {exc}")
            self._changed.notify_all()

    def wait_for(self, claim: Callable[[Fabric], bool], *, timeout_s: float) -> bool:
        """Wait until `claim` is true, and check it after each event. Returns: whether it became true in time."""
        with self._changed:
            return self._changed.wait_for(lambda: claim(self), timeout_s)

    def is_wired(self, eni_id: str) -> bool:
        """Whether the ENI's interface exists in its instance's namespace."""
        with self._changed:
            plug = self._state.plugs.get(eni_id)
            return plug is not None and plug.told is not None

    def drops(self) -> list[Drop]:
        """List the packets that the source check dropped since the start, by ENI and source address, ascending."""
        counts = source_check.drop_counts(self._netns)
        with self._changed:
            owner = dict(self._state.port_owner)
        drops = [Drop(owner.get(name, name), source, count) for (name, source), count in counts.items()]
        return sorted(drops, key=lambda drop: (drop.eni_id, drop.source.version, int(drop.source)))

    def dropped(self, source: Address) -> int:
        """Count the packets with one source address that the source check dropped, from all ENIs."""
        return sum(drop.packet_count for drop in self.drops() if drop.source == source)

    def refusals(self) -> list[Refusal]:
        """List the packets that security groups dropped since the start, by destination ENI and source address, ascending."""
        counts = groups.refusal_counts(self._netns)
        with self._changed:
            owner = dict(self._state.port_owner)
        refusals = [Refusal(owner.get(name, name), source, count) for (name, source), count in counts.items()]
        return sorted(refusals, key=lambda refusal: (refusal.eni_id, refusal.source.version, int(refusal.source)))

    def refused(self, eni_id: str, source: Address) -> int:
        """Count the packets with one source address that the security groups of an ENI dropped."""
        return sum(item.packet_count for item in self.refusals() if (item.eni_id, item.source) == (eni_id, source))

    def close(self) -> None:
        """Remove the router and all ports; idempotent."""
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
        groups.name_members(self._netns, [network for eni_id in guarded for network in self._state.wanted.get(eni_id, ())])

    def _wire(self, plug: _Plug) -> None:
        node = self._state.netns_of.get(plug.instance_id)
        if node is None:
            return  # `connect` wires the ENI later
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
        """Make the port of a branch ENI: a VLAN link on the trunk's port. The daemon makes the VLAN link on the node's side."""
        trunk = self._state.plugs.get(bond.trunk_id)
        if trunk is None or trunk.told is None:
            return  # the trunk's event came before, so it has no port because the namespace of its instance is unknown
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
        """Advertise until an instance has its default route, as it has after a boot. Its link may miss the first advertisement.

        Raises: FabricError after ROUTE_S.
        """
        deadline = time.monotonic() + ROUTE_S
        while not node.tool(["ip", "-6", "route", "show", "default"]):
            if time.monotonic() > deadline:
                raise FabricError(f"{node.name} took no default route from the router's advertisements in {ROUTE_S:.0f} s")
            advertiser.advertise(port.port_name(eni.eni_id))
            time.sleep(ROUTE_POLL_S)

    def _tell(self, plug: _Plug) -> None:
        """Change routes and source check of a port from the networks in `told` to those that its ENI has at EC2."""
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
            with suppress(OSError):  # the link may have been removed in the node
                trunk_index = node.call(lambda: socket.if_nametoindex(port.interface_name(plug.eni))) if node is not None else 0
        source_check.change(self._netns, name, added=(), removed=plug.told)
        self._netns.ip([f"link del {name}"])
        plug.told = None
        if node is not None and trunk_index:
            node.call(lambda: vlan.lose_all(trunk_index))

    def _cut_branches(self, trunk: _Plug) -> None:
        """Remove the ports of a trunk's branches before the trunk's port, as the kernel removes VLAN links with their parent. On the
        node's side `vlan.lose_all` removes the links afterwards."""
        for plug in self._state.plugs.values():
            if plug.eni.association is not None and plug.eni.association.trunk_id == trunk.eni.eni_id:
                self._cut(plug)


def _networks(addresses: tuple[Address, ...], prefixes: tuple[Network, ...]) -> frozenset[Network]:
    return frozenset([*(ip_network(address) for address in addresses), *prefixes])
