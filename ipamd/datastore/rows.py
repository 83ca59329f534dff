"""Convert between rows and the model: the one place that knows how a value is spelled on disk.

Times are ISO 8601 in UTC, always with microseconds, so that text order is time order; addresses are dotted quads. An operator can
read both with `sqlite3`. Everything reads back equal to what was written.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from sqlalchemy import Connection, Row, Select, select

from ipamd.datastore import schema
from ipamd.model.absence import Absence, Doubts
from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment, NetnsIdentity, Origin
from ipamd.model.eni import Eni, EniState
from ipamd.model.history import HistoryRecord
from ipamd.model.ids import AttachmentKey, ContainerId, EniId, IfName
from ipamd.model.intent import Intent, IntentKind
from ipamd.model.snapshot import Snapshot, Tombstone

PLAUSIBLE, ANY = "plausible", "any"
"""Which answers of EC2 a row of `doubt` counts."""

Params = dict[str, str | int | float | bytes | None]
"""The values of one row by column."""

_ADDRESSES = select(
    *(schema.address.c[name] for name in ("address", "eni_id", "prefix", "state", "since", "container_id", "ifname")),
    *(schema.address.c[name] for name in ("cooling_until", "cooled_at_s", "reason", "since_monotonic_s")),
)

_AS_THEY_ARE = (
    *("eni_id", "route_table", "host_veth", "netns", "fingerprint", "result", "origin"),
    *("network_name", "pod_namespace", "pod_name", "pod_uid"),
)
"""Columns of an attachment that are spelled as the model has them."""

_LEDGER = ("event", "address", "container_id", "ifname", "eni_id", "detail")


def read_snapshot(connection: Connection) -> Snapshot:
    """Read every table that memory mirrors; on disk no address is reserved (I5).

    Raises: ValueError for a value that we do not write.
    """

    def rows(query: Select[Any]) -> list[Row[Any]]:
        return list(connection.execute(query).all())

    lost = {row.address: (read_time(row.since), row.reason) for row in rows(select(schema.lost))}
    attachments = [_attachment(row) for row in rows(select(schema.attachment))]
    return Snapshot(
        enis={eni.eni_id: eni for eni in map(_eni, rows(select(schema.eni)))},
        addresses={address.address: address for address in _addresses(rows(_ADDRESSES), lost)},
        attachments={attachment.key: attachment for attachment in attachments},
        tombstones={_key(row): Tombstone(read_time(row.at), row.at_monotonic_s) for row in rows(select(schema.tombstone))},
        intents={intent.intent_id: intent for intent in map(_intent, rows(select(schema.intent)))},
        doubts=_doubts(rows(select(schema.doubt))),
    )


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


def key_params(key: AttachmentKey) -> Params:
    """The primary key of an attachment or tombstone."""
    return {"container_id": key.container_id, "ifname": key.ifname}


def this_attachment(key: AttachmentKey) -> Params:
    """The same as parameters of WHERE."""
    return {"key_container_id": key.container_id, "key_ifname": key.ifname}


def eni_params(eni: Eni) -> Params:
    """Spell an ENI."""
    row = {column.name: getattr(eni, column.name) for column in schema.eni.columns}
    addresses = {"subnet_cidr": str(eni.subnet_cidr), "primary_address": str(eni.primary_address)}
    return {**row, **addresses, "excluded": eni.excluded or None}


def address_params(address: Address) -> Params:
    """Spell an address."""
    return {
        "address": str(address.address),
        "eni_id": address.eni_id,
        "prefix": None if address.prefix is None else str(address.prefix),
        "state": address.state.value,
        "since": time_text(address.since),
        "container_id": None if address.owner is None else address.owner.container_id,
        "ifname": None if address.owner is None else address.owner.ifname,
        "cooling_until": None if address.cooling_until is None else time_text(address.cooling_until),
        "cooled_at_s": address.cooldown_deadline_s,
        "since_monotonic_s": address.since_monotonic_s,
        "reason": address.reason,
    }


def doubt_params(doubts: Doubts) -> list[Params]:
    """Spell what EC2 did not show lately, a row for each ENI or address and kind of answers."""
    return [
        {
            "answers": answers,
            "subject": subject,
            "began_monotonic_s": absence.began_monotonic_s,
            "counted_monotonic_s": absence.counted_monotonic_s,
            "look_count": absence.look_count,
        }
        for answers, absences in ((PLAUSIBLE, doubts.plausible), (ANY, doubts.any))
        for subject, absence in absences.items()
    ]


def _doubts(rows: Iterable[Row[Any]]) -> Doubts:
    found: dict[str, dict[str, Absence]] = {PLAUSIBLE: {}, ANY: {}}
    for row in rows:
        found[row.answers][row.subject] = Absence(row.began_monotonic_s, row.counted_monotonic_s, row.look_count)
    return Doubts(found[PLAUSIBLE], found[ANY])


def lost_params(address: Address) -> Params:
    """Spell the mark of a lost address."""
    if address.lost_since is None:
        raise ValueError(f"{address.address} is not lost")
    return {"address": str(address.address), "since": time_text(address.lost_since), "reason": address.lost_reason}


def attachment_params(attachment: Attachment) -> Params:
    """Spell an attachment."""
    return {
        **{name: getattr(attachment, name) for name in _AS_THEY_ARE},
        **key_params(attachment.key),
        "address": str(attachment.address),
        "netns_device": attachment.netns_identity.device,
        "netns_inode": attachment.netns_identity.inode,
        "created_at": time_text(attachment.created_at),
    }


def intent_params(intent: Intent) -> Params:
    """Spell an intent."""
    return {
        "intent_id": intent.intent_id,
        "kind": intent.kind.value,
        "opened_at": time_text(intent.opened_at),
        "payload": json.dumps(dict(intent.payload), sort_keys=True),
        "client_token": intent.client_token,
    }


def ledger_params(record: HistoryRecord) -> Params:
    """Spell a ledger row: what it tells beside these is the history's alone."""
    return {"at": time_text(record.at), **{name: getattr(record, name) for name in _LEDGER}}


