"""`everything_*rss`, `idle_cpu_660`: memory and CPU time of a daemon on a node with a real runtime, with all features on, and at rest.

Memory is read with 110 and with 660 sandboxes, while all features are on: CRI with its event stream, metrics, health pages, history,
and the socket for the plugin of amazon-vpc-cni-k8s. Then the daemon is restarted with the default features. Its CPU time is read while
it gets only the calls that every node makes: kubelet's STATUS and probes, and a scrape of the metrics. The runtime is containerd 1.7,
which has events, if `tools/fetch_containerd.sh` has unpacked it, otherwise Debian's 1.6; the note names it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.audit import SANDBOX_COUNT as MANY
from bench.audit import on_cpu_ns
from bench.cold import SANDBOX_COUNT as USUAL
from bench.crowded import INSTANCE_TYPE, SETTINGS
from bench.figures import Figure
from bench.idle import status_mib
from bench.probes import PAGES
from bench.stage import READY_TIMEOUT_S, BenchError
from lab.lab import Lab
from lab.node.daemon import Daemon
from lab.node.kubelet import KubeletLike
from lab.node.node import REPOSITORY, Node

CONTAINERD_17 = REPOSITORY / "build" / "containerd-1.7"
DEFAULT = SETTINGS | {"VPC_IPAMD_METRICS_ADDRESS": "127.0.0.1:61678"}
"""The default settings, except those of metrics and of the pool. Metrics are on loopback, because a lab node's metrics cannot be
reached from outside. The pool is filled before, because otherwise 660 sandboxes would wait for its growth."""

EVERYTHING = DEFAULT | {
    "VPC_IPAMD_CNI_BACKEND_SOCKET": "/run/aws-node/ipamd.sock",
}

SETTLE_S = 5.0
"""Pause between the last sandbox and the reading of memory, so that memory that only the burst needed is not counted."""

REST_S = 65.0
"""Pause between the start and the measurement of CPU time. After it the work of the start is done, and the slowest loop (60 s) has run
once."""

WATCHED_S = 120.0
"""Duration of the measurement of CPU time: two turns of the slowest loop."""

NO_SANDBOXES_S = 3600.0


def measure() -> list[Figure]:
    """Run the sandboxes by CRI, and read the daemon's memory and CPU time. Raises: NodeError, BenchError."""
    containerd = CONTAINERD_17 if CONTAINERD_17.is_dir() else True
    with Lab(name=f"bench-everything-{os.getpid()}", instance_type=INSTANCE_TYPE, containerd=containerd) as lab:
        node = lab.node("node-a")
        daemon = Daemon(node, region=lab.vpc.region, settings=EVERYTHING)
        daemon.start()
        daemon.wait_status(_is_stocked, what="stocked with addresses", timeout_s=READY_TIMEOUT_S)
        _run(node, daemon, range(USUAL))
        time.sleep(SETTLE_S)
        figures = [_memory(daemon, "everything_rss")]
        _run(node, daemon, range(USUAL, MANY))
        time.sleep(SETTLE_S)
        figures.append(_memory(daemon, "everything_660_rss"))
        daemon.end(signal.SIGTERM, timeout_s=READY_TIMEOUT_S)
        daemon.settings = dict(DEFAULT)
        daemon.start()
        daemon.wait_ready()
        time.sleep(REST_S)
        return [*figures, _idle(node, daemon)]


def _run(node: Node, daemon: Daemon, numbers: range) -> None:
    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(lambda number: node.cri.run_sandbox(f"pod-{number}"), numbers))
    daemon.wait_status(
        lambda status: int(status["pool"]["assigned_count"]) == numbers.stop, what="in charge of all", timeout_s=READY_TIMEOUT_S
    )


def _memory(daemon: Daemon, name: str) -> Figure:
    memory = status_mib(Path(f"/proc/{daemon.pid}/status").read_text())
    note = f"{_runtime(daemon)}; peak {memory['VmHWM']:.0f} MiB"
    return Figure(name, memory["VmRSS"], "MiB", None, "", 1, note)


def _idle(node: Node, daemon: Daemon) -> Figure:
    """Measure the daemon's CPU time while kubelet's calls and a scraper come."""
    probes = node.spawn([sys.executable, "-m", "bench.probes", str(WATCHED_S)], cwd=str(REPOSITORY))
    with KubeletLike(node, sandbox_s=NO_SANDBOXES_S) as kubelet:
        began, before = time.monotonic(), on_cpu_ns(daemon.pid)
        time.sleep(WATCHED_S)
        after, lasted_s = on_cpu_ns(daemon.pid), time.monotonic() - began
    statuses = kubelet.of("STATUS")
    if not statuses or not all(call.is_ok for call in statuses) or probes.wait(READY_TIMEOUT_S):
        raise BenchError("STATUS or a probe was not answered, so this was no idle node")
    used = [ns - before.get(thread, 0) for thread, ns in after.items()]
    memory = status_mib(Path(f"/proc/{daemon.pid}/status").read_text())
    note = (
        f"of one core, over {lasted_s:.0f} s, {len(statuses)} STATUS, {', '.join(f'{page} each {s:.0f} s' for page, s in PAGES)}; "
        f"{_runtime(daemon)}; {memory['VmRSS']:.0f} MiB; the busiest thread: {max(used) / 1e7 / lasted_s:.2f} %"
    )
    return Figure("idle_cpu_660", sum(used) / 1e7 / lasted_s, "%", None, "", 1, note)


def _is_stocked(status: dict[str, Any]) -> bool:
    return bool(status["ready"]) and int(status["pool"]["free_count"]) >= MANY


def _runtime(daemon: Daemon) -> str:
    status = daemon.status()
    if status is None:
        raise BenchError("the daemon does not answer")
    runtime = status["runtime"]
    return f"{runtime['name']} {runtime['version']}, {'events on' if runtime['events'] else 'no events'}"
