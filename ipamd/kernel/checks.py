"""Compare one sandbox's wiring with its specification (CNI CHECK): read only, one sentence per difference.

Each sentence names the actual and the expected value; the runtime gets it unchanged.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable

from ipamd.kernel import messages, survey, uapi
from ipamd.kernel.netlink import Message, NetlinkSocket, Outcome
from ipamd.model import kernel as dataplane
from ipamd.model.attachment import WiringSpec
from ipamd.model.family import IPV6, Family, IpAddress, family_of
from ipamd.model.kernel import (
    IPV6_OFF,
    KernelSurvey,
    Repaired,
    RepairedObject,
    RepairKind,
    veth_differences,
)
from ipamd.model.record import dataclass, field, replace

_Route = tuple[IpAddress | None, int, IpAddress | None, int]
"""Destination, length, next hop and type of an entry of the route tables."""


REFUSALS = frozenset({errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL})
"""What the kernel says of routes that are unreachable, prohibit and blackhole. Source: its net/ipv6/route.c, ip6_rt_type_to_error."""


def sandbox_differences(
    sock: NetlinkSocket, spec: WiringSpec, *, host_link: messages.Link | None, is_arrival_only: bool
) -> list[str]:
    """Compare the sandbox side, or only what packets need to arrive; `sock` is a socket of its namespace. Raises: WiringError.

    Who runs there may have made any number of anything, so single objects are asked for, and nothing is dumped (I16). Routes are
    looked up through our link: what leads through another one, as a VPN's does, neither hides ours nor stands for them.
    """
    name, gateway = spec.ifname, spec.gateway
    link = find_link(sock, name)
    if link is None:
        return [f"interface {name} is missing in {spec.netns}"]
    mac, is_mtu_own = spec.mac("sandbox"), is_arrival_only or not spec.is_mtu_known
    compared = (
        (link.kind == uapi.VETH_KIND, f"is of kind {link.kind or 'hardware'}, not veth"),
        (link.is_up, "is down"),
        (link.mac == (mac or link.mac), f"has MAC {link.mac}, not {mac}"),
        (link.mtu == spec.mtu or is_mtu_own, f"has MTU {link.mtu}, not {spec.mtu}"),
    )
    found = [f"interface {name} {what}" for is_right, what in compared if not is_right]
    if host_link is not None and host_link.peer_index != link.index:
        found.append(f"interface {name} is not the other end of {spec.host_veth}")
    if not link.is_up:
        return found  # it has no routes then, and none can be looked up through it
    wanted = _routes_inside(spec)[: 1 if is_arrival_only else None]
    asked = [messages.match_route(address, index=link.index) for address, _, _ in wanted]
    # Of IPv6 the route of the wiring outlives the address (`messages.deliver`), and what refuses is no route of our link's. Of IPv4 no
    # single address can be asked for.
    outside, held = family_of(spec.address).outside, list[Message]()
    if family_of(spec.address) is IPV6:
        held = [messages.get_address(link.index, spec.address), messages.look_up_route(outside, spec.address)]
    *looked, neighbour = sock.request([*held, *asked, messages.get_neighbour(link.index, gateway)])
    if held:
        has_address, sent = looked.pop(0), looked.pop(0)
        if has_address.errno in messages.ABSENT:
            found.append(f"interface {name} does not have {spec.address}")
        if sent.errno in REFUSALS and not is_arrival_only:
            found.append(f"a route in the sandbox refuses packets (the kernel says of {outside}: {sent.cause})")
    for outcome, (address, route, sentence) in zip(looked, wanted, strict=True):
        taken = outcome.read(messages.read_route)
        if taken is None:
            found.append(f"{sentence} (the kernel says of {address}: {outcome.cause})")
        elif (taken.destination, taken.length, taken.via, taken.route_type) != route:
            found.append(f"{sentence} (the kernel takes {taken.destination or 'default'}/{taken.length} for {address})")
    return found + _gateway_differences(neighbour, spec)


def _gateway_differences(asked: Outcome, spec: WiringSpec) -> list[str]:
    """Compare a sandbox's entry for its next hop. A kernel that cannot be asked for one says nothing about it (I11)."""
    mac, entry = spec.mac("host"), asked.read(messages.read_neighbour)
    if entry is None and asked.errno not in messages.ABSENT:
        return []
    if entry is not None and entry.is_permanent and entry.mac == (mac or entry.mac):
        return []
    now = "none" if entry is None else f"{entry.mac}{'' if entry.is_permanent else ' (not permanent)'}"
    return [f"the neighbour {spec.gateway} in the sandbox is {now}, not {mac or 'one'} (permanent)"]


