"""Make the text of the nftables tables that confine sandboxes: which of their packets are dropped. Pure.

    from_veths     prerouting -450, before the kernel assembles fragments, so that a forged fragment cannot join another datagram:
                   sends the packets of host veths to the chains below, and filters the packets of links of other software
    from_sandbox   checks every packet that comes by a host veth
    from_strict    in place of from_sandbox, checks the packets of sandboxes in strict mode (POD_SECURITY_GROUP_ENFORCING_MODE). Their
                   routes are in a separate route table: while the source is looked up, the packet has a mark bit that selects this
                   table
    as_strict      drops packets that forge the source of a sandbox in strict mode. It checks the packets of veths of other software
                   that lead into a sandbox or have not been inspected yet, and of sandboxes that may use extra sources
    extra_source   only with VPC_IPAMD_EXTRA_SOURCE_CIDRS: checks packets whose source is not routed back through their link
    to_node        input: drops ICMP redirects and IPv6 router messages that arrive by a virtual link (veth, bridge or tunnel). A
                   sandbox may have made this link on the node
    returned       prerouting dstnat+20 (-80), after DNAT; only without VPC_IPAMD_EXTRA_SOURCE_CIDRS: drops a sandbox's packet to an
                   address of this node's ENIs that no sandbox has now. The VPC delivers it back to the node, which would send it out
                   again and again. IPv6 needs no such chain, because an unreachable route covers the free addresses of the prefix
                   (`sysctls.unreachable_route_repairs`)

The tables drop all packets of a family that sandboxes do not have. For IPv6 they drop all neighbour discovery, because neighbour
entries are permanent at both ends. So no IPv6 rule needs the link-local addresses of links, or connection tracking. Dropped packets
that every healthy IPv6 sandbox sends have counters of their own (`listening`, `discovery`), so that they do not hide suspicious
packets in the other counters.

A packet passes if its source is routed back through the veth that it came from: the route that ADD makes is the permission, so ADD and
DEL do not change these tables. The lookup expression `fib` ignores the packet's mark except in the chains of strict mode, which write
`. mark`. So no mark or sysctl that other software sets changes its answer (the kernel's net/ipv4/netfilter/nft_fib_ipv4.c,
nft_fib4_eval). These tables are separate from the table of `ruleset`, so that a new CIDR of the VPC does not change them, and a fault
in that table leaves them in place. Each family has its own table, because kernels without IPv6 lack the combined family `inet`. Why
nftables and not rp_filter, and why one check is enough: docs/adr/0021.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ipamd.kernel import uapi
from ipamd.kernel.nft_table import NftTable
from ipamd.kernel.ruleset import FAMILY, chain, cidr_set
from ipamd.model import family
from ipamd.model.kernel_numbers import LINK_PREFIX, STRICT_MARK, STRICT_VETH_PREFIX
from ipamd.settings import NetworkConfig

IPV4 = NftTable(FAMILY, "vpc-ipamd-confine")

IPV6 = NftTable(family.IPV6.nft, "vpc-ipamd-confine")

ARP = NftTable("arp", "vpc-ipamd-confine")

BRIDGE = NftTable("bridge", "vpc-ipamd-confine")

DROP = "drop"
"""The value of VPC_IPAMD_FOREIGN_LINK_POLICY that drops everything from links of other software into sandboxes."""

_FOREIGN, _ELSEWHERE = "foreign", "elsewhere"
"""Names of the sets of other software's links: those that lead into a sandbox, and those that do not."""

_LINK_SETS = "\n".join(f"  set {name} {{\n    type iface_index;\n  }}" for name in (_FOREIGN, _ELSEWHERE))

_NEW_VETH = f'meta iifkind "veth" iif != @{_ELSEWHERE}'
"""Selects packets of a veth that leads into a sandbox, or that has not been inspected yet."""

