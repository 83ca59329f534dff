"""`pss`, `rss_after_bursts`: the daemon's memory with 110 sandboxes, at rest and after three bursts of 100 that came and went.

PSS counts a page that several processes share by its share, and is that of the daemon with all processes that it has started: a child
that works for it is no saving. What a burst needs for a moment is given SETTLE_S to go, and a process that asks EC2 the time to end.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from bench.figures import Figure
from bench.idle import status_mib
from bench.stage import ONEFILE_PATH, Stage
from bench.whole import BURST_SETTLE_S
from ipamd.cloud.child import IDLE_S
from lab.node.daemon import PLUGIN_PATH

BURSTS, BURST_COUNT = 3, 100
SETTLE_S = 5.0


def measure(stage: Stage) -> list[Figure]:
    """Read the memory, make the bursts, and read it again. Sandboxes of other measurements come after this one."""
    stage.wait_ready(quiet_s=IDLE_S + SETTLE_S)
    pss = _pss_mib(stage.daemon.pid)
    before = rss_mib(stage.daemon.pid)
    path = ONEFILE_PATH if ONEFILE_PATH in stage.plugins else PLUGIN_PATH
    stage.job("bursts", plugins={path: "vpc"}, rounds=BURSTS, count=BURST_COUNT, settle_s=BURST_SETTLE_S, tag="memory")
    time.sleep(SETTLE_S)
    after, after_pss = rss_mib(stage.daemon.pid), _pss_mib(stage.daemon.pid)
    return [
        Figure("pss", sum(pss), "MiB", note=f"{len(pss)} process(es) of the daemon, at rest"),
        Figure(
            "rss_after_bursts", after, "MiB", before, "before them", BURSTS, f"of {BURST_COUNT}; PSS {sum(after_pss):.0f} MiB"
        ),
    ]


def rss_mib(pid: int) -> float:
    """Resident memory of one process."""
    return status_mib(Path(f"/proc/{pid}/status").read_text())["VmRSS"]


def _pss_mib(pid: int) -> list[float]:
    """Of a process and all that it started and that are there, the first one first."""
    found = re.search(r"^Pss:\s+(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    own = int(found[1]) / 1024 if found else 0.0
    children = {int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()}
    return [own, *(each for child in sorted(children) for each in _pss_mib(child))]
