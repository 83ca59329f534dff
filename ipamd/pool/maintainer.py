"""Keep the pool at its target: take a snapshot, plan, execute one action, repeat.

`ipamd/model/plan.py` decides, the provisioner executes. Events wake the maintainer (an ADD, a cooled address, a restart), and a timer
only while something is due: an idle node makes no EC2 call (I13). No lock that ADD or DEL needs is held
while EC2 is asked (I10).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial

from ipamd.core.agenda import EC2, soonest_s
from ipamd.core.context import ServiceContext
from ipamd.core.demand import PoolStatus
from ipamd.core.loop import Loop
from ipamd.eni.limits import FAULT, Asked, Limits
from ipamd.eni.provisioner import EniProvisioner
from ipamd.eni.security_groups import SecurityGroups
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import CloudDeniedError, CloudError, EniLimitError, IpamError, ThrottledError, log_text
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.plan import AutoTarget, Plan, plan, wanted_count
from ipamd.model.pool import (
    CreateEni,
    Growth,
    GrowthState,
    Hold,
    PoolSettings,
    PoolSnapshot,
    Refusal,
    ReleaseAddresses,
    ReleaseEni,
    pool_snapshot,
)
from ipamd.model.release import Draining
from ipamd.pool.demand_window import DemandMeter, Ramp
from ipamd.pool.release import GivingBack

COALESCE_S = 0.02
"""Pause after a trigger while no ADD waits, so that one plan serves several. Ours, measured: planning beside every ADD of a burst
cost a fifth of the daemon's CPU."""

MAX_ACTIONS_PER_WAKE = 32
"""Limit for one wake-up: twice the 15 ENIs of the largest common types, each filled once. Ours."""

NO_PREFIXES = (
    "prefixes: {} is not built on Nitro and cannot have any; single addresses are allocated instead, as if "
    "ENABLE_PREFIX_DELEGATION were not set: use a Nitro type, or unset it for these nodes"
)
"""Source of the fallback: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, isConfigValid."""

log = logging.getLogger(__name__)


