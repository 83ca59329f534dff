"""Set the network sysctls of Amazon Linux 2023 in a node's network namespace.

The values are systemd's, which EKS's image does not change (amazon-eks-ami templates/al2023/runtime/rootfs/etc/sysctl.conf): loose
reverse path filtering and no source routes on every interface, and no value for `all`. udev runs systemd-sysctl for each interface
that appears, host veths included. So these values replace the values that the program which made the link has set. Sources: systemd
sysctl.d/50-default.conf and rules.d/99-systemd.rules.in; aws-gateway-load-balancer-tunnel-handler issue 23 (on AL2023 links have
values of their own) and bottlerocket pull request 1677 (the values are written again). Whether Amazon's package changes systemd's
values is unknown. Left out on purpose: ip_forward, on which this project must not rely, and sysctls of the whole kernel.
"""

from __future__ import annotations

from collections.abc import Iterable

from lab.fabric.netns import Netns

PER_LINK = {"rp_filter": "2", "accept_source_route": "0", "promote_secondaries": "1"}
_KERNEL_DEFAULT = {"ipv4/conf/all/rp_filter": "0", "ipv4/conf/all/src_valid_mark": "0", "ipv4/ip_forward": "0"}
"""The kernel's defaults. They are set because a new namespace inherits the machine's values (Documentation/networking/ip-sysctl.rst,
devconf_inherit_init_net)."""


def boot(netns: Netns) -> None:
    """Set the sysctls that a node has at boot, before its first interface."""
    netns.sysctl(_KERNEL_DEFAULT)
    follow(netns, ["default", "lo"])


def follow(netns: Netns, links: Iterable[str]) -> None:
    """Set the sysctls of these interfaces, as udev does when they appear."""
    for link in links:
        netns.sysctl({f"ipv4/conf/{link}/{key}": value for key, value in PER_LINK.items()})
