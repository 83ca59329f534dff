"""A pool in virtual time: the shipped planner and demand window, pods from a trace, EC2 with fixed delays.

A trace is a list of pods, each with its arrival and its life in seconds. Releases are simpler than the daemon's, and in favour of
WARM_ENI_TARGET: an ENI's worth is released at once as soon as a whole one more than needed is free; with IP targets, what has been
above the target for a minute.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from itertools import count

from ipamd.model.auto_target import resolved
from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.growth_state import GrowthState
from ipamd.model.ids import EniId
from ipamd.model.plan import excess_count, plan
from ipamd.model.pool_actions import Allocate, CreateEni, Growth, ReleaseAddresses, ReleaseEni
from ipamd.model.pool_counts import PoolCounts
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot
from ipamd.pool.demand_window import SETTLE_S, DemandWindow

COOLDOWN_S = 30.0
ALLOCATION_S, CREATION_S = 0.6, 6.0
EXCESS_S = 60.0

Trace = list[tuple[float, float]]


@dataclass(slots=True)
class Outcome:
    """What a run cost: addresses held on average, ADDs that waited, EC2 calls; `targets`: each change of the target with its time."""

    held: float = 0.0
    waited: int = 0
    calls: int = 0
    targets: list[tuple[float, int]] = field(default_factory=list)


class PoolSimulation:
    """One node's pool."""

    def __init__(self, settings: PoolSettings, limits: InstanceLimits) -> None:
        self.settings = replace(settings, max_pods=limits.max_pods)
        self.limits = limits
        self.now_s = 0.0
        self.enis = [0]
        self.assigned = self.cooling = self.waiting = self.served = 0
        self.lives: list[float] = []
        self.outcome = Outcome()
        self.window = DemandWindow()
        self.is_busy = False
        self.excess_since_s: float | None = None
        self.events: list[tuple[float, int, str, object]] = []
        self.order = count()
        self.next_look_s = 0.0

    @property
    def free(self) -> int:
        """Addresses that a pod can have."""
        return sum(self.enis) - self.assigned - self.cooling

    def run(self, trace: Trace, *, total_s: float) -> Outcome:
        """Play a trace to its end."""
        for at_s, life_s in trace:
            self.push(at_s, "arrive", life_s)
        self.push(0.0, "look")
        while self.events and self.events[0][0] <= total_s:
            at_s, _, what, value = heapq.heappop(self.events)
            self.outcome.held += sum(self.enis) * (at_s - self.now_s)
            self.now_s = at_s
            self.happen(what, value)
            if not self.is_busy and not (self.events and self.events[0][0] == at_s):
                self.cycle()
        self.outcome.held = (self.outcome.held + sum(self.enis) * (total_s - self.now_s)) / total_s
        return self.outcome

    def push(self, at_s: float, what: str, value: object = None) -> None:
        """Let something happen later."""
        heapq.heappush(self.events, (at_s, next(self.order), what, value))

    def happen(self, what: str, value: object) -> None:
        """Apply one event."""
        match what, value:
            case "arrive", float(life_s):
                self.lives.append(life_s)
                self.waiting += 1
                self.outcome.waited += self.free <= 0
            case "leave", _:
                self.assigned, self.cooling = self.assigned - 1, self.cooling + 1
                self.push(self.now_s + COOLDOWN_S, "cooled")
            case "cooled", _:
                self.cooling -= 1
            case "done", Allocate(eni_id, number, 0):
                self.enis[int(eni_id[4:])] += number
                self.is_busy = False
            case "done", CreateEni(_, number):
                self.enis.append(number)
                self.is_busy = False
        while self.waiting and self.free > 0:
            self.waiting, self.assigned, self.served = self.waiting - 1, self.assigned + 1, self.served + 1
            self.push(self.now_s + self.lives.pop(0), "leave")

    def snapshot(self) -> PoolSnapshot:
        """What the planner sees."""
        growth = GrowthState(demand=self.window.measured_demand(self.settings, now_s=self.now_s))
        enis = (EniCapacity(EniId(f"eni-{n}"), n, EniState.ATTACHED, used) for n, used in enumerate(self.enis))
        counts = PoolCounts(free=self.free, assigned=self.assigned, cooling=self.cooling)
        return PoolSnapshot(tuple(enis), counts, self.limits, waiting_count=self.waiting, growth=growth)

    def cycle(self) -> None:
        """What the pool's thread does after a wake-up."""
        counts = PoolCounts(free=self.free, assigned=self.assigned, cooling=self.cooling)
        self.window.observe(counts, self.settings, waiting_count=self.waiting, served_count=self.served, now_s=self.now_s)
        snapshot = self.snapshot()
        target = resolved(snapshot, self.settings).warm_ip_target
        if not self.outcome.targets or self.outcome.targets[-1][1] != target:
            self.outcome.targets.append((self.now_s, target))
        decided = plan(snapshot, settings=self.settings)
        if decided.actions:
            action = decided.actions[0]
            assert not isinstance(action, ReleaseAddresses | ReleaseEni)
            self.act(action)
        else:
            self.release(excess_count(snapshot, resolved(snapshot, self.settings)))
        if decided.is_postponed:
            self.push(self.now_s + self.window.quiet_in_s(SETTLE_S, now_s=self.now_s), "look")
        fades_s = self.window.next_change_s(self.settings, now_s=self.now_s) if self.settings.warm_target_auto else None
        if fades_s is not None and self.now_s + fades_s > self.next_look_s:
            self.next_look_s = self.now_s + fades_s
            self.push(self.next_look_s, "look")

    def act(self, action: Growth) -> None:
        """Ask EC2; the answer comes later."""
        took_s = CREATION_S if isinstance(action, CreateEni) else ALLOCATION_S
        self.outcome.calls += 4 if isinstance(action, CreateEni) else 1
        self.is_busy = True
        self.window.record_growth_time(action, took_s=took_s)
        self.push(self.now_s + took_s, "done", action)

    def release(self, excess: int) -> None:
        """Give back what is above the target."""
        if not self.settings.ip_targets_defined:
            while self.free >= 2 * self.limits.slots_per_eni and len(self.enis) > 1:
                self.enis.pop()
                self.outcome.calls += 2
            return
        if excess <= 0:
            self.excess_since_s = None
        elif self.excess_since_s is None:
            self.excess_since_s = self.now_s
            self.push(self.now_s + EXCESS_S, "look")
        elif self.now_s - self.excess_since_s >= EXCESS_S:
            self.excess_since_s = None
            self.return_unused(excess)

    def return_unused(self, number: int) -> None:
        """Unassign from the last ENIs first; an ENI that is empty goes."""
        while number > 0:
            share = min(number, self.enis[-1])
            self.enis[-1] -= share
            number -= share
            self.outcome.calls += 1
            if not self.enis[-1] and len(self.enis) > 1:
                self.enis.pop()
                self.outcome.calls += 2
