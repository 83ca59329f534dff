"""Decide from successive answers of EC2 which ENIs and addresses are gone. Pure: no clock, no call.

One Describe proves no absence: it may lag behind a change, be incomplete, or have an unexpected shape (I11). An object that an answer
shows is present. An object that an answer lacks is unknown until a second answer, LOOK_GAP_S later, lacks it too. An answer that lacks
the primary ENI, or more than half (and at least two) of the ENIs or of the addresses of sandboxes, is not believed (`plausibility`). A
real mass loss is believed after MASS_LOSS_AGE_S if a second source confirms it. Reasons for these rules: docs/adr/0017.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ipamd.model.absences import Absence, Absences, Doubts
from ipamd.model.address import AddressState
from ipamd.model.cloud import DescribedEni, InstanceIdentity, all_addresses
from ipamd.model.eni import Eni, EniState
from ipamd.model.family import IpAddress, read_address, stand_in
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.record import dataclass, field
from ipamd.model.snapshot import Snapshot
from ipamd.model.words import counted

CloudKey = EniId | IpAddress
"""Key of an object that can be absent: an ENI, or one address of an ENI that is present."""

LOOK_GAP_S = 30.0
"""Least time between two answers that count as two. Ours: after this time a second answer hardly lags too, because replicas of EC2 are
seconds behind; AWS advises to retry after seconds to minutes. Until the second answer a missing address is withheld.

