"""Keep the pool at its target: take a snapshot, plan, execute one action, repeat.

`ipamd/model/plan.py` decides, with `ipamd/model/release.py` what is released, and the provisioner executes. Events wake the
maintainer (an ADD, a cooled address, a restart), and a timer only while something is due: an idle node makes no EC2 call (I13).
No lock that ADD or DEL needs is held while EC2 is asked (I10).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from ipamd.core.agenda import EC2, soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.core.demand import PoolStatus
from ipamd.core.loop import Loop
from ipamd.eni.limits import FAULT, RELEASE_DENIED, RELEASE_FAILED, Asked
from ipamd.eni.provisioner import EniProvisioner
from ipamd.eni.security_groups import SecurityGroups
from ipamd.eni.steps import GIVING_BACK, report_refused
from ipamd.model.branch import ASK_FOR_TRUNK
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.eni import ADDRESSES_PER_PREFIX, InstanceLimits
from ipamd.model.errors import CloudDeniedError, CloudError, EniLimitError, IpamError, ThrottledError, log_text
from ipamd.model.ids import SubnetId
from ipamd.model.placement import is_prefix_mode, trunk_places
from ipamd.model.plan import AutoTarget, Plan, auto_target, deficit_count, plan, surplus_count, wanted_count
from ipamd.model.pool import (
    Blocked,
    CreateEni,
    Growth,
    GrowthState,
    Hold,
    PoolSettings,
    PoolSnapshot,
    Refusal,
    Release,
    ReleaseAddresses,
    ReleaseEni,
    pool_snapshot,
)
from ipamd.model.release import Draining, draining, eni_min_age_s, needs_slot, releasable
from ipamd.pool.demand_window import SETTLE_S, DemandWindow

COALESCE_S = 0.02
"""Pause after a trigger while no ADD waits, so that one plan serves several. Ours, measured: planning beside every ADD of a burst
cost a fifth of the daemon's CPU."""

MAX_ACTIONS_PER_WAKE = 32
"""Limit for one wake-up: twice the 15 ENIs of the largest common types, each filled once. Ours."""

AHEAD = ("subnets ahead of growth",)
"""Of the agenda: learnt once, at the start of a node without a free address."""

NO_PREFIXES = (
    "prefixes: {} is not built on Nitro and cannot have any; single addresses are allocated instead, as if "
    "ENABLE_PREFIX_DELEGATION were not set: use a Nitro type, or unset it for these nodes"
)
"""Source of the fallback: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, isConfigValid."""

NO_IPV6 = "IPv6: {} is not built on Nitro and has no /80, so no pod gets an address: use a Nitro or bare-metal type"

if TYPE_CHECKING:
    from ipamd.eni.branches import BranchComparison

log = logging.getLogger(__name__)


