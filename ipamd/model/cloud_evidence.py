"""Decide from successive answers of EC2 which ENIs and addresses are gone. Pure: no clock, no call.

One Describe proves no absence: it may lag behind a change, be incomplete, or have an unexpected shape (I11). What an answer shows is
present. What it lacks is unknown, until a second answer, apart in time, lacks it too. An answer that lacks nearly everything is not
believed at all; a real mass loss needs time and a second witness. Why these rules: docs/adr/0017.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ipamd.model.address import AddressState
from ipamd.model.cloud import DescribedEni, InstanceIdentity, all_addresses
from ipamd.model.eni import Eni, EniState
from ipamd.model.evidence import Absence, Absences, Doubts
from ipamd.model.family import IpAddress, read_address, stand_in
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.record import dataclass, field
from ipamd.model.snapshot import Snapshot
from ipamd.model.words import counted

CloudKey = EniId | IpAddress
"""What can be absent: an ENI, or one address of an ENI that is there."""

LOOK_GAP_S = 30.0
"""Least time between two answers that count as two. Ours: replicas of EC2 that lag are seconds behind, and AWS advises to look again
after seconds to minutes; an address that is gone stays held, not given, for as long.

Source: https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html.
"""

RECENT_S = 300.0
"""For this long after a call of ours Describe may not show what it changed. Ours: AWS names no bound; ten times the longest lag that
anybody reported (cilium issue 36428 suspects it after Assign)."""

MIN_LOOK_COUNT = 2
"""Successive answers without an object. Ours: one may lag."""

MASS_LOSS_AGE_S = 600.0
"""After this long even an implausible answer is believed for what a second witness confirms. Ours: twice `RECENT_S`."""

DOUBT_AGAIN_S = 60.0
"""When an implausible answer is worth a second look. Ours: ten looks until a mass loss is believed."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is recorded of this instance, object by object, because each has its own count of absences. `addresses` leaves out those
    that are known to be lost, and of a /80 all but its rest; `wired` is those of them that live sandboxes have. `identity`: as
    instance metadata names it."""

    identity: InstanceIdentity
    enis: Mapping[EniId, Eni] = field(default_factory=dict)
    addresses: Mapping[IpAddress, EniId] = field(default_factory=dict)
    wired: frozenset[IpAddress] = frozenset()


def recorded(snapshot: Snapshot, identity: InstanceIdentity) -> Recorded:
    """Make the view that an answer is compared with; addresses of ENIs that are not ours are left out."""
    managed = {eni.eni_id for eni in snapshot.enis.values() if eni.managed}
    # A /80 is there or not: its rest speaks for every address of it.
    rows = [
        row
        for row in snapshot.addresses.values()
        if row.eni_id in managed and not row.is_lost and stand_in(row.address) in (None, row.address)
    ]
    wired = frozenset(row.address for row in rows if row.state is AddressState.ASSIGNED)
    return Recorded(identity, snapshot.enis, {row.address: row.eni_id for row in rows}, wired)


@dataclass(frozen=True, slots=True)
class Witnesses:
    """Who else can say that something is gone; None: not asked, or silent.

    `links`: MAC addresses of the links of the host's namespace. `metadata`: every address that instance metadata shows, those of
    prefixes and the primary ones included. A witness that lacks the primary ENI itself is not heard.
    """

    links: frozenset[MacAddress] | None = None
    metadata: frozenset[IpAddress] | None = None


@dataclass(frozen=True, slots=True)
class Weighed:
    """What successive answers say: each object is there, absent, or doubted (not known), as in `ipamd/model/evidence.py`.

    `implausible`: why this answer is not believed, "" if it is. `absent`: gone, as far as two looks prove; the addresses of an ENI
    are not named with it. `doubted`: not shown once, look again. `again_s`: seconds after which a next look is useful, None if
    nothing is in doubt.
    `mass_loss`: one sentence if something was concluded from implausible answers.
    """

    implausible: str = ""
    absent: frozenset[CloudKey] = frozenset()
    doubted: frozenset[CloudKey] = frozenset()
    again_s: float | None = None
    mass_loss: str = ""


def plausibility(answer: Iterable[DescribedEni], recorded: Recorded, *, recent: Collection[CloudKey] = ()) -> str:
    """Say why a complete Describe of this instance is not believed.

    The primary ENI cannot be detached while the instance runs: an answer without it is about another moment, or another instance.
    Otherwise an answer is implausible if more than half, and at least two, of the ENIs (the primary one included) or of the wired
    addresses are missing. More than half: an operator who detaches one ENI of two is believed after two looks. At least two: a node
    with one sandbox must be able to lose its one address.

    Args:
        answer: every ENI that EC2 shows attached, whatever its attachment status.
        recorded: what the datastore holds.
        recent: changed by our own calls so lately that EC2 may not show it yet, or known to be gone; not counted.
    Returns: one sentence; "" if the answer is plausible.
    Concurrency: pure. Guards: I2, I11.
    """
    shown = tuple(answer)
    if not any(eni.eni_id == recorded.identity.primary_eni_id for eni in shown):
        return f"it lacks the primary ENI {recorded.identity.primary_eni_id}" if shown else "it is empty"
    gone = missing(shown, recorded) - frozenset(recent)
    staying = {eni_id for eni_id, eni in recorded.enis.items() if eni.state is not EniState.DETACHING and eni_id not in recent}
    wired = {address for address in recorded.wired if address not in recent and recorded.addresses.get(address) not in recent}
    gone_wired = {address for address in wired if address in gone or recorded.addresses.get(address) in gone}
    for what, lacking, all_of_them in (
        ("attached ENIs", len(staying & gone), len(staying)),
        ("addresses of running sandboxes", len(gone_wired), len(wired)),
    ):
        if lacking >= 2 and 2 * lacking > all_of_them:
            return f"it lacks {lacking} of {all_of_them} {what}"
    return ""


def missing(answer: Iterable[DescribedEni], recorded: Recorded) -> frozenset[CloudKey]:
    """Name what is recorded and not shown where it was recorded. Addresses of an ENI that is not shown are not named.

    Nothing is concluded about the addresses of an entry that could not be read, nor about ENIs if one entry names no ID.
    """
    entries = tuple(answer)
    shown = {eni.eni_id for eni in entries}
    found: set[CloudKey] = set(recorded.enis.keys() - shown) if "" not in shown else set()
    on_eni = {eni.eni_id: addresses_on(eni) for eni in entries if eni.is_readable}
    found |= {address for address, eni_id in recorded.addresses.items() if address not in on_eni.get(eni_id, {address})}
    return frozenset(found)


def addresses_on(described: DescribedEni) -> frozenset[IpAddress]:
    """Return the secondary addresses of an ENI, those of its prefixes included."""
    return all_addresses(described.secondary_addresses, described.prefixes)


class CloudEvidence:
    """Weighs the successive answers about one instance. Used by one thread at a time."""

    def __init__(self, doubts: Doubts | None = None) -> None:
        """`doubts`: what the process before counted, so that a daemon that restarts often takes its second look too."""
        known = doubts or Doubts()
        self._believed: Absences[CloudKey] = Absences(gap_s=LOOK_GAP_S, known=_by_key(known.plausible))  # plausible answers only
        self._doubtful: Absences[CloudKey] = Absences(gap_s=LOOK_GAP_S, known=_by_key(known.any))  # all that show the primary ENI

    def weigh(
        self,
        answer: Iterable[DescribedEni],
        recorded: Recorded,
        *,
        recent: Mapping[CloudKey, float],
        witnesses: Witnesses,
        now_s: float,
    ) -> Weighed:
        """Weigh one complete answer with those before it.

        Args:
            answer: every ENI attached to the instance, n of them.
            recorded: what the datastore holds.
            recent: seconds for which Describe may still not show a change of ours; nothing in it is concluded to be gone.
            witnesses: asked now.
            now_s: monotonic.
        Guards: I2, I7, I8, I11.
        """
        entries = tuple(answer)
        implausible = plausibility(entries, recorded, recent=recent)
        if not any(eni.eni_id == recorded.identity.primary_eni_id for eni in entries):
            return Weighed(implausible, doubted=self.doubted(), again_s=DOUBT_AGAIN_S)
        gone = missing(entries, recorded)
        old = gone - recent.keys()
        self._doubtful.look(old, now_s=now_s)
        absent: frozenset[CloudKey] = frozenset()
        mass_loss = ""
        if implausible:
            absent = frozenset(key for key in old if self._is_confirmed(key, recorded, witnesses, now_s))
            if absent:
                mass_loss = f"{implausible}; {counted(len(absent), 'object')} of it confirmed by kernel or metadata: believed"
            implausible = plausibility(entries, recorded, recent={*recent, *absent})
        if implausible:
            # What even this answer shows is there.
            self._believed.absent = {key: one for key, one in self._believed.absent.items() if key in old}
        else:
            self._believed.look(old - absent, now_s=now_s)
            absent |= {key for key in old if self._believed.count(key) >= MIN_LOOK_COUNT}
        doubted = self.doubted() - absent  # what is absent stays counted: seen missing again it is no new doubt
        waits = [recent[key] for key in gone & recent.keys()] + [DOUBT_AGAIN_S] * bool(implausible)
        once = any(self._doubtful.count(key) < MIN_LOOK_COUNT for key in old - absent)
        if once if implausible else doubted:
            waits.append(LOOK_GAP_S)  # the second look decides what is gone, or held back
        return Weighed(implausible, absent, doubted, min(waits, default=None), mass_loss)

    def doubts(self) -> Doubts:
        """What was counted so far; to be kept across a restart."""
        return Doubts(*({str(key): one for key, one in absences.absent.items()} for absences in (self._believed, self._doubtful)))

    def doubted(self) -> frozenset[CloudKey]:
        """What is not to be given: not shown by the last plausible answer, or by two successive answers of any kind."""
        twice = frozenset(key for key, absence in self._doubtful.absent.items() if absence.look_count >= MIN_LOOK_COUNT)
        return twice.union(self._believed.absent)

    def _is_confirmed(self, key: CloudKey, recorded: Recorded, witnesses: Witnesses, now_s: float) -> bool:
        """Whether an object has been missing for long, and a witness that sees the primary ENI does not see it either."""
        is_old = self._doubtful.count(key) >= MIN_LOOK_COUNT and self._doubtful.age_s(key, now_s=now_s) >= MASS_LOSS_AGE_S
        links, metadata = witnesses.links, witnesses.metadata
        eni = recorded.enis[key] if isinstance(key, str) else None
        by_link = eni is not None and links is not None and recorded.identity.primary_mac in links and eni.mac not in links
        address = eni.primary_address if eni is not None else key
        by_metadata = metadata is not None and recorded.identity.primary_address in metadata and address not in metadata
        return is_old and (by_link or by_metadata)


def _by_key(doubts: Mapping[str, Absence]) -> dict[CloudKey, Absence]:
    """Read what `str` made of the keys."""
    found: dict[CloudKey, Absence] = {}
    for subject, absence in doubts.items():
        try:
            found[read_address(subject)] = absence
        except ValueError:
            found[EniId(subject)] = absence
    return found
