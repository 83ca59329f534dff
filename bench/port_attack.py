"""A hostile pod that attacks the metrics port: it holds connections and opens further ones, for a limited time.

    python -m bench.port_attack HOST PORT --held 1000 --per-second 200 --seconds 10

It runs in a sandbox's namespace. It prints `attacking` when the held connections are open, and at the end the number of further
connections. Every second of these requests the page. Each is aborted (RST) when the next one is opened, so that only one of them needs
a descriptor and a port.
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
"""Upper bounds of the arguments, because this is only the load of a test."""


def open_one(target: tuple[str, int]) -> socket.socket:
    """Start to open a connection, without waiting until it is open."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
    sock.connect_ex(target)
    return sock


def attack(target: tuple[str, int], *, held: int, per_second: int, seconds: float) -> int:
    """Hold `held` connections, and open `per_second` further ones. Returns: the number of further connections."""
    kept = []
    for _ in range(held):
        kept.append(open_one(target))
        time.sleep(0.001)  # until the listener's queue in the kernel has room again
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
    """Attack as the arguments say, within the bounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--held", type=int, default=1000)
    parser.add_argument("--per-second", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    held = min(options.held, HELD_MAX)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, held + 100) if hard > 0 else held + 100, hard))
    per_second, seconds = min(options.per_second, PER_SECOND_MAX), min(options.seconds, SECONDS_MAX)
    print(attack((options.host, options.port), held=held, per_second=per_second, seconds=seconds), flush=True)


if __name__ == "__main__":
    main()
