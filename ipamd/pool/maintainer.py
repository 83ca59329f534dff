"""Keep the pool at its target: take a snapshot, plan, execute one action, repeat.

`ipamd/model/plan.py` decides about growth, `ipamd/model/release.py` about releases, and the provisioner executes. Events wake the
maintainer (an ADD, a cooled address, a restart). A timer does so only while something is due, so that an idle node makes no EC2 call
(I13). No lock that ADD or DEL needs is held during a call to EC2 (I10).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from ipamd.core.backoffs import EC2, soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.core.demand import PoolStatus
from ipamd.core.failure_isolation import NAMED_MAX
from ipamd.core.loop import Loop
from ipamd.eni.limits import ALLOCATION, CREATION, FAULT, RELEASE_DENIED, RELEASE_FAILED, Ec2Request
from ipamd.eni.provisioner import EniProvisioner
from ipamd.eni.release_guard import FrozenError
from ipamd.eni.security_groups import SecurityGroups
from ipamd.eni.steps import ADDRESSES, ENIS
from ipamd.model.auto_target import AutoTarget, auto_target
from ipamd.model.blocked import Blocked
from ipamd.model.cause import first_parts, joined
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.eni import ADDRESSES_PER_PREFIX, Eni, InstanceLimits
from ipamd.model.errors import CloudDeniedError, CloudError, EniLimitError, IpamError, ThrottledError, cause_of_error, log_text
from ipamd.model.growth_state import GrowthRefusal, GrowthState, growth_refusal
from ipamd.model.ids import SubnetId
from ipamd.model.placement import is_prefix_mode, trunk_places
from ipamd.model.plan import Plan, deficit_count, plan, surplus_count, wanted_count
from ipamd.model.pool_actions import CreateEni, Growth, Release, ReleaseAddresses, ReleaseEni
from ipamd.model.pool_counts import PoolCounts
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import PoolSnapshot, pool_snapshot
from ipamd.model.prefix_exchange import needs_slot
from ipamd.model.release import Draining, draining, eni_min_age_s, releasable
from ipamd.model.repeats import NO_REPEATS, Repeats
from ipamd.model.surplus import Hold
from ipamd.model.trunk import ASK_FOR_TRUNK
from ipamd.pool.demand_window import SETTLE_S, DemandWindow

COALESCE_S = 0.02
"""Pause after a trigger while no ADD waits, so that one plan serves several. Ours, measured: planning beside every ADD of a burst
cost a fifth of the daemon's CPU."""

MAX_ACTIONS_PER_WAKE = 32
"""How many actions one wake-up makes at most. Ours: the largest common types have 15 ENIs, each of which takes two actions, a creation
and one allocation."""

PREFETCH_SUBNETS = ("subnets ahead of growth",)
"""Back-off key: subnets are read once ahead of need, at the start of a node without a free address."""

if TYPE_CHECKING:
    from ipamd.eni.legs.comparison import LegComparison

RECOVERY = "recovery"
"""The part of the condition `ec2` about calls whose outcome is not known, beside CREATION and ALLOCATION."""

log = logging.getLogger(__name__)


