"""The book of ENIs: one record for each, of what is known of it beside its row in the datastore.

A row says what EC2 gave and what sandboxes have. Everything else that anybody found out about an ENI is a fact in its record, with who
said so and until when it is believed: what our own calls changed, where EC2 shows one that is not recorded, what the kernel lacks, why
it is frozen. In memory only: a restart forgets it, and two looks apart in time still protect what was added (docs/adr/0017). What was
released is read again from its intents and the ledger. Rejected: a map of its own for each of these, in each class that learns
one: that two of them agree has to be proven anew with each change.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, cast

from ipamd.core.agenda import ROOM
from ipamd.core.context import Service, ServiceContext
from ipamd.model.cloud import ConnectionTracking, MetadataEni, all_addresses
from ipamd.model.cloud_evidence import RECENT_S, CloudKey
from ipamd.model.eni import Eni, EniState
from ipamd.model.errors import log_text
from ipamd.model.family import IpAddress, read_address
from ipamd.model.history import HistoryRecord, LedgerEvent, Recorded
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.intent import DETACHED, SETTLED_AT, Intent, IntentKind, named
from ipamd.model.placement import free_indexes
from ipamd.model.record import dataclass, field, replace
from ipamd.ports import Clock

VIEW_S = 750.0
"""Age of the oldest reading in a view of metadata that counts as a witness. Ours: two ENIs a turn, so 15 are read within 600 s; and
what EC2 has not shown for MASS_LOSS_AGE_S was changed by us RECENT_S before that or earlier, so 150 s and more before any of them."""

Place = tuple[int, int]
"""Network card and device index."""

PLACE = "place"
"""Key of a refused place in the agenda."""

NOT_SHOWN = "EC2 no longer shows"
"""Begins the reason why what EC2 did not show, and no call of ours took away, is recorded as gone."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OwnChange:
    """What a call of ours did to an ENI, or to an address of it. `deadline`: monotonic; until then Describe and metadata may lag
    behind it: whoever compares with them leaves it out, so that lag is not taken for an external change."""

    is_added: bool
    deadline: float


FROZEN = "other hands: its link is gone; EC2 is asked whether it is detached"
"""Why an ENI is frozen. Seen by people, in `ipamctl status`."""


@dataclass(frozen=True, slots=True)
class MissingLink:
    """The link of an ENI is gone, says the kernel, or was and is there again since `back_monotonic_s`, which nobody has confirmed yet:
    the ENI is frozen. `was_there`: it had been seen; while it is away, that EC2 does not show the ENI is no lag behind a call of ours.
    """

    was_there: bool = False
    back_monotonic_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """One ENI that instance metadata lists. `shown`: as it was read, at `monotonic_s`; None: not yet.

    `tried_monotonic_s`: when it was asked for last. `known`: as EC2 showed it at the start, until it was asked for: then only its
    addresses are read.
    """

    mac: MacAddress
    shown: MetadataEni | None = None
    monotonic_s: float = -math.inf
    tried_monotonic_s: float = -math.inf
    known: Eni | None = None


@dataclass(frozen=True, slots=True)
class EniFacts:
    """What is known of one ENI beside its row.

    `own`: what calls of ours changed, the ENI itself or addresses of it. `reading`: what metadata shows.
    `shown_at`: EC2 shows it attached there, and it is not recorded; `is_bare`: without an IPv4 address; `mac`: the one by which
    metadata has shown such an ENI.
    `elsewhere`: what EC2 has on it and other ENIs have on record, an address for each slot that is taken so.
    `is_absent`: EC2 was found not to show it any more. `is_leaked`: EC2 showed it detached once, made by us and known to nobody.
    `trunk_mac`: it is a trunk ENI, attached, with this MAC.
    `link`: what the kernel says, None if nothing is amiss; `is_unplugged`: it was in use when it was frozen, so somebody took it away.
    `unready_since`: the host's routing of it has not been in place since then (monotonic);
    `unready_why`: what refused. `security_groups`: those that EC2 showed last; `connection_tracking`: timeouts that are set on the
    primary ENI, which new ones get too.
    """

    own: Mapping[CloudKey, OwnChange] = field(default_factory=dict)
    reading: Reading | None = None
    shown_at: Place | None = None
    is_bare: bool = False
    mac: MacAddress | None = None
    elsewhere: frozenset[IpAddress] = frozenset()
    is_absent: bool = False
    is_leaked: bool = False
    is_unplugged: bool = False
    trunk_mac: MacAddress | None = None
    link: MissingLink | None = None
    unready_since: float | None = None
    unready_why: str = ""
    security_groups: tuple[str, ...] = ()
    connection_tracking: ConnectionTracking = ()

    @property
    def frozen(self) -> str:
        """Why it gives no address; "" if nothing stops it."""
        return "" if self.link is None else FROZEN

    @property
    def is_away(self) -> bool:
        """Whether its link was there, and is gone."""
        return self.link is not None and self.link.was_there and self.link.back_monotonic_s is None

    def is_removed(self, eni_id: EniId, now_s: float) -> bool:
        """Whether a call of ours has taken away this very ENI, `eni_id`, so lately that Describe may still show it."""
        own = self.own.get(eni_id)
        return own is not None and not own.is_added and own.deadline > now_s


