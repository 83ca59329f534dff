"""`audit_cpu_660`: the CPU time by which an idle daemon with 660 sandboxes on 15 ENIs compares the host with its records.

The comparison runs every RECONCILE_INTERVAL_S, and one of SURVEY_TURNS comparisons always reads the wiring of the sandboxes. So the
measurement lasts for SURVEY_TURNS comparisons. The figure is the time of the busiest thread, which makes the comparisons; the note has
the time of the whole daemon. Both are the scheduler's own counts, as in `idle`.
"""

from __future__ import annotations

import time
from pathlib import Path

from bench.crowded import INSTANCE_TYPE, SETTINGS
from bench.figures import Figure
from bench.stage import ONEFILE_PATH, Stage
from ipamd.host.network import RECONCILE_INTERVAL_S, SURVEY_TURNS
from lab.node.daemon import PLUGIN_PATH

SANDBOX_COUNT = 660
SETTLE_S = 2 * RECONCILE_INTERVAL_S + 5.0
"""Pause after the last ADD. After it cooldowns, growth, releases and notifications are over, and one comparison has filled the
daemon's caches."""

WATCHED_S = RECONCILE_INTERVAL_S * SURVEY_TURNS


def measure() -> list[Figure]:
    """Attach the sandboxes and watch each thread for one round of comparisons."""
    with Stage(name="bench-audit", instance_type=INSTANCE_TYPE, daemon_env=SETTINGS) as stage:
        path = ONEFILE_PATH if ONEFILE_PATH in stage.plugins else PLUGIN_PATH
        stage.job("attach", path=path, count=SANDBOX_COUNT, tag="resident")
        stage.wait_ready()
        time.sleep(SETTLE_S)
        pid = stage.daemon.pid
        began, before = time.monotonic(), on_cpu_ns(pid)
        time.sleep(WATCHED_S)
        after, lasted_s = on_cpu_ns(pid), time.monotonic() - began
        eni_count = len(stage.lab.vpc.enis_of(stage.node.instance_id))
    used = sorted((ns - before.get(thread, 0) for thread, ns in after.items()), reverse=True)
    whole = sum(used) / 1e7 / lasted_s
    note = (
        f"of one core, over {lasted_s:.0f} s with {SURVEY_TURNS} comparisons by the clock, {eni_count} ENIs; "
        f"one of them: {used[0] / 1e6 / SURVEY_TURNS:.0f} ms on average; the whole daemon: {whole:.2f} %"
    )
    return [Figure("audit_cpu_660", used[0] / 1e7 / lasted_s, "%", None, "", 1, note)]


def on_cpu_ns(pid: int) -> dict[str, int]:
    """Return thread ID -> nanoseconds on a CPU so far, for each thread of a process."""
    times = {}
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            times[path.parent.name] = int(path.read_text().split()[0])
        except OSError:  # the thread has ended
            continue
    return times
