"""The text of our nftables table: which traffic is SNATed, and which connections stay on the primary ENI. Pure.

    mark_in   prerouting  mangle (-150)    before kube-proxy's DNAT: NodePort connections that arrive on the primary ENI get
                                           the bit in their conntrack mark; packets of sandboxes get it from there
    mark_out  prerouting  dstnat+10 (-90)  after DNAT: a sandbox's new connections to outside the VPC get the bit
    snat_out  postrouting srcnat+10 (110)  after kube-proxy and portmap: SNAT to the node's primary address

The bit selects table main (rule 1024), so the packet leaves through the primary ENI, where the SNAT address is valid.
Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, updateHostIptablesRules; pkg/networkutils/nftables_connmark.go. Different
on purpose: bits of other agents in the mark are kept (v1.23.0 overwrites the whole mark: its
docs/nftables-connmark-restore-contract.md); CIDRs are one interval set instead of one rule each; the table is replaced in one
transaction instead of rule by rule (docs/adr/0005).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import IPv4Address, IPv4Network, collapse_addresses

from ipamd.kernel.nft import NftTable
from ipamd.model import family
from ipamd.model.attachment import Attachment
from ipamd.model.branch import LINK_PREFIX, STRICT_MARK, STRICT_VETH_PREFIX, EnforcingMode
from ipamd.model.errors import WiringError
from ipamd.model.record import dataclass
from ipamd.settings import NetworkConfig

TABLE = "vpc-ipamd"
FAMILY = family.IPV4.nft


SNAT = NftTable(FAMILY, TABLE)

PORT_FLAGS = {"prng": " fully-random", "hashrandom": " random", "none": ""}
"""AWS_VPC_K8S_CNI_RANDOMIZESNAT -> how SNAT chooses ports.

Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, typeOfSNAT (--random-fully, --random).
"""


@dataclass(frozen=True, slots=True)
class FormerSettings:
    """What is in use although the settings say otherwise now.

    `veth_prefixes`: of sandboxes that live. `marks`: bits that connections may carry; each is known by its rule 1024, which stays
    while a connection carries the mark, or until somebody removes it.
    """

    veth_prefixes: tuple[str, ...] = ()
    marks: tuple[int, ...] = ()


NONE_FORMER = FormerSettings()

BRANCH_LINKS = "vlan*"
"""Links of branch ENIs, whose packets keep their address. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go (`! -o vlan+`)."""


def replace_table(
    config: NetworkConfig,
    *,
    vpc_cidrs: Collection[IPv4Network],
    primary_address: IPv4Address,
    primary_link: str,
    former: FormerSettings = NONE_FORMER,
) -> str:
    """Return commands that replace our table, to be run as one transaction.

    Args:
        vpc_cidrs: 1 or more (0 with external SNAT); these and `config.exclude_snat_cidrs` are reached without SNAT.
        primary_link: the primary ENI's interface name.
        former: what sandboxes and connections from before a change of settings still need.
    Returns: only the removal if neither SNAT nor marks are configured, or sandboxes have IPv6.
    Raises: WiringError if `vpc_cidrs` is empty and SNAT is ours: all traffic would be SNATed (I11).
    Concurrency: pure.
    """
    has_snat = config.family is family.IPV4 and not config.external_snat
    if not vpc_cidrs and has_snat:
        raise WiringError(
            "the nftables table was not made",
            details="no CIDR of the VPC is known, and without one traffic within the VPC would be SNATed",
        )
    chains: list[str] = []
    if needs_mark(config) or former.marks:
        chains.append(_mark_in(config, primary_link, former.marks))
    if has_snat:
        chains.append(_cidr_set("exempt", [*vpc_cidrs, *config.exclude_snat_cidrs]))
        chains.append(_mark_out(config))
        rules = [
            'oifname "lo" return',
            f'oifname "{BRANCH_LINKS}" return',
            "ip daddr @exempt return",
            f"fib daddr type != local snat to {primary_address}{PORT_FLAGS[config.randomize_snat]}",
        ]
        chains.append(chain("snat_out", "type nat hook postrouting priority srcnat + 10; policy accept;", rules))
    if not chains:
        return SNAT.removal()
    body = _with_prefixes("\n".join(chains), config.veth_prefix, former.veth_prefixes)
    return SNAT.replacement(body)


EGRESS = {one: NftTable(one.nft, "vpc-ipamd-egress") for one in (family.IPV4, family.IPV6)}


def families(config: NetworkConfig, attachments: Iterable[Attachment]) -> tuple[family.Family, ...]:
    """That of the pool, and that of egress: by the settings, or because a sandbox has it since before they were changed."""
    living = (family.family_of(one.other_address) for one in attachments if one.other_address)
    other = config.egress or next(living, None)
    return (config.family, other) if other else (config.family,)


def has_strict(config: NetworkConfig, attachments: Iterable[Attachment]) -> bool:
    """Whether sandboxes are led to branch ENIs in strict mode: by the settings, or because one is since before these changed. Those
    whose rows were lost meanwhile the kernel alone tells (`Confinement.has_strict`).
    """
    return config.branch_mode is EnforcingMode.STRICT or any(one.branch and one.branch.is_strict for one in attachments)


def egress_table(config: NetworkConfig, served: family.Family, *, source: family.IpAddress | None) -> str:
    """Return commands that replace the table for a family's egress: one rule makes `source`, the node's own address, of its range.

    What is new and on its way to the range is refused: these addresses are for connections that sandboxes begin, and the range is the
    same on every node. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, setupRuleToBlockNodeLocalAccess; cmd/egress-cni-plugin.
    """
    word, egress = served.nft, served.egress
    refused = [f"{word} daddr {egress.network} ct state new reject"]
    chains = [chain("node_local", "type filter hook forward priority filter; policy accept;", refused)]
    if source:
        selected = f"{word} saddr {egress.network} {word} daddr != {egress.untranslated}"
        rules = [f"{selected} snat to {source}{PORT_FLAGS[config.randomize_snat]}"]
        chains.append(chain("snat_out", "type nat hook postrouting priority srcnat + 10; policy accept;", rules))
    return EGRESS[served].replacement("\n".join(chains))


def needs_mark(config: NetworkConfig) -> bool:
    """Whether rule 1024 and the restoring of marks are needed: not of IPv6, all of which leaves by the primary ENI as it is.

    Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, SetupHostNetwork.
    """
    return config.family is family.IPV4 and (config.node_port_support or not config.external_snat)


def _with_prefixes(body: str, prefix: str, former: Collection[str]) -> str:
    """Repeat every rule that names sandboxes' links for the former prefixes.

    Not one rule with a set of names: the usual case, no former prefix, keeps the text that amazon-vpc-cni-k8s' rules have.
    """
    lines = []
    for line in body.splitlines():
        names = [prefix, *sorted(former)] if f'"{prefix}*"' in line else [prefix]
        lines += [line.replace(f'"{prefix}*"', f'"{name}*"') for name in names]
    return "\n".join(lines)


def _mark_in(config: NetworkConfig, primary_link: str, former_marks: Collection[int]) -> str:
    mark = f"{config.connmark:#x}"
    rules = []
    if config.node_port_support:
        rules.append(f'iifname "{primary_link}" fib daddr . iif type local ct mark set ct mark or {mark}')
    for one in [mark, *(f"{former:#x}" for former in sorted(former_marks))]:
        rules.append(f'iifname "{config.veth_prefix}*" ct mark and {one} == {one} meta mark set meta mark or {one}')
    return chain("mark_in", "type filter hook prerouting priority mangle; policy accept;", rules)


def _mark_out(config: NetworkConfig) -> str:
    mark = f"{config.connmark:#x}"
    selector = f'iifname "{config.veth_prefix}*" ct state new fib daddr type != local ip daddr != @exempt'
    rule = f"{selector} ct mark set ct mark or {mark} meta mark set meta mark or {mark}"
    return chain("mark_out", "type filter hook prerouting priority dstnat + 10; policy accept;", [rule])


def _cidr_set(name: str, cidrs: Iterable[IPv4Network]) -> str:
    elements = ", ".join(map(str, collapse_addresses(cidrs)))
    return f"  set {name} {{\n    type {family.IPV4.nft_address}; flags interval;\n    elements = {{ {elements} }}\n  }}"


def chain(name: str, head: str, rules: Iterable[str]) -> str:
    """Return the text of a chain within its table; `head` is empty for one that is only jumped to."""
    body = "".join(f"    {rule}\n" for rule in rules)
    first = f"    {head}\n" if head else ""
    return f"  chain {name} {{\n{first}{body}  }}"


# The text of the nftables tables that confine sandboxes: which of their packets go nowhere. Pure.
#
#     from_veths     prerouting -450, before the kernel puts fragments together: a forged one joins nobody's datagram
#     from_sandbox   what every packet of a host veth passes
#     from_strict    the same of sandboxes in strict mode, whose routes are in a table of their own: while the source is looked up, the
#                    packet has a bit that leads there
#     as_strict      the source of one in strict mode, on a link that nobody has looked at or with extra sources
#     extra_source   only with VPC_IPAMD_EXTRA_SOURCE_CIDRS: a source that is not routed back
#     to_node        input: what no veth, bridge or tunnel may tell the node, a link that a sandbox made there included
#     returned       prerouting dstnat+20 (-80), after DNAT; without that setting: a sandbox's packet that the VPC sends back; not of
#                    IPv6, where the rest of the prefix has a route of its own (`routing.rest_repairs`)
#
# A family that sandboxes do not have is dropped whole. Of IPv6 all neighbour discovery is, because neighbours are permanent at both
# ends: the tables need neither addresses of links nor connection tracking. What every healthy sandbox sends all the same is counted
# by itself.
#
# A packet passes if its source is routed back through the veth that it came from: the route of the wiring is the permission, so ADD
# and DEL change nothing here. `fib` does not look at marks, so no mark or sysctl of others changes its answer (the kernel's
# net/ipv4/netfilter/nft_fib_ipv4.c, nft_fib4_eval). Tables of their own, so that a new CIDR of the VPC does not touch them and a fault
# in the other table (`ruleset`) leaves them in place. One for each family: the combined family `inet` is missing in kernels without
# IPv6. Why nftables and not rp_filter, and why one check is enough: docs/adr/0021.


IPV4 = NftTable(FAMILY, "vpc-ipamd-confine")
IPV6 = NftTable(family.IPV6.nft, "vpc-ipamd-confine")
ARP = NftTable("arp", "vpc-ipamd-confine")
BRIDGE = NftTable("bridge", "vpc-ipamd-confine")

DROP = "drop"
"""Of VPC_IPAMD_FOREIGN_LINKS."""

_FOREIGN, _ELSEWHERE = "foreign", "elsewhere"
"""Sets of links that are not ours: those that lead into a sandbox, and those that do not."""

_LINK_SETS = "\n".join(f"  set {name} {{\n    type iface_index;\n  }}" for name in (_FOREIGN, _ELSEWHERE))

_NEW_VETH = f'meta iifkind "veth" iif != @{_ELSEWHERE}'
"""Of a veth that leads into a sandbox, or that nobody has looked at yet."""

_BEFORE_DEFRAG = "-450"
"""NF_IP_PRI_RAW_BEFORE_DEFRAG and NF_IP6_PRI_RAW_BEFORE_DEFRAG; fragments are put together at -400, NF_IP_PRI_CONNTRACK_DEFRAG.

