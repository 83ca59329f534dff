"""When the pool gives back: it measures the surplus, waits, and asks EC2 for one release at a time, never while an ADD waits.

`ipamd/model/release.py` decides what goes, `ipamd/eni/steps.py` carries it out. A release that EC2 refuses is tried again after
a pause of its own: it stops no growth.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from ipamd.core.agenda import EC2
from ipamd.core.context import ServiceContext
from ipamd.eni.limits import RELEASE_DENIED, RELEASE_FAILED, Limits
from ipamd.eni.steps import report_refused
from ipamd.model.eni import ADDRESSES_PER_PREFIX
from ipamd.model.errors import IpamError, log_text
from ipamd.model.ids import EniId
from ipamd.model.placement import is_prefix_mode
from ipamd.model.plan import deficit_count, surplus_count
from ipamd.model.pool import Hold, PoolSettings, PoolSnapshot, Refusal, Release, ReleaseEni
from ipamd.model.release import draining, eni_min_age_s, needs_slot, releasable
from ipamd.pool.demand_window import Surplus

log = logging.getLogger(__name__)


class GivingBack:
    """The surplus over time, and what EC2's refusals teach about giving back. Used by the pool's thread; `with_hold` by any."""

    def __init__(self, context: ServiceContext, *, release: Callable[[Release], bool], limits: Limits) -> None:
        """`release` does one at EC2. Returns: whether EC2 was asked. Raises: IpamError."""
        self._datastore = context.datastore
        self._clock = context.clock
        self._health = context.health
        self._release = release
        self._surplus = Surplus()
        self._draining: frozenset[EniId] = frozenset()
        self._limits = limits

    def with_hold(self, snapshot: PoolSnapshot, settings: PoolSettings) -> PoolSnapshot:
        """Add to a snapshot what is known of the surplus over time, and what may be named."""
        now_s = self._clock.monotonic()
        settled = min(self._surplus.settled_count(now_s=now_s), surplus_count(snapshot, settings))
        may_go = _names_addresses(snapshot, settings, settled) and not snapshot.waiting_count
        may_go = may_go or (needs_slot(snapshot, settings) and deficit_count(snapshot, settings) > 0)
        return replace(
            snapshot,
            hold=Hold(
                settled_count=settled,
                is_over=self._surplus.is_over(now_s=now_s),
                ages=self._surplus.ages(now_s=now_s),
                releasable=releasable(self._datastore.snapshot(), held=self._datastore.held()) if may_go else {},
                refusal=self._limits.refusal(RELEASE_DENIED, RELEASE_FAILED) or self._under_way(),
            ),
        )

    def note(self, snapshot: PoolSnapshot, settings: PoolSettings) -> None:
        """Record the surplus of this moment, and let what the pool can do without empty."""
        surplus = surplus_count(snapshot, settings)
        enis = [eni.eni_id for eni in snapshot.enis]
        is_by_eni = not settings.ip_targets_defined and not is_prefix_mode(snapshot, settings)
        self._surplus.note(
            surplus,
            enis=enis,
            hold_s=settings.release_hold_s,
            eni_min_age_s=eni_min_age_s(settings),
            now_s=self._clock.monotonic(),
            kept_count=snapshot.limits.slots_per_eni if is_by_eni else None,
        )
        chosen = draining(snapshot, settings, surplus=surplus, before=self._draining)
        self._draining = chosen.enis
        self._datastore.set_draining(chosen)

    def act(self, action: Release, snapshot: PoolSnapshot) -> None:
        """Give one thing back. A refusal stops no growth, and is no error of the pool."""
        now_s = self._clock.monotonic()
        try:
            is_asked = self._release(action)
        except IpamError as error:
            self._limits.learn_release(error)
            report_refused(self._health, error)
            log.warning("%s: %s", action, log_text(error))
            return
        if not is_asked:  # pause, or a plan that never fits would be tried in a loop
            self._limits.put_off(RELEASE_FAILED, IpamError("an ADD or a comparison with EC2 was faster than the plan"), EC2)
            return
        self._limits.clear(RELEASE_FAILED, RELEASE_DENIED)
        self._surplus.released(_count(action, snapshot), now_s=now_s)

    def next_retry_s(self) -> float | None:
        """Seconds until the passing of time alone lets something go; None: not by itself."""
        return self._surplus.changes_in_s(now_s=self._clock.monotonic())

    def _under_way(self) -> Refusal | None:
        """An intent whose outcome is not known: one after the other, so that a crash leaves little open."""
        is_open = any(not intent.is_settled for intent in self._datastore.open_intents())
        return Refusal("an earlier call to EC2 is not finished") if is_open else None


def _names_addresses(snapshot: PoolSnapshot, settings: PoolSettings, settled: int) -> bool:
    """Whether so much surplus may end in addresses being named. To name them costs a look at all, so not where only ENIs may go."""
    if any(eni.is_excluded and eni.counts.free for eni in snapshot.enis):
        return True
    if settings.ip_targets_defined or is_prefix_mode(snapshot, settings):
        has_singles = any(eni.counts.free and eni.used_slot_count > eni.prefix_count for eni in snapshot.enis)
        if has_singles and settled:
            return True
    return settled >= ADDRESSES_PER_PREFIX and any(eni.prefix_count for eni in snapshot.enis)


def _count(action: Release, snapshot: PoolSnapshot) -> int:
    """How much of the surplus goes; what is on an excluded ENI was none."""
    if any(eni.is_excluded for eni in snapshot.enis if eni.eni_id == action.eni_id):
        return 0
    if isinstance(action, ReleaseEni):
        return next((eni.counts.total for eni in snapshot.enis if eni.eni_id == action.eni_id), 0)
    return len(action.addresses) + sum(prefix.num_addresses for prefix in action.prefixes)