_BEFORE_DEFRAG = "-450"
"""NF_IP_PRI_RAW_BEFORE_DEFRAG and NF_IP6_PRI_RAW_BEFORE_DEFRAG; fragments are assembled at -400, NF_IP_PRI_CONNTRACK_DEFRAG.

Source: linux/netfilter_ipv4.h, linux/netfilter_ipv6.h.
"""

COUNTER_PREFIX = "dropped_"
"""Beginning of the names of counters. Each table has a counter for each of `DROP_REASONS` for which it drops packets. The counters are
the only part of our tables that changes without a command of ours."""


def ipv4_table(
    config: NetworkConfig,
    *,
    other_veths: Collection[str],
    is_served: bool = True,
    has_strict: bool = False,
    vlan_kind: str = uapi.VLAN_KIND,
) -> str:
    """Return commands that replace the IPv4 table, to be run as one transaction.

    Args:
        other_veths: names of host veths in use that do not begin with the configured prefix, because the setting was changed after
            they were made.
        is_served: whether sandboxes have IPv4 addresses.
        has_strict: whether some sandboxes have uplinks in strict mode.
        vlan_kind: kind of the uplinks, as the kernel names it.
    Concurrency: pure.
    """
    if not is_served:
        return _unserved_family_table(
            IPV4, config, other_veths, has_strict, redirects=f"icmp type redirect ip frag-off & 0x1fff == 0 {_drop('ipv4')}"
        )
    drop_source = _drop("source")
    # The type is the first byte of an ICMP message, so only the fragment with offset 0 has it. In other fragments the kernel would
    # read whatever byte is in its place (net/netfilter/nf_tables_core.c, nft_payload_fast_eval).
    redirects = f"icmp type redirect ip frag-off & 0x1fff == 0 {_drop('redirect')}"
    rules = [
        # Services that listen only on the node's loopback are not for sandboxes, which could reach them with route_localnet, a sysctl
        # that kube-proxy sets (CVE-2020-8558).
        f"ip daddr 127.0.0.0/8 {_drop('loopback')}",
        redirects,
        # `fib` lets a packet from 0.0.0.0 to a broadcast address pass, because it may be a DHCP request.
        f"ip saddr 0.0.0.0/8 {drop_source}",
        f"fib saddr . iif oif missing {'jump extra_source' if config.extra_sources else drop_source}",
    ]
    parts = _counters("source", "redirect", "loopback")
    if config.extra_sources:
        parts.append(cidr_set("extra_sources", config.extra_sources))
        # Whatever the CIDRs are, they must not allow an address of the node or of another sandbox on it.
        extra = [f"ip saddr != @extra_sources {drop_source}", f"fib saddr type local {drop_source}"]
        extra += [f"fib saddr oifname {names} {drop_source}" for names in _veth_patterns(config, other_veths)]
        extra += ["jump as_strict"] if has_strict else []
        parts.append(chain("extra_source", "", extra))
    else:
        parts += [*_counters("returned"), _returned_packets_chain(config, other_veths)]
    parts += _served_family_chains(config, other_veths, has_strict, rules, redirects, link_wide=_LINK_WIDE_4, vlan_kind=vlan_kind)
    return _table(IPV4, parts)


