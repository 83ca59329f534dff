"""The text of the nftables tables that confine sandboxes: which of their packets go nowhere. Pure.

    from_veths     prerouting -450, before the kernel puts fragments together: a forged one joins nobody's datagram
    from_sandbox   what every packet of a host veth passes
    extra_source   only with VPC_IPAMD_EXTRA_SOURCE_CIDRS: a source that is not routed back
    returned       prerouting dstnat+20 (-80), after DNAT; without that setting: a sandbox's packet that the VPC sends back

A packet passes if its source is routed back through the veth that it came from: the route of the wiring is the permission, so ADD
and DEL change nothing here. `fib` does not look at marks, so no mark or sysctl of others changes its answer (the kernel's
net/ipv4/netfilter/nft_fib_ipv4.c, nft_fib4_eval). Tables of their own, so that a new CIDR of the VPC does not touch them and a fault
in the other table (`ruleset`) leaves them in place. One for each family: the combined family `inet` is missing in kernels without
IPv6. Why nftables and not rp_filter, and why one check is enough: docs/adr/0021.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import collapse_addresses

from ipamd.kernel.ruleset import NftTable, chain
from ipamd.settings import NetworkConfig

IPV4 = NftTable("ip", "vpc-ipamd-confine")
IPV6 = NftTable("ip6", "vpc-ipamd-confine")
ARP = NftTable("arp", "vpc-ipamd-confine")

CHAINS = ("from_veths", "from_sandbox")
"""In every table; with extra sources the IPv4 one has `extra_source` too."""

_BEFORE_DEFRAG = "-450"
"""NF_IP_PRI_RAW_BEFORE_DEFRAG and NF_IP6_PRI_RAW_BEFORE_DEFRAG; fragments are put together at -400, NF_IP_PRI_CONNTRACK_DEFRAG.

Source: linux/netfilter_ipv4.h, linux/netfilter_ipv6.h.
"""

COUNTER_PREFIX = "dropped_"
"""A named counter for each of `DROP_REASONS`, in one of the tables; nothing else in them changes by itself."""


def ipv4_table(config: NetworkConfig, *, other_veths: Collection[str]) -> str:
    """Return commands that replace the IPv4 table, to be run as one transaction.

    Args:
        other_veths: host veths in use whose names do not begin with the configured prefix (it was changed under them).
    Concurrency: pure.
    """
    drop_source = _drop("source")
    rules = [
        # Services that listen on the node's loopback only are not for sandboxes; with route_localnet, which kube-proxy sets, they
        # would be reached (CVE-2020-8558).
        f"ip daddr 127.0.0.0/8 {_drop('loopback')}",
        # The type is the first byte, so it comes with offset 0. In other fragments the kernel takes what is there for it
        # (net/netfilter/nf_tables_core.c, nft_payload_fast_eval).
        f"icmp type redirect ip frag-off & 0x1fff == 0 {_drop('redirect')}",
        # The kernel takes 0.0.0.0 to a broadcast address for DHCP, and `fib` lets it pass.
        f"ip saddr 0.0.0.0/8 {drop_source}",
        f"fib saddr . iif oif missing {'jump extra_source' if config.extra_source_cidrs else drop_source}",
    ]
    parts = _counters("source", "redirect", "loopback")
    if config.extra_source_cidrs:
        elements = ", ".join(str(network) for network in collapse_addresses(config.extra_source_cidrs))
        parts.append(f"  set extra_sources {{\n    type ipv4_addr; flags interval;\n    elements = {{ {elements} }}\n  }}")
        parts.append(chain("extra_source", "", _extra_source(config, other_veths, drop_source)))
    else:
        parts += [*_counters("returned"), _returned(config, other_veths)]
    parts.append(chain("from_sandbox", "", rules))
    return _table(IPV4, [*parts, _from_veths(config, other_veths)])


def ipv6_table(config: NetworkConfig, *, other_veths: Collection[str]) -> str:
    """Return commands that replace the IPv6 table: sandboxes have IPv4 only, so nothing of theirs passes.

    Router advertisements, redirects and neighbour messages of a sandbox would change the node's routing (CVE-2020-10749).
    """
    parts = [*_counters("ipv6"), chain("from_sandbox", "", [_drop("ipv6")])]
    return _table(IPV6, [*parts, _from_veths(config, other_veths)])


def arp_table(config: NetworkConfig, *, other_veths: Collection[str]) -> str:
    """Return commands that replace the ARP table: a sandbox asks nobody, because its gateway's neighbour entry is permanent.

    The kernel remembers who asks, and its table of neighbours is one for the node and all sandboxes
    (net.ipv4.neigh.default.gc_thresh3, 1024): requests with a thousand senders keep the node from resolving any
    other. Where rp_filter is 0, nothing else stops them.
    """
    parts = [*_counters("arp"), chain("from_sandbox", "", [f"arp operation request {_drop('arp')}"])]
    return _table(ARP, [*parts, _from_veths(config, other_veths, hook="input", priority="filter")])


def _extra_source(config: NetworkConfig, other_veths: Collection[str], drop_source: str) -> list[str]:
    """Whatever the CIDRs: no address of the node, and none of another sandbox on it."""
    rules = [f"ip saddr != @extra_sources {drop_source}", f"fib saddr type local {drop_source}"]
    return [*rules, *(f"fib saddr oifname {names} {drop_source}" for names in _names(config, other_veths))]


def _returned(config: NetworkConfig, other_veths: Collection[str]) -> str:
    """Drop a packet with a sandbox's source that came in by an ENI and would go out by one again.

    The VPC delivers what is sent to a free or cooling address of the node's ENIs, and no sandbox takes it: routed like the first
    time, it would leave and come back until its hops end. Links of another kind (tunnels, bridges, VLANs) lead elsewhere and are
    left out; an ENI's link has no kind. What was translated to another destination (NodePort) goes on.
    """
    names = _names(config, other_veths)
    rules = [f"iifname {each} return" for each in names]
    rules += ['meta iifkind != "veth" return', "ct status dnat return", "fib daddr type != unicast return"]
    rules += [f"fib daddr oifname {each} return" for each in names]
    rules += [f"fib saddr oifname {each} {_drop('returned')}" for each in names]
    return chain("returned", "type filter hook prerouting priority dstnat + 20; policy accept;", rules)


def _from_veths(
    config: NetworkConfig, other_veths: Collection[str], *, hook: str = "prerouting", priority: str = _BEFORE_DEFRAG
) -> str:
    # By kind too, or a prefix such as `ens` would make sandboxes of the node's own links.
    rules = [f'iifname {names} meta iifkind "veth" jump from_sandbox' for names in _names(config, other_veths)]
    return chain("from_veths", f"type filter hook {hook} priority {priority}; policy accept;", rules)


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
