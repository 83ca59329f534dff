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

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import CloudError, IpamError, ThrottledError, log_text
from ipamd.model.growth import Action, CreateEni, GrowthState
from ipamd.model.ids import EniId
from ipamd.model.plan import Plan, plan
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import PoolSnapshot, pool_snapshot
from ipamd.service.backoff import soonest_s
from ipamd.service.context import ServiceContext
from ipamd.service.demand import PoolStatus
from ipamd.service.pool.cloud_look import CloudLook
from ipamd.service.pool.provisioner import EniProvisioner
from ipamd.service.pool.ramp import Ramp
from ipamd.service.pool.refusals import ERROR_PAUSE_FIRST_S, ERROR_PAUSE_MAX_S, Lesson, Refusals
from ipamd.service.pool.security_groups import SecurityGroups

COALESCE_S = 0.02
"""Pause after a trigger while no ADD waits, so that one plan serves several. Ours, measured: planning beside every ADD of a burst
cost a fifth of the daemon's CPU."""

MAX_ACTIONS_PER_WAKE = 32
"""Limit for one wake-up: twice the 15 ENIs of the largest common types, each filled once. Ours."""

log = logging.getLogger(__name__)


class PoolMaintainer:
    """One network card's pool."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        provisioner: EniProvisioner,
        look: CloudLook,
        security_groups: SecurityGroups,
        identity: Callable[[], InstanceIdentity | None],
        settings: PoolSettings,
    ) -> None:
        self._datastore = context.datastore
        self._provisioner = provisioner
        self._look = look
        self._security_groups = security_groups
        self._identity = identity
        self._demand = context.demand
        self._health = context.health
        self._clock = context.clock
        self._settings = settings
        self._lock = threading.Lock()
        self._limits: InstanceLimits | None = None
        self._refusals = Refusals(clock=context.clock, free_count=provisioner.free_count)
        self._fault = Lesson(ERROR_PAUSE_FIRST_S, ERROR_PAUSE_MAX_S)  # an error of ours stops everything for a moment
        self._ramp = Ramp()
        self._is_postponed = False
        self._stopping = False

    @property
    def settings(self) -> PoolSettings:
        """The targets in force."""
        return self._settings

    @property
    def limits(self) -> InstanceLimits | None:
        """What the instance type can carry; None until it is known."""
        return self._limits

    def set_limits(self, limits: InstanceLimits, *, settings: PoolSettings) -> None:
        """Set the limits of the instance type: the pool may grow from now on."""
        with self._lock:
            self._limits, self._settings = limits, settings
        self._demand.trigger()

    def run(self) -> None:
        """Thread body: run once per wake-up, until `stop`."""
        while self._next_wake():
            try:
                self.run_once()
            except Exception as error:  # noqa: BLE001  # top of a loop: it must outlive any one failure
                self._health.record_error("pool", error)
                log.warning("the pool maintainer continues after an error: %s", log_text(error))
                self._fault.learn(error, now_s=self._clock.monotonic())
                generation = self._demand.waiting()[1]
                self._publish(PoolStatus(generation, log_text(error), self._fault.reason, self._fault.deadline))

    def run_once(self) -> Plan | None:
        """Do what one wake-up asks for: security groups follow the primary ENI's, and the pool grows towards its target."""
        decided = self.cycle()  # first: an ADD may wait for it, and creating an ENI asks metadata again
        if self.limits is not None:  # as below: only one thread at a time
            self._look.run_due()
        self._follow_security_groups()
        return decided

    def stop(self) -> None:
        """End `run`."""
        self._stopping = True
        self._demand.trigger()

    def _follow_security_groups(self) -> None:
        identity = self._identity()
        # Before the limits are known the cloud thread may be recording what EC2 shows: only one thread at a time may be in there.
        if identity is not None and self.limits is not None:
            self._security_groups.follow(identity)

    def _next_wake(self) -> bool:
        """Sleep until the next wake-up; False to stop."""
        self._demand.wait_triggered(self._pause_s())
        if not self._stopping:
            self._demand.coalesce(COALESCE_S)
        return not self._stopping

    def cycle(self) -> Plan | None:
        """Plan and act until the target is reached or the pool cannot grow; returns the last plan, None before limits."""
        for _ in range(MAX_ACTIONS_PER_WAKE):
            waiting, generation = self._demand.waiting()
            self._ramp.note(self._demand.served_count(), now_s=self._clock.monotonic())
            if waiting:
                self._provisioner.host_setup.retry_due()
            snapshot = self.snapshot(waiting_count=waiting)
            if snapshot is None:
                self._publish(PoolStatus(0, "the instance's limits are not known yet"))
                return None
            decided = plan(snapshot, settings=self._settings, now=self._clock.now())
            self._is_postponed = decided.is_postponed
            self._publish(self._status(decided, generation))
            if self._stopping or self._left_s() > 0:
                return decided
            if self._provisioner.has_due_intents():
                self._recover()  # their outcome changes what is needed: plan anew
            elif not decided.actions:
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
        return pool_snapshot(
            self._datastore.stock(),
            limits=limits,
            waiting_count=waiting_count,
            retry_at=self._clock.now() + timedelta(seconds=self._left_s()) if self._left_s() > 0 else None,
            blocked_reason=self._fault.reason,
            growth=self._growth(),
            occupied=self._provisioner.occupied(),
            taken=self._provisioner.host_setup.taken_away(),
        )

    def _growth(self) -> GrowthState:
        """What stands in the way of growth, what is under way, and how fast addresses go."""
        now_s = self._clock.monotonic()
        taught, pending, hosts = self._refusals.state(), self._provisioner.pending(), self._provisioner.host_setup
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
        )

    def _status(self, decided: Plan, generation: int) -> PoolStatus:
        blocked = decided.blocked
        if blocked is None:
            return PoolStatus(generation, decided.sentence)
        deadline = None if blocked.left_s is None else self._clock.monotonic() + blocked.left_s
        return PoolStatus(generation, decided.sentence, str(blocked), deadline, blocked.next_step)

    def _recover(self) -> None:
        problems = self._provisioner.recover_due()
        for error in problems:
            self._note_failure(error)
        if not problems:
            self._note_success()

    def _act(self, action: Action, snapshot: PoolSnapshot) -> None:
        """Do one action; a refusal becomes a lesson."""
        if not self._is_other_subnet(action) and self._refusals.look_before(action):
            return
        try:
            self._provisioner.execute(action)
        except IpamError as error:
            foreign = snapshot.unmanaged_eni_count
            used = 0 if isinstance(action, CreateEni) else _used_slot_count(snapshot, action.eni_id)
            count = len(snapshot.enis) + foreign
            self._refusals.learn(
                action,
                error,
                attached_count=count,
                foreign_count=foreign,
                used_slot_count=used,
                is_other_subnet=self._is_other_subnet(action),
            )
            self._note_failure(error)
        else:
            self._refusals.succeeded(action)
            self._note_success()

    def _is_other_subnet(self, action: Action) -> bool:
        """Whether an action is about an ENI that somebody attached from another subnet than the node's."""
        known = None if isinstance(action, CreateEni) else self._datastore.eni(action.eni_id)
        identity = self._identity()
        return known is not None and identity is not None and known.subnet_id != identity.subnet_id

    def _left_s(self) -> float:
        """Seconds left of the pause after an error of ours; 0 without one."""
        refusal = self._fault.refusal(now_s=self._clock.monotonic())
        return refusal.left_s or 0.0 if refusal is not None else 0.0

    def _pause_s(self) -> float | None:
        """Seconds until something is due by itself; None: an idle pool has no timer (I13)."""
        pauses = [self._security_groups.next_retry_s()]
        if self._left_s() > 0:
            pauses.append(self._left_s())
        elif self.limits is not None:
            pauses += [self._refusals.next_retry_s(), self._provisioner.next_retry_s()]
            if self._is_postponed:
                pauses.append(self._ramp.settles_in_s(now_s=self._clock.monotonic()))
            if self._demand.waiting()[0]:
                pauses.append(self._provisioner.host_setup.next_retry_s())
        return soonest_s(pauses)

    def _note_success(self) -> None:
        self._fault.forget()
        if not self._refusals.in_force() and not self._provisioner.has_open_intents():
            self._health.clear_condition("ec2")

    def _note_failure(self, error: IpamError) -> None:
        self._health.record_error("pool", error)
        if not isinstance(error, ThrottledError):
            log.warning("pool: %s", log_text(error))
        if isinstance(error, CloudError):
            self._health.set_condition("ec2", f"EC2: {log_text(error)}")

    def _publish(self, status: PoolStatus) -> None:
        if status.sentence != self._demand.status().sentence:
            log.info("pool: %s", status.sentence)
        self._demand.publish(status)


def _used_slot_count(snapshot: PoolSnapshot, eni_id: EniId) -> int:
    return next((eni.used_slot_count for eni in snapshot.enis if eni.eni_id == eni_id), 0)
