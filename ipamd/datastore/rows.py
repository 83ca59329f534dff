"""What is written and read: the statements, and how a value of the model is spelled in a row. The one place that knows it.

Times are ISO 8601 in UTC, always with microseconds, so that text order is time order; addresses are text. An operator can
read both with `sqlite3`. Everything reads back equal to what was written. The driver's adapters spell: it is given addresses and times
as they are. `_READERS` read, by the column's name.

Statements are built once, so that SQLAlchemy compiles each once. A parameter in WHERE shares its name with no column that the
statement sets: such are named `key_...`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Delete, Insert, Table, Update, bindparam, delete, insert, or_, select, tuple_, update
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from ipamd.datastore import schema
from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment, NetnsIdentity, Origin
from ipamd.model.branch import Branch
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni, EniState
from ipamd.model.evidence import Absence, Doubts
from ipamd.model.family import IPV4, IPV6, read_address, read_network
from ipamd.model.ids import AttachmentKey, PodName
from ipamd.model.intent import Intent, IntentKind
from ipamd.model.snapshot import Snapshot, Tombstone

Statement = Insert | Update | Delete

Params = dict[str, Any]
"""The values of one row by column."""


def _upsert(table: Table) -> Insert:
    """Add a row, or replace the one of the same primary key."""
    statement = sqlite_insert(table)
    changed = {column.name: statement.excluded[column.name] for column in table.columns if not column.primary_key}
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=changed)


def _delete(table: Table) -> Delete:
    """Delete the row of a primary key."""
    return delete(table).where(*(column == bindparam(column.name) for column in table.primary_key))


UPSERT_ENI, DELETE_ENI = _upsert(schema.eni), _delete(schema.eni)
UPSERT_TOMBSTONE, DELETE_TOMBSTONE = _upsert(schema.tombstone), _delete(schema.tombstone)
UPSERT_META = _upsert(schema.meta)
INSERT_INTENT, UPSERT_INTENT, DELETE_INTENT = insert(schema.intent), _upsert(schema.intent), _delete(schema.intent)
INSERT_ATTACHMENT, UPSERT_ATTACHMENT = insert(schema.attachment), _upsert(schema.attachment)
DELETE_ATTACHMENT = _delete(schema.attachment)
INSERT_BRANCH, UPSERT_BRANCH, DELETE_BRANCH = insert(schema.branch), _upsert(schema.branch), _delete(schema.branch)
INSERT_LOST, DELETE_LOST = insert(schema.lost), _delete(schema.lost)
INSERT_OWED, DELETE_OWED = insert(schema.owed), _delete(schema.owed)
INSERT_DOUBT, DELETE_DOUBTS = insert(schema.doubt), delete(schema.doubt)

INSERT_PREFIX = sqlite_insert(schema.prefix).on_conflict_do_nothing()
"""One that is there may be another ENI's: then the reference of the address that is added next is refused."""

DELETE_EMPTY_PREFIXES = delete(schema.prefix).where(
    schema.prefix.c.prefix.not_in(select(schema.address.c.prefix).where(schema.address.c.prefix.is_not(None)))
)

_this_address = (
    schema.address.c.address == bindparam("key_address"),
    schema.address.c.state == bindparam("key_state"),  # compare and set: memory and disk must agree on what it was
)
INSERT_ADDRESS = insert(schema.address)
UPDATE_ADDRESS, UPDATE_OTHER_ADDRESS = (update(schema.address).where(*_this_address) for _ in range(2))
DELETE_ADDRESS = delete(schema.address).where(*_this_address)

_is_lost_and_free = (
    schema.address.c.state == AddressState.FREE.value,
    schema.address.c.address.in_(select(schema.lost.c.address)),
)
_is_of_others = or_(
    schema.branch.c.address.in_(select(schema.address.c.address)),
    schema.branch.c.address.in_(select(schema.eni.c.primary_address)),
    schema.branch.c.eni_id.in_(select(schema.eni.c.eni_id)),
    tuple_(schema.branch.c.container_id, schema.branch.c.ifname).in_(
        select(schema.attachment.c.container_id, schema.attachment.c.ifname)
    ),
)
FALSE_BRANCHES = select(
    schema.branch.c.container_id, schema.branch.c.ifname, schema.branch.c.address, schema.branch.c.eni_id
).where(_is_of_others)
DELETE_FALSE_BRANCHES = delete(schema.branch).where(_is_of_others)
"""Those that a release which does not know the table has contradicted."""

LOST_FREE = select(schema.address.c.address).where(*_is_lost_and_free)
DELETE_LOST_FREE = delete(schema.address).where(*_is_lost_and_free)


def time_text(moment: datetime) -> str:
    """Spell an aware time. Raises: ValueError for a naive one."""
    if moment.tzinfo is not UTC:
        if moment.tzinfo is None:
            raise ValueError(f"{moment} has no time zone")
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="microseconds")


def read_time(text: str) -> datetime:
    """Read what `time_text` wrote. Raises: ValueError."""
    return datetime.fromisoformat(text).astimezone(UTC)


for _kind in (IPv4Address, IPV4.address, IPV4.network, IPv6Address, IPV6.address, IPV6.network):
    sqlite3.register_adapter(_kind, str)  # of a class, and of none that is derived from it
sqlite3.register_adapter(datetime, time_text)

_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("since", "cooling_until", "at", "opened_at", "created_at"), read_time),
    "address": read_address,
    "prefix": read_network,
    "primary_address": IPv4Address,
    "other_address": read_address,
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
    """Read every table that memory mirrors; on disk no address is reserved (I5).

    Raises: ValueError for a value that we do not write.
    """

    def rows(table: Table) -> Iterator[Params]:
        names = [column.name for column in table.columns]
        # A node may have 11,760 addresses, so what many rows share (prefix, time, state) is read once.
        readers = [_READERS.get(str(column)) or _READERS.get(column.name) for column in table.columns]
        reads = [reader and cache(reader) for reader in readers]
        for row in connection.execute(select(table)):
            values = zip(names, reads, row, strict=True)
            yield {name: read(value) if read and value is not None else value for name, read, value in values}

    def taken_key(row: Params) -> AttachmentKey:
        return AttachmentKey(row.pop("container_id"), row.pop("ifname"))

    found = Snapshot({}, {}, {}, {}, {})
    lost = {row["address"]: row for row in rows(schema.lost)}
    for row in rows(schema.eni):
        found.enis[row["eni_id"]] = Eni(**{**row, "excluded": row["excluded"] or ""})
    for row in rows(schema.address):
        mark = lost.get(row["address"], {"since": None, "reason": ""})
        row |= {"cooldown_deadline_s": row.pop("cooled_at_s"), "lost_since": mark["since"], "lost_reason": mark["reason"]}
        owner = taken_key(row)
        found.addresses[row["address"]] = Address(**row, owner=owner if owner.container_id else None)
    for row in (*rows(schema.attachment), *rows(schema.branch)):
        key = taken_key(row)
        identity = NetnsIdentity(row.pop("netns_device"), row.pop("netns_inode"))
        if "vlan" in row:
            branch = Branch(**{name: row.pop(name) for name in _HOW_IT_IS_LED})
            row |= {"branch": branch, "route_table": branch.route_table}
        found.attachments[key] = Attachment(**row, key=key, netns_identity=identity)
    for row in rows(schema.tombstone):
        key = taken_key(row)
        found.tombstones[key] = Tombstone(**row)
    for row in rows(schema.intent):
        found.intents[row["intent_id"]] = Intent(**row)
    for row in rows(schema.doubt):
        absences, subject = getattr(found.doubts, row.pop("answers")), row.pop("subject")
        absences[subject] = Absence(**row)
    for row in rows(schema.owed):
        since = row.pop("since")
        found.owed[PodName(**row)] = since
    meta = {row.name: row.value for row in connection.execute(select(schema.meta))}
    cursor, known = int(meta.get(schema.CURSOR, 0)), _read_identity(meta.get(schema.IDENTITY, ""))
    are_marked = schema.MARKED_AT in meta
    return replace(found, cursor=cursor, identity=known, was_lost=schema.LOST_AT in meta, are_pods_marked=are_marked)


def spell_identity(identity: InstanceIdentity) -> str:
    """Spell who the node is."""
    return json.dumps(asdict(identity), default=str, sort_keys=True)


def _read_identity(text: str) -> InstanceIdentity | None:
    """None if nothing is written, or nothing that this release understands: instance metadata says it again."""
    with suppress(ValueError, TypeError, LookupError):
        row = json.loads(text)
        row |= {"vpc_cidrs": tuple(map(IPv4Network, row["vpc_cidrs"])), "subnet_cidr": IPv4Network(row["subnet_cidr"])}
        row |= {"primary_address": IPv4Address(row["primary_address"]), "security_group_ids": tuple(row["security_group_ids"])}
        return InstanceIdentity(**row)
    return None


def key_params(key: AttachmentKey | None, *, nobody: str | None = "") -> Params:
    """The primary key of an attachment or tombstone; `nobody` where there is none."""
    return {"container_id": key.container_id if key else nobody, "ifname": key.ifname if key else nobody}


def spelling(table: Table, *others: str, **paths: str) -> Callable[[Any], Params]:
    """Spell those columns of a row that are fields of a value, all but the `others`; `paths`: by column, a field of another name."""
    names = [column.name for column in table.columns if column.name not in others]
    read = attrgetter(*(paths.get(name, name) for name in names))
    return lambda value: dict(zip(names, read(value), strict=True))


_PLACE = ("address", "eni_id", "prefix")
_spell_state = spelling(schema.address, *_PLACE, "container_id", "ifname", cooled_at_s="cooldown_deadline_s")
spell_tombstone = spelling(schema.tombstone, "container_id", "ifname")
_OF_ATTACHMENT = {
    "container_id": "key.container_id",
    "ifname": "key.ifname",
    "netns_device": "netns_identity.device",
    "netns_inode": "netns_identity.inode",
}
_HOW_IT_IS_LED = ("vlan", "mac", "gateway", "is_strict")
attachment_params = spelling(schema.attachment, **_OF_ATTACHMENT)
branch_params = spelling(schema.branch, **_OF_ATTACHMENT, **{name: f"branch.{name}" for name in _HOW_IT_IS_LED})


def state_params(address: Address) -> Params:
    """Spell what changes of an address. Its ENI and prefix do not; set to itself, it would be looked up in all that refers to it."""
    return _spell_state(address) | key_params(address.owner, nobody=None)


def address_params(address: Address) -> Params:
    """Spell an address."""
    return {name: getattr(address, name) for name in _PLACE} | state_params(address)


def doubt_params(doubts: Doubts) -> list[Params]:
    """Spell what EC2 did not show lately, a row for each ENI or address and kind of answers."""
    return [
        {"answers": answers, "subject": subject, **absence}
        for answers, absences in asdict(doubts).items()
        for subject, absence in absences.items()
    ]


def intent_params(intent: Intent) -> Params:
    """Spell an intent."""
    return spelling(schema.intent, "payload")(intent) | {"payload": json.dumps(dict(intent.payload), sort_keys=True)}
