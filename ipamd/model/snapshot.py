"""The whole content of the datastore at one moment, for readers that need rows which agree with each other.

Reading ENIs, then addresses, then attachments gives three moments, and a change between two of them looks like a contradiction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TypeVar

from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.branch import TABLE_BASE, BranchEni
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni, EniState
from ipamd.model.evidence import Doubts
from ipamd.model.family import IpAddress, family_of
from ipamd.model.ids import AttachmentKey, EniId, PodName
from ipamd.model.intent import Intent
from ipamd.model.record import dataclass, field, replace

# That DEL was done for a key: for some time a late ADD of it is refused (I4).


@dataclass(frozen=True, slots=True)
class Tombstone:
    """`at` is when DEL was done (aware UTC); `at_monotonic_s` the same on the machine's monotonic clock, None if not known."""

    at: datetime
    at_monotonic_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything by identity, in no order.

    `tombstones` says when DEL was done for a key; `intents` are the open ones. `cursor`: place in its /80 of what was given last.
    `identity`: what instance metadata last said of the node; None if it never did. `owed`: since when the network policy agent may
    know a pod's name. `was_lost`: rows of this boot were lost before these. `are_pods_marked`: a pod of this boot had the admission
    policy's mark.
    """

    enis: dict[EniId, Eni]
    addresses: dict[IpAddress, Address]
    attachments: dict[AttachmentKey, Attachment]
    tombstones: dict[AttachmentKey, Tombstone]
    intents: dict[str, Intent]
    doubts: Doubts = field(default_factory=Doubts)
    cursor: int = field(default=0, compare=False)
    identity: InstanceIdentity | None = field(default=None, compare=False)
    owed: dict[PodName, datetime] = field(default_factory=dict)
    was_lost: bool = field(default=False, compare=False)
    are_pods_marked: bool = field(default=False, compare=False)

    def copy(self) -> Snapshot:
        """The same rows in dictionaries of its own."""
        tables = dict(self.enis), dict(self.addresses), dict(self.attachments), dict(self.tombstones), dict(self.intents)
        facts = self.was_lost, self.are_pods_marked
        return Snapshot(*tables, self.doubts, self.cursor, self.identity, dict(self.owed), *facts)


def eni_place(eni: Eni) -> tuple[int, int, EniId]:
    """Sort key of ENIs: by network card, then device index; the ID settles ties, which a correct node does not have."""
    return eni.network_card, eni.device_index, eni.eni_id


# Compare memory with disk, and check what no constraint can say: pure comparisons that report and never repair.


K = TypeVar("K")
V = TypeVar("V")


def differences(memory: Snapshot, disk: Snapshot) -> list[str]:
    """Compare what is served with what is stored; one sentence per difference.

    A reserved address is free on disk, with the `since` it had then, or in a /80 without a row: a reservation promises nothing (I5).
    """
    addresses = dict(memory.addresses)
    for key, address in memory.addresses.items():
        if not address.has_row:
            del addresses[key]
        elif address.state is AddressState.RESERVED and (stored := disk.addresses.get(key)):
            addresses[key] = replace(
                address, state=AddressState.FREE, since=stored.since, owner=None, reason=stored.reason, other_address=None
            )
    return [
        *_compare("ENI", memory.enis, disk.enis),
        *_compare("address", addresses, disk.addresses),
        *_compare("attachment", memory.attachments, disk.attachments),
        *_compare("tombstone", memory.tombstones, disk.tombstones),
        *_compare("intent", memory.intents, disk.intents),
        *_compare("owed name", memory.owed, disk.owed),
        *_compare("doubt", memory.doubts.plausible, disk.doubts.plausible),
        *_compare("doubt", memory.doubts.any, disk.doubts.any),
    ]


def contradictions(snapshot: Snapshot) -> list[str]:
    """Check what SQL cannot: prefixes that hold their addresses, places on the instance, I4 and I6 across tables."""
    return [*_addresses(snapshot), *_attachments(snapshot), *_places(snapshot)]


def _compare(what: str, memory: Mapping[K, V], disk: Mapping[K, V]) -> Iterator[str]:
    for key in memory.keys() - disk.keys():
        yield f"{what} {key} is in memory but not on disk"
    for key in disk.keys() - memory.keys():
        yield f"{what} {key} is on disk but not in memory"
    for key in memory.keys() & disk.keys():
        if memory[key] != disk[key]:
            yield f"{what} {key} is {memory[key]} in memory but {disk[key]} on disk"


def _addresses(snapshot: Snapshot) -> Iterator[str]:
    primaries: dict[IpAddress, str] = {eni.primary_address: eni.eni_id for eni in snapshot.enis.values()}
    for address in snapshot.addresses.values():
        prefix = address.prefix
        if prefix is not None and (prefix.prefixlen != family_of(prefix).prefix_length or address.address not in prefix):
            yield f"address {address.address} is not in its prefix {prefix}"
        if address.address in primaries:
            yield f"address {address.address} is the primary one of {primaries[address.address]} (I6)"
        if address.is_lost and address.state is AddressState.FREE:
            yield f"address {address.address} is lost, and free all the same (I7)"
        if address.eni_id not in snapshot.enis:
            yield f"address {address.address} is on {address.eni_id}, which is not known"
        if address.state is AddressState.ASSIGNED and (address.owner is None or address.owner not in snapshot.attachments):
            yield f"address {address.address} is assigned to {address.owner}, which is not attached (I1)"


def _attachments(snapshot: Snapshot) -> Iterator[str]:
    for attachment in snapshot.attachments.values():
        address = snapshot.addresses.get(attachment.address)
        if attachment.branch is not None:
            others = (other for other in snapshot.attachments.values() if other.branch is not None)
            if problem := branch_conflict(
                BranchEni.of(attachment), attachment.key, row=address, others=others, enis=snapshot.enis.values()
            ):
                yield f"attachment {attachment.key}: {problem} (I1)"
        elif address is None or address.owner != attachment.key or address.eni_id != attachment.eni_id:
            yield f"attachment {attachment.key} has {attachment.address}, which is not assigned to it (I1)"
        elif address.other_address != attachment.other_address:
            yield f"attachment {attachment.key} has {attachment.other_address}, its address {address.other_address} (I1)"
        if attachment.key in snapshot.tombstones:
            yield f"attachment {attachment.key} lives although its DEL was done (I4)"


def branch_conflict(
    wanted: BranchEni, key: AttachmentKey, *, row: Address | None, others: Iterable[Attachment], enis: Iterable[Eni]
) -> str:
    """Say what of a branch ENI is somebody else's; "" if nothing is. What a stranger may have written must harm no other (I1, I6).

    Args:
        row: what the pool has of its address.
        others: all attachments.
        enis: the pool's, and every other one on record.
    """
    if row is not None:
        return f"address {wanted.address} is of the pool, on {row.eni_id}"
    for eni in enis:
        if eni.eni_id == wanted.eni_id:
            return f"{eni.eni_id} is attached to this node: it is no branch ENI"
        if wanted.address == eni.primary_address or wanted.mac == eni.mac:
            return f"{wanted.address} or {wanted.mac} is that of {eni.eni_id}"
        if eni.route_table == TABLE_BASE + wanted.vlan:
            return f"VLAN {wanted.vlan} means route table {eni.route_table}, which is that of {eni.eni_id}"
    for other in others:
        if other.key == key:
            continue
        branch = other.branch
        if branch and branch.vlan == wanted.vlan:
            return f"VLAN {wanted.vlan} is that of sandbox {other.key}"
        if wanted.address == other.address or wanted.eni_id == other.eni_id:
            return f"{wanted.eni_id} with {wanted.address} is that of sandbox {other.key}"
        if branch and branch.mac == wanted.mac:
            return f"MAC {wanted.mac} is that of sandbox {other.key}"
    return ""


def _places(snapshot: Snapshot) -> Iterator[str]:
    places: dict[tuple[int, int], str] = {}
    for eni in snapshot.enis.values():
        if eni.state is not EniState.DETACHING:
            other = places.setdefault((eni.network_card, eni.device_index), eni.eni_id)
            if other != eni.eni_id:
                yield f"ENIs {other} and {eni.eni_id} are both device {eni.device_index} of card {eni.network_card}"
