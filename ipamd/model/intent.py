"""Operations on EC2 as typed values, and the intents that record them. Pure.

An intent is recorded before the first EC2 call of an operation, and stays until EC2's answer is stored. A crash between these two
moments leaves an open intent, so nothing that EC2 created for us is lost (I9). On disk an intent is a kind and a dictionary of
strings: only this module names the keys (`decoded` and `encoded`). Unknown keys stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum

from ipamd.model.cloud import ConnectionTracking, all_addresses
from ipamd.model.eni import ADDRESSES_PER_PREFIX
from ipamd.model.eni_tags import POOL_TAG
from ipamd.model.family import IpAddress, IpNetwork, read_address, read_network
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.network_cards import card_of_pool
from ipamd.model.record import dataclass

SETTLED_AT = "settled_at_monotonic_s"
"""Key in the payload of a release: when its success was stored, on the monotonic clock. The intent stays as long as Describe may still
show the released objects, so that they are ignored even after a restart."""

OPENED_AT = "opened_at_monotonic_s"
"""Key in a payload: when the intent was opened, on the monotonic clock, which continues across restarts and is not stepped."""

DETACHED = "detached"
"""Value of the key `deleting` of a payload: EC2 was asked to detach the ENI, and has not refused. The key is recorded before the
request. It has the value "asked" instead in two cases: EC2 was asked to delete an ENI that was never in use and needed no detach, or
the detach was requested long ago and the ENI is attached nevertheless."""


class IntentKind(StrEnum):
    """The kind of change that an intent makes in EC2. The values are on disk."""

    CREATE_ENI = "create-eni"
    DELETE_ENI = "delete-eni"
    ASSIGN = "assign"
    UNASSIGN = "unassign"


class DeleteReason(StrEnum):
    """Why an ENI is deleted.

    RELEASED: it was in use and is not needed any more.
    UNATTACHED: it could not be attached.
    LEAKED: an earlier process created it, and its record was lost.
    USELESS: none of its addresses could be assigned.
    """

    RELEASED = "release"
    UNATTACHED = "unattached"
    LEAKED = "leaked"
    USELESS = "useless"


@dataclass(frozen=True, slots=True)
class Create:
    """Create an ENI and attach it.

    `device_index`: the place at which it is attached.
    `address_count`, `prefix_count`: the secondary addresses or /28s that it is created with. Both are 0 for an ENI of an IPv6 node,
        whose /80 is requested afterwards.
    `moves_left`: how many more times another device index may be tried.
    `eni_id`: the ID of the new ENI; None until it is known.
    `refused`: EC2's reason if it refused a call that was repeated because the outcome of the first call was not known; then the ENI
        that the first call may have created is searched for. Otherwise "".
    """

    subnet_id: SubnetId
    device_index: int
    address_count: int
    prefix_count: int
    tags: Mapping[str, str]
    security_group_ids: tuple[str, ...]
    connection_tracking: ConnectionTracking = ()
    moves_left: int = 0
    eni_id: EniId | None = None
    refused: str = ""

    @property
    def network_card(self) -> int:
        """The network card to which the ENI is attached, from the tag with its pool."""
        return card_of_pool(self.tags.get(POOL_TAG, ""))

    @property
    def expected_address_count(self) -> int:
        """How many addresses the pool may get from the new ENI. 0 if EC2 refused the repeated call, because then the ENI perhaps
        does not exist.
        """
        if self.refused:
            return 0
        return self.address_count + self.prefix_count * ADDRESSES_PER_PREFIX


@dataclass(frozen=True, slots=True)
class Assign:
    """Allocate `count` more addresses, or `count` more /28 prefixes, on an ENI."""

    eni_id: EniId
    count: int
    is_of_prefixes: bool = False

    @property
    def expected_address_count(self) -> int:
        """How many addresses the pool gets from this allocation."""
        return self.count * (ADDRESSES_PER_PREFIX if self.is_of_prefixes else 1)


@dataclass(frozen=True, slots=True)
class Unassign:
    """Release single addresses and whole prefixes of an ENI."""

    eni_id: EniId
    addresses: frozenset[IpAddress]
    prefixes: frozenset[IpNetwork]


@dataclass(frozen=True, slots=True)
class Delete:
    """Detach an ENI and delete it.

    `deletion_state`: the last request to EC2, as in the key `deleting` of a payload (see DETACHED); "" before the first request.
    `creation`: the operation that created the ENI, if this operation undoes it; else None.
    """

    eni_id: EniId
    reason: DeleteReason
    deletion_state: str = ""
    creation: Create | None = None


Operation = Create | Assign | Unassign | Delete


@dataclass(frozen=True, slots=True)
class Intent:
    """One operation as it is recorded.

    `opened_at`: when the intent was recorded (aware UTC).
    `payload`: the fields of the operation as strings (`encoded`).
    `client_token`: makes a repeated EC2 call idempotent; "" if the operation needs none.
    """

    intent_id: str
    kind: IntentKind
    opened_at: datetime
    payload: Mapping[str, str]
    client_token: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether its outcome is stored. Such an intent stays only because EC2 may still show the objects that it released."""
        return SETTLED_AT in self.payload

    @property
    def is_release(self) -> bool:
        """Whether it releases something to EC2: it releases addresses, or deletes an ENI, even if this undoes a creation.

        If IAM denies the call of one such intent, it probably denies the calls of all.
        """
        return self.kind in (IntentKind.UNASSIGN, IntentKind.DELETE_ENI) or "deleting" in self.payload

    @property
    def is_leaving(self) -> bool:
        """Whether EC2 is, or was, asked to detach an ENI. Then the ENI is not used, even if a Describe shows it attached (I7)."""
        return self.payload.get("why") == DeleteReason.RELEASED or self.payload.get("deleting") == DETACHED

    @property
    def eni_id(self) -> EniId:
        """The ENI of the operation; empty if it is not known."""
        return EniId(self.payload.get("eni_id", ""))

    @property
    def operation(self) -> Operation:
        """The recorded operation. Raises: ValueError if the payload is malformed."""
        return decoded(self.kind, self.payload)


