"""Compare instance metadata with the rows, to decide when EC2 must be called. Pure: no request, no clock.

Metadata costs no EC2 call and is read all the time, but it lags, it may stay stuck for hours (amazon-vpc-cni-k8s issue 2497), and
it may show an ENI 105 minutes after its deletion (issue 359). So a difference removes nothing (I7). Each distinct difference causes
a call of EC2, and further ones while it lasts, after pauses that grow to an hour. Meanwhile addresses that metadata does not show
are assigned last. Lists are compared member by member, because lists of equal length may differ (issues 3019 and 3887). Recent
changes of our own are no difference.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from ipamd.model.address import Address
from ipamd.model.cloud import MetadataEni
from ipamd.model.eni import Eni, EniState
from ipamd.model.family import IpAddress, IpNetwork, family_of, members
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.record import dataclass
from ipamd.model.snapshot import Snapshot
from ipamd.model.words import first_of

ASK_AGAIN_S = 3600.0
"""The longest pause between two calls of EC2 about a lasting difference. Ours: a fault of metadata lasts until an operator ends it,
and 24 calls a day are within any budget."""

ASK_PAUSES_S = (60.0, 240.0, 960.0, ASK_AGAIN_S)
"""Pauses between the calls about one difference; the last pause is repeated. Ours: EC2's first answer may lag seconds behind
metadata, so one answer must not postpone the next call by an hour. This costs three more calls at most."""

NAMED_COUNT = 3
"""How many differences a sentence names. Ours: a missing prefix is one difference, a missing ENI of single addresses may be 50."""


class DifferenceKind(StrEnum):
    """What differs; the value is the verb of its sentence."""

    ABSENT = "is recorded and not shown"
    UNKNOWN = "is shown and not recorded"
    BACK = "is shown and recorded as detached"


@dataclass(frozen=True, slots=True, order=True)
class InterfaceDifference:
    """One distinct difference. `subject`: an ENI's ID, an address or a prefix, as text."""

    mac: MacAddress
    kind: DifferenceKind
    subject: str

    def __str__(self) -> str:
        return f"{self.subject} {self.kind}"


Candidate = tuple[DifferenceKind, MacAddress, EniId | IpAddress | IpNetwork, EniId]
"""A kind of difference, a MAC, the ENI, address or prefix that differs, and the ENI that it is on."""


@dataclass(frozen=True, slots=True)
class Recent:
    """Changes of our own, which must not count as differences.

    `added`: ENIs and addresses that our calls added lately.
    `removed`: ENIs and addresses that our calls removed lately, each with the ENI that it was on, because an address that is shown on
        another ENI is a difference.
    `is_growing`: an intent that adds is open, so metadata may show an address before EC2's answer names it to us.
    """

    added: Collection[EniId | IpAddress] = ()
    removed: Collection[tuple[EniId | IpAddress, EniId]] = ()
    is_growing: bool = False

    def covers(self, kind: DifferenceKind, subject: EniId | IpAddress | IpNetwork, *, on: EniId) -> bool:
        """Whether our own calls explain a difference in `subject`, which is shown or recorded on the ENI `on`."""
        if kind is DifferenceKind.UNKNOWN and self.is_growing:
            return True
        key = members(subject)[0] if isinstance(subject, IpNetwork) else subject
        return key in self.added or (key, on) in self.removed


def differences(
    recorded: Snapshot,
    listed: Mapping[MacAddress, MetadataEni | None],
    *,
    left_alone: Mapping[EniId, MacAddress | None],
    recent: Recent,
) -> tuple[frozenset[InterfaceDifference], frozenset[InterfaceDifference]]:
    """Compare the ENIs by MAC, and the addresses of each attached ENI of ours; lost addresses are not compared.

    Args:
        listed: each ENI of the list with what was read of it, None if it was not read.
        left_alone: ENIs without a row that EC2 has shown, with the MAC by which metadata has shown them, None if it has not. If one of
            these disappears, a place is free, which nothing else notices.
    Returns: differences of the list, and differences of the ENIs that were read.
    """
    enis = {eni.mac: eni for eni in recorded.enis.values()}
    expected = _expected_enis(enis, left_alone)
    in_list: list[Candidate] = []
    for mac, eni_id in expected.items():
        if mac not in listed:
            in_list.append((DifferenceKind.ABSENT, mac, eni_id, eni_id))
    in_list += _unexpected_in_list(enis, listed, left_alone)
    compared = {mac for mac in expected.keys() & enis.keys() if _is_compared(enis[mac], recent)}
    in_enis = _differences_of_enis(recorded, enis, listed, compared)
    return _not_explained(in_list, recent), _not_explained(in_enis, recent)


