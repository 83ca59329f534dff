"""The network sysctls of Amazon Linux 2023 that a network namespace has.

Those of systemd, which EKS's image does not change (amazon-eks-ami templates/al2023/runtime/rootfs/etc/sysctl.conf): loose reverse
path filtering and no source routes on every interface, but nothing on `all`. udev runs systemd-sysctl for each interface that
appears, host veths among them, so these values are written once more after whoever made the link set others. Source: systemd
sysctl.d/50-default.conf and rules.d/99-systemd.rules.in; aws-gateway-load-balancer-tunnel-handler issue 23 (the links have values of
their own on AL2023) and bottlerocket pull request 1677 (they are written again). Whether Amazon's package changes systemd's values
is unknown. Left out on purpose: ip_forward, which this project must not rely on, and what belongs to the whole kernel.
"""

from __future__ import annotations

from collections.abc import Iterable

from lab.fabric.netns import Netns

PER_LINK = {"rp_filter": "2", "accept_source_route": "0", "promote_secondaries": "1"}
_KERNEL_DEFAULT = {"ipv4/conf/all/rp_filter": "0", "ipv4/conf/all/src_valid_mark": "0", "ipv4/ip_forward": "0"}
"""Named because a new namespace takes the machine's values: Documentation/networking/ip-sysctl.rst, devconf_inherit_init_net."""


def boot(netns: Netns) -> None:
    """Set what the node's network has at boot, before its first interface."""
    netns.sysctl(_KERNEL_DEFAULT)
    follow(netns, ["default", "lo"])


def follow(netns: Netns, links: Iterable[str]) -> None:
    """Do what udev does when these interfaces appear."""
    for link in links:
        netns.sysctl({f"ipv4/conf/{link}/{key}": value for key, value in PER_LINK.items()})