def _routes_inside(spec: WiringSpec) -> list[tuple[IpAddress, _Route, str]]:
    """What is looked up in a sandbox, the entry to be taken for it, and what to say otherwise; first what arrival needs."""
    name, own, gateway, unicast = spec.ifname, spec.address, spec.gateway, uapi.RTN_UNICAST
    length = own.max_prefixlen
    default = f"the default route via {gateway} dev {name} is missing in the sandbox, or not in use"
    return [
        (own, (own, length, None, uapi.RTN_LOCAL), f"interface {name} does not have {own}"),
        (gateway, (gateway, length, None, unicast), f"the route to {gateway} dev {name} is missing in the sandbox"),
        (family_of(own).outside, (None, 0, gateway, unicast), default),
    ]


def wrong_neighbour(asked: Outcome, spec: WiringSpec) -> str:
    """Say of the host's entry for a sandbox what is wrong, "" if it is right: others fixed it to a wrong MAC. Of IPv6, whose neighbour
    discovery is dropped, and of egress it may also be missing, or the kernel's own. One that cannot be asked for says nothing (I11).
    """
    entry, mac = asked.read(messages.read_neighbour), spec.mac("sandbox")
    is_fixed = entry is not None and entry.is_permanent
    if (family_of(spec.address) is IPV6 or spec.is_egress) and not is_fixed and (entry or asked.errno in messages.ABSENT):
        return f"the neighbour {spec.address} on {spec.host_veth} is {entry.mac or 'not known' if entry else 'missing'}, not for good"
    if entry is None or not is_fixed or entry.mac == (mac or entry.mac):
        return ""
    return f"the neighbour {spec.address} on {spec.host_veth} is {entry.mac} for good, not {mac}"


def link_inside(sock: NetlinkSocket, link: messages.Link) -> messages.Link | None:
    """A veth's other end, which is in another namespace; None if the kernel does not say."""
    (looked,) = sock.request([messages.get_link(link.peer_index, netnsid=link.netnsid)]) if link.netnsid else (None,)
    return messages.read_link(looked.replies[0]) if looked and looked.replies else None


def mac_inside(sock: NetlinkSocket, link: messages.Link) -> str:
    """Its MAC; "" if the kernel does not say."""
    inside = link_inside(sock, link)
    return inside.mac if inside else ""


def find_link(sock: NetlinkSocket, which: str | int) -> messages.Link | None:
    """Find one link by name or index, without a dump; None for index 0."""
    if not which:
        return None
    (looked,) = sock.request([messages.get_link(which)])
    return looked.read(messages.read_link)


# Put right what something else on the node changed of one wired sandbox, object by object and without a dump of the whole node.
#
# Additions ask the kernel to refuse what exists, so an object that was there all the time is neither touched nor counted. A link is
# ours if it is a veth of the recorded name whose alias or MAC is this sandbox's: one of both may have been changed. The datastore says
# who owns the address, so a route that leads elsewhere is replaced, unless it leads to another sandbox's veth (I1). A missing link
# cannot be restored: the sandbox must be created again. A sandbox's own side is its own: `checks` names what differs there.


