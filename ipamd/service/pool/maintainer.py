"""The pool loop: look, plan, do one thing, look again (design 7).

Decisions are `model.plan`; doing is `growth`. Woken by events (an ADD, a DEL, a cooled address, a restart), never by a clock, so
that an idle node makes no EC2 call (I13). No lock is held while EC2 is asked (I10).
"""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import (
    CloudDeniedError,
    CloudError,
    EniLimitError,
    IpamError,
    SubnetExhaustedError,
    ThrottledError,
    log_text,
)
from ipamd.model.plan import Plan, PoolSettings, PoolSnapshot, plan
from ipamd.model.pool_snapshot import pool_snapshot
from ipamd.ports import Clock, Datastore
from ipamd.service.demand import Demand, PoolStatus
from ipamd.service.health import Health
from ipamd.service.pool.provisioner import EniProvisioner

SUBNET_PAUSE = timedelta(seconds=120)
"""After a subnet had no free address. Source: upstream_reference 2.12, insufficient-CIDR cooldown."""

LIMIT_PAUSE = timedelta(minutes=10)
"""After EC2 said that the instance or ENI is full, or denied a call: neither heals by itself soon. Ours."""

ERROR_PAUSE_FIRST = timedelta(seconds=1)
ERROR_PAUSE_MAX = timedelta(seconds=60)
"""Doubling pause after any other EC2 error. Ours; the cap is the incumbent's (upstream_reference 2.12)."""

COALESCE_S = 0.02
"""Rest after a trigger while no ADD waits. Ours, measured: planning beside every ADD of a burst cost a fifth of the daemon's
CPU."""

MAX_ACTIONS_PER_WAKE = 32
"""Bound on one wake-up: twice the 15 ENIs of the largest common types, each filled once. Ours."""

log = logging.getLogger(__name__)


