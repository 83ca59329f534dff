"""`add_700_to_10`, `del_700_to_10`: a call on a node with 700 sandboxes, against one on a node with 10.

Two nodes, each with its own daemon and kernel objects, take turns in blocks, with a pause after every call: what is compared are cold
calls of one and the same minute. Measured is the whole call where the one-file plugin exists. Without it the interpreter's start would
hide any growth, so it is the daemon's part of the call.
"""

from __future__ import annotations

from contextlib import ExitStack

from bench.figures import Figure
from bench.samples import median
from bench.scale import Scale
from bench.stage import ONEFILE_PATH, BenchError, Stage
from bench.whole import SETTLE_S
from lab.node.daemon import PLUGIN_PATH

INSTANCE_TYPE = "c5.18xlarge"
"""15 ENIs x 49 addresses; nearly all sandboxes are on secondary ENIs, which have a rule more each."""

FEW, MANY = 10, 700
BLOCKS = 4
SETTINGS = {"MINIMUM_IP_TARGET": "735", "WARM_IP_TARGET": "1", "IP_COOLDOWN_PERIOD": "1"}
"""35 addresses are left beside 700 sandboxes: they must come back at once. Both nodes have all 15 ENIs."""


def measure(scale: Scale) -> list[Figure]:
    """Attach the residents, then take turns. One figure for each verb."""
    samples: dict[int, dict[str, list[float]]] = {count: {"ADD": [], "DEL": []} for count in (FEW, MANY)}
    with ExitStack() as stack:
        stages: dict[int, Stage] = {}
        for count in (FEW, MANY):
            stage = Stage(name=f"bench-{count}", instance_type=INSTANCE_TYPE, daemon_env=SETTINGS)
            stages[count] = stack.enter_context(stage)
            path = ONEFILE_PATH if ONEFILE_PATH in stage.plugins else PLUGIN_PATH
            stage.job("attach", path=PLUGIN_PATH, count=count, tag="resident")
            block(stage, path, rounds=2, tag="warm-up")
        rounds = scale.whole_rounds // BLOCKS
        for number in range(BLOCKS):
            for count in (FEW, MANY) if number % 2 == 0 else (MANY, FEW):
                found = block(stages[count], path, rounds=rounds, tag=f"block-{number}")
                for verb, times in found.items():
                    samples[count][verb] += times
    what = "whole call" if path == ONEFILE_PATH else "the daemon's part"
    return [_figure(verb, samples, what) for verb in ("ADD", "DEL")]


def block(stage: Stage, path: str, *, rounds: int, tag: str) -> dict[str, list[float]]:
    """Do ADD and DEL in turn; their times in ms: of the whole call, or of the daemon's part."""
    found = stage.job("cycles", plugins={path: "vpc"}, rounds=rounds, settle_s=SETTLE_S, tag=tag)[path]
    if path == ONEFILE_PATH:
        return {verb: found[verb] for verb in ("ADD", "DEL")}
    parts = {verb: [line["ms"] for line in stage.requests(verb, found["ids"])] for verb in ("ADD", "DEL")}
    if any(len(times) != rounds for times in parts.values()):
        raise BenchError(f"{rounds} calls of each verb were made, and not as many are in the daemon's log")
    return parts


def _figure(verb: str, samples: dict[int, dict[str, list[float]]], what: str) -> Figure:
    many, few = median(samples[MANY][verb]), median(samples[FEW][verb])
    note = f"{what}: {many:.2f} ms with {MANY} sandboxes, {few:.2f} ms with {FEW}; {SETTLE_S * 1000:.0f} ms between calls"
    return Figure(f"{verb.lower()}_700_to_10", many / few, "x", None, "", len(samples[MANY][verb]), note)
