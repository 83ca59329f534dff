"""What is recorded of this instance, as the comparisons with EC2 and with instance metadata need it: pure conversions.

EC2's answer is compared object by object, because one that is not shown has its own count of absences. Metadata is compared ENI by
ENI, each with its single addresses and whole prefixes, as it lists them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv4Address, IPv4Network

from ipamd.model.address import Address, AddressState
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni, EniState
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.snapshot import Snapshot

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
