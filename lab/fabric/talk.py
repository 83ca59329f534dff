"""Asks from inside one namespace and answers inside others: who answered, and whom did it see?

Every server answers with its own name and the address and port that the question came from, so one exchange tells which sandbox was
reached and what was translated on the way. UDP answers are as long as their question, so size is tested in both directions. There is
no process: sockets belong to the namespace in which they were made, whoever uses them.
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

PORT = 7000  # ours, because: nothing in a node listens there
TIMEOUT_S = 2.5  # as ping's: a cold neighbour table is not lost traffic
ASK_AGAIN_S = 0.1
IP_MTU_DISCOVER, IP_PMTUDISC_DO, IP_MTU = 10, 2, 14  # linux/in.h
IPV6_MTU_DISCOVER, IPV6_MTU = 23, 24  # linux/in6.h
_SOCKET = {IPV4: (socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_MTU), IPV6: (socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_MTU)}
_FLUSH = {IPV4: "/proc/sys/net/ipv4/route/flush", IPV6: "/proc/sys/net/ipv6/route/flush"}
_BIGGEST_BYTES = 65535


@dataclass(frozen=True)
class Heard:
    """An answer: the server's name, and whom it saw. `by` is "" if the question was refused instead (RST, ICMP)."""

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
        """Listen in a namespace; `address` "" listens on all of IPv4, and then answers only well where there is one.

        Raises: FabricError if the namespace cannot be entered or the address is not in it.
        """
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            sock = self._stack.enter_context(run_inside(netns_path, partial(_server, kind, str(address), port)))
            self._selector.register(sock, selectors.EVENT_READ, name)

    def remove(self, name: str) -> None:
        """End a server, whose sockets would keep its namespace."""
        for key in [key for key in tuple(self._selector.get_map().values()) if key.data == name]:
            sock = self._selector.unregister(key.fileobj).fileobj
            if isinstance(sock, socket.socket):
                sock.close()

    def who_heard(self, question: bytes) -> list[str]:
        """Name the servers that got this datagram, whoever it said it came from; ascending, once per copy."""
        return sorted(name for name, heard in tuple(self._questions) if heard == question)

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
                with suppress(OSError):  # the client went away, or its answer is too large for the path: it hears nothing
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
    """Ask one question; None if nobody answers in time.

    Args:
        size_bytes: of the whole packet, which nobody may fragment; 0 for a small one. UDP only.
    Raises: FabricError if the namespace cannot be entered.
    """
    if tcp:
        return run_inside(netns_path, lambda: _ask_tcp(str(target), port, timeout_s))
    payload_bytes = max(0, size_bytes - family_of(ip_address(target)).headers_bytes)
    try:
        sock = run_inside(netns_path, lambda: _client(str(target), port, source_port))
    except FabricError as exc:
        if isinstance(exc.__cause__, OSError) and exc.__cause__.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
            return None  # no route leads there
        raise
    with sock:
        return _ask_udp(sock, payload_bytes, timeout_s)


def path_mtu(netns_path: str, target: Address | str, *, size_bytes: int, timeout_s: float = TIMEOUT_S) -> int:
    """Send packets of `size_bytes` with DF until the kernel of that namespace learns a smaller path MTU, or the deadline.

    Returns: the MTU of the path to `target` as known afterwards, in bytes. What was learnt before is forgotten first.
    """

    family = family_of(ip_address(target))
    level, _, mtu_option = _SOCKET[family]

    def forget_and_connect() -> socket.socket:
        with open(_FLUSH[family], "w", encoding="ascii") as file:  # noqa: PTH123 - by the thread's namespace
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
