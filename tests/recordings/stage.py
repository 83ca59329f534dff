"""One lab node while it is recorded: its pods, its daemon, and a scraper that looks every 15 s as a Prometheus does."""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from lab.chaos import skewed_daemon
from lab.fabric.errors import FabricError
from lab.fabric.netns import run_inside
from lab.node.errors import NodeError
from tests import aws_node
from tests.lab.migration.conftest import LOOPBACK
from tests.recordings.series import Recording, Value
from tests.rig import CniReply, Rig, rig

PORT = 61678
SCRAPE_TIMEOUT_S = 10.0
LEFT_OUT = re.compile(
    r"_created\b|^ipamd_ec2_attempt_duration_seconds|^awscni_aws_api_latency|^ipamd_start_stage_"
    r"|^ipamd_request_step_duration_seconds_(?!count{step=\"(branch|reserve)\"|bucket{le=\"1.0\",step=\"branch\")"
)
"""Series that no alert and no panel reads, and the client library's times of creation."""

PRODUCTION = {
    "IP_COOLDOWN_PERIOD": "30",
    "VPC_IPAMD_SPARE_ENI_DELAY_SECONDS": "30",
    "VPC_IPAMD_METRICS_ADDRESS": f"127.0.0.1:{PORT}",
    "VPC_IPAMD_CRI_SOCKET": aws_node.CRI_SOCKET,
    "VPC_IPAMD_CRI_EVENTS": "false",
}
"""What a rig makes quicker is as shipped here."""

WORKERS = 8
"""Pods that a kubelet of the load starts at once."""

RETRY_S = 10.0
"""A kubelet's sync of a pod that could not start: about so long after the last try, with a new sandbox."""


