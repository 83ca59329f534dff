"""`python -m fuzz`: run the targets, print a table and each finding with its replay, write build/fuzz.json.

Exit status: 0 without findings, 1 with.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fuzz import corpus, runner, scale
from fuzz.runner import Finding, Outcome, Share

OUTPUT = Path("build/fuzz.json")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz everything that reads what others send.")
    parser.add_argument("--scale", choices=scale.SCALES, default="usual", help="how many cases (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same cases (default: %(default)s)")
    parser.add_argument("--only", action="append", choices=list(scale.CASES), metavar="TARGET", help="may be repeated")
    parser.add_argument("--case", metavar="N[-M]", help="only this case, or these, of the one target of --only")
    parser.add_argument("--input", type=Path, metavar="FILE", help="only this case from a file, for the one target of --only")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="workers at a time (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="JSON report (default: %(default)s)")
    options = parser.parse_args(arguments)
    if (options.case or options.input) and len(options.only or ()) != 1:
        parser.error("--case and --input need one --only")
    started_s = time.monotonic()
    outcomes = runner.run(work(options), seed=options.seed, jobs=options.jobs, tell=lambda line: print(line, file=sys.stderr))
    _print_report(outcomes, seconds=time.monotonic() - started_s)
    if not options.case and not options.input:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        facts = {"seed": options.seed, "scale": options.scale, "seconds": round(time.monotonic() - started_s, 1)}
        options.output.write_text(json.dumps({**facts, "targets": [_summary(outcome) for outcome in outcomes]}, indent=2) + "\n")
    return 1 if any(outcome.findings for outcome in outcomes) else 0


def work(options: argparse.Namespace) -> list[Share]:
    """Decide which cases to run."""
    if options.input:
        return [Share(options.only[0], 0, 0, (options.input,))]
    if options.case:
        first, _, last = options.case.partition("-")
        return [Share(options.only[0], int(first), int(last or first) + 1)]
    counts = scale.counts(options.scale)
    return runner.shares({name: counts[name] for name in options.only or counts}, jobs=options.jobs)


def _summary(outcome: Outcome) -> dict[str, object]:
    details = [
        {"case": found.label, "kind": found.kind, "times": found.times, "message": found.message, "replay": found.replay()}
        for found in outcome.findings
    ]
    return {"name": outcome.name, "cases": outcome.case_count, "findings": len(outcome.findings), "details": details}


def _print_report(outcomes: Sequence[Outcome], *, seconds: float) -> None:
    for outcome in outcomes:
        for number, found in enumerate(outcome.findings):
            _print_finding(found, number)
    print(f"\n{'target':<22}{'cases':>10}{'findings':>10}")
    for outcome in outcomes:
        print(f"{outcome.name:<22}{outcome.case_count:>10}{len(outcome.findings):>10}")
    print(
        f"{'all':<22}{sum(o.case_count for o in outcomes):>10}{sum(len(o.findings) for o in outcomes):>10}   in {seconds:.0f} s"
    )


def _print_finding(found: Finding, number: int) -> None:
    print(f"\n{found.target}, case {found.label}: {found.kind}, seen {found.times} times")
    print(f"  {found.message.strip()}\n  replay: {found.replay()}")
    if found.case:
        path = corpus.FINDINGS / f"{found.target}-{found.seed}-{number}.txt"
        corpus.write(path, corpus.parsed(found.case), comment=f"{found.kind}: {re.sub(chr(10), ' ', found.message)[:300]}")
        print(f"  as small as it gets: python -m fuzz --only {found.target} --input {path}")


if __name__ == "__main__":
    sys.exit(main())
