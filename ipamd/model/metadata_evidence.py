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
from ipaddress import IPv4Address, IPv4Network

from ipamd.model.address import Address
from ipamd.model.cloud import MetadataEni
from ipamd.model.eni import Eni, EniState
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.words import first_of


@dataclass(frozen=True, slots=True)
class RecordedContents:
    """What metadata must show of one ENI. `addresses`: single ones, the primary one included; None: of no concern to us."""

    mac: MacAddress
    eni_id: EniId
    addresses: frozenset[IPv4Address] | None = None
    prefixes: frozenset[IPv4Network] = frozenset()


def recorded_contents(enis: Iterable[Eni], addresses: Iterable[Address]) -> dict[MacAddress, RecordedContents]:
    """Make the view that metadata is compared with, ENI by ENI. Left out are ENIs that come or go, and addresses that EC2 was found
    not to show (lost)."""
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
    """What must not count as a difference: what our own calls changed lately, and whether a call of ours is under way.

    `removed`: ENIs and addresses, each with the ENI that it was on; an address that is shown on another one is news. `is_growing`: an
    intent is open, so metadata may show what its answer has not told us yet.
    """

    added: Collection[EniId | IPv4Address] = ()
    removed: Mapping[EniId | IPv4Address, EniId] = field(default_factory=dict)
    is_growing: bool = False

    def covers(self, kind: DifferenceKind, found: EniId | IPv4Address | IPv4Network, *, on: EniId | None = None) -> bool:
        """Whether a difference, of what is shown or recorded on an ENI, is explained by what we did."""
        if kind is DifferenceKind.UNKNOWN and self.is_growing:
            return True
        key = found.network_address if isinstance(found, IPv4Network) else found
        origin = self.removed.get(key)
        return key in self.added or (origin is not None and (kind is not DifferenceKind.UNKNOWN or origin in (on, key)))


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
