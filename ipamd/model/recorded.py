"""What is recorded of this instance, as a comparison with EC2 needs it: a pure conversion of the datastore's snapshot."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv4Address

from ipamd.model.address import AddressState
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import EniState
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
