"""What one connection to the daemon's socket may cost: the socket is root's, and its peers are not trusted all the same."""

from __future__ import annotations

import socket

from ipamd.rpc.server import SOCKET_NAME, STREAMS_PER_CONNECTION
from tests.fakes.node import FakeNode
from tests.stories.in_process import listening

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)  # RFC 9113, 3.4, with empty SETTINGS
SETTINGS_MAX_CONCURRENT_STREAMS = 3  # RFC 9113, 6.5.2


def first_settings(node: FakeNode) -> dict[int, int]:
    """What the server announces when a connection is made."""
    with listening(node), socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(node.run_dir / SOCKET_NAME))
        client.sendall(PREFACE)
        received = b""
        while len(received) < 9 or len(received) < 9 + int.from_bytes(received[:3], "big"):
            part = client.recv(4096)
            assert part, "the server closed the connection"
            received += part
    assert received[3] == 4, "SETTINGS come first"
    payload = received[9 : 9 + int.from_bytes(received[:3], "big")]
    return {
        int.from_bytes(payload[at : at + 2], "big"): int.from_bytes(payload[at + 2 : at + 6], "big")
        for at in range(0, len(payload), 6)
    }


def test_a_connection_has_few_streams(node: FakeNode) -> None:
    """Header blocks that expand are bounded by the number of streams that may be open: without a bound, 1.6 GiB were seen."""
    assert first_settings(node)[SETTINGS_MAX_CONCURRENT_STREAMS] == STREAMS_PER_CONNECTION <= 16
