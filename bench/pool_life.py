"""`pool_*`: EC2 calls and seconds of the phases of a node's life, in each mode: its start, growth to 27 and to 110 sandboxes, and the
drain to none.

EC2 has the delays of `cold`. Three settings are shortened so that the measurement can wait for them: the hold before a release, the
cooldown, and the delay of a spare ENI. They do not change the number of calls, because all sandboxes are deleted one after the other.
If a drain does not end with the addresses and rules of the start, the measurement fails.

`pool_*_churn_day`: calls that change EC2 in a day in which jobs come and go, in virtual time. `pool_one_by_one`: such calls for 60
pods, each of which comes when the one before has its address, in virtual time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from bench.cold import ATTACH_S, INSTANCE_TYPE, LATENCY_S, STORM_DEADLINE_S
from bench.figures import Figure
from bench.fleet.chain import SEEDS, growth
from bench.fleet.node import FleetNode
from bench.fleet.reference import ReferenceNode, reference
from bench.fleet.run import run_fleet
from bench.fleet.scenarios import SEED
from bench.fleet.traces import cron_day
from bench.stage import BenchError, Stage
from lab.node.daemon import PLUGIN_PATH
from lab.node.kernel_view import read_kernel
from lab.vpc.calls import Call
from lab.vpc.interfaces import Delays

MODES: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "ip_targets": {"WARM_IP_TARGET": "5", "MINIMUM_IP_TARGET": "10"},
    "prefix": {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "1"},
}
"""Mode -> settings. They are from the documentation of amazon-vpc-cni-k8s: its defaults, targets in addresses, and its example of
prefix delegation."""

SHORT = {"IP_COOLDOWN_PERIOD": "3", "VPC_IPAMD_RELEASE_HOLD_SECONDS": "5", "VPC_IPAMD_SPARE_ENI_DELAY_SECONDS": "0"}
STEPS = (27, 110)
"""Numbers of sandboxes to which the node grows: the pods of an m5.large, which is the usual size of nodes, and kubelet's default
maximum."""

DRAIN_S = 120.0
"""Longest time for a drain: it includes the hold, the cooldown, and 8 ENIs that are detached and deleted one after the other."""

QUIET_S = ATTACH_S + 1.0
"""The pool is at rest after this long without an EC2 call. Ours: longer than ATTACH_S, because no call is made while an attachment is
under way."""

POLL_S = 0.5

CHURN_NODES = 2
"""Nodes of the day of churn. Ours: the day of each node takes some seconds to simulate, and `bench/fleet` simulates more nodes."""


@dataclass(frozen=True)
class Phase:
    """One phase of the node's life, with its EC2 calls. `seconds`: until its work was done; for the start, until its last call."""

    name: str
    seconds: float
    calls: list[Call]

    def figure(self, mode: str) -> Figure:
        """Return a figure of the number of calls. The note has the time, and the calls by API."""
        kinds = Counter(call.api for call in self.calls)
        made = ", ".join(f"{count} {api}" for api, count in sorted(kinds.items())) or "none"
        return Figure(f"pool_{mode}_{self.name}", len(self.calls), "calls", note=f"{self.seconds:.1f} s; {made}")


def measure() -> list[Figure]:
    """Measure the life of a node in each mode, and then, in virtual time, a day of churn in each mode and the pods one by one."""
    figures = [phase.figure(mode) for mode, settings in MODES.items() for phase in live(settings)]
    return [*figures, *(churn_day(mode, settings) for mode, settings in MODES.items()), one_by_one()]


def one_by_one() -> Figure:
    """Simulate pods that come one by one, with our pool and with a model of amazon-vpc-cni-k8s's rules. An ADD that waits with our
    pool is refused and repeated in the model."""
    ours, theirs = growth(FleetNode), growth(ReferenceNode)
    note = f"{ours.waits:.0f} ADDs waited {ours.waited_s:.0f} s ({theirs.waits:.0f}, {theirs.waited_s:.0f} s); "
    note += f"{ours.held:.0f} addresses held ({theirs.held:.0f})"
    return Figure("pool_one_by_one", ours.calls, "calls", theirs.calls, "amazon-vpc-cni-k8s's rules", len(SEEDS), note)


