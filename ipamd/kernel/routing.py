"""One secondary ENI on the host: compare link, address, table and rule with what they should be, and list the repairs.

Every step reads first and writes only differences, so setup, repeated setup and reconciliation are the same code; each repair has
one sentence. Source of the steps: amazon-vpc-cni-k8s pkg/networkutils/network.go, setupENINetwork. Different on purpose: it
deletes routes before it replaces them, and removes the connected route after the kernel has added it; here routes are replaced
in one call and the address is added without its connected route, so traffic has no gap.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, NamedTuple

from ipamd.kernel import checks, devconf, messages, ruleset, survey, uapi
from ipamd.kernel.netlink import Message, NetlinkSocket
from ipamd.kernel.netns import HostNetns
from ipamd.model import kernel as dataplane
from ipamd.model.attachment import VETH_HASH_LENGTH
from ipamd.model.branch import IPV6_GATEWAY, STRICT_MARK
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni, gateway
from ipamd.model.errors import WiringError
from ipamd.model.family import IPV4, IPV6, Family, IpAddress, IpNetwork, family_of
from ipamd.model.ids import MacAddress
from ipamd.model.kernel import NODE, RepairKind, RoutingDifference
from ipamd.model.record import dataclass, replace
from ipamd.settings import NetworkConfig

KERNEL_TABLES = frozenset({uapi.RT_TABLE_UNSPEC, uapi.RT_TABLE_DEFAULT, uapi.RT_TABLE_MAIN, uapi.RT_TABLE_LOCAL})
"""Tables that no ENI may fill or clear."""


class Repair(NamedTuple):
    """What to change; `found` says what differs, `done` what is done about it.

    `sysctl`: key below /proc/sys and value, to be set before `change` is sent, if there is one.
    """

    kind: RepairKind
    found: str
    done: str
    change: Message | None = None
    sysctl: tuple[str, str] | None = None

    def __str__(self) -> str:
        return f"{self.found}: {self.done}"


def refuse_kernel_table(eni: Eni) -> None:
    """Raise WiringError for an ENI whose table is one of the kernel's.

    Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, setupENINetwork, which refuses the primary ENI.
    """
    if eni.is_primary or eni.route_table in KERNEL_TABLES:
        raise WiringError(
            f"{eni.eni_id} has no table of its own ({eni.route_table})",
            details="the primary ENI uses main, which ipamd neither fills nor clears",
        )


def link_repairs(eni: Eni, link: messages.Link, *, mtu: int) -> Iterator[Repair]:
    """Compare MTU (bytes) and state of the link."""
    who = f"{link.name} ({eni.eni_id})"
    if link.mtu != mtu:
        change = messages.change_link(link.index, step=f"set MTU of {who}", mtu=mtu)
        yield Repair(RepairKind.LINK, f"{who} had MTU {link.mtu}", f"set to {mtu}", change)
    if not link.is_up:
        change = messages.change_link(link.index, step=f"raise {who}", is_up=True)
        yield Repair(RepairKind.LINK, f"{who} was down", "raised", change)


def address_repairs(look: HostLook, eni: Eni, link: messages.Link) -> Iterator[Repair]:
    """Compare the link's addresses: the ENI's primary address and no other, and no connected route in main."""
    who = f"{link.name} ({eni.eni_id})"
    ours = [one for one in look.addresses if one.index == link.index]
    wanted = (eni.primary_address, eni.subnet_cidr.prefixlen)
    for one in ours:
        if one.scope == uapi.RT_SCOPE_UNIVERSE and (one.address, one.length) != wanted:
            yield address_removal(one, link, ours, who=who)
    if wanted not in {(one.address, one.length) for one in ours}:
        address, length = wanted
        step = f"add address {address}/{length} to {who}"
        change = messages.add_address(link.index, address, length=length, step=step, is_connected=False)
        change = replace(change, tolerated=messages.PRESENT)
        yield Repair(RepairKind.ADDRESS, f"{who} lacked its address {address}/{length}", "added", change)
    for route in look.routes:
        connected = (uapi.RT_TABLE_MAIN, eni.subnet_cidr.network_address, wanted[1], link.index, None)
        if (route.table, route.destination, route.length, route.index, route.via) == connected:
            step = f"delete connected route {eni.subnet_cidr} of {who}"
            found = f"main had the connected route {eni.subnet_cidr} dev {who}"
            yield Repair(RepairKind.ROUTE, found, "removed", _removal(route, step))


def address_removal(
    one: messages.InterfaceAddress, link: messages.Link, ours: Iterable[messages.InterfaceAddress], *, who: str
) -> Repair:
    """Remove an address from a link, but not with it the others of its subnet, among them perhaps the ENI's own.

    The kernel removes secondary addresses with the first one of their subnet unless promote_secondaries is set
    (net/ipv4/devinet.c, __inet_del_ifa).
    """
    network = family_of(one.address).network((one.address, one.length), strict=False)
    others = any(each.is_secondary and each.length == one.length and each.address in network for each in ours)
    change = messages.delete_address(
        link.index, one.address, length=one.length, step=f"delete address {one.address}/{one.length} from {who}"
    )
    # Source: the kernel's Documentation/networking/ip-sysctl.rst, promote_secondaries; systemd sets it for all links.
    promote = (f"net/ipv4/conf/{link.name}/promote_secondaries", "1") if others and not one.is_secondary else None
    return Repair(RepairKind.ADDRESS, f"{who} had a foreign address {one.address}/{one.length}", "removed", change, promote)


def table_repairs(look: HostLook, eni: Eni, link: messages.Link, *, router: IpAddress) -> Iterator[Repair]:
    """Compare the ENI's table: the subnet's router on the link, and the default route through it."""
    table = eni.route_table
    there = {(one.destination, one.via) for one in look.routes if one.table == table and one.index == link.index}
    for to, via in ((router, None), (None, router)):
        if (to, via) not in there:
            words = f"{'default route via' if via else 'route'} {router} dev {link.name} table {table}"
            change = messages.add_route(to, via=via, index=link.index, table=table, step=f"add {words}", is_replaced=True)
            yield Repair(RepairKind.ROUTE, f"{words} of {eni.eni_id} was missing", "added", change)


def rule_repairs(look: HostLook, eni: Eni) -> Iterator[Repair]:
    """Compare the rules 32765 from the ENI's primary address: one, to the ENI's table."""
    priority, address = dataplane.FROM_ENI_PRIORITY, eni.primary_address
    tables = [
        rule.table for rule in look.rules if rule.priority == priority and rule.source == address and rule.source_length == 32
    ]
    if eni.route_table not in tables:
        yield _change(priority, table=eni.route_table, source=address, is_wanted=True)
    for table in tables:
        if table != eni.route_table:
            yield _change(priority, table=table, source=address, is_wanted=False)


def removals(sock: NetlinkSocket, eni: Eni, *, keep: Collection[Eni] = (), family: Family) -> list[Message]:
    """Remove everything in the ENI's table, and our rules that look it up. Dumps.

    `keep`: ENIs that stay. If one of them has the same table (a successor at the same device), then the table is its own, and so
    may be the rules of sandboxes: only the rule from this ENI's own primary address goes, unless that is the successor's too. Routes
    through this ENI's link went with the link.
    """
    table = eni.route_table
    successors = [other for other in keep if other.route_table == table and other.eni_id != eni.eni_id]
    found: list[Message] = []
    if not successors:
        # Default routes first: the kernel removes one by itself only together with its link, not with the route to its next hop.
        routes = sorted(survey.routes_of(sock, table=table, family=family), key=lambda one: one.length)
        found += [_removal(one, f"delete route {one.destination or 'default'} of table {table}") for one in routes]
    own_source = {eni.primary_address} - {other.primary_address for other in successors}
    for rule in survey.rules_of(sock, family):
        if rule.table != table or rule.source is None:
            continue
        if rule.source_length not in {rule.source.max_prefixlen, family.prefix_length}:
            continue
        is_ours = rule.priority in {dataplane.FROM_ENI_PRIORITY, dataplane.FROM_SANDBOX_PRIORITY}
        is_own = rule.priority == dataplane.FROM_ENI_PRIORITY and rule.source in own_source
        if is_own or (is_ours and not successors):
            found.append(
                messages.delete_rule(rule.priority, table=table, source=family.network((rule.source, rule.source_length)))
            )
    return found


def _removal(route: messages.Route, step: str) -> Message:
    return messages.delete_route(
        route.destination,
        length=route.length,
        index=route.index,
        table=route.table,
        metric=route.metric,
        step=step,
        via=route.via,
    )


# The node's own links and rules: the primary ENI's MTU, and the rule that sends marked packets through table main. Pure.


def node_repairs(link: messages.Link, rules: Collection[messages.Rule], config: NetworkConfig) -> Iterator[Repair]:
    """Compare the primary ENI's link and the node's rules with what they must be."""
    if link.mtu != config.eni_mtu:
        change = messages.change_link(link.index, step=f"set MTU of {link.name}", mtu=config.eni_mtu)
        yield Repair(RepairKind.LINK, f"{link.name} (primary) had MTU {link.mtu}", f"set to {config.eni_mtu}", change)
    if config.family is not IPV4:  # no mark is set, and the CIDRs are of IPv4
        return
    main, mark, priority = uapi.RT_TABLE_MAIN, config.connmark, dataplane.MARK_PRIORITY
    has_mark = any((rule.priority, rule.mark, rule.mask, rule.table) == (priority, mark, mark, main) for rule in rules)
    if ruleset.needs_mark(config) and not has_mark:
        yield _change(priority, table=main, mark=mark, is_wanted=True)
    # The priority of AWS_EXTERNAL_SERVICE_CIDRS is theirs alone, so other rules of it are left from before.
    priority, wanted = dataplane.EXTERNAL_SERVICE_PRIORITY, set(config.external_service_cidrs)
    present = {
        IPv4Network((rule.destination, rule.destination_length))
        for rule in rules
        if (rule.priority, rule.table, rule.source) == (priority, main, None) and rule.destination is not None
    }
    for cidr in (*sorted(wanted - present), *sorted(present - wanted)):
        yield _change(priority, table=main, destination=cidr, is_wanted=cidr in wanted)


def strict_repairs(rules: Collection[messages.Rule], config: NetworkConfig, is_strict: bool) -> Iterator[Repair]:
    """Compare the rule to table local, which strict mode has behind the rules of branches, and that for reverse lookups.

    The one is added before the other goes: no packet finds none. Of IPv6 the VPC's router keeps a rule ahead, or the node would send
    its neighbour discovery back. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, SetupHostNetwork.
    """
    family, local, table = config.family, uapi.RT_TABLE_LOCAL, dataplane.STRICT_TABLE
    usual, moved = dataplane.LOCAL_PRIORITY, dataplane.MOVED_LOCAL_PRIORITY
    to_local = [one for one in rules if one.table == local]
    plain = {one.priority for one in to_local if not (one.source or one.destination or one.mask or one.incoming or one.protocol)}
    has_router = any((one.priority, one.source, one.protocol) == (usual, IPV6_GATEWAY, uapi.IPPROTO_ICMPV6) for one in to_local)
    due = (dataplane.STRICT_PRIORITY, table, STRICT_MARK, STRICT_MARK, "lo")
    has_reverse = any((one.priority, one.table, one.mark, one.mask, one.incoming) == due for one in rules)
    reverse = partial(_change, dataplane.STRICT_PRIORITY, table=table, mark=STRICT_MARK, incoming="lo", family=family)
    router = partial(_change, usual, table=local, source=IPV6_GATEWAY, protocol=uapi.IPPROTO_ICMPV6, family=family)
    to, away = (moved, usual) if is_strict else (usual, moved)
    if is_strict and not has_reverse:
        yield reverse(is_wanted=True)
    if to not in plain and (is_strict or away in plain):
        yield _change(to, table=local, family=family, is_wanted=True)
    if has_router and away in plain:  # of two with this priority the kernel would take the one that is wanted
        yield router(is_wanted=False)
    if away in plain:
        yield _change(away, table=local, family=family, is_wanted=False)
    if is_strict and family is IPV6 and (not has_router or away in plain):
        yield router(is_wanted=True)
    if not is_strict and has_reverse:
        yield reverse(is_wanted=False)


def _change(priority: int, *, is_wanted: bool, **selector: Any) -> Repair:
    """Add a rule, or remove it."""
    change = (messages.add_rule if is_wanted else messages.delete_rule)(priority, **selector)
    found, done = ("was missing", "added") if is_wanted else ("is not needed", "removed")
    return Repair(RepairKind.RULE, f"{change.step.split(' ', 1)[1]} {found}", done, change)


def mark_removals(marks: Iterable[int]) -> Iterator[Repair]:
    """Remove the rules of former marks that no connection carries any more."""
    for mark in marks:
        priority = dataplane.MARK_PRIORITY
        change = messages.delete_rule(priority, table=uapi.RT_TABLE_MAIN, mark=mark)
        yield Repair(
            RepairKind.RULE, f"rule {priority} fwmark {mark:#x} is of a former setting, and of no connection", "removed", change
        )


def former_settings(rules: Collection[messages.Rule], veth_names: Iterable[str], config: NetworkConfig) -> ruleset.FormerSettings:
    """What living sandboxes and open connections need from before a change of settings.

    A rule 1024 stays while a connection carries its mark, which would leave by the wrong ENI without it: for days, perhaps.
    """
    current = {config.connmark} if ruleset.needs_mark(config) else set()
    marks = {
        rule.mark
        for rule in rules
        if (rule.priority, rule.table) == (dataplane.MARK_PRIORITY, uapi.RT_TABLE_MAIN) and rule.mark and rule.mark == rule.mask
    }
    prefixes = {name[:-VETH_HASH_LENGTH] for name in veth_names if len(name) > VETH_HASH_LENGTH}
    return ruleset.FormerSettings(tuple(sorted(prefixes - {config.veth_prefix})), tuple(sorted(marks - current)))


# The sysctl that the node needs and that netlink cannot set: forwarding for all links.
#
# Links of ours are set one by one (`devconf`), which needs no writable /proc/sys, so packets of sandboxes are forwarded even
# where this one is refused; it is for whatever else is on the node, and for links that are still to come. ip_forward is ours:
# amazon-vpc-cni-k8s leaves it to the node image.


SYSCTL_ROOT = Path("/proc/sys")
"""/proc/sys/net shows the namespace of the thread that opens it. Source: net/sysctl_net.c."""


WANTED = {"net/ipv4/ip_forward": "1"}


EARLY_DEMUX_OFF = {"net/ipv4/tcp_early_demux": "0"}
"""A segment that comes back by another link than its socket expects is routed like any other.
Source: amazon-vpc-cni-k8s cmd/aws-vpc-cni-init/main.go, configureSystemParams."""


def wanted_sysctls(
    families: Container[Family | None], primary_link: str, *, early_demux_disabled: bool = False
) -> Mapping[str, str]:
    """What a node needs whose sandboxes speak these families, in the order in which it is set.

    The primary ENI accepts router advertisements also while it forwards, and is told so first: the kernel drops the default route that
    it had from them where it begins to forward without that. Source: the kernel's net/ipv6/addrconf.c, addrconf_fixup_forwarding.
    """
    wanted = WANTED | EARLY_DEMUX_OFF if early_demux_disabled else WANTED
    if IPV6 not in families:
        return wanted
    of_ipv6 = {"all/disable_ipv6": "0", "default/disable_ipv6": "0", f"{primary_link}/accept_ra": "2", "all/forwarding": "1"}
    return wanted | {f"net/ipv6/conf/{key}": value for key, value in of_ipv6.items()}


def sysctl_repairs(host: HostNetns, sysctls: Mapping[str, str]) -> Iterator[Repair]:
    """Compare the sysctls. Raises: WiringError for one that cannot be read."""
    for key, wanted in sysctls.items():
        with host.entered():
            now = sysctl(key, wanted=wanted)
        if now != wanted:
            yield Repair(RepairKind.SYSCTL, f"sysctl {key} was {now}", f"set to {wanted}", sysctl=(key, wanted))


def setting_repairs(link: messages.Link, wanted: Mapping[int, int]) -> Iterator[Repair]:
    """Compare the settings of a link that `devconf` knows."""
    for number, now in devconf.wrong(link, wanted).items():
        change = messages.change_link(link.index, step=f"set {link.name}", ipv4_conf={number: wanted[number]})
        found = f"sysctl net/ipv4/conf/{link.name}/{devconf.NAMES[number]} was {now}"
        yield Repair(RepairKind.SYSCTL, found, f"set to {wanted[number]}", change)


def sysctl(key: str, *, wanted: str, is_set: bool = False) -> str:
    """Read a sysctl of the thread's namespace by its path below /proc/sys, after it was set to what is `wanted` if that is asked for.

    Raises: WiringError that says what it should be.
    """
    try:
        if is_set:
            (SYSCTL_ROOT / key).write_text(wanted, encoding="ascii")
        return (SYSCTL_ROOT / key).read_text(encoding="ascii").strip()
    except OSError as exc:
        command = f"sysctl -w {key.replace('/', '.')}={wanted}"
        raise WiringError(
            f"sysctl {key} could not be set to {wanted}",
            details=f"{exc.strerror}; run `{command}` on the node, or let the init container do it",
        ) from exc


def rest_repairs(look: HostLook, prefixes: Collection[IpNetwork]) -> Iterator[Repair]:
    """Compare the routes that answer for the free addresses of prefixes: else they go by the default route back to the VPC's router,
    and come again until their hops end.
    """
    table, unreachable = dataplane.OWN_TABLE, uapi.RTN_UNREACHABLE
    there = {
        family_of(one.destination).network((one.destination, one.length)): one
        for one in look.routes
        if (one.table, one.route_type) == (table, unreachable) and one.destination is not None
    }
    for prefix in prefixes:
        if prefix not in there:
            change = messages.refuse_rest(prefix, table=table)
            yield Repair(RepairKind.ROUTE, f"{change.step.removeprefix('add ')} was missing", "added", change)
    for prefix, one in there.items():
        if prefix not in prefixes:
            change = _removal(one, f"delete unreachable {prefix} table {table}")
            yield Repair(RepairKind.ROUTE, f"unreachable {prefix} table {table} is not needed", "removed", change)


# Addresses of sandboxes and default routes that the host's own network configuration put where they cut pods off. No changes here.
#
# EC2 shows every address of an ENI to software on the host, and amazon-ec2-net-utils or systemd-networkd may configure them all. An
# address that is local on the host never reaches its sandbox. On the link of an ENI an address of the pool is wrong by construction
# and removed; the ENI's own primary address is right. On any other link somebody put it there on purpose: it is named, with the
# command that removes it. The same holds for a default route of main through a secondary ENI, or none, and for a rule to main that is
# gone: they are not ours either.


def pod_address_repairs(
    look: HostLook, identity: InstanceIdentity, link: messages.Link, addresses: Container[IpAddress]
) -> Iterator[Repair]:
    """Find addresses of the pool on the primary ENI's link; secondary ENIs' links have `address_repairs`."""
    ours = [one for one in look.addresses if one.index == link.index]
    for one in ours:
        if one.address in addresses and one.address != identity.primary_address:
            yield address_removal(one, link, ours, who=f"{link.name} (primary)")


def foreign_differences(
    sock: NetlinkSocket,
    look: HostLook,
    *,
    identity: InstanceIdentity,
    secondary: Iterable[MacAddress],
    addresses: Container[IpAddress],
    family: Family,
) -> list[RoutingDifference]:
    """Find addresses of the pool on links of no ENI, a table main that is not asked, and its default route if it is missing or
    leads through a secondary ENI.

    Raises: WiringError.
    """
    primary = look.links.get(identity.primary_mac)
    others = [look.links[mac].index for mac in secondary if mac in look.links]
    enis = others + ([primary.index] if primary else [])
    found = []
    for one in look.addresses:
        if one.address in addresses and one.index not in enis:
            name = _name(sock, one.index)
            what = f"{one.address}, an address for sandboxes, is local on {name}"
            command = f"ip address del {one.address}/{one.length} dev {name}"
            found.append(RoutingDifference(NODE, what, False, mend=command))
    for rule in look.rules:  # one for a port or mark, of which no lookup of ours asks
        selected = (rule.source, rule.destination)
        is_ahead = rule.is_refusal and rule.priority < dataplane.FROM_SANDBOX_PRIORITY
        if is_ahead and (not any(selected) or any(one in addresses for one in selected)):
            mend = f"ip rule del prio {rule.priority}"
            found.append(RoutingDifference(NODE, "a rule ahead of ours refuses packets", False, mend))
    defaults = [one for one in look.routes if one.table == uapi.RT_TABLE_MAIN and one.destination is None and one.length == 0]
    plain = (uapi.RT_TABLE_MAIN, 0, None, None)  # neither our rules for a mark nor those for a destination
    if not any((one.table, one.mask, one.source, one.destination) == plain for one in look.rules):
        # As `ip rule flush` leaves it. The kernel made that rule at boot, and nobody makes it again.
        command = f"{'ip' if family is IPV4 else 'ip -6'} rule add prio 32766 lookup main"
        found.append(RoutingDifference(NODE, "no rule leads to table main: node and sandboxes reach nothing", False, command))
    best = min(defaults, key=lambda one: one.metric, default=None)
    if best is None and primary and family is IPV4:  # of IPv6 routers announce it
        command = f"ip route add default via {gateway(identity.subnet_cidr)} dev {primary.name}"
        found.append(RoutingDifference(NODE, "the node's default route is missing", False, command))
    if best is not None and best.index in others:
        name = _name(sock, best.index)
        what = f"the node's default route leads through {name}, a secondary ENI"
        command = f"ip route del default dev {name} metric {best.metric}"
        found.append(RoutingDifference(NODE, what, False, mend=command))
    return found


def own_address(sock: NetlinkSocket, link: messages.Link, family: Family) -> IpAddress | None:
    """The lowest address of global scope that a link has of a family; None without one. Raises: KernelDumpError, WiringError."""
    found = map(messages.read_address, sock.dump(messages.dump_addresses(family)))
    ours = [one.address for one in found if (one.index, one.scope) == (link.index, uapi.RT_SCOPE_UNIVERSE)]
    # A kernel without the family answers with the addresses of all others.
    return min((one for one in ours if family_of(one) is family), key=int, default=None)


def _name(sock: NetlinkSocket, index: int) -> str:
    link = checks.find_link(sock, index)
    return link.name if link else f"link {index}"


# Find an ENI's link by its MAC, and wait for it to appear after EC2 reported "attached".
#
# The wait listens to the kernel's link notifications instead of polling.


LINK_WAIT_S = 10.0
"""How long an attached ENI's link may take to appear. Ours: EC2 hot-plug takes 1-2 s; the caller retries."""