Source: linux/netfilter_ipv4.h, linux/netfilter_ipv6.h.
"""

COUNTER_PREFIX = "dropped_"
"""A named counter for each of `DROP_REASONS`, in one of the tables; nothing else in them changes by itself."""


def ipv4_table(config: NetworkConfig, *, other_veths: Collection[str], is_served: bool = True, has_strict: bool = False) -> str:
    """Return commands that replace the IPv4 table, to be run as one transaction.

    Args:
        other_veths: host veths in use whose names do not begin with the configured prefix (it was changed under them).
        is_served: whether sandboxes have addresses of the family.
        has_strict: whether some are led to branch ENIs in strict mode.
    Concurrency: pure.
    """
    if not is_served:
        return _unserved(
            IPV4, config, other_veths, has_strict, redirects=f"icmp type redirect ip frag-off & 0x1fff == 0 {_drop('ipv4')}"
        )
    drop_source = _drop("source")
    # The type is the first byte, so it comes with offset 0. In other fragments the kernel takes what is there for it
    # (net/netfilter/nf_tables_core.c, nft_payload_fast_eval).
    redirects = f"icmp type redirect ip frag-off & 0x1fff == 0 {_drop('redirect')}"
    rules = [
        # Services that listen on the node's loopback only are not for sandboxes; with route_localnet, which kube-proxy sets, they
        # would be reached (CVE-2020-8558).
        f"ip daddr 127.0.0.0/8 {_drop('loopback')}",
        redirects,
        # The kernel takes 0.0.0.0 to a broadcast address for DHCP, and `fib` lets it pass.
        f"ip saddr 0.0.0.0/8 {drop_source}",
        f"fib saddr . iif oif missing {'jump extra_source' if config.extra_sources else drop_source}",
    ]
    parts = _counters("source", "redirect", "loopback")
    if config.extra_sources:
        parts.append(_cidr_set("extra_sources", config.extra_sources))
        # Whatever the CIDRs: no address of the node, and none of another sandbox on it.
        extra = [f"ip saddr != @extra_sources {drop_source}", f"fib saddr type local {drop_source}"]
        extra += [f"fib saddr oifname {names} {drop_source}" for names in _names(config, other_veths)]
        extra += ["jump as_strict"] if has_strict else []
        parts.append(chain("extra_source", "", extra))
    else:
        parts += [*_counters("returned"), _returned(config, other_veths)]
    return _table(IPV4, [*parts, *_served(config, other_veths, has_strict, rules, redirects)])


def ipv6_table(config: NetworkConfig, *, other_veths: Collection[str], is_served: bool, has_strict: bool = False) -> str:
    """Return commands that replace the IPv6 table, as `ipv4_table` does. Extra sources are of IPv4.

    Router advertisements, redirects and neighbour messages of a sandbox would change the node's routing (CVE-2020-10749).
    """
    of_routers = "icmpv6 type { nd-router-advert, nd-redirect }"
    if not is_served:
        return _unserved(IPV6, config, other_veths, has_strict, redirects=f"{of_routers} {_drop('ipv6')}")
    redirects = f"{of_routers} {_drop('redirect')}"
    rules = [
        f"ip6 daddr ::1 {_drop('loopback')}",
        f"icmpv6 type {{ {', '.join(_MULTICAST_LISTENING)} }} {_drop('listening')}",
        redirects,
        f"icmpv6 type {{ nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert }} {_drop('discovery')}",
        # In fragments the type may be out of sight. All of it has this hop limit (RFC 4861, 6.1 and 7.1), and the kernel takes none
        # from fragments (net.ipv6.conf.all.suppress_frag_ndisc).
        f"meta l4proto ipv6-icmp ip6 hoplimit 255 exthdr frag exists {_drop('discovery')}",
        # Where a veth of amazon-vpc-cni-k8s has a link-local address, `fib` finds a route back for all of them.
        f"ip6 saddr {{ ::, fe80::/10, ff00::/8 }} {_drop('source')}",
        f"fib saddr . iif oif missing {_drop('source')}",
    ]
    counted = _counters("source", "redirect", "loopback", "listening", "discovery")
    return _table(IPV6, [*counted, *_served(config, other_veths, has_strict, rules, redirects)])


def _served(config: NetworkConfig, other_veths: Collection[str], has_strict: bool, rules: list[str], redirects: str) -> list[str]:
    """What the tables of both families end with where sandboxes have one; the last of `rules` is about the source."""
    # From the first packet on, before anybody could look where the link leads.
    of_others = [f'meta iifkind "veth" {redirects}']
    of_others += [f"{_NEW_VETH} fib saddr oifname {each} {_drop('foreign')}" for each in _names(config, other_veths)]
    of_others += [f"{_NEW_VETH} jump as_strict"] if has_strict else []
    of_others += _of_foreign(config, "foreign")
    return [
        *_counters("foreign"),
        chain("from_sandbox", "", rules),
        *_from_strict([*rules[:-1], _MARKED], has_strict),
        _to_node(redirects),
        *_from_veths(config, other_veths, of_others, strict="from_strict" if has_strict else ""),
    ]


def _from_strict(rules: Iterable[str], has_strict: bool) -> list[str]:
    """What every packet of a sandbox in strict mode passes, and one that must not speak for it. The bit goes again before anybody
    else sees the packet.
    """
    on, off = f"meta mark set meta mark or {STRICT_MARK:#x}", f"meta mark set meta mark and {STRICT_MARK ^ 0xFFFFFFFF:#x}"
    led = "fib saddr . mark oifname"  # or out by one in standard mode, whose packets it answers
    of_strict = f'{led} "{STRICT_VETH_PREFIX}*" {led} != "{LINK_PREFIX}*" {_drop("foreign")}'
    return [chain("from_strict", "", [on, *rules, off]), chain("as_strict", "", [on, of_strict, off])] if has_strict else []


_MARKED = f"fib saddr . mark . iif oif missing counter name {COUNTER_PREFIX}source drop"

_MULTICAST_LISTENING = ("mld-listener-query", "mld-listener-report", "mld-listener-done", "mld2-listener-report")


def _unserved(table: NftTable, config: NetworkConfig, other_veths: Collection[str], has_strict: bool, *, redirects: str) -> str:
    """The table of a family that sandboxes do not have: nothing of theirs passes."""
    reason = "ipv6" if table is IPV6 else "ipv4"
    parts = [*_counters(reason), chain("from_sandbox", "", [_drop(reason)]), _to_node(redirects)]
    strict = "from_sandbox" if has_strict else ""
    return _table(table, [*parts, *_from_veths(config, other_veths, _of_foreign(config, reason), strict=strict)])


def arp_table(config: NetworkConfig, *, other_veths: Collection[str], has_strict: bool = False) -> str:
    """Return commands that replace the ARP table: a sandbox asks nobody, because its gateway's neighbour entry is permanent.

    The kernel remembers who asks, and its table of neighbours is one for the node and all sandboxes
    (net.ipv4.neigh.default.gc_thresh3, 1024): requests with a thousand senders keep the node from resolving any
    other. Where rp_filter is 0, nothing else stops them.
    """
    parts = [*_counters("arp"), chain("from_sandbox", "", [f"arp operation request {_drop('arp')}"])]
    # A second CNI's sandboxes ask seldom; those that the kernel remembers for less than 5 s are not put out for others.
    few = [f"{_NEW_VETH} arp operation request limit rate over 100/second {_drop('arp')}"]
    of_others = _of_foreign(config, "arp") if config.foreign_links == DROP else few
    strict = "from_sandbox" if has_strict else ""
    return _table(ARP, [*parts, *_from_veths(config, other_veths, of_others, hook="input", priority="filter", strict=strict)])


def bridge_table(config: NetworkConfig) -> str:
    """Return commands that replace the table of bridges: only with DROP, and only for links that are known to lead into a sandbox."""
    if config.foreign_links != DROP:
        return BRIDGE.removal()
    head = f"type filter hook prerouting priority {_BEFORE_DEFRAG}; policy accept;"
    return _table(BRIDGE, [_LINK_SETS, chain("from_veths", head, [f"iif @{_FOREIGN} drop"])])


def links(table: NftTable, commands: str, links: Iterable[int], *, foreign: Collection[int]) -> str:
    """Return commands that fill the sets of a table, which `commands` make, with the links of others; `foreign`: into sandboxes."""
    return "".join(
        table.links(name, [index for index in links if (name == _FOREIGN) == (index in foreign)])
        for name in (_FOREIGN, _ELSEWHERE)
        if _LINK_SETS in commands
    )


def _of_foreign(config: NetworkConfig, reason: str) -> list[str]:
    if config.foreign_links != DROP:
        return [f"iif @{_FOREIGN} fib saddr . iif oif missing {_drop(reason)}"]
    return [f"iif @{_FOREIGN} {_drop(reason)}", f"{_NEW_VETH} {_drop(reason)}"]


def _to_node(rule: str) -> str:
    # On input, not before: between the ports of a bridge it may be meant so. An ENI's link has no kind to compare.
    return chain("to_node", "type filter hook input priority filter; policy accept;", [f'meta iifkind != "none" {rule}'])


def _returned(config: NetworkConfig, other_veths: Collection[str]) -> str:
    """Drop a packet with a sandbox's source that came in by an ENI and would go out by one again.

    The VPC delivers what is sent to a free or cooling address of the node's ENIs, and no sandbox takes it: routed like the first
    time, it would leave and come back until its hops end. Links of another kind (tunnels, bridges, VLANs) lead elsewhere and are
    left out; an ENI's link has no kind. What was translated to another destination (NodePort) goes on.
    """
    names = _names(config, other_veths)
    rules = [f"iifname {each} return" for each in names]
    rules += [
        'meta iifkind != "veth" return',
        *([f'iifname "{LINK_PREFIX}*" return'] if config.branch_mode else []),
        "ct status dnat return",
        "fib daddr type != unicast return",
    ]
    rules += [f"fib daddr oifname {each} return" for each in names]
    rules += [f"fib saddr oifname {each} {_drop('returned')}" for each in names]
    return chain("returned", "type filter hook prerouting priority dstnat + 20; policy accept;", rules)


def _from_veths(
    config: NetworkConfig,
    other_veths: Collection[str],
    of_others: Collection[str],
    *,
    hook: str = "prerouting",
    priority: str = _BEFORE_DEFRAG,
    strict: str,
) -> list[str]:
    # By kind too, or a prefix such as `ens` would make sandboxes of the node's own links.
    rules = [f'iifname {names} meta iifkind "veth" goto from_sandbox' for names in _names(config, other_veths)]
    if strict:  # the links to branch ENIs have another kind, but for those of a lab
        rules.insert(0, f'iifname "{STRICT_VETH_PREFIX}*" iifname != "{LINK_PREFIX}*" meta iifkind "veth" goto {strict}')
    # Any other link may be one that a sandbox with NET_ADMIN made on the node; what is a port of a bridge comes in by the bridge.
    rules += of_others
    return [_LINK_SETS, chain("from_veths", f"type filter hook {hook} priority {priority}; policy accept;", rules)]


def _names(config: NetworkConfig, other_veths: Collection[str]) -> list[str]:
    names = [f'"{config.veth_prefix}*"']
    if other_veths:
        names.append("{ " + ", ".join(f'"{name}"' for name in sorted(other_veths)) + " }")
    return names


def _table(table: NftTable, parts: Iterable[str]) -> str:
    return table.replacement("\n".join(parts))


def _counters(*reasons: str) -> list[str]:
    return [f"  counter {COUNTER_PREFIX}{reason} {{ }}" for reason in reasons]


def _drop(reason: str) -> str:
    return f"counter name {COUNTER_PREFIX}{reason} drop"