Source: https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html.
"""

RECENT_S = 300.0
"""For so many seconds after a call of ours, an answer of Describe that lacks the call's effect proves nothing. Ours: AWS names no
bound; this is ten times the longest reported lag (cilium issue 36428, after an allocation of addresses)."""

MIN_LOOK_COUNT = 2
"""How many successive answers must lack an object before it counts as absent. Ours: one answer may lag."""

MASS_LOSS_AGE_S = 600.0
"""After an object has been missing for this long, even implausible answers count, if a second source confirms its absence. Ours: twice
`RECENT_S`, so a lag of Describe does not explain the absence."""

DOUBT_AGAIN_S = 60.0
"""Pause before EC2 is asked again after an implausible answer. Ours: EC2 then gives ten answers before a mass loss is believed."""


@dataclass(frozen=True, slots=True)
class CloudRecords:
    """The rows of this instance with which an answer is compared.

    `enis`: the recorded ENIs.
    `addresses`: the recorded addresses of managed ENIs, except lost ones, each with its ENI. A /80 is represented by its last address,
        whose row stands for the rest of the /80.
    `wired`: those of `addresses` that sandboxes have.
    """

    identity: InstanceIdentity
    enis: Mapping[EniId, Eni] = field(default_factory=dict)
    addresses: Mapping[IpAddress, EniId] = field(default_factory=dict)
    wired: frozenset[IpAddress] = frozenset()


def recorded(snapshot: Snapshot, identity: InstanceIdentity) -> CloudRecords:
    """Collect the rows with which an answer is compared; addresses of ENIs that are not ours are left out."""
    managed = {eni.eni_id for eni in snapshot.enis.values() if eni.managed}
    addresses: dict[IpAddress, EniId] = {}
    wired: set[IpAddress] = set()
    for row in snapshot.addresses.values():
        # A /80 is present or absent as a whole: the row of its rest represents all its addresses.
        is_compared = row.eni_id in managed and not row.is_lost and stand_in(row.address) in (None, row.address)
        if not is_compared:
            continue
        addresses[row.address] = row.eni_id
        if row.state is AddressState.ASSIGNED:
            wired.add(row.address)
    return CloudRecords(identity, snapshot.enis, addresses, frozenset(wired))


@dataclass(frozen=True, slots=True)
class Witnesses:
    """Other sources that can confirm an absence. A source that was not read or did not answer is None.

    `links`: the MAC addresses of the links in the host's namespace.
    `metadata`: every address that instance metadata shows, including primary addresses and the addresses of prefixes.

    A source is used only if it shows the primary ENI.
    """

    links: frozenset[MacAddress] | None = None
    metadata: frozenset[IpAddress] | None = None


@dataclass(frozen=True, slots=True)
class Weighed:
    """The conclusion from successive answers: each object is present, absent, or doubted (not known).

    implausible: why the last answer is not believed; "" if it is believed.
    absent: the objects that are gone: two plausible answers lack them, or a second source confirms a mass loss (MASS_LOSS_AGE_S). If
        an ENI is gone, its addresses are not among them.
    doubted: the objects that are not known to be there, so that they must not be used (`CloudEvidence.doubted`); without those
        in `absent`.
    again_s: seconds after which the next answer is useful; None if nothing is in doubt.
    mass_loss: one sentence if an absence was concluded from implausible answers; otherwise "".
    missing: the recorded ENIs and addresses that the last answer which showed the primary ENI lacked, whether or not it is believed.
        Objects that our calls changed lately are left out.
    """

    implausible: str = ""
    absent: frozenset[CloudKey] = frozenset()
    doubted: frozenset[CloudKey] = frozenset()
    again_s: float | None = None
    mass_loss: str = ""
    missing: frozenset[CloudKey] = frozenset()


def plausibility(answer: Iterable[DescribedEni], recorded: CloudRecords, *, recent: Collection[CloudKey] = ()) -> str:
    """Return why a complete Describe of this instance is not believed.

    The primary ENI cannot be detached while the instance runs. So an answer without it is implausible: it is about another moment, or
    another instance. An answer is also implausible if more than half, and at least two, of the ENIs (including the primary one) or of
    the wired addresses are missing. Because of "more than half" an answer stays plausible after an operator detached one ENI of two.
    Because of "at least two" it stays plausible after a node with one sandbox lost its one address.

    Args:
        answer: every ENI that EC2 shows attached, whatever its attachment status.
        recorded: the datastore's rows.
        recent: objects that are not counted: our own calls changed them so recently that EC2 may not show the change yet, or they are
            known to be gone.
    Returns: one sentence; "" if the answer is plausible.
    Concurrency: pure. Guards: I2, I11.
    """
    shown_enis = tuple(answer)
    if not _shows_primary(shown_enis, recorded):
        if shown_enis:
            return f"it lacks the primary ENI {recorded.identity.primary_eni_id}"
        return "it is empty"
    gone = missing(shown_enis, recorded) - frozenset(recent)
    staying = _staying_enis(recorded, recent)
    wired = _wired_addresses(recorded, recent)
    gone_wired = {address for address in wired if address in gone or recorded.addresses.get(address) in gone}
    return _mass_absence("attached ENIs", len(staying & gone), len(staying)) or _mass_absence(
        "addresses of running sandboxes", len(gone_wired), len(wired)
    )


def _shows_primary(answer: Iterable[DescribedEni], recorded: CloudRecords) -> bool:
    """Whether an answer contains the primary ENI."""
    return any(eni.eni_id == recorded.identity.primary_eni_id for eni in answer)


def _staying_enis(recorded: CloudRecords, recent: Collection[CloudKey]) -> set[EniId]:
    """Return the recorded ENIs that are not being detached, and that we did not change lately."""
    return {eni_id for eni_id, eni in recorded.enis.items() if eni.state is not EniState.DETACHING and eni_id not in recent}


def _wired_addresses(recorded: CloudRecords, recent: Collection[CloudKey]) -> set[IpAddress]:
    """Return the addresses of sandboxes, except those that we changed lately, alone or with their ENI."""
    return {address for address in recorded.wired if address not in recent and recorded.addresses.get(address) not in recent}


def _mass_absence(objects: str, absent_count: int, count: int) -> str:
    """Return a sentence if more than half of `count` objects, and at least two, are absent; else ""."""
    if absent_count >= 2 and 2 * absent_count > count:
        return f"it lacks {absent_count} of {count} {objects}"
    return ""


def missing(answer: Iterable[DescribedEni], recorded: CloudRecords) -> frozenset[CloudKey]:
    """Return the recorded ENIs that an answer lacks, and the recorded addresses that it lacks on ENIs that it contains.

    Addresses of an ENI whose description is unreadable do not count as missing. If an ENI in the answer has no ID, no ENI counts as
    missing.
    """
    entries = tuple(answer)
    shown_ids = {eni.eni_id for eni in entries}
    absent: set[CloudKey] = set()
    if "" not in shown_ids:
        absent.update(recorded.enis.keys() - shown_ids)
    shown_addresses = {eni.eni_id: addresses_on(eni) for eni in entries if eni.is_readable}
    for address, eni_id in recorded.addresses.items():
        if eni_id in shown_addresses and address not in shown_addresses[eni_id]:
            absent.add(address)
    return frozenset(absent)


def addresses_on(described: DescribedEni) -> frozenset[IpAddress]:
    """Return the secondary addresses of an ENI, including the addresses of its prefixes."""
    return all_addresses(described.secondary_addresses, described.prefixes)


class CloudEvidence:
    """Weighs the successive answers of EC2 about one instance. Used by one thread at a time."""

    def __init__(self, doubts: Doubts | None = None) -> None:
        """`doubts`: the counts of an earlier process, so that even a daemon that restarts often gets to count a second answer."""
        earlier = doubts or Doubts()
        self._believed: Absences[CloudKey] = Absences(gap_s=LOOK_GAP_S, recorded=_by_key(earlier.plausible))
        """The absences of objects, counted in plausible answers only."""
        self._doubtful: Absences[CloudKey] = Absences(gap_s=LOOK_GAP_S, recorded=_by_key(earlier.any))
        """The absences of objects, counted in all answers that show the primary ENI."""

    def weigh(
        self,
        answer: Iterable[DescribedEni],
        recorded: CloudRecords,
        *,
        recent: Mapping[CloudKey, float],
        witnesses: Witnesses,
        now_s: float,
    ) -> Weighed:
        """Weigh one complete answer together with the answers before it.

        Args:
            answer: every ENI that EC2 shows attached to the instance.
            recorded: the datastore's rows.
            recent: the objects that our calls changed lately -> the seconds for which Describe may still not show the change. None of
                them counts as gone.
            witnesses: what the other sources show at this moment.
            now_s: seconds on the monotonic clock.
        Guards: I2, I7, I8, I11.
        """
        entries = tuple(answer)
        implausible = plausibility(entries, recorded, recent=recent)
        if not _shows_primary(entries, recorded):
            missing_before = frozenset(self._doubtful.absent)
            return Weighed(implausible, doubted=self.doubted(), again_s=DOUBT_AGAIN_S, missing=missing_before)
        gone = missing(entries, recorded)
        old = gone - recent.keys()
        self._doubtful.record_answer(old, now_s=now_s)
        absent: frozenset[CloudKey] = frozenset()
        mass_loss = ""
        if implausible:
            absent = frozenset(key for key in old if self._is_confirmed(key, recorded, witnesses, now_s))
            if absent:
                mass_loss = f"{implausible}; {counted(len(absent), 'object')} of it confirmed by kernel or metadata: believed"
            implausible = plausibility(entries, recorded, recent={*recent, *absent})
        if implausible:
            self._forget_shown(old)
        else:
            self._believed.record_answer(old - absent, now_s=now_s)
            absent |= {key for key in old if self._believed.count(key) >= MIN_LOOK_COUNT}
        again_s = self._next_look_s(gone, absent, recent, is_plausible=not implausible)
        # Objects that count as absent are not doubted any more. Their counts of answers are kept: if the next answer lacks these
        # objects too, the counting does not begin again.
        doubted = self.doubted() - absent
        return Weighed(implausible, absent, doubted, again_s, mass_loss, missing=old)

    def doubts(self) -> Doubts:
        """Return the counts so far, to be stored for the next process."""
        plausible = {str(key): absence for key, absence in self._believed.absent.items()}
        of_any_answer = {str(key): absence for key, absence in self._doubtful.absent.items()}
        return Doubts(plausible, of_any_answer)

    def doubted(self) -> frozenset[CloudKey]:
        """Return the objects that must not be used: the last plausible answer, or two successive answers of any kind, lack them."""
        twice = frozenset(key for key, absence in self._doubtful.absent.items() if absence.look_count >= MIN_LOOK_COUNT)
        return twice.union(self._believed.absent)

    def _forget_shown(self, unseen: Collection[CloudKey]) -> None:
        """End the absence of every object that the answer shows: even an implausible answer proves presence.

        `unseen`: the objects that the answer does not show.
        """
        self._believed.absent = {key: absence for key, absence in self._believed.absent.items() if key in unseen}

    def _next_look_s(
        self, gone: frozenset[CloudKey], absent: frozenset[CloudKey], recent: Mapping[CloudKey, float], *, is_plausible: bool
    ) -> float | None:
        """Return the seconds after which the next answer is useful; None if nothing is in doubt."""
        waits = [recent[key] for key in gone & recent.keys()]
        if is_plausible:
            is_undecided = bool(self.doubted() - absent)
        else:
            waits.append(DOUBT_AGAIN_S)
            is_undecided = any(self._doubtful.count(key) < MIN_LOOK_COUNT for key in gone - recent.keys() - absent)
        if is_undecided:
            waits.append(LOOK_GAP_S)  # a second answer decides
        return min(waits, default=None)

    def _is_confirmed(self, key: CloudKey, recorded: CloudRecords, witnesses: Witnesses, now_s: float) -> bool:
        """Whether an object has been missing for MASS_LOSS_AGE_S, and a source that shows the primary ENI does not show the object."""
        if self._doubtful.count(key) < MIN_LOOK_COUNT or self._doubtful.age_s(key, now_s=now_s) < MASS_LOSS_AGE_S:
            return False
        eni = recorded.enis[key] if isinstance(key, str) else None
        if eni is not None and _lacks_link(eni, recorded.identity, witnesses.links):
            return True
        address = eni.primary_address if eni is not None else key
        metadata = witnesses.metadata
        return metadata is not None and recorded.identity.primary_address in metadata and address not in metadata


def _by_key(doubts: Mapping[str, Absence]) -> dict[CloudKey, Absence]:
    """Return the absences with ENI IDs and addresses as keys; in `doubts` the keys are text."""
    absences: dict[CloudKey, Absence] = {}
    for subject, absence in doubts.items():
        try:
            absences[read_address(subject)] = absence
        except ValueError:
            absences[EniId(subject)] = absence
    return absences


def _lacks_link(eni: Eni, identity: InstanceIdentity, links: frozenset[MacAddress] | None) -> bool:
    """Whether the kernel shows the primary ENI's link, and no link of this ENI."""
    return links is not None and identity.primary_mac in links and eni.mac not in links