BORROWING_KINDS = frozenset({"bridge", "bond", "team", "vlan", "macvlan", "macvtap", "macsec", "ipvlan", "ipvtap", "vrf"})
"""Links on top of others, which may have the MAC of the one below: none of them is the ENI. Source: ip-link(8), TYPE."""


def wait_for_link(
    host: HostNetns,
    mac: MacAddress,
    *,
    veth_prefix: str,
    timeout_s: float,
) -> messages.Link:
    """Find the link with a MAC, waiting for it up to `timeout_s`.

    Raises: WiringError if it does not appear; KernelDumpError.
    """
    deadline = time.monotonic() + timeout_s
    listener = host.open_netlink(groups=uapi.RTMGRP_LINK)  # listen before looking, or a link that appears in between is missed
    try:
        while True:
            with host.netlink() as sock:
                link = lowest_by_mac(survey.links_of(sock, kind=""), mac, veth_prefix)
            if link is not None:
                return link
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not listener.wait(timeout_s=left_s):
                raise WiringError(
                    f"no link with MAC {mac} appeared within {timeout_s:g} s",
                    details="EC2 reports the ENI as attached, but the node's driver does not show its link yet; it is retried",
                )
    finally:
        listener.close()


def may_be_eni(link: messages.Link, *, veth_prefix: str) -> bool:
    """Whether a link can be an ENI's: no sandbox's host veth, and not of a kind that borrows its MAC."""
    is_ours = link.name.startswith(veth_prefix) or survey.host_veth(link).key is not None  # the prefix may have been changed
    is_sandbox = link.group == uapi.DYING_GROUP or (link.kind == uapi.VETH_KIND and is_ours)
    return not is_sandbox and link.kind not in BORROWING_KINDS


