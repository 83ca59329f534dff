"""`python -m bench.fleet`: simulate fleets in virtual time; build/fleet.json, a table and a plot.

The exit status is 0 even when a line is not held, because that is a result. The figures depend on the seed alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.fleet.figures import auto, curve, filled, plot, table
from bench.fleet.scenarios import SCENARIOS, Scenario, run_scenario, with_reference_scaled

OUTPUT = Path("build/fleet.json")
HOLDS_S = (300, 600, 1800, 3600, 7200, 14400)
CURVE = tuple(Scenario("day", "ip5-min10", 10, env=(("VPC_IPAMD_RELEASE_HOLD", str(hold_s)),)) for hold_s in HOLDS_S)
"""How many calls a hold window saves, and how many addresses it costs."""


def main(arguments: Sequence[str]) -> int:
    """Run the scenarios; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--most", type=int, default=5000, help="leave out larger fleets (default: none)")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument(
        "--docs", type=Path, help="run nothing: put the figures of the last run into this page, and its plot beside it"
    )
    given = parser.parse_args(arguments)
    if given.docs is not None:
        return _fill(given.docs, given.output)
    wanted = [one for one in (*CURVE, *SCENARIOS) if one.node_count <= given.most and given.only in one.name]
    with get_context("spawn").Pool(given.processes, maxtasksperchild=1) as pool:
        rows: list[dict[str, Any]] = []
        for row in pool.imap(run_scenario, wanted, chunksize=1):
            print(f"{row['name']} {row['nodes']}: {row['time_s']} s, bound {row['bound_s']} s", file=sys.stderr, flush=True)
            rows.append(with_reference_scaled(row, rows))
            write(rows, given.output)  # what is done is kept, whatever ends the run
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} s of CPU time in {given.processes} processes", file=sys.stderr)
    print(table(rows))
    return 0


def _fill(page: Path, output: Path) -> int:
    rows = json.loads(output.with_name(f"{output.stem}-details.json").read_text())["scenarios"]
    page.write_text(filled(page.read_text(), rows))
    (page.parent / "picture" / "fleet.svg").write_text(plot(rows))
    return 0


def write(rows: Sequence[Mapping[str, Any]], output: Path) -> None:
    """Write the report, the details beside it, the table for the docs, and the plot."""
    output.parent.mkdir(parents=True, exist_ok=True)
    bare = [{key: value for key, value in row.items() if key != "details"} for row in rows]
    output.write_text(json.dumps({"scenarios": bare}, indent=1) + "\n")
    output.with_name(f"{output.stem}-details.json").write_text(json.dumps({"scenarios": list(rows)}, indent=1) + "\n")
    output.with_suffix(".md").write_text(f"{table(rows)}\n\n{auto(rows)}\n\n{curve(rows)}\n")
    output.with_suffix(".svg").write_text(plot(rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
