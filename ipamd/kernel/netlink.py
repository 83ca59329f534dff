"""A route-netlink socket that sends a batch in one call and pairs every answer with its message.

The kernel handles a batch in order, continues after a refused message, and has queued every answer when the send returns, so a
batch costs one send and no wait. Receives have a timeout all the same. Dumps check NLM_F_DUMP_INTR on every message (I11).
Whoever has NET_ADMIN in a namespace can send to the sockets there, and a sandbox may have it in its own: only messages of the kernel
(port 0) are taken. Sockets are connected to it, so the kernel refuses the others before they take the queue's room; what user space
sends to a multicast group is told by its sender. Source: netlink(7); net/netlink/af_netlink.c, netlink_getsockbyportid.
Rejected: pyroute2 on this path (155 ms of import, 4.8 ms per wiring, does not report interrupted dumps; docs/adr/0004).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from ipamd.kernel import uapi
from ipamd.model.errors import KernelDumpError, WiringError
from ipamd.model.record import dataclass, field

RECEIVE_TIMEOUT_S = 5
"""Ours: answers are queued when the send returns; five seconds without one mean a fault."""

BUFFER_BYTES = 65536
"""One datagram. The kernel fills dump datagrams up to 32 KiB for a reader with so much room (af_netlink.c, netlink_recvmsg)."""

SHORTER_BYTES = 27 * 1024
"""The datagrams of a second socket that reads what the first reads, cut at other places. Ours: up to 128 KiB of entries, 2,000 rules,
no cut is within 4 KiB of one of the first socket's."""

BATCH_MAX = 64
"""Messages per send. Ours: their answers, about 1 KiB each on the receive queue, stay below the default 208 KiB of SO_RCVBUF."""

KERNEL_PORT = 0
"""Source: netlink(7), nl_pid of the kernel."""

DUMP_TRIES = 5
"""Attempts of a dump that is interrupted each time. Ours: one dump of 110 sandboxes takes a millisecond or two."""

DUMP_PAUSE_S = 0.002
"""Pause after an interrupted attempt, twice as long after each. Ours: an ADD changes links and routes for two milliseconds, so
attempts without a pause between them are interrupted by the same one."""

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")  # nlattr: length, type
_ERRNO = struct.Struct("=i")
_TIMEVAL = struct.pack("@ll", RECEIVE_TIMEOUT_S, 0)

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Message:
    """One request. `step` names it in messages. Errnos in `tolerated` count as success: the wanted state exists already."""

    step: str
    kind: int
    flags: int
    body: bytes
    tolerated: frozenset[int] = frozenset()


@dataclass(slots=True)
class Outcome:
    """The kernel's answer to one message: 0 or an errno, its extended text, and the replies to a query. -1: a query without answer."""

    message: Message
    errno: int
    text: str = ""
    replies: list[bytes] = field(default_factory=list)

    @property
    def is_refused(self) -> bool:
        """Whether the kernel refused the message with an errno that it does not tolerate."""
        return self.errno != 0 and self.errno not in self.message.tolerated

    @property
    def cause(self) -> str:
        """The errno and the kernel's extended text, for messages."""
        return describe_errno(self.errno) + (f": {self.text}" if self.text else "")

    def read(self, read: Callable[[bytes], _Read]) -> _Read | None:
        """The first reply, read; None without one."""
        return read(self.replies[0]) if self.replies else None


