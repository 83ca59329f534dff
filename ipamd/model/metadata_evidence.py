"""Compare instance metadata with the rows, to decide when EC2 must be called. Pure: no request, no clock.

Metadata costs no EC2 call and is read all the time. But it lags, it may stay stuck for hours (amazon-vpc-cni-k8s issue 2497), and it
may show an ENI 105 minutes after its deletion (issue 359). So a difference removes nothing (I7). Each distinct difference causes an
EC2 call. While the difference lasts, further calls follow after pauses that grow to an hour, and addresses that metadata does not show
are assigned last. Lists are compared member by member, because lists of equal length may differ (issues 3019 and 3887). Recent changes
of our own do not count as differences.
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
"""The longest pause between two EC2 calls about a lasting difference. Ours: a fault of metadata lasts until an operator ends it, and
24 calls a day are within any budget."""

ASK_PAUSES_S = (60.0, 240.0, 960.0, ASK_AGAIN_S)
"""Pauses between the EC2 calls about one difference; the last pause is repeated. Ours: EC2's first answer may lag seconds behind
metadata, so one answer must not postpone the next call by an hour. The shorter pauses cost three more calls at most."""

NAMED_COUNT = 3
"""How many differences a sentence names. Ours: an ENI that metadata shows without its single addresses may count as 50 differences,
which would make the sentence too long."""


class DifferenceKind(StrEnum):
    """The kind of a difference. The value is the predicate of the sentence about it.

    ABSENT: the datastore has the object, and metadata does not show it.
    UNKNOWN: metadata shows the object, and the datastore does not have it.
    BACK: metadata shows an ENI that the datastore records as being detached.
    """

    ABSENT = "is recorded and not shown"
    UNKNOWN = "is shown and not recorded"
    BACK = "is shown and recorded as detached"


@dataclass(frozen=True, slots=True, order=True)
class InterfaceDifference:
    """One distinct difference.

    `mac`: the MAC of the ENI.
    `subject`: the ENI's ID, an address or a prefix, as text.
    """

    mac: MacAddress
    kind: DifferenceKind
    subject: str

    def __str__(self) -> str:
        return f"{self.subject} {self.kind}"


Candidate = tuple[DifferenceKind, MacAddress, EniId | IpAddress | IpNetwork, EniId]
"""A possible difference: its kind; the MAC of the ENI; the ENI, address or prefix that differs; and the ENI that it is on."""


@dataclass(frozen=True, slots=True)
class Recent:
    """Changes of our own, which must not count as differences.

    `added`: ENIs and addresses that our calls added lately.
    `removed`: ENIs and addresses that our calls removed lately, each with the ENI that it was on, because an address that is shown on
        another ENI is a difference.
    `is_growing`: whether an intent that adds addresses or an ENI is open, so that metadata may show them before EC2's answer to us.
    """

    added: Collection[EniId | IpAddress] = ()
    removed: Collection[tuple[EniId | IpAddress, EniId]] = ()
    is_growing: bool = False

    def covers(self, kind: DifferenceKind, subject: EniId | IpAddress | IpNetwork, *, on: EniId) -> bool:
        """Whether our own calls explain a difference. `on`: the ENI on which `subject` is shown or recorded."""
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
        recorded: the datastore's rows.
        listed: MAC of each ENI that metadata lists -> what was read about it; None if it was not read.
        left_alone: ENIs that EC2 has shown and that have no row -> the MAC under which metadata has listed the ENI; None if it never
            has. If such an ENI disappears, a place is free, which no other comparison notices.
        recent: our own changes.
    Returns: the ENIs that are missing from the list or unexpected in it, and the differences inside the ENIs that were read.
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
    """Return the ENIs that metadata should list: recorded attached ones, and ENIs without a row that metadata has listed before."""
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
        if eni is not None and eni.state is EniState.DETACHING:  # if the ENI was attached again, its sandboxes need routing
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
    """Compare each ENI that was read with its record: the ID, and for the MACs in `compared` also the addresses."""
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
            continue  # one /80 serves the node, so another one does not count as a difference
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
    """Return the seconds from the last EC2 call about a difference to the next call.

    `asked_count`: how many EC2 calls were made about the difference so far, at least 1.
    """
    return ASK_PAUSES_S[min(asked_count, len(ASK_PAUSES_S)) - 1]


def suspects(differences: Collection[InterfaceDifference], recorded: Snapshot) -> frozenset[IpAddress]:
    """Return the recorded addresses that metadata does not show, because it lacks the address, its prefix, or its whole ENI."""
    absent = {difference.subject for difference in differences if difference.kind is DifferenceKind.ABSENT}
    if not absent:
        return frozenset()
    rows = recorded.addresses.values()
    return frozenset(row.address for row in rows if absent & {str(row.address), str(row.prefix), row.eni_id})


def sentence(differences: Collection[InterfaceDifference]) -> str:
    """Return a sentence with the first NAMED_COUNT differences and the number of the others."""
    return first_of([str(difference) for difference in sorted(differences)], NAMED_COUNT)