def _expected_enis(enis: Mapping[MacAddress, Eni], left_alone: Mapping[EniId, MacAddress | None]) -> dict[MacAddress, EniId]:
    """Return the ENIs that metadata should list: those with an attached row, and those without a row that it has shown."""
    expected = {mac: eni_id for eni_id, mac in left_alone.items() if mac is not None}
    for mac, eni in enis.items():
        if eni.state is EniState.ATTACHED:
            expected[mac] = eni.eni_id
    return expected


def _is_compared(eni: Eni, recent: Recent) -> bool:
    """Whether the addresses of an expected ENI are compared: the ENI is for pods, and we did not change it lately."""
    return eni.managed and not recent.covers(DifferenceKind.ABSENT, eni.eni_id, on=eni.eni_id)


def _unexpected_in_list(
    enis: Mapping[MacAddress, Eni], listed: Mapping[MacAddress, MetadataEni | None], left_alone: Collection[EniId]
) -> list[Candidate]:
    """Name the listed ENIs that are recorded as detaching, or not recorded at all."""
    candidates: list[Candidate] = []
    for mac, metadata_eni in listed.items():
        eni = enis.get(mac)
        if eni is not None and eni.state is EniState.DETACHING:  # perhaps it is attached again, and its sandboxes need it
            candidates.append((DifferenceKind.BACK, mac, eni.eni_id, eni.eni_id))
        elif eni is None and metadata_eni is not None and metadata_eni.eni_id not in left_alone:
            candidates.append((DifferenceKind.UNKNOWN, mac, metadata_eni.eni_id, metadata_eni.eni_id))
    return candidates


def _differences_of_enis(
    recorded: Snapshot,
    enis: Mapping[MacAddress, Eni],
    listed: Mapping[MacAddress, MetadataEni | None],
    compared: Collection[MacAddress],
) -> list[Candidate]:
    """Compare what was read of each recorded ENI with its record: the ID, and for the MACs in `compared` the addresses."""
    candidates: list[Candidate] = []
    rows = [row for row in recorded.addresses.values() if not row.is_lost]
    for mac, metadata_eni in listed.items():
        eni = enis.get(mac)
        if eni is None or metadata_eni is None or eni.state is EniState.DETACHING:
            continue
        if metadata_eni.eni_id != eni.eni_id:
            candidates.append((DifferenceKind.UNKNOWN, mac, metadata_eni.eni_id, metadata_eni.eni_id))
        elif mac in compared:
            candidates += _address_differences(eni, metadata_eni, rows)
    return candidates


def _address_differences(eni: Eni, metadata_eni: MetadataEni, rows: Collection[Address]) -> list[Candidate]:
    """Compare the addresses and prefixes of one ENI. `rows`: all recorded addresses that are not lost."""
    recorded: set[IpAddress | IpNetwork] = {eni.primary_address}
    recorded.update(row.prefix or row.address for row in rows if row.eni_id == eni.eni_id)
    listed = metadata_eni.addresses | metadata_eni.prefixes
    candidates: list[Candidate] = [(DifferenceKind.ABSENT, eni.mac, subject, eni.eni_id) for subject in recorded - listed]
    for subject in listed - recorded:
        is_sparse = isinstance(subject, IpNetwork) and family_of(subject).is_sparse
        if is_sparse and any(row.prefix for row in rows):
            continue  # one /80 serves the node, so another one is no difference
        candidates.append((DifferenceKind.UNKNOWN, eni.mac, subject, eni.eni_id))
    return candidates


def _not_explained(candidates: Collection[Candidate], recent: Recent) -> frozenset[InterfaceDifference]:
    """Leave out the differences that our own calls explain."""
    return frozenset(
        InterfaceDifference(mac, kind, str(subject))
        for kind, mac, subject, eni_id in candidates
        if not recent.covers(kind, subject, on=eni_id)
    )


def ask_pause_s(asked_count: int) -> float:
    """Seconds from the last call about a difference to the next one, after `asked_count` calls. Pure."""
    return ASK_PAUSES_S[min(asked_count, len(ASK_PAUSES_S)) - 1]


def suspects(differences: Collection[InterfaceDifference], recorded: Snapshot) -> frozenset[IpAddress]:
    """Return the recorded addresses that metadata lacks: the address alone, its prefix, or its whole ENI. Pure."""
    absent = {difference.subject for difference in differences if difference.kind is DifferenceKind.ABSENT}
    if not absent:
        return frozenset()
    rows = recorded.addresses.values()
    return frozenset(row.address for row in rows if absent & {str(row.address), str(row.prefix), row.eni_id})


def sentence(differences: Collection[InterfaceDifference]) -> str:
    """Name the first NAMED_COUNT differences and count the rest."""
    return first_of([str(difference) for difference in sorted(differences)], NAMED_COUNT)