@dataclass(slots=True)
class SandboxRepair:
    """The repair of one sandbox: sends each change at once, and keeps a sentence of those that changed something.

    `held`: objects that are left as they are.
    """

    sock: NetlinkSocket
    spec: WiringSpec
    held: Collection[RepairedObject]
    sentences: list[str] = field(default_factory=list)

    def make(self, kind: RepairKind, changes: Iterable[tuple[Message, str]]) -> bool:
        """Make changes of one kind, each with its sentence, or "". Returns: whether any sentence was of a change."""
        thing = RepairedObject(kind, str(self.spec.address))
        made = False
        for message, sentence in () if thing in self.held else changes:
            (outcome,) = self.sock.request([message])
            if outcome.errno == 0 and sentence:
                self.sentences.append(Repaired(sentence, thing))
                made = True
            elif outcome.is_refused:
                self.sentences.append(f"{message.step} failed: {outcome.cause}")
        return made

    def host_side(self, seen: KernelSurvey) -> None:
        """Restore link, route and rules in the host's namespace; `seen` names rules to other tables.

        Raises: KernelDumpError, WiringError.
        """
        spec = self.spec
        link = find_link(self.sock, spec.host_veth)
        differences = veth_differences(spec, None if link is None else survey.host_veth(link))
        lasting = [one.what for one in differences if one.kind is None]
        # A sandbox with NET_ADMIN makes links on the node of any name, alias and MAC; where one leads is no forgery.
        if link is not None and survey.namespace_number(self.sock, spec.netns) not in (b"", link.netnsid):
            lasting.append(f"host link {spec.host_veth} does not lead into {spec.netns}")
        if link is None or lasting:
            self.sentences.append(f"{'; '.join(lasting)}; sandbox {spec.key}: not repaired")
            return
        if differences:
            # In one message, or a crash in between might leave a link that nothing proves to be this sandbox's.
            mtu = spec.mtu if spec.is_mtu_known else 0
            # A MAC that is set takes the link's permanent neighbours along, also where it is the same.
            mac = "" if link.mac == spec.mac("host") else spec.mac("host")
            change = messages.change_link(link.index, step=f"set {link.name}", is_up=True, alias=spec.alias, mac=mac, mtu=mtu)
            renewal = messages.renew_ipv6(link.index, mtu=link.mtu) if IPV6_OFF in differences[-1].what else []
            said = f"{'; '.join(one.what for one in differences)}: set"
            self.make(RepairKind.LINK, [*((one, "") for one in renewal), (change, said)])
        (neighbour,) = self.sock.request([messages.get_neighbour(link.index, spec.address)])
        if (wrong := wrong_neighbour(neighbour, spec)) and (mac := spec.mac("sandbox") or mac_inside(self.sock, link)):
            right = messages.add_neighbour(link.index, spec.address, mac=mac)
            self.make(RepairKind.LINK, [(right, f"{wrong}: set")])
        if spec.branch and spec.branch.is_strict:
            return
        if spec.address in seen.to_rules:  # the former form is no damage
            self.sock.request([wiring_route(spec.address, link.index, link.name, table=dataplane.OWN_TABLE)])
        for table in survey.SANDBOX_TABLES:
            self._route(link, table)
        self._rules(seen)

    def _route(self, link: messages.Link, table: int) -> None:
        spec, family = self.spec, family_of(self.spec.address)
        through_it = survey.routes_of(self.sock, table=table, index=link.index, family=family)
        if any(one.is_to(spec.address) and one.metric == family.route_metric and not one.via for one in through_it):
            return
        add = wiring_route(spec.address, link.index, link.name, table=table)
        exists = replace(add, tolerated=messages.PRESENT)
        if self.make(RepairKind.ROUTE, [(exists, f"{add.step.removeprefix('add ')} was missing: added")]):
            return
        # Of routes without a metric the kernel has one for each destination: the one that was in the way.
        for other in survey.routes_of(self.sock, table=table, family=family):
            if other.is_to(spec.address) and other.metric == family.route_metric:
                elsewhere = find_link(self.sock, other.index)
                name = elsewhere.name if elsewhere else f"link {other.index}"
                claim = survey.host_veth(elsewhere) if elsewhere is not None and elsewhere.index != link.index else None
                if claim is not None and claim.address == spec.address:
                    self.sentences.append(f"{spec.address} of {spec.key} is routed through {name} of {claim.key}: not repaired")
                    continue
                put = wiring_route(spec.address, link.index, link.name, table=table, is_replaced=True)
                sentence = f"route {spec.address} led through {name}, not {link.name}: replaced"
                self.make(RepairKind.ROUTE, [(put, sentence)])

    def _rules(self, seen: KernelSurvey) -> None:
        spec, priority = self.spec, dataplane.FROM_SANDBOX_PRIORITY
        single, shared = seen.from_rules.get(spec.address, ()), seen.tables_from_prefix(spec.address)
        has_former = bool(spec.prefix) and spec.route_table in single
        added = messages.add_rule(priority, table=spec.route_table, source=spec.prefix or spec.address)
        wanted = [(own_table_rule(family_of(spec.address)), f"{dataplane.OWN_RULE} was missing: added")]
        if has_former:  # no damage
            self.sock.request([added])
        if spec.route_table not in (uapi.RT_TABLE_MAIN, *shared):
            wanted.append((added, f"{added.step.removeprefix('add ')} was missing: added"))
        for origin, tables in ((spec.address, single), (spec.prefix, shared)):
            for table in dict.fromkeys(tables):
                if table != spec.route_table and origin:
                    stale = messages.delete_rule(priority, table=table, source=origin)
                    wanted.append((stale, f"rule {priority} from {origin} looked up table {table}: removed"))
        self.make(RepairKind.RULE, wanted)
        # What makes a rule needless must have been seen: no packet is lost.
        if spec.address in seen.to_rules and seen.has_own_rule and seen.own_routes.get(spec.address) == spec.host_veth:
            to_sandbox = messages.delete_rule(dataplane.TO_SANDBOX_PRIORITY, table=uapi.RT_TABLE_MAIN, destination=spec.address)
            self.sock.request([to_sandbox])
        if has_former and spec.route_table in shared:
            self.sock.request([messages.delete_rule(priority, table=spec.route_table, source=spec.address)])


def own_table_rule(family: Family) -> Message:
    """The one rule to the routes of all sandboxes of a family; a kernel without it, which egress may ask for, needs none."""
    rule = messages.add_rule(dataplane.OWN_TABLE_PRIORITY, table=dataplane.OWN_TABLE, family=family)
    return replace(rule, tolerated=messages.PRESENT | {errno.EAFNOSUPPORT})


def wiring_route(address: IpAddress, index: int, name: str, *, table: int, is_replaced: bool = False) -> Message:
    """The route to a sandbox through its host veth, as its wiring adds it to both tables."""
    where = "" if table == uapi.RT_TABLE_MAIN else f" table {table}"
    step = f"{'replace' if is_replaced else 'add'} route {address} dev {name}{where}"
    return messages.add_route(address, index=index, table=table, is_replaced=is_replaced, step=step)
