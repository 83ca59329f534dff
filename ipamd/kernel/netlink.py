"""A netlink socket that sends a batch of messages in one call and pairs every answer with its message.

The kernel handles a batch in order, continues after a refused message, and has queued every answer when the send returns. So a batch
costs one send and no wait. Receives have a timeout nevertheless. Dumps check NLM_F_DUMP_INTR on every message (I11).

A process with NET_ADMIN in a network namespace can send messages to our sockets in that namespace, and a process in a sandbox may have
NET_ADMIN there. So only messages of the kernel (port 0) are accepted. Sockets are connected to the kernel's port: then the kernel
refuses messages of processes before they fill the queue. Messages that a process sends to a multicast group are recognised by their
sender's port. Source: netlink(7); net/netlink/af_netlink.c, netlink_getsockbyportid.

Rejected: pyroute2 for wiring (its import takes 155 ms, a wiring 4.8 ms, and it does not report interrupted dumps; docs/adr/0004).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from ipamd.kernel import uapi
from ipamd.model.errors import KernelDumpError, WiringError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.record import dataclass, field

RECEIVE_TIMEOUT_S = 5
"""How long a receive waits for an answer before it fails. Ours: all answers are queued when the send returns, so an answer that does
not come within five seconds is a fault."""

BUFFER_BYTES = 65536
"""Room for one datagram. The kernel fills datagrams of a dump up to 32 KiB if the reader has room for that (af_netlink.c,
netlink_recvmsg)."""

SHORTER_BYTES = 27 * 1024
"""Room for one datagram of the second socket (`NetlinkSocket.shorter`). If a rule is removed during a dump, the dump may lack another
rule, at the beginning of a datagram (`survey.py`). The datagrams of the two sockets begin at different rules, so the dumps of both
seldom lack the same rule. Ours: in a dump of up to 128 KiB (2,000 rules) each datagram of one socket, except the first, begins at
least 4 KiB away from the beginning of every datagram of the other socket."""

BATCH_MAX = 64
"""Messages per send. Ours: their answers, about 1 KiB each on the receive queue, stay below the default 208 KiB of SO_RCVBUF."""

KERNEL_PORT = 0
"""The kernel's port. Source: netlink(7), nl_pid."""

DUMP_TRIES = 5
"""How many times a dump is attempted. If all attempts are interrupted, it fails. Ours: so many are cheap, because one dump of 110
sandboxes takes a millisecond or two."""

DUMP_PAUSE_S = 0.002
"""Pause after the first interrupted attempt; the pause doubles after each further one. Ours: an ADD changes links and routes for two
milliseconds, so the same ADD would interrupt several attempts without a pause between them."""

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")  # nlattr: length, type
_ERRNO = struct.Struct("=i")
_TIMEVAL = struct.pack("@ll", RECEIVE_TIMEOUT_S, 0)

_DUMP_ENDS = frozenset({uapi.NLMSG_ERROR, uapi.NLMSG_DONE})

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Message:
    """One request to the kernel.

    `step`: names the request in texts of errors.
    `kind`: type of the message.
    `body`: the message without its header.
    `tolerated`: errnos that count as success, because with them the wanted state exists already.
    """

    step: str
    kind: int
    flags: int
    body: bytes
    tolerated: frozenset[int] = frozenset()


@dataclass(slots=True)
class AnswerOutcome:
    """The kernel's answer to one message.

    `errno`: 0 if the kernel carried the message out; the kernel's errno if it refused; -1 for a query that has no answer yet.
    `text`: the kernel's own error text, "" if it sent none.
    `replies`: bodies of the messages that answer a query.
    """

    message: Message
    errno: int
    text: str = ""
    replies: list[bytes] = field(default_factory=list)

    @property
    def is_refused(self) -> bool:
        """Whether the kernel refused the message with an errno that the message does not tolerate."""
        return self.errno != 0 and self.errno not in self.message.tolerated

    @property
    def cause(self) -> str:
        """The errno and the kernel's error text, for messages to people."""
        return describe_errno(self.errno) + (f": {self.text}" if self.text else "")

    def read(self, read: Callable[[bytes], _Read]) -> _Read | None:
        """Parse the first reply with `read`; None if there is none."""
        if self.replies:
            return read(self.replies[0])
        return None