NOTHING = EniFacts()


class EniBook(Service):
    """The records. Safe from any thread; its lock is a leaf, and no ADD or DEL takes it.

    The agenda has, under PLACE, the places of the instance that EC2 refused: taken, though no recorded ENI is there. That EC2 refuses
    a device index is the one sign of an ENI that Describe does not show: of another hand's, or of ours after a lost datastore. It is
    believed for a while and then tried again, because a place comes free without a word.
    """

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self._lock = threading.Lock()
        self._enis: dict[EniId, EniFacts] = {}
        self.listed_monotonic_s = -math.inf

    def of(self, eni_id: EniId) -> EniFacts:
        """What is known of one ENI."""
        return self._enis.get(eni_id, NOTHING)

    def all(self) -> dict[EniId, EniFacts]:
        """What is known of every ENI of which anything is known."""
        with self._lock:
            return dict(self._enis)

    def observe(self, eni_id: EniId, **facts: Any) -> EniFacts:
        """Somebody has found out facts about one ENI: fields of `EniFacts`. Returns: what was known before."""
        with self._lock:
            before = self._enis.get(eni_id, NOTHING)
            self._put(eni_id, replace(before, **facts))
        return before

    def forget(self, eni_id: EniId) -> None:
        """The ENI is not ours any more: nothing is true of it but what we did, and what metadata lists."""
        with self._lock:
            before = self._enis.get(eni_id, NOTHING)
            self._put(eni_id, EniFacts(before.own, before.reading))

    def _put(self, eni_id: EniId, facts: EniFacts) -> None:
        self._enis[eni_id] = facts
        if facts == NOTHING:
            del self._enis[eni_id]

    def record_own(self, keys: Collection[CloudKey], *, on: EniId, is_added: bool, left_s: float = RECENT_S) -> None:
        """A call of ours has added addresses to the ENI `on`, or removed them (its success is evidence of absence), or the ENI itself.
        To be said before an address becomes assignable, and before rows go. What is added here is on no other ENI; what was removed
        stays so, wherever it went since.

        `left_s`: seconds for which Describe may still lag behind it.
        """
        if on in keys and not is_added:
            self.forget(on)
        now_s, recorded = self._clock.monotonic(), [eni.eni_id for eni in self._datastore.enis()]
        with self._lock:
            for one in {on, *self._enis, *recorded} if is_added else {on}:
                facts = self._enis.get(one, NOTHING)
                own = {key: change for key, change in facts.own.items() if change.deadline > now_s}
                new = OwnChange(is_added and one == on, now_s + left_s)
                self._put(one, replace(facts, own=own | dict.fromkeys(keys, new)))

    def added(self) -> dict[CloudKey, float]:
        """What was added, with the seconds for which Describe may still not show it; an address is in it on its own."""
        now_s = self._clock.monotonic()
        return {
            key: one.deadline - now_s
            for key, one, eni_id in self._own()
            if one.is_added and not (key == eni_id and self.of(eni_id).is_away)
        }

    def added_enis(self) -> dict[EniId, float]:
        """The ENIs among them. For each plan: it looks at an entry for each ENI, while what is known of all addresses, for 300 s after
        a warm pool was filled, has one for each address on each ENI."""
        now_s = self._clock.monotonic()
        return {
            eni_id: one.deadline - now_s
            for eni_id, facts in self.all().items()
            if (one := facts.own.get(eni_id)) is not None and one.is_added and one.deadline > now_s and not facts.is_away
        }

    def removed(self) -> set[tuple[CloudKey, EniId]]:
        """What was removed and Describe may still show: ENIs, and addresses, each with the ENI that it was on."""
        return {(key, on) for key, one, on in self._own() if not one.is_added}

    def not_on(self, eni_id: EniId) -> set[CloudKey]:
        """What is not on an ENI, say our calls: it was removed from there, or added to another one."""
        return {key for key, on in self.removed() if on == eni_id}

    def _own(self) -> list[tuple[CloudKey, OwnChange, EniId]]:
        now_s = self._clock.monotonic()
        return [(key, one, on) for on, facts in self.all().items() for key, one in facts.own.items() if one.deadline > now_s]

    def show(self, shown: Mapping[EniId, Place], *, is_whole: bool = True) -> None:
        """Take what a comparison showed and did not record; `is_whole`: what it lacks is there no more. An ENI that is known at a
        refused place has explained the refusal."""
        with self._lock:
            for eni_id in {*self._enis, *shown}:
                facts = self._enis.get(eni_id, NOTHING)
                at = shown.get(eni_id, None if is_whole else facts.shown_at)
                self._put(eni_id, replace(facts, shown_at=at, mac=facts.mac if at is not None else None))
        self._agenda.clear(*((PLACE, place) for place in {*shown.values(), *self._present()}))

    def trunk(self) -> tuple[EniId, MacAddress] | None:
        """The node's trunk ENI, while it is attached as far as EC2 has shown; None if there is none. From any thread."""
        for eni_id, facts in self.all().items():
            row = self._datastore.eni(eni_id)
            is_there = facts.shown_at is not None if row is None else row.state is EniState.ATTACHED
            if facts.trunk_mac is not None and is_there:
                return eni_id, facts.trunk_mac
        return None

    def filled(self) -> list[EniId]:
        """For each slot that EC2 has filled with what is on record elsewhere still, its ENI: no row of that tells of it."""
        taken: set[IpAddress] = {eni.primary_address for eni in self._datastore.enis()}
        taken |= {one.address for one in self._datastore.attachments() if one.branch is not None}
        return [
            eni_id
            for eni_id, facts in self.all().items()
            for one in facts.elsewhere
            if one in taken or ((row := self._datastore.address(one)) and row.eni_id != eni_id)
        ]

    def refuse(self, place: Place) -> None:
        """EC2 attached nothing there, because something is there."""
        self._agenda.put_off((PLACE, place), ROOM)

    def took(self, place: Place) -> None:
        """EC2 attached an ENI there: it was free."""
        self._agenda.clear((PLACE, place))

    def shown(self) -> dict[EniId, Place]:
        """ENIs that were shown attached and are not recorded (no IPv4 address, unreadable, coming, going), less what we took away."""
        now_s = self._clock.monotonic()
        return {
            eni_id: at
            for eni_id, one in self.all().items()
            if (at := one.shown_at) is not None and not one.is_removed(eni_id, now_s) and self._datastore.eni(eni_id) is None
        }

    def refused(self) -> frozenset[Place]:
        """Places that EC2 refused lately, without an ENI that explains it."""
        refused = [key for key in self._agenda.keys(PLACE) if not self._agenda.is_due(key)]
        known = {*self.shown().values(), *self._present()} if refused else ()
        return frozenset(cast("Place", place) for _, place in refused if place not in known)

    def free_index(self, *, beside: Collection[int]) -> int:
        """The lowest device index of the first network card that nothing known has, `beside` those that are asked for already."""
        recorded = {(eni.network_card, eni.device_index) for eni in self._datastore.enis()}
        known = {*recorded, *self.shown().values(), *self.refused()}
        return next(free_indexes({0, *beside, *(index for card, index in known if card == 0)}))

    def _present(self) -> set[Place]:
        """Places of recorded ENIs, but for those that EC2 does not show any more: such a one is perhaps what has the place."""
        stock = self._datastore.stock().enis
        return {(one.eni.network_card, one.eni.device_index) for one in stock if not one.has_left}

    # What instance metadata lists and shows; a second witness for whoever else doubts.

    def list_metadata(self, macs: Collection[MacAddress]) -> None:
        """Metadata has listed the instance's ENIs. One that is not recorded is in the book by its MAC."""
        recorded = {eni.mac: eni for eni in self._datastore.enis()}
        is_first, self.listed_monotonic_s = math.isinf(self.listed_monotonic_s), self._clock.monotonic()
        before = self.readings()
        with self._lock:
            for eni_id, facts in list(self._enis.items()):
                self._put(eni_id, replace(facts, reading=None))
            for mac in macs:
                eni = recorded.get(mac)
                eni_id = EniId(mac) if eni is None else eni.eni_id
                known = eni if is_first and eni is not None and eni.state is EniState.ATTACHED else None
                facts = self._enis.get(eni_id, NOTHING)
                self._put(eni_id, replace(facts, reading=before.get(mac) or Reading(mac, known=known)))

    def read_metadata(self, mac: MacAddress, **facts: Any) -> None:
        """What is known of an ENI that metadata lists: fields of `Reading`."""
        for eni_id, one in self.all().items():
            if one.reading is not None and one.reading.mac == mac:
                self.observe(eni_id, reading=replace(one.reading, **facts))

    def readings(self) -> dict[MacAddress, Reading]:
        """What metadata listed last, each with its reading."""
        return {facts.reading.mac: facts.reading for facts in self.all().values() if facts.reading is not None}

    def metadata_view(self) -> frozenset[IpAddress] | None:
        """Every address that metadata shows, if every ENI was read less than VIEW_S ago; None if one was not."""
        oldest, readings = self._clock.monotonic() - VIEW_S, self.readings().values()
        lately = [one.shown for one in readings if one.shown is not None and one.monotonic_s > oldest]
        if not readings or len(lately) < len(readings) or self.listed_monotonic_s <= oldest:
            return None
        return frozenset().union(*(all_addresses(eni.addresses, eni.prefixes) for eni in lately))


