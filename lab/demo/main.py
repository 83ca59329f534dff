"""`vpc-lab demo`: the steps in order, the diagnostics after a failure, the summary, the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TextIO

from lab.demo import crash, ipv6, moves, pools, report, setup, snat, teardown
from lab.demo.checks import Check, Checks, Step, Verdict, run_steps
from lab.demo.context import ADDRESSES_PER_ENI, ENI_LIMIT, INSTANCE_TYPE, PODS_PER_NODE, WORKERS_PER_NODE, DemoContext
from lab.demo.progress import Progress
from lab.errors import LabError
from lab.lab import missing_requirements
from lab.node import workspace

MACHINE_FIT = "this machine can run the lab"
CLEAN = "nothing of the lab is left on this machine"
LOG_LINES = 30  # ours, because: the last seconds of a busy daemon

BUILD = f"a VPC with two nodes ({INSTANCE_TYPE}: {ENI_LIMIT} ENIs x {ADDRESSES_PER_ENI} addresses), one of IPv6, and a host"
START = "the daemon starts on each node"
IPV6 = f"the node with IPv6: {ipv6.PODS} sandboxes"
RUN = f"{2 * PODS_PER_NODE} sandboxes, {WORKERS_PER_NODE} at a time on each node; the pool starts empty"
PING = "who reaches whom"
ELASTIC = "one more pod, with an elastic IP"
OTHER_POOL = "one more pod, of another pool"
MOVES = "one more pod, which moves to the other node with its address"
KILL = "kill -9 of one daemon; sandboxes are removed and created meanwhile"
RESTART = "restart and reconciliation"
LOSE = "kill -9 of the other daemon, and its datastore is deleted"
REMOVE = "all sandboxes are removed"
PROOF = "what is left in kernel and datastore"
AGREE = "EC2 against datastore, at idle"
HEAR = "what the observers saw"
TIDY = "the lab is taken down"


def demo(*, lab_name: str, json_path: Path, out: TextIO = sys.stdout) -> int:
    """Run the demo; returns the exit code. In every case the lab is removed, and an old JSON file is deleted."""
    json_path.unlink(missing_ok=True)
    missing = missing_requirements(containerd=True)
    if missing:
        print(f"vpc-lab: {missing}", file=sys.stderr)
        report.write_json(json_path, [Check(MACHINE_FIT, False, missing)], duration_s=0.0)
        return 1
    progress = Progress(out)
    checks = Checks(listener=progress.check)
    with ExitStack() as stack:
        context = DemoContext(lab_name=lab_name, progress=progress, stack=stack)
        run_steps(story(context), checks, announce=progress.step)
        if not report.is_ok(checks.all):
            _help(context)
        run_steps([Step(TIDY, (CLEAN,), partial(_tidy, context))], checks, announce=progress.step)
    duration_s = progress.elapsed_s
    report.write_json(json_path, checks.all, duration_s=duration_s)
    progress.text("\n" + report.summary(checks.all, duration_s=duration_s, json_path=json_path))
    return report.exit_code(checks.all)


def story(context: DemoContext) -> list[Step]:
    """The steps in order, each with what it promises and needs."""

    def step(title: str, promises: tuple[str, ...], run: Callable[[DemoContext, Verdict], None], needs: tuple[str, ...]) -> Step:
        return Step(title, promises, partial(run, context), needs)

    up = (BUILD, START)
    grown = (*up, RUN)
    back = (crash.BACK_READY, crash.BACK_SPOOL, crash.BACK_SAME, crash.BACK_WAITED)
    away = (crash.AWAY_REMOVE, crash.AWAY_TALK, crash.AWAY_OTHER, crash.AWAY_WAIT)
    agreed = (teardown.COOLED, teardown.IDLE, teardown.AGREE, teardown.NO_LEAK, teardown.AUDITED)
    heard = (teardown.NEVER_TWICE, teardown.NEVER_HOT, teardown.NO_DROPS, teardown.LAB_SOUND)
    return [
        step(BUILD, (setup.LAB_IS_UP,), setup.build, ()),
        step(START, (setup.DAEMONS_READY,), setup.start_daemons, (BUILD,)),
        step(RUN, (setup.PODS_RUN, setup.SECOND_ENI, setup.TAGGED), setup.run_pods, up),
        step(PING, (setup.ACROSS, setup.FROM_HOST), setup.ping, grown),
        step(ELASTIC, (snat.ELASTIC_IP,), snat.show, grown),
        step(OTHER_POOL, (pools.OTHER_POOL,), pools.show, grown),
        step(MOVES, (moves.MOVED,), moves.show, grown),
        step(IPV6, ipv6.PROMISES, ipv6.show, up),
        step(KILL, away, crash.without_daemon, grown),
        step(RESTART, back, crash.restart, (*grown, KILL)),
        step(LOSE, (crash.LOST_REBUILT, crash.LOST_SAME, crash.LOST_NEW), crash.lose_datastore, grown),
        step(REMOVE, (teardown.ALL_REMOVED,), teardown.remove_all, grown),
        step(PROOF, tuple(teardown.NOTHING_LEFT.values()), teardown.nothing_left, up),
        step(AGREE, agreed, teardown.agree, up),
        step(HEAR, heard, teardown.observers, (BUILD,)),
    ]


def _tidy(context: DemoContext, verdict: Verdict) -> None:
    """Remove the lab and look whether it is gone."""
    context.leave()
    left = context.lab_name in workspace.names()
    verdict(
        CLEAN, not left, f"see {workspace.STATE_ROOT / context.lab_name}" if left else "namespaces, cgroup and files are gone"
    )


def _help(context: DemoContext) -> None:
    """Show what somebody who looks for the cause asks first: each daemon's status and the end of its log."""
    try:
        nodes = context.every_node
    except LabError:
        return  # the lab did not come up: there is nobody to ask
    for node in nodes:
        with suppress(LabError):
            context.progress.text(f"\n---- {node.name}: ipamctl status\n{node.daemon.ipamctl('status').stdout}")
        with suppress(LabError):
            context.progress.text(
                f"\n---- {node.name}: the last {LOG_LINES} lines of the daemon's log\n{node.daemon.log_tail(LOG_LINES)}"
            )
