"""The statements of a unit of work, built once so that SQLAlchemy compiles each once.

Parameters in WHERE are named `key_...`: a bind parameter must not share its name with a column that the statement sets.
"""

from __future__ import annotations

from sqlalchemy import Delete, Insert, Update, bindparam, delete, exists, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from ipamd.datastore import schema
from ipamd.model.address import AddressState

Statement = Insert | Update | Delete

ADDRESS_CHANGES = ("state", "since", "container_id", "ifname", "cooling_until", "cooled_at_s", "reason", "since_monotonic_s")
"""What changes in an address's life; its ENI and prefix do not."""

WIRING = ("route_table", "host_veth", "result")
"""What may change of an attachment: how its sandbox is wired."""

_eni_insert = upsert(schema.eni)
UPSERT_ENI = _eni_insert.on_conflict_do_update(
    index_elements=["eni_id"],
    set_={column.name: _eni_insert.excluded[column.name] for column in schema.eni.columns if not column.primary_key},
)
DELETE_ENI = delete(schema.eni).where(schema.eni.c.eni_id == bindparam("key_eni_id"))

PREFIX_HOLDER = select(schema.prefix.c.eni_id).where(schema.prefix.c.prefix == bindparam("key_prefix"))
INSERT_PREFIX = insert(schema.prefix)
DELETE_EMPTY_PREFIX = delete(schema.prefix).where(
    schema.prefix.c.prefix == bindparam("key_prefix"),
    ~exists(select(schema.address.c.address).where(schema.address.c.prefix == bindparam("key_prefix"))),
)

_this_address = (
    schema.address.c.address == bindparam("key_address"),
    schema.address.c.state == bindparam("key_state"),  # compare and set: memory and disk must agree on what it was
)
INSERT_ADDRESS = insert(schema.address)
UPDATE_ADDRESS = update(schema.address).where(*_this_address).values({name: bindparam(name) for name in ADDRESS_CHANGES})
DELETE_ADDRESS = delete(schema.address).where(*_this_address)

INSERT_LOST = insert(schema.lost)
DELETE_LOST = delete(schema.lost).where(schema.lost.c.address == bindparam("key_address"))

INSERT_DOUBT = insert(schema.doubt)
DELETE_DOUBTS = delete(schema.doubt)

_is_lost_and_free = (
    schema.address.c.state == AddressState.FREE.value,
    schema.address.c.address.in_(select(schema.lost.c.address)),
)
LOST_FREE = select(schema.address.c.address).where(*_is_lost_and_free)
DELETE_LOST_FREE = delete(schema.address).where(*_is_lost_and_free)
DELETE_EMPTY_PREFIXES = delete(schema.prefix).where(
    ~exists(select(schema.address.c.address).where(schema.address.c.prefix == schema.prefix.c.prefix))
)

INSERT_ATTACHMENT = insert(schema.attachment)
_this_attachment = (
    schema.attachment.c.container_id == bindparam("key_container_id"),
    schema.attachment.c.ifname == bindparam("key_ifname"),
)
DELETE_ATTACHMENT = delete(schema.attachment).where(*_this_attachment)
AMEND_ATTACHMENT = update(schema.attachment).where(*_this_attachment).values({name: bindparam(f"new_{name}") for name in WIRING})

_tombstone_insert = upsert(schema.tombstone)
UPSERT_TOMBSTONE = _tombstone_insert.on_conflict_do_update(
    index_elements=["container_id", "ifname"],
    set_={name: _tombstone_insert.excluded[name] for name in ("at", "at_monotonic_s")},
)
DATE_TOMBSTONE = (
    update(schema.tombstone)
    .where(schema.tombstone.c.container_id == bindparam("key_container_id"), schema.tombstone.c.ifname == bindparam("key_ifname"))
    .values(at_monotonic_s=bindparam("now_s"))
)
DELETE_TOMBSTONES = delete(schema.tombstone).where(schema.tombstone.c.at_monotonic_s < bindparam("before_s"))

_meta_insert = upsert(schema.meta)
UPSERT_META = _meta_insert.on_conflict_do_update(index_elements=["name"], set_={"value": _meta_insert.excluded["value"]})

INSERT_INTENT = insert(schema.intent)
UPDATE_INTENT = (
    update(schema.intent)
    .where(schema.intent.c.intent_id == bindparam("key_intent_id"))
    .values({name: bindparam(name) for name in ("kind", "opened_at", "payload", "client_token")})
)
DELETE_INTENT = delete(schema.intent).where(schema.intent.c.intent_id == bindparam("key_intent_id"))
