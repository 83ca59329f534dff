"""Remember what our own calls changed at EC2 in the last minutes.

Describe and instance metadata may lag behind a call of ours. Whoever compares with them leaves these objects out, so that lag is not
taken for another hand's change. Kept in memory: a restart forgets what was added, and two looks apart in time still protect that. What
was given back is read again from its intents.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from ipaddress import IPv4Address, IPv4Network

from ipamd.core.backoff import Retry, soonest_s
from ipamd.core.context import ServiceContext
from ipamd.model.cloud import all_addresses
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.errors import log_text
from ipamd.model.history import HistoryRecord
from ipamd.model.ids import EniId
from ipamd.model.intent import SETTLED_AT, IntentKind, named
from ipamd.model.ledger import LedgerEvent
from ipamd.model.metadata_evidence import CloudKey
from ipamd.model.placement import free_indexes
from ipamd.ports import Clock, Datastore
from ipamd.ports.history import History

log = logging.getLogger(__name__)


class RecentChanges:
    """ENIs and addresses that our own calls added or removed less than `RECENT_S` ago. Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._added: dict[CloudKey, float] = {}
        self._removed: dict[CloudKey, float] = {}
        self._removed_from: dict[IPv4Address, EniId] = {}

    def note_added(
        self, *, enis: Iterable[EniId] = (), addresses: Iterable[IPv4Address] = (), prefixes: Iterable[IPv4Network] = ()
    ) -> None:
        """Remember what a call of ours is known to have added: call it before the addresses become assignable."""
        self._note(self._added, self._removed, _keys(enis, addresses, prefixes))

    def note_removed(
        self,
        *,
        enis: Iterable[EniId] = (),
        addresses: Iterable[IPv4Address] = (),
        on: EniId | None = None,
        left_s: float = RECENT_S,
    ) -> None:
        """Remember what a call of ours is known to have removed (its success is evidence of absence).

        `on`: the ENI that the addresses were on. `left_s`: seconds for which Describe may still show it.
        """
        gone = frozenset(addresses)
        self._note(self._removed, self._added, _keys(enis, gone, ()), left_s=left_s)
        with self._lock:
            self._removed_from = {address: eni_id for address, eni_id in self._removed_from.items() if address in self._removed}
            self._removed_from |= dict.fromkeys(gone, on) if on is not None else {}

    def removed_from(self, eni_id: EniId) -> frozenset[IPv4Address]:
        """Addresses that a call of ours took from an ENI, and that Describe may still show there."""
        return frozenset(address for address, on in self.given_back().items() if on == eni_id)

    def given_back(self) -> dict[IPv4Address, EniId]:
        """Addresses that calls of ours took from ENIs, and that Describe may still show there; each with its ENI."""
        removed = self.removed()
        with self._lock:
            return {address: on for address, on in self._removed_from.items() if address in removed}

    def forget_added(self, eni_id: EniId) -> float | None:
        """An ENI that was attached, and whose link was there, has lost its link: that EC2 does not show it is no lag while it is away.

        Returns: the monotonic time until which it would have been remembered, for `remember_added`; None if it was not.
        """
        with self._lock:
            return self._added.pop(eni_id, None)

    def remember_added(self, eni_id: EniId, deadline: float) -> None:
        """The link is there again: until this monotonic time Describe may lag, as before."""
        with self._lock:
            self._added[eni_id] = deadline

    def added(self) -> dict[CloudKey, float]:
        """What was added, with the seconds for which Describe may still not show it; an address is in it on its own."""
        return self._left(self._added)

    def removed(self) -> dict[CloudKey, float]:
        """What was removed, with the seconds for which Describe may still show it."""
        return self._left(self._removed)

    def _note(
        self, to: dict[CloudKey, float], other: dict[CloudKey, float], keys: set[CloudKey], *, left_s: float = RECENT_S
    ) -> None:
        deadline = self._clock.monotonic() + left_s
        with self._lock:
            for key in keys:
                to[key] = deadline
                other.pop(key, None)

    def _left(self, noted: dict[CloudKey, float]) -> dict[CloudKey, float]:
        now = self._clock.monotonic()
        with self._lock:
            for key in [key for key, deadline in noted.items() if deadline <= now]:
                del noted[key]
            return {key: deadline - now for key, deadline in noted.items()}


def _keys(enis: Iterable[EniId], addresses: Iterable[IPv4Address], prefixes: Iterable[IPv4Network]) -> set[CloudKey]:
    return {*enis, *all_addresses(addresses, prefixes)}


# Places of the instance that are taken though no recorded ENI is there: what a comparison showed and did not record, and what EC2
# refused.
#
# That EC2 refuses a device index is the one sign of an ENI that Describe does not show: of another hand's, or of ours after a
# lost datastore. It is believed for a while and then tried again, because a place comes free without a word. In memory only: a
# new process may be refused once.


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


# What calls of ours took from ENIs before this process: told by its intents, or by the history if the datastore that knew it was
# lost, or is of another boot.
#
# EC2 may show for a while what it has taken back, and its first answer to a process without records is all that this one has: a
# chaos run saw an address given to a pod that a call of ours had returned twenty seconds before. The history is on the node's
# disk, and lacks at most its last second.


def remember_given_back(changes: RecentChanges, history: History, clock: Clock) -> None:
    """Read the last `RECENT_S` of the history. What it cannot tell is as it would be without one."""
    now = clock.now()
    found = history.read_since(now - timedelta(seconds=RECENT_S))
    last: dict[str, HistoryRecord] = {}
    for record in sorted(found.records, key=lambda record: record.at):
        if record.event in (LedgerEvent.ADDED, LedgerEvent.REMOVED):
            last[record.address] = record
        elif record.event in (LedgerEvent.ENI_ADDED, LedgerEvent.ENI_REMOVED):
            last[record.eni_id] = record
    for key, record in last.items():
        left_s = RECENT_S - max((now - record.at).total_seconds(), 0.0)
        try:
            if record.event == LedgerEvent.REMOVED:
                changes.note_removed(addresses=[IPv4Address(key)], on=EniId(record.eni_id), left_s=left_s)
            elif record.event == LedgerEvent.ENI_REMOVED:
                changes.note_removed(enis=[EniId(key)], left_s=left_s)
        except ValueError:
            log.warning("the history names %r as an address: not read", key[:40])


def remember_named(changes: RecentChanges, context: ServiceContext) -> None:
    """Learn from its intents what an earlier process gave back, or was about to: EC2 may show it for as long as it might to that one.
    A malformed intent is left to its recovery."""
    now_s = context.clock.monotonic()
    for intent in context.datastore.open_intents():
        eni_id = EniId(intent.payload.get("eni_id", ""))
        try:
            left_s = float(intent.payload.get(SETTLED_AT, now_s)) + RECENT_S - now_s
            if intent.kind is IntentKind.UNASSIGN:
                changes.note_removed(addresses=all_addresses(*named(intent)), on=eni_id, left_s=left_s)
            elif intent.kind is IntentKind.DELETE_ENI and intent.is_settled:
                changes.note_removed(enis=[eni_id], left_s=left_s)
        except ValueError as error:
            log.warning("intent %s is not understood: %s", intent.intent_id, log_text(error))
