"""Keep one record of facts for each ENI, in addition to its row in the datastore.

A row holds what EC2 assigned and what sandboxes use. An ENI that has a row is called recorded. Every other fact about an ENI is in its
record here: changes by our own calls (until Describe surely shows them), the place of an ENI without a row, a missing link, the reason
why an ENI is frozen. The records are in memory only, and a restart may lose them: a new address that Describe does not show yet is
still safe, because it counts as absent only after a second answer (docs/adr/0017), and `earlier_changes.py` reads released addresses
again from the intents and the ledger of the datastore. Rejected: a separate map for each kind of fact in the class that learns it,
because every change would have to prove again that the maps agree.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping
from typing import Any, cast

from ipamd.core.backoffs import ROOM
from ipamd.core.context import Service, ServiceContext
from ipamd.model.cloud import ConnectionTracking, MetadataEni, all_addresses
from ipamd.model.cloud_evidence import RECENT_S, CloudKey
from ipamd.model.eni import Eni, EniState
from ipamd.model.family import IpAddress
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.placement import free_indexes
from ipamd.model.record import dataclass, field, replace

VIEW_S = 750.0
"""The addresses of all ENIs in metadata can confirm that EC2 has lost an object (as one of the `Witnesses`) only if each ENI was read
less than this long ago. Ours: each turn of `external_changes.py` reads at least two ENIs, so 15 ENIs are read within 600 s. Two in a
turn are too few for a spot instance with 24 ENIs: there the readings are often too old, and metadata then confirms nothing. The
readings are also newer than our own changes: when metadata confirms the loss of an object, EC2 has not shown the object for
MASS_LOSS_AGE_S (600 s), and our last change of it is at least RECENT_S (300 s) older. So even the oldest reading was made at least 150
s after that change."""

Place = tuple[int, int]
"""Network card and device index."""

PLACE = "place"
"""Back-off key, with a place that EC2 refused."""


@dataclass(frozen=True, slots=True)
class OwnChange:
    """A change that a call of ours made to an ENI or to one of its addresses. The changed ENI or address, called the object here, is
    the key of the entry in `EniFacts.own_changes`.

    `is_added`: the call added the object. False: it is not on this ENI any more, because the call removed it.
    `deadline`: until this time (monotonic) Describe and metadata may lag behind the call. Comparisons ignore the object until then, so
        that the lag is not taken for an external change.
    """

    is_added: bool
    deadline: float


@dataclass(frozen=True, slots=True)
class AddedElsewhere:
    """A call of ours added an object to one ENI, so that it is not on these other ENIs any more.

    `deadline`: see `OwnChange`.
    """

    other_enis: frozenset[EniId]
    deadline: float


FROZEN = "external changes: its link is gone; EC2 is asked whether it is detached"
"""Why an ENI is frozen (its addresses are not assigned), as `ipamctl status` shows it."""

DETACHED = "external changes: its link is gone, and EC2 does not show it attached any more"
"""Why an ENI is frozen, once two answers of EC2 have shown that it is detached."""

RETURNED = "external changes: its link is back; it is used again as soon as EC2 or metadata shows it"
"""Why an ENI is still frozen after its link has come back."""


@dataclass(frozen=True, slots=True)
class MissingLink:
    """The state of a frozen ENI's link: missing, or back but not yet confirmed by EC2 or metadata.

    `was_there`: the kernel showed the link earlier, so the ENI was attached. If EC2 nevertheless does not show the ENI, the reason is
        not that Describe lags behind our Attach.
    `back_monotonic_s`: when the link came back; None while it is missing.
    """

    was_there: bool = False
    back_monotonic_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The last answer of instance metadata about one ENI that it lists.

    mac: the key of the ENI in metadata.
    metadata_eni: the ENI as it was read at `monotonic_s`; None before it was read.
    tried_monotonic_s: when it was last requested, whether or not metadata answered.
    described: the ENI as EC2 described it at the start, so that the first reading needs only the addresses. None once that reading was
        tried.
    """

    mac: MacAddress
    metadata_eni: MetadataEni | None = None
    monotonic_s: float = -math.inf
    tried_monotonic_s: float = -math.inf
    described: Eni | None = None


