"""`events_rss`: the daemon's memory with 110 real sandboxes and the runtime's event stream open, as the budget says it.

Real containerd 1.7 (events) where `tools/fetch_containerd.sh` has put it, else Debian's 1.6, which has none; the note says which.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.cold import SANDBOX_COUNT
from bench.figures import Figure
from bench.idle import status_mib
from bench.stage import READY_TIMEOUT_S
from lab.lab import Lab
from lab.node.daemon import Daemon
from lab.node.node import REPOSITORY

CONTAINERD_17 = REPOSITORY / "build" / "containerd-1.7"
SETTLE_S = 5.0
"""After the last sandbox, before memory is read: what the burst needed for a moment is not what a node pays."""


def measure() -> list[Figure]:
    """Bring 110 sandboxes up through CRI and read the daemon's memory. Raises: NodeError."""
    directory = str(CONTAINERD_17) if CONTAINERD_17.is_dir() else ""
    with Lab(name=f"bench-events-{os.getpid()}", instance_type="c5.18xlarge", containerd_directory=directory) as lab:
        node = lab.node("node-a")
        settings = {"MINIMUM_IP_TARGET": str(SANDBOX_COUNT + 10), "WARM_IP_TARGET": "1", "VPC_IPAMD_METRICS_ADDRESS": "off"}
        daemon = Daemon(node, region=lab.vpc.region, settings=settings)
        daemon.start()
        daemon.wait_status(_has_addresses, what="stocked", timeout_s=READY_TIMEOUT_S)
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda number: node.cri.run_sandbox(f"pod-{number}"), range(SANDBOX_COUNT)))
        time.sleep(SETTLE_S)
        status = daemon.wait_status(_has_all_sandboxes, what="in charge of every sandbox", timeout_s=READY_TIMEOUT_S)
        memory = status_mib(Path(f"/proc/{daemon.pid}/status").read_text())
        runtime = status["runtime"]
        events = "events on" if runtime["events"] else "no events"
        note = f"{runtime['name']} {runtime['version']}, {events}; peak {memory['VmHWM']:.0f} MiB"
        return [Figure("events_rss", memory["VmRSS"], "MiB", None, "", 1, note)]


def _has_addresses(status: dict[str, Any]) -> bool:
    return bool(status["ready"]) and int(status["pool"]["free_count"]) >= SANDBOX_COUNT


def _has_all_sandboxes(status: dict[str, Any]) -> bool:
    return int(status["pool"]["assigned_count"]) == SANDBOX_COUNT
