"""`add_700_to_10`, `del_700_to_10`: a call on a node with 700 sandboxes, compared with a call on a node with 10.

The two nodes, each with its own daemon and kernel objects, are called in turn in blocks, with a pause after every call. So cold calls
of the same minute are compared. If the one-file plugin is built, the whole call is measured. Otherwise the daemon's part of the call
is measured, because the start of the interpreter would hide a difference.
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
"""A type with 15 ENIs x 49 addresses. Nearly all of the 700 sandboxes are on secondary ENIs, where each sandbox needs one more
rule."""

FEW, MANY = 10, 700
BLOCKS = 4
SETTINGS = {"MINIMUM_IP_TARGET": "735", "WARM_IP_TARGET": "1", "IP_COOLDOWN_PERIOD": "1"}
"""Settings of both nodes, with which both have all 15 ENIs. The cooldown is short, because only 35 addresses are free beside 700
sandboxes, so they must be reused soon."""


def measure(scale: Scale) -> list[Figure]:
    """Attach the sandboxes that stay, and measure both nodes in turn. Returns: a figure for each verb."""
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
                block_times = block(stages[count], path, rounds=rounds, tag=f"block-{number}")
                for verb, times in block_times.items():
                    samples[count][verb] += times
    what = "whole call" if path == ONEFILE_PATH else "the daemon's part"
    return [_figure(verb, samples, what) for verb in ("ADD", "DEL")]


def block(stage: Stage, path: str, *, rounds: int, tag: str) -> dict[str, list[float]]:
    """Do ADD and DEL in turn. Returns: verb -> times in ms, of the whole call for the one-file plugin, otherwise of the daemon's
    part."""
    answer = stage.job("cycles", plugins={path: "vpc"}, rounds=rounds, settle_s=SETTLE_S, tag=tag)[path]
    if path == ONEFILE_PATH:
        return {verb: answer[verb] for verb in ("ADD", "DEL")}
    parts = {verb: [line["ms"] for line in stage.requests(verb, answer["ids"])] for verb in ("ADD", "DEL")}
    if any(len(times) != rounds for times in parts.values()):
        raise BenchError(f"{rounds} calls of each verb were made, and not as many are in the daemon's log")
    return parts


def _figure(verb: str, samples: dict[int, dict[str, list[float]]], what: str) -> Figure:
    many, few = median(samples[MANY][verb]), median(samples[FEW][verb])
    note = f"{what}: {many:.2f} ms with {MANY} sandboxes, {few:.2f} ms with {FEW}; {SETTLE_S * 1000:.0f} ms between calls"
    return Figure(f"{verb.lower()}_700_to_10", many / few, "x", None, "", len(samples[MANY][verb]), note)
