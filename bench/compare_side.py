"""One side of `bench.compare`: a lab node with the daemon of the checkout that this process imports.

    PYTHONPATH=CHECKOUT python -P bench/compare_side.py '{"env": {...}, "annotations": {...}, "instance_type": ""}'

`annotations` are those of each pod that is measured, as a runtime hands them over; the pods are in the namespace `bench`. This process
imports `bench.stage` and nothing newer, so that a checkout from before this file existed can be measured too. Each line on standard
input is a request in JSON, each line on standard output its answer:

    {"calls": N}     do N times ADD and DEL, and answer {"ADD": [...], "DEL": [...]}, one {step: ms} for each call, "total" among them
    {"restart": N}   kill and start the daemon for the Nth time, and answer {"DEL", "ADD"}: seconds from the kill to the first of each
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
"""The configuration that each checkout has."""

POD_ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
"""As in `ipamd.model.pod_annotations`, which an earlier checkout may not have."""


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
    made = stage.job("cycles", plugins={PLUGIN_PATH: kind}, rounds=count, settle_s=SETTLE_S, tag=tag, names_pods=True)[
        PLUGIN_PATH
    ]
    answer: dict[str, Any] = {"whole": {"ADD": made["ADD"], "DEL": made["DEL"]}}
    for verb in ("ADD", "DEL"):
        answer[verb] = []
        for line in stage.requests(verb, made["ids"]):
            steps = dict(line["steps_ms"])
            answer[verb].append({**steps, "other": line["ms"] - sum(steps.values()), "total": line["ms"]})
    return answer


def _restart(stage: Stage, *, number: int) -> dict[str, float]:
    """The node has one sandbox more afterwards: that which the new daemon added first."""
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
    """How often each thread of a process was put on a CPU, and for how many nanoseconds. A thread that ends is left out later."""
    scheduled: dict[str, tuple[int, int]] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        on_cpu_ns, _, count = (task / "schedstat").read_text().split()
        scheduled[task.name] = int(count), int(on_cpu_ns)
    return scheduled


if __name__ == "__main__":
    main()
