"""Questions from inside one namespace, and servers in others, which answer by UDP and TCP.

Every server answers with its own name, and with the address and port that it sees as the sender. So one exchange shows which sandbox
was reached, and whether addresses were translated on the way. A UDP answer is as long as its question, so both directions are tested
with the same size. No processes are started: a socket belongs to the namespace in which it was made, and any thread can use it.
"""

from __future__ import annotations

import errno
import selectors
import socket
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any

from lab.fabric.errors import FabricError
from lab.fabric.netns import run_inside
from lab.vpc.family import IPV4, IPV6, Family, family_of
from lab.vpc.model import Address

PORT = 7000  # ours: no other program in a node listens on it
TIMEOUT_S = 2.5  # the same as in ping.py, where the reason is
ASK_AGAIN_S = 0.1
IP_MTU_DISCOVER, IP_PMTUDISC_DO, IP_MTU = 10, 2, 14  # linux/in.h
IPV6_MTU_DISCOVER, IPV6_MTU = 23, 24  # linux/in6.h
_SOCKET = {IPV4: (socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_MTU), IPV6: (socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_MTU)}
_FLUSH = {IPV4: "/proc/sys/net/ipv4/route/flush", IPV6: "/proc/sys/net/ipv6/route/flush"}
_BIGGEST_BYTES = 65535


@dataclass(frozen=True)
class Heard:
    """The answer to a question.

    by: the server's name; "" if the question was refused (by RST or ICMP).
    seen_as, seen_port: the sender's address and port as the server saw them.
    """

    by: str
    seen_as: Address | None = None
    seen_port: int = 0


REFUSED = Heard("")


