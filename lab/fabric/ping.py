"""Ask from inside a namespace which addresses answer: ICMP echo to many targets at once, in well under a second.

A thread made for one question enters the namespace, opens a raw socket and is done; no `ping` binary, no process. A
target that has not answered is asked again every 100 ms until the deadline: the first echo through cold neighbour
tables may be late, and what stays silent to the deadline is lost traffic.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from ipaddress import IPv4Address

from lab.fabric.errors import FabricError
from lab.fabric.netns import enter_netns

ECHO_REQUEST, ECHO_REPLY = 8, 0  # RFC 792
ASK_AGAIN_S = 0.1
TIMEOUT_S = (
    2.5  # ours, because: one lost ARP request costs the kernel a second (lab/fabric/port.py), and that is not lost traffic
)
GRACE_S = 5.0  # beyond the deadline, for a thread on a busy machine


def ping(
    netns_path: str, *, targets: Iterable[IPv4Address | str], timeout_s: float = TIMEOUT_S, source: IPv4Address | None = None
) -> Mapping[IPv4Address, bool]:
    """Tell of each target whether it answered within `timeout_s`; returns earlier when all did.

    Args:
        netns_path: opens the asking namespace from this process (`/proc/PID/ns/net` or `/proc/PID/root/run/netns/X`).
        targets: n >= 0 addresses; duplicates are asked once.
        source: speak as this address (it must be local there); None leaves the choice to the kernel.
    Raises: FabricError if the namespace cannot be entered or the source is not an address in it.
    """
    asked = {IPv4Address(target) for target in targets}
    answered: set[IPv4Address] = set()
    failure: list[OSError] = []

    def ask() -> None:
        try:
            enter_netns(netns_path)
            with socket.socket(socket.AF_INET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_ICMP) as sock:
                sock.bind((str(source) if source else "", 0))
                _exchange(sock, asked, answered, deadline=time.monotonic() + timeout_s)
        except OSError as exc:
            failure.append(exc)

    thread = threading.Thread(target=ask, name="ping", daemon=True)
    thread.start()
    thread.join(timeout_s + GRACE_S)
    if failure:
        raise FabricError(f"cannot ping from {netns_path}: {failure[0]}") from failure[0]
    return {target: target in answered for target in sorted(asked)}


def _exchange(sock: socket.socket, asked: set[IPv4Address], answered: set[IPv4Address], *, deadline: float) -> None:
    identifier = int.from_bytes(os.urandom(2), "big")
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    sequence = 0
    ask_again_at = 0.0
    while asked - answered and (now := time.monotonic()) < deadline:
        if now >= ask_again_at:
            sequence += 1
            for target in asked - answered:
                _send(sock, target, identifier, sequence)
            ask_again_at = now + ASK_AGAIN_S
        wait_s = max(0.0, min(deadline, ask_again_at) - time.monotonic())
        if poll.poll(wait_s * 1000):
            packet, (sender, _) = sock.recvfrom(2048)
            if _is_reply(packet, identifier):
                answered.add(IPv4Address(sender))


def _send(sock: socket.socket, target: IPv4Address, identifier: int, sequence: int) -> None:
    header = struct.pack("!BBHHH", ECHO_REQUEST, 0, 0, identifier, sequence)
    header = struct.pack("!BBHHH", ECHO_REQUEST, 0, _checksum(header), identifier, sequence)
    with suppress(OSError):  # no route, or the neighbour is known not to answer: the same as silence
        sock.sendto(header, (str(target), 0))


def _is_reply(packet: bytes, identifier: int) -> bool:
    payload = packet[(packet[0] & 15) * 4 :]
    return len(payload) >= 8 and payload[0] == ECHO_REPLY and payload[4:6] == identifier.to_bytes(2, "big")


def _checksum(data: bytes) -> int:
    """RFC 1071, for data of even length."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF
