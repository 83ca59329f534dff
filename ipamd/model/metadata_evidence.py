"""What instance metadata shows against what is recorded, by content. Pure: no request, no clock.

Metadata costs no EC2 call and is looked at all the time, but it lags, it may stay frozen for hours (amazon-vpc-cni-k8s issue 2497),
and it may show a deleted ENI after 105 minutes (issue 359). So a difference removes nothing (I7): it is a reason to ask EC2, once for
each distinct difference, and again once an hour while it lasts. Lists are compared member by member: lists of equal length may differ
(issues 3019 and 3887), and what our own calls changed lately is no difference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import AddressValueError, IPv4Address, IPv4Network

from ipamd.model.address import Address, AddressState
from ipamd.model.cloud import InstanceIdentity, MetadataEni
from ipamd.model.eni import Eni, EniState
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.snapshot import Snapshot
from ipamd.model.words import first_of

# What is recorded of this instance, as the comparisons with EC2 and with instance metadata need it: pure conversions.
#
# EC2's answer is compared object by object, because one that is not shown has its own count of absences. Metadata is compared ENI
# by ENI, each with its single addresses and whole prefixes, as it lists them.


CloudKey = EniId | IPv4Address
"""What can be absent: an ENI, or one address of an ENI that is there."""


def cloud_key(text: str) -> CloudKey:
    """Read what `str` made of a key."""
    try:
        return IPv4Address(text)
    except AddressValueError:
        return EniId(text)


@dataclass(frozen=True, slots=True)
class RecordedEni:
    """One ENI as recorded. `is_leaving`: being detached, or found absent before; then its absence surprises nobody."""

    mac: MacAddress
    primary_address: IPv4Address
    is_leaving: bool = False


@dataclass(frozen=True, slots=True)
class RecordedContents:
    """What metadata must show of one ENI. `addresses`: single ones, the primary one included; None: of no concern to us."""

    mac: MacAddress
    eni_id: EniId
    addresses: frozenset[IPv4Address] | None = None
    prefixes: frozenset[IPv4Network] = frozenset()


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is recorded of this instance. `addresses` leaves out those that are known to be lost; `wired` is those of them that live
    sandboxes have. `primary_eni_id` and `primary_address` are those that instance metadata names."""

    primary_eni_id: EniId
    primary_address: IPv4Address
    primary_mac: MacAddress
    enis: Mapping[EniId, RecordedEni] = field(default_factory=dict)
    addresses: Mapping[IPv4Address, EniId] = field(default_factory=dict)
    wired: frozenset[IPv4Address] = frozenset()

    def without(self, gone: Collection[CloudKey]) -> Recorded:
        """The same, less what is gone, and less the addresses of ENIs that are gone."""
        addresses = {a: eni_id for a, eni_id in self.addresses.items() if a not in gone and eni_id not in gone}
        return Recorded(
            self.primary_eni_id,
            self.primary_address,
            self.primary_mac,
            {eni_id: eni for eni_id, eni in self.enis.items() if eni_id not in gone},
            addresses,
            self.wired & addresses.keys(),
        )


def recorded(snapshot: Snapshot, identity: InstanceIdentity) -> Recorded:
    """Make the view that `ipamd/model/cloud_evidence.py` compares an answer with; addresses of ENIs that are not ours are left out."""
    managed = {eni.eni_id for eni in snapshot.enis.values() if eni.managed}
    rows = [row for row in snapshot.addresses.values() if row.eni_id in managed and not row.is_lost]
    return Recorded(
        identity.primary_eni_id,
        identity.primary_address,
        identity.primary_mac,
        enis={
            eni.eni_id: RecordedEni(eni.mac, eni.primary_address, is_leaving=eni.state is EniState.DETACHING)
            for eni in snapshot.enis.values()
        },
        addresses={row.address: row.eni_id for row in rows},
        wired=frozenset(row.address for row in rows if row.state is AddressState.ASSIGNED),
    )


def recorded_contents(enis: Iterable[Eni], addresses: Iterable[Address]) -> dict[MacAddress, RecordedContents]:
    """Make the view that `ipamd/model/metadata_evidence.py` compares with. ENIs that come or go are left out, and so are addresses
    that EC2 was found not to show (lost)."""
    singles: dict[EniId, set[IPv4Address]] = {}
    prefixes: dict[EniId, set[IPv4Network]] = {}
    for row in addresses:
        if row.is_lost:
            continue
        if row.prefix is None:
            singles.setdefault(row.eni_id, set()).add(row.address)
        else:
            prefixes.setdefault(row.eni_id, set()).add(row.prefix)
    found = {}
    for eni in enis:
        if eni.state is EniState.ATTACHED:
            of_eni = frozenset({eni.primary_address, *singles.get(eni.eni_id, ())}) if eni.managed else None
            found[eni.mac] = RecordedContents(eni.mac, eni.eni_id, of_eni, frozenset(prefixes.get(eni.eni_id, ())))
    return found


ASK_AGAIN_S = 3600.0
"""EC2 is asked again about a difference that lasts. Ours: a defect of metadata lasts until an operator ends it, and 24 calls a day
are within any budget."""

