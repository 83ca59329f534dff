"""Plays a plan on two lab nodes with real containerd, the real plugin and the real daemon, under the eyes of the observer."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.chaos.books import Books
from lab.chaos.closing import Closing
from lab.chaos.journal import Journal
from lab.chaos.judge import Judge
from lab.chaos.kubelet import Kubelet
from lab.chaos.member import Member
from lab.chaos.observer import Observer
from lab.chaos.plan import NODES, Event, Kind, Plan
from lab.chaos.report import Report
from lab.lab import Lab
from lab.node.errors import NodeError
from lab.vpc.limits import LIMITS as REAL_LIMITS
from lab.vpc.limits import InstanceLimits
from lab.vpc.state import Vpc

HOST = "host-a"
READY_TIMEOUT_S = 60.0
ATTACH_DELAY_S = 0.6  # ours: long enough to be killed in; EC2's own takes seconds and would starve a 2-minute run
FAILPOINT_WAIT_S = 6.0  # ours: an armed daemon has this long to reach its point before the next mishap may hit it
LOG_LINES = 400
COOLDOWN = "IP_COOLDOWN_PERIOD"
TYPE = "m5.large"
LIMITS = {**REAL_LIMITS, TYPE: InstanceLimits((60,), 4)}
"""Ours: many ENIs of three addresses instead of three of nine, so that ENIs are made and attached throughout a run."""


@dataclass(frozen=True)
class Options:
    """How to play: `name` of the lab, where the history goes, whether to print, whether to go on after a violation."""

    name: str = ""
    history: Path | None = None
    logs: Path | None = None
    echo: bool = False
    goes_on: bool = False


def play(plan: Plan, options: Options) -> Report:
    """Play a plan to its end, or to its first violation.

    Raises: NodeError if the lab cannot be built.
    """
    journal = Journal(options.history, echo=options.echo)
    cooldown_s = float(plan.env[NODES[0]][COOLDOWN])
    books = Books(clock=journal.now, cooldown_s=cooldown_s, report=journal.violate)
    judge = Judge(cooldown_s=cooldown_s)
    with ExitStack() as stack:
        stack.callback(journal.close)
        lab = stack.enter_context(
            Lab(
                name=options.name,
                nodes=NODES,
                hosts=[HOST],
                instance_type=TYPE,
                vpc=Vpc(limits=LIMITS, attach_delay_s=ATTACH_DELAY_S, seed=plan.seed),
            )
        )
        journal.start()
        run = _Run(lab, plan, journal=journal, books=books, judge=judge, goes_on=options.goes_on)
        stack.callback(run.close)
        run.open()
        try:
            run.play()
            run.finish()
        finally:
            if options.logs is not None:
                run.save_logs(options.logs)
        return Report.of(
            plan,
            counts=journal.counts,
            violations=journal.violations,
            orphan_count=len(judge.orphans),
            round_count=run.observer.round_count,
            longest_round_s=run.observer.longest_round_s,
            elapsed_s=journal.now(),
            facts=run.facts,
        )


class _Run:
    """One run; its own thread feeds events to the nodes' threads."""

    def __init__(self, lab: Lab, plan: Plan, *, journal: Journal, books: Books, judge: Judge, goes_on: bool) -> None:
        self._lab = lab
        self._plan = plan
        self._journal = journal
        self._books = books
        self._goes_on = goes_on
        self._pause = threading.Event()
        self._faults_in_force = 0
        self.facts: dict[str, Any] = {}
        self._members = {
            name: Member(lab.node(name), region=lab.vpc.region, env=plan.env[name], books=books, journal=journal)
            for name in NODES
        }
        self._kubelets = {name: Kubelet(self._members[name], books=books, journal=journal) for name in NODES}
        members = list(self._members.values())
        self.observer = Observer(lab, members=members, host=HOST, books=books, journal=journal, judge=judge)

    def open(self) -> None:
        """Start both daemons and wait for them. Raises: NodeError."""
        for member in self._members.values():
            member.open()
        for member in self._members.values():
            if not member.wait_ready(READY_TIMEOUT_S):
                raise NodeError(f"{member.name}: the daemon is not ready before chaos began\n{member.log_tail(30)}")
        self._journal.start()

    def play(self) -> None:
        """Do every event at its time; stop early after a violation."""
        order = itertools.count()
        agenda: list[tuple[float, int, Callable[[], None]]] = []
        for event in self._plan.events:
            heapq.heappush(agenda, (event.at_s, next(order), lambda event=event: self._do(event)))  # type: ignore[misc]
            if event.kind is Kind.CLOUD_FAULT:
                end_s = event.at_s + float(event.arg("for_s"))
                heapq.heappush(agenda, (end_s, next(order), lambda event=event: self._undo(event)))  # type: ignore[misc]
        with self.observer:
            while agenda and not self._is_over:
                at_s, _, action = heapq.heappop(agenda)
                while (left_s := at_s - self._journal.now()) > 0 and not self._is_over:
                    self._pause.wait(min(left_s, 0.2))
                if not self._is_over:
                    action()
            self._lab.faults.clear()
            self.observer.faults_are(in_force=False)
            if not self._is_over:
                self._closing().calm()

    def finish(self) -> None:
        """The last, strict audit; nothing after a violation, for the scene is to be looked at."""
        if not self._is_over:
            self.facts.update(self._closing().audit())

    def save_logs(self, directory: Path) -> None:
        """Write the ends of both nodes' logs."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, member in self._members.items():
            (directory / f"{name}.ipamd.log").write_text(member.log_tail(20 * LOG_LINES), encoding="utf-8")
            containerd = member.log_tail(LOG_LINES, "/var/log/containerd.log")
            (directory / f"{name}.containerd.log").write_text(containerd, encoding="utf-8")

    def close(self) -> None:
        """End every thread."""
        for kubelet in self._kubelets.values():
            kubelet.close()
        for member in self._members.values():
            member.close()

    @property
    def _is_over(self) -> bool:
        return bool(self._journal.violations) and not self._goes_on

    def _closing(self) -> Closing:
        members: Sequence[Member] = list(self._members.values())
        return Closing(self._lab, members=members, kubelets=list(self._kubelets.values()), journal=self._journal)

    def _do(self, event: Event) -> None:
        if event.kind is Kind.CLOUD_FAULT:
            self._faults_in_force += 1
            self.observer.faults_are(in_force=True)
            self._lab.faults.apply(event.arg("apply"))
            self._journal.say(f"fault {event.arg('name')} for {event.arg('for_s')} s", counted=f"fault {event.arg('name')}")
            return
        member, kubelet = self._members[event.node], self._kubelets[event.node]
        if event.kind is Kind.RUN_POD:
            kubelet.run_pod(event.arg("pod"))
        elif event.kind is Kind.REMOVE_POD:
            kubelet.remove_pod(event.arg("pod"))
        else:
            member.queue(lambda: self._mishap(event, member))

    def _undo(self, event: Event) -> None:
        self._lab.faults.apply(event.arg("undo"))
        self._journal.note(f"fault {event.arg('name')} ended")
        self._faults_in_force -= 1
        if not self._faults_in_force:
            self.observer.faults_are(in_force=False)

    def _mishap(self, event: Event, member: Member) -> None:
        if self._is_over:
            return
        args: Mapping[str, Any] = event.args or {}
        name = f"fault {event.kind}" if event.kind in (Kind.DELETE_WIRING, Kind.STEP_CLOCK) else f"kill {event.kind}"
        words = " ".join(str(value) for value in args.values())
        self._journal.say(f"{event.kind} {words}", node=member.name, counted=name)
        match event.kind:
            case Kind.KILL_DAEMON:
                member.kill_daemon(down_s=args["down_s"])
            case Kind.ARM_FAILPOINT:
                if args["name"].startswith("growth."):
                    member.want_more()
                member.kill_daemon(down_s=args["down_s"], armed=f"{args['name']}:{args['count']}", lose=args["lose"])
                member.await_end(FAILPOINT_WAIT_S)
            case Kind.LOSE_DATASTORE:
                member.kill_daemon(down_s=args["down_s"], lose=True)
            case Kind.STOP_DAEMON:
                member.stop_daemon(down_s=args["down_s"])
            case Kind.KILL_RUNTIME:
                member.kill_runtime(down_s=args["down_s"])
            case Kind.STEP_CLOCK:
                member.step_clock(args["offset_s"])
            case Kind.DELETE_WIRING:
                self._delete_wiring(member, what=args["what"], pick=args["pick"])
            case _:
                raise ValueError(f"{event.kind} is no mishap")

    def _delete_wiring(self, member: Member, *, what: str, pick: float) -> None:
        """Take something from under the daemon; what is not there (any more) stays so."""
        if what == "nft":
            member.node.run(["nft", "delete", "table", "ip", "vpc-ipamd"], check=False)
            return
        living = self._books.living(member.name)
        if not living:
            return
        address = living[int(pick * len(living))].address
        member.damage(address)
        argv = {
            "to-rule": ["ip", "rule", "del", "to", address, "pref", "512"],
            "from-rule": ["ip", "rule", "del", "from", address, "pref", "1536"],
            "route": ["ip", "route", "del", address],
        }[what]
        done = member.node.run(argv, check=False)
        self._journal.note(f"deleted the {what} of {address}", node=member.name, status=done.returncode)
