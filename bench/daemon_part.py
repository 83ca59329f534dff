"""`add_daemon_*`, `del_daemon_*`: the daemon's own time, by phase, from its log line of each request.

After each call there is a pause (`whole.SETTLE_S`), so the calls are cold, and the deletion of links, which comes later, is not in
them. The time is from the arrival of the decoded message to the finished reply. gRPC's own work and the writing of the log line are
not in it, but in the figures of `whole`. Budgets grow with the machine's slowness (`figures`). The reference is the kernel's part: the
same wiring by packed netlink batches without a daemon (`kernel_wiring`). The note has the time of the usual way, pyroute2 call by
call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench import kernel_wiring, plugin_exec
from bench.figures import Figure, slowness
from bench.plugin import PYTHON
from bench.samples import median, percentile, spread
from bench.scale import Scale
from bench.stage import BenchError, Stage
from bench.whole import SETTLE_S
from lab.node.daemon import PLUGIN_PATH

KERNEL_PARTS = {"ADD": "wire, ENI table", "DEL": "retire, ENI table"}
"""Verb -> key of the kernel's part in the result of `kernel_wiring.measure`."""

USUAL_PARTS = {"ADD": "wire, pyroute2 call by call", "DEL": "retire, pyroute2 call by call"}
"""The same for pyroute2 call by call."""


def measure(stage: Stage, scale: Scale) -> list[Figure]:
    """Do ADD and DEL in turn through the plugin, with pauses, and read the lines of the daemon's log about these calls."""
    arguments: dict[str, Any] = {"plugins": {PLUGIN_PATH: "vpc"}, "settle_s": SETTLE_S}
    stage.job("cycles", rounds=5, tag="daemon-warm-up", **arguments)
    ids = stage.job("cycles", rounds=scale.daemon_rounds, tag="daemon", **arguments)[PLUGIN_PATH]["ids"]
    kernel = kernel_wiring.measure()
    commands = {"bare": plugin_exec.bare_interpreter(PYTHON)}
    bare = plugin_exec.medians_ms(commands, environment={}, rounds=scale.exec_rounds)["bare"]
    figures = []
    for verb in ("ADD", "DEL"):
        lines = stage.requests(verb, ids)
        if len(lines) != scale.daemon_rounds or any(line["code"] for line in lines):
            raise BenchError(f"{scale.daemon_rounds} {verb}s were made and {len(lines)} are in the daemon's log")
        figures += _figures(verb, lines, kernel, slow=slowness(bare))
    return [
        *figures,
        Figure("add_daemon_bare_start", bare, "ms", None, "", scale.exec_rounds, "bare interpreter, for the budgets"),
    ]


def _figures(verb: str, lines: list[dict[str, Any]], kernel: Mapping[str, float], *, slow: float) -> list[Figure]:
    name, count = verb.lower(), len(lines)
    totals = [line["ms"] for line in lines]
    floor, usual = kernel[KERNEL_PARTS[verb]], kernel[USUAL_PARTS[verb]]
    reference_is = "the kernel's part alone, packed batches"
    figures = [
        Figure(
            f"{name}_daemon_p50", median(totals), "ms", floor, reference_is, count, f"pyroute2 call by call {usual:.2f} ms", slow
        ),
        Figure(f"{name}_daemon_p99", percentile(totals, 0.99), "ms", None, "", count, spread(totals), slow),
    ]
    phases: dict[str, list[float]] = {}
    for line in lines:
        steps = dict(line["steps_ms"])
        for phase, ms in {**steps, "other": line["ms"] - sum(steps.values())}.items():
            phases.setdefault(phase, []).append(ms)
    for phase, samples in phases.items():
        note = f"p99 {percentile(samples, 0.99):.2f}"
        figures.append(Figure(f"{name}_daemon_{phase}", median(samples), "ms", None, "", len(samples), note))
    return figures
