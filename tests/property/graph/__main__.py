# ruff: noqa: T201
"""`python -m tests.property.graph --seeds 1-2000`: play seeds, and tell of each that failed its shortest storm and what happened.

Prints the most calls of each kind within an hour of every lasting state. Exit status 1 if any seed failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence

from ipamd.model.family import IPV4, IPV6
from tests.property.graph.scenario import Outcome, Step, run, script, told


def shortest(seed: int, problem: str, *, tries: int) -> tuple[Sequence[Step], Outcome]:
    """Leave out steps, many and then few at once, as long as a problem of the same kind remains."""
    steps, kind = script(seed), problem.split(":")[0]
    best = run(seed, steps=steps)
    size = len(steps) // 2
    while size and tries > 0:
        at = 0
        while at < len(steps) and tries > 0:
            fewer = steps[:at] + steps[at + size :]
            tries -= 1
            outcome = run(seed, steps=fewer)
            if any(one.split(":")[0] == kind for one in outcome.problems):
                steps, best = fewer, outcome
            else:
                at += size
        size //= 2
    return steps, best


def main() -> int:
    """Play; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.property.graph", description=__doc__)
    parser.add_argument("--seeds", default="1-100", help="one, or first-last")
    parser.add_argument(
        "--shrink", type=int, default=0, metavar="TRIES", help="shorten a failing storm, with so many runs at most"
    )
    parser.add_argument("--ipv6", action="store_true", help="with a pool of IPv6")
    parser.add_argument("--branches", action="store_true", help="with branch ENIs and a policy agent")
    parser.add_argument("--trace", action="store_true", help="tell everything of each seed")
    wanted = parser.parse_args()
    first, _, last = wanted.seeds.partition("-")
    hourly: dict[str, Counter[str]] = {}
    failed = 0
    for seed in range(int(first), int(last or first) + 1):
        outcome = run(seed, family=IPV6 if wanted.ipv6 else IPV4, has_branches=wanted.branches)
        for state, counted in outcome.hourly.items():
            hourly.setdefault(state, Counter())
            hourly[state] |= counted
        if outcome.problems:
            failed += 1
            print(f"seed {seed}: {outcome.problems[0]}", flush=True)
            if wanted.shrink:
                steps, outcome = shortest(seed, outcome.problems[0], tries=wanted.shrink)
                print(f"  {len(steps)} of {len(script(seed))} events are enough")
                print(told(outcome), flush=True)
        elif seed % 50 == 0:
            print(f"seed {seed}", flush=True)
        if wanted.trace:
            print("\n".join(outcome.trace))
    for state, counted in sorted(hourly.items()):
        print(f"{state:30} {', '.join(f'{method} {count}' for method, count in counted.most_common()) or '-'}")
    print(f"{failed} seeds failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # one order of sets, whoever asks
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.property.graph", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"}
        )
    sys.exit(main())
