"""`pool_*`: EC2 calls and seconds of a node's life, in each mode: bootstrap, up to 27 and to 110 sandboxes, and back to none.

EC2 has the delays of the cold pool. The hold, the cooldown and a spare ENI's delay are short, so that what follows can be waited
for; all sandboxes leave one after the other, so none of them changes the number of calls. A drain that does not end at the target,
at EC2 and in the host's rules, is no figure but a failure.

`pool_one_by_one`: changing calls to 60 pods that each come when the one before has its address, in virtual time.
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
"""What amazon-vpc-cni-k8s documents: its defaults, targets in addresses, and its example of prefix delegation."""

SHORT = {"IP_COOLDOWN_PERIOD": "3", "VPC_IPAMD_RELEASE_HOLD_SECONDS": "5", "VPC_IPAMD_SPARE_ENI_DELAY_SECONDS": "0"}
STEPS = (27, 110)
"""Sandboxes: the pods of a node of the size that most clusters have (m5.large), and kubelet's default maximum."""

DRAIN_S = 120.0
"""Bound of a drain: hold, cooldown, and 8 ENIs, detached and deleted one after the other."""

QUIET_S = ATTACH_S + 1.0
"""Without a call for so long the pool is at rest: an attachment takes ATTACH_S without one."""

POLL_S = 0.5

CHURN_NODES = 2
"""Nodes of the day of churn. Ours: a day of one node takes some seconds; the fleet simulation has more of them."""


@dataclass(frozen=True)
class Phase:
    """What one part of the life cost. `seconds`: until its work was done, or its last call."""

    name: str
    seconds: float
    calls: list[Call]

    def figure(self, mode: str) -> Figure:
        """The number of calls, with the time and the kinds in the note."""
        kinds = Counter(call.api for call in self.calls)
        made = ", ".join(f"{count} {api}" for api, count in sorted(kinds.items())) or "none"
        return Figure(f"pool_{mode}_{self.name}", len(self.calls), "calls", note=f"{self.seconds:.1f} s; {made}")


def measure() -> list[Figure]:
    """Live through each mode on a node of its own; then a day of churn in each, in virtual time."""
    figures = [phase.figure(mode) for mode, settings in MODES.items() for phase in live(settings)]
    return [*figures, *(churn_day(mode, settings) for mode, settings in MODES.items()), one_by_one()]


def one_by_one() -> Figure:
    """Ours beside the model of amazon-vpc-cni-k8s's rules, whose ADDs are refused and come again where ours wait."""
    ours, theirs = growth(FleetNode), growth(ReferenceNode)
    note = f"{ours.waits:.0f} ADDs waited {ours.waited_s:.0f} s ({theirs.waits:.0f}, {theirs.waited_s:.0f} s); "
    note += f"{ours.held:.0f} addresses held ({theirs.held:.0f})"
    return Figure("pool_one_by_one", ours.calls, "calls", theirs.calls, "amazon-vpc-cni-k8s's rules", len(SEEDS), note)


def churn_day(mode: str, settings: Mapping[str, str]) -> Figure:
    """A day of jobs that come and go on CHURN_NODES nodes (`bench/fleet`): calls that change something, a node; beside a model of
    amazon-vpc-cni-k8s's rules on the same day."""
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
    """One node from its start to 110 sandboxes and back. Raises: BenchError if it does not end where it began."""
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
    """Do the work; the calls that follow it until the pool is at rest are its own too."""
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
    """Delete all sandboxes and wait until EC2 and the host have what they had before the first one, or less."""
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
    """ENIs of the node at EC2, and the addresses on them besides the primary ones, those of prefixes included."""
    instance = stage.lab.vpc.instance("node-a")
    enis = stage.lab.vpc.enis_of(instance.instance_id)
    return len(enis), sum(len(eni.secondary_addresses) + 16 * len(eni.prefixes) for eni in enis)


def _foreign_rules(stage: Stage) -> list[str]:
    """Rules of sandboxes that are no more."""
    view = read_kernel(stage.node)
    return sorted(view.to_rules | view.from_rules)