def lowest_by_mac(links: Iterable[messages.Link], mac: MacAddress, veth_prefix: str) -> messages.Link | None:
    """Choose the link with a MAC that may be an ENI's; the lowest index if several have it."""
    found = [link for link in links if link.mac == mac and may_be_eni(link, veth_prefix=veth_prefix)]
    return min(found, key=lambda link: link.index, default=None)


# One look at the host's addresses, routes, rules and ENI links, shared by the comparisons of all ENIs and of the node.
#
# Its cost does not depend on the number of ENIs: three dumps, and one request for each ENI's link by the name that it had before.
# The links of all sandboxes are dumped only if an ENI's link is not found so.


@dataclass(frozen=True, slots=True)
class HostLook:
    """What the host had of the pool's family. `links`: of those ENIs whose link is there. `routes`: of all tables, but for sandboxes'
    own. `rules`: see `survey.rules_of`. `tables`: of both.
    """

    links: Mapping[MacAddress, messages.Link]
    addresses: list[messages.InterfaceAddress]
    routes: list[messages.Route]
    rules: list[messages.Rule]
    tables: set[int]


class HostLooker:
    """Looks at the host, and remembers the links of ENIs as they were last.

    `look` is used under the lock of `KernelHostNetwork`; the rest from any thread: what is known is replaced as a whole, and a link
    that is lost or has another name costs a dump.
    """

    def __init__(self, *, veth_prefix: str, family: Family) -> None:
        self._veth_prefix = veth_prefix
        self._family = family
        self._known: dict[MacAddress, messages.Link] = {}
        self._last: HostLook | None = None

    def look(self, sock: NetlinkSocket, macs: Iterable[MacAddress], *, is_silent: bool = False) -> HostLook:
        """Read everything once. Raises: KernelDumpError if a dump was interrupted in every attempt (I11); WiringError.

        Args:
            is_silent: no address, route or rule was announced since the last look: only the links are read, whose settings change
                without a word.
        """
        if is_silent and self._last is not None:
            return replace(self._last, links=self.links(sock, macs))
        self._last = None  # of a look that fails nothing may be used again, and what was read before it is out of date
        # Of sandboxes' own routes no comparison asks; each would look through hundreds, for every ENI.
        routes = [
            one
            for one in survey.routes_of(sock, family=self._family)
            if one.table not in survey.SANDBOX_TABLES or not one.destination or not one.is_to(one.destination)
        ]
        rules = survey.rules_of(sock, self._family)
        self._last = HostLook(
            links=self.links(sock, macs),
            addresses=[messages.read_address(body) for body in sock.dump(messages.dump_addresses(self._family))],
            routes=routes,
            rules=rules,
            tables={one.table for one in routes} | {one.table for one in rules},
        )
        return self._last

    def forget(self) -> None:
        """What was read is out of date: a change of ours is announced to nobody."""
        self._last = None

    def links(self, sock: NetlinkSocket, macs: Iterable[MacAddress]) -> dict[MacAddress, messages.Link]:
        """Find the links of ENIs by MAC: by the names that they had, all others in one dump. Raises: as `look`."""
        wanted, known, prefix = list(dict.fromkeys(macs)), self._known, self._veth_prefix
        asked = sock.request([messages.get_link(known[mac].name) for mac in wanted if mac in known])
        present = [survey.read_link(one.replies[0]) for one in asked if one.replies]
        found = {mac: link for mac in wanted if (link := lowest_by_mac(present, mac, prefix))}
        if len(found) < len(wanted):
            present = survey.links_of(sock, kind="")
            found |= {mac: link for mac in wanted if mac not in found and (link := lowest_by_mac(present, mac, prefix))}
        self._known = {mac: link for mac, link in known.items() if mac not in wanted} | found
        return found

    def may_be_used(self, table: int) -> bool:
        """Whether a table had a route or a rule at the last look; true if there was none since the last change."""
        last = self._last
        return not last or table in last.tables

    def known(self, mac: MacAddress) -> messages.Link | None:
        """The link with a MAC as it was last, without a look; None if none was found since."""
        return self._known.get(mac)