class Stage:
    """The node. `rng`: of the load; `passed_s`: how far the daemon's clock is ahead; `module`: what the daemon is started by."""

    module = "ipamd.daemon"

    def __init__(self, made: Rig, runtime: aws_node.Runtime, *, seed: int, interval_s: int, speed: int) -> None:
        self.rig, self.runtime = made, runtime
        self.rng = random.Random(seed)
        self.interval_s, self.speed = interval_s, speed
        self.up: list[int] = []
        self.pods: list[int] = []
        self.series: dict[str, list[Value]] = {}
        self.pod_number = 0
        self.running: list[str] = []
        self.pending: list[tuple[float, str]] = []
        self._names = 0
        self._next_s = time.monotonic()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._workers = ThreadPoolExecutor(max_workers=WORKERS)

    def watch(self, scrapes: int, *, load: Callable[[], object] | None = None) -> None:
        """Scrape so often, with a load between scrapes: called again and again, about once a second of the daemon."""
        for _ in range(scrapes):
            self.scrape()
            self._next_s += self.interval_s / self.speed
            while (left_s := self._next_s - time.monotonic()) > 0:
                if load is not None:
                    load()
                self._stop.wait(min(1.0 / self.speed, left_s))
            if self.speed > 1:
                passed = len(self.up) * self.interval_s * (1 - 1 / self.speed)
                self.rig.node.write_file(str(skewed_daemon.PASSED_PATH), str(passed).encode())

    def scrape(self) -> None:
        """One scrape: every series gets a value, or None."""
        text = self._page()
        self.up.append(int(text is not None))
        self.pods.append(self.pod_number)
        found = _samples(text or "")
        if self.speed > 1:  # they are measured by a clock that runs faster than the machine
            found = {name: value for name, value in found.items() if not name.startswith("ipamd_request_duration_seconds")}
        for name in self.series.keys() | found.keys():
            values = self.series.setdefault(name, [])
            values += [None] * (len(self.up) - 1 - len(values))
            values.append(found.get(name))

    def _page(self) -> str | None:
        try:
            connect = partial(socket.create_connection, ("127.0.0.1", PORT), timeout=SCRAPE_TIMEOUT_S)
            with run_inside(self.rig.node.netns_path(), connect) as sock:
                sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
                answer = b"".join(iter(lambda: sock.recv(65536), b""))
        except (OSError, FabricError):
            return None
        head, _, body = answer.partition(b"\r\n\r\n")
        return body.decode() if b" 200 " in head.split(b"\r\n", 1)[0] else None

    def add(self, name: str = "") -> bool:
        """Start one pod, as a kubelet: a new sandbox for each try. Returns: whether it runs; if not it is due again later."""
        with self._lock:
            self._names += 1
            sandbox = f"{name or 'pod'}-{self._names}"
        reply = self._begin(name, sandbox)
        if reply.ok:
            self.runtime.run_pod(sandbox, sandbox)
        else:
            with suppress(NodeError):
                self.rig.delete(sandbox)
        with self._lock:
            if reply.ok:
                self.running.append(sandbox)
            else:
                self.pending.append((self.now_s() + RETRY_S * self.rng.uniform(0.8, 1.6), name))
        return reply.ok

    def _begin(self, name: str, sandbox: str) -> CniReply:  # `name`: of a pod that somebody knows by name
        """ADD of a new sandbox."""
        return self.rig.add(sandbox)

    def remove(self) -> bool:
        """End one pod, any. Returns: whether DEL succeeded."""
        with self._lock:
            sandbox = self.rng.choice(self.running)
            self.running.remove(sandbox)
        self.runtime.stop_pod(sandbox)
        return self.rig.delete(sandbox).ok

    def end(self, count: int) -> None:
        """End so many pods at once; returns at once."""
        for _ in range(count):
            self._workers.submit(self.remove)

    def come_and_go(self, count: int) -> None:
        """So many pods come and go, some at a time, without a scrape. Returns when all are gone."""
        list(self._workers.map(self._pass, range(count)))
        self._next_s = max(self._next_s, time.monotonic())

    def _pass(self, number: int) -> None:
        name = f"passer-{number}-{len(self.up)}"
        assert self.rig.add(name).ok
        self.runtime.run_pod(name, name)
        self.runtime.stop_pod(name)
        assert self.rig.delete(name).ok

    def fill(self, count: int) -> None:
        """Start so many pods, one after the other."""
        for _ in range(count):
            self.add()

    def want(self, count: int) -> None:
        """Start so many pods at once; returns at once."""
        for _ in range(count):
            self._workers.submit(self.add)

    def retry(self) -> None:
        """A load: pods that could not start are tried again when they are due."""
        with self._lock:
            due = [one for one in self.pending if one[0] <= self.now_s() or self._is_news(one[1])]
            self.pending = [one for one in self.pending if one not in due]
        for _, name in due:
            self._workers.submit(self.add, name)

    def _is_news(self, name: str) -> bool:
        """Whether a kubelet tries a pod at once, because it changed."""
        return False

    def churn(self, every_s: float, *, low: int = 0, add: Callable[[], object] | None = None) -> Callable[[], None]:
        """A load: about every so many seconds a pod ends and another starts, by default one of any name; what could not start is tried
        again."""
        state = {"next": self.now_s()}

        def step() -> None:
            self.retry()
            if self.now_s() >= state["next"]:
                state["next"] = self.now_s() + every_s * self.rng.uniform(0.5, 1.5)
                if len(self.running) > low:
                    self._workers.submit(self.remove)
                self._workers.submit(add or self.add)

        return step

    def close(self) -> None:
        """End the load."""
        self._workers.shutdown(wait=True, cancel_futures=True)

    def now_s(self) -> float:
        """The load's clock, as fast as the daemon's."""
        return time.monotonic() * self.speed

    def refuse(self, *apis: str, code: str = "", **fault: object) -> None:
        """EC2 refuses these APIs with a code, or has another fault, from now on."""
        spec = {"error": {"code": code, "message": "told by the lab"}} if code else fault
        self.rig.lab.faults.apply({"apis": dict.fromkeys(apis, spec)})

    def shell(self, script: str) -> None:
        """Run a script in the node."""
        self.rig.node.run(["/bin/sh", "-ec", script])

    def path(self, name: str) -> Path:
        """A file of the node, seen from here."""
        return Path(self.rig.node.root + name)


def _samples(text: str) -> Mapping[str, float]:
    return {
        name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not LEFT_OUT.search(name := _name(sample.name, sample.labels))
    }


def _name(name: str, labels: Mapping[str, str]) -> str:
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in sorted(labels.items())) + "}" if labels else name


@contextmanager
def stage(
    *,
    seed: int,
    env: Mapping[str, str] | None = None,
    interval_s: int = 15,
    speed: int = 1,
    start: bool = True,
    play_on: type[Stage] = Stage,
    **options: object,
) -> Iterator[Stage]:
    """A lab node with a runtime that lists its pods; the daemon is started and ready, unless it is not to be."""
    module = skewed_daemon.__name__ if speed > 1 else play_on.module
    with rig(start=False, is_executed=True, env=PRODUCTION | dict(env or {}), module=module, **options) as made:  # type: ignore[arg-type]
        runtime = aws_node.Runtime(made.node)
        made.node.write_file("/opt/cni/bin/loopback", LOOPBACK, 0o755)
        try:
            if start:
                made.start()
            at = play_on(made, runtime, seed=seed, interval_s=interval_s, speed=speed)
            try:
                yield at
            finally:
                at.close()
        finally:
            runtime.close()


def recording(at: Stage, *, name: str, what: str, steady: int) -> Recording:
    """What was recorded."""
    length = len(at.up)
    series = {one: values + [None] * (length - len(values)) for one, values in at.series.items()}
    return Recording(name, what, at.interval_s, steady, at.speed, at.up, at.pods, series)