def ipv6_table(
    config: NetworkConfig,
    *,
    other_veths: Collection[str],
    is_served: bool,
    has_strict: bool = False,
    vlan_kind: str = uapi.VLAN_KIND,
    router_link: int = 0,
) -> str:
    """Return commands that replace the IPv6 table, as `ipv4_table` does. Extra sources exist only for IPv4.

    `router_link`: index of the primary ENI's link if it is a virtual link, as in a lab, so that router advertisements by it are not
    dropped; 0 if ENIs are hardware. Router advertisements, redirects and neighbour messages of a sandbox would change the node's
    routing (CVE-2020-10749).
    """
    router_messages = "icmpv6 type { nd-router-advert, nd-redirect }"
    if not is_served:
        return _unserved_family_table(
            IPV6, config, other_veths, has_strict, redirects=f"{router_messages} {_drop('ipv6')}", router_link=router_link
        )
    redirects = f"{router_messages} {_drop('redirect')}"
    rules = [
        f"ip6 daddr ::1 {_drop('loopback')}",
        f"icmpv6 type {{ {', '.join(_MULTICAST_LISTENING)} }} {_drop('listening')}",
        redirects,
        f"icmpv6 type {{ nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert }} {_drop('discovery')}",
        # In fragments the type is not always visible, so the rules above may miss neighbour discovery. All its packets have this hop
        # limit (RFC 4861, 6.1 and 7.1). Usually the kernel ignores neighbour discovery in fragments, but a sysctl of each link
        # (suppress_frag_ndisc) may allow it.
        f"meta l4proto ipv6-icmp ip6 hoplimit 255 exthdr frag exists {_drop('discovery')}",
        # If a veth of amazon-vpc-cni-k8s has a link-local address, `fib` finds a route back to any link-local address.
        f"ip6 saddr {{ ::, fe80::/10, ff00::/8 }} {_drop('source')}",
        f"fib saddr . iif oif missing {_drop('source')}",
    ]
    counted = _counters("source", "redirect", "loopback", "listening", "discovery")
    served = _served_family_chains(
        config,
        other_veths,
        has_strict,
        rules,
        redirects,
        link_wide=_LINK_WIDE_6,
        vlan_kind=vlan_kind,
        router_link=router_link,
    )
    return _table(IPV6, [*counted, *served])


def _served_family_chains(
    config: NetworkConfig,
    other_veths: Collection[str],
    has_strict: bool,
    rules: list[str],
    redirects: str,
    *,
    link_wide: str,
    vlan_kind: str,
    router_link: int = 0,
) -> list[str]:
    """Return the chains that the tables of both families have in common, for a family in which sandboxes have addresses.

    Args:
        rules: the rules that every packet of a sandbox passes; the last rule checks the source.
        link_wide: the nft condition for packets that the kernel delivers to the node's own sockets, even though the rules of strict
            mode lead to the uplink (`_LINK_WIDE_4`).
    """
    # These rules apply to a new link from its first packet on, before it is known where the link leads.
    foreign_rules = [f'{_excluding(router_link)}meta iifkind "veth" {redirects}']
    if has_strict:  # a routing rule sends packets from a link of this name to a sandbox, whoever made the link
        foreign_rules.append(f'iifname "{LINK_PREFIX}*" meta iifkind != "{vlan_kind}" {_drop("foreign")}')
    foreign_rules += [
        f"{_NEW_VETH} fib saddr oifname {names} {_drop('foreign')}" for names in _veth_patterns(config, other_veths)
    ]
    foreign_rules += [f"{_NEW_VETH} jump as_strict"] if has_strict else []
    foreign_rules += _foreign_link_rules(config, "foreign")
    return [
        *_counters("foreign"),
        chain("from_sandbox", "", rules),
        *_strict_chains([*rules[:-1], f"{link_wide} {_drop('multicast')}", _DROP_STRICT_SOURCE], has_strict),
        _to_node_chain(redirects, router_link),
        *_veth_chain(config, other_veths, foreign_rules, strict="from_strict" if has_strict else ""),
    ]


def _strict_chains(rules: Iterable[str], has_strict: bool) -> list[str]:
    """Return the chains for packets of sandboxes in strict mode, and for packets that must not have such a sandbox's source.

    There are none if no sandbox is in strict mode. The mark bit is removed again before anything else sees the packet.
    """
    if not has_strict:
        return []
    set_bit = f"meta mark set meta mark or {STRICT_MARK:#x}"
    clear_bit = f"meta mark set meta mark and {STRICT_MARK ^ 0xFFFFFFFF:#x}"
    link_of_source = "fib saddr . mark oifname"
    # The pattern of host veths in strict mode matches the names of VLAN links too. If the packet is for a sandbox in
    # standard mode, the lookup follows the rule of that sandbox and so finds a VLAN link. Such a packet forges nothing, so it passes.
    strict_source_rule = f'{link_of_source} "{STRICT_VETH_PREFIX}*" {link_of_source} != "{LINK_PREFIX}*" {_drop("foreign")}'
    return [
        *_counters("multicast"),
        chain("from_strict", "", [set_bit, *rules, clear_bit]),
        chain("as_strict", "", [set_bit, strict_source_rule, clear_bit]),
    ]