@dataclass(frozen=True, slots=True)
class EniFacts:
    """The facts about one ENI that its row does not contain.

    own_changes: changes by our calls, of the ENI itself or of its addresses.
    reading: the ENI in instance metadata.
    shown_at: where EC2 shows the ENI attached, if it is not recorded.
    is_bare: EC2 shows it without an IPv4 address.
    mac: its MAC, if metadata has shown the ENI and it is not recorded; else None.
    elsewhere: addresses that EC2 shows on it and that are recorded elsewhere; of a prefix only one address, because a prefix uses one
        slot.
    is_absent: enough answers have shown that EC2 does not have it any more.
    is_leaked: EC2 showed it detached once, although we created it and no record or intent names it.
    is_unplugged: its host routing was in place when it was frozen, so its link was there before, and somebody detached the ENI.
    trunk_mac: the MAC of an attached trunk ENI, None for other ENIs.
    link: the state of its missing link, None if nothing is wrong.
    unready_since: since when its host routing has not been in place (monotonic); None if it is in place.
    unready_why: the error that keeps its host routing from being set up.
    security_groups: those that EC2 showed last.
    connection_tracking: the timeouts of connection tracking that are set on this ENI, if it is the primary one; new ENIs get them too.
    """

    own_changes: Mapping[CloudKey, OwnChange] = field(default_factory=dict)
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
        """Why the ENI is frozen; "" if it is not."""
        if self.link is None:
            return ""
        if self.link.back_monotonic_s is not None:
            return RETURNED
        return DETACHED if self.is_absent else FROZEN

    @property
    def is_away(self) -> bool:
        """Whether the ENI's link was there earlier, and is missing now."""
        return self.link is not None and self.link.was_there and self.link.back_monotonic_s is None

    def is_removed(self, eni_id: EniId, now_s: float) -> bool:
        """Whether a call of ours has removed the ENI itself, `eni_id`, so recently that Describe may still show it."""
        change = self.own_changes.get(eni_id)
        return change is not None and not change.is_added and change.deadline > now_s


NOTHING = EniFacts()


