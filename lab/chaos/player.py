"""Plays a plan on lab nodes with real containerd, the real plugin and the real daemon, while the observer checks them."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.chaos.checker import Checker
from lab.chaos.control import ChaosControl
from lab.chaos.expected_state import ExpectedState, PodRecord
from lab.chaos.final_checks import FinalChecks
from lab.chaos.hands import OtherHands
from lab.chaos.healing import Healing
from lab.chaos.history import History
from lab.chaos.kubelet import Kubelet
from lab.chaos.lies import DENIALS, DESCRIBE_LIES, SLOTS
from lab.chaos.mover import Mover
from lab.chaos.node import ADDRESSES_PER_ENI, ChaosNode
from lab.chaos.observer import Observer
from lab.chaos.pair import Pair
from lab.chaos.plan import BRANCH_NODE, COOLDOWN_S, PAIR_NODES, Event, Kind, Plan
from lab.chaos.report import Report
from lab.lab import IPV6_CIDR, Lab
from lab.node.errors import NodeError
from lab.node.kernel_view import OWN_TABLE, nft_tables
from lab.vpc.interfaces import Delays
from lab.vpc.limits import LIMITS as REAL_LIMITS
from lab.vpc.limits import InstanceLimits
from lab.vpc.state import Vpc

HOST, STRANGER = "host-a", "host-b"
"""Whom every pod answers; whom no security group names, in runs with a trunk."""

READY_TIMEOUT_S = 60.0
ATTACH_DELAY_S = 0.6  # ours: long enough to be killed in; EC2's own takes seconds and would starve a 2-minute run
FAILPOINT_WAIT_S = 6.0  # ours: an armed daemon has this long to reach its point before the next event may hit it
LOG_LINES = 400
COOLDOWN = "IP_COOLDOWN_PERIOD"
MOVES_SETTING, POOLS_SETTING = "VPC_IPAMD_PINNED_ADDRESSES", "VPC_IPAMD_POOL_ANNOTATION_NAMESPACES"
BRANCH_COOLS_S = 1.0
"""How much longer a branch cools than an address of the pool. Ours: enough to tell the two apart, and short beside a run."""

TYPE = "m5.large"
LIMITS = {**REAL_LIMITS, TYPE: InstanceLimits((60,), ADDRESSES_PER_ENI, shared_slots=SLOTS, branches=9)}
"""Ours: many ENIs of three addresses instead of three of nine, so that ENIs are made and attached throughout a run."""


@dataclass(frozen=True)
class Options:
    """How to play: `name` of the lab, where the history goes, whether to print, whether to go on after a violation."""

    name: str = ""
    history_path: Path | None = None
    logs: Path | None = None
    echo: bool = False
    goes_on: bool = False


def play(plan: Plan, options: Options) -> Report:
    """Play a plan to its end, or to its first violation.

    Raises: NodeError if the lab cannot be built.
    """
    history = History(options.history_path, echo=options.echo)
    cooldown_s = float(plan.env[plan.nodes[0]][COOLDOWN])
    expected = ExpectedState(clock=history.now, cooldown_s=cooldown_s, report=history.violate)
    checker = Checker(cooldown_s=cooldown_s)
    with ExitStack() as stack:
        stack.callback(history.close)
        lab = stack.enter_context(
            Lab(
                name=options.name,
                nodes=plan.nodes,
                hosts=[HOST, STRANGER] if _has_groups(plan) else [HOST],
                instance_type=TYPE,
                vpc=Vpc(
                    limits=LIMITS,
                    delays=Delays(attach_s=ATTACH_DELAY_S),
                    seed=plan.seed,
                    ipv6_cidr=IPV6_CIDR,  # without a node of it too: other hands attach ENIs that have nothing else
                ),
            )
        )
        history.start()
        run = _Run(lab, plan, history=history, expected=expected, checker=checker, goes_on=options.goes_on)
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
            counts=history.counts,
            violations=history.violations,
            orphan_count=len(checker.orphans),
            round_count=run.observer.round_count,
            longest_round_s=run.observer.longest_round_s,
            busiest_minute=run.observer.busiest_minute,
            doubled=expected.doubled,
            elapsed_s=history.now(),
            facts=run.facts,
        )


def _has_groups(plan: Plan) -> bool:
    """Whether a host is needed that no security group names."""
    return BRANCH_NODE in plan.nodes or POOLS_SETTING in plan.env.get(PAIR_NODES[0], {})


class _Run:
    """One run; its own thread feeds events to the nodes' threads."""

    def __init__(
        self, lab: Lab, plan: Plan, *, history: History, expected: ExpectedState, checker: Checker, goes_on: bool
    ) -> None:
        self._lab = lab
        self._plan = plan
        self._history = history
        self._expected = expected
        self._goes_on = goes_on
        self._unplaced = checker.unplaced
        self._pause = threading.Event()
        self._faults_in_force = 0
        self._lies_in_force = 0
        self._moves_under_way: list[Event] = []
        self.facts: dict[str, Any] = {}
        self._nodes = {
            name: ChaosNode(lab.node(name), region=lab.vpc.region, env=plan.env[name], expected=expected, history=history)
            for name in plan.nodes
        }
        families = {name: node.daemon.family for name, node in self._nodes.items()}
        self._controls = {
            name: ChaosControl(lab, name, friend=HOST, cooldown_s=COOLDOWN_S + BRANCH_COOLS_S, history=history)
            for name, node in self._nodes.items()
            if node.has_branches
        }
        self._pair = self._prepared_pair()
        self._hands = OtherHands(lab, expected=expected, history=history, families=families)
        self._kubelets = {
            name: Kubelet(
                node,
                expected=expected,
                history=history,
                control=self._controls.get(name),
                pair=self._pair if name in PAIR_NODES else None,
            )
            for name, node in self._nodes.items()
        }
        self._mover = self._made_mover()
        nodes, stranger = list(self._nodes.values()), STRANGER if _has_groups(plan) else ""
        self.observer = Observer(
            lab, nodes=nodes, host=HOST, expected=expected, history=history, checker=checker, stranger=stranger
        )

    def _prepared_pair(self) -> Pair | None:
        """Prepare what EC2 has for the pair of nodes; None without them."""
        env = self._plan.env.get(PAIR_NODES[0])
        if env is None:
            return None
        pair = Pair(self._lab, nodes=PAIR_NODES, friend=HOST)
        if MOVES_SETTING in env:
            pair.reserve_ranges()
        if POOLS_SETTING in env:
            pair.prepare_pools()
        return pair

    def _made_mover(self) -> Mover | None:
        if MOVES_SETTING not in self._plan.env.get(PAIR_NODES[0], {}):
            return None
        nodes = {name: self._nodes[name] for name in PAIR_NODES}
        kubelets = {name: self._kubelets[name] for name in PAIR_NODES}
        return Mover(self._lab, nodes=nodes, kubelets=kubelets, history=self._history)

    def open(self) -> None:
        """Start all daemons and wait for them. Raises: NodeError."""
        for control in self._controls.values():
            control.open()
        for node in self._nodes.values():
            node.open()
        for node in self._nodes.values():
            if not node.wait_ready(READY_TIMEOUT_S):
                raise NodeError(f"{node.name}: the daemon is not ready before chaos began\n{node.daemon.log_tail()}")
        self._lab.faults.apply(self._plan.cloud)
        self._history.start()

    def play(self) -> None:
        """Play every event at its time; stop early after a violation."""
        order = itertools.count()
        agenda: list[tuple[float, int, Callable[[], None]]] = []
        for event in self._plan.events:
            heapq.heappush(agenda, (event.at_s, next(order), lambda event=event: self._do(event)))  # type: ignore[misc]
            if event.kind in (Kind.CLOUD_FAULT, Kind.MOVE_POD):
                end_s = event.at_s + float(event.arg("for_s"))
                heapq.heappush(agenda, (end_s, next(order), lambda event=event: self._undo(event)))  # type: ignore[misc]
        with self.observer:
            while agenda and not self._is_over:
                at_s, _, action = heapq.heappop(agenda)
                while (left_s := at_s - self._history.now()) > 0 and not self._is_over:
                    self._pause.wait(min(left_s, 0.2))
                if not self._is_over:
                    action()
            self._lab.faults.clear()
            self._lab.faults.apply(self._plan.cloud)
            self.observer.faults_are(in_force=False)
            self.observer.describe_lies(in_force=False)
            if not self._is_over:
                self._healing().demand()
            if self._mover is not None and not self._is_over:
                self._mover.demand()
            if not self._is_over:
                for control in self._controls.values():
                    control.calm()
                self._final_checks().calm()

    def finish(self) -> None:
        """Run the final checks; after a violation do nothing, so that the nodes can be examined."""
        if not self._is_over:
            if self._mover is not None:
                self._mover.demand_gone()
            self.facts.update(self._final_checks().audit())
        for problem in (problem for control in self._controls.values() for problem in control.problems()):
            self._history.say(f"the lab itself is not sound: {problem}", counted="lab error")

    def save_logs(self, directory: Path) -> None:
        """Write the ends of all nodes' logs, and what their kernels hold."""
        directory.mkdir(parents=True, exist_ok=True)
        for node in self._nodes.values():
            node.save_logs(directory, lines=LOG_LINES)
        for name, control in self._controls.items():
            (directory / f"{name}.branches.log").write_text("".join(control.lines()), encoding="utf-8")

    def close(self) -> None:
        """End every thread."""
        for kubelet in self._kubelets.values():
            kubelet.close()
        for node in self._nodes.values():
            node.close()
        for control in self._controls.values():
            control.close()

    @property
    def _is_over(self) -> bool:
        return bool(self._history.violations) and not self._goes_on

    def _final_checks(self) -> FinalChecks:
        nodes: Sequence[ChaosNode] = list(self._nodes.values())
        kubelets = list(self._kubelets.values())
        return FinalChecks(self._lab, nodes=nodes, kubelets=kubelets, book=self._expected.book, history=self._history)

    def _healing(self) -> Healing:
        nodes: Sequence[ChaosNode] = list(self._nodes.values())
        return Healing(
            self._lab,
            nodes=nodes,
            host=HOST,
            expected=self._expected,
            history=self._history,
            unplaced=self._unplaced,
        )

    def _do(self, event: Event) -> None:
        if event.kind is Kind.CLOUD_FAULT:
            self._faults_in_force += 1
            self.observer.faults_are(in_force=True)
            self._lie(event, 1)
            self._lab.faults.apply(event.arg("apply"))
            self._history.say(f"fault {event.arg('name')} for {event.arg('for_s')} s", counted=f"fault {event.arg('name')}")
            return
        if event.kind is Kind.MOVE_POD:
            self._move(event)
            return
        if event.kind is Kind.OTHER_HANDS:
            self._hands.do(event.node, event.args or {})  # at once: hands do not wait for a daemon that is down
            return
        if event.kind is Kind.DISTURB_AGENT:
            self._nodes[event.node].disturb_agent(event.args or {})
            return
        if event.kind is Kind.DISTURB_CONTROL:
            self._controls[event.node].disturb(event.args or {})
            return
        node, kubelet = self._nodes[event.node], self._kubelets[event.node]
        if event.kind is Kind.RUN_POD:
            kubelet.run_pod(event.arg("pod"))
        elif event.kind is Kind.REMOVE_POD:
            kubelet.remove_pod(event.arg("pod"))
        else:
            node.queue(lambda: self._disturb(event, node))

    def _move(self, event: Event) -> None:
        """Begin to move a pod. A node that is cut off from EC2 meanwhile is a fault of the cloud for its daemon."""
        if self._mover is not None and self._mover.begin(event.arg("pod"), event.arg("how"), for_s=event.arg("for_s")):
            self._moves_under_way.append(event)
            if event.arg("how") == "cut":
                self._faults_in_force += 1
                self.observer.faults_are(in_force=True)

    def _end_move(self, event: Event) -> None:
        if self._mover is None or event not in self._moves_under_way:
            return
        self._moves_under_way.remove(event)
        self._mover.finish(event.arg("pod"))
        if event.arg("how") == "cut":
            self._end_fault()

    def _end_fault(self) -> None:
        self._faults_in_force -= 1
        if not self._faults_in_force:
            self.observer.faults_are(in_force=False)

    def _undo(self, event: Event) -> None:
        if event.kind is Kind.MOVE_POD:
            self._end_move(event)
            return
        self._lab.faults.apply(event.arg("undo"))
        self._lie(event, -1)
        self._history.note(f"fault {event.arg('name')} ended")
        if event.arg("name") in DENIALS:
            for node in self._nodes.values():
                node.queue(node.retry)
        self._end_fault()

    def _lie(self, event: Event, more: int) -> None:
        """Count the faults that have Describe leave objects out, and tell the observer when there are some."""
        if event.arg("name") in DESCRIBE_LIES:
            self._lies_in_force += more
            self.observer.describe_lies(in_force=bool(self._lies_in_force))

    def _disturb(self, event: Event, node: ChaosNode) -> None:
        if self._is_over:
            return
        args: Mapping[str, Any] = event.args or {}
        name = f"fault {event.kind}" if event.kind in (Kind.DELETE_WIRING, Kind.STEP_CLOCK) else f"kill {event.kind}"
        words = " ".join(str(value) for value in args.values())
        self._history.say(f"{event.kind} {words}", node=node.name, counted=name)
        match event.kind:
            case Kind.KILL_DAEMON:
                node.kill_daemon(down_s=args["down_s"])
            case Kind.ARM_FAILPOINT:
                if args["name"].startswith("growth."):
                    node.want_more()
                node.kill_daemon(down_s=args["down_s"], armed=f"{args['name']}:{args['count']}", lose=args["lose"])
                node.await_end(FAILPOINT_WAIT_S)
            case Kind.LOSE_DATASTORE:
                node.kill_daemon(down_s=args["down_s"], lose=True)
            case Kind.STOP_DAEMON:
                node.stop_daemon(down_s=args["down_s"])
            case Kind.KILL_RUNTIME:
                node.kill_runtime(down_s=args["down_s"])
            case Kind.STEP_CLOCK:
                self._expected.book.stepped(args["offset_s"])
                node.step_clock(args["offset_s"])
            case Kind.DELETE_WIRING:
                self._delete_wiring(node, what=args["what"], pick=args["pick"])
            case _:
                raise ValueError(f"{event.kind} is nothing that the nemesis does")

    def _delete_wiring(self, node: ChaosNode, *, what: str, pick: float) -> None:
        """Remove part of the wiring behind the daemon's back; nothing happens if it is not there."""
        if what == "nft":
            node.damage_nft()
            for table in nft_tables(node.daemon.family, node.daemon.egress):
                node.lab_node.run(["nft", "delete", "table", *table], check=False)
            return
        living = self._expected.wanted(node.name)
        if not living:
            return
        record = living[int(pick * len(living))]
        address = record.address
        node.damage(address)
        if record.vlan:
            self._delete_branch_wiring(node, record, what)
            return
        argv = {
            "to-rule": ["ip", "route", "del", address, "table", OWN_TABLE],
            "from-rule": ["ip", "rule", "del", "from", address],  # at 1536, or in its bucket
            "route": ["ip", "route", "del", address],
            "egress-route": ["ip", "route", "del", record.egress],
            "vlan-link": ["ip", "route", "del", address],
        }[what]
        done = node.lab_node.run(argv, check=False)
        if what == "from-rule":  # and one of the rules that lead to buckets, if the node has them
            node.lab_node.run(["ip", "rule", "del", "pref", "1537"], check=False)
        self._history.note(f"deleted the {what} of {address}", node=node.name, status=done.returncode)

    def _delete_branch_wiring(self, node: ChaosNode, record: PodRecord, what: str) -> None:
        """The same of a branch's: its link, its default route, or what leads the sandbox there."""
        link, table = f"vlan.eth.{record.vlan}", str(100 + record.vlan)
        argvs = {
            "vlan-link": [["ip", "link", "del", link]],
            "route": [["ip", "route", "del", "default", "table", table]],
            "to-rule": [["ip", "route", "del", record.address, "table", one] for one in (table, OWN_TABLE)],
            "from-rule": [
                ["ip", "rule", "del", "iif", link, "pref", "10"],
                ["ip", "rule", "del", "from", record.address, "pref", "1536"],
            ],
        }[what]
        done = [node.lab_node.run(argv, check=False).returncode for argv in argvs]
        self._history.note(f"deleted the {what} of the branch of {record.address}", node=node.name, status=min(done))
