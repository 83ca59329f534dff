"""A link's IPv4 and IPv6 settings (those of /proc/sys/net/*/conf), as the kernel tells and takes them by netlink.

By netlink they need NET_ADMIN only: in an ordinary container /proc/sys is read-only. An ENI's link must forward, and the primary one
must take answers to addresses of the others. Those of host veths are the second line of a sandbox's confinement; the first is the
nftables table (`ruleset`, docs/adr/0021).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from ipamd.kernel import messages, uapi
from ipamd.kernel.netlink import attributes
from ipamd.model.family import IPV4, IPV6, Family

OFF = 0
STRICT = 1
LOOSE = 2
"""Values of rp_filter: no check; the source must be routed back through the link; it must be routed at all.

On a link without an address of its own, as host veths are, loose is strict. Source: the kernel's net/ipv4/fib_frontend.c,
__fib_validate_source (no_addr).
"""

ENI = {uapi.IPV4_DEVCONF_FORWARDING: 1}
PRIMARY_ENI = {**ENI, uapi.IPV4_DEVCONF_RP_FILTER: LOOSE}
"""What the links of ENIs have. Loose, because replies to addresses of other ENIs arrive on the primary one: NodePort connections.
Source: amazon-vpc-cni-k8s cmd/aws-vpc-cni-init/main.go, configureSystemParams. Forwarding of a link is what the kernel goes by
(net/ipv4/route.c, ip_route_input_slow); net.ipv4.ip_forward only sets it for all links at once."""

BRANCH = {
    uapi.IPV4_DEVCONF_FORWARDING: 1,
    uapi.IPV4_DEVCONF_ACCEPT_REDIRECTS: 0,
    uapi.IPV4_DEVCONF_SECURE_REDIRECTS: 0,
    uapi.IPV4_DEVCONF_RP_FILTER: LOOSE,
    uapi.IPV4_DEVCONF_ACCEPT_SOURCE_ROUTE: 0,
}
"""What the links to branch ENIs have: what comes by one is led to its sandbox, or comes from nowhere that it leads to."""

NAMES = {
    uapi.IPV4_DEVCONF_FORWARDING: "forwarding",
    uapi.IPV4_DEVCONF_ACCEPT_REDIRECTS: "accept_redirects",
    uapi.IPV4_DEVCONF_SECURE_REDIRECTS: "secure_redirects",
    uapi.IPV4_DEVCONF_RP_FILTER: "rp_filter",
    uapi.IPV4_DEVCONF_ACCEPT_SOURCE_ROUTE: "accept_source_route",
}

_U32 = struct.Struct("=I")


def host_veth(*, is_strict: bool) -> Mapping[int, int]:
    """What every host veth has: number of the setting -> value.

    No check where sandboxes may send from further CIDRs: the nftables table then decides alone.
    """
    return {
        uapi.IPV4_DEVCONF_FORWARDING: 1,
        uapi.IPV4_DEVCONF_ACCEPT_REDIRECTS: 0,
        uapi.IPV4_DEVCONF_SECURE_REDIRECTS: 0,
        uapi.IPV4_DEVCONF_RP_FILTER: STRICT if is_strict else OFF,
        uapi.IPV4_DEVCONF_ACCEPT_SOURCE_ROUTE: 0,
    }


def wrong(link: messages.Link, wanted: Mapping[int, int]) -> dict[int, int]:
    """Find the settings of a link that differ: number -> present value. A setting that the kernel did not tell does not differ."""
    # An array of u32: the first is number 1. Source: the kernel's net/ipv4/devinet.c, inet_fill_link_af.
    values = _conf(link, IPV4, uapi.IFLA_INET_CONF)
    different = {}
    for number, value in wanted.items():
        end = number * _U32.size
        if end <= len(values) and (now := _U32.unpack_from(values, end - _U32.size)[0]) != value:
            different[number] = now
    return different


def has_ipv6(link: messages.Link) -> bool | None:
    """Whether IPv6 is on for a link (disable_ipv6 is 0); None where the kernel does not tell, as one without IPv6."""
    # An array of s32: the first is number 0. Source: the kernel's net/ipv6/addrconf.c, ipv6_store_devconf.
    values = _conf(link, IPV6, uapi.IFLA_INET6_CONF)
    start = uapi.IPV6_DEVCONF_DISABLE_IPV6 * _U32.size
    return not _U32.unpack_from(values, start)[0] if len(values) >= start + _U32.size else None


def _conf(link: messages.Link, family: Family, kind: int) -> bytes:
    settings = attributes(link.families, 0).get(family.number, b"")
    return attributes(settings, 0).get(kind, b"")
