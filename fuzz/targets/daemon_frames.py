"""Bytes on a socket of the daemon: random and damaged HTTP/2 against grpcio's server; good requests are answered all the time."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Sequence
from random import Random

from fuzz import frames
from fuzz.daemon_node import EXEC, STATUS, DaemonNode
from fuzz.mutation import noise
from fuzz.target import Case, Target, Violation, blob
from fuzz.targets.daemon_requests import envelope

LINGER = struct.pack("ii", 1, 0)
READ_S = 0.05
"""How long an answer is waited for. Ours: a damaged conversation may deserve none."""

REFUSE_S = 20.0
"""How long connections beyond the bound may stay. Ours: the server refuses them when it accepts them; the rest is a busy machine."""


class DaemonFrames(Target):
    """A case: `bytes` to send, `end`: "close", "reset" or "read" (until the server ends it or is silent).

    Where they are there: `connections`, so many at once send all this and are held before they end; `streams`, a list of
    (header block, count), each opened on streams of their own after the bytes, which uses numbers above those that a conversation has.
    """

    memory_bytes = 128 << 20
    batch = 50

    def __init__(self, daemon: DaemonNode, *, methods: Sequence[str], request: Callable[[Random, str], bytes]) -> None:
        """`request` makes a request of a sandbox's name; the last of the usual `methods` need not fit it."""
        self._daemon = daemon
        self._methods = methods
        self._request = request

    def generate(self, random: Random) -> Case:
        case: Case = {"bytes": self._conversation(random), "end": random.choice(("close", "close", "reset", "read"))}
        return {**case, "connections": random.choice((3, 20))} if random.random() < 0.05 else case

    def run(self, case: Case) -> None:
        try:
            with contextlib.ExitStack() as stack:
                count = case.get("connections", 1)
                opened = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(count)]
                for connection in opened:
                    with contextlib.suppress(OSError):
                        self._begin(connection, case)
                self._judge_held(opened)
                for connection in opened:
                    with contextlib.suppress(OSError):
                        self._end(connection, case)
        finally:
            self._daemon.clean_up()

    def _begin(self, connection: socket.socket, case: Case) -> None:
        connection.settimeout(2.0)
        connection.connect(self._daemon.socket)
        blocks = [block for block, count in case.get("streams", ()) for _ in range(count)]
        opened = [frames.frame(frames.HEADERS, frames.END_HEADERS, 101 + 2 * at, block) for at, block in enumerate(blocks)]
        connection.sendall(blob(case["bytes"]) + b"".join(opened))

    def _judge_held(self, opened: Sequence[socket.socket]) -> None:
        """Raises: Violation if the server holds more connections than it may."""
        most, deadline_s = self._daemon.connections_max, time.monotonic() + REFUSE_S
        while len(opened) > most and (held := sum(map(_is_open, opened))) > most:
            if time.monotonic() > deadline_s:
                raise Violation("connections", f"{held} are held, {most} are allowed")
            time.sleep(READ_S)

    def _end(self, connection: socket.socket, case: Case) -> None:
        if case["end"] == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        connection.settimeout(READ_S)
        while case["end"] == "read" and connection.recv(1 << 16):
            continue

    def check(self) -> None:
        self._daemon.check()

    def close(self) -> None:
        self._daemon.close()

    def _conversation(self, random: Random) -> bytes | list[tuple[bytes, int]]:
        kind = random.random()
        if kind < 0.06:
            return noise(random, 3000)
        start = [frames.PREFACE, frames.frame(frames.SETTINGS, 0, 0, b"")]
        if kind < 0.07:  # a flood of one frame
            return [(b"".join(start), 1), (frames.any_frame(random), random.choice((100, 3000)))]
        calls = []
        for number in range(random.choice((1, 1, 2, 5, 30))):
            method = random.choice((*self._methods, "/x/y", "", "/" + "x" * 100)).encode()
            calls += frames.request(method, self._request(random, f"s{random.randrange(100_000)}"), stream=1 + 2 * number)
        talk = [*start, *calls]
        return b"".join(talk) if kind < 0.12 else frames.damaged(random, talk)


def _is_open(connection: socket.socket) -> bool:
    """Whether the server has not closed it; what it sent before is thrown away."""
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            continue
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def make() -> Target:
    """Make the target."""
    return DaemonFrames(DaemonNode(), methods=(EXEC, EXEC, STATUS), request=envelope)
