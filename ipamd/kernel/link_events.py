"""Follow the kernel's link notifications, so that an ENI whose link goes away is noticed at once and at no EC2 cost.

Most notifications of a node are about sandboxes' veths, some five for each ADD. They are taken together after SETTLE_S and left out
here, so a burst of ADDs wakes this thread twenty times a second and no more. The kernel drops notifications when the queue is full
and says so once (ENOBUFS): that becomes a MISSED event. Rejected: looking at all links on a clock, which finds the same later.
Source of the format: rtnetlink(7); a link that is moved to another namespace is announced as deleted (net/core/dev.c,
__dev_change_net_namespace).
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable, Iterator

from ipamd.kernel import links, records, uapi
from ipamd.kernel.netlink import NetlinkSocket
from ipamd.kernel.netns import HostNetns
from ipamd.model.ids import MacAddress
from ipamd.model.kernel import LinkEvent, LinkEventKind

SETTLE_S = 0.05
"""Wait after the first notification before all are taken. Ours: short against the second in which an ENI must be frozen."""

AF_UNSPEC = 0

KINDS = {uapi.RTM_NEWLINK: LinkEventKind.SEEN, uapi.RTM_DELLINK: LinkEventKind.GONE}


class LinkEvents:
    """The stream of one namespace; `stop` ends it for good. One reader at a time."""

    def __init__(self, host: HostNetns, *, veth_prefix: str) -> None:
        self._host = host
        self._veth_prefix = veth_prefix
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def follow(self) -> Iterator[LinkEvent]:
        """See `HostNetwork.link_events`."""
        sock = self._host.open_netlink(groups=uapi.RTMGRP_LINK)
        try:
            yield LinkEvent(LinkEventKind.OPENED)
            while not self._is_stopped_after(sock):
                notices, is_overrun = sock.notices()
                if is_overrun:
                    yield LinkEvent(LinkEventKind.MISSED)
                yield from link_events(notices, veth_prefix=self._veth_prefix)
        finally:
            sock.close()

    def stop(self) -> None:
        """End `follow`; idempotent, from any thread."""
        os.eventfd_write(self._stop_fd, 1)

    def _is_stopped_after(self, sock: NetlinkSocket) -> bool:
        """Wait for a notification and then for more; True if the stream was stopped meanwhile."""
        poll = select.poll()
        poll.register(self._stop_fd, select.POLLIN)
        poll.register(sock.fileno(), select.POLLIN)
        if any(fd == self._stop_fd for fd, _ in poll.poll()):
            return True
        poll.unregister(sock.fileno())
        return bool(poll.poll(SETTLE_S * 1000))


def link_events(notices: Iterable[tuple[int, bytes]], *, veth_prefix: str) -> list[LinkEvent]:
    """Make events of notifications: the last one of each MAC, in the order of the MACs' first ones."""
    latest: dict[str, LinkEventKind] = {}
    for message_kind, body in notices:
        # A bridge announces a port that leaves it as RTM_DELLINK of family AF_BRIDGE: the link itself is still there.
        if message_kind not in KINDS or not body or body[0] != AF_UNSPEC:
            continue
        link = records.read_link(body)
        if link.mac and links.may_be_eni(link, veth_prefix=veth_prefix):
            latest[link.mac] = KINDS[message_kind]
    return [LinkEvent(kind, MacAddress(mac)) for mac, kind in latest.items()]