# What calls of ours took from ENIs before this process, or were asked to: told by its intents and by the ledger, or by the history if
# the datastore that knew it was lost, or is of another boot.
#
# EC2 may show for a while what it has taken back, and its first answer to a process without records is all that this one has: a
# chaos run saw an address given to a pod that a call of ours had returned twenty seconds before. The history is on the node's
# disk, and lacks at most its last second.


def remember_released(book: EniBook, read_since: Callable[[datetime], Recorded], clock: Clock) -> None:
    """Read the last `RECENT_S` of the ledger or the history. What it cannot tell is as it would be without one."""
    now = clock.now()
    last: dict[tuple[CloudKey, EniId], HistoryRecord] = {}
    records = sorted(read_since(now - timedelta(seconds=RECENT_S)).records, key=lambda record: record.at)
    for record in records:
        (intent, _, payload), eni_id = record.detail.partition(": "), EniId(record.eni_id)
        try:
            match record.event:
                case LedgerEvent.ADDED | LedgerEvent.REMOVED | LedgerEvent.LOST | LedgerEvent.HEALED:
                    last[read_address(record.address), eni_id] = record
                case LedgerEvent.ENI_ADDED | LedgerEvent.ENI_CHANGED | LedgerEvent.ENI_REMOVED:
                    last[eni_id, eni_id] = record
                case LedgerEvent.INTENT_OPENED if intent.startswith(IntentKind.UNASSIGN):
                    # EC2 was asked until the process ended, and may have done it; what was settled follows as removed.
                    asked = Intent(intent, IntentKind.UNASSIGN, now, dict(one.split("=") for one in payload.split(", ")))
                    last |= {(key, asked.eni_id): replace(record, at=now) for key in all_addresses(*named(asked))}
                case LedgerEvent.INTENT_OPENED if f"deleting={DETACHED}" in payload:
                    last[eni_id, eni_id] = replace(record, at=now)
                case LedgerEvent.INTENT_CLOSED:  # what it named was not released, or is known to be removed
                    last = {key: one for key, one in last.items() if not one.detail.startswith(f"{intent}: ")}
        except ValueError as error:
            log.warning("a record of the history is not understood error=%s", log_text(error))
    about = (LedgerEvent.INTENT_OPENED, LedgerEvent.INTENT_CLOSED)
    takers = {one.eni_id for one in records if one.event in about and not one.detail.startswith(IntentKind.ASSIGN)}
    added = {key for (key, _), one in last.items() if one.event == LedgerEvent.ADDED}  # where it was, it is not now
    for (key, on), record in last.items():
        if NOT_SHOWN in record.detail and on not in takers and key not in added:
            continue  # EC2's word alone, which it may take back
        if record.event not in (LedgerEvent.ADDED, LedgerEvent.HEALED, LedgerEvent.ENI_ADDED, LedgerEvent.ENI_CHANGED):
            left_s = RECENT_S - max((now - record.at).total_seconds(), 0.0)
            book.record_own([key], on=on, is_added=False, left_s=left_s)


def remember_named(book: EniBook, context: ServiceContext) -> None:
    """Learn from its intents what an earlier process released, or was about to: EC2 may show it for as long as it might to that one.
    A malformed intent is left to its recovery."""
    now_s = context.clock.monotonic()
    for intent in context.datastore.open_intents():
        try:
            if intent.kind is IntentKind.UNASSIGN:
                left_s = float(intent.payload.get(SETTLED_AT, now_s)) + RECENT_S - now_s
                book.record_own(all_addresses(*named(intent)), on=intent.eni_id, is_added=False, left_s=left_s)
        except ValueError as error:
            log.warning("an intent is not understood intent=%s error=%s", intent.intent_id, log_text(error))
