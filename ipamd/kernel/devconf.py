"""A link's IPv4 and IPv6 settings (those of /proc/sys/net/*/conf), in the form in which netlink reports them.

Those of IPv4 can also be set by netlink. This needs only NET_ADMIN, while /proc/sys is read-only in an ordinary container. An ENI's
link must forward, and the primary ENI's link must also accept replies to addresses of the other ENIs. The settings of host veths are
the second line of a sandbox's confinement; the first is the nftables tables (`confinement_ruleset`, docs/adr/0021).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from ipamd.kernel import answers, uapi
from ipamd.kernel.netlink import attributes
from ipamd.model.family import IPV4, IPV6, Family

OFF = 0
STRICT = 1
LOOSE = 2
"""Values of rp_filter. OFF: sources are not checked. STRICT: the source must be routed back through the link. LOOSE: there must
be a route to the source, through whatever link.

On a link without an address of its own, such as a host veth, the kernel treats LOOSE as STRICT. Source: the kernel's
net/ipv4/fib_frontend.c, __fib_validate_source (no_addr).
"""

ENI = {uapi.IPV4_DEVCONF_FORWARDING: 1}
PRIMARY_ENI = {**ENI, uapi.IPV4_DEVCONF_RP_FILTER: LOOSE}
"""Settings of the links of ENIs. rp_filter of the primary ENI's link is loose, because with NodePort connections replies to
addresses of other ENIs arrive on it. Source: amazon-vpc-cni-k8s cmd/aws-vpc-cni-init/main.go, configureSystemParams. Forwarding is
set for each link, because the kernel evaluates the link's setting (net/ipv4/route.c, ip_route_input_slow); net.ipv4.ip_forward only
sets it for all links at once."""

UPLINK = {
    uapi.IPV4_DEVCONF_FORWARDING: 1,
    uapi.IPV4_DEVCONF_ACCEPT_REDIRECTS: 0,
    uapi.IPV4_DEVCONF_SECURE_REDIRECTS: 0,
    uapi.IPV4_DEVCONF_RP_FILTER: LOOSE,
    uapi.IPV4_DEVCONF_ACCEPT_SOURCE_ROUTE: 0,
}
"""Settings of uplinks, the VLAN links of branch ENIs. rp_filter is LOOSE. To check a source, the kernel looks up the way back without
an incoming link. So the lookup does not follow the rules by incoming link that lead to the branch ENI, and finds the primary ENI's
link. STRICT would therefore drop the packets that arrive by the uplink."""

NAMES = {
    uapi.IPV4_DEVCONF_FORWARDING: "forwarding",
    uapi.IPV4_DEVCONF_ACCEPT_REDIRECTS: "accept_redirects",
    uapi.IPV4_DEVCONF_SECURE_REDIRECTS: "secure_redirects",
    uapi.IPV4_DEVCONF_RP_FILTER: "rp_filter",
    uapi.IPV4_DEVCONF_ACCEPT_SOURCE_ROUTE: "accept_source_route",
}

_U32 = struct.Struct("=I")


def host_veth(*, is_strict: bool) -> Mapping[int, int]:
    """Settings of every host veth: number of the setting -> value.

    With `is_strict` False sandboxes may also send from VPC_IPAMD_EXTRA_SOURCE_CIDRS. Then the link does not check sources, and only
    the nftables tables do.
    """
    return {
        uapi.IPV4_DEVCONF_FORWARDING: 1,
        uapi.IPV4_DEVCONF_ACCEPT_REDIRECTS: 0,
        uapi.IPV4_DEVCONF_SECURE_REDIRECTS: 0,
        uapi.IPV4_DEVCONF_RP_FILTER: STRICT if is_strict else OFF,
        uapi.IPV4_DEVCONF_ACCEPT_SOURCE_ROUTE: 0,
    }


def wrong_settings(link: answers.Link, wanted: Mapping[int, int]) -> dict[int, int]:
    """Return the settings of a link that differ: number -> present value. A setting that the kernel did not report is left out."""
    # An array of u32 whose first element is setting number 1. Source: the kernel's net/ipv4/devinet.c, inet_fill_link_af.
    values = _conf(link, IPV4, uapi.IFLA_INET_CONF)
    different = {}
    for number, value in wanted.items():
        end = number * _U32.size
        if end > len(values):
            continue
        (actual,) = _U32.unpack_from(values, end - _U32.size)
        if actual != value:
            different[number] = actual
    return different


def has_ipv6(link: answers.Link) -> bool | None:
    """Whether IPv6 is on for a link (disable_ipv6 is 0); None if the kernel does not report it, because it lacks IPv6."""
    is_off = _ipv6_setting(link, uapi.IPV6_DEVCONF_DISABLE_IPV6)
    if is_off is None:
        return None
    return not is_off


ACCEPT_RA_ALWAYS = 2
"""Value of accept_ra with which a link accepts router advertisements even while it forwards.
Source: the kernel's Documentation/networking/ip-sysctl.rst."""


def accepts_router_messages(link: answers.Link) -> bool:
    """Whether the kernel changes routes because of IPv6 router advertisements or redirects that come by a link.

    A link that forwards ignores both unless its accept_ra is 2. A new link gets its accept_ra from net.ipv6.conf.default.
    """
    if not has_ipv6(link):
        return False
    accept_ra = _ipv6_setting(link, uapi.IPV6_DEVCONF_ACCEPT_RA)
    if _ipv6_setting(link, uapi.IPV6_DEVCONF_FORWARDING):
        return accept_ra == ACCEPT_RA_ALWAYS
    return bool(accept_ra or _ipv6_setting(link, uapi.IPV6_DEVCONF_ACCEPT_REDIRECTS))


def _ipv6_setting(link: answers.Link, number: int) -> int | None:
    # An array whose first element is setting number 0; the array of IPv4 begins with number 1. Its elements are s32, but the settings
    # that are read here have no negative values, so u32 will do. Source: the kernel's net/ipv6/addrconf.c, ipv6_store_devconf.
    values = _conf(link, IPV6, uapi.IFLA_INET6_CONF)
    start = number * _U32.size
    if len(values) >= start + _U32.size:
        return int(_U32.unpack_from(values, start)[0])
    return None


def _conf(link: answers.Link, family: Family, kind: int) -> bytes:
    settings = attributes(link.families, 0).get(family.number, b"")
    return attributes(settings, 0).get(kind, b"")