class NetlinkSocket:
    """One socket in the namespace of the thread that makes it.

    Concurrency: one user at a time. After an exception from a method, answers may be left in the queue: close the socket.
    """

    def __init__(self, *, groups: int = 0, protocol: int = uapi.NETLINK_ROUTE, datagram_bytes: int = BUFFER_BYTES) -> None:
        """Open a socket in the namespace of the calling thread.

        Args:
            groups: a bit mask of multicast groups to listen to (RTMGRP_LINK).
            datagram_bytes: the room for one datagram. The largest message, which is smaller than 16 KiB, must fit into it.
        Raises: WiringError.
        """
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        except OSError as exc:
            raise failure(WiringError, FailureCode.NO_SOCKET, cause=describe_errno(exc.errno or 0)) from exc
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
        """A second socket for dumps, see `add_shorter`."""
        self.closed_monotonic_s: float | None = None
        """When this socket was closed; None while it is open."""

    def add_shorter(self) -> None:
        """Open the second socket `shorter` in the calling thread's namespace. Its datagrams end at other entries (see SHORTER_BYTES).

        It is closed together with this socket. Raises: WiringError.
        """
        shorter = NetlinkSocket(datagram_bytes=SHORTER_BYTES)
        try:
            # The kernel chooses the size of a dump's datagrams by the buffer of an earlier receive, so one answer is received first.
            shorter.request([Message("first answer", uapi.NLMSG_NOOP, 0, b"")])
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

    def request(self, messages: Sequence[Message]) -> list[AnswerOutcome]:
        """Send messages, BATCH_MAX at a time. The kernel continues after a refused message.

        Returns: one outcome for each message, in order; a refusal is an outcome, not an exception.
        Raises: WiringError if an answer is lost (timeout, overrun). Then it is not known which messages the kernel carried out.
        """
        outcomes: list[AnswerOutcome] = []
        for start in range(0, len(messages), BATCH_MAX):
            outcomes += self._request_batch(messages[start : start + BATCH_MAX])
        return outcomes

    def _request_batch(self, messages: Sequence[Message]) -> list[AnswerOutcome]:
        first = self._sequence + 1
        step = messages[0].step
        # The kernel reports every refusal, in order, and answers every question. So only the last message requests an acknowledgement.
        # If all did, an ADD would have to read nine more datagrams.
        outcomes = [AnswerOutcome(message, -(message.kind in uapi.QUESTIONS)) for message in messages]
        ends_with_question = messages[-1].kind in uapi.QUESTIONS
        flags = [uapi.NLM_F_REQUEST] * len(messages)
        if not ends_with_question:
            flags[-1] |= uapi.NLM_F_ACK
        self._send(b"".join(map(self._pack, messages, flags)), step)
        while True:
            data = self._receive(step)
            for kind, answer_flags, sequence, _, start, end in split(data):
                if not first <= sequence <= self._sequence:
                    continue
                outcome = outcomes[sequence - first]
                is_error = kind == uapi.NLMSG_ERROR
                if is_error:
                    outcome.errno = -_ERRNO.unpack_from(data, start)[0]
                    outcome.text = _extended_text(data, start, end, answer_flags)
                else:
                    outcome.errno = 0
                    outcome.replies.append(data[start:end])
                if sequence == self._sequence and (is_error or ends_with_question):
                    return outcomes

    def carry_out(self, messages: Sequence[Message], *, operation: str) -> None:
        """Send any number of messages, and continue after a refused one.

        Raises: WiringError for the first refusal, with its step, the errno and the kernel's error text; or as `request`.
        """
        must(self.request(messages), operation)

    def dump(self, message: Message) -> list[bytes]:
        """Read a whole table. If the table changes meanwhile, read it again.

        Returns: the bodies of the entries of one uninterrupted pass. The list is empty if the kernel refuses with an errno that the
            message tolerates.
        Raises: KernelDumpError if every one of DUMP_TRIES passes was interrupted (I11); WiringError if the kernel refuses with any
            other errno.
        """
        passes, is_whole = self.dump_passes(message)
        if is_whole:
            return passes[-1]
        raise _interrupted(message)

    def dump_chosen(self, message: Message, choose: Callable[[bytes], bool]) -> list[bytes]:
        """Read a large table as `dump` does, and keep only the bodies that `choose` accepts, to save memory. Raises: as `dump`."""
        for number in range(DUMP_TRIES):
            entries, is_whole = self._dump_once(message, choose=choose)
            if is_whole:
                return entries
            time.sleep(DUMP_PAUSE_S * 2**number)
        raise _interrupted(message)

    def dump_passes(self, message: Message) -> tuple[list[list[bytes]], bool]:
        """Read a table until one pass is uninterrupted, at most DUMP_TRIES times.

        Returns: the entries of each pass, oldest first, and whether the last pass is whole. Every entry of an interrupted pass was in
            the table. But an entry that is in none of the interrupted passes may have been in the table all the time, so these
            passes do not prove its absence (I11).
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
        """Whether a dump has an entry.

        Reads only one datagram with entries. The rest of the dump stays in the socket, so the caller must close it. Raises:
        WiringError.
        """
        return bool(self._dump_once(message, most=1)[0])

    def wait(self, *, timeout_s: float) -> bool:
        """Wait for a notification of the socket's groups. Returns: False if none came within `timeout_s`.

        A full queue counts as a notification, because the kernel has dropped some. Raises: WiringError.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._socket.settimeout(left_s)
            try:
                if self._socket.recvfrom(BUFFER_BYTES)[1][0] == KERNEL_PORT:
                    return True
            except TimeoutError:
                return False
            except OSError as exc:
                if exc.errno != errno.ENOBUFS:
                    raise failure(WiringError, FailureCode.NOTICE_FAILED, cause=str(exc)) from exc
                return True

    def _dump_once(
        self, message: Message, *, most: int = sys.maxsize, choose: Callable[[bytes], bool] | None = None
    ) -> tuple[list[bytes], bool]:
        """Read a table once, or until `most` entries are read.

        Returns: the entries, and whether the dump was read to its end and the kernel reported no change meanwhile. The second value is
            also False if reading stopped at `most`.
        """
        data = self._pack(message, uapi.NLM_F_REQUEST | uapi.NLM_F_DUMP)
        expected = self._sequence
        self._send(data, message.step)
        entries: list[bytes] = []
        is_interrupted = False
        while len(entries) < most:
            data = self._receive(message.step)
            for kind, flags, sequence, _, start, end in split(data):
                if sequence != expected:
                    continue
                if flags & uapi.NLM_F_DUMP_INTR or kind == uapi.NLMSG_OVERRUN:
                    is_interrupted = True
                if kind in _DUMP_ENDS:
                    _check_dump_end(data, start, end, message)
                    return entries, not is_interrupted
                if kind != uapi.NLMSG_OVERRUN and (choose is None or choose(data[start:end])):
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
            raise failure(WiringError, FailureCode.BATCH_NOT_SENT, step=step, cause=exc) from exc

    def _receive(self, step: str) -> bytes:
        try:
            data, (port, _) = self._socket.recvfrom(self._datagram_bytes)
            while port != KERNEL_PORT:  # a second check: the kernel refuses messages of processes to a connected socket
                data, (port, _) = self._socket.recvfrom(self._datagram_bytes)
            return data
        except OSError as exc:  # EAGAIN after SO_RCVTIMEO, ENOBUFS after an overrun
            raise failure(
                WiringError, FailureCode.ANSWER_LOST, step=step, cause=describe_errno(exc.errno or 0), wait_s=RECEIVE_TIMEOUT_S
            ) from exc


