"""Operations on EC2 as typed values, and the intents that record them, from before the first call until its answer is stored.

A crash in between leaves an open intent, so nothing that EC2 created for us is lost (I9). On disk an intent is a kind and a dictionary
of strings, as the release before wrote it and can read it: `decoded` and `encoded` are the one place that knows its keys. Keys that
are not known stay as they are. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum

from ipamd.model.cloud import ConnectionTracking, all_addresses
from ipamd.model.eni import ADDRESSES_PER_PREFIX
from ipamd.model.family import IpAddress, IpNetwork, read_address, read_network
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.record import dataclass

SETTLED_AT = "settled_at_monotonic_s"
"""Key in the payload of an intent that gave something back: when EC2 had done it and it was stored. The intent stays for as long as
Describe may still show what is gone, so that a restart knows it too."""

OPENED_AT = "opened_at_monotonic_s"
"""Key in a payload: when it was opened, on the monotonic clock, which continues across restarts and is not stepped."""


DETACHED = "detached"
"""In a payload, how far a deletion has come. Else it is "asked", as the release before writes it, which reads both alike."""


class IntentKind(StrEnum):
    """What an intent changes in EC2, as it is on disk."""

    CREATE_ENI = "create-eni"
    DELETE_ENI = "delete-eni"
    ASSIGN = "assign"
    UNASSIGN = "unassign"


class Why(StrEnum):
    """Why an ENI is deleted.

    RELEASED: it served and is not needed. UNATTACHED: it could not be attached. LEAKED: an earlier process made it and forgot it.
    USELESS: nobody could be given what is on it. The first is the word for it on disk.
    """

    RELEASED = "release"
    UNATTACHED = "unattached"
    LEAKED = "leaked"
    USELESS = "useless"


@dataclass(frozen=True, slots=True)
class Create:
    """Make an ENI and attach it; with neither addresses nor prefixes it is one of IPv6, whose /80 is asked for afterwards.

    `moves_left`: how often another device index may be tried. `eni_id`: of what was made, once it is known. `refused`: what EC2 said
    when it refused to repeat the call; from then on what the call made is searched for.
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
    def supply_count(self) -> int:
        """Addresses that may come with it: none once EC2 has refused to repeat the call, as it may never have been made."""
        return 0 if self.refused else self.address_count + self.prefix_count * ADDRESSES_PER_PREFIX


@dataclass(frozen=True, slots=True)
class Assign:
    """Allocate `count` more addresses on an ENI, or /28 prefixes."""

    eni_id: EniId
    count: int
    is_of_prefixes: bool = False

    @property
    def supply_count(self) -> int:
        """Addresses that come with it."""
        return self.count * (ADDRESSES_PER_PREFIX if self.is_of_prefixes else 1)


@dataclass(frozen=True, slots=True)
class Unassign:
    """Give single addresses and whole prefixes of an ENI back."""

    eni_id: EniId
    addresses: frozenset[IpAddress]
    prefixes: frozenset[IpNetwork]


@dataclass(frozen=True, slots=True)
class Delete:
    """Detach an ENI and delete it. `asked`: what EC2 was asked for last; DETACHED: to detach it, which EC2 has not refused.
    `creation`: which it ends."""

    eni_id: EniId
    why: Why
    asked: str = ""
    creation: Create | None = None


Operation = Create | Assign | Unassign | Delete