class Servers:
    """Servers on UDP and TCP in any namespaces, served by one thread. Close it, or use it as a context manager."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._stack = ExitStack()
        self._questions: list[tuple[str, bytes]] = []
        self._wake, self._waker = socket.socketpair()
        self._stack.enter_context(self._wake)
        self._stack.enter_context(self._waker)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._serve, name="talk-servers", daemon=True)
        self._thread.start()

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def add(self, name: str, netns_path: str, *, port: int = PORT, address: Address | str = "") -> None:
        """Add a server that listens in a namespace.

        Args:
            address: the address on which it listens; "" for all IPv4 addresses. UDP answers have the right source address with "" only
                if the namespace has a single address.
        Raises: FabricError if the namespace cannot be entered, or the address is not in it.
        """
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            sock = self._stack.enter_context(run_inside(netns_path, partial(_server, kind, str(address), port)))
            self._selector.register(sock, selectors.EVENT_READ, name)

    def remove(self, name: str) -> None:
        """Remove a server. Otherwise its sockets would keep the namespace alive."""
        for key in [key for key in tuple(self._selector.get_map().values()) if key.data == name]:
            sock = self._selector.unregister(key.fileobj).fileobj
            if isinstance(sock, socket.socket):
                sock.close()

    def who_heard(self, question: bytes) -> list[str]:
        """List the servers that received this datagram from any source, in ascending order, and once for each copy received."""
        return sorted(name for name, received in tuple(self._questions) if received == question)

    def close(self) -> None:
        """Close every socket and end the thread; idempotent."""
        with suppress(OSError):
            self._waker.send(b"x")
        self._thread.join()
        self._selector.close()
        self._stack.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                with suppress(OSError):  # the client has gone, or the answer is too large for the path; the client gets no answer
                    self._answer(key.fileobj, key.data)  # type: ignore[arg-type]

    def _answer(self, sock: socket.socket, name: str) -> None:
        if sock.type == socket.SOCK_DGRAM:
            question, peer = sock.recvfrom(_BIGGEST_BYTES)
            if question.strip(b"\0"):
                self._questions.append((name, question))
            sock.sendto(_text(name, peer).ljust(len(question)), peer)
            return
        connection, peer = sock.accept()
        with connection:
            connection.sendall(_text(name, peer))


def ask(
    netns_path: str,
    target: Address | str,
    *,
    port: int = PORT,
    tcp: bool = False,
    source_port: int = 0,
    size_bytes: int = 0,
    timeout_s: float = TIMEOUT_S,
) -> Heard | None:
    """Ask one question from a namespace. Returns: the answer; None if none comes in time.

    Args:
        source_port: the sender's port; 0 lets the kernel choose. UDP only.
        size_bytes: size of the whole IP packet, which must not be fragmented; 0 for a small packet. UDP only.
    Raises: FabricError if the namespace cannot be entered.
    """
    if tcp:
        return run_inside(netns_path, lambda: _ask_tcp(str(target), port, timeout_s))
    payload_bytes = max(0, size_bytes - family_of(ip_address(target)).headers_bytes)
    try:
        sock = run_inside(netns_path, lambda: _client(str(target), port, source_port))
    except FabricError as exc:
        if isinstance(exc.__cause__, OSError) and exc.__cause__.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
            return None  # the namespace has no route to the target
        raise
    with sock:
        return _ask_udp(sock, payload_bytes, timeout_s)


def path_mtu(netns_path: str, target: Address | str, *, size_bytes: int, timeout_s: float = TIMEOUT_S) -> int:
    """Send packets of `size_bytes` that must not be fragmented, until the namespace's kernel learns a smaller path MTU or `timeout_s`
    is over. First the MTUs that it learnt before are flushed.

    Returns: the MTU of the path to `target` that the kernel then has, in bytes.
    """

    family = family_of(ip_address(target))
    level, _, mtu_option = _SOCKET[family]

    def forget_and_connect() -> socket.socket:
        with open(_FLUSH[family], "w", encoding="ascii") as file:  # noqa: PTH123 - it acts on the thread's namespace
            file.write("1")
        return _client(str(target), PORT, 0)

    deadline = time.monotonic() + timeout_s
    with run_inside(netns_path, forget_and_connect) as sock:
        while (mtu := sock.getsockopt(level, mtu_option)) >= size_bytes and time.monotonic() < deadline:
            with suppress(OSError):
                sock.send(bytes(size_bytes - family.headers_bytes))
            sock.settimeout(ASK_AGAIN_S)
            with suppress(OSError):
                sock.recv(_BIGGEST_BYTES)
        return int(mtu)


def _ask_udp(sock: socket.socket, payload_bytes: int, timeout_s: float) -> Heard | None:
    question = bytes(payload_bytes)
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        sock.settimeout(min(ASK_AGAIN_S, left_s))
        try:
            sock.send(question)
            return _parse(sock.recv(_BIGGEST_BYTES))
        except TimeoutError:
            continue
        except OSError as exc:
            if exc.errno not in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EMSGSIZE):
                return REFUSED
            if exc.errno == errno.EMSGSIZE and payload_bytes:
                return None
            time.sleep(min(ASK_AGAIN_S, left_s))
    return None


def _ask_tcp(target: str, port: int, timeout_s: float) -> Heard | None:
    try:
        with socket.create_connection((target, port), timeout_s) as sock:
            return _parse(sock.recv(_BIGGEST_BYTES))
    except ConnectionError:
        return REFUSED
    except OSError:
        return None


def _client(target: str, port: int, source_port: int) -> socket.socket:
    family = family_of(ip_address(target))
    sock = socket.socket(family.number, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        _forbid_fragments(sock, family)
        sock.bind(("", source_port))
        sock.connect((target, port))
    except BaseException:
        sock.close()
        raise
    return sock


def _server(kind: int, address: str, port: int) -> socket.socket:
    family = family_of(ip_address(address)) if address else IPV4
    sock = socket.socket(family.number, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _forbid_fragments(sock, family)
        sock.bind((address, port))
        if kind == socket.SOCK_STREAM:
            sock.listen(64)
    except BaseException:
        sock.close()
        raise
    return sock


def _forbid_fragments(sock: socket.socket, family: Family) -> None:
    level, discover, _ = _SOCKET[family]
    sock.setsockopt(level, discover, IP_PMTUDISC_DO)


def _text(name: str, peer: tuple[Any, ...]) -> bytes:
    return f"{name} {peer[0]} {peer[1]}".encode()


def _parse(answer: bytes) -> Heard | None:
    words = answer.decode().split()
    return Heard(words[0], ip_address(words[1]), int(words[2])) if len(words) == 3 else None
