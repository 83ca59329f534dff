"""Places of the instance that are taken though no recorded ENI is there: what a comparison showed and did not record, and what EC2
refused.

That EC2 refuses a device index is the one sign of an ENI that Describe does not show: of another hand's, or of ours after a lost
datastore. It is believed for a while and then tried again, because a place comes free without a word. In memory only: a new process
may be refused once.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from ipamd.model.ids import EniId
from ipamd.model.placement import free_indexes
from ipamd.ports import Clock, Datastore
from ipamd.service.backoff import Retry, soonest_s
from ipamd.service.pool.recent_changes import RecentChanges

REFUSED_FIRST_S = 60.0
REFUSED_MAX_S = 1800.0
"""For how long a refused place counts as taken; doubled each time that it is refused again. Ours: Describe lags by seconds to minutes,
and meanwhile the node does without that place."""

Place = tuple[int, int]
"""Network card and device index."""


class Places:
    """Which places are taken, and for how long that is believed. Safe from any thread; its lock is a leaf."""

    def __init__(self, *, clock: Clock, datastore: Datastore, changes: RecentChanges) -> None:
        """`changes`: an ENI that a call of ours took away takes no place, though it was shown."""
        self._clock = clock
        self._datastore = datastore
        self._changes = changes
        self._lock = threading.Lock()
        self._shown: dict[EniId, Place] = {}
        self._refused: dict[Place, Retry] = {}

    def show(self, shown: Mapping[EniId, Place], *, is_whole: bool = True) -> None:
        """Take what a comparison showed and did not record; `is_whole`: what it lacks is there no more. An ENI that is known at a
        refused place has explained the refusal."""
        explained = {*shown.values(), *self._present()}
        with self._lock:
            self._shown = dict(shown) if is_whole else {**self._shown, **shown}
            self._refused = {place: retry for place, retry in self._refused.items() if place not in explained}

    def refuse(self, place: Place) -> None:
        """EC2 attached nothing there, because something is there."""
        with self._lock:
            retry = self._refused.setdefault(place, Retry(first_s=REFUSED_FIRST_S, max_s=REFUSED_MAX_S))
            retry.put_off(now_s=self._clock.monotonic())

    def took(self, place: Place) -> None:
        """EC2 attached an ENI there: it was free."""
        with self._lock:
            self._refused.pop(place, None)

    def shown(self) -> dict[EniId, Place]:
        """ENIs that were shown attached and are not recorded."""
        gone = self._changes.removed()
        with self._lock:
            shown = dict(self._shown)
        return {eni_id: at for eni_id, at in shown.items() if eni_id not in gone and self._datastore.eni(eni_id) is None}

    def refused(self) -> frozenset[Place]:
        """Places that EC2 refused lately, without an ENI that explains it."""
        now_s = self._clock.monotonic()
        with self._lock:
            refused = {place for place, retry in self._refused.items() if not retry.is_due(now_s=now_s)}
        return frozenset(refused - {*self.shown().values(), *self._present()}) if refused else frozenset()

    def next_end_s(self) -> float | None:
        """Seconds until the first refused place may be asked for again; None if there is none."""
        now_s = self._clock.monotonic()
        with self._lock:
            return soonest_s(retry.left_s(now_s=now_s) for retry in self._refused.values() if not retry.is_due(now_s=now_s))

    def free_index(self, *, beside: Collection[int]) -> int:
        """The lowest device index of the first network card that nothing known has, `beside` those that are asked for already."""
        recorded = {(eni.network_card, eni.device_index) for eni in self._datastore.enis()}
        known = {*recorded, *self.shown().values(), *self.refused()}
        return next(free_indexes({0, *beside, *(index for card, index in known if card == 0)}))

    def _present(self) -> set[Place]:
        """Places of recorded ENIs, but for those that EC2 does not show any more: such a one is perhaps what has the place."""
        stock = self._datastore.stock().enis
        return {(one.eni.network_card, one.eni.device_index) for one in stock if not one.has_left}