class PoolMaintainer:
    """One network card's pool."""

    def __init__(
        self,
        *,
        datastore: Datastore,
        provisioner: EniProvisioner,
        demand: Demand,
        health: Health,
        clock: Clock,
        settings: PoolSettings,
    ) -> None:
        self._datastore = datastore
        self._provisioner = provisioner
        self._demand = demand
        self._health = health
        self._clock = clock
        self._settings = settings
        self._lock = threading.Lock()
        self._limits: InstanceLimits | None = None
        # both monotonic: a stepped wall clock neither ends a pause nor prolongs it
        self._blocked_deadline: float | None = None
        self._blocked_reason = ""
        self._prefixes_blocked_deadline: float | None = None
        self._error_pause = ERROR_PAUSE_FIRST
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
        """The instance type became known: the pool may grow from now on."""
        with self._lock:
            self._limits, self._settings = limits, settings
        self._demand.trigger()

    def run(self) -> None:
        """Thread body: one cycle per wake-up, until `stop`."""
        while self._next_wake():
            try:
                self.cycle()
            except Exception as error:  # noqa: BLE001  # top of a loop: it must outlive any one failure
                self._health.record_error("pool", error)
                log.warning("the pool loop goes on after an error: %s", log_text(error))
                self._block_after(error)
                generation = self._demand.waiting()[1]
                self._publish(PoolStatus(generation, log_text(error), self._blocked_reason, self._blocked_deadline))

    def stop(self) -> None:
        """End `run`."""
        self._stopping = True
        self._demand.trigger()

    def _next_wake(self) -> bool:
        """Sleep until there is something to look at; False to stop."""
        self._demand.wait_triggered(self._pause_s())
        if not self._stopping:
            self._demand.coalesce(COALESCE_S)
        return not self._stopping

    def cycle(self) -> Plan | None:
        """Plan and act until the target is reached or the pool cannot grow; returns the last plan, None before limits."""
        for _ in range(MAX_ACTIONS_PER_WAKE):
            waiting, generation = self._demand.waiting()
            snapshot = self.snapshot(waiting_count=waiting)
            if snapshot is None:
                self._publish(PoolStatus(0, "the instance's limits are not known yet"))
                return None
            decided = plan(snapshot, settings=self._settings, now=self._clock.now())
            self._publish(PoolStatus(generation, decided.sentence, decided.blocked_by, self._retry_deadline(snapshot)))
            if self._stopping or not (decided.actions or self._provisioner.has_open_intents()):
                return decided
            if self._is_blocked():
                return decided
            try:
                if self._provisioner.has_open_intents():
                    self._provisioner.recover_open_intents()  # its outcome changes what is needed: plan anew
                else:
                    self._provisioner.execute(decided.actions[0])
                self._error_pause = ERROR_PAUSE_FIRST
                self._health.clear_condition("ec2")
            except IpamError as error:
                self._note_failure(error)
        log.warning("the pool loop stopped after %d actions in one wake-up and goes on at the next", MAX_ACTIONS_PER_WAKE)
        self._demand.trigger()
        return None

    def snapshot(self, *, waiting_count: int = 0) -> PoolSnapshot | None:
        """One consistent look for the planner, from memory; None while the instance's limits are not known."""
        with self._lock:
            limits = self._limits
        if limits is None:
            return None
        return pool_snapshot(
            self._datastore.snapshot(),
            limits=limits,
            waiting_count=waiting_count,
            retry_at=self._clock.now() + timedelta(seconds=self._left_s()) if self._is_blocked() else None,
            blocked_reason=self._blocked_reason,
            prefixes_available=self._has_prefixes(),
        )

    def _retry_deadline(self, snapshot: PoolSnapshot) -> float | None:
        """When a pause ends; None where no pause is what stands in the way."""
        is_full = self._settings.max_pods and snapshot.counts.total >= self._settings.max_pods
        return self._blocked_deadline if snapshot.retry_at is not None and not is_full else None

    def _is_blocked(self) -> bool:
        return self._left_s() > 0

    def _left_s(self) -> float:
        return self._blocked_deadline - self._clock.monotonic() if self._blocked_deadline is not None else 0.0

    def _has_prefixes(self) -> bool:
        return self._prefixes_blocked_deadline is None or self._clock.monotonic() >= self._prefixes_blocked_deadline

    def _pause_s(self) -> float | None:
        """Sleep for ever unless a block ends: an idle pool has no clock (I13)."""
        if self._blocked_deadline is None:
            return None
        left = self._left_s()
        if left <= 0:
            self._blocked_deadline, self._blocked_reason = None, ""
            self._demand.trigger()
            return None
        return left

    def _note_failure(self, error: IpamError) -> None:
        self._health.record_error("pool", error)
        if not isinstance(error, ThrottledError):
            log.warning("pool: %s", log_text(error))
        if isinstance(error, SubnetExhaustedError) and self._settings.prefix_delegation and self._has_prefixes():
            # No free /28 need not mean no free address: single addresses are tried before the pool gives up (design 7).
            self._prefixes_blocked_deadline = self._clock.monotonic() + SUBNET_PAUSE.total_seconds()
            return
        self._block_after(error)

    def _block_after(self, error: BaseException) -> None:
        if isinstance(error, SubnetExhaustedError):
            pause = SUBNET_PAUSE
        elif isinstance(error, EniLimitError | CloudDeniedError):
            pause = LIMIT_PAUSE
        else:
            pause, self._error_pause = self._error_pause, min(self._error_pause * 2, ERROR_PAUSE_MAX)
        if isinstance(error, CloudError):
            self._health.set_condition("ec2", f"EC2: {log_text(error)}")
        self._blocked_deadline = self._clock.monotonic() + pause.total_seconds()
        self._blocked_reason = log_text(error)

    def _publish(self, status: PoolStatus) -> None:
        if status.sentence != self._demand.status().sentence:
            log.info("pool: %s", status.sentence)
        self._demand.publish(status)