class PoolMaintainer(Service):
    """One network card's pool.

    What other threads read is one reference each, assigned whole: it needs no lock.
    """

    def __init__(
        self,
        context: ServiceContext,
        *,
        provisioner: EniProvisioner,
        security_groups: SecurityGroups,
        branches: BranchComparison | None,
        identity: Callable[[], InstanceIdentity | None],
        settings: PoolSettings,
    ) -> None:
        super().__init__(context)
        self._provisioner = provisioner
        self._enis = provisioner.enis
        self._security_groups = security_groups
        self._branches = branches
        self._subnets = provisioner.subnets
        self._identity = identity
        self._freeze = context.freeze
        self.settings = settings
        """The targets in force."""
        self._drain_other_kind(is_prefix_mode=settings.prefix_delegation)  # ADDs are served before the instance type is known
        self.limits: InstanceLimits | None = None
        """What the instance type can carry; None until it is known."""
        self._refused = provisioner.subnets.limits
        self._window = DemandWindow()
        self._known: tuple[Callable[..., PoolSnapshot], PoolSnapshot] | None = None
        self._is_postponed = False
        self.loop = Loop("pool", self.turn, health=context.health, clock=context.clock, changed=context.demand.triggered)

    @property
    def auto(self) -> AutoTarget | None:
        """The target that followed from demand at the last cycle; None without WARM_TARGET=auto."""
        known = self._known
        return auto_target(known[1], self.settings) if known is not None and self.settings.warm_target_auto else None

    def outlook(self) -> PoolSnapshot | None:
        """Make the planner's input from what the pool's thread knew at its last cycle and the datastore now; None before its first.

        For any thread: what EC2 has taught is not asked of objects that are the pool thread's own.
        """
        known = self._known
        if known is None:
            return None
        snapshot_of, then = known
        return replace(snapshot_of(self._datastore.stock(), waiting_count=self._demand.waiting()[0]), hold=then.hold)

    def set_limits(self, limits: InstanceLimits, *, settings: PoolSettings) -> None:
        """Set the limits of the instance type: the pool may grow from now on."""
        self.settings = settings  # first: once there are limits, these are in force
        self.limits = limits
        has_prefixes = settings.prefix_delegation and limits.supports_prefixes
        self._drain_other_kind(is_prefix_mode=has_prefixes)
        is_without = settings.prefix_delegation and not has_prefixes
        sentence = NO_IPV6 if settings.family.is_sparse else NO_PREFIXES
        self._health.report("prefixes", sentence.format(limits.instance_type) if is_without else "")
        self._demand.trigger()

    def _drain_other_kind(self, *, is_prefix_mode: bool) -> None:
        """Have what belongs to the mode that is off given last, so that it comes free (docs/adr/0029)."""
        self._datastore.set_draining(Draining(prefixes=not is_prefix_mode, singles=is_prefix_mode))

    def turn(self) -> float | None:
        """Run once. Returns: seconds until something is due by itself; None: an idle pool has no timer (I13)."""
        self._demand.coalesce(COALESCE_S)
        due_deadline = None
        try:
            due_deadline = self.run_once()
        except Exception as error:  # noqa: BLE001  # the pause is the pool's own, which status tells and plans go by
            self._health.record_error("pool", error)
            log.warning("the pool maintainer continues error=%s", log_text(error))
            self._refused.put_off(FAULT, error, EC2)
            self._publish(log_text(error), self._refused.refusal(FAULT), generation=self._demand.waiting()[1])
        left_s = None if due_deadline is None else max(due_deadline - self._clock.monotonic(), 0.0)
        return soonest_s([self._pause_s(), left_s])

    def run_once(self) -> float | None:
        """Do what one wake-up asks for: the pool grows towards its target, and security groups follow the primary ENI's.

        Returns: the monotonic point at which the plan has to be made anew though nothing happens; None without one.
        """
        self.cycle()  # first: an ADD may wait for it, and creating an ENI asks metadata again
        # Now: what follows may block past it, and nothing would show it any more.
        pause_s, deadline = self._pause_s(), self._demand.status.retry_deadline
        due_deadline = soonest_s([deadline, None if pause_s is None else self._clock.monotonic() + pause_s])
        if self.limits is not None:  # before, the cloud thread may be recording what EC2 shows: only one thread at a time
            self._enis.resync_due()
            if (identity := self._identity()) is not None:
                self._provisioner.leaked_enis.run_due(identity)
            if (identity := self._identity()) is not None:
                self._security_groups.follow(identity)
            if self._branches is not None:
                self._branches.compare()
        return due_deadline

    def cycle(self) -> Plan | None:
        """Plan and act until the target is reached or the pool cannot grow; returns the last plan, None before limits."""
        for _ in range(MAX_ACTIONS_PER_WAKE):
            waiting, generation = self._demand.waiting()
            if waiting:
                self._enis.routing.retry_due()
            counts, served_count, now_s = self._datastore.counts(), self._demand.served_count, self._clock.monotonic()
            if self.limits is not None:  # before, what EC2 shows may not be recorded yet
                self._window.observe(counts, self.settings, waiting_count=waiting, served_count=served_count, now_s=now_s)
            snapshot = self.snapshot(waiting_count=waiting)
            if snapshot is None:
                identity = self._identity()
                if identity is not None and not counts.free and self._agenda.is_due(AHEAD):
                    self._agenda.put(AHEAD, in_s=inf)
                    self._subnets.learn(identity)  # beside the question for the limits: else the first growth would wait for it
                self._publish("the instance's limits are not known yet", None, generation=0)
                return None
            if self._refused.drop_stale_cap(snapshot.known_eni_count):
                continue
            self._provisioner.note_wanted(wanted_count(snapshot, self.settings))
            decided = plan(snapshot, settings=self.settings)
            surplus = surplus_count(snapshot, self.settings)
            self._window.record_surplus(surplus, self.settings, now_s=now_s)
            before = self._datastore.draining().enis
            self._datastore.set_draining(draining(snapshot, self.settings, surplus=surplus, before=before))
            self._is_postponed = decided.is_postponed
            self._publish(decided.sentence, decided.blocked, generation=generation, decided=decided)
            if self.loop.is_stopped or self._refused.refusal(FAULT) is not None:
                return decided
            if self._provisioner.has_due_intents():
                problems = self._provisioner.recover_due()  # their outcome changes what is needed: plan anew
                for error in problems:
                    self._note_failure(error, is_urgent=waiting > 0)
                if not problems:
                    self._note_success()
            elif not decided.actions:
                if not decided.deficit_count:
                    self._note_success()  # nobody needs what EC2 refused any more
                    return decided
                if (identity := self._identity()) is None or not self._subnets.look_again(identity):
                    return decided
            elif isinstance(action := decided.actions[0], ReleaseAddresses | ReleaseEni):
                self._give_back(action, snapshot)
                self._demand.trigger()  # one at a time: whatever else is due comes first
                return decided
            else:
                self._grow(action, snapshot)
        log.warning("the pool maintainer continues at its next wake-up actions=%d", MAX_ACTIONS_PER_WAKE)
        self._demand.trigger()
        return None

    def _report_trunk(self, snapshot: PoolSnapshot) -> None:
        """Say that the trunk is missed; whether the control plane has a place for it is what EC2 tells it."""
        missed = trunk_places(snapshot, self.settings)
        is_full = snapshot.known_eni_count >= snapshot.limits.eni_count
        full = (
            "; every place for an ENI is taken, so it cannot be attached: drain the node, or remove pods from it"
            if is_full
            else ""
        )
        sentence = f"trunk: no trunk ENI is attached: pods with security groups cannot start here{full}; next: {ASK_FOR_TRUNK}"
        self._health.report("trunk", sentence if missed else "")

    def snapshot(self, *, waiting_count: int = 0) -> PoolSnapshot | None:
        """Make the planner's input from one consistent read of memory; None while the instance's limits are not known."""
        if self.limits is None:
            return None
        snapshot_of = partial(
            pool_snapshot,
            limits=self.limits,
            fault=self._refused.refusal(FAULT),
            growth=self._growth(is_urgent=waiting_count > 0),
            occupied=self._enis.book.shown().values(),
            refused=self._enis.book.refused(),
            taken=self._enis.routing.unplugged(),
            frozen=self._freeze.reason,
            is_frozen_ahead=self._freeze.is_ahead_of_need,
            has_trunk=self._enis.book.trunk() is not None,
        )
        snapshot = snapshot_of(self._datastore.stock(), waiting_count=waiting_count)
        snapshot = replace(snapshot, hold=self._hold(snapshot))
        self._known = (snapshot_of, snapshot)
        self._report_trunk(snapshot)
        return snapshot

    def _growth(self, *, is_urgent: bool) -> GrowthState:
        """What stands in the way of growth, what is under way, and what was seen of demand."""
        now_s, routing = self._clock.monotonic(), self._enis.routing
        known = self._refused.state(home=self._home(), candidates=self._subnets.candidates, is_urgent=is_urgent)
        return replace(
            self._provisioner.with_pending(known),
            slot_caps={**known.slot_caps, **dict.fromkeys(routing.frozen(), 0)},
            host=routing.refusal(),
            has_stuck_eni=routing.has_stuck_eni(),
            is_spare_eni_settling=self._window.quiet_in_s(self._spare_eni_delay_s(), now_s=now_s) > 0,
            demand=self._window.seen(self.settings, now_s=now_s),
        )

    def _hold(self, snapshot: PoolSnapshot) -> Hold:
        """What is known of the surplus over time, and what may be named. To name addresses costs a look at all of them."""
        settings, now_s = self.settings, self._clock.monotonic()
        settled = self._window.settled_count(settings, kept_count=self._kept_count(snapshot), now_s=now_s)
        settled = None if settled is None else min(settled, surplus_count(snapshot, settings))
        has_unit = (
            settings.ip_targets_defined or is_prefix_mode(snapshot, settings) or any(eni.prefix_count for eni in snapshot.enis)
        )
        may_go = (settled and has_unit) or any(eni.is_excluded and eni.counts.free for eni in snapshot.enis)
        may_go = may_go and not snapshot.waiting_count
        may_go = may_go or (needs_slot(snapshot, settings) and deficit_count(snapshot, settings) > 0)
        refusal = self._refused.refusal(RELEASE_DENIED, RELEASE_FAILED)
        if refusal is None and self._provisioner.has_open_intents():
            refusal = Refusal("an earlier call to EC2 is not finished")  # one after the other: a crash leaves little open
        return Hold(
            settled_count=settled,
            ages={eni_id: RECENT_S - left_s for eni_id, left_s in self._enis.book.added_enis().items()},
            releasable=releasable(self._datastore.snapshot(), held=self._datastore.held()) if may_go else {},
            refusal=refusal,
        )

    def _kept_count(self, snapshot: PoolSnapshot) -> int | None:
        """What is held for the whole window where whole ENIs are the unit: one of them. None: everything is."""
        is_by_eni = not self.settings.ip_targets_defined and not is_prefix_mode(snapshot, self.settings)
        return snapshot.limits.slots_per_eni if is_by_eni else None

    def _grow(self, action: Growth, snapshot: PoolSnapshot) -> None:
        """Do one action; a refusal becomes a limit. What is refused is not asked for again, whatever the plan says (I18)."""
        known = snapshot.growth
        is_at_cap = known.eni_cap is not None and snapshot.known_eni_count >= known.eni_cap
        refused = (known.creation or (known.cap if is_at_cap else None)) if isinstance(action, CreateEni) else known.allocation
        if refused is not None:
            log.error("the plan asks for what is refused action=%s reason=%s", action, refused.reason)
            self._refused.put_off(FAULT, CloudError(f"the plan asks for what is refused: {refused.reason}"), EC2)
            return
        identity = self._identity()
        if identity is not None and self._subnets.look_before(action, identity):
            return  # an ENI is excluded now, or not any more
        home = self._home()
        eni = None if isinstance(action, CreateEni) else self._datastore.eni(action.eni_id)
        asked = Asked(
            action,
            home=home,
            is_other_subnet=eni is not None and home is not None and eni.subnet_id != home,
            is_urgent=snapshot.waiting_count > 0,
            used_slot_count=sum(one.used_slot_count for one in snapshot.enis if eni is not None and one.eni_id == eni.eni_id),
        )
        if home and eni and not (action.prefix_count or asked.is_other_subnet) and self._refused.recheck_room(home, action):
            return
        began_s = self._clock.monotonic()
        try:
            self._provisioner.execute(action)
        except IpamError as error:
            if isinstance(error, EniLimitError):  # the creation has compared with EC2 after it: ENIs of others may be known now
                now = self.snapshot(waiting_count=snapshot.waiting_count) or snapshot
                asked = replace(asked, attached_count=now.known_eni_count, foreign_count=now.unmanaged_eni_count)
            self._refused.learn(asked, error)
            self._note_failure(error, is_urgent=asked.is_urgent)
        else:
            self._refused.succeeded(asked)
            self._window.grew(action, took_s=self._clock.monotonic() - began_s)
            self._note_success()

    def _give_back(self, action: Release, snapshot: PoolSnapshot) -> None:
        """Give one thing back. A refusal stops no growth, and is no error of the pool."""
        now_s = self._clock.monotonic()
        try:
            is_asked = self._provisioner.release(action)
        except IpamError as error:
            self._refused.learn_release(error)
            report_refused(self._health, error)
            log.warning("a release failed action=%s error=%s", action, log_text(error))
            return
        if not is_asked:  # pause, or a plan that never fits would be tried in a loop
            self._refused.put_off(RELEASE_FAILED, IpamError("an ADD or a comparison with EC2 was faster than the plan"), EC2)
            return
        self._refused.clear(RELEASE_FAILED, RELEASE_DENIED)
        eni = next((eni for eni in snapshot.enis if eni.eni_id == action.eni_id), None)
        if eni is None or eni.is_excluded:  # what is on an excluded ENI was no surplus
            count = 0
        elif isinstance(action, ReleaseEni):
            count = eni.counts.total
        else:
            count = len(action.addresses) + len(action.prefixes) * ADDRESSES_PER_PREFIX
        self._window.released(count, self.settings, kept_count=self._kept_count(snapshot), now_s=now_s)

    def _home(self) -> SubnetId | None:
        """The subnet that new ENIs go to by themselves."""
        identity = self._identity()
        return None if identity is None else self._subnets.home(identity)

    def _pause_s(self) -> float | None:
        """Seconds until something is due by itself; None: an idle pool has no timer (I13)."""
        pauses, now_s = [self._security_groups.next_retry_s()], self._clock.monotonic()
        pauses += [self._branches.next_s()] if self._branches else []
        fault = self._refused.refusal(FAULT)
        if fault is not None:
            pauses.append(fault.left_s)
        elif self.limits is not None:
            pauses += [
                self._refused.next_retry_s(),
                self._provisioner.next_retry_s(),
                self._provisioner.leaked_enis.next_look_s(),
                self._window.next_change_s(self.settings, now_s=now_s),
            ]
            if self._known is not None:
                ages, grown_s = self._known[1].hold.ages, eni_min_age_s(self.settings)
                pauses += [grown_s - age_s for age_s in ages.values() if age_s < grown_s]
            if self._is_postponed:
                settles_s = self._window.quiet_in_s(SETTLE_S, now_s=now_s)
                pauses.append(settles_s or self._window.quiet_in_s(self._spare_eni_delay_s(), now_s=now_s))
            if self._demand.waiting()[0]:
                pauses.append(self._enis.routing.next_retry_s())
        return soonest_s(pauses)

    def _spare_eni_delay_s(self) -> float:
        """Once to twice the setting, by draw: nodes that got pods in the same moment do not ask together."""
        return self.settings.spare_eni_delay_s * self._refused.part

    def _note_success(self) -> None:
        self._refused.clear(FAULT)
        if not self._refused.in_force() and not self._provisioner.has_open_intents():
            self._health.report("ec2", "")
            self._health.resolve("pool")
            if not (self._demand.status.excess_count or self._refused.refusal(RELEASE_DENIED, RELEASE_FAILED)):
                self._health.report(GIVING_BACK, "")  # what was in excess is needed again

    def _note_failure(self, error: IpamError, *, is_urgent: bool) -> None:
        self._health.record_error("pool", error)
        if not isinstance(error, ThrottledError | CloudDeniedError):  # a denial is logged once where EC2 is called
            log.warning("an action failed error=%s", log_text(error))
        if isinstance(error, CloudError) and (is_urgent or not isinstance(error, ThrottledError)):  # else it can wait, and does
            self._health.report("ec2", f"EC2: {log_text(error)}")

    def _publish(self, sentence: str, blocked: Refusal | None, *, generation: int, decided: Plan | None = None) -> None:
        status = PoolStatus(
            generation, sentence, kind=Blocked.GROWING if self._known is None else self._known[1].growth.pending_kind
        )
        if blocked is not None:
            deadline = None if blocked.left_s is None else self._clock.monotonic() + blocked.left_s
            status = PoolStatus(generation, sentence, str(blocked), deadline, blocked.next_step, kind=blocked.kind)
        if decided is not None:
            status = replace(status, excess_count=decided.excess_count, kept=decided.kept)
        if sentence != self._demand.status.sentence:
            log.info("pool plan=%s", sentence)
        self._demand.publish(status)
