"""`vpc-lab demo`: the story in order, the help when something fails, the summary, the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TextIO

from lab.demo import closing, crash, opening, report
from lab.demo.checks import Check, Checks, Step, Verdict, run_steps
from lab.demo.progress import Progress
from lab.demo.scene import ADDRESSES_PER_ENI, ENI_LIMIT, INSTANCE_TYPE, PODS_PER_NODE, WORKERS_PER_NODE, Scene
from lab.lab import missing_requirements
from lab.node import ground
from lab.vpc.errors import LabError

MACHINE_FIT = "this machine can run the lab"
CLEAN = "nothing of the lab is left on this machine"
LOG_LINES = 30  # ours, because: the last seconds of a busy daemon

BUILD = f"a VPC with two nodes ({INSTANCE_TYPE}: {ENI_LIMIT} ENIs x {ADDRESSES_PER_ENI} addresses) and a host"
START = "the daemon starts on both nodes"
RUN = f"{2 * PODS_PER_NODE} sandboxes, {WORKERS_PER_NODE} at a time on each node; the pool starts empty"
PING = "who reaches whom"
KILL = "kill -9 of one daemon; sandboxes are removed and created meanwhile"
RESTART = "restart and reconciliation"
LOSE = "kill -9 of the other daemon, and its datastore is deleted"
REMOVE = "all sandboxes are removed"
PROOF = "what is left in kernel and datastore"
AGREE = "EC2 against datastore, at idle"
HEAR = "what the witnesses saw"
TIDY = "the lab is taken down"


def demo(*, lab_name: str, json_path: Path, out: TextIO = sys.stdout) -> int:
    """Run the demo; the exit code. Whatever happens, nothing of the lab is left and an old JSON file does not survive."""
    json_path.unlink(missing_ok=True)
    missing = missing_requirements(containerd=True)
    if missing:
        print(f"vpc-lab: {missing}", file=sys.stderr)
        report.write_json(json_path, [Check(MACHINE_FIT, False, missing)], duration_s=0.0)
        return 1
    progress = Progress(out)
    checks = Checks(listener=progress.check)
    with ExitStack() as stack:
        scene = Scene(lab_name=lab_name, progress=progress, stack=stack)
        run_steps(story(scene), checks, announce=progress.step)
        if not report.is_ok(checks.all):
            _help(scene)
        run_steps([Step(TIDY, (CLEAN,), partial(_tidy, scene))], checks, announce=progress.step)
    duration_s = progress.elapsed_s
    report.write_json(json_path, checks.all, duration_s=duration_s)
    progress.text("\n" + report.summary(checks.all, duration_s=duration_s, json_path=json_path))
    return report.exit_code(checks.all)


def story(scene: Scene) -> list[Step]:
    """The steps in order, each with what it promises and needs."""

    def step(title: str, promises: tuple[str, ...], run: Callable[[Scene, Verdict], None], needs: tuple[str, ...]) -> Step:
        return Step(title, promises, partial(run, scene), needs)

    up = (BUILD, START)
    grown = (*up, RUN)
    back = (crash.BACK_READY, crash.BACK_SPOOL, crash.BACK_SAME, crash.BACK_RETRY)
    away = (crash.AWAY_REMOVE, crash.AWAY_REFUSE, crash.AWAY_TALK, crash.AWAY_OTHER)
    agreed = (closing.COOLED, closing.IDLE, closing.AGREE, closing.NO_LEAK, closing.AUDITED)
    heard = (closing.NEVER_TWICE, closing.NEVER_HOT, closing.NO_DROPS, closing.LAB_SOUND)
    return [
        step(BUILD, (opening.LAB_IS_UP,), opening.build, ()),
        step(START, (opening.DAEMONS_READY,), opening.start_daemons, (BUILD,)),
        step(RUN, (opening.PODS_RUN, opening.SECOND_ENI, opening.TAGGED), opening.run_pods, up),
        step(PING, (opening.ACROSS, opening.FROM_HOST), opening.ping, grown),
        step(KILL, away, crash.without_daemon, grown),
        step(RESTART, back, crash.restart, (*grown, KILL)),
        step(LOSE, (crash.LOST_REBUILT, crash.LOST_SAME, crash.LOST_NEW), crash.lose_datastore, grown),
        step(REMOVE, (closing.ALL_REMOVED,), closing.remove_all, grown),
        step(PROOF, tuple(closing.NOTHING_LEFT.values()), closing.nothing_left, up),
        step(AGREE, agreed, closing.agree, up),
        step(HEAR, heard, closing.witnesses, (BUILD,)),
    ]


def _tidy(scene: Scene, verdict: Verdict) -> None:
    """Remove the lab and look whether it is gone."""
    scene.leave()
    left = scene.lab_name in ground.names()
    verdict(CLEAN, not left, f"see {ground.STATE_ROOT / scene.lab_name}" if left else "namespaces, cgroup and files are gone")


def _help(scene: Scene) -> None:
    """Show what somebody who looks for the cause asks first: each daemon's status and the end of its log."""
    try:
        members = scene.members
    except LabError:
        return  # the lab did not come up: there is nobody to ask
    for member in members:
        with suppress(LabError):
            scene.progress.text(f"\n---- {member.name}: ipamctl status\n{member.ipamctl('status')}")
        with suppress(LabError):
            scene.progress.text(
                f"\n---- {member.name}: the last {LOG_LINES} lines of the daemon's log\n{member.log_tail(LOG_LINES)}"
            )
