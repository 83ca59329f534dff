"""One side of `bench.compare`: a lab node with the daemon of the checkout that this process imports.

    PYTHONPATH=CHECKOUT python -P bench/compare_side.py '{"env": {...}, "annotations": {...}, "instance_type": ""}'

`annotations` are the annotations of each measured pod, in the form in which a runtime passes them. The pods are in the namespace
`bench`. This process imports only modules that older checkouts have too, so that these can be measured. Each line on standard input is
a request in JSON, and each line on standard output its answer:

    {"calls": N}     do N times ADD and DEL, and answer {"ADD": [...], "DEL": [...]}, one {step: ms} for each call, "total" among them
    {"restart": N}   kill and start the daemon for the Nth time, and answer {"DEL", "ADD"}: seconds from the kill to the first success
    {"idle_s": S}    do nothing for S seconds, and answer {"rss_mib", "wakeups", "cpu_percent"} of the daemon during that time
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.__main__ import WARM_INSTANCE_TYPE, WARM_POOL
from bench.cold import SANDBOX_COUNT
from bench.idle import status_mib
from bench.restart import one_round
from bench.stage import Stage
from bench.whole import SETTLE_S
from lab.node.daemon import PLUGIN_PATH

UNANNOTATED = "vpc"
"""Kind of the network configuration without annotations, which every checkout has in CONFIGS."""

POD_ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
"""The key of annotations in a CNI configuration. It is written here, because an older checkout may lack
`ipamd.model.pod_annotations`."""


def main() -> None:
    """Serve requests until standard input ends."""
    arguments = json.loads(sys.argv[1])
    with Stage(instance_type=arguments["instance_type"] or WARM_INSTANCE_TYPE, daemon_env=WARM_POOL | arguments["env"]) as stage:
        stage.job("attach", path=PLUGIN_PATH, count=SANDBOX_COUNT, tag="resident")
        kind = UNANNOTATED
        if arguments["annotations"]:
            kind = "annotated"
            stage.job("configure", kind=kind, more={"runtimeConfig": {POD_ANNOTATIONS: arguments["annotations"]}})
        for number, line in enumerate(sys.stdin):
            request = json.loads(line)
            if "calls" in request:
                answer = _calls(stage, kind, count=request["calls"], tag=f"compare-{number}")
            elif "restart" in request:
                answer = _restart(stage, number=request["restart"])
            else:
                answer = _idle(stage, seconds=request["idle_s"])
            print(json.dumps(answer), flush=True)


def _calls(stage: Stage, kind: str, *, count: int, tag: str) -> dict[str, Any]:
    times = stage.job("cycles", plugins={PLUGIN_PATH: kind}, rounds=count, settle_s=SETTLE_S, tag=tag, names_pods=True)[
        PLUGIN_PATH
    ]
    answer: dict[str, Any] = {"whole": {"ADD": times["ADD"], "DEL": times["DEL"]}}
    for verb in ("ADD", "DEL"):
        answer[verb] = []
        for line in stage.requests(verb, times["ids"]):
            steps = dict(line["steps_ms"])
            answer[verb].append({**steps, "other": line["ms"] - sum(steps.values()), "total": line["ms"]})
    return answer


def _restart(stage: Stage, *, number: int) -> dict[str, float]:
    """Restart the daemon. Returns: seconds from the kill to the first DEL and ADD. The node then has one more sandbox, which the new
    daemon added."""
    deleted = stage.job("attach", path=PLUGIN_PATH, count=1, tag=f"deleted-{number}")
    served = one_round(stage, number, deleted[0])
    stage.wait_ready()
    return served


def _idle(stage: Stage, *, seconds: float) -> dict[str, float]:
    pid = stage.daemon.pid
    before = _scheduled(pid)
    began = time.monotonic()
    time.sleep(seconds)
    lasted_s = time.monotonic() - began
    wakeups = on_cpu_ns = 0
    for thread, (wakeups_after, on_cpu_ns_after) in _scheduled(pid).items():
        wakeups_before, on_cpu_ns_before = before.get(thread, (0, 0))
        wakeups += wakeups_after - wakeups_before
        on_cpu_ns += on_cpu_ns_after - on_cpu_ns_before
    return {
        "rss_mib": status_mib(Path(f"/proc/{pid}/status").read_text())["VmRSS"],
        "wakeups": wakeups / lasted_s,
        "cpu_percent": on_cpu_ns / 1e7 / lasted_s,
    }


def _scheduled(pid: int) -> dict[str, tuple[int, int]]:
    """Return for each thread of a process how often it was put on a CPU, and for how many nanoseconds. Threads that have ended are not
    counted."""
    scheduled: dict[str, tuple[int, int]] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        on_cpu_ns, _, count = (task / "schedstat").read_text().split()
        scheduled[task.name] = int(count), int(on_cpu_ns)
    return scheduled


if __name__ == "__main__":
    main()