class NetlinkSocket:
    """One socket in the namespace of the thread that makes it.

    Concurrency: one user at a time. After any exception from a method requests and answers no longer match: close it.
    """

    def __init__(self, *, groups: int = 0, protocol: int = uapi.NETLINK_ROUTE, datagram_bytes: int = BUFFER_BYTES) -> None:
        """Open it.

        Args:
            groups: a bit mask of multicast groups to listen to (RTMGRP_LINK).
            datagram_bytes: the room for one datagram, at least that of the largest message, which is below 16 KiB.
        Raises: WiringError.
        """
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        except OSError as exc:
            raise WiringError("no netlink socket could be opened", details=f"{describe_errno(exc.errno or 0)}; retry") from exc
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL)
            for option in (uapi.NETLINK_CAP_ACK, uapi.NETLINK_EXT_ACK, uapi.NETLINK_GET_STRICT_CHK):
                self._socket.setsockopt(uapi.SOL_NETLINK, option, 1)
            self._socket.bind((0, groups))
            self.port: int = self._socket.getsockname()[0]
            self._socket.connect((KERNEL_PORT, 0))
        except BaseException:
            self._socket.close()
            raise
        self._sequence = 0
        self._datagram_bytes = datagram_bytes
        self.shorter: NetlinkSocket | None = None
        self.closed_monotonic_s: float | None = None

    def add_shorter(self) -> None:
        """Open a second socket, `shorter`, in the calling thread's namespace, whose dumps are cut at other places; closed with this.

        Raises: WiringError.
        """
        shorter = NetlinkSocket(datagram_bytes=SHORTER_BYTES)
        try:
            shorter.request([Message("first answer", uapi.NLMSG_NOOP, 0, b"")])  # the kernel learns the room from a receive
        except BaseException:
            shorter.close()
            raise
        self.shorter = shorter

    def close(self) -> None:
        """Release the descriptors; idempotent."""
        if self.shorter is not None:
            self.shorter.close()
        self._socket.close()
        self.closed_monotonic_s = self.closed_monotonic_s or time.monotonic()

    def request(self, messages: Sequence[Message]) -> list[Outcome]:
        """Send messages, BATCH_MAX at a time, and collect one outcome each, in order; the kernel continues after one that it refused.

        Returns: as many outcomes as messages; a refusal is an outcome, not an exception.
        Raises: WiringError if an answer is lost (timeout, overrun): what was done is then unknown.
        """
        starts = range(0, len(messages), BATCH_MAX)
        return [outcome for start in starts for outcome in self._request_batch(messages[start : start + BATCH_MAX])]

    def _request_batch(self, messages: Sequence[Message]) -> list[Outcome]:
        first, step = self._sequence + 1, messages[0].step
        # A refusal is told unasked, in order, and a question is answered: only the last message must say that it was reached. Each
        # further acknowledgement would be a datagram to read, nine in an ADD.
        outcomes = [Outcome(one, -(one.kind in uapi.QUESTIONS)) for one in messages]
        asks = messages[-1].kind in uapi.QUESTIONS
        flags = [uapi.NLM_F_REQUEST] * len(messages)
        flags[-1] |= uapi.NLM_F_ACK * (not asks)
        self._send(b"".join(map(self._pack, messages, flags)), step)
        while True:
            data = self._receive(step)
            for kind, found, sequence, _, start, end in split(data):
                if not first <= sequence <= self._sequence:
                    continue
                outcome, is_error = outcomes[sequence - first], kind == uapi.NLMSG_ERROR
                if is_error:
                    outcome.errno = -_ERRNO.unpack_from(data, start)[0]
                    outcome.text = _extended_text(data, start, end, found)
                else:
                    outcome.errno = 0
                    outcome.replies.append(data[start:end])
                if sequence == self._sequence and (is_error or asks):
                    return outcomes

    def carry_out(self, messages: Sequence[Message], *, what: str) -> None:
        """Send any number of messages, and continue after a refused one.

        Raises: WiringError for the first refusal, naming its step, the errno and the kernel's own words; or as `request`.
        """
        must(self.request(messages), what)

    def dump(self, message: Message) -> list[bytes]:
        """Read a whole table, again if it changed meanwhile.

        Returns: the bodies of n >= 0 entries, of one uninterrupted pass.
        Raises: KernelDumpError if every one of DUMP_TRIES passes was interrupted (I11); WiringError if the kernel refuses with an
            errno that the message does not tolerate (one that it does means an empty table).
        """
        passes, is_whole = self.dump_passes(message)
        if is_whole:
            return passes[-1]
        raise KernelDumpError(
            f"{message.step} was interrupted {DUMP_TRIES} times",
            details="links, routes or rules of the node change without pause; nothing was concluded; it is tried again",
        )

    def dump_passes(self, message: Message) -> tuple[list[list[bytes]], bool]:
        """Read a table until one pass is uninterrupted, at most DUMP_TRIES times.

        Returns: the entries of each pass, oldest first, and whether the last is whole. An entry of a torn pass was in the table;
        one that no torn pass has may have been there all the time (I11).
        Raises: WiringError, as `dump`.
        """
        passes: list[list[bytes]] = []
        while True:
            entries, is_whole = self._dump_once(message)
            passes.append(entries)
            if is_whole or len(passes) == DUMP_TRIES:
                return passes, is_whole
            time.sleep(DUMP_PAUSE_S * 2 ** (len(passes) - 1))

    def has_any(self, message: Message) -> bool:
        """Whether a dump has an entry. The rest is not read, so the socket must be closed. Raises: WiringError."""
        return bool(self._dump_once(message, most=1)[0])

    def wait(self, *, timeout_s: float) -> bool:
        """Wait for a notification of the groups; False when `timeout_s` passed. An overrun counts as one."""
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left_s)
            try:
                if self._socket.recvfrom(BUFFER_BYTES)[1][0] == KERNEL_PORT:
                    return True
            except TimeoutError:
                return False
            except OSError as exc:
                if exc.errno != errno.ENOBUFS:
                    raise WiringError("waiting for the kernel's notice failed", details=str(exc)) from exc
                return True
        return False

    def _dump_once(self, message: Message, *, most: int | None = None) -> tuple[list[bytes], bool]:
        data = self._pack(message, uapi.NLM_F_REQUEST | uapi.NLM_F_DUMP)
        expected = self._sequence
        self._send(data, message.step)
        entries: list[bytes] = []
        interrupted = False
        while most is None or len(entries) < most:
            data = self._receive(message.step)
            for kind, flags, sequence, _, start, end in split(data):
                if sequence != expected:
                    continue
                interrupted = interrupted or bool(flags & uapi.NLM_F_DUMP_INTR)
                if kind in {uapi.NLMSG_ERROR, uapi.NLMSG_DONE}:
                    code = -_ERRNO.unpack_from(data, start)[0] if end - start >= _ERRNO.size else 0
                    if code and code not in message.tolerated:
                        raise WiringError(f"{message.step} failed", details=f"the kernel answered {describe_errno(code)}")
                    return entries, not interrupted
                if kind == uapi.NLMSG_OVERRUN:
                    interrupted = True
                else:
                    entries.append(data[start:end])
        return entries, False

    def _pack(self, message: Message, flags: int) -> bytes:
        self._sequence += 1
        size = _HEADER.size + len(message.body)
        return _HEADER.pack(size, message.kind, message.flags | flags, self._sequence, 0) + message.body

    def _send(self, data: bytes, step: str) -> None:
        try:
            self._socket.sendto(data, (0, 0))
        except OSError as exc:
            raise WiringError(f"{step}: the batch was not sent", details=f"{exc}; it is tried again") from exc

    def _receive(self, step: str) -> bytes:
        try:
            data, (port, _) = self._socket.recvfrom(self._datagram_bytes)
            while port != KERNEL_PORT:  # only a connected socket asks, so the kernel has refused what others send: this is a net
                data, (port, _) = self._socket.recvfrom(self._datagram_bytes)
            return data
        except OSError as exc:  # EAGAIN after SO_RCVTIMEO, ENOBUFS after an overrun
            raise WiringError(
                f"{step}: the kernel's answer was lost",
                details=f"{describe_errno(exc.errno or 0)} after at most {RECEIVE_TIMEOUT_S} s; it is tried again",
            ) from exc