def decoded(kind: IntentKind, payload: Mapping[str, str]) -> Operation:
    """Read an operation from the payload of an intent. Raises: ValueError if a field is missing or malformed."""
    try:
        match kind:
            case IntentKind.CREATE_ENI if "deleting" not in payload:
                return _create(payload)
            case IntentKind.CREATE_ENI | IntentKind.DELETE_ENI:
                return _delete(payload)
            case IntentKind.ASSIGN:
                return Assign(EniId(payload["eni_id"]), _count(payload, "count"), payload["of"] == "prefixes")
            case IntentKind.UNASSIGN:
                return Unassign(EniId(payload["eni_id"]), *_names(payload))
    except (KeyError, AttributeError) as exc:
        raise ValueError(f"{kind} intent: {exc!r} is missing or malformed") from exc


def encoded(operation: Operation) -> tuple[IntentKind, dict[str, str]]:
    """Return kind and payload of an operation; the inverse of `decoded`."""
    match operation:
        case Create():
            return IntentKind.CREATE_ENI, _create_payload(operation)
        case Assign():
            of = "prefixes" if operation.is_of_prefixes else "addresses"
            return IntentKind.ASSIGN, {"eni_id": operation.eni_id, "count": str(operation.count), "of": of}
        case Unassign():
            return IntentKind.UNASSIGN, {
                "eni_id": operation.eni_id,
                "addresses": ",".join(map(str, sorted(operation.addresses))),
                "prefixes": ",".join(map(str, sorted(operation.prefixes))),
            }
        case Delete():
            if operation.creation is None:
                return IntentKind.DELETE_ENI, _delete_payload(operation)
            return IntentKind.CREATE_ENI, _create_payload(operation.creation) | _delete_payload(operation)


def objects_to_release(intent: Intent) -> tuple[frozenset[IpAddress], frozenset[IpNetwork]]:
    """Return the single addresses and the prefixes that an intent releases. Raises: ValueError if the intent is malformed."""
    return _names(intent.payload)


def leaving_addresses(intents: Iterable[Intent]) -> frozenset[IpAddress]:
    """Return the addresses that EC2 is, or was, asked to release. They must not be assigned (I7).

    A malformed intent is left out, because its recovery reports it.
    """
    leaving: set[IpAddress] = set()
    for intent in intents:
        if intent.kind is IntentKind.UNASSIGN and not intent.is_settled:
            try:
                leaving |= all_addresses(*objects_to_release(intent))
            except ValueError:
                continue
    return frozenset(leaving)


def _create(payload: Mapping[str, str]) -> Create:
    return Create(
        subnet_id=SubnetId(payload["subnet_id"]),
        device_index=_count(payload, "device_index"),
        address_count=_count(payload, "address_count"),
        prefix_count=_count(payload, "prefix_count"),
        tags=json.loads(payload["tags"]),
        security_group_ids=tuple(payload["security_group_ids"].split(",")),
        connection_tracking=tuple(json.loads(payload["connection_tracking"]).items()),
        moves_left=_count(payload, "moves_left"),
        eni_id=EniId(payload["eni_id"]) if "eni_id" in payload else None,
        refused=payload.get("refused", ""),
    )


def _delete(payload: Mapping[str, str]) -> Delete:
    creation = _create(payload) if "device_index" in payload else None
    return Delete(EniId(payload["eni_id"]), DeleteReason(payload["why"]), payload.get("deleting", ""), creation)


def _create_payload(creation: Create) -> dict[str, str]:
    payload = {
        "subnet_id": str(creation.subnet_id),
        "device_index": str(creation.device_index),
        "moves_left": str(creation.moves_left),
        "address_count": str(creation.address_count),
        "prefix_count": str(creation.prefix_count),
        "tags": json.dumps(dict(creation.tags), sort_keys=True),
        "security_group_ids": ",".join(creation.security_group_ids),
        "connection_tracking": json.dumps(dict(creation.connection_tracking)),
    }
    if creation.eni_id:
        payload["eni_id"] = creation.eni_id
    if creation.refused:
        payload["refused"] = creation.refused
    return payload


def _delete_payload(deletion: Delete) -> dict[str, str]:
    payload = {"eni_id": str(deletion.eni_id), "why": str(deletion.reason)}
    if deletion.deletion_state:
        payload["deleting"] = deletion.deletion_state
    return payload


def _count(payload: Mapping[str, str], key: str) -> int:
    if not payload[key].isdecimal():
        raise ValueError(f"{key} is not a number: {payload[key]!r}")
    return int(payload[key])


def _names(payload: Mapping[str, str]) -> tuple[frozenset[IpAddress], frozenset[IpNetwork]]:
    addresses = (read_address(text) for text in payload.get("addresses", "").split(",") if text)
    prefixes = (read_network(text) for text in payload.get("prefixes", "").split(",") if text)
    return frozenset(addresses), frozenset(prefixes)