def _check_dump_end(data: bytes, start: int, end: int, message: Message) -> None:
    """Raise WiringError if the message that ends a dump has an errno that the request does not tolerate."""
    code = 0
    if end - start >= _ERRNO.size:
        code = -_ERRNO.unpack_from(data, start)[0]
    if code and code not in message.tolerated:
        raise failure(WiringError, FailureCode.DUMP_REFUSED, step=message.step, cause=describe_errno(code))


def _interrupted(message: Message) -> KernelDumpError:
    return failure(KernelDumpError, FailureCode.DUMP_INTERRUPTED, step=message.step, tries=DUMP_TRIES)


def must(outcomes: Iterable[AnswerOutcome], operation: str) -> None:
    """Raise WiringError for the first refusal, with its step, the errno and the kernel's error text."""
    for outcome in outcomes:
        if outcome.errno != 0 and outcome.is_refused:
            raise failure(WiringError, FailureCode.STEP_REFUSED, work=operation, step=outcome.message.step, cause=outcome.cause)


def attribute(kind: int, payload: bytes) -> bytes:
    """Pack one attribute, padded to four bytes as the kernel requires."""
    return _ATTRIBUTE.pack(4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def text_attribute(kind: int, text: str) -> bytes:
    """Pack one attribute of text, with its terminator."""
    return attribute(kind, text.encode() + b"\0")


def attributes(body: bytes, start: int) -> dict[int, bytes]:
    """Read the attributes of a body from offset `start`.

    Returns: type without flags -> payload. If a type occurs several times, the last payload is returned.
    """
    payloads: dict[int, bytes] = {}
    end = len(body) - 3
    unpack, mask = _ATTRIBUTE.unpack_from, uapi.NLA_TYPE_MASK  # locals, because a link has some forty attributes
    while start < end:
        length, kind = unpack(body, start)
        if length < 4:
            break
        payloads[kind & mask] = body[start + 4 : start + length]
        start += (length + 3) & ~3
    return payloads


def members(payload: bytes) -> Iterator[bytes]:
    """Yield the payload of each member of a netlink list, whose attributes all have the same type."""
    while len(payload) >= 4:
        length, _ = _ATTRIBUTE.unpack_from(payload)
        if length < 4:
            return
        yield payload[4:length]
        payload = payload[(length + 3) & ~3 :]


def describe_errno(code: int) -> str:
    """Format an errno for messages: `File exists (EEXIST)`."""
    return f"{os.strerror(code)} ({errno.errorcode.get(code, str(code))})"


def split(data: bytes) -> list[tuple[int, int, int, int, int, int]]:
    """Cut a datagram into messages: type, flags, sequence, port, and the offsets at which the body starts and ends."""
    parts = []
    # Locals, because a dump has thousands of messages.
    start, size, header, unpack = 0, len(data), _HEADER.size, _HEADER.unpack_from
    while start + header <= size:
        length, kind, flags, sequence, port = unpack(data, start)
        if length < header:
            break
        end = start + length
        parts.append((kind, flags, sequence, port, start + header, end if end < size else size))
        start = (end + 3) & ~3
    return parts


def _extended_text(data: bytes, start: int, end: int, flags: int) -> str:
    """Return the kernel's error text (NLMSGERR_ATTR_MSG), or an empty string."""
    if not flags & uapi.NLM_F_ACK_TLVS:
        return ""
    # The answer has the errno, then the header of the refused message, and also its body, if the kernel did not cap the answer.
    skipped = _HEADER.unpack_from(data, start + 4)[0]
    if flags & uapi.NLM_F_CAPPED:
        skipped = _HEADER.size
    payloads = attributes(data[:end], start + 4 + ((skipped + 3) & ~3))
    return payloads.get(uapi.NLMSGERR_ATTR_MSG, b"").rstrip(b"\0").decode("utf-8", "replace")