def must(outcomes: Iterable[Outcome], what: str) -> None:
    """Raise the first refusal. Raises: WiringError naming the step, the errno and the kernel's own words."""
    for one in outcomes:
        if one.is_refused:
            raise WiringError(f"{what}: {one.message.step} failed", details=one.cause)


def attribute(kind: int, payload: bytes) -> bytes:
    """Pack one attribute, padded to four bytes as the kernel requires."""
    return _ATTRIBUTE.pack(4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def text_attribute(kind: int, text: str) -> bytes:
    """Pack one attribute of text, with its terminator."""
    return attribute(kind, text.encode() + b"\0")


def attributes(body: bytes, start: int) -> dict[int, bytes]:
    """Read the attributes of a body from offset `start`: type without flags -> payload; the last of a type wins."""
    found: dict[int, bytes] = {}
    end = len(body) - 3
    unpack, mask = _ATTRIBUTE.unpack_from, uapi.NLA_TYPE_MASK  # a link has some forty: looked up once, not forty times
    while start < end:
        length, kind = unpack(body, start)
        if length < 4:
            break
        found[kind & mask] = body[start + 4 : start + length]
        start += (length + 3) & ~3
    return found


def members(payload: bytes) -> Iterator[bytes]:
    """Read a list, whose attributes are all of one type."""
    while len(payload) >= 4 and (length := _ATTRIBUTE.unpack_from(payload)[0]) >= 4:
        yield payload[4:length]
        payload = payload[(length + 3) & ~3 :]


def describe_errno(code: int) -> str:
    """Format an errno for messages: `File exists (EEXIST)`."""
    return f"{os.strerror(code)} ({errno.errorcode.get(code, str(code))})"


def split(data: bytes) -> list[tuple[int, int, int, int, int, int]]:
    """Cut a datagram into messages: type, flags, sequence, port, and where the body starts and ends."""
    found = []
    start, size, header, unpack = 0, len(data), _HEADER.size, _HEADER.unpack_from  # a dump has thousands: looked up once
    while start + header <= size:
        length, kind, flags, sequence, port = unpack(data, start)
        if length < header:
            break
        end = start + length
        found.append((kind, flags, sequence, port, start + header, end if end < size else size))
        start = (end + 3) & ~3
    return found


def _extended_text(data: bytes, start: int, end: int, flags: int) -> str:
    """Read the kernel's own words of an error message (NLMSGERR_ATTR_MSG), or an empty string."""
    if not flags & uapi.NLM_F_ACK_TLVS:
        return ""
    # errno, then the header of the refused message, and its body too unless it was capped
    skipped = _HEADER.size if flags & uapi.NLM_F_CAPPED else _HEADER.unpack_from(data, start + 4)[0]
    found = attributes(data[:end], start + 4 + ((skipped + 3) & ~3))
    return found.get(uapi.NLMSGERR_ATTR_MSG, b"").rstrip(b"\0").decode("utf-8", "replace")
