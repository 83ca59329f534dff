"""`everything_*rss`, `idle_cpu_660`: what a daemon costs its node on a real runtime, with all that it can serve, and at rest.

Memory is read with 110 sandboxes and with 660, and everything on: CRI with its event stream, metrics, health pages, history,
the socket for the plugin of amazon-vpc-cni-k8s. Then the daemon starts anew as it is by default, and is left alone but for what
every node does: kubelet's STATUS and probes, and a scrape. Uses containerd 1.7, which has events, where
`tools/fetch_containerd.sh` has unpacked it, else Debian's 1.6; the note says which.
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
"""A lab node's metrics are not reached from outside. The pool is not the default's, or 660 sandboxes would wait for it."""

EVERYTHING = DEFAULT | {
    "VPC_IPAMD_CNI_BACKEND_SOCKET": "/run/aws-node/ipamd.sock",
}

SETTLE_S = 5.0
"""After the last sandbox, before memory is read: what the burst needed for a moment is not what a node pays."""

REST_S = 65.0
"""After the start, before CPU is counted: what a start leads to and one turn of the slowest loop (60 s) are over."""

WATCHED_S = 120.0
"""Two turns of the slowest loop."""

NO_SANDBOXES_S = 3600.0


def measure() -> list[Figure]:
    """Bring the sandboxes up through CRI, and read the daemon's memory and time. Raises: NodeError, BenchError."""
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
    """Let kubelet and a scraper ask, and count the daemon's time on a CPU."""
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