def read_record(row: Row[Any]) -> HistoryRecord:
    """Read a ledger row."""
    return HistoryRecord(read_time(row.at), **{name: getattr(row, name) for name in _LEDGER})


def _key(row: Row[Any]) -> AttachmentKey:
    return AttachmentKey(ContainerId(row.container_id), IfName(row.ifname))


def _eni(row: Row[Any]) -> Eni:
    addresses = {"subnet_cidr": IPv4Network(row.subnet_cidr), "primary_address": IPv4Address(row.primary_address)}
    flags = {name: bool(getattr(row, name)) for name in ("is_primary", "host_ready", "created_by_us", "managed")}
    return Eni(**{**row._mapping, **addresses, **flags, "state": EniState(row.state), "excluded": row.excluded or ""})


def _addresses(rows: Iterable[Sequence[Any]], lost: Mapping[str, tuple[datetime, str]]) -> Iterator[Address]:
    """Read the rows of `_ADDRESSES`. A node may have 11,760, so what many rows share (prefix, time, state) is parsed once."""
    network, moment, states = cache(IPv4Network), cache(read_time), {state.value: state for state in AddressState}
    for row in rows:
        text, eni_id, prefix, state, since, container_id, ifname, cooling_until, cooled_at_s, reason, since_monotonic_s = row
        if state not in states:
            raise ValueError(f"{state!r} is no state of an address")
        lost_since, lost_reason = lost.get(text, (None, ""))
        yield Address(
            _ip(text),
            EniId(eni_id),
            states[state],
            moment(since),
            None if prefix is None else network(prefix),
            None if container_id is None else AttachmentKey(ContainerId(container_id), IfName(ifname)),
            None if cooling_until is None else moment(cooling_until),
            reason,
            cooled_at_s,
            since_monotonic_s,
            lost_since,
            lost_reason,
        )


def _ip(text: str) -> IPv4Address:
    """Parse a dotted quad; five times as fast as `IPv4Address(text)`. Raises: ValueError."""
    try:
        return IPv4Address(socket.inet_pton(socket.AF_INET, text))
    except OSError as error:
        raise ValueError(f"{text!r} is no IPv4 address") from error


def _attachment(row: Row[Any]) -> Attachment:
    parsed = {
        "key": _key(row),
        "address": IPv4Address(row.address),
        "netns_identity": NetnsIdentity(row.netns_device, row.netns_inode),
        "created_at": read_time(row.created_at),
        "origin": Origin(row.origin),
    }
    return Attachment(**{**{name: getattr(row, name) for name in _AS_THEY_ARE}, **parsed})


def _intent(row: Row[Any]) -> Intent:
    return Intent(row.intent_id, IntentKind(row.kind), read_time(row.opened_at), json.loads(row.payload), row.client_token)