_LINK_WIDE_4 = "ip daddr { 224.0.0.0/4, 255.255.255.255 }"

_LINK_WIDE_6 = "ip6 daddr { fe80::/10, ff00::/8 }"
"""This condition and `_LINK_WIDE_4` select packets to a multicast group, to everybody on the link, or to a link-local address. If a
sandbox in strict mode sends such a packet, the kernel does not route it by the rules that lead to the uplink. So it would reach the
node's sockets without passing the security groups.

Source: the kernel's net/ipv4/route.c, ip_route_input_rcu and ip_route_input_slow; net/ipv6/route.c, rt6_need_strict.
"""

_DROP_STRICT_SOURCE = f"fib saddr . mark . iif oif missing counter name {COUNTER_PREFIX}source drop"

_MULTICAST_LISTENING = ("mld-listener-query", "mld-listener-report", "mld-listener-done", "mld2-listener-report")


def _unserved_family_table(
    table: NftTable,
    config: NetworkConfig,
    other_veths: Collection[str],
    has_strict: bool,
    *,
    redirects: str,
    router_link: int = 0,
) -> str:
    """Return the table of a family that sandboxes do not have: it drops all their packets of the family."""
    reason = "ipv6" if table is IPV6 else "ipv4"
    parts = [*_counters(reason), chain("from_sandbox", "", [_drop(reason)]), _to_node_chain(redirects, router_link)]
    strict = ""
    if has_strict:
        strict = "from_sandbox"
    return _table(table, [*parts, *_veth_chain(config, other_veths, _foreign_link_rules(config, reason), strict=strict)])


def arp_table(config: NetworkConfig, *, other_veths: Collection[str], has_strict: bool = False) -> str:
    """Return commands that replace the ARP table: a sandbox needs no ARP requests, because its gateway's neighbour entry is permanent.

    The kernel remembers the senders of requests, and the node and all sandboxes share its table of neighbours
    (net.ipv4.neigh.default.gc_thresh3, 1024): requests from a thousand senders keep the node from resolving any other address. If
    rp_filter is 0, nothing but this table stops such requests.
    """
    parts = [*_counters("arp"), chain("from_sandbox", "", [f"arp operation request {_drop('arp')}"])]
    # A limit leaves enough requests to the sandboxes of a second CNI, which send few. The limit must be low, because the kernel does
    # not evict an entry that is younger than 5 s for a new one.
    rate_limit = [f"{_NEW_VETH} arp operation request limit rate over 100/second {_drop('arp')}"]
    foreign_rules = rate_limit
    if config.foreign_links == DROP:
        foreign_rules = _foreign_link_rules(config, "arp")
    strict = ""
    if has_strict:
        strict = "from_sandbox"
    return _table(ARP, [*parts, *_veth_chain(config, other_veths, foreign_rules, hook="input", priority="filter", strict=strict)])


def bridge_table(config: NetworkConfig) -> str:
    """Return commands that replace the table of bridges, or remove it if VPC_IPAMD_FOREIGN_LINK_POLICY is not DROP.

    The table drops packets only from links that are known to lead into a sandbox.
    """
    if config.foreign_links != DROP:
        return BRIDGE.removal()
    head = f"type filter hook prerouting priority {_BEFORE_DEFRAG}; policy accept;"
    return _table(BRIDGE, [_LINK_SETS, chain("from_veths", head, [f"iif @{_FOREIGN} drop"])])