def churn_day(mode: str, settings: Mapping[str, str]) -> Figure:
    """Simulate a day of jobs that come and go on CHURN_NODES nodes (`bench/fleet`), with our pool and with a model of
    amazon-vpc-cni-k8s's rules. Returns: the calls that change EC2, for each node."""
    trace = cron_day(CHURN_NODES, seed=SEED)
    ours = run_fleet(trace, settings, seed=SEED)
    theirs = run_fleet(trace, settings, seed=SEED, make_node=reference)
    note = f"{ours.held / CHURN_NODES:.1f} addresses held a node ({theirs.held / CHURN_NODES:.1f}), {ours.used / CHURN_NODES:.1f} used"
    return Figure(
        f"pool_{mode}_churn_day",
        ours.mutating_count / CHURN_NODES,
        "calls",
        theirs.mutating_count / CHURN_NODES,
        "amazon-vpc-cni-k8s's rules",
        CHURN_NODES,
        note,
    )


def live(settings: Mapping[str, str]) -> list[Phase]:
    """Measure a node from its start to 110 sandboxes and back. Raises: BenchError if it does not end as it began."""
    began = time.monotonic()
    with Stage(
        name="bench-pool",
        instance_type=INSTANCE_TYPE,
        daemon_env={**SHORT, **settings},
        faults={"apis": {"*": {"latency_s": LATENCY_S}}},
        delays=Delays(attach_s=ATTACH_S),
    ) as stage:
        calls = stage.lab.vpc.calls()
        phases = [Phase("bootstrap", calls[-1].at - began if calls else 0.0, calls)]
        at_rest = _held(stage)
        ids: list[str] = []
        for count in STEPS:
            phases.append(_phase(stage, f"to_{count}", partial(_raise, stage, ids, count)))
        phases.append(_phase(stage, "drain", lambda: _drain(stage, ids, at_rest)))
    return phases


def _phase(stage: Stage, name: str, work: Callable[[], None]) -> Phase:
    """Do the work of a phase. The EC2 calls that follow it, until the pool is at rest, count for the phase too."""
    stage.lab.vpc.clear_calls()
    started = time.monotonic()
    work()
    seconds = time.monotonic() - started
    deadline = time.monotonic() + DRAIN_S
    while (calls := stage.lab.vpc.calls()) and stage.lab.vpc.clock() - calls[-1].at < QUIET_S:
        if time.monotonic() > deadline:
            raise BenchError(f"EC2 is still called {DRAIN_S:.0f} s after {name}")
        time.sleep(POLL_S)
    return Phase(name, seconds, calls)


def _raise(stage: Stage, ids: list[str], count: int) -> None:
    """Attach sandboxes until there are `count`."""
    answer = stage.job("storm", path=PLUGIN_PATH, count=count - len(ids), tag=f"to-{count}", deadline_s=STORM_DEADLINE_S)
    ids += answer["ids"]


def _drain(stage: Stage, ids: list[str], at_rest: tuple[int, int]) -> None:
    """Delete all sandboxes, and wait until the node has no more ENIs and addresses than `at_rest`, and no rules of sandboxes."""
    stage.job("detach", path=PLUGIN_PATH, ids=ids)
    deadline = time.monotonic() + DRAIN_S
    while (held := _held(stage)) > at_rest or _foreign_rules(stage):
        if time.monotonic() > deadline:
            raise BenchError(
                f"not drained after {DRAIN_S:.0f} s: {held[0]} ENIs with {held[1]} addresses, {at_rest[0]} with {at_rest[1]} before; "
                f"rules left: {_foreign_rules(stage)}"
            )
        time.sleep(POLL_S)


def _held(stage: Stage) -> tuple[int, int]:
    """Return the number of the node's ENIs at EC2, and of their addresses without the primary ones. A prefix counts as 16
    addresses."""
    instance = stage.lab.vpc.instance("node-a")
    enis = stage.lab.vpc.enis_of(instance.instance_id)
    return len(enis), sum(len(eni.secondary_addresses) + 16 * len(eni.prefixes) for eni in enis)


def _foreign_rules(stage: Stage) -> list[str]:
    """Return the addresses for which the host still has rules of sandboxes."""
    view = read_kernel(stage.node)
    return sorted(view.to_rules | view.from_rules)
