"""`memory_while_asking`, `rss_after_bursts`: memory with 110 sandboxes, while EC2 is called, and after three bursts of 100 ADDs.

While EC2 is called, memory is the number of distinct physical pages of the daemon and of all processes that it has started. So the
pages of a child process count too, and a page that both share counts once. PSS would be smaller here than on a node, because other
processes with the same Python, such as this one, share the pages of its libraries.

Memory is read SETTLE_S after the threads of a burst have ended, so that memory that only the burst needed is free again, and after the
process that calls EC2 has ended.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Figure
from bench.idle import status_mib
from bench.stage import ONEFILE_PATH, BenchError, Stage
from bench.whole import BURST_SETTLE_S
from ipamd.cloud.child import IDLE_S
from ipamd.threads import IDLE_S as THREADS_IDLE_S
from lab.node.daemon import PLUGIN_PATH

BURSTS, BURST_COUNT = 3, 100
SETTLE_S = 5.0

PAGE_BYTES = 4096
PAGE_ENTRY = struct.Struct("=Q")
PAGE_IS_PRESENT = 1 << 63
PAGE_NUMBER = (1 << 55) - 1
"""Bits of an entry of /proc/PID/pagemap. Source: the kernel's Documentation/admin-guide/mm/pagemap.rst."""


def measure(stage: Stage) -> list[Figure]:
    """Read the memory while EC2 is called, and before and after the bursts. This must be the first measurement on the node, because
    others attach further sandboxes."""
    asking = _while_asking(stage)
    stage.wait_ready(quiet_s=IDLE_S + SETTLE_S)
    before = rss_mib(stage.daemon.pid)
    path = ONEFILE_PATH if ONEFILE_PATH in stage.plugins else PLUGIN_PATH
    stage.job("bursts", plugins={path: "vpc"}, rounds=BURSTS, count=BURST_COUNT, settle_s=BURST_SETTLE_S, tag="memory")
    time.sleep(THREADS_IDLE_S + SETTLE_S)
    after = rss_mib(stage.daemon.pid)
    return [asking, Figure("rss_after_bursts", after, "MiB", before, "before them", BURSTS, f"of {BURST_COUNT}")]


def _while_asking(stage: Stage) -> Figure:
    """Let the daemon call EC2, and count the pages of the daemon and its process that calls EC2. Raises: BenchError if there is no
    such process."""
    stage.wait_ready()
    stage.daemon.ipamctl("retry")
    time.sleep(SETTLE_S)  # the process stays for IDLE_S after its last call
    processes = [stage.daemon.pid, *_children(stage.daemon.pid)]
    if len(processes) == 1:
        raise BenchError("the daemon has no process that asks EC2")
    at_rest_mib, asking_mib = _distinct_mib(processes[:1]), _distinct_mib(processes)
    return Figure("memory_while_asking", asking_mib, "MiB", at_rest_mib, "the daemon alone", note=f"{len(processes)} processes")


def rss_mib(pid: int) -> float:
    """Return the resident memory of one process, in MiB."""
    return status_mib(Path(f"/proc/{pid}/status").read_text())["VmRSS"]


def _children(pid: int) -> list[int]:
    """Return the IDs of all running child processes of a process, and of their children."""
    pids: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            pids += [child, *_children(child)]
    return pids


def _distinct_mib(pids: list[int]) -> float:
    """Return the size of the physical pages of these processes in MiB. A page counts once. Needs root, which alone sees page
    numbers."""
    pages: set[int] = set()
    for pid in pids:
        pages.update(_pages(pid))
    return len(pages) * PAGE_BYTES / 2**20


def _pages(pid: int) -> Iterator[int]:
    """Yield the numbers of the physical pages of one process."""
    with Path(f"/proc/{pid}/pagemap").open("rb") as pagemap:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            start, end = (int(address, 16) for address in line.split()[0].split("-"))
            if end > 1 << 63:  # vsyscall, a page of the kernel
                continue
            pagemap.seek(start // PAGE_BYTES * PAGE_ENTRY.size)
            content = pagemap.read((end - start) // PAGE_BYTES * PAGE_ENTRY.size)
            for (entry,) in PAGE_ENTRY.iter_unpack(content):
                if entry & PAGE_IS_PRESENT:
                    yield entry & PAGE_NUMBER
