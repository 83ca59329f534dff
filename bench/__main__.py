"""`python -m bench`: measure the budgets, print a table, write build/bench.json.

The exit status is 0 even when a budget is missed, because that is a result. It is 1 when a measurement could not be made. Most
measurements use one of two nodes: a warm node, whose pool never runs out, and a cold node, whose EC2 has delays. `idle` and `restart`
use the 110 sandboxes of the cold node. A failed measurement does not stop the others, unless their node has failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench import (
    audit,
    branch,
    cold,
    crowded,
    daemon_part,
    dense,
    everything,
    families,
    full_node,
    idle,
    machine,
    memory,
    packets,
    plugin,
    policy,
    pool_life,
    restart,
    rolls,
    under_attack,
    whole,
    wiring,
)
from bench.figures import Figure, report, table
from bench.scale import FULL, QUICK, Scale
from bench.stage import REFERENCE_PATH, BenchError, Stage
from lab.lab import missing_requirements
from lab.node.daemon import PLUGIN_PATH
from lab.node.errors import NodeError

OUTPUT = Path("build/bench.json")
WARM_POOL = {"MINIMUM_IP_TARGET": "700", "WARM_IP_TARGET": "1"}
"""More addresses than a run uses within a cooldown of 30 s, so that the figures include neither growth of the pool nor waits for
it."""

WARM_INSTANCE_TYPE = "c5.18xlarge"
"""15 ENIs x 49 addresses, enough for WARM_POOL."""

GROUPS = {
    "plugin": ("plugin_exec",),
    "daemon": ("add_daemon", "del_daemon"),
    "whole": ("add_whole", "del_whole"),
    "burst": ("burst30",),
    "memory": ("memory_while_asking", "rss_after_bursts"),
    "cold": ("cold_pool_110", "start_ready_cold"),
    "idle": ("rss", "idle_cpu", "idle_ec2_calls", "nft_changes_cpu"),
    "restart": ("restart_first", "restart_plugin_add"),
    "wiring": ("wire_", "retire_"),
    "attack": ("add_p50_under_port_attack",),
    "everything": ("everything_rss", "everything_660_rss", "idle_cpu_660"),
    "crowded": ("add_700", "del_700"),
    "dense": ("dense_",),
    "audit": ("audit_cpu_660",),
    "scale": ("scale",),
    "rolls": ("roll_",),
    "pool": ("pool",),
    "policy": ("add_policy", "del_agent_dead"),
    "branch": ("add_branch", "branch_rss"),
    "packets": ("packet", "connect"),
    "families": ("ipv6_", "add_ipv6", "del_ipv6", "add_egress", "del_egress"),
}
"""Measurement -> how the names of its figures begin. `--only` accepts the name of a measurement or of a figure."""


@dataclass
class Run:
    """One run.

    wanted: the names of the measurements to make.
    figures: the results so far.
    failures: measurement -> error, for those that could not be made.
    """

    wanted: frozenset[str]
    scale: Scale
    figures: list[Figure] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def all(self) -> None:
        """Measure everything that is wanted."""
        self._try("plugin", lambda: plugin.measure(self.scale))
        if self.wanted & {"memory", "daemon", "whole", "burst"}:
            self._on_node(self._warm, "memory", "daemon", "whole", "burst")
        if self.wanted & {"cold", "idle", "restart"}:
            self._on_node(self._cold, "cold", "idle", "restart")
        attacked = partial(under_attack.measure, self.scale, instance_type=WARM_INSTANCE_TYPE, daemon_env=WARM_POOL)
        self._try("attack", attacked)
        self._try("everything", everything.measure)
        self._try("wiring", wiring.measure)
        self._try("crowded", lambda: crowded.measure(self.scale))
        self._try("dense", lambda: dense.measure(self.scale))
        self._try("audit", audit.measure)
        self._try("scale", lambda: full_node.measure(self.scale))
        self._try("rolls", lambda: rolls.measure(self.scale))
        self._try("pool", pool_life.measure)
        self._try("packets", packets.measure)
        self._try("policy", lambda: policy.measure(self.scale))
        self._try("branch", lambda: branch.measure(self.scale))
        self._try("families", lambda: families.measure(self.scale))

    def _warm(self) -> None:
        with Stage(instance_type=WARM_INSTANCE_TYPE, daemon_env=WARM_POOL) as stage:
            stage.job("attach", path=PLUGIN_PATH, count=cold.SANDBOX_COUNT, tag="resident")
            self._try("memory", lambda: memory.measure(stage))
            self._try("whole", lambda: whole.measure(stage, self.scale))
            self._try("daemon", lambda: daemon_part.measure(stage, self.scale))
            self._try("burst", lambda: whole.measure_burst(stage, self.scale))

    def _cold(self) -> None:
        storms = []
        for _ in range(self.scale.cold_rounds - 1 if "cold" in self.wanted else 0):
            with cold.open_stage() as stage:
                storms.append(cold.bring_up(stage))
        with cold.open_stage() as stage:
            storms.append(cold.bring_up(stage))
            self._try("cold", lambda: cold.measure(storms))
            self._try("idle", lambda: idle.measure(stage, self.scale))
            self._try("restart", lambda: restart.measure(stage, self.scale, storms[-1].container_ids))

    def _on_node(self, body: Callable[[], None], *names: str) -> None:
        """Run the measurements of one node; if the node itself fails, all of them have failed."""
        try:
            body()
        except Exception as exc:  # noqa: BLE001  # the other node's figures are still wanted
            self._failed(", ".join(name for name in names if name in self.wanted), exc)

    def _try(self, name: str, measure: Callable[[], list[Figure]]) -> None:
        if name not in self.wanted:
            return
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        try:
            self.figures += measure()
        except Exception as exc:  # noqa: BLE001  # reported at the end, and by the exit status
            self._failed(name, exc)

    def _failed(self, name: str, exc: Exception) -> None:
        self.failures[name] = f"{type(exc).__name__}: {exc}"
        if not isinstance(exc, (BenchError, NodeError)):
            traceback.print_exception(exc)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the measurements. Returns: the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the performance budgets.")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help=f"a figure, or one of {', '.join(GROUPS)}; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="few samples: to see that it works")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="JSON report (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        wanted = selected(options.only)
    except ValueError as exc:
        parser.error(str(exc))
    missing = missing_requirements(containerd=False) or missing_references()
    if missing:
        sys.exit(f"bench: {missing}")
    facts = machine.facts(plugin.PYTHON)
    run = Run(wanted, QUICK if options.quick else FULL)
    started = time.monotonic()
    run.all()
    facts["seconds"] = round(time.monotonic() - started, 1)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report(run.figures, machine=facts, failures=run.failures), indent=2) + "\n")
    print(table(run.figures))
    print("\n" + "; ".join(f"{name}: {value}" for name, value in facts.items()))
    for name, failure in run.failures.items():
        print(f"\nNOT MEASURED: {name}: {failure}")
    return 1 if run.failures else 0


def missing_references() -> str:
    """Return a sentence about the programs for comparison that are not installed; "" if all are."""
    absent = [path for path in (REFERENCE_PATH, plugin.LOOPBACK, str(plugin.PYTHON)) if not Path(path).exists()]
    packages = "containernetworking-plugins python3"
    return f"no {', '.join(absent)} to compare with: apt-get install {packages}" if absent else ""


def selected(names: Sequence[str] | None) -> frozenset[str]:
    """Return the measurements that make the named figures; all for None. Raises: ValueError for a name that no measurement makes."""
    if not names:
        return frozenset(GROUPS)
    chosen = set()
    for name in names:
        matching = {group for group, beginnings in GROUPS.items() if name == group or name.startswith(beginnings)}
        if not matching:
            raise ValueError(f"nothing measures {name!r}; there are: {', '.join(GROUPS)}")
        chosen |= matching
    return frozenset(chosen)


if __name__ == "__main__":
    sys.exit(main())
