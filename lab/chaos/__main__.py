"""`python -m lab.chaos --seed N --minutes M`: play a plan and report; after a violation, say how to play it again."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lab.chaos.nemesis import failpoint_names
from lab.chaos.plan import Event, Plan, make_plan
from lab.chaos.player import Options, play
from lab.chaos.report import Report
from lab.chaos.shrink import shrink
from lab.node.errors import NodeError
from lab.node.node import REPOSITORY

BUILD = REPOSITORY / "build"
HISTORY_LINES = 60
EXIT_VIOLATED, EXIT_NO_LAB = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Play one run; returns the exit status: 0 sound, 1 violated, 2 no lab could be built."""
    parser = argparse.ArgumentParser(prog="python -m lab.chaos", description="Chaos on three lab nodes, checked from outside.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long events come (default 30)")
    parser.add_argument("--without-ipv6", action="store_true", help="leave out the third node, whose sandboxes have IPv6")
    parser.add_argument("--policy", action="store_true", help="add a node with a policy agent, which is disturbed too")
    parser.add_argument("--branch", action="store_true", help="add a node with a trunk, and pods with security groups")
    parser.add_argument("--moves", action="store_true", help="add two nodes between which pods move with their addresses")
    parser.add_argument("--pools", action="store_true", help="have two pools of pods on these nodes, or on two more")
    parser.add_argument("--replay", type=Path, help="a plan written by an earlier run (build/chaos-SEED.plan.json)")
    parser.add_argument("--shrink", action="store_true", help="after a violation look for fewer events that suffice")
    parser.add_argument("--shrink-minutes", type=float, default=30.0, help="how long to look (default 30)")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first violation")
    parser.add_argument("--output", type=Path, default=BUILD / "chaos.json")
    parser.add_argument("--quiet", action="store_true", help="print the outcome only")
    options = parser.parse_args(argv)
    if options.replay is not None:
        plan = Plan.from_json(options.replay.read_text(encoding="utf-8"))
    else:
        names, ipv6 = failpoint_names(), not options.without_ipv6
        more = {"policy": options.policy, "branch": options.branch, "moves": options.moves, "pools": options.pools}
        plan = make_plan(options.seed, minutes=options.minutes, failpoints=names, ipv6=ipv6, **more)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    base = options.output.with_name(f"{options.output.stem}-{plan.seed}")
    try:
        report = _play(plan, base, echo=not options.quiet, goes_on=options.keep_going)
    except NodeError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return EXIT_NO_LAB
    options.output.write_text(report.to_json(), encoding="utf-8")
    print(f"chaos: {report}")
    if report.is_good:
        return 0
    _explain(report, plan, base)
    if report.violations and options.shrink:
        _shrink(plan, report, base, minutes=options.shrink_minutes)
    return EXIT_VIOLATED


def _play(plan: Plan, base: Path, *, echo: bool, goes_on: bool = False) -> Report:
    base.with_suffix(".plan.json").write_text(plan.to_json(), encoding="utf-8")
    name = f"chaos-{plan.seed}-{os.getpid()}"
    history, logs = base.with_suffix(".history.jsonl"), base.with_suffix(".logs")
    return play(plan, Options(name=name, history_path=history, logs=logs, echo=echo, goes_on=goes_on))


def _explain(report: Report, plan: Plan, base: Path) -> None:
    """Print the seed, the violations, the end of the history and of the logs, and how to play it again."""
    print(f"\nseed {plan.seed}: {len(report.violations)} violations")
    for violation in report.violations:
        print(f"  {violation}")
    history = base.with_suffix(".history.jsonl")
    print(f"\nthe last {HISTORY_LINES} lines of {history}")
    print("\n".join(history.read_text(encoding="utf-8").splitlines()[-HISTORY_LINES:]))
    for log in sorted(base.with_suffix(".logs").glob("*.ipamd.log")):
        print(f"\nthe last lines of {log}")
        print("\n".join(log.read_text(encoding="utf-8").splitlines()[-HISTORY_LINES:]))
    plan_path = base.with_suffix(".plan.json")
    print(f"\nplay it again: python -m lab.chaos --replay {plan_path}   (add --shrink to look for a smaller one)")


def _shrink(plan: Plan, report: Report, base: Path, *, minutes: float) -> None:
    """Drop the events after the violation, then all that are not needed to violate the same invariant."""
    invariant = report.violations[0].split(" ")[0]
    deadline = time.monotonic() + minutes * 60
    small = base.with_name(f"{base.name}-small")

    def fails(events: Sequence[Event]) -> bool:
        again = _play(plan.with_events(events), small, echo=False)
        broken = [violation for violation in again.violations if violation.split(" ")[0] == invariant]
        print(f"chaos: {len(events)} events: {broken[0] if broken else 'sound'}", flush=True)
        return bool(broken)

    before = [event for event in plan.events if event.at_s <= report.elapsed_s]
    kept = shrink(before, fails=fails, has_time=lambda: time.monotonic() < deadline)
    small.with_suffix(".plan.json").write_text(plan.with_events(kept).to_json(), encoding="utf-8")
    print(f"\n{len(kept)} of {len(plan.events)} events are left, in {small.with_suffix('.plan.json')}:")
    for event in kept:
        print(f"  {event}")


if __name__ == "__main__":
    sys.exit(main())
