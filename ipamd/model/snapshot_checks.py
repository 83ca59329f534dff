"""Compare memory with disk, and check rules that no SQL constraint can express. Pure: differences are reported, never repaired."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.eni import EniState
from ipamd.model.family import IpAddress, family_of
from ipamd.model.legs.conflict import recorded_conflict
from ipamd.model.record import replace
from ipamd.model.snapshot import Snapshot

K = TypeVar("K")

V = TypeVar("V")


def differences(memory: Snapshot, disk: Snapshot) -> list[str]:
    """Compare memory with disk; one sentence per difference.

    A reserved address is free on disk, with its former `since`; in a /80 it has no row there (I5).
    """
    addresses = dict(memory.addresses)
    for key, address in memory.addresses.items():
        if not address.has_row:
            del addresses[key]
            continue
        stored = disk.addresses.get(key)
        if address.state is AddressState.RESERVED and stored is not None:
            addresses[key] = replace(
                address, state=AddressState.FREE, since=stored.since, owner=None, reason=stored.reason, other_address=None
            )
    return [
        *_compare("ENI", memory.enis, disk.enis),
        *_compare("address", addresses, disk.addresses),
        *_compare("attachment", memory.attachments, disk.attachments),
        *_compare("tombstone", memory.tombstones, disk.tombstones),
        *_compare("intent", memory.intents, disk.intents),
        *_compare("policy pod", memory.policy_pods, disk.policy_pods),
        *_compare("doubt", memory.doubts.plausible, disk.doubts.plausible),
        *_compare("doubt", memory.doubts.any, disk.doubts.any),
    ]


def contradictions(snapshot: Snapshot) -> list[str]:
    """Check rules that SQL cannot express: prefixes contain their addresses, places on the instance are unique, and I1, I4, I6 and I7
    hold. Returns: one sentence for each contradiction.
    """
    return [*_addresses(snapshot), *_attachments(snapshot), *_places(snapshot)]


def _compare(noun: str, memory: Mapping[K, V], disk: Mapping[K, V]) -> Iterator[str]:
    for key in memory.keys() - disk.keys():
        yield f"{noun} {key} is in memory but not on disk"
    for key in disk.keys() - memory.keys():
        yield f"{noun} {key} is on disk but not in memory"
    for key in memory.keys() & disk.keys():
        if memory[key] != disk[key]:
            yield f"{noun} {key} is {memory[key]} in memory but {disk[key]} on disk"


def _addresses(snapshot: Snapshot) -> Iterator[str]:
    primaries: dict[IpAddress, str] = {eni.primary_address: eni.eni_id for eni in snapshot.enis.values()}
    for address in snapshot.addresses.values():
        if _is_outside_its_prefix(address):
            yield f"address {address.address} is not in its prefix {address.prefix}"
        if address.address in primaries:
            yield f"address {address.address} is the primary one of {primaries[address.address]} (I6)"
        if address.is_lost and address.state is AddressState.FREE:
            yield f"address {address.address} is lost and free (I7)"
        if address.eni_id not in snapshot.enis:
            yield f"address {address.address} is on {address.eni_id}, which is not known"
        if address.state is AddressState.ASSIGNED and address.owner not in snapshot.attachments:
            yield f"address {address.address} is assigned to {address.owner}, which is not attached (I1)"


def _is_outside_its_prefix(address: Address) -> bool:
    """Whether the prefix of an address does not contain the address, or is neither a /28 nor a /80."""
    prefix = address.prefix
    if prefix is None:
        return False
    return prefix.prefixlen != family_of(prefix).prefix_length or address.address not in prefix


def _attachments(snapshot: Snapshot) -> Iterator[str]:
    for attachment in snapshot.attachments.values():
        if attachment.is_of_pool:
            problem = _address_problem(attachment, snapshot.addresses.get(attachment.address))
        else:
            problem = recorded_conflict(attachment, snapshot)
        if problem:
            yield f"attachment {attachment.key}{problem} (I1)"
        if attachment.key in snapshot.tombstones:
            yield f"attachment {attachment.key} lives although its DEL was done (I4)"


def _address_problem(attachment: Attachment, row: Address | None) -> str:
    """Return why the row of an attachment's address does not fit the attachment, as the end of a sentence; "" if it fits."""
    if row is None or row.owner != attachment.key or row.eni_id != attachment.eni_id:
        return f" has {attachment.address}, which is not assigned to it"
    if row.other_address != attachment.other_address:
        return f" has {attachment.other_address}, its address {row.other_address}"
    return ""


def _places(snapshot: Snapshot) -> Iterator[str]:
    places: dict[tuple[int, int], str] = {}
    for eni in snapshot.enis.values():
        if eni.state is EniState.DETACHING:
            continue
        other = places.setdefault((eni.network_card, eni.device_index), eni.eni_id)
        if other != eni.eni_id:
            yield f"ENIs {other} and {eni.eni_id} are both device {eni.device_index} of card {eni.network_card}"
