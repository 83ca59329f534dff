"""Find out from inside a namespace which addresses answer: ICMP echo to many targets at once, in well under a second.

A thread enters the namespace and sends by a raw socket, so no process is started. A target that has not answered is asked again every
100 ms until the deadline, because the first echo may be late while the kernel looks up neighbours.
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
from ipaddress import ip_address

from lab.fabric.errors import FabricError
from lab.fabric.netns import enter_netns
from lab.vpc.model import Address

ECHO_REQUEST, ECHO_REPLY = 8, 0  # RFC 792
ECHO_REQUEST_6, ECHO_REPLY_6 = 128, 129  # RFC 4443
_SOCKETS = {4: (socket.AF_INET, socket.IPPROTO_ICMP), 6: (socket.AF_INET6, socket.IPPROTO_ICMPV6)}
ASK_AGAIN_S = 0.1
TIMEOUT_S = 2.5  # ours: the kernel repeats a lost ARP request after a second, so a target that is silent for 2.5 s is unreachable
GRACE_S = 5.0  # wait beyond the deadline, because a thread may be late on a busy machine


def ping(
    netns_path: str, *, targets: Iterable[Address | str], timeout_s: float = TIMEOUT_S, source: Address | None = None
) -> Mapping[Address, bool]:
    """Send echo requests to the targets. Returns: target -> whether it answered within `timeout_s`. It returns early if all did.

    Args:
        netns_path: the path by which this process opens the sender's namespace (`/proc/PID/ns/net` or `/proc/PID/root/run/netns/X`).
        targets: any number of addresses; each is asked once, even if it is given twice.
        source: the source address, which must be local in the namespace and of the targets' family; None lets the kernel choose.
    Raises: FabricError if the namespace cannot be entered, or if the source is not an address in it.
    """
    asked = {ip_address(target) for target in targets}
    answered: set[Address] = set()
    failure: list[OSError] = []
    deadline = time.monotonic() + timeout_s

    def ask(family: int, protocol: int, family_targets: set[Address]) -> None:
        try:
            enter_netns(netns_path)
            with socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as sock:
                sock.bind((str(source) if source else "", 0))
                _exchange(sock, family_targets, answered, deadline=deadline)
        except OSError as exc:
            failure.append(exc)

    threads = [
        threading.Thread(target=ask, args=(*_SOCKETS[version], family_targets), name="ping", daemon=True)
        for version in _SOCKETS
        if (family_targets := {target for target in asked if target.version == version})
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline + GRACE_S - time.monotonic())
    if failure:
        raise FabricError(f"cannot ping from {netns_path}: {failure[0]}") from failure[0]
    return {target: target in answered for target in sorted(asked, key=lambda one: (one.version, int(one)))}


def _exchange(sock: socket.socket, asked: set[Address], answered: set[Address], *, deadline: float) -> None:
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
            packet, sender = sock.recvfrom(2048)
            if _is_reply(packet, identifier, is_ipv6=sock.family is socket.AF_INET6):
                answered.add(ip_address(sender[0]))


def _send(sock: socket.socket, target: Address, identifier: int, sequence: int) -> None:
    header = struct.pack("!BBHHH", ECHO_REQUEST, 0, 0, identifier, sequence)
    header = struct.pack("!BBHHH", ECHO_REQUEST, 0, _checksum(header), identifier, sequence)
    if target.version == 6:
        header = struct.pack("!BBHHH", ECHO_REQUEST_6, 0, 0, identifier, sequence)  # the kernel fills in the checksum
    with suppress(OSError):  # no route, or a neighbour that does not answer; the target counts as silent
        sock.sendto(header, (str(target), 0))


def _is_reply(packet: bytes, identifier: int, *, is_ipv6: bool) -> bool:
    payload = packet if is_ipv6 else packet[(packet[0] & 15) * 4 :]  # raw sockets of IPv6 return packets without the IP header
    reply = ECHO_REPLY_6 if is_ipv6 else ECHO_REPLY
    return len(payload) >= 8 and payload[0] == reply and payload[4:6] == identifier.to_bytes(2, "big")


def _checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071) of data of even length."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF
