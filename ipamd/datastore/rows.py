"""The SQL statements, and the conversion between values of the model and rows.

Times are stored as ISO 8601 text in UTC, always with microseconds, so that text order is time order; addresses are stored as text.
An operator can read these texts with `sqlite3`. To write, addresses and times are passed to the driver unchanged, and its adapters
convert them. To read, `_READERS` convert by column name. Every value reads back equal to the one that was written.

Statements are built once, so that SQLAlchemy compiles each once. Parameters of a WHERE clause are named `key_...`, so that they do not
clash with the columns that the statement sets.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from itertools import chain
from typing import Any

from sqlalchemy import Column, Connection, Table, bindparam, delete, insert, select, update
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from ipamd.datastore import schema
from ipamd.datastore.columns import READER
from ipamd.datastore.legs.uplinked_rows import is_uplinked, pop_uplink
from ipamd.datastore.statements import AttachmentRows, Params, delete_row, spelling, upsert
from ipamd.model.absences import Absence, Doubts
from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment, Origin
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.cni_request import NetnsIdentity
from ipamd.model.eni import Eni, EniState
from ipamd.model.family import IPV4, IPV6, read_address, read_network
from ipamd.model.ids import AttachmentKey, PodName
from ipamd.model.intent import Intent, IntentKind
from ipamd.model.snapshot import Snapshot
from ipamd.model.tombstone import Tombstone

UPSERT_ENI, DELETE_ENI = upsert(schema.eni), delete_row(schema.eni)
UPSERT_TOMBSTONE, DELETE_TOMBSTONE = upsert(schema.tombstone), delete_row(schema.tombstone)
UPSERT_META = upsert(schema.meta)
INSERT_INTENT, UPSERT_INTENT, DELETE_INTENT = insert(schema.intent), upsert(schema.intent), delete_row(schema.intent)
POOL_ROWS = AttachmentRows.of(schema.attachment)
"""The statements for attachments that have an address of the pool."""

INSERT_LOST, DELETE_LOST = insert(schema.lost), delete_row(schema.lost)
INSERT_POLICY_POD, DELETE_POLICY_POD = insert(schema.owed), delete_row(schema.owed)
INSERT_DOUBT, DELETE_DOUBTS = insert(schema.doubt), delete(schema.doubt)

INSERT_PREFIX = sqlite_insert(schema.prefix).on_conflict_do_nothing()
"""If the prefix is recorded for another ENI, nothing is inserted, and a foreign key then refuses the addresses of the prefix."""

DELETE_EMPTY_PREFIXES = delete(schema.prefix).where(
    schema.prefix.c.prefix.not_in(select(schema.address.c.prefix).where(schema.address.c.prefix.is_not(None)))
)

_this_address = (
    schema.address.c.address == bindparam("key_address"),
    schema.address.c.state == bindparam("key_state"),  # compare and set: memory and disk must agree on the old state
)
INSERT_ADDRESS = insert(schema.address)
UPDATE_ADDRESS, UPDATE_OTHER_ADDRESS = (update(schema.address).where(*_this_address) for _ in range(2))
DELETE_ADDRESS = delete(schema.address).where(*_this_address)

_is_lost_and_free = (
    schema.address.c.state == AddressState.FREE.value,
    schema.address.c.address.in_(select(schema.lost.c.address)),
)
LOST_FREE = select(schema.address.c.address).where(*_is_lost_and_free)
DELETE_LOST_FREE = delete(schema.address).where(*_is_lost_and_free)


def time_text(moment: datetime) -> str:
    """Convert a time to text. Raises: ValueError for a naive time."""
    if moment.tzinfo is not UTC:
        if moment.tzinfo is None:
            raise ValueError(f"{moment} has no time zone")
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="microseconds")


def read_time(text: str) -> datetime:
    """Convert the text of `time_text` to a time. Raises: ValueError."""
    return datetime.fromisoformat(text).astimezone(UTC)


for _kind in (IPv4Address, IPV4.address, IPV4.network, IPv6Address, IPV6.address, IPV6.network):
    sqlite3.register_adapter(_kind, str)  # each class, because an adapter does not apply to subclasses
sqlite3.register_adapter(datetime, time_text)

_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("since", "cooling_until", "at", "opened_at", "created_at"), read_time),
    "address": read_address,
    "prefix": read_network,
    "primary_address": IPv4Address,
    "gateway": read_address,
    "subnet_cidr": IPv4Network,
    **dict.fromkeys(("is_primary", "host_ready", "created_by_us", "managed", "is_strict"), bool),
    "eni.state": EniState,
    "address.state": AddressState,
    "origin": Origin,
    "kind": IntentKind,
    "payload": json.loads,
}


def read_snapshot(connection: Connection) -> Snapshot:
    """Read every table that is mirrored in memory.

    Returns: the rows. None of the addresses is RESERVED, because reservations exist only in memory (I5).
    Raises: ValueError for a value that this release does not write.
    """
    snapshot = Snapshot({}, {}, {}, {}, {})
    lost_marks = {row["address"]: row for row in _read_rows(connection, schema.lost)}
    for row in _read_rows(connection, schema.eni):
        snapshot.enis[row["eni_id"]] = _eni_of(row)
    for row in _read_rows(connection, schema.address):
        snapshot.addresses[row["address"]] = _address_of(row, lost_mark=lost_marks.get(row["address"]))
    for row in chain.from_iterable(_read_rows(connection, table) for table in schema.ATTACHMENT_TABLES):
        attachment = _attachment_of(row)
        snapshot.attachments[attachment.key] = attachment
    for row in _read_rows(connection, schema.tombstone):
        key = _pop_key(row)
        snapshot.tombstones[key] = Tombstone(**row)
    for row in _read_rows(connection, schema.intent):
        snapshot.intents[row["intent_id"]] = Intent(**row)
    _read_doubts(connection, snapshot)
    for row in _read_rows(connection, schema.owed):
        since = row.pop("since")
        snapshot.policy_pods[PodName(**row)] = since
    return _with_meta(snapshot, {row.name: row.value for row in connection.execute(select(schema.meta))})


def _read_rows(connection: Connection, table: Table) -> Iterator[Params]:
    """Yield the rows of a table, each value in the type of the model."""
    names = [column.name for column in table.columns]
    # A node may have 11,760 addresses, and many have the same prefix, time and state. So each distinct value is converted only once.
    readers = [_reader_of(column) for column in table.columns]
    reads = [reader and cache(reader) for reader in readers]
    for row in connection.execute(select(table)):
        values = zip(names, reads, row, strict=True)
        yield {name: read(value) if read and value is not None else value for name, read, value in values}


def _reader_of(column: Column[Any]) -> Callable[[Any], Any] | None:
    """Return the function that converts a stored value of a column; None if the value is used as it is."""
    return _READERS.get(str(column)) or _READERS.get(column.name) or column.info.get(READER)


def _pop_key(row: Params) -> AttachmentKey:
    """Remove the sandbox's key from a row, and return it."""
    return AttachmentKey(row.pop("container_id"), row.pop("ifname"))


def _eni_of(row: Params) -> Eni:
    return Eni(**{**row, "excluded": row["excluded"] or "", "pool": row["pool"] or ""})


def _address_of(row: Params, *, lost_mark: Params | None) -> Address:
    """Build an address from its row; the dictionary `row` is changed. `lost_mark`: the row of the address in table `lost`, if any."""
    row["cooldown_deadline_s"] = row.pop("cooled_at_s")
    if lost_mark is not None:
        row |= {"lost_since": lost_mark["since"], "lost_reason": lost_mark["reason"]}
    owner = _pop_key(row)
    return Address(**row, owner=owner if owner.container_id else None)


def _attachment_of(row: Params) -> Attachment:
    """Build an attachment from its row in one of `ATTACHMENT_TABLES`; the dictionary `row` is changed."""
    key = _pop_key(row)
    identity = NetnsIdentity(row.pop("netns_device"), row.pop("netns_inode"))
    if is_uplinked(row):
        row |= pop_uplink(row)
    return Attachment(**row, key=key, netns_identity=identity)


def _read_doubts(connection: Connection, snapshot: Snapshot) -> None:
    for row in _read_rows(connection, schema.doubt):
        absences, subject = getattr(snapshot.doubts, row.pop("answers")), row.pop("subject")
        absences[subject] = Absence(**row)


def _with_meta(snapshot: Snapshot, meta: Mapping[str, str]) -> Snapshot:
    """Add the single facts that are rows of table `meta`."""
    return replace(
        snapshot,
        cursor=int(meta.get(schema.CURSOR, 0)),
        identity=_read_identity(meta.get(schema.IDENTITY, "")),
        was_lost=schema.LOST_AT in meta,
        are_pods_marked=schema.MARKED_AT in meta,
        unplaced=_read_keys(meta.get(schema.UNPLACED, "")),
    )


def spell_keys(keys: Iterable[AttachmentKey]) -> str:
    """Convert keys of sandboxes to JSON."""
    return json.dumps(sorted(map(str, keys)))


def _read_keys(text: str) -> frozenset[str] | None:
    """Read the JSON of `spell_keys`; None if the file has none, because no restore of it has finished, or if it is not readable."""
    with suppress(ValueError):
        keys = json.loads(text)
        if isinstance(keys, list):
            return frozenset(map(str, keys))
    return None


def spell_identity(identity: InstanceIdentity) -> str:
    """Convert the node's identity to JSON."""
    return json.dumps(asdict(identity), default=str, sort_keys=True)


def _read_identity(text: str) -> InstanceIdentity | None:
    """Read the node's identity; None if none is stored or this release cannot read it: it is then read from instance metadata."""
    with suppress(ValueError, TypeError, LookupError):
        row = json.loads(text)
        row |= {"vpc_cidrs": tuple(map(IPv4Network, row["vpc_cidrs"])), "subnet_cidr": IPv4Network(row["subnet_cidr"])}
        row |= {"primary_address": IPv4Address(row["primary_address"]), "security_group_ids": tuple(row["security_group_ids"])}
        return InstanceIdentity(**row)
    return None


def key_params(key: AttachmentKey | None, *, nobody: str | None = "") -> Params:
    """Return the columns of an attachment key; each has the value `nobody` if there is no key."""
    if key is None:
        return {"container_id": nobody, "ifname": nobody}
    return {"container_id": key.container_id, "ifname": key.ifname}


_PLACE = ("address", "eni_id", "prefix")
_spell_state = spelling(schema.address, *_PLACE, "container_id", "ifname", cooled_at_s="cooldown_deadline_s")
spell_tombstone = spelling(schema.tombstone, "container_id", "ifname")


def state_params(address: Address) -> Params:
    """Return the columns of an address that may change. ENI and prefix never change, so they are left out: if an UPDATE set them,
    SQLite would check all references.
    """
    return _spell_state(address) | key_params(address.owner, nobody=None)


def address_params(address: Address) -> Params:
    """Return the row of an address."""
    return {name: getattr(address, name) for name in _PLACE} | state_params(address)


def doubt_params(doubts: Doubts) -> list[Params]:
    """Return the rows of the doubts: one for each ENI or address in each field of `Doubts`."""
    rows = []
    for answers, absences in asdict(doubts).items():
        for subject, absence in absences.items():
            rows.append({"answers": answers, "subject": subject, **absence})
    return rows


def intent_params(intent: Intent) -> Params:
    """Return the row of an intent."""
    return spelling(schema.intent, "payload")(intent) | {"payload": json.dumps(dict(intent.payload), sort_keys=True)}
