"""Find an ENI's link by its MAC, and wait for it to appear after EC2 reported "attached".

The wait listens to the kernel's link notifications instead of polling.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from ipamd.kernel import answers, survey, uapi
from ipamd.kernel.netns import HostNetns
from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.ids import MacAddress

LINK_WAIT_S = 10.0
"""How long an attached ENI's link may take to appear. Ours: this is enough, because EC2's hot-plug takes 1-2 s. If it takes longer,
the caller retries."""

BORROWING_KINDS = frozenset({"bridge", "bond", "team", "vlan", "macvlan", "macvtap", "macsec", "ipvlan", "ipvtap", "vrf"})
"""Kinds of links on top of others, which may have the MAC of the link below: none of them is an ENI. Source: ip-link(8), TYPE."""


def wait_for_link(
    host: HostNetns,
    mac: MacAddress,
    *,
    veth_prefix: str,
    timeout_s: float,
) -> answers.Link:
    """Find the link with a MAC, and wait for it up to `timeout_s` if it does not exist yet.

    Raises: WiringError if it does not appear; KernelDumpError.
    """
    deadline = time.monotonic() + timeout_s
    # Listen before the first dump, or a link that appears in between is missed.
    listener = host.open_netlink(groups=uapi.RTMGRP_LINK)
    try:
        while True:
            with host.netlink() as sock:
                link = lowest_by_mac(survey.links_of(sock, kind=""), mac, veth_prefix)
            if link is not None:
                return link
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not listener.wait(timeout_s=left_s):
                raise failure(WiringError, FailureCode.NO_ENI_LINK, mac=mac, timeout_s=f"{timeout_s:g}")
    finally:
        listener.close()


def may_be_eni(link: answers.Link, *, veth_prefix: str) -> bool:
    """Whether a link can be an ENI's: it is not a sandbox's host veth, and its kind does not borrow the MAC of another link."""
    # The alias is compared too, because the setting of the prefix may have been changed.
    is_ours = link.name.startswith(veth_prefix) or survey.host_veth(link).key is not None
    is_sandbox = link.group == uapi.DYING_GROUP or (link.kind == uapi.VETH_KIND and is_ours)
    return not is_sandbox and link.kind not in BORROWING_KINDS


def eni_links(links: Collection[answers.Link], *, veth_prefix: str) -> list[answers.Link]:
    """Choose the links that can be ENIs' (`may_be_eni`) from all links of the node.

    If the node has hardware links, only these are chosen: a sandbox with NET_ADMIN can make virtual links with any MAC and any free
    index on the node. The node of a lab has no hardware.
    """
    candidates = [link for link in links if may_be_eni(link, veth_prefix=veth_prefix)]
    return [link for link in candidates if is_hardware(link)] or candidates


def is_hardware(link: answers.Link) -> bool:
    """Whether a link belongs to a device, so that no netlink message can make it. The loopback has no MAC and is not a device."""
    return not link.kind and link.mac.strip("0:") != ""


def lowest_by_mac(links: Collection[answers.Link], mac: MacAddress, veth_prefix: str) -> answers.Link | None:
    """Choose the link with a MAC among the links of ENIs (`eni_links`); None if no link has it.

    If several links have the MAC, the one with the lowest index is chosen.
    """
    matches = [link for link in eni_links(links, veth_prefix=veth_prefix) if link.mac == mac]
    return min(matches, key=lambda link: link.index, default=None)
