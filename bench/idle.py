"""`rss`, `idle_cpu`, `idle_ec2_calls`: memory, CPU time and EC2 calls of a daemon with 110 sandboxes that gets no calls.
`nft_changes_cpu`: its CPU time while other software changes its own nftables tables ten times a second.

CRI is off, so runtime events are not included. CPU time is the scheduler's own count for each thread in nanoseconds, because utime and
stime count ticks of 10 ms, and an idle daemon often uses less at a time.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from bench.audit import on_cpu_ns
from bench.figures import Figure
from bench.scale import Scale
from bench.stage import IMPORTS, Stage
from lab.node.node import REPOSITORY

NFT_CHANGES_A_SECOND = 10
NFT_WATCHED_S = 20.0


def measure(stage: Stage, scale: Scale) -> list[Figure]:
    """Measure the daemon for `scale.idle_s` seconds in which it gets no calls, and then beside changes of nftables."""
    stage.wait_ready()
    stage.lab.vpc.clear_calls()
    pid = stage.daemon.pid
    idle_cpu, lasted_s = _cpu_percent(pid, scale.idle_s)
    calls = len(stage.lab.vpc.calls())
    memory = _status_mib(pid)
    window = f"over {lasted_s:.0f} s"
    return [
        Figure(
            "rss",
            memory["VmRSS"],
            "MiB",
            _floor_mib(stage),
            "the same imports, nothing done",
            1,
            f"peak {memory['VmHWM']:.0f} MiB",
        ),
        Figure("idle_cpu", idle_cpu, "%", None, "", 1, f"of one core, {window}"),
        Figure("idle_ec2_calls", calls, "calls", None, "", 1, window),
        _beside_nft_changes(stage, idle_cpu),
    ]


def _beside_nft_changes(stage: Stage, idle_cpu: float) -> Figure:
    change = f"nft add table ip theirs; nft delete table ip theirs; sleep {2 / NFT_CHANGES_A_SECOND}"
    others = stage.node.spawn(["timeout", str(NFT_WATCHED_S * 2), "sh", "-c", f"while :; do {change}; done"])
    try:
        used, lasted_s = _cpu_percent(stage.daemon.pid, NFT_WATCHED_S)
    finally:
        others.terminate()
        others.wait()
    note = f"of one core, over {lasted_s:.0f} s, up to {NFT_CHANGES_A_SECOND} changes a second"
    return Figure("nft_changes_cpu", used, "%", idle_cpu, "at idle", 1, note)


def _cpu_percent(pid: int, seconds: float) -> tuple[float, float]:
    """Measure a process for some seconds. Returns: its CPU time in percent of one core, and the exact duration in s."""
    began, before = time.monotonic(), on_cpu_ns(pid)
    time.sleep(seconds)
    used_ns = sum(ns - before.get(thread, 0) for thread, ns in on_cpu_ns(pid).items())  # without threads that ended
    lasted_s = time.monotonic() - began
    return used_ns / 1e7 / lasted_s, lasted_s


def _status_mib(pid: int | str) -> dict[str, float]:
    return status_mib(Path(f"/proc/{pid}/status").read_text())


def status_mib(text: str) -> dict[str, float]:
    """Return the sizes in a text of /proc/<pid>/status: name -> MiB."""
    return {name: int(kib) / 1024 for name, kib in re.findall(r"^(Vm\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def _floor_mib(stage: Stage) -> float:
    script = f"{IMPORTS}\nprint(open('/proc/self/status').read())"
    done = stage.node.run([sys.executable, "-c", script], cwd=str(REPOSITORY), env=stage.daemon.environment)
    return status_mib(done.stdout)["VmRSS"]
