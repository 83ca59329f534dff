"""`add_branch_*`, `branch_rss`: the ADD of a pod with a branch ENI beside the ADD of a pod with a pool address, and the memory of the
feature.

Pods of both kinds are added in turn on one node with one daemon, with a pause after each call, so that all calls are cold. The control
plane has assigned each pod its branch ENI before, so no ADD waits for it. The figure is the CPU time of the thread that serves the
call, from gRPC's hand-over to the reply. Not every kernel can make VLAN links; `branch_daemon` describes what replaces them. The
memory is compared with that of a node without the feature, after as many pods, with the same daemon.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.branch_daemon import TOOK
from bench.figures import Figure
from bench.idle import status_mib
from bench.samples import median, spread
from bench.scale import Scale
from bench.stage import BenchError, Stage
from bench.whole import SETTLE_S
from ipamd.cloud.child import IDLE_S
from lab.branches.ground import Branches
from lab.branches.messages import annotations_of
from lab.branches.pods import POD_ENI
from lab.node.daemon import PLUGIN_PATH

INSTANCE_TYPE = "m5.4xlarge"
"""A type that may have 54 branch ENIs, more than BRANCHES."""

BRANCHES = 30
"""Number of branch ENIs that are used in turn. Ours: so many that the link of one is deleted before the ENI is used again."""

MODULE = "bench.branch_daemon"
POOL = {"MINIMUM_IP_TARGET": "100", "WARM_IP_TARGET": "1"}
MODES = ("strict", "standard")
NAMED_S, PAUSE_S, RESTED_S = 30.0, 0.2, 5.0


def measure(scale: Scale) -> list[Figure]:
    """Measure ADDs and memory on a node of each enforcing mode, and memory on a node without the feature. Raises: NodeError,
    BenchError."""
    figures, rss = [], dict[str, float]()
    for mode in MODES:
        with _with_branches(mode) as stage:
            _turns(stage, rounds=2, tag="warm-up")
            took = _turns(stage, rounds=scale.whole_rounds, tag=mode)
            rss[mode] = _rss_mib(stage)
        branch, pool = median(took["branch"]), median(took["pool"])
        note = f"{spread(took['branch'])}; CPU of the daemon's thread, {SETTLE_S * 1000:.0f} ms between calls"
        figures.append(Figure(f"add_branch_cpu_{mode}", branch, "ms", pool, "an ADD of the pool", len(took["branch"]), note))
    with Stage(name="bench-off", instance_type=INSTANCE_TYPE, daemon_env=POOL, module=MODULE) as stage:
        _configure(stage, {"pool": {}, **{f"branch-{number}": {} for number in range(BRANCHES)}})
        _turns(stage, rounds=scale.whole_rounds + 2, tag="off")
        without = _rss_mib(stage)
    note = f"after {(scale.whole_rounds + 2) * 2} pods of both kinds; standard {rss['standard']:.1f} MiB"
    return [*figures, Figure("branch_rss", rss["strict"], "MiB", without, "a node without the feature", 1, note)]


@contextmanager
def _with_branches(mode: str) -> Iterator[Stage]:
    """Start a node with pods to which the control plane has assigned branch ENIs.

    The driver gets a network configuration for each of them (`branch-<number>`), and one for a pod of the pool (`pool`).
    """
    settings = POOL | {"ENABLE_POD_ENI": "true", "POD_SECURITY_GROUP_ENFORCING_MODE": mode, "DISABLE_TCP_EARLY_DEMUX": "true"}
    with (
        Stage(name=f"bench-{mode}", instance_type=INSTANCE_TYPE, daemon_env=settings, module=MODULE) as stage,
        Branches(stage.lab, nodes=["node-a"]) as branches,
    ):
        group = stage.lab.vpc.add_security_group("pods")
        pods = {"pool": branches.pods.create("pool", node="node-a")}
        for number in range(BRANCHES):
            pods[f"branch-{number}"] = branches.pods.create(f"branch-{number}", node="node-a", groups=(group,))
        _await(lambda: all(POD_ENI in branches.pods.get(pod).annotations for pod in pods.values() if pod.wants_branch))
        _configure(stage, {name: _annotated(annotations_of(branches.pods.get(pod))) for name, pod in pods.items()})
        # The first ADD may be refused, because the daemon has yet to find the trunk.
        _await(lambda: bool(_turns(stage, rounds=1, tag=f"first-{time.monotonic_ns()}")))
        stage.wait_ready()
        yield stage


def _await(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + NAMED_S
    while True:
        try:
            if is_so():
                return
            failed = BenchError("the control plane names no branch ENIs")
        except BenchError as error:
            failed = error
        if time.monotonic() > until_s:
            raise failed
        time.sleep(PAUSE_S)


def _annotated(annotations: Mapping[str, str]) -> dict[str, Any]:
    return {"runtimeConfig": {"io.kubernetes.cri.pod-annotations": annotations}}


def _configure(stage: Stage, added: Mapping[str, Mapping[str, Any]]) -> None:
    for kind, more in added.items():
        stage.job("configure", kind=kind, more=more)


def _turns(stage: Stage, *, rounds: int, tag: str) -> dict[str, list[float]]:
    """Do ADD and DEL of a pod of each kind in turn. Returns: "pool" and "branch" -> CPU time of each ADD, in ms."""
    kinds: dict[str, str] = {}
    for number in range(rounds):
        branch = f"branch-{number % BRANCHES}"
        for kind in ("pool", branch) if number % 2 == 0 else (branch, "pool"):
            answer = stage.job("cycles", plugins={PLUGIN_PATH: kind}, rounds=1, settle_s=SETTLE_S, tag=f"{tag}-{number}-{kind}")
            kinds[answer[PLUGIN_PATH]["ids"][0]] = kind.partition("-")[0]
    took: dict[str, list[float]] = {"pool": [], "branch": []}
    for line in Path(f"{stage.node.root}{TOOK}").read_text().splitlines():
        call = json.loads(line)
        if call["verb"] == "ADD" and call["container_id"] in kinds:
            took[kinds[call["container_id"]]].append(call["ms"])
    if any(len(samples) != rounds for samples in took.values()):
        raise BenchError(f"{rounds} ADDs of each kind were made, and not as many were written down")
    return took


def _rss_mib(stage: Stage) -> float:
    """Return the daemon's resident memory, after its process that calls EC2 has ended."""
    stage.wait_ready(quiet_s=IDLE_S + RESTED_S)
    return status_mib(Path(f"/proc/{stage.daemon.pid}/status").read_text())["VmRSS"]
