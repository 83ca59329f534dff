"""What instance metadata shows against what is recorded, by content. Pure: no request, no clock.

Metadata costs no EC2 call and is looked at all the time, but it lags, it may stay frozen for hours (amazon-vpc-cni-k8s issue 2497),
and it may show a deleted ENI after 105 minutes (issue 359). So a difference removes nothing (I7): it is a reason to ask EC2, once for
each distinct difference, and again once an hour while it lasts. Lists are compared member by member: lists of equal length may differ
(issues 3019 and 3887), and what our own calls changed lately is no difference.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from ipamd.model.cloud import MetadataEni
from ipamd.model.eni import EniState
from ipamd.model.family import IpAddress, IpNetwork, family_of, members
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.record import dataclass
from ipamd.model.snapshot import Snapshot
from ipamd.model.words import first_of

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


Candidate = tuple[DifferenceKind, MacAddress, EniId | IpAddress | IpNetwork, EniId]
"""A difference, with what it is about and the ENI that it is on."""


@dataclass(frozen=True, slots=True)
class Recent:
    """What must not count as a difference: what our own calls changed lately, and whether a call of ours is under way.

    `removed`: ENIs and addresses, each with the ENI that it was on; an address that is shown on another one is news. `is_growing`: an
    intent that adds is open, so metadata may show what its answer has not told us yet.
    """

    added: Collection[EniId | IpAddress] = ()
    removed: Collection[tuple[EniId | IpAddress, EniId]] = ()
    is_growing: bool = False

    def covers(self, kind: DifferenceKind, found: EniId | IpAddress | IpNetwork, *, on: EniId) -> bool:
        """Whether a difference, of what is shown or recorded on an ENI, is explained by what we did."""
        if kind is DifferenceKind.UNKNOWN and self.is_growing:
            return True
        key = members(found)[0] if isinstance(found, IpNetwork) else found
        return key in self.added or (key, on) in self.removed


def differences(
    recorded: Snapshot,
    listed: Mapping[MacAddress, MetadataEni | None],
    *,
    left_alone: Mapping[EniId, MacAddress | None],
    recent: Recent,
) -> tuple[frozenset[Difference], frozenset[Difference]]:
    """Compare the ENIs by MAC, and what was read of each that is ours and attached; not what EC2 was found not to show (lost).

    Args:
        listed: each with what was read of it, None if it was not.
        left_alone: ENIs that EC2 has shown and that are not recorded, with the MAC by which metadata has shown them, if it has: one
            that goes frees a place that nobody else would notice.
    Returns: differences of the list, and those of what was read.
    """
    absent, unknown = DifferenceKind.ABSENT, DifferenceKind.UNKNOWN
    enis = {eni.mac: eni for eni in recorded.enis.values()}
    expected = {mac: eni_id for eni_id, mac in left_alone.items() if mac is not None}
    expected |= {eni.mac: eni.eni_id for eni in enis.values() if eni.state is EniState.ATTACHED}
    in_list: list[Candidate] = [(absent, mac, eni_id, eni_id) for mac, eni_id in expected.items() if mac not in listed]
    in_enis: list[Candidate] = []
    known = [row for row in recorded.addresses.values() if not row.is_lost]
    for mac, shown in listed.items():
        eni = enis.get(mac)
        if eni is not None and eni.state is EniState.DETACHING:  # attached again, perhaps, and its sandboxes need it
            in_list.append((DifferenceKind.BACK, mac, eni.eni_id, eni.eni_id))
        elif shown is None:
            continue
        elif eni is None:
            if shown.eni_id not in left_alone:
                in_list.append((unknown, mac, shown.eni_id, shown.eni_id))
        elif shown.eni_id != eni.eni_id:
            in_enis.append((unknown, mac, shown.eni_id, shown.eni_id))
        elif mac in expected and eni.managed and not recent.covers(absent, eni.eni_id, on=eni.eni_id):
            ours = {eni.primary_address, *(row.prefix or row.address for row in known if row.eni_id == eni.eni_id)}
            theirs = shown.addresses | shown.prefixes
            in_enis += [(absent, mac, one, eni.eni_id) for one in ours - theirs]
            for one in theirs - ours:
                is_sparse = isinstance(one, IpNetwork) and family_of(one).is_sparse
                if not (is_sparse and any(row.prefix for row in known)):  # of /80s one serves, whatever else is there
                    in_enis.append((unknown, mac, one, eni.eni_id))
    of_list, of_enis = (
        frozenset(Difference(mac, kind, str(what)) for kind, mac, what, on in found if not recent.covers(kind, what, on=on))
        for found in (in_list, in_enis)
    )
    return of_list, of_enis


def sentence(differences: Collection[Difference]) -> str:
    """Name the first NAMED_COUNT differences and count the rest."""
    return first_of([str(one) for one in sorted(differences)], NAMED_COUNT)