class EniBook(Service):
    """Holds the facts about each ENI (`EniFacts`). Safe from any thread.

    While its lock is held, no other lock is taken. ADD and DEL never take its lock.

    `Backoffs` has, under the key PLACE, the places of the instance that EC2 refused because an unrecorded ENI is there. If Describe
    does not show that ENI (a foreign one, or one of ours after a lost datastore), only the refusal shows that it is there. The place
    is tried again after a pause, because nothing announces that it has become free.
    """

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self._lock = threading.Lock()
        self._enis: dict[EniId, EniFacts] = {}
        self._added_elsewhere: dict[CloudKey, AddedElsewhere] = {}
        """By the added object, and apart from the facts of each other ENI, because a warm pool of 15 ENIs has 700 objects."""
        self.listed_monotonic_s = -math.inf

    def facts_of(self, eni_id: EniId) -> EniFacts:
        """Return the facts about one ENI."""
        return self._enis.get(eni_id, NOTHING)

    def all(self) -> dict[EniId, EniFacts]:
        """Return the facts about every ENI with a record."""
        with self._lock:
            return dict(self._enis)

    def observe(self, eni_id: EniId, **facts: Any) -> EniFacts:
        """Record facts about one ENI: fields of `EniFacts`. Returns: the facts before."""
        with self._lock:
            before = self._enis.get(eni_id, NOTHING)
            self._put(eni_id, replace(before, **facts))
        return before

    def forget(self, eni_id: EniId) -> None:
        """Keep only our own changes and the metadata reading of an ENI that is no longer ours."""
        with self._lock:
            before = self._enis.get(eni_id, NOTHING)
            self._put(eni_id, EniFacts(before.own_changes, before.reading))

    def _put(self, eni_id: EniId, facts: EniFacts) -> None:
        self._enis[eni_id] = facts
        if facts == NOTHING:
            del self._enis[eni_id]

    def record_own(self, keys: Collection[CloudKey], *, on: EniId, is_added: bool, left_s: float = RECENT_S) -> None:
        """Record that a call of ours added addresses to the ENI `on` or removed them, or that it added or removed the ENI itself.

        Call it before an address becomes assignable, and before rows are removed. An address that is added to one ENI counts as
        removed from every other one. A removed address stays removed from its ENI, even if it is later added to another one.
        `left_s`: seconds for which Describe may still lag behind the call.
        """
        if on in keys and not is_added:
            self.forget(on)
        now_s = self._clock.monotonic()
        recorded = [eni.eni_id for eni in self._datastore.enis()]
        deadline, changed = now_s + left_s, frozenset(keys)
        with self._lock:
            if is_added:
                other_enis = frozenset({*self._enis, *recorded} - {on})
                added_elsewhere = {key: added for key, added in self._added_elsewhere.items() if added.deadline > now_s}
                self._added_elsewhere = added_elsewhere | dict.fromkeys(changed, AddedElsewhere(other_enis, deadline))
                for eni_id in other_enis & self._enis.keys():
                    self._put_changes(eni_id, changed, None, now_s)
            self._put_changes(on, changed, OwnChange(is_added, deadline), now_s)

    def _put_changes(self, eni_id: EniId, keys: frozenset[CloudKey], change: OwnChange | None, now_s: float) -> None:
        """Replace the changes of these objects on one ENI by another one or, if it is None, by nothing. Drop those that are over."""
        facts = self._enis.get(eni_id, NOTHING)
        left = {key: old for key, old in facts.own_changes.items() if old.deadline > now_s and key not in keys}
        if change is not None:
            left |= dict.fromkeys(keys, change)
        self._put(eni_id, replace(facts, own_changes=left))

    def added(self) -> dict[CloudKey, float]:
        """Return the ENIs and addresses that our calls added, with the seconds for which Describe may still not show them.

        An ENI whose link was there and is missing now is left out: if Describe does not show it, the reason is not a lag.
        """
        now_s = self._clock.monotonic()
        added = {}
        for key, change, eni_id in self._own():
            is_away = key == eni_id and self.facts_of(eni_id).is_away
            if change.is_added and not is_away:
                added[key] = change.deadline - now_s
        return added

    def added_enis(self) -> dict[EniId, float]:
        """Return the ENIs in the result of `added`, with the same seconds.

        Each plan calls this method, so it reads only one change per ENI. `added` would read a change for each address during the
        300 s after a warm pool was filled.
        """
        now_s = self._clock.monotonic()
        added = {}
        for eni_id, facts in self.all().items():
            change = facts.own_changes.get(eni_id)
            if change is not None and change.is_added and change.deadline > now_s and not facts.is_away:
                added[eni_id] = change.deadline - now_s
        return added

    def removed(self) -> set[tuple[CloudKey, EniId]]:
        """Return pairs of an object (an ENI or address) and an ENI on which Describe may still show it, although by our calls it is no
        longer there: it was removed from this ENI, or added to another one.
        """
        now_s = self._clock.monotonic()
        removed = {(key, eni_id) for key, change, eni_id in self._own() if not change.is_added}
        for key, added in self._added_elsewhere.items():  # replaced whole, so no lock is needed
            if added.deadline > now_s:
                removed |= {(key, eni_id) for eni_id in added.other_enis}
        return removed

    def not_on(self, eni_id: EniId) -> set[CloudKey]:
        """Return the objects that are not on an ENI any more according to our calls: removed there, or added to another ENI."""
        return {key for key, removed_from in self.removed() if removed_from == eni_id}

    def _own(self) -> list[tuple[CloudKey, OwnChange, EniId]]:
        """Return our changes that Describe perhaps does not show yet, each with the changed object and its ENI."""
        now_s = self._clock.monotonic()
        changes = []
        for eni_id, facts in self.all().items():
            for key, change in facts.own_changes.items():
                if change.deadline > now_s:
                    changes.append((key, change, eni_id))
        return changes

    def set_unrecorded(self, places: Mapping[EniId, Place], *, is_whole: bool = True) -> None:
        """Replace the ENIs that EC2 showed but that were not recorded, each with its place.

        The refusal of a place ends if one of these ENIs, or a recorded ENI that EC2 still shows, is there, because that ENI explains
        the refusal.
        `is_whole`: the answer is complete, so ENIs missing from it are dropped.
        """
        with self._lock:
            for eni_id in {*self._enis, *places}:
                facts = self._enis.get(eni_id, NOTHING)
                place = places.get(eni_id)
                if place is None and not is_whole:
                    place = facts.shown_at
                mac = None if place is None else facts.mac
                self._put(eni_id, replace(facts, shown_at=place, mac=mac))
        self._backoffs.clear(*((PLACE, place) for place in {*places.values(), *self._present()}))

    def trunk(self) -> tuple[EniId, MacAddress] | None:
        """Return the ID and the MAC of the node's trunk ENI; None if EC2 showed none attached. From any thread."""
        for eni_id, facts in self.all().items():
            row = self._datastore.eni(eni_id)
            is_attached = facts.shown_at is not None if row is None else row.state is EniState.ATTACHED
            if facts.trunk_mac is not None and is_attached:
                return eni_id, facts.trunk_mac
        return None

    def enis_with_conflicting_slots(self) -> list[EniId]:
        """Return the ENIs on which EC2 shows addresses that are recorded elsewhere: on another ENI, as a primary address, or as that
        of a sandbox with an ENI of its own.

        Each such address uses a slot that is free according to our rows, so its ENI is returned once for each of these slots.
        """
        taken: set[IpAddress] = {eni.primary_address for eni in self._datastore.enis()}
        taken |= {attachment.address for attachment in self._datastore.attachments() if not attachment.is_of_pool}
        eni_ids = []
        for eni_id, facts in self.all().items():
            for address in facts.elsewhere:
                if address in taken or self._is_on_other_eni(address, eni_id):
                    eni_ids.append(eni_id)
        return eni_ids

    def _is_on_other_eni(self, address: IpAddress, eni_id: EniId) -> bool:
        row = self._datastore.address(address)
        return row is not None and row.eni_id != eni_id

    def mark_taken(self, place: Place) -> None:
        """Record that EC2 refused to attach an ENI at a place, because the place is taken."""
        self._backoffs.back_off((PLACE, place), ROOM)

    def mark_free(self, place: Place) -> None:
        """Record that EC2 attached an ENI at a place, so the place was free."""
        self._backoffs.clear((PLACE, place))

    def unrecorded_enis(self) -> dict[EniId, Place]:
        """Return the ENIs that EC2 showed but that are not recorded, each with its place, without those that our calls removed.

        They have no IPv4 address, cannot be read, contradict a row, or are being attached or detached.
        """
        now_s = self._clock.monotonic()
        places = {}
        for eni_id, facts in self.all().items():
            if facts.shown_at is None or facts.is_removed(eni_id, now_s):
                continue
            if self._datastore.eni(eni_id) is None:
                places[eni_id] = facts.shown_at
        return places

    def refused(self) -> frozenset[Place]:
        """Return the places that EC2 refused lately, except those at which EC2 shows an ENI."""
        refused = [key for key in self._backoffs.keys(PLACE) if not self._backoffs.is_due(key)]
        if not refused:
            return frozenset()
        occupied = {*self.unrecorded_enis().values(), *self._present()}
        return frozenset(cast("Place", place) for _, place in refused if place not in occupied)

    def free_index(self, *, card: int = 0, beside: Collection[int]) -> int:
        """Return the lowest free device index of a network card. `beside`: indexes that are also occupied, on any card, because they
        are requested already.
        """
        recorded = {(eni.network_card, eni.device_index) for eni in self._datastore.enis()}
        occupied = {*recorded, *self.unrecorded_enis().values(), *self.refused()}
        return next(free_indexes({0, *beside, *(index for on_card, index in occupied if on_card == card)}))

    def _present(self) -> set[Place]:
        """Return the places of the recorded ENIs that EC2 still shows.

        An ENI that EC2 no longer shows is left out: if EC2 refused its place, the place stays refused, because the ENI may still be
        there.
        """
        stock = self._datastore.stock().enis
        return {(eni_stock.eni.network_card, eni_stock.eni.device_index) for eni_stock in stock if not eni_stock.has_left}

    # The ENIs in instance metadata, which is a second source if EC2's answer is in doubt.

    def list_metadata(self, macs: Collection[MacAddress]) -> None:
        """Replace our copy of metadata's list of the instance's ENIs. An ENI without a row gets a record under its MAC."""
        recorded = {eni.mac: eni for eni in self._datastore.enis()}
        is_first = math.isinf(self.listed_monotonic_s)
        self.listed_monotonic_s = self._clock.monotonic()
        before = self.readings()
        with self._lock:
            for eni_id, facts in list(self._enis.items()):
                self._put(eni_id, replace(facts, reading=None))
            for mac in macs:
                eni = recorded.get(mac)
                eni_id = EniId(mac) if eni is None else eni.eni_id
                described = None
                if is_first and eni is not None and eni.state is EniState.ATTACHED:
                    described = eni
                facts = self._enis.get(eni_id, NOTHING)
                self._put(eni_id, replace(facts, reading=before.get(mac) or Reading(mac, described=described)))

    def read_metadata(self, mac: MacAddress, **facts: Any) -> None:
        """Record facts about an ENI that metadata lists: fields of `Reading`."""
        for eni_id, known_facts in self.all().items():
            if known_facts.reading is not None and known_facts.reading.mac == mac:
                self.observe(eni_id, reading=replace(known_facts.reading, **facts))

    def readings(self) -> dict[MacAddress, Reading]:
        """Return the reading of each ENI in metadata's latest list, by MAC."""
        return {facts.reading.mac: facts.reading for facts in self.all().values() if facts.reading is not None}

    def metadata_view(self) -> frozenset[IpAddress] | None:
        """Return every address that metadata shows; None unless its list and every ENI in it were read less than VIEW_S ago."""
        oldest_s = self._clock.monotonic() - VIEW_S
        readings = self.readings().values()
        recent = [
            reading.metadata_eni for reading in readings if reading.metadata_eni is not None and reading.monotonic_s > oldest_s
        ]
        if not readings or len(recent) < len(readings) or self.listed_monotonic_s <= oldest_s:
            return None
        return frozenset().union(*(all_addresses(eni.addresses, eni.prefixes) for eni in recent))
