"""Only the kernel is believed: any process with NET_ADMIN in a namespace can send to the netlink sockets there, a sandbox's too."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from ipamd.kernel import messages, netns, uapi
from ipamd.kernel.netlink import NetlinkSocket
from ipamd.kernel.notice_socket import NoticeSocket
from tests.netns.conftest import Space

pytestmark = pytest.mark.privileged

HEADER = struct.Struct("=IHHII")
FORGED_LINK = struct.pack("=BBHiII", 0, 0, 1, 4711, 0, 0)
SUCCESS = struct.pack("=i", 0) + b"\0" * 16


@pytest.fixture
def space() -> Iterator[Space]:
    """A namespace in which somebody else has NET_ADMIN."""
    made = Space()
    yield made
    made.close()


def forge(space: Space, *, kind: int, body: bytes, sequence: int, port: int = 0, groups: int = 0, count: int = 1) -> None:
    """Send messages from user space to a port, or to groups. The kernel may refuse to deliver them, which is as good."""

    def send() -> None:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, uapi.NETLINK_ROUTE) as sock:
            sock.setblocking(False)
            for _ in range(count):
                try:
                    sock.sendto(HEADER.pack(HEADER.size + len(body), kind, 0, sequence, 0) + body, (port, groups))
                except (ConnectionRefusedError, BlockingIOError):
                    return

    space.call(send)


def test_a_forged_entry_is_in_no_dump(space: Space) -> None:
    """It has the right sequence number and lies in the queue before the kernel's own entries."""
    sock = space.call(NetlinkSocket)
    try:
        links = sock.dump(messages.dump_links())
        forge(space, kind=uapi.RTM_NEWLINK, body=FORGED_LINK, sequence=2, port=sock.port)
        assert sock.dump(messages.dump_links()) == links
    finally:
        sock.close()


def test_a_forged_end_ends_no_dump(space: Space) -> None:
    """A dump that somebody else ends would be short, and absence would be concluded from it (I11)."""
    sock = space.call(NetlinkSocket)
    try:
        links = sock.dump(messages.dump_links())
        forge(space, kind=uapi.NLMSG_DONE, body=SUCCESS[:4], sequence=2, port=sock.port)
        assert sock.dump(messages.dump_links()) == links
    finally:
        sock.close()


def test_a_forged_success_does_not_hide_a_refusal(space: Space) -> None:
    """The kernel refuses to delete a link that is not there, whatever else says that it was done."""
    sock = space.call(NetlinkSocket)
    try:
        sock.dump(messages.dump_links())
        forge(space, kind=uapi.NLMSG_ERROR, body=SUCCESS, sequence=2, port=sock.port)
        (outcome,) = sock.request([messages.delete_link(4711, step="delete a link that is not there")])
        assert outcome.errno != 0
    finally:
        sock.close()


def test_a_flood_does_not_take_the_room_of_answers(space: Space) -> None:
    """Ten thousand messages to our port, more than its queue holds: the kernel's answer still finds room."""
    sock = space.call(NetlinkSocket)
    try:
        links = sock.dump(messages.dump_links())
        forge(space, kind=uapi.RTM_NEWLINK, body=FORGED_LINK, sequence=2, port=sock.port, count=10_000)
        assert sock.dump(messages.dump_links()) == links
    finally:
        sock.close()


def test_a_forged_notification_is_passed_over(space: Space) -> None:
    """An ENI whose link only seems to go away is not frozen; what the kernel announces afterwards is told."""
    sock = space.call(NoticeSocket, uapi.NETLINK_ROUTE)
    try:
        forge(space, kind=uapi.RTM_DELLINK, body=FORGED_LINK, sequence=0, groups=uapi.RTMGRP_LINK)
        assert sock.take() == ([], False)
        space.sh("ip link add one type bridge")
        assert sock.take()[0]
    finally:
        sock.close()


def test_a_closed_sockets_port_is_ours_for_a_moment_only(world, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last notifications come after it is closed; later another process may have the port, and its changes are not ours."""
    host = world.netns
    with host.netlink() as kept:
        for _ in range(50):
            sock = host.open_netlink()
            sock.close()
            assert host.is_own(sock.port)
        monkeypatch.setattr(netns, "PORT_REMEMBERED_S", 0.0)
        assert not host.is_own(sock.port)
        host.open_netlink().close()
        assert host.is_own(kept.port)
        assert len(host._ports) == 2
