"""`python -m bench.fleet`: simulate fleets in virtual time, and write build/fleet.json, a table and a plot.

The exit status is 0 even if a bound (`lines.py`) is not kept, because that is a result. The same seed gives the same figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.fleet.figures import auto, curve, filled, plot, table
from bench.fleet.scenarios import SCENARIOS, Scenario, run_timed, with_reference_scaled

OUTPUT = Path("build/fleet.json")
HOLDS_S = (300, 600, 1800, 3600, 7200, 14400)
CURVE = tuple(Scenario("day", "ip5-min10", 5, env=(("VPC_IPAMD_RELEASE_HOLD_SECONDS", str(hold_s)),)) for hold_s in HOLDS_S)
"""Scenarios with different hold windows (the time for which the pool waits before a release). They show how many calls a window saves,
and how many addresses it costs."""


def main(arguments: Sequence[str]) -> int:
    """Run the scenarios. Returns: the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--most", type=int, default=5000, help="leave out larger fleets (default: none)")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument(
        "--docs", type=Path, help="run nothing: put the figures of the last run into this page, and its plot beside it"
    )
    options = parser.parse_args(arguments)
    if options.docs is not None:
        return _fill(options.docs, options.output)
    wanted = [run for run in (*CURVE, *SCENARIOS) if run.node_count <= options.most and options.only in run.name]
    done: dict[tuple[str, int], dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    began_s, used_s = time.monotonic(), 0.0
    # Each row is made in a forked process, which has the modules already, and whose memory the kernel frees at once at its end.
    context = get_context("forkserver")
    context.set_forkserver_preload(["bench.fleet.scenarios"])
    with context.Pool(options.processes, maxtasksperchild=1) as pool:
        # The largest first, so that no process ends long after the others.
        largest_first = sorted(wanted, key=lambda run: (-run.node_count, run.trace))
        for row, cpu_s in pool.imap_unordered(run_timed, largest_first, chunksize=1):
            summary = f"{row['time_s']} s, bound {row['bound_s']} s, {cpu_s:.1f} s of CPU time"
            print(f"{row['name']} {row['nodes']}: {summary}", file=sys.stderr, flush=True)
            done[row["name"], row["nodes"]] = row
            used_s += cpu_s
            rows = _in_order(wanted, done)
            write(rows, options.output)  # after each row, so that finished rows are kept if the run is interrupted
    took = f"{time.monotonic() - began_s:.0f} s, {used_s:.0f} s of CPU time"
    print(f"{took} in {options.processes} processes", file=sys.stderr)
    print(table(rows))
    return 0


def _in_order(wanted: Sequence[Scenario], done: Mapping[tuple[str, int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the finished rows in the order of the report."""
    keys = [(run.name, run.node_count) for run in wanted]
    return [with_reference_scaled(done[key], list(done.values())) for key in keys if key in done]


def _fill(page: Path, output: Path) -> int:
    rows = json.loads(output.with_name(f"{output.stem}-details.json").read_text())["scenarios"]
    page.write_text(filled(page.read_text(), rows))
    (page.parent / "picture" / "fleet.svg").write_text(plot(rows))
    return 0


def write(rows: Sequence[Mapping[str, Any]], output: Path) -> None:
    """Write the report to `output`, and beside it a file with details, the tables for the docs, and the plot."""
    output.parent.mkdir(parents=True, exist_ok=True)
    bare = [{key: value for key, value in row.items() if key != "details"} for row in rows]
    output.write_text(json.dumps({"scenarios": bare}, indent=1) + "\n")
    output.with_name(f"{output.stem}-details.json").write_text(json.dumps({"scenarios": list(rows)}, indent=1) + "\n")
    output.with_suffix(".md").write_text(f"{table(rows)}\n\n{auto(rows)}\n\n{curve(rows)}\n")
    output.with_suffix(".svg").write_text(plot(rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
