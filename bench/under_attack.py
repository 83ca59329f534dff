"""`add_p50_under_port_attack`: ADD while a pod attacks the metrics port, compared with ADD without the attack, in turn on one node
(I16).

The pod holds 1,000 connections and opens 200 a second, half of which request the page (`port_attack`). It uses the node's own cores,
so the CPU time of the attack itself is in the figure too.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.figures import Figure
from bench.namespaces import netns_path
from bench.samples import median, spread
from bench.scale import Scale
from bench.stage import BenchError, Stage
from bench.whole import SETTLE_S
from lab.node.daemon import PLUGIN_PATH
from lab.node.node import REPOSITORY

PORT = 61678
HELD_COUNT = 1000
PER_SECOND = 200
ATTACK_S = 60.0
"""Longest time of one attack. Normally the attack is ended with its round."""

BEGIN_S = 30.0
TURNS = 4


def measure(scale: Scale, *, instance_type: str, daemon_env: Mapping[str, str]) -> list[Figure]:
    """Do ADDs and DELs in turn without and with the attack."""
    settings = {**daemon_env, "VPC_IPAMD_METRICS_ADDRESS": f":{PORT}"}
    with Stage(instance_type=instance_type, daemon_env=settings) as stage:
        (pod,) = stage.job("attach", path=PLUGIN_PATH, count=1, tag="attacker")
        stage.job("cycles", plugins={PLUGIN_PATH: "vpc"}, rounds=3, settle_s=SETTLE_S, tag="attack-warm-up")
        quiet: list[float] = []
        attacked: list[float] = []
        for turn in range(TURNS):
            quiet += _adds(stage, scale, f"quiet-{turn}")
            with _attack(stage, pod):
                attacked += _adds(stage, scale, f"attacked-{turn}")
    note = f"{spread(attacked)}; {HELD_COUNT} connections held, {PER_SECOND} new a second"
    reference_is = "the same without the attack"
    return [Figure("add_p50_under_port_attack", median(attacked), "ms", median(quiet), reference_is, len(attacked), note)]


def _adds(stage: Stage, scale: Scale, tag: str) -> list[float]:
    rounds = max(scale.whole_rounds // TURNS, 1)
    times = stage.job("cycles", plugins={PLUGIN_PATH: "vpc"}, rounds=rounds, settle_s=SETTLE_S, tag=tag)
    adds: list[float] = times[PLUGIN_PATH]["ADD"]
    return adds


@contextmanager
def _attack(stage: Stage, pod: str) -> Iterator[None]:
    """Attack from the pod's namespace during the block. Raises: BenchError if the attack does not begin, or ends before the block."""
    host = str(stage.lab.vpc.enis_of(stage.node.instance_id)[0].primary_address)
    words = ["--held", str(HELD_COUNT), "--per-second", str(PER_SECOND), "--seconds", str(ATTACK_S)]
    said, out = os.pipe()
    try:
        argv = [sys.executable, "-m", "bench.port_attack", host, str(PORT), *words]
        process = stage.node.spawn(argv, cwd=str(REPOSITORY), stdout=out, netns=str(netns_path(pod)))
        try:
            if not select.select([said], [], [], BEGIN_S)[0] or not os.read(said, 100).startswith(b"attacking"):
                raise BenchError("the attack on the metrics port did not begin")
            yield
            if process.poll() is not None:
                raise BenchError("the attack on the metrics port ended before the ADDs did")
        finally:
            process.kill()
            process.wait(BEGIN_S)
    finally:
        os.close(said)
        os.close(out)
