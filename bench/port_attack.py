"""A hostile pod at the metrics port: it holds connections, and opens more, for a bounded time.

    python -m bench.port_attack HOST PORT --held 1000 --per-second 200 --seconds 10

It runs in a sandbox's namespace. It prints `attacking` once the held connections have been opened, and at the end how many new ones
it made. Of the new ones every second asks for the page, and all are aborted with the next one (RST), so that they need no
descriptors and no ports.
"""

from __future__ import annotations

import argparse
import resource
import socket
import struct
import time
from contextlib import suppress

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n"
ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER on, 0 s: close() sends RST. Source: socket(7)."""

HELD_MAX = 2000
PER_SECOND_MAX = 1000
SECONDS_MAX = 120.0
"""Bounds of what it does, whatever it is told: it is a load in a test."""


def open_one(target: tuple[str, int]) -> socket.socket:
    """Begin a connection without waiting for it."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
    sock.connect_ex(target)
    return sock


def attack(target: tuple[str, int], *, held: int, per_second: int, seconds: float) -> int:
    """Hold connections and open `per_second` more; returns how many more."""
    kept = []
    for _ in range(held):
        kept.append(open_one(target))
        time.sleep(0.001)  # the kernel's queue of the listener has room again
    print("attacking", flush=True)
    began, count, last = time.monotonic(), 0, open_one(target)
    while (elapsed_s := time.monotonic() - began) < seconds:
        while count < elapsed_s * per_second:
            with suppress(OSError):
                if count % 2:
                    last.send(REQUEST)
            last.close()
            last = open_one(target)
            count += 1
        time.sleep(0.005)
    return count


def main() -> None:
    """Attack as told, within the bounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--held", type=int, default=1000)
    parser.add_argument("--per-second", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    told = parser.parse_args()
    held = min(told.held, HELD_MAX)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, held + 100) if hard > 0 else held + 100, hard))
    per_second, seconds = min(told.per_second, PER_SECOND_MAX), min(told.seconds, SECONDS_MAX)
    print(attack((told.host, told.port), held=held, per_second=per_second, seconds=seconds), flush=True)


if __name__ == "__main__":
    main()
