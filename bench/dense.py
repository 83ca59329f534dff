"""`dense_*`: a node with 2,500 sandboxes compared with one with 110, and 200 ADDs at once while EC2 throttles.

Both nodes run at the same time and are called in turn in blocks, as in `crowded`, so that other load of the machine affects both
alike. The daemon's part of a call is compared. Then the daemon of the dense node is killed and at once started again, several times.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from bench.crowded import INSTANCE_TYPE
from bench.figures import Figure
from bench.idle import status_mib
from bench.restart import one_round
from bench.samples import median, spread
from bench.scale import Scale
from bench.stage import ONEFILE_PATH, BenchError, Stage
from bench.whole import SETTLE_S
from lab.node.daemon import PLUGIN_PATH

USUAL, DENSE = 110, 2500
BLOCKS = 4
SETTINGS = {
    "ENABLE_IPv4": "false",
    "ENABLE_IPv6": "true",
    "ENABLE_V4_EGRESS": "false",
    "ENABLE_PREFIX_DELEGATION": "true",
    "VPC_IPAMD_MAX_PODS": "2600",
    "IP_COOLDOWN_PERIOD": "1",
}
"""Settings of both nodes: IPv6 without egress, because a lab's subnet has only 1,019 IPv4 addresses, and the range for egress only
1,021."""

AT_ONCE = 200
AT_ONCE_SETTINGS = {"WARM_IP_TARGET": "5", "VPC_IPAMD_MAX_PODS": "250"}
THROTTLED: dict[str, object] = {
    "apis": {
        "AssignPrivateIpAddresses": {"throttle": {"rate_per_s": 0.5, "burst": 2}},
        "CreateNetworkInterface": {"throttle": {"rate_per_s": 0.2, "burst": 1}},
        "AttachNetworkInterface": {"throttle": {"rate_per_s": 0.2, "burst": 1}},
    }
}
AT_ONCE_DEADLINE_S = 300.0


def measure(scale: Scale) -> list[Figure]:
    """Compare the two nodes, restart the daemon of the dense one, and do 200 ADDs at once on a third. Raises: NodeError,
    BenchError."""
    parts: dict[int, dict[str, list[float]]] = {count: {"ADD": [], "DEL": []} for count in (USUAL, DENSE)}
    with ExitStack() as stack:
        stages: dict[int, Stage] = {}
        residents: dict[int, list[str]] = {}
        for count in (USUAL, DENSE):
            stage = Stage(name=f"bench-{count}", instance_type=INSTANCE_TYPE, daemon_env=SETTINGS)
            stages[count] = stack.enter_context(stage)
            residents[count] = stage.job("attach", path=_plugin(stage), count=count, tag="resident")
            _block(stage, rounds=2, tag="warm-up")
        for number in range(BLOCKS):
            for count in (USUAL, DENSE) if number % 2 == 0 else (DENSE, USUAL):
                block_times = _block(stages[count], rounds=scale.whole_rounds // BLOCKS, tag=f"block-{number}")
                for verb, times in block_times.items():
                    parts[count][verb] += times
        memory_mib = {count: _rss_mib(stage) for count, stage in stages.items()}
        figures = [_to_usual("ADD", parts), _to_usual("DEL", parts), _memory(memory_mib)]
        figures += _recovery(stages[DENSE], residents[DENSE], rounds=scale.restart_rounds)
    return [*figures, _at_once()]


def _plugin(stage: Stage) -> str:
    return ONEFILE_PATH if ONEFILE_PATH in stage.plugins else PLUGIN_PATH


def _block(stage: Stage, *, rounds: int, tag: str) -> dict[str, list[float]]:
    """Do ADD and DEL in turn. Returns: verb -> the daemon's part of each call, in ms."""
    path = _plugin(stage)
    ids = stage.job("cycles", plugins={path: "vpc"}, rounds=rounds, settle_s=SETTLE_S, tag=tag)[path]["ids"]
    parts = {verb: [line["ms"] for line in stage.requests(verb, ids)] for verb in ("ADD", "DEL")}
    if any(len(times) != rounds for times in parts.values()):
        raise BenchError(f"{rounds} calls of each verb were made, and not as many are in the daemon's log")
    return parts


def _to_usual(verb: str, parts: dict[int, dict[str, list[float]]]) -> Figure:
    dense_ms, usual_ms = median(parts[DENSE][verb]), median(parts[USUAL][verb])
    note = f"the daemon's part: {dense_ms:.2f} ms with {DENSE} sandboxes, {usual_ms:.2f} ms with {USUAL}"
    return Figure(f"dense_{verb.lower()}_to_110", dense_ms / usual_ms, "x", None, "", len(parts[DENSE][verb]), note)


def _rss_mib(stage: Stage) -> float:
    return status_mib(Path(f"/proc/{stage.daemon.pid}/status").read_text())["VmRSS"]


def _memory(memory_mib: dict[int, float]) -> Figure:
    each_kib = (memory_mib[DENSE] - memory_mib[USUAL]) * 1024 / (DENSE - USUAL)
    note = f"RSS {memory_mib[DENSE]:.1f} MiB with {DENSE} sandboxes, {memory_mib[USUAL]:.1f} MiB with {USUAL}"
    return Figure("dense_memory_each", each_kib, "KiB", None, "", 1, note)


def _recovery(stage: Stage, residents: list[str], *, rounds: int) -> list[Figure]:
    """Kill and start the daemon several times. Returns: figures of the seconds until the first DEL and the first ADD were served."""
    served: dict[str, list[float]] = {"DEL": [], "ADD": []}
    for number in range(rounds):
        for verb, seconds in one_round(stage, number, residents[number]).items():
            served[verb].append(seconds)
        stage.wait_ready()
    return [
        Figure(f"dense_first_{verb.lower()}", median(times), "s", None, "", rounds, f"after kill -9; {spread(times)}")
        for verb, times in served.items()
    ]


def _at_once() -> Figure:
    """Start 200 ADDs at once on an empty pool while EC2 throttles. A refused ADD is repeated, as kubelet does."""
    stage = Stage(name="bench-at-once", instance_type=INSTANCE_TYPE, daemon_env=AT_ONCE_SETTINGS, faults=THROTTLED)
    with stage:
        storm = stage.job("storm", path=_plugin(stage), count=AT_ONCE, tag="storm", deadline_s=AT_ONCE_DEADLINE_S)
        lasted_s = storm["ended"] - storm["started"]
        calls = stage.lab.vpc.call_counts()
        asked_count = sum(calls[api] for api in ("AssignPrivateIpAddresses", "CreateNetworkInterface", "AttachNetworkInterface"))
        note = f"{storm['refusals']} refusals; {asked_count} calls that change EC2"
        return Figure("dense_at_once", lasted_s, "s", None, "", AT_ONCE, note)