class PoolMaintainer(Service):
    """The pool of one network card.

    There is no lock: everything that other threads read is a single reference, which is replaced as a whole.
    """

    def __init__(
        self,
        context: ServiceContext,
        *,
        provisioner: EniProvisioner,
        security_groups: SecurityGroups,
        leg_comparison: LegComparison | None,
        identity: Callable[[], InstanceIdentity | None],
        settings: PoolSettings,
        repeats: Callable[[], Repeats] = lambda: NO_REPEATS,
    ) -> None:
        """`repeats`: returns the addresses that pods hold beyond those of their present sandboxes."""
        super().__init__(context)
        self._repeats = repeats
        self._provisioner = provisioner
        self._enis = provisioner.enis
        self.security_groups = security_groups
        self._leg_comparison = leg_comparison
        self._subnets = provisioner.subnets
        self._identity = identity
        self._freeze = context.freeze
        self.settings = settings
        """The targets in force."""
        self._drain_other_kind(is_prefix_mode=settings.prefix_delegation)  # ADDs are served before the instance type is known
        self.limits: InstanceLimits | None = None
        """The limits of the instance type; None until they are known."""
        self._refused = provisioner.subnets.limits
        self._refused_growth = {part: context.health.claim("ec2", part=part) for part in (CREATION, ALLOCATION, RECOVERY)}
        self._window = DemandWindow()
        self._last_cycle: tuple[Callable[..., PoolSnapshot], PoolSnapshot] | None = None
        self._is_postponed = False
        self.loop = Loop("pool", self.turn, health=context.health, clock=context.clock, changed=context.demand.triggered)

    @property
    def auto(self) -> AutoTarget | None:
        """The target that was calculated from demand at the last cycle; None without VPC_IPAMD_WARM_TARGET_MODE=auto."""
        last_cycle = self._last_cycle
        if last_cycle is None or not self.settings.warm_target_auto:
            return None
        _, snapshot = last_cycle
        return auto_target(snapshot, self.settings)

    def preview(self) -> PoolSnapshot | None:
        """Make the planner's input from the EC2 results of the last cycle and the present datastore; None before the first cycle.

        Safe from any thread: it reads no object that only the pool's thread may use.
        """
        last_cycle = self._last_cycle
        if last_cycle is None:
            return None
        snapshot_of, last_snapshot = last_cycle
        waiting, _ = self._demand.waiting()
        return replace(snapshot_of(self._datastore.stock(), waiting_count=waiting), hold=last_snapshot.hold)

    def set_limits(self, limits: InstanceLimits, *, settings: PoolSettings) -> None:
        """Set the limits of the instance type: the pool may grow from now on."""
        self.settings = settings  # before the limits, because other threads use the settings once there are limits
        self.limits = limits
        has_prefixes = settings.prefix_delegation and limits.supports_prefixes
        self._drain_other_kind(is_prefix_mode=has_prefixes)
        unsupported = None
        if settings.prefix_delegation and not has_prefixes:
            code = ConditionCode.IPV6_UNSUPPORTED if settings.family.is_sparse else ConditionCode.PREFIXES_UNSUPPORTED
            unsupported = problem(code, instance_type=limits.instance_type)
        self._health.report("prefixes", unsupported)
        self._demand.trigger()

    def _drain_other_kind(self, *, is_prefix_mode: bool) -> None:
        """Assign addresses of the disabled mode last, so that they become free (docs/adr/0029)."""
        self._datastore.set_draining(Draining(prefixes=not is_prefix_mode, singles=is_prefix_mode))

    def turn(self) -> float | None:
        """Run once. Returns: seconds until the next turn is due without an event; None: an idle pool has no timer (I13)."""
        self._demand.coalesce(COALESCE_S)
        due_deadline = None
        try:
            due_deadline = self.run_once()
        except Exception as error:  # noqa: BLE001  # the pool has its own back-off, which `ipamctl status` shows
            self._health.record_error("pool", error)
            log.warning("pool turn failed, will retry error=%s", log_text(error))
            self._refused.back_off(FAULT, error, EC2)
            self._publish(log_text(error), self._refused.refusal(FAULT), generation=self._demand.waiting()[1])
        left_s = None if due_deadline is None else max(due_deadline - self._clock.monotonic(), 0.0)
        return soonest_s([self._pause_s(), left_s])

    def run_once(self) -> float | None:
        """Do the work of one wake-up: grow the pool towards its target, and apply the primary ENI's security groups to the others.

        Returns: the monotonic time at which the plan must be made again even if nothing happens; None without one.
        """
        self.cycle()  # first: an ADD may wait for it, and creating an ENI reads metadata again
        # The pause is read now, because the calls below may block for longer than it lasts.
        pause_s, deadline = self._pause_s(), self._demand.status.retry_deadline
        due_deadline = soonest_s([deadline, None if pause_s is None else self._clock.monotonic() + pause_s])
        if self.limits is not None:  # until then the cloud thread may be recording ENIs, and only one thread may do that
            self._enis.resync_due()
            identity = self._identity()
            if identity is not None:
                self._provisioner.leaked_enis.run_due(identity)
            identity = self._identity()  # read it again: the check of leaked ENIs may take seconds
            if identity is not None:
                self.security_groups.follow(identity)
                self._subnets.retry_denied_call(identity)
        return due_deadline

    def cycle(self) -> Plan | None:
        """Plan and act until the target is reached or the pool cannot grow. Returns: the last plan; None without limits."""
        for _ in range(MAX_ACTIONS_PER_WAKE):
            waiting, generation = self._prepare_plan()
            counts, served_count, now_s = self._datastore.counts(), self._demand.served_count, self._clock.monotonic()
            if self.limits is not None:  # until then the node's ENIs may not be recorded yet
                self._window.observe(
                    counts,
                    self.settings,
                    waiting_count=waiting,
                    served_count=served_count,
                    now_s=now_s,
                    repeats=self._repeats(),
                )
            snapshot = self.snapshot(waiting_count=waiting)
            if snapshot is None:
                self._prepare_for_limits(counts)
                return None
            if self._refused.drop_stale_cap(snapshot.known_eni_count):
                continue
            decided = self._decide(snapshot, generation=generation, now_s=now_s)
            if self.loop.is_stopped or self._refused.refusal(FAULT) is not None:
                return decided
            if not self._act(decided, snapshot, is_urgent=waiting > 0):
                return decided
        log.warning("pool cycle interrupted, will go on actions=%d", MAX_ACTIONS_PER_WAKE)
        self._demand.trigger()
        return None

    def _prepare_for_limits(self, counts: PoolCounts) -> None:
        """Report that there is no plan yet. On a node without a free address, read the subnets meanwhile for the first growth."""
        identity = self._identity()
        if identity is not None and not counts.free and self._backoffs.is_due(PREFETCH_SUBNETS):
            self._backoffs.put(PREFETCH_SUBNETS, in_s=inf)
            self._subnets.learn(identity)
        self._publish("the instance's limits are not known yet", None, generation=0)

    def _decide(self, snapshot: PoolSnapshot, *, generation: int, now_s: float) -> Plan:
        """Make the plan, and publish the results: the wanted count, the surplus, draining ENIs and the pool's status."""
        self._provisioner.note_wanted(wanted_count(snapshot, self.settings))
        decided = plan(snapshot, settings=self.settings)
        surplus = surplus_count(snapshot, self.settings)
        self._window.record_surplus(surplus, self.settings, now_s=now_s)
        before = self._datastore.draining().enis
        self._datastore.set_draining(draining(snapshot, self.settings, surplus=surplus, before=before))
        self._is_postponed = decided.is_postponed
        self._publish(decided.sentence, decided.blocked, generation=generation, decided=decided)
        return decided

    def _act(self, decided: Plan, snapshot: PoolSnapshot, *, is_urgent: bool) -> bool:
        """Recover open calls, or else do the plan's first action. Returns: whether to plan again now."""
        if self._provisioner.has_due_intents():
            problems = self._provisioner.recover_due()  # their outcome changes the plan
            self._note_recovery(problems, is_urgent=is_urgent)
            return True
        if not decided.actions:
            identity = self._identity()
            if not decided.deficit_count:
                self._note_success()  # the growth that EC2 refused is no longer needed
                return identity is not None and self._subnets.learn_after_start(identity)
            return identity is not None and self._subnets.recheck_excluded(identity)
        action = decided.actions[0]
        if isinstance(action, ReleaseAddresses | ReleaseEni):
            self._release_surplus(action, snapshot)
            self._demand.trigger()  # one release per wake-up, so that other due work comes first
            return False
        self._grow(action, snapshot)
        return True

    def _prepare_plan(self) -> tuple[int, int]:
        """Do the work that cannot wait until a cycle ends, because each action may take seconds. Returns: as `Demand.waiting`."""
        if self._leg_comparison is not None and self.limits is not None:
            self._leg_comparison.compare()  # some new sandboxes have no network until EC2 confirms their legs
        waiting, generation = self._demand.waiting()
        if waiting:
            self._enis.routing.retry_due()
        return waiting, generation

    def _report_trunk(self, snapshot: PoolSnapshot) -> None:
        """Report a missing trunk ENI."""
        if not trunk_places(snapshot, self.settings):
            self._health.report("trunk", None)
            return
        is_full = snapshot.known_eni_count >= snapshot.limits.eni_count
        code = ConditionCode.TRUNK_WITHOUT_PLACE if is_full else ConditionCode.TRUNK_MISSING
        self._health.report("trunk", problem(code, next_step=ASK_FOR_TRUNK))

    def snapshot(self, *, waiting_count: int = 0) -> PoolSnapshot | None:
        """Make the planner's input from one consistent read of memory; None before the instance's limits are known."""
        if self.limits is None:
            return None
        snapshot_of = partial(
            pool_snapshot,
            limits=self.limits,
            fault=self._refused.refusal(FAULT),
            growth=self._growth(is_urgent=waiting_count > 0),
            occupied=self._enis.book.unrecorded_enis().values(),
            refused=self._enis.book.refused(),
            unplugged=self._enis.routing.unplugged(),
            frozen=self._freeze.reason,
            may_grow_for_adds=self._freeze.may_grow_for_adds,
            has_trunk=self._enis.book.trunk() is not None,
        )
        snapshot = snapshot_of(self._datastore.stock(), waiting_count=waiting_count)
        snapshot = replace(snapshot, hold=self._release_limits(snapshot))
        self._last_cycle = (snapshot_of, snapshot)
        self._report_trunk(snapshot)
        return snapshot

    def _growth(self, *, is_urgent: bool) -> GrowthState:
        """Return the limits of growth, the growth that is under way, and the measured demand."""
        now_s, routing = self._clock.monotonic(), self._enis.routing
        refusals = self._refused.state(home=self._home(), candidates=self._subnets.candidates, is_urgent=is_urgent)
        return replace(
            self._provisioner.with_pending(refusals),
            slot_caps={**refusals.slot_caps, **dict.fromkeys(routing.frozen(), 0)},
            host=routing.refusal(),
            has_stuck_eni=routing.has_stuck_eni(),
            is_spare_eni_settling=self._window.quiet_in_s(self._spare_eni_delay_s(), now_s=now_s) > 0,
            demand=self._window.measured_demand(self.settings, now_s=now_s),
        )

    def _release_limits(self, snapshot: PoolSnapshot) -> Hold:
        """Return the stable surplus, and the addresses that may be released. Listing these costs a copy of the datastore's rows."""
        settled = self._window.stable_surplus(self.settings, kept_count=self._kept_count(snapshot), now_s=self._clock.monotonic())
        if settled is not None:
            settled = min(settled, surplus_count(snapshot, self.settings))
        addresses = {}
        if self._may_name_addresses(snapshot, settled):
            addresses = releasable(self._datastore.snapshot(), withheld=self._datastore.withheld())
        return Hold(
            stable_surplus=settled,
            ages={eni_id: RECENT_S - left_s for eni_id, left_s in self._enis.book.added_enis().items()},
            releasable=addresses,
            refusal=self._release_refusal(),
        )

    def _may_name_addresses(self, snapshot: PoolSnapshot, settled: int | None) -> bool:
        """Whether a plan may name single addresses or prefixes to release.

        It may if there is a stable surplus and they are the unit of release, if an excluded ENI has free addresses, and if a /28 needs
        a slot.
        """
        settings = self.settings
        if not snapshot.waiting_count:
            if settled and self._releases_addresses(snapshot):
                return True
            if any(eni.is_excluded and eni.counts.free for eni in snapshot.enis):
                return True
        return needs_slot(snapshot, settings) and deficit_count(snapshot, settings) > 0

    def _releases_addresses(self, snapshot: PoolSnapshot) -> bool:
        """Whether addresses or prefixes are released one by one, and not only with their ENI."""
        if self.settings.ip_targets_defined or is_prefix_mode(snapshot, self.settings):
            return True
        return any(eni.prefix_count for eni in snapshot.enis)

    def _release_refusal(self) -> GrowthRefusal | None:
        """Return why nothing is released now: EC2 refused, or an earlier call is open."""
        refusal = self._refused.refusal(RELEASE_DENIED, RELEASE_FAILED)
        if refusal is None and self._provisioner.has_open_intents():
            return growth_refusal("an earlier call to EC2 is not finished")  # one at a time, so that a crash leaves few open
        return refusal

    def _kept_count(self, snapshot: PoolSnapshot) -> int | None:
        """Return the surplus that is always kept for the whole window: one ENI where whole ENIs are released; None: all of it."""
        if self.settings.ip_targets_defined or is_prefix_mode(snapshot, self.settings):
            return None
        return snapshot.limits.slots_per_eni

    def _grow(self, action: Growth, snapshot: PoolSnapshot) -> None:
        """Do one action, unless EC2 has refused it: then the planner has a defect, because a plan must not contain it (I18)."""
        refused = self._growth_refusal(action, snapshot)
        if refused is not None:
            log.error("the plan contains a refused action action=%s reason=%s", action, refused.reason)
            self._refused.back_off(FAULT, CloudError(f"the plan contains a refused action: {refused.reason}"), EC2)
            return
        identity = self._identity()
        if identity is not None and self._subnets.recheck_before_create(action, identity):
            return  # the exclusion of an ENI changed: plan again
        home = self._home()
        eni = None if isinstance(action, CreateEni) else self._datastore.eni(action.eni_id)
        request = self._ec2_request(action, snapshot, home=home, eni=eni)
        is_single_at_home = eni is not None and not action.prefix_count and not request.is_other_subnet
        if home and is_single_at_home and self._refused.recheck_room(home, action):
            return
        self._execute_growth(request, snapshot)

    @staticmethod
    def _growth_refusal(action: Growth, snapshot: PoolSnapshot) -> GrowthRefusal | None:
        """Return the refusal of EC2 that forbids the action now, if there is one."""
        growth = snapshot.growth
        if not isinstance(action, CreateEni):
            return growth.allocation
        if growth.creation is None and growth.eni_cap is not None and snapshot.known_eni_count >= growth.eni_cap:
            return growth.cap
        return growth.creation

    @staticmethod
    def _ec2_request(action: Growth, snapshot: PoolSnapshot, *, home: SubnetId | None, eni: Eni | None) -> Ec2Request:
        """Return the action with the facts that explain a refusal. `eni`: the ENI that gets addresses, None for a creation."""
        used_slot_count = 0
        if eni is not None:
            used_slot_count = sum(capacity.used_slot_count for capacity in snapshot.enis if capacity.eni_id == eni.eni_id)
        return Ec2Request(
            action,
            home=home,
            is_other_subnet=eni is not None and home is not None and eni.subnet_id != home,
            is_urgent=snapshot.waiting_count > 0,
            used_slot_count=used_slot_count,
        )

    def _execute_growth(self, request: Ec2Request, snapshot: PoolSnapshot) -> None:
        """Do the action; a refusal of EC2 is recorded as a limit."""
        action = request.action
        began_s = self._clock.monotonic()
        try:
            self._provisioner.execute(action)
        except FrozenError as error:  # no refusal of EC2; the next plan respects the freeze
            log.info("growth stopped action=%s error=%s", action, log_text(error))
        except IpamError as error:
            if isinstance(error, EniLimitError):  # the failed creation synchronised with EC2, which may have shown foreign ENIs
                latest = self.snapshot(waiting_count=snapshot.waiting_count) or snapshot
                request = replace(request, attached_count=latest.known_eni_count, foreign_count=latest.unmanaged_eni_count)
            self._refused.learn(request, error)
            self._note_failure(error)
            if is_reported(error, is_urgent=request.is_urgent):
                self._refused_growth[request.kind].report(
                    problem(ConditionCode.EC2_REFUSED, cause=cause_of_error(error, is_advised=True))
                )
        else:
            self._refused_growth[request.kind].report(None)
            self._refused.succeeded(request)
            self._window.record_growth_time(action, took_s=self._clock.monotonic() - began_s)
            self._note_success()

    def _release_surplus(self, action: Release, snapshot: PoolSnapshot) -> None:
        """Release addresses or an ENI. A refusal does not stop growth, and is no error of the pool."""
        now_s = self._clock.monotonic()
        try:
            is_asked = self._provisioner.release(action)
        except IpamError as error:
            self._refused.learn_release(error)
            kind = ENIS if isinstance(action, ReleaseEni) else ADDRESSES
            self._provisioner.steps.report_refused(error, of=kind)
            log.warning("release failed action=%s error=%s", action, log_text(error))
            return
        if not is_asked:  # back off, so that a plan that is always outdated is not tried in a loop
            self._refused.back_off(RELEASE_FAILED, IpamError("an ADD or a comparison with EC2 was faster than the plan"), EC2)
            return
        self._refused.clear(RELEASE_FAILED, RELEASE_DENIED)
        eni = next((eni for eni in snapshot.enis if eni.eni_id == action.eni_id), None)
        if eni is None or eni.is_excluded:  # addresses of an excluded ENI did not count as surplus
            count = 0
        elif isinstance(action, ReleaseEni):
            count = eni.counts.total
        else:
            count = len(action.addresses) + len(action.prefixes) * ADDRESSES_PER_PREFIX
        self._window.record_release(count, self.settings, kept_count=self._kept_count(snapshot), now_s=now_s)

    def _home(self) -> SubnetId | None:
        """Return the default subnet of new ENIs; None before the node's identity is known."""
        identity = self._identity()
        if identity is None:
            return None
        return self._subnets.home(identity)

    def _pause_s(self) -> float | None:
        """Seconds until something is due without an event; None: an idle pool has no timer (I13)."""
        pauses, now_s = [self.security_groups.next_retry_s()], self._clock.monotonic()
        if self._leg_comparison:
            pauses.append(self._leg_comparison.next_s())
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
            if self._last_cycle is not None:
                _, snapshot = self._last_cycle
                min_age_s = eni_min_age_s(self.settings)
                pauses += [min_age_s - age_s for age_s in snapshot.hold.ages.values() if age_s < min_age_s]
            if self._is_postponed:
                settles_s = self._window.quiet_in_s(SETTLE_S, now_s=now_s)
                pauses.append(settles_s or self._window.quiet_in_s(self._spare_eni_delay_s(), now_s=now_s))
            if self._demand.waiting()[0]:
                pauses.append(self._enis.routing.next_retry_s())
        return soonest_s(pauses)

    def _spare_eni_delay_s(self) -> float:
        """Return the setting times a random number from 1 to 2, so that nodes that got pods at the same moment do not call EC2
        together.
        """
        return self.settings.spare_eni_delay_s * self._refused.part

    def _note_success(self) -> None:
        self._refused.clear(FAULT)
        if not self._refused.in_force() and not self._provisioner.has_open_intents():
            for part in self._refused_growth.values():
                part.report(None)
            self._health.resolve("pool")
            if not (self._demand.status.excess_count or self._refused.refusal(RELEASE_DENIED, RELEASE_FAILED)):
                self._provisioner.steps.end_refusal(ENIS, ADDRESSES)  # there is no surplus any more that should be released

    def _note_recovery(self, problems: Collection[IpamError], *, is_urgent: bool) -> None:
        """Report why recovered operations failed, each reason once. Operations that are in a pause count too."""
        for error in problems:
            self._note_failure(error)
        failures = (*problems, *self._provisioner.failures().values())
        reported = [cause_of_error(error, is_advised=True) for error in failures if is_reported(error, is_urgent=is_urgent)]
        cause = first_parts(joined(reported), NAMED_MAX)
        self._refused_growth[RECOVERY].report(problem(ConditionCode.EC2_REFUSED, cause=cause) if reported else None)
        if not problems:
            self._note_success()

    def _note_failure(self, error: IpamError) -> None:
        self._health.record_error("pool", error)
        if not isinstance(error, ThrottledError | CloudDeniedError):  # a denial is logged where EC2 is called
            log.warning("growth failed error=%s", log_text(error))

    def _publish(self, sentence: str, blocked: GrowthRefusal | None, *, generation: int, decided: Plan | None = None) -> None:
        pending_kind = Blocked.GROWING if self._last_cycle is None else self._last_cycle[1].growth.pending_kind
        status = PoolStatus(generation, sentence, kind=pending_kind)
        if blocked is not None:
            deadline = None if blocked.left_s is None else self._clock.monotonic() + blocked.left_s
            status = PoolStatus(generation, sentence, blocked, deadline, kind=blocked.kind)
        if decided is not None:
            status = replace(status, excess_count=decided.excess_count, retention_reason=decided.retention_reason)
        if sentence != self._demand.status.sentence:
            log.info("pool plan=%s", sentence)
        self._demand.publish(status)


def is_reported(error: IpamError, *, is_urgent: bool) -> bool:
    """Whether a failure of growth is reported as a condition. Throttling is reported only if an ADD waits, because other growth may be
    late.
    """
    return isinstance(error, CloudError) and (is_urgent or not isinstance(error, ThrottledError))
