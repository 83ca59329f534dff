"""Keep the pool at its target: take a snapshot, plan, execute one action, repeat.

`ipamd/model/plan.py` decides, the provisioner executes. Events wake the maintainer (an ADD, a cooled address, a restart), never a
timer, so an idle node makes no EC2 call (I13). No lock is held while EC2 is asked (I10).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta

from ipamd.model.cloud import InstanceIdentity
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
from ipamd.service.backoff import Backoff
from ipamd.service.context import ServiceContext
from ipamd.service.demand import PoolStatus
from ipamd.service.pool.cloud_look import CloudLook
from ipamd.service.pool.provisioner import EniProvisioner
from ipamd.service.pool.security_groups import SecurityGroups

SUBNET_PAUSE_S = 120.0
"""After a subnet had no free address. Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, insufficientCidrErrorCooldown."""

LIMIT_PAUSE_S = 600.0
"""After EC2 said that the instance or ENI is full, or denied a call: neither changes by itself soon. Ours."""

ERROR_PAUSE_FIRST_S = 1.0
ERROR_PAUSE_MAX_S = 60.0
"""Doubling pause after any other EC2 error. Ours; amazon-vpc-cni-k8s pauses a minute at most too (pkg/ipamd/ipamd.go)."""

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
        # both monotonic: a stepped wall clock neither ends a pause nor prolongs it
        self._blocked_deadline: float | None = None
        self._blocked_reason = ""
        self._prefixes_blocked_deadline: float | None = None
        self._backoff = Backoff(first_s=ERROR_PAUSE_FIRST_S, max_s=ERROR_PAUSE_MAX_S)
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
                self._block_after(error)
                generation = self._demand.waiting()[1]
                self._publish(PoolStatus(generation, log_text(error), self._blocked_reason, self._blocked_deadline))

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
                self._backoff.reset()
                self._health.clear_condition("ec2")
            except IpamError as error:
                self._note_failure(error)
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
            retry_at=self._clock.now() + timedelta(seconds=self._left_s()) if self._is_blocked() else None,
            blocked_reason=self._blocked_reason,
            prefixes_available=self._has_prefixes(),
            occupied=self._provisioner.occupied(),
        )

    def _retry_deadline(self, snapshot: PoolSnapshot) -> float | None:
        """When the pause after a refusal ends; None without a pause, or if the pool has reached maxPods anyway."""
        is_full = self._settings.max_pods and snapshot.counts.total >= self._settings.max_pods
        return self._blocked_deadline if snapshot.retry_at is not None and not is_full else None

    def _is_blocked(self) -> bool:
        return self._left_s() > 0

    def _left_s(self) -> float:
        return self._blocked_deadline - self._clock.monotonic() if self._blocked_deadline is not None else 0.0

    def _has_prefixes(self) -> bool:
        return self._prefixes_blocked_deadline is None or self._clock.monotonic() >= self._prefixes_blocked_deadline

    def _pause_s(self) -> float | None:
        """Seconds until the pause after a refusal ends; None: an idle pool has no timer (I13). Ends an expired pause."""
        pauses = [self._security_groups.next_retry_s()]
        if self._blocked_deadline is not None:
            if self._left_s() <= 0:
                self._blocked_deadline, self._blocked_reason = None, ""
                self._demand.trigger()
            else:
                pauses.append(self._left_s())
        return min((pause for pause in pauses if pause is not None), default=None)

    def _note_failure(self, error: IpamError) -> None:
        self._health.record_error("pool", error)
        if not isinstance(error, ThrottledError):
            log.warning("pool: %s", log_text(error))
        if isinstance(error, SubnetExhaustedError) and self._settings.prefix_delegation and self._has_prefixes():
            # A subnet without a free /28 may have free addresses: try single ones before the pool gives up.
            self._prefixes_blocked_deadline = self._clock.monotonic() + SUBNET_PAUSE_S
            return
        self._block_after(error)

    def _block_after(self, error: BaseException) -> None:
        if isinstance(error, SubnetExhaustedError):
            pause_s = SUBNET_PAUSE_S
        elif isinstance(error, EniLimitError | CloudDeniedError):
            pause_s = LIMIT_PAUSE_S
        else:
            pause_s = self._backoff.next_s()
        if isinstance(error, CloudError):
            self._health.set_condition("ec2", f"EC2: {log_text(error)}")
        self._blocked_deadline = self._clock.monotonic() + pause_s
        self._blocked_reason = log_text(error)

    def _publish(self, status: PoolStatus) -> None:
        if status.sentence != self._demand.status().sentence:
            log.info("pool: %s", status.sentence)
        self._demand.publish(status)