def links(table: NftTable, commands: str, links: Iterable[int], *, foreign: Collection[int]) -> str:
    """Return commands that fill the sets of a table with the links of other software; "" if the table has no such sets.

    Args:
        commands: the commands that make the table.
        links: indexes of the links that have been inspected.
        foreign: the indexes of links that lead into sandboxes.
    """
    if _LINK_SETS not in commands:
        return ""
    into_sandboxes: list[int] = []
    elsewhere: list[int] = []
    for index in links:
        if index in foreign:
            into_sandboxes.append(index)
        else:
            elsewhere.append(index)
    return table.links(_FOREIGN, into_sandboxes) + table.links(_ELSEWHERE, elsewhere)


def _foreign_link_rules(config: NetworkConfig, reason: str) -> list[str]:
    if config.foreign_links != DROP:
        return [f"iif @{_FOREIGN} fib saddr . iif oif missing {_drop(reason)}"]
    return [f"iif @{_FOREIGN} {_drop(reason)}", f"{_NEW_VETH} {_drop(reason)}"]


def _to_node_chain(rule: str, router_link: int = 0) -> str:
    # `rule` drops ICMP redirects, in IPv6 also router advertisements. The hook is input, which only packets to the node itself pass:
    # between two ports of a bridge these messages may be intended. The condition on the kind excludes the links of ENIs, which have
    # no kind.
    rule = f'{_excluding(router_link)}meta iifkind != "none" {rule}'
    return chain("to_node", "type filter hook input priority filter; policy accept;", [rule])


def _excluding(link: int) -> str:
    """Return the condition that excludes a link by its index; no condition for 0."""
    if link:
        return f"iif != {link} "
    return ""


def _returned_packets_chain(config: NetworkConfig, other_veths: Collection[str]) -> str:
    """Return the chain that drops a packet with a sandbox's source that came in by an ENI and would leave by an ENI again.

    The VPC delivers packets for each address of the ENIs to this node, also for an address that no sandbox has now. Without this
    chain the node would route them out again, and they would come back, until their hop limit ends. Packets of tunnels, bridges and
    VLANs leave the chain by the rule about kinds. An ENI's link has no kind, so this rule does not match its packets. Packets that
    were translated to another destination (NodePort) pass.
    """
    veths = _veth_patterns(config, other_veths)
    rules = [f"iifname {names} return" for names in veths]
    rules += [
        'meta iifkind != "veth" return',
        *([f'iifname "{LINK_PREFIX}*" return'] if config.pod_eni else []),
        "ct status dnat return",
        "fib daddr type != unicast return",
    ]
    rules += [f"fib daddr oifname {names} return" for names in veths]
    rules += [f"fib saddr oifname {names} {_drop('returned')}" for names in veths]
    return chain("returned", "type filter hook prerouting priority dstnat + 20; policy accept;", rules)


def _veth_chain(
    config: NetworkConfig,
    other_veths: Collection[str],
    foreign_rules: Collection[str],
    *,
    hook: str = "prerouting",
    priority: str = _BEFORE_DEFRAG,
    strict: str,
) -> list[str]:
    # Compare the kind too: a prefix such as `ens` would match the node's own links.
    rules = [f'iifname {names} meta iifkind "veth" goto from_sandbox' for names in _veth_patterns(config, other_veths)]
    if strict:  # the second condition excludes the uplinks of a lab; other uplinks are not veths
        rules.insert(0, f'iifname "{STRICT_VETH_PREFIX}*" iifname != "{LINK_PREFIX}*" meta iifkind "veth" goto {strict}')
    # The foreign rules concern all other links: a sandbox with NET_ADMIN may have made any of them on the node. Packets that come by a
    # port of a bridge have the bridge as their incoming link.
    rules += foreign_rules
    return [_LINK_SETS, chain("from_veths", f"type filter hook {hook} priority {priority}; policy accept;", rules)]


def _veth_patterns(config: NetworkConfig, other_veths: Collection[str]) -> list[str]:
    """Return nft expressions that together match the names of all our host veths."""
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
