"""Keep the pool at its target: take a snapshot, plan, execute one action, repeat.

`ipamd/model/plan.py` decides about growth, `ipamd/model/release.py` about releases, and the provisioner executes. Events wake the
maintainer (an ADD, a cooled address, a restart). A timer does so only while something is due, so that an idle node makes no EC2 call
(I13). No lock that ADD or DEL needs is held during a call to EC2 (I10).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from enum import Enum
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
from ipamd.model.growth_state import GrowthRefusal, GrowthState, PendingEni, growth_refusal
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.network_cards import (
    card_of_pool,
    card_pools,
    limits_of_card,
    managed_cards,
    possible_cards,
    with_cards,
    without_cards,
)
from ipamd.model.placement import is_prefix_mode, trunk_places, with_room_elsewhere
from ipamd.model.plan import Plan, deficit_count, plan, surplus_count, wanted_count
from ipamd.model.pod_pools import NO_POOLS, OWN, PodPools
from ipamd.model.pool_actions import CreateEni, Growth, Release, ReleaseAddresses, ReleaseEni
from ipamd.model.pool_counts import PoolCounts, Stock, assignable_count
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_shares import claims, other_pool_eni_count, stock_of_pool, with_share
from ipamd.model.pool_snapshot import PoolSnapshot, pool_snapshot
from ipamd.model.prefix_exchange import needs_slot
from ipamd.model.release import Draining, draining, eni_min_age_s, releasable
from ipamd.model.repeats import NO_REPEATS, Repeats
from ipamd.model.surplus import Hold
from ipamd.model.trunk import ASK_FOR_TRUNK
from ipamd.pool.demand_window import SETTLE_S
from ipamd.pool.planned_pool import PlannedPool, merged

COALESCE_S = 0.02
"""Pause after a trigger while no ADD waits, so that one plan serves several triggers. Ours, measured: a plan for every ADD of a burst
cost a fifth of the daemon's CPU."""

MAX_ACTIONS_PER_WAKE = 32
"""How many actions one wake-up makes at most. Ours: one wake-up can fill a node with 15 ENIs, because each ENI takes two actions, a
creation and one allocation. Where more actions are needed, the next wake-up follows at once."""

PREFETCH_SUBNETS = ("subnets ahead of growth",)
"""Back-off key: on a node without a free address, the subnets are described once while the instance's limits are not known yet."""


class StepOutcome(Enum):
    """How a cycle goes on after a step for one pool: plan all pools again, plan the next pool, or end the cycle."""

    AGAIN = "again"
    NEXT = "next"
    STOP = "stop"


AGAIN, NEXT, STOP = StepOutcome.AGAIN, StepOutcome.NEXT, StepOutcome.STOP

if TYPE_CHECKING:
    from ipamd.eni.legs.comparison import LegComparison
    from ipamd.eni.pinned import PinnedAddresses

RECOVERY = "recovery"
"""The part of the condition `ec2` that reports calls whose outcome is not known. The other parts, such as CREATION and ALLOCATION,
report refused growth."""

log = logging.getLogger(__name__)


