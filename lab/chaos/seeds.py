"""`python -m lab.chaos.seeds --minutes 2`: which seed's plan has most in it, to choose the one of the tests."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lab.chaos.nemesis import failpoint_names
from lab.chaos.plan import Kind, Plan, make_plan


def variety(plan: Plan) -> frozenset[str]:
    """Name the different things that a plan does: kinds of events, faults of the cloud, deeds of other hands."""
    return frozenset(
        str(event.kind) + str(event.arg("name", "") if event.kind is Kind.CLOUD_FAULT else event.arg("what", ""))
        for event in plan.events
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the best seeds, best first, with what they do."""
    parser = argparse.ArgumentParser(prog="python -m lab.chaos.seeds")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--first", type=int, default=200, help="how many seeds to look at (default: %(default)s)")
    parser.add_argument("--show", type=int, default=5, help="how many to print (default: %(default)s)")
    options = parser.parse_args(argv)
    names = failpoint_names()
    found = {seed: variety(make_plan(seed, minutes=options.minutes, failpoints=names)) for seed in range(options.first)}
    for seed in sorted(found, key=lambda seed: (-len(found[seed]), seed))[: options.show]:
        print(f"{seed}: {len(found[seed])}: {', '.join(sorted(found[seed]))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
