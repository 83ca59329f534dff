"""Bytes on the daemon's socket: random and damaged HTTP/2 against grpcio's server; good requests are answered all the time."""

from __future__ import annotations

import contextlib
import socket
import struct
from random import Random

from fuzz import frames
from fuzz.daemon_node import EXEC, STATUS, DaemonNode
from fuzz.mutation import noise
from fuzz.target import Case, Target, blob
from fuzz.targets.daemon_requests import envelope

LINGER = struct.pack("ii", 1, 0)
READ_S = 0.05
"""How long an answer is waited for. Ours: a damaged conversation may deserve none."""


class DaemonFrames(Target):
    """A case: `bytes` to send, `end`: "close", "reset" or "read" (until the server ends it or is silent)."""

    memory_bytes = 128 << 20
    batch = 50

    def __init__(self) -> None:
        self._daemon = DaemonNode()

    def generate(self, random: Random) -> Case:
        return {"bytes": _conversation(random), "end": random.choice(("close", "close", "reset", "read"))}

    def run(self, case: Case) -> None:
        try:
            with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
                connection.settimeout(2.0)
                connection.connect(self._daemon.socket)
                connection.sendall(blob(case["bytes"]))
                if case["end"] == "reset":
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
                connection.settimeout(READ_S)
                while case["end"] == "read" and connection.recv(1 << 16):
                    continue
        finally:
            self._daemon.clean_up()

    def check(self) -> None:
        self._daemon.check()

    def close(self) -> None:
        self._daemon.close()


def _conversation(random: Random) -> bytes | list[tuple[bytes, int]]:
    kind = random.random()
    if kind < 0.06:
        return noise(random, 3000)
    start = [frames.PREFACE, frames.frame(frames.SETTINGS, 0, 0, b"")]
    if kind < 0.07:  # a flood of one frame
        return [(b"".join(start), 1), (frames.any_frame(random), random.choice((100, 3000)))]
    calls = []
    for number in range(random.choice((1, 1, 2, 5, 30))):
        method = random.choice((EXEC, EXEC, STATUS, "/x/y", "", "/" + "x" * 100)).encode()
        calls += frames.request(method, envelope(random, f"s{random.randrange(100_000)}"), stream=1 + 2 * number)
    talk = [*start, *calls]
    return b"".join(talk) if kind < 0.12 else frames.damaged(random, talk)


def make() -> Target:
    """Make the target."""
    return DaemonFrames()