class PoolMaintainer(Service):
    """Plans each pool by itself: the node's own, the pools of pods in the network file, and those of further network cards.

    There is no lock: each value that other threads read is a single reference, which is replaced as a whole.
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
        pinned: PinnedAddresses | None = None,
        pools: PodPools = NO_POOLS,
        has_cards: bool = False,
    ) -> None:
        """Keep the collaborators.

        Args:
            repeats: returns how many addresses earlier sandboxes of pods still hold, while the pods have newer sandboxes.
            pinned: obtains addresses that pods ask for; None if no pod may ask for one.
            pools: the further pools, which the network file defines for pods.
            has_cards: whether the pool manages further network cards. `set_limits` learns which cards the instance type has.
        """
        super().__init__(context)
        self._repeats = repeats
        self._provisioner = provisioner
        self._enis = provisioner.enis
        self.security_groups = security_groups
        self._leg_comparison = leg_comparison
        self._pinned = pinned
        self._subnets = provisioner.subnets
        self._identity = identity
        self._freeze = context.freeze
        self.settings = settings
        """The targets in force."""
        # Until `set_limits` the setting alone decides, because ADDs are served before the instance type is known.
        self._drain_other_kind(is_prefix_mode=settings.prefix_delegation)
        self.limits: InstanceLimits | None = None
        """The limits of the instance type; None until they are known."""
        self._refused = provisioner.subnets.limits
        self.pools = pools
        """The pools besides the node's own: of pods, and of further network cards."""
        self._has_cards = has_cards
        self._own = PlannedPool(None)
        self._planned = {OWN: self._own, **{name: PlannedPool(pool) for name, pool in pools.by_name.items()}}
        by_pool = (_part(kind, name) for kind in (CREATION, ALLOCATION) for name in pools.by_name)
        parts = (CREATION, ALLOCATION, RECOVERY, *by_pool)
        self._refused_growth = {part: context.health.claim("ec2", part=part) for part in parts}
        self.loop = Loop("pool", self.turn, health=context.health, clock=context.clock, changed=context.demand.triggered)

    @property
    def auto(self) -> AutoTarget | None:
        """The target of the node's own pool that follows from the demand measured at the last cycle.

        None without VPC_IPAMD_WARM_TARGET_MODE=auto, and before the first cycle.
        """
        last_cycle = self._own.last_cycle
        if last_cycle is None or not self.settings.warm_target_auto:
            return None
        _, snapshot = last_cycle
        return auto_target(snapshot, self.settings)

    def preview(self, pool: str = OWN) -> PoolSnapshot | None:
        """Make the planner's input from the EC2 results of the last cycle and the present datastore; None before the first cycle.

        Safe from any thread: it reads no object that only the pool's thread may use.
        """
        last_cycle = self._planned[pool].last_cycle
        if last_cycle is None:
            return None
        snapshot_of, last_snapshot = last_cycle
        stock = self._datastore.stock()
        if self.pools:
            stock = stock_of_pool(stock, pool, self.pools)
        waiting = self._demand.waiting_count_of(pool)
        return replace(snapshot_of(stock, waiting_count=waiting), hold=last_snapshot.hold)

    def settings_of(self, pool: str) -> PoolSettings:
        """Return the targets of a pool now. From any thread."""
        return self.targets_of(pool, self.settings)

    def targets_of(self, pool: str, own: PoolSettings) -> PoolSettings:
        """Return the targets that a pool would have if the targets of the node's own pool were `own`. From any thread."""
        if not self.pools:
            return own
        return self._planned[pool].settings(own, self._datastore.stock())

    def _settings_of(self, planned: PlannedPool) -> PoolSettings:
        return self.targets_of(planned.name, self.settings)

    def set_limits(self, limits: InstanceLimits, *, settings: PoolSettings) -> None:
        """Set the limits of the instance type: the pool may grow from now on."""
        self.settings = settings  # before the limits, because other threads use the settings once there are limits
        if self._has_cards:
            self._plan_cards(possible_cards(limits))
        self.limits = limits
        has_prefixes = settings.prefix_delegation and limits.supports_prefixes
        self._drain_other_kind(is_prefix_mode=has_prefixes)
        unsupported = None
        if settings.prefix_delegation and not has_prefixes:
            code = ConditionCode.IPV6_UNSUPPORTED if settings.family.is_sparse else ConditionCode.PREFIXES_UNSUPPORTED
            unsupported = problem(code, instance_type=limits.instance_type)
        self._health.report("prefixes", unsupported)
        self._demand.trigger()

    def _plan_cards(self, cards: Collection[int]) -> None:
        """Plan a pool for each network card above 0 from now on."""
        further, handles = dict(self._planned), dict(self._refused_growth)
        for name, pool in card_pools(cards).items():
            further.setdefault(name, PlannedPool(pool))
            for part in (_part(CREATION, name), _part(ALLOCATION, name)):
                if part not in handles:
                    handles[part] = self._health.claim("ec2", part=part)
        self._refused_growth, self._planned = handles, further
        self.pools = with_cards(without_cards(self.pools), cards)

    def managed_cards(self) -> tuple[int, ...] | None:
        """Return the network cards on which pods may get interfaces now; None before they are known. From any thread.

        Limits that are only the safe default for an unknown instance type do not show the cards.
        """
        if not self._has_cards:
            return (0,)
        if self.limits is None or not self.limits.is_known:
            return None
        cards = map(card_of_pool, self.pools.names)
        return managed_cards(cards, self._datastore.enis(), occupied=self._enis.book.unrecorded_enis().values())

    def _is_left_alone(self, planned: PlannedPool) -> bool:
        """Whether a pool is that of a network card that has ENIs, and none of them is for pods."""
        card = card_of_pool(planned.name)
        return bool(card) and card not in (self.managed_cards() or ())

    def _drain_other_kind(self, *, is_prefix_mode: bool) -> None:
        """Assign addresses of the mode that is off (prefixes, or single addresses) last, so that they become free (docs/adr/0029)."""
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
            for planned in self._planned.values():
                self._publish(planned, log_text(error), self._refused.refusal(FAULT), generation=self._demand.waiting()[1])
        left_s = None if due_deadline is None else max(due_deadline - self._clock.monotonic(), 0.0)
        return soonest_s([self._pause_s(), left_s])

    def run_once(self) -> float | None:
        """Do the work of one wake-up.

        First `cycle` plans the pools, grows them, and releases surplus. Once the limits of the instance type are known, other due work
        follows: resyncs, the check of CIDR reservations for pinned addresses, leaked ENIs, the security groups of secondary ENIs, and
        DescribeSubnets, if it was denied or a person asked for it.

        Returns: the monotonic time at which the plan must be made again even if nothing happens; None if there is no such time.
        """
        # `cycle` comes first, because an ADD may wait for it. If it creates an ENI, it also reads metadata again, so the identity that
        # is used below is recent.
        self.cycle()
        # The pause is read now, because the calls below may block for longer than it lasts.
        pause_s = self._pause_s()
        deadlines = [self._demand.status_of(name).retry_deadline for name in self._planned]
        due_deadline = soonest_s([*deadlines, None if pause_s is None else self._clock.monotonic() + pause_s])
        if self.limits is not None:  # until then the cloud thread may be recording ENIs, and only one thread may do that
            self._enis.resync_due()
            if self._pinned is not None:
                self._pinned.check_reservations()
            identity = self._identity()
            if identity is not None:
                self._provisioner.leaked_enis.run_due(identity)
            identity = self._identity()  # read it again: the check of leaked ENIs may take seconds
            if identity is not None:
                self.security_groups.follow(identity)
                self._subnets.describe_if_asked(identity)
        return due_deadline

    def cycle(self) -> Plan | None:
        """Plan the pools, do one action, and repeat that until there is nothing more to do in this wake-up.

        The cycle ends when each pool has reached its target or cannot grow, and also after one release, after MAX_ACTIONS_PER_WAKE
        actions, or if the limits of the instance type are not known.

        Returns: the last plan of the node's own pool; None if the cycle made none, as without limits, or after MAX_ACTIONS_PER_WAKE
            actions.
        """
        decided: dict[str, Plan] = {}
        for _ in range(MAX_ACTIONS_PER_WAKE):
            outcome = NEXT
            for planned in self._in_order():
                outcome = self._step(planned, decided)
                if outcome is not NEXT:
                    break
            if outcome is not AGAIN:
                return decided.get(OWN)
        log.warning("pool cycle interrupted, will go on actions=%d", MAX_ACTIONS_PER_WAKE)
        self._demand.trigger()
        return None

    def _in_order(self) -> list[PlannedPool]:
        """Return the pools in the order of planning: those for which ADDs wait, by ascending number of ENIs, then all other pools."""
        if not self.pools:
            return [self._own]
        eni_counts = Counter(eni.pool for eni in self._datastore.enis() if eni.managed)

        def rank(planned: PlannedPool) -> tuple[bool, int]:
            is_waiting = self._demand.waiting_count_of(planned.name) > 0
            return not is_waiting, eni_counts[planned.name] if is_waiting else 0

        return sorted(self._planned.values(), key=rank)

    def _step(self, planned: PlannedPool, decided: dict[str, Plan]) -> StepOutcome:
        """Plan one pool, and do the first action of its plan. The plan is added to `decided`."""
        if self._is_left_alone(planned):
            self._publish(planned, "left alone: its ENIs are not for pods", None, generation=self._demand.waiting()[1])
            return NEXT
        waiting, generation = self._prepare_plan(planned)
        counts, now_s = self._counts_of(planned), self._clock.monotonic()
        if self.limits is not None:  # until then, the node's ENIs are perhaps not recorded yet
            planned.window.observe(
                counts,
                self._settings_of(planned),
                waiting_count=waiting,
                served_count=self._demand.served_count_of(planned.name),
                now_s=now_s,
                repeats=NO_REPEATS if planned.name else self._repeats(),
            )
        snapshot = self.snapshot(waiting_count=waiting, pool=planned.name)
        if snapshot is None:
            self._prepare_for_limits(counts)
            decided.clear()
            return STOP
        if self._refused.drop_stale_cap(snapshot.known_eni_count, planned.name):
            return AGAIN
        decided[planned.name] = plan_of_pool = self._decide(planned, snapshot, generation=generation, now_s=now_s)
        if self.loop.is_stopped:
            return STOP
        if self._refused.refusal(FAULT) is not None:
            return NEXT  # the fault stops all pools, so each pool publishes the fault for its waiting ADDs
        if self._act(planned, plan_of_pool, snapshot, is_urgent=waiting > 0):
            return AGAIN
        is_releasing = bool(plan_of_pool.actions)  # one release per wake-up, so that other due work comes first
        return STOP if is_releasing else NEXT

    def _counts_of(self, planned: PlannedPool) -> PoolCounts:
        if not self.pools:
            return self._datastore.counts()
        return stock_of_pool(self._datastore.stock(), planned.name, self.pools).counts

    def _prepare_for_limits(self, counts: PoolCounts) -> None:
        """Report that there is no plan yet. On a node without a free address, read the subnets meanwhile for the first growth."""
        identity = self._identity()
        if identity is not None and not counts.free and self._backoffs.is_due(PREFETCH_SUBNETS):
            self._backoffs.put(PREFETCH_SUBNETS, in_s=inf)
            self._subnets.learn(identity)
        for planned in self._planned.values():
            self._publish(planned, "the instance's limits are not known yet", None, generation=0)

    def _decide(self, planned: PlannedPool, snapshot: PoolSnapshot, *, generation: int, now_s: float) -> Plan:
        """Make the plan, and publish the results: the wanted count, the surplus, draining ENIs and the pool's status."""
        settings = self._settings_of(planned)
        self._provisioner.note_wanted(wanted_count(snapshot, settings), planned.name)
        decided = plan(snapshot, settings=settings)
        surplus = surplus_count(snapshot, settings)
        planned.window.record_surplus(surplus, settings, now_s=now_s)
        before = self._datastore.draining().enis
        planned.draining = draining(snapshot, settings, surplus=surplus, before=before)
        self._datastore.set_draining(merged([pool.draining for pool in self._planned.values()]))
        planned.is_postponed = decided.is_postponed
        planned.excess_count = decided.excess_count
        planned.note_plan(decided, snapshot, now_s=now_s)
        self._publish(planned, decided.sentence, decided.blocked, generation=generation, decided=decided)
        return decided

    def _act(self, planned: PlannedPool, decided: Plan, snapshot: PoolSnapshot, *, is_urgent: bool) -> bool:
        """Recover open operations that are due, or else do the plan's first action. If there is no action, check whether an ENI is
        still excluded.

        Returns: whether to plan again now.
        """
        if self._provisioner.has_due_intents():
            problems = self._provisioner.recover_due()  # the outcome of open operations changes the plan
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
            self._release_surplus(planned, action, snapshot)
            self._demand.trigger()  # one release per wake-up, so that other due work comes first
            return False
        self._grow(planned, action, snapshot)
        return True

    def _prepare_plan(self, planned: PlannedPool) -> tuple[int, int]:
        """Do the work that must not wait for the end of the cycle, in which each action may take seconds.

        Returns: how many ADDs of the pool wait, and the latest generation of demand (`Demand.join`).
        """
        if self._leg_comparison is not None and self.limits is not None:
            self._leg_comparison.compare()  # some new sandboxes have no network until EC2 confirms their legs
        if self._pinned is not None and self.limits is not None:
            self._pinned.serve(self.limits)
        waiting, generation = self._demand.waiting()
        if waiting:
            self._enis.routing.retry_due()
        if self.pools:
            waiting = self._demand.waiting_count_of(planned.name)
        return waiting, generation

    def _report_trunk(self, snapshot: PoolSnapshot) -> None:
        """Report a trunk ENI that is needed and missing, or end that report."""
        if not trunk_places(snapshot, self.settings):
            self._health.report("trunk", None)
            return
        is_full = snapshot.known_eni_count >= snapshot.limits.eni_count
        code = ConditionCode.TRUNK_WITHOUT_PLACE if is_full else ConditionCode.TRUNK_MISSING
        self._health.report("trunk", problem(code, next_step=ASK_FOR_TRUNK))

    def snapshot(self, *, waiting_count: int = 0, pool: str = OWN) -> PoolSnapshot | None:
        """Make the planner's input from one consistent read of memory; None before the instance's limits are known."""
        if self.limits is None:
            return None
        planned = self._planned[pool]
        growth = self._growth(planned, is_urgent=waiting_count > 0)
        stock = self._datastore.stock()
        card = card_of_pool(pool)
        snapshot_of = partial(
            pool_snapshot,
            limits=limits_of_card(self.limits, card),
            network_card=card,
            fault=self._refused.refusal(FAULT),
            growth=growth,
            occupied=self._enis.book.unrecorded_enis().values(),
            refused=self._enis.book.refused(),
            unplugged=self._enis.routing.unplugged(),
            frozen=self._freeze.reason,
            may_grow_for_adds=self._freeze.may_grow_for_adds,
            has_trunk=self._enis.book.trunk() is not None,
        )
        snapshot_of = partial(self._snapshot_with_room_elsewhere, snapshot_of, self._home_enis(pool))
        if self.pools:
            snapshot_of = partial(self._snapshot_of_pool, snapshot_of, planned, stock, growth.pending_enis)
            stock = stock_of_pool(stock, pool, self.pools)
        snapshot = snapshot_of(stock, waiting_count=waiting_count)
        snapshot = replace(snapshot, hold=self._release_limits(planned, snapshot))
        planned.last_cycle = (snapshot_of, snapshot)
        if not pool:
            self._report_trunk(snapshot)
        return snapshot

    def _home_enis(self, pool: str) -> frozenset[EniId]:
        """Return the ENIs in the default subnet of a pool."""
        home = self._home(pool)
        return frozenset(eni.eni_id for eni in self._datastore.enis() if eni.subnet_id == home)

    @staticmethod
    def _snapshot_with_room_elsewhere(
        snapshot_of: Callable[..., PoolSnapshot], home_enis: Collection[EniId], stock: Stock, *, waiting_count: int
    ) -> PoolSnapshot:
        return with_room_elsewhere(snapshot_of(stock, waiting_count=waiting_count), home_enis)

    def _snapshot_of_pool(
        self,
        snapshot_of: Callable[..., PoolSnapshot],
        planned: PlannedPool,
        whole: Stock,
        pending: Collection[PendingEni],
        stock: Stock,
        *,
        waiting_count: int,
    ) -> PoolSnapshot:
        """Make the snapshot of a pool, with its share of the node. `whole`: the stock of all pools. `stock`: see `stock_of_pool`."""
        snapshot = snapshot_of(stock, waiting_count=waiting_count)
        count = other_pool_eni_count(whole, planned.name, self.pools)
        snapshot = replace(snapshot, pool=planned.name, other_pool_eni_count=count)
        if snapshot.network_card:
            return snapshot
        return with_share(snapshot, self._settings_of(planned), claims(whole, self.pools, pending))

    def _growth(self, planned: PlannedPool, *, is_urgent: bool) -> GrowthState:
        """Return the limits of growth, the growth under way, and the measured demand."""
        now_s, routing, pool, window = self._clock.monotonic(), self._enis.routing, planned.name, planned.window
        candidates = self._subnets.candidates_of(pool)
        refusals = self._refused.state(home=self._home(pool), candidates=candidates, is_urgent=is_urgent, pool=pool)
        return replace(
            self._provisioner.with_pending(refusals, pool),
            slot_caps={**self._slots_kept_free(), **refusals.slot_caps, **dict.fromkeys(routing.frozen(), 0)},
            host=routing.refusal(),
            has_stuck_eni=routing.has_stuck_eni(),
            is_spare_eni_settling=window.quiet_in_s(self._spare_eni_delay_s(), now_s=now_s) > 0,
            demand=window.measured_demand(self._settings_of(planned), now_s=now_s),
        )

    def _slots_kept_free(self) -> Mapping[EniId, int]:
        """Return how many slots the pool may use on each ENI on which a slot is left for an address that a pod asked for; empty
        without such an ENI.
        """
        if self._pinned is None or self.limits is None:
            return {}
        return self._pinned.slot_caps(self.limits)

    def _release_limits(self, planned: PlannedPool, snapshot: PoolSnapshot) -> Hold:
        """Return the limits of a release: the stable surplus, ages of ENIs, addresses that may be released, and a refusal.

        The addresses are listed only if a plan may name them, because the list costs a copy of the datastore's rows.
        """
        settings, now_s = self._settings_of(planned), self._clock.monotonic()
        stable_surplus = planned.window.stable_surplus(settings, kept_count=self._kept_count(snapshot), now_s=now_s)
        if stable_surplus is not None:
            stable_surplus = min(stable_surplus, surplus_count(snapshot, settings))
        if self._is_other_pool_starved(planned, now_s):
            stable_surplus = surplus_count(snapshot, settings)
        addresses = {}
        if self._may_name_addresses(snapshot, stable_surplus, settings):
            addresses = releasable(self._datastore.snapshot(), withheld=self._datastore.withheld())
        return Hold(
            stable_surplus=stable_surplus,
            ages={eni_id: RECENT_S - left_s for eni_id, left_s in self._enis.book.added_enis().items()},
            releasable=addresses,
            refusal=self._release_refusal(),
        )

    def _is_other_pool_starved(self, planned: PlannedPool, now_s: float) -> bool:
        """Whether an ADD of another pool has lately found no place for an ENI on the same network card, so that this pool keeps no
        surplus.
        """
        card = card_of_pool(planned.name)
        others = [other for other in self._planned.values() if other is not planned and card_of_pool(other.name) == card]
        return any(other.is_starved(now_s) for other in others)

    def _may_name_addresses(self, snapshot: PoolSnapshot, stable_surplus: int | None, settings: PoolSettings) -> bool:
        """Whether a plan may name single addresses or prefixes to release.

        It may in three cases: addresses or prefixes are released one by one, and there is a stable surplus; an excluded ENI has free
        addresses; or a /28 needs a slot. In the first two cases no ADD of the pool may wait.
        """
        if not snapshot.waiting_count:
            if stable_surplus and self._releases_addresses(snapshot, settings):
                return True
            if any(eni.is_excluded and eni.counts.free for eni in snapshot.enis):
                return True
        return needs_slot(snapshot, settings) and deficit_count(snapshot, settings) > 0

    @staticmethod
    def _releases_addresses(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
        """Whether addresses or prefixes are released one by one, and not only with their ENI."""
        if settings.ip_targets_defined or is_prefix_mode(snapshot, settings):
            return True
        return any(eni.prefix_count for eni in snapshot.enis)

    def _release_refusal(self) -> GrowthRefusal | None:
        """Return why nothing is released now: EC2 refused a release, an ADD waits (with several pools), or an earlier call is open.

        None if something may be released.
        """
        refusal = self._refused.refusal(RELEASE_DENIED, RELEASE_FAILED)
        if refusal is None and self.pools and self._demand.waiting()[0]:
            return growth_refusal("an ADD of another pool waits")
        if refusal is None and self._provisioner.has_open_intents():
            return growth_refusal("an earlier call to EC2 is not finished")  # one at a time, so that a crash leaves few open
        return refusal

    def _kept_count(self, snapshot: PoolSnapshot) -> int | None:
        """Return how many surplus addresses are kept during the whole hold window, also after a burst has ended.

        Where only whole ENIs are released, these are the addresses of one ENI. Returns: None if all are kept for the window.
        """
        settings = self._settings_of(self._planned[snapshot.pool])
        if settings.ip_targets_defined or is_prefix_mode(snapshot, settings):
            return None
        return snapshot.limits.slots_per_eni

    def _grow(self, planned: PlannedPool, action: Growth, snapshot: PoolSnapshot) -> None:
        """Do one action of growth.

        An action that a refusal of EC2 forbids is not done; only a defect can put it into the plan (I18).
        """
        refused = self._growth_refusal(action, snapshot)
        if refused is not None:
            log.error("the plan contains a refused action action=%s reason=%s", action, refused.reason)
            self._refused.back_off(FAULT, CloudError(f"the plan contains a refused action: {refused.reason}"), EC2)
            return
        identity = self._identity()
        if identity is not None and self._subnets.recheck_before_create(action, identity):
            return  # the exclusion of an ENI changed: plan again
        home = self._home(planned.name)
        eni = None if isinstance(action, CreateEni) else self._datastore.eni(action.eni_id)
        request = self._ec2_request(action, snapshot, home=home, eni=eni)
        is_single_at_home = eni is not None and not action.prefix_count and not request.is_other_subnet
        if home and is_single_at_home and self._is_short_of_room(home, action, identity):
            return  # plan again: another subnet may have room
        self._execute_growth(request, snapshot)

    def _is_short_of_room(self, home: SubnetId, action: Growth, identity: InstanceIdentity | None) -> bool:
        """Whether the default subnet has too few addresses for the action. It is described for that, but only if EC2 refused a request
        there, and the pause after that refusal is over.
        """
        if identity is None or not self._refused.is_room_due(home):
            return False
        free_count = self._subnets.describe_for_room(home, identity)
        return self._refused.recheck_room(home, action, free_count=free_count)

    @staticmethod
    def _growth_refusal(action: Growth, snapshot: PoolSnapshot) -> GrowthRefusal | None:
        """Return the refusal of EC2 that forbids the action now; None if there is none."""
        growth = snapshot.growth
        if not isinstance(action, CreateEni):
            return growth.allocation
        if growth.creation is None and growth.eni_cap is not None and snapshot.known_eni_count >= growth.eni_cap:
            return growth.eni_cap_refusal
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
            pool=snapshot.pool,
        )

    def _execute_growth(self, request: Ec2Request, snapshot: PoolSnapshot) -> None:
        """Do the action; a refusal of EC2 is recorded as a limit."""
        action = request.action
        began_s = self._clock.monotonic()
        try:
            self._provisioner.execute(action)
        except FrozenError as error:  # this is not a refusal of EC2, and the next plan respects the freeze
            log.info("growth stopped action=%s error=%s", action, log_text(error))
        except IpamError as error:
            if isinstance(error, EniLimitError):  # the failed creation synchronised with EC2, which may have shown foreign ENIs
                latest = self.snapshot(waiting_count=snapshot.waiting_count, pool=snapshot.pool) or snapshot
                foreign_count = latest.unmanaged_eni_count - latest.other_pool_eni_count
                request = replace(request, attached_count=latest.known_eni_count, foreign_count=foreign_count)
            self._refused.learn(request, error)
            self._note_failure(error)
            if is_reported(error, is_urgent=request.is_urgent):
                refused = problem(ConditionCode.EC2_REFUSED, cause=cause_of_error(error, is_advised=True))
                age_s = self._clock.monotonic() - began_s
                self._refused_growth[_part(request.kind, request.pool)].report(refused, age_s=age_s)
        else:
            self._refused_growth[_part(request.kind, request.pool)].report(None)
            self._refused.succeeded(request)
            self._planned[request.pool].window.record_growth_time(action, took_s=self._clock.monotonic() - began_s)
            self._note_success()

    def _release_surplus(self, planned: PlannedPool, action: Release, snapshot: PoolSnapshot) -> None:
        """Release addresses or an ENI. A refusal does not stop growth, and is not an error of the pool."""
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
        planned.window.record_release(count, self._settings_of(planned), kept_count=self._kept_count(snapshot), now_s=now_s)

    def _home(self, pool: str) -> SubnetId | None:
        """Return the default subnet of a pool's new ENIs; None before the node's identity, or that subnet, is known."""
        identity = self._identity()
        if identity is None:
            return None
        return self._subnets.home_of(pool, identity)

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
            ]
            if self._pinned is not None:
                pauses.append(self._pinned.next_s())
            for planned in self._planned.values():
                pauses += self._pauses_of(planned, now_s)
            if self._demand.waiting()[0]:
                pauses.append(self._enis.routing.next_retry_s())
        return soonest_s(pauses)

    def _pauses_of(self, planned: PlannedPool, now_s: float) -> list[float | None]:
        """Return, for each work of one pool that becomes due without an event, the seconds until then; None for work that does not
        become due.
        """
        settings = self._settings_of(planned)
        pauses = [planned.window.next_change_s(settings, now_s=now_s)]
        if planned.last_cycle is not None:
            _, snapshot = planned.last_cycle
            min_age_s = eni_min_age_s(settings)
            pauses += [min_age_s - age_s for age_s in snapshot.hold.ages.values() if age_s < min_age_s]
        if planned.is_postponed:
            settles_s = planned.window.quiet_in_s(SETTLE_S, now_s=now_s)
            pauses.append(settles_s or planned.window.quiet_in_s(self._spare_eni_delay_s(), now_s=now_s))
        return pauses

    def _spare_eni_delay_s(self) -> float:
        """Return the setting `spare_eni_delay_s` times this node's random number from 1 to 2.

        So nodes that got pods at the same moment do not call EC2 together.
        """
        return self.settings.spare_eni_delay_s * self._refused.spread_factor

    def _note_success(self) -> None:
        self._refused.clear(FAULT)
        if not self._refused.in_force() and not self._provisioner.has_open_intents():
            for part in self._refused_growth.values():
                part.report(None)
            self._health.resolve("pool")
            excess_count = sum(planned.excess_count for planned in self._planned.values())
            if not (excess_count or self._refused.refusal(RELEASE_DENIED, RELEASE_FAILED)):
                self._provisioner.steps.end_refusal(ENIS, ADDRESSES)  # there is no surplus any more that should be released

    def _note_recovery(self, problems: Collection[IpamError], *, is_urgent: bool) -> None:
        """Report why the recovery of operations failed, each reason once. Operations that wait for their next try are included."""
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

    def _publish(
        self, planned: PlannedPool, sentence: str, blocked: GrowthRefusal | None, *, generation: int, decided: Plan | None = None
    ) -> None:
        pending_kind = Blocked.GROWING if planned.last_cycle is None else planned.last_cycle[1].growth.pending_kind
        status = PoolStatus(generation, sentence, kind=pending_kind)
        if blocked is not None:
            deadline = None if blocked.left_s is None else self._clock.monotonic() + blocked.left_s
            status = PoolStatus(generation, sentence, blocked, deadline, kind=blocked.kind)
        if decided is not None:
            status = replace(status, excess_count=decided.excess_count, retention_reason=decided.retention_reason)
        if sentence != self._demand.status_of(planned.name).sentence:
            if planned.name:
                log.info("pool plan=%s of=%s", sentence, planned.name)
            else:
                log.info("pool plan=%s", sentence)
        self._demand.record_supply(assignable_count(self._datastore.stock(), planned.name), self._clock.now(), planned.name)
        self._demand.publish(status, planned.name)


def _part(kind: str, pool: str) -> str:
    """Return the name of the part of the condition `ec2` that is about a kind of growth of a pool."""
    return f"{kind} for pool {pool}" if pool else kind


def is_reported(error: IpamError, *, is_urgent: bool) -> bool:
    """Whether a failure of growth is reported as a condition.

    Throttling is reported only if an ADD waits, because growth that no ADD waits for may be late.
    """
    return isinstance(error, CloudError) and (is_urgent or not isinstance(error, ThrottledError))
