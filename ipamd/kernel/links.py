"""Find an ENI's link by its MAC, and wait for it to appear after EC2 reported "attached".

The wait listens to the kernel's link notifications instead of polling.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ipamd.kernel import layout, records, survey, uapi
from ipamd.kernel.netlink import NetlinkSocket
from ipamd.kernel.netns import HostNetns
from ipamd.model.attachment import decode_alias
from ipamd.model.errors import WiringError
from ipamd.model.ids import MacAddress

LINK_WAIT_S = 10.0
"""How long an attached ENI's link may take to appear. Ours: EC2 hot-plug takes 1-2 s; the caller retries."""

BORROWING_KINDS = frozenset({"bridge", "bond", "team", "vlan", "macvlan", "macvtap", "macsec", "ipvlan", "ipvtap", "vrf"})
"""Links on top of others, which may have the MAC of the one below: none of them is the ENI. Source: ip-link(8), TYPE."""


def find_by_mac(sock: NetlinkSocket, mac: MacAddress, *, veth_prefix: str) -> records.Link | None:
    """Find the link with a MAC that may be an ENI's; the lowest index if several have it.

    Raises: KernelDumpError, WiringError.
    """
    return lowest_by_mac(survey.links_of(sock, kind=""), mac, veth_prefix)


def wait_for_link(
    host: HostNetns,
    mac: MacAddress,
    *,
    veth_prefix: str,
    timeout_s: float = LINK_WAIT_S,
    monotonic: Callable[[], float] = time.monotonic,
) -> records.Link:
    """Find the link with a MAC, waiting for it up to `timeout_s`.

    Raises: WiringError if it does not appear; KernelDumpError.
    """
    deadline = monotonic() + timeout_s
    listener = host.open_netlink(groups=uapi.RTMGRP_LINK)  # listen before looking, or a link that appears in between is missed
    try:
        while True:
            with host.netlink() as sock:
                link = find_by_mac(sock, mac, veth_prefix=veth_prefix)
            if link is not None:
                return link
            left_s = deadline - monotonic()
            if left_s <= 0 or not listener.wait(timeout_s=left_s):
                raise WiringError(
                    f"no link with MAC {mac} appeared within {timeout_s:g} s",
                    details="EC2 reports the ENI as attached, but the node's driver does not show its link yet; it is retried",
                )
    finally:
        listener.close()


def may_be_eni(link: records.Link, *, veth_prefix: str) -> bool:
    """Whether a link can be an ENI's: no sandbox's host veth, and not of a kind that borrows its MAC."""
    is_ours = link.name.startswith(veth_prefix) or decode_alias(link.alias) is not None  # the prefix may have been changed
    is_sandbox = link.group == layout.DYING_GROUP or (link.kind == layout.VETH_KIND and is_ours)
    return not is_sandbox and link.kind not in BORROWING_KINDS


def lowest_by_mac(links: Iterable[records.Link], mac: MacAddress, veth_prefix: str) -> records.Link | None:
    """Choose the link with a MAC that may be an ENI's; the lowest index if several have it."""
    found = [link for link in links if link.mac == mac and may_be_eni(link, veth_prefix=veth_prefix)]
    return min(found, key=lambda link: link.index, default=None)
