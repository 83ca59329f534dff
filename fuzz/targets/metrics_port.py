"""The metrics port, which every pod reaches: random and damaged HTTP, connections that leave; good scrapes go on."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
import urllib.request
from random import Random

from fuzz.log_sink import LogSink
from fuzz.mutation import mutated, noise
from fuzz.target import Case, Target, Violation, blob
from ipamd.metrics import page as metrics

LINGER = struct.pack("ii", 1, 0)
READ_S = 0.05
THREADS_MAX = 40
"""Above what there was at the start, after the last case has closed. Ours: the port needs a handful."""

SETTLE_S = 10.0
REQUESTS = (
    b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", b"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /metrics?name[]=ipamd_ready HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip, br;q=0, *\r\nConnection: keep-alive\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789", b"OPTIONS * HTTP/1.1\r\n\r\n",
    b"GET http://a/metrics HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /%00%ff/../\x1b[1m HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /favicon.ico HTTP/1.1\r\n\r\n", b"GET /healthz HTTP/1.1\r\nAccept: " + b"," * 5000 + b"\r\n\r\n",
)  # fmt: skip


class MetricsPort(Target):
    """A case: `bytes` to send, `end`: "close", "reset" or "read" (until the server ends it or is silent)."""

    memory_bytes = 48 << 20
    batch = 50

    def __init__(self) -> None:
        self._log = LogSink()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._serving = metrics.serve(metrics.Metrics(), f"127.0.0.1:{self._port}")
        self._scrape()
        self._thread_count = threading.active_count()

    def generate(self, random: Random) -> Case:
        kind = random.random()
        if kind < 0.05:
            data: object = noise(random, 2000)
        elif kind < 0.07:
            data = [(b"GET / HTTP/1.1\r\n", 1), (random.choice((b"A: b\r\n", b"x" * 100, b"A:\r\n ")), 20_000)]
        else:
            data = random.choice(REQUESTS) * random.choice((1, 1, 1, 2, 50))
            data = mutated(random, data, others=REQUESTS) if kind < 0.85 else data
        return {"bytes": data, "end": random.choice(("close", "close", "reset", "read"))}

    def run(self, case: Case) -> None:
        with socket.socket() as connection, contextlib.suppress(OSError):
            connection.settimeout(2.0)
            connection.connect(("127.0.0.1", self._port))
            connection.sendall(blob(case["bytes"]))
            if case["end"] == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
            connection.settimeout(READ_S)
            while case["end"] == "read" and connection.recv(1 << 16):
                continue
        self._log.judge()

    def check(self) -> None:
        """After a batch: it serves, and the threads of the connections that have gone are gone."""
        self._scrape()
        until = time.monotonic() + SETTLE_S
        while threading.active_count() > self._thread_count + THREADS_MAX and time.monotonic() < until:
            time.sleep(0.05)
        left = threading.active_count() - self._thread_count
        if left > THREADS_MAX:
            raise Violation("threads", f"{left} threads are left of connections that have gone")

    def _scrape(self) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=20) as answer:
            if b"ipamd_requests" not in answer.read():
                raise Violation("unanswered", "a good scrape is not answered any more")


def make() -> Target:
    """Make the target."""
    return MetricsPort()