@dataclass(frozen=True, slots=True)
class Intent:
    """One operation as it is recorded. `payload` holds strings only; `client_token` makes a repeated call idempotent."""

    intent_id: str
    kind: IntentKind
    opened_at: datetime
    payload: Mapping[str, str]
    client_token: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether its outcome is known and stored; it only reminds of what EC2 may still show."""
        return SETTLED_AT in self.payload

    @property
    def is_release(self) -> bool:
        """Whether it releases or deletes: what IAM denies of one it denies of all, as far as anybody knows."""
        return self.kind in (IntentKind.UNASSIGN, IntentKind.DELETE_ENI) or "deleting" in self.payload

    @property
    def is_leaving(self) -> bool:
        """Whether EC2 is asked to detach an ENI, or was: nobody takes it into use, though a Describe shows it attached (I7)."""
        return Why.RELEASED in self.payload or self.payload.get("deleting") == DETACHED

    @property
    def eni_id(self) -> EniId:
        """The ENI that it is about; empty if it is not known."""
        return EniId(self.payload.get("eni_id", ""))

    @property
    def operation(self) -> Operation:
        """What it records. Raises: ValueError if it is malformed."""
        return decoded(self.kind, self.payload)


def decoded(kind: IntentKind, payload: Mapping[str, str]) -> Operation:
    """Read an operation. Raises: ValueError if something is missing or malformed."""
    try:
        match kind:
            case IntentKind.CREATE_ENI if "deleting" not in payload:
                return _create(payload)
            case IntentKind.CREATE_ENI | IntentKind.DELETE_ENI:
                why = next((one for one in (Why.RELEASED, Why.LEAKED) if one in payload), Why.UNATTACHED)
                creation = _create(payload) if "device_index" in payload else None
                return Delete(EniId(payload["eni_id"]), Why(payload.get("why", why)), payload.get("deleting", ""), creation)
            case IntentKind.ASSIGN:
                return Assign(EniId(payload["eni_id"]), _count(payload, "count"), payload.get("of") == "prefixes")
            case IntentKind.UNASSIGN:
                return Unassign(EniId(payload["eni_id"]), *_names(payload))
    except (KeyError, AttributeError) as exc:
        raise ValueError(f"{kind} intent: {exc!r} is missing or malformed") from exc


def encoded(operation: Operation) -> tuple[IntentKind, dict[str, str]]:
    """Write an operation, so that the release before understands it; the inverse of `decoded`."""
    match operation:
        case Create():
            payload = {
                "subnet_id": str(operation.subnet_id),
                "device_index": str(operation.device_index),
                "moves_left": str(operation.moves_left),
                "address_count": str(operation.address_count),
                "prefix_count": str(operation.prefix_count),
                "tags": json.dumps(dict(operation.tags), sort_keys=True),
                "security_group_ids": ",".join(operation.security_group_ids),
                "connection_tracking": json.dumps(dict(operation.connection_tracking)),
            }
            named = {"eni_id": operation.eni_id, "refused": operation.refused}
            return IntentKind.CREATE_ENI, payload | {key: value for key, value in named.items() if value}
        case Assign():
            of = "prefixes" if operation.is_of_prefixes else "addresses"
            return IntentKind.ASSIGN, {"eni_id": operation.eni_id, "count": str(operation.count), "of": of}
        case Unassign():
            names = {"addresses": operation.addresses, "prefixes": operation.prefixes}
            return IntentKind.UNASSIGN, {
                "eni_id": operation.eni_id,
                **{key: ",".join(map(str, sorted(value))) for key, value in names.items()},
            }
        case Delete():
            kind, payload = IntentKind.DELETE_ENI, {}
            if operation.creation is not None:
                kind, payload = encoded(operation.creation)
            marks = {"eni_id": str(operation.eni_id)}
            if operation.asked:
                marks["deleting"] = operation.asked
            if operation.why is Why.USELESS:
                marks["why"] = Why.USELESS  # the release before deletes it too, and does not say why
            elif operation.why is not Why.UNATTACHED:
                marks[operation.why] = "asked"
            return kind, payload | marks


def named(intent: Intent) -> tuple[frozenset[IpAddress], frozenset[IpNetwork]]:
    """Read what an intent releases: single addresses, and prefixes. Raises: ValueError if it is malformed."""
    return _names(intent.payload)


def leaving_addresses(intents: Iterable[Intent]) -> frozenset[IpAddress]:
    """Addresses that EC2 is being asked to take back, or was: nobody may be given them (I7). One malformed intent hides no other."""
    found: set[IpAddress] = set()
    for intent in intents:
        if intent.kind is IntentKind.UNASSIGN and not intent.is_settled:
            try:
                found |= all_addresses(*named(intent))
            except ValueError:
                continue  # its recovery reports it
    return frozenset(found)


def _create(payload: Mapping[str, str]) -> Create:
    left = payload.get("moves_left", "0")
    return Create(
        subnet_id=SubnetId(payload["subnet_id"]),
        device_index=_count(payload, "device_index"),
        address_count=_count(payload, "address_count"),
        prefix_count=_count(payload, "prefix_count"),
        tags=json.loads(payload["tags"]),
        security_group_ids=tuple(payload["security_group_ids"].split(",")),
        connection_tracking=tuple(json.loads(payload.get("connection_tracking", "{}")).items()),
        moves_left=int(left) if left.isdecimal() else 0,
        eni_id=EniId(payload["eni_id"]) if "eni_id" in payload else None,
        refused=payload.get("refused", ""),
    )


def _count(payload: Mapping[str, str], key: str) -> int:
    if not payload[key].isdecimal():
        raise ValueError(f"{key} is no number: {payload[key]!r}")
    return int(payload[key])


def _names(payload: Mapping[str, str]) -> tuple[frozenset[IpAddress], frozenset[IpNetwork]]:
    addresses = (read_address(text) for text in payload.get("addresses", "").split(",") if text)
    prefixes = (read_network(text) for text in payload.get("prefixes", "").split(",") if text)
    return frozenset(addresses), frozenset(prefixes)