class PoolMaintainer:
    """One network card's pool."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        provisioner: EniProvisioner,
        resync_due: Callable[[], None],
        security_groups: SecurityGroups,
        limits: Limits,
        identity: Callable[[], InstanceIdentity | None],
        settings: PoolSettings,
    ) -> None:
        self._datastore = context.datastore
        self._provisioner = provisioner
        self._resync_due = resync_due
        self._security_groups = security_groups
        self._subnets = provisioner.subnets
        self._identity = identity
        self._demand = context.demand
        self._health = context.health
        self._freeze = context.freeze
        self._clock = context.clock
        self._settings = settings
        self._drain_other_kind(is_prefix_mode=settings.prefix_delegation)  # ADDs are served before the instance type is known
        self._lock = threading.Lock()
        self._limits: InstanceLimits | None = None
        self._refused = limits
        self._ramp = Ramp()
        self._giving_back = GivingBack(context, release=provisioner.release, limits=limits)
        self._meter = DemandMeter()
        self._known: tuple[Callable[..., PoolSnapshot], Hold] | None = None
        self._is_postponed = False
        self._due_deadline: float | None = None
        self.loop = Loop("pool", self.turn, health=context.health, clock=context.clock, changed=context.demand.triggered)

    @property
    def settings(self) -> PoolSettings:
        """The targets in force."""
        return self._settings

    @property
    def limits(self) -> InstanceLimits | None:
        """What the instance type can carry; None until it is known."""
        return self._limits

    @property
    def auto(self) -> AutoTarget | None:
        """The target that followed from demand at the last cycle; None without WARM_TARGET=auto."""
        return self._meter.latest

    def outlook(self) -> PoolSnapshot | None:
        """Make the planner's input from what the pool's thread knew at its last cycle and the datastore now; None before its first.

        For any thread: what EC2 has taught is not asked of objects that are the pool thread's own.
        """
        if self._known is None:
            return None
        snapshot_of, hold = self._known
        return replace(snapshot_of(self._datastore.stock(), waiting_count=self._demand.waiting()[0]), hold=hold)

    def set_limits(self, limits: InstanceLimits, *, settings: PoolSettings) -> None:
        """Set the limits of the instance type: the pool may grow from now on."""
        with self._lock:
            self._limits, self._settings = limits, settings
        has_prefixes = settings.prefix_delegation and limits.supports_prefixes
        self._drain_other_kind(is_prefix_mode=has_prefixes)
        is_without = settings.prefix_delegation and not has_prefixes
        self._health.report("prefixes", NO_PREFIXES.format(limits.instance_type) if is_without else "")
        self._demand.trigger()

    def _drain_other_kind(self, *, is_prefix_mode: bool) -> None:
        """Have what belongs to the mode that is off given last, so that it comes free (docs/adr/0029)."""
        self._datastore.set_draining(Draining(prefixes=not is_prefix_mode, singles=is_prefix_mode))

    def turn(self) -> float | None:
        """Run once. Returns: seconds until something is due by itself; None: an idle pool has no timer (I13)."""
        self._demand.coalesce(COALESCE_S)
        try:
            self.run_once()
        except Exception as error:  # noqa: BLE001  # the pause is the pool's own, which status tells and plans go by
            self._health.record_error("pool", error)
            log.warning("the pool maintainer continues after an error: %s", log_text(error))
            self._refused.put_off(FAULT, error, EC2)
            self._publish(self._status(log_text(error), self._refused.refusal(FAULT), generation=self._demand.waiting()[1]))
        left_s = None if self._due_deadline is None else max(self._due_deadline - self._clock.monotonic(), 0.0)
        return soonest_s([self._pause_s(), left_s])

    def run_once(self) -> Plan | None:
        """Do what one wake-up asks for: security groups follow the primary ENI's, and the pool grows towards its target."""
        self._due_deadline = None
        decided = self.cycle()  # first: an ADD may wait for it, and creating an ENI asks metadata again
        self._due_deadline = self._next_due()  # now: what follows may block past it, and nothing would show it any more
        if self.limits is not None:  # as below: only one thread at a time
            self._resync_due()
            self._find_leaked_enis()
        self._follow_security_groups()
        return decided

    def _find_leaked_enis(self) -> None:
        identity = self._identity()
        if identity is not None:
            self._provisioner.leaked_enis.run_due(identity)

    def _follow_security_groups(self) -> None:
        identity = self._identity()
        # Before the limits are known the cloud thread may be recording what EC2 shows: only one thread at a time may be in there.
        if identity is not None and self.limits is not None:
            self._security_groups.follow(identity)

    def cycle(self) -> Plan | None:
        """Plan and act until the target is reached or the pool cannot grow; returns the last plan, None before limits."""
        for _ in range(MAX_ACTIONS_PER_WAKE):
            waiting, generation = self._demand.waiting()
            now_s, served = self._clock.monotonic(), self._demand.served_count()
            self._ramp.note(served, now_s=now_s)
            if self.limits is not None:  # before, what EC2 shows may not be recorded yet
                self._meter.note(self._datastore.counts(), waiting_count=waiting, served_count=served, now_s=now_s)
            if waiting:
                self._provisioner.host_setup.retry_due()
            snapshot = self.snapshot(waiting_count=waiting)
            if snapshot is None:
                self._publish(PoolStatus(0, "the instance's limits are not known yet"))
                return None
            if self._refused.drop_stale_cap(snapshot.known_eni_count):
                continue
            self._meter.follow(snapshot, self._settings, now_s=now_s)
            self._provisioner.note_wanted(wanted_count(snapshot, self._settings))
            decided = plan(snapshot, settings=self._settings, now=self._clock.now())
            self._giving_back.note(snapshot, self._settings)
            self._is_postponed = decided.is_postponed
            status = self._status(decided.sentence, decided.blocked, generation=generation)
            self._publish(replace(status, excess_count=decided.excess_count, kept=decided.kept))
            if self.loop.is_stopped or self._refused.refusal(FAULT) is not None:
                return decided
            if self._provisioner.has_due_intents(is_add_waiting=waiting > 0):
                self._recover(is_add_waiting=waiting > 0)  # their outcome changes what is needed: plan anew
            elif not decided.actions:
                if not (decided.deficit_count and self._subnets_changed()):
                    return decided
            elif isinstance(decided.actions[0], ReleaseAddresses | ReleaseEni):
                self._giving_back.act(decided.actions[0], snapshot)
                self._demand.trigger()  # one at a time: whatever else is due comes first
                return decided
            else:
                self._act(decided.actions[0], snapshot)
        log.warning("the pool maintainer did %d actions in one wake-up and continues at the next", MAX_ACTIONS_PER_WAKE)
        self._demand.trigger()
        return None

    def snapshot(self, *, waiting_count: int = 0) -> PoolSnapshot | None:
        """Make the planner's input from one consistent read of memory; None while the instance's limits are not known."""
        with self._lock:
            limits = self._limits
        if limits is None:
            return None
        fault = self._refused.refusal(FAULT)
        snapshot_of = partial(
            pool_snapshot,
            limits=limits,
            retry_at=None if fault is None else self._clock.now() + timedelta(seconds=fault.left_s or 0.0),
            blocked_reason="" if fault is None else fault.reason,
            growth=self._growth(is_urgent=waiting_count > 0),
            occupied=self._provisioner.occupied(),
            refused=self._provisioner.refused(),
            taken=self._provisioner.host_setup.unplugged(),
            frozen=self._freeze.reason,
            is_frozen_ahead=self._freeze.is_ahead_of_need,
        )
        now = self._giving_back.with_hold(snapshot_of(self._datastore.stock(), waiting_count=waiting_count), self._settings)
        self._known = (snapshot_of, now.hold)
        return now

    def _growth(self, *, is_urgent: bool) -> GrowthState:
        """What stands in the way of growth, what is under way, and how fast addresses go."""
        now_s = self._clock.monotonic()
        taught, pending, hosts = (
            self._refused.state(home=self._home(), candidates=self._subnets.candidates, is_urgent=is_urgent),
            self._provisioner.pending(),
            self._provisioner.host_setup,
        )
        return replace(
            taught,
            slot_caps={**taught.slot_caps, **dict.fromkeys(hosts.frozen(), 0)},
            pending_enis=pending.pending_enis,
            pending_slots=pending.pending_slots,
            pending_address_count=pending.pending_address_count,
            pending=pending.pending,
            host=hosts.refusal(),
            has_stuck_eni=hosts.has_stuck_eni(),
            ramp_count=self._ramp.lasting_count(now_s=now_s),
            is_settling=self._ramp.settles_in_s(now_s=now_s) > 0,
            is_spare_eni_settling=self._spare_eni_settles_in_s(now_s=now_s) > 0,
            demand=self._meter.seen(now_s=now_s),
        )

    def _status(self, sentence: str, blocked: Refusal | None, *, generation: int) -> PoolStatus:
        if blocked is None:
            return PoolStatus(generation, sentence)
        deadline = None if blocked.left_s is None else self._clock.monotonic() + blocked.left_s
        return PoolStatus(generation, sentence, str(blocked), deadline, blocked.next_step, kind=blocked.kind)

    def _recover(self, *, is_add_waiting: bool) -> None:
        problems = self._provisioner.recover_due(is_add_waiting=is_add_waiting)
        for error in problems:
            self._note_failure(error, is_urgent=is_add_waiting)
        if not problems:
            self._note_success()

    def _act(self, action: Growth, snapshot: PoolSnapshot) -> None:
        """Do one action; a refusal becomes a limit."""
        identity = self._identity()
        if identity is not None and self._subnets.look_before(action, identity):
            return  # an ENI is excluded now, or not any more
        asked = self._asked(action, snapshot)
        if self._refused.recheck_home(asked):
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
            self._meter.took(self._clock.monotonic() - began_s, action)
            self._note_success()

    def _subnets_changed(self) -> bool:
        identity = self._identity()
        return identity is not None and self._subnets.look_again(identity)

    def _home(self) -> SubnetId | None:
        """The subnet that new ENIs go to by themselves."""
        identity = self._identity()
        return None if identity is None else self._subnets.home(identity)

    def _asked(self, action: Growth, snapshot: PoolSnapshot) -> Asked:
        """An action with what the table of refusals must know of it."""
        home = self._home()
        known = None if isinstance(action, CreateEni) else self._datastore.eni(action.eni_id)
        return Asked(
            action,
            home=home,
            is_other_subnet=known is not None and home is not None and known.subnet_id != home,
            is_urgent=snapshot.waiting_count > 0,
            used_slot_count=0 if known is None else _used_slot_count(snapshot, known.eni_id),
        )

    def _next_due(self) -> float | None:
        """Monotonic point at which the plan has to be made anew though nothing happens; None without one."""
        pause_s, told = self._pause_s(), self._demand.status().retry_deadline
        points = [told, None if pause_s is None else self._clock.monotonic() + pause_s]
        return min((point for point in points if point is not None), default=None)

    def _pause_s(self) -> float | None:
        """Seconds until something is due by itself; None: an idle pool has no timer (I13)."""
        pauses = [self._security_groups.next_retry_s()]
        fault = self._refused.refusal(FAULT)
        if fault is not None:
            pauses.append(fault.left_s)
        elif self.limits is not None:
            pauses += [self._refused.next_retry_s(), self._provisioner.next_retry_s(), self._giving_back.next_retry_s()]
            pauses.append(self._provisioner.leaked_enis.next_look_s())
            if self._settings.warm_target_auto:
                pauses.append(self._meter.next_change_s(now_s=self._clock.monotonic()))
            if self._is_postponed:
                now_s = self._clock.monotonic()
                pauses.append(self._ramp.settles_in_s(now_s=now_s) or self._spare_eni_settles_in_s(now_s=now_s))
            if self._demand.waiting()[0]:
                pauses.append(self._provisioner.host_setup.next_retry_s())
        return soonest_s(pauses)

    def _spare_eni_settles_in_s(self, *, now_s: float) -> float:
        return self._ramp.spare_eni_settles_in_s(delay_s=self._settings.spare_eni_delay_s, now_s=now_s)

    def _note_success(self) -> None:
        self._refused.clear(FAULT)
        if not self._refused.in_force() and not self._provisioner.has_open_intents():
            self._health.report("ec2", "")

    def _note_failure(self, error: IpamError, *, is_urgent: bool) -> None:
        self._health.record_error("pool", error)
        if not isinstance(error, ThrottledError | CloudDeniedError):  # a denial is logged once where EC2 is called
            log.warning("pool: %s", log_text(error))
        if isinstance(error, CloudError) and (is_urgent or not isinstance(error, ThrottledError)):  # else it can wait, and does
            self._health.report("ec2", f"EC2: {log_text(error)}")

    def _publish(self, status: PoolStatus) -> None:
        if status.sentence != self._demand.status().sentence:
            log.info("pool: %s", status.sentence)
        self._demand.publish(status)


def _used_slot_count(snapshot: PoolSnapshot, eni_id: EniId) -> int:
    return next((eni.used_slot_count for eni in snapshot.enis if eni.eni_id == eni_id), 0)