NAMED_COUNT = 3
"""Differences that a sentence names. Ours: a vanished prefix is 1, a vanished ENI of single addresses may be 50."""


class DifferenceKind(StrEnum):
    """What differs; the value is the verb of its sentence."""

    ABSENT = "is recorded and not shown"
    UNKNOWN = "is shown and not recorded"
    BACK = "is shown and recorded as detached"


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """One distinct difference. `what`: an ENI's ID, an address or a prefix, as text."""

    mac: MacAddress
    kind: DifferenceKind
    what: str

    def __str__(self) -> str:
        return f"{self.what} {self.kind}"


@dataclass(frozen=True, slots=True)
class Recent:
    """What must not count as a difference: objects that our own calls changed lately, and whether a call of ours is under way.

    `given_back`: addresses with the ENI that they were taken from; shown on another one they are news. `is_growing`: an intent is
    open, so metadata may show what its answer has not told us yet.
    """

    objects: Collection[EniId | IPv4Address] = field(default_factory=frozenset)
    given_back: Mapping[IPv4Address, EniId] = field(default_factory=dict)
    is_growing: bool = False

    def covers(self, kind: DifferenceKind, found: EniId | IPv4Address | IPv4Network, *, on: EniId | None = None) -> bool:
        """Whether a difference, of what is shown or recorded on an ENI, is explained by what we did."""
        if kind is DifferenceKind.UNKNOWN and self.is_growing:
            return True
        key = found.network_address if isinstance(found, IPv4Network) else found
        if key in self.objects:
            return True
        origin = self.given_back.get(key) if isinstance(key, IPv4Address) else None
        return origin is not None and (kind is not DifferenceKind.UNKNOWN or origin == on)


def list_differences(
    recorded: Iterable[RecordedContents],
    listed: frozenset[MacAddress],
    *,
    unknown: Mapping[MacAddress, EniId],
    leaving: Mapping[MacAddress, EniId],
    recent: Recent,
) -> frozenset[Difference]:
    """Compare the ENIs by MAC. `unknown`: those of `listed` that were read, are recorded in no state, and are of concern to us.
    `leaving`: recorded as being detached or gone; one that is shown was attached again, perhaps, and its sandboxes need it."""
    enis = {eni.mac: eni for eni in recorded}
    absent, more, back = DifferenceKind.ABSENT, DifferenceKind.UNKNOWN, DifferenceKind.BACK
    found = {Difference(mac, more, eni_id) for mac, eni_id in unknown.items() if not recent.covers(more, eni_id)}
    found |= {Difference(mac, back, leaving[mac]) for mac in leaving.keys() & listed if not recent.covers(back, leaving[mac])}
    for mac in enis.keys() - listed:
        if not recent.covers(absent, enis[mac].eni_id):
            found.add(Difference(mac, absent, enis[mac].eni_id))
    return frozenset(found)


def eni_differences(recorded: RecordedContents, shown: MetadataEni, *, recent: Recent) -> frozenset[Difference]:
    """Compare one ENI: its ID, its addresses and its prefixes."""
    absent, unknown = DifferenceKind.ABSENT, DifferenceKind.UNKNOWN
    if shown.eni_id != recorded.eni_id:
        return frozenset({Difference(recorded.mac, unknown, shown.eni_id)})
    if recorded.addresses is None or recent.covers(absent, recorded.eni_id):
        return frozenset()
    pairs: list[tuple[DifferenceKind, IPv4Address | IPv4Network]] = []
    pairs += [(absent, one) for one in recorded.addresses - shown.addresses]
    pairs += [(unknown, one) for one in shown.addresses - recorded.addresses]
    pairs += [(absent, prefix) for prefix in recorded.prefixes - shown.prefixes]
    pairs += [(unknown, prefix) for prefix in shown.prefixes - recorded.prefixes]
    ours = recorded.eni_id
    return frozenset(Difference(recorded.mac, kind, str(what)) for kind, what in pairs if not recent.covers(kind, what, on=ours))


def sentence(differences: Collection[Difference]) -> str:
    """Name the first NAMED_COUNT differences and count the rest."""
    return first_of([str(one) for one in sorted(differences)], NAMED_COUNT)


class AskedDifferences:
    """Which differences EC2 was asked about, and when. Used by one thread at a time."""

    def __init__(self) -> None:
        self._asked_monotonic_s: dict[Difference, float] = {}

    def due(self, differences: Collection[Difference], *, now_s: float) -> frozenset[Difference]:
        """Name those to ask EC2 about now: new ones, and ones asked about ASK_AGAIN_S ago. `now_s` is monotonic."""
        return frozenset(one for one in differences if self._is_old(one, now_s))

    def mark(self, differences: Collection[Difference], *, now_s: float) -> None:
        """Record that EC2 is asked about all of these now. One that ends and comes back within the hour is not asked about again."""
        self._asked_monotonic_s = {one: at for one, at in self._asked_monotonic_s.items() if now_s - at < ASK_AGAIN_S}
        self._asked_monotonic_s |= dict.fromkeys(differences, now_s)

    def _is_old(self, difference: Difference, now_s: float) -> bool:
        at = self._asked_monotonic_s.get(difference)
        return at is None or now_s - at >= ASK_AGAIN_S
