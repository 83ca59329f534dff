"""One unit of work: each change goes to the open transaction at once, and to memory only after COMMIT.

Every change is checked against the transition table and the view, then written with a compare-and-set on the state it was
checked against; the constraints of `schema` stand behind both. The first refusal dooms the whole unit: going on after a
caught error cannot commit half of it.

Longer than most modules on purpose: it is the list of all that can ever change, and it reads best in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from functools import wraps
from ipaddress import IPv4Address, IPv4Network
from typing import Concatenate, ParamSpec, TypeVar

from ipamd.datastore import schema
from ipamd.datastore import statements as sql
from ipamd.datastore.disk import Disk
from ipamd.datastore.ledger import Ledger, entry
from ipamd.datastore.memory_state import IN_USE
from ipamd.datastore.rows import (
    Params,
    address_params,
    attachment_params,
    eni_params,
    intent_params,
    key_params,
    time_text,
)
from ipamd.datastore.view import View
from ipamd.model.address import Address, AddressEvent, AddressState, next_state
from ipamd.model.attachment import Attachment
from ipamd.model.eni import PREFIX_LENGTH, Eni
from ipamd.model.errors import DatastoreError, IllegalTransitionError, InvariantError, UnknownAttachmentError
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.intent import Intent
from ipamd.model.ledger import LedgerEvent
from ipamd.ports import Clock, UnitOfWork

P = ParamSpec("P")
R = TypeVar("R")

CHANGES = {
    AddressEvent.COOLED: LedgerEvent.COOLED,
    AddressEvent.DISAGREE: LedgerEvent.QUARANTINED,
}
"""What `change` applies, and the ledger's word for it."""


def _step(
    method: Callable[Concatenate[SqlUnitOfWork, P], R],
) -> Callable[Concatenate[SqlUnitOfWork, P], R]:
    """Refuse to go on after a refusal: an error that the caller swallowed still dooms the unit."""

    @wraps(method)
    def guarded(self: SqlUnitOfWork, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self.raise_if_failed()
        try:
            return method(self, *args, **kwargs)
        except DatastoreError as error:
            self.failure = error
            raise
        except ValueError as error:
            self.failure = InvariantError(f"{method.__name__}: a value has no place in the datastore", details=str(error))
            raise self.failure from error

    return guarded


class SqlUnitOfWork(UnitOfWork):
    """The changes of one transaction. Made by `SqlDatastore.transaction`, which commits or rolls back."""

    def __init__(self, *, disk: Disk, view: View, ledger: Ledger, clock: Clock) -> None:
        self._disk = disk
        self._view = view
        self._ledger = ledger
        self._clock = clock
        self._entries: list[Params] = []
        self.failure: DatastoreError | None = None

    def raise_if_failed(self) -> None:
        """Raise what doomed this unit, if anything did."""
        if self.failure is not None:
            raise self.failure

    def flush(self) -> None:
        """Write the ledger rows, all in one statement: the last step before COMMIT."""
        self.raise_if_failed()
        self._ledger.write(self._entries)

    def end(self) -> None:
        """Refuse further use."""
        self.failure = self.failure or DatastoreError(
            "the unit of work has ended", details="a change was asked of it after its transaction; nothing was changed"
        )

    @_step
    def put_eni(self, eni: Eni) -> None:
        """See UnitOfWork. An ENI that is known just so is left alone, without a ledger row."""
        known = self._view.eni(eni.eni_id)
        if known == eni:
            return
        if self._view.address(eni.primary_address) is not None:
            raise InvariantError(
                f"primary address {eni.primary_address} of {eni.eni_id} is in the pool",
                details="I6: the primary address of an ENI is never given to a sandbox",
            )
        subject = f"recording {eni.eni_id}"
        self._disk.execute(sql.UPSERT_ENI, eni_params(eni), subject=subject)
        self._view.staged.enis[eni.eni_id] = eni
        ready = "host routing ready" if eni.host_ready else "host routing not ready"
        detail = f"device {eni.device_index} on card {eni.network_card}, {eni.state}, {ready}"
        if not eni.managed:
            detail += ", not managed"
        self._log(
            LedgerEvent.ENI_CHANGED if known else LedgerEvent.ENI_ADDED,
            at=self._clock.now(),
            address=eni.primary_address,
            eni_id=eni.eni_id,
            detail=detail,
        )

    @_step
    def remove_eni(self, eni_id: EniId, *, reason: str) -> None:
        """See UnitOfWork. An unknown ENI is fine."""
        eni = self._view.eni(eni_id)
        if eni is None:
            return
        now = self._clock.now()
        self._remove(self._view.addresses_of(eni_id), what=f"ENI {eni_id} cannot be forgotten", reason=reason, now=now)
        self._disk.execute(sql.DELETE_ENI, {"key_eni_id": eni_id}, subject=f"forgetting {eni_id}")
        self._view.staged.enis[eni_id] = None
        self._log(LedgerEvent.ENI_REMOVED, at=now, address=eni.primary_address, eni_id=eni_id, detail=reason)

    @_step
    def add_addresses(
        self,
        eni_id: EniId,
        addresses: Iterable[IPv4Address],
        *,
        prefix: IPv4Network | None = None,
        now: datetime,
        cooling_until: datetime | None = None,
    ) -> None:
        """See UnitOfWork. Raises: InvariantError also for an unknown ENI, a primary address (I6) or a wrong prefix."""
        if self._view.eni(eni_id) is None:
            raise InvariantError(f"ENI {eni_id} is not known", details="I7: an address needs an ENI that we know")
        fresh = [address for address in sorted(set(addresses)) if self._is_fresh(address, eni_id, prefix)]
        if not fresh:
            return
        subject = f"adding {fresh[0]} and {len(fresh) - 1} more to {eni_id}"
        if prefix is not None:
            self._put_prefix(prefix, eni_id)
        state = AddressState.FREE if cooling_until is None else AddressState.COOLING
        cooldown_deadline_s = None if cooling_until is None else self._cooled_at_s(now, cooling_until)
        rows = [
            Address(address, eni_id, state, now, prefix, cooling_until=cooling_until, cooldown_deadline_s=cooldown_deadline_s)
            for address in fresh
        ]
        self._disk.execute(sql.INSERT_ADDRESS, [address_params(row) for row in rows], subject=subject)
        for row in rows:
            self._view.staged.addresses[row.address] = row
            detail = "" if prefix is None else f"in {prefix}"
            self._log(LedgerEvent.ADDED, at=now, address=row.address, eni_id=eni_id, detail=detail)

    @_step
    def remove_addresses(self, addresses: Iterable[IPv4Address], *, reason: str, now: datetime) -> None:
        """See UnitOfWork. Unknown addresses are fine."""
        found = [self._view.address(address) for address in sorted(set(addresses))]
        known = [address for address in found if address is not None]
        self._remove(known, what="addresses cannot be forgotten", reason=reason, now=now)

    @_step
    def confirm(self, attachment: Attachment) -> None:
        """See UnitOfWork. Until COMMIT has succeeded memory keeps the address reserved, so that the caller can abort."""
        old = self._view.known_address(attachment.address)
        state = _after(old, AddressEvent.CONFIRM)
        if old.owner != attachment.key:
            raise InvariantError(f"address {old.address} is reserved for {old.owner}, not for {attachment.key}", details="I1")
        self._assign(old, attachment, state)
        self._log(
            LedgerEvent.ASSIGNED,
            at=attachment.created_at,
            address=old.address,
            key=attachment.key,
            eni_id=old.eni_id,
            detail=attachment.sandbox_name,
        )

    @_step
    def adopt(self, attachment: Attachment) -> None:
        """See UnitOfWork."""
        old = self._view.known_address(attachment.address)
        state = _after(old, AddressEvent.ADOPT)
        reserved = self._view.index.reservation(attachment.key)
        if reserved is not None:
            raise InvariantError(f"sandbox {attachment.key} is just being given {reserved}", details="I1")
        self._assign(old, attachment, state)
        self._log(
            LedgerEvent.ADOPTED,
            at=attachment.created_at,
            address=old.address,
            key=attachment.key,
            eni_id=old.eni_id,
            detail=f"was {old.state}",
        )

    @_step
    def unassign(self, key: AttachmentKey, *, now: datetime, cooling_until: datetime, reason: str) -> Attachment:
        """See UnitOfWork. UnknownAttachmentError changes nothing and does not fail the unit: a DEL may come twice (I3)."""
        attachment = self._view.attachment(key)
        if attachment is None:
            raise UnknownAttachmentError(f"sandbox {key} is not attached")
        old = self._view.known_address(attachment.address)
        self._disk.execute(sql.DELETE_ATTACHMENT, _by_key(key), subject=f"unassigning {old.address} from {key}")
        self._view.staged.attachments[key] = None
        self._cool(old, AddressEvent.UNASSIGN, now=now, cooling_until=cooling_until, reason=reason)
        self._log(LedgerEvent.UNASSIGNED, at=now, address=old.address, key=key, eni_id=old.eni_id, detail=reason)
        return attachment

    @_step
    def abort(self, address: IPv4Address, *, now: datetime, cooling_until: datetime, reason: str) -> None:
        """See UnitOfWork."""
        old = self._view.known_address(address)
        self._cool(old, AddressEvent.ABORT, now=now, cooling_until=cooling_until, reason=reason)
        self._log(LedgerEvent.ABORTED, at=now, address=address, key=old.owner, eni_id=old.eni_id, detail=reason)

    @_step
    def resolve(self, address: IPv4Address, *, now: datetime, cooling_until: datetime, reason: str) -> None:
        """See UnitOfWork."""
        old = self._view.known_address(address)
        self._cool(old, AddressEvent.RESOLVE, now=now, cooling_until=cooling_until, reason=reason)
        self._log(LedgerEvent.RESOLVED, at=now, address=address, eni_id=old.eni_id, detail=reason)

    @_step
    def change(self, address: IPv4Address, event: AddressEvent, *, now: datetime, reason: str) -> None:
        """See UnitOfWork. Whether an address has cooled is the caller's to say: the wall clock may have been stepped (I8)."""
        if event not in CHANGES:
            raise IllegalTransitionError(f"address {address}: `change` does not apply {event}", details="a defect of ours")
        old = self._view.known_address(address)
        state = _after(old, event)
        self._write(
            old, replace(old, state=state, since=now, owner=None, cooling_until=None, cooldown_deadline_s=None, reason=reason)
        )
        self._log(CHANGES[event], at=now, address=address, key=old.owner, eni_id=old.eni_id, detail=reason)

    @_step
    def put_tombstone(self, key: AttachmentKey, *, now: datetime) -> None:
        """See UnitOfWork. A second tombstone takes the first one's place."""
        self._disk.execute(sql.UPSERT_TOMBSTONE, {**key_params(key), "at": time_text(now)}, subject=f"recording DEL of {key}")
        self._view.staged.tombstones[key] = now
        self._log(LedgerEvent.TOMBSTONED, at=now, key=key)

    @_step
    def mark_restored(self, *, now: datetime, detail: str) -> None:
        """See UnitOfWork."""
        self._disk.execute(sql.UPSERT_META, {"name": schema.RESTORED_AT, "value": time_text(now)}, subject="marking the restore")
        self._log(LedgerEvent.RESTORED, at=now, detail=detail)

    @_step
    def drop_tombstones(self, *, before: datetime) -> int:
        """See UnitOfWork. No ledger row: the row that tells of the DEL stays."""
        staged = self._view.staged.tombstones
        merged = {**self._view.index.contents().tombstones, **staged}
        old = [key for key, at in merged.items() if at is not None and at < before]
        if old:
            subject = f"dropping tombstones before {before}"
            self._disk.execute(sql.DELETE_TOMBSTONES, {"before": time_text(before)}, subject=subject)
        staged.update(dict.fromkeys(old))
        return len(old)

    @_step
    def open_intent(self, intent: Intent) -> None:
        """See UnitOfWork."""
        if self._view.intent(intent.intent_id) is not None:
            raise InvariantError(f"intent {intent.intent_id} is open already", details="I9: each has its own ID")
        self._disk.execute(sql.INSERT_INTENT, intent_params(intent), subject=f"opening intent {intent.intent_id}")
        self._view.staged.intents[intent.intent_id] = intent
        self._log(LedgerEvent.INTENT_OPENED, at=intent.opened_at, detail=_told(intent))

    @_step
    def update_intent(self, intent: Intent) -> None:
        """See UnitOfWork. InvariantError if it is not open."""
        self._known_intent(intent.intent_id)
        params = intent_params(intent)
        params["key_intent_id"] = params.pop("intent_id")
        self._disk.execute(sql.UPDATE_INTENT, params, subject=f"updating intent {intent.intent_id}")
        self._view.staged.intents[intent.intent_id] = intent
        self._log(LedgerEvent.INTENT_OPENED, at=self._clock.now(), detail=f"now {_told(intent)}")

    @_step
    def close_intent(self, intent_id: str, *, now: datetime, outcome: str) -> None:
        """See UnitOfWork. InvariantError if it is not open."""
        intent = self._known_intent(intent_id)
        self._disk.execute(sql.DELETE_INTENT, {"key_intent_id": intent_id}, subject=f"closing intent {intent_id}")
        self._view.staged.intents[intent_id] = None
        self._log(
            LedgerEvent.INTENT_CLOSED,
            at=now,
            eni_id=EniId(intent.payload.get("eni_id", "")),
            detail=f"{intent.kind} {intent_id}: {outcome}",
        )

    @_step
    def note(
        self,
        event: LedgerEvent,
        *,
        now: datetime,
        address: IPv4Address | None = None,
        key: AttachmentKey | None = None,
        eni_id: EniId | None = None,
        detail: str = "",
    ) -> None:
        """See UnitOfWork."""
        self._log(event, at=now, address=address, key=key, eni_id=eni_id, detail=detail)

    def _log(
        self,
        event: LedgerEvent,
        *,
        at: datetime,
        address: IPv4Address | None = None,
        key: AttachmentKey | None = None,
        eni_id: EniId | None = None,
        detail: str = "",
    ) -> None:
        self._entries.append(entry(event, at=at, address=address, key=key, eni_id=eni_id, detail=detail))

    def _is_fresh(self, address: IPv4Address, eni_id: EniId, prefix: IPv4Network | None) -> bool:
        if prefix is not None and (prefix.prefixlen != PREFIX_LENGTH or address not in prefix):
            raise InvariantError(f"address {address} is not in a /{PREFIX_LENGTH} named {prefix}", details="EC2 has no other")
        if self._view.eni_of_primary(address) is not None:
            raise InvariantError(
                f"address {address} is the primary one of {self._view.eni_of_primary(address)}",
                details="I6: the primary address of an ENI is never given to a sandbox",
            )
        known = self._view.address(address)
        if known is not None and known.eni_id != eni_id:
            raise InvariantError(
                f"address {address} is on {known.eni_id}, not on {eni_id}", details="I1: remove it there before adding it here"
            )
        return known is None

    def _put_prefix(self, prefix: IPv4Network, eni_id: EniId) -> None:
        subject = f"adding prefix {prefix} to {eni_id}"
        holder = self._disk.execute(sql.PREFIX_HOLDER, {"key_prefix": str(prefix)}, subject=subject).scalar_one_or_none()
        if holder is None:
            self._disk.execute(sql.INSERT_PREFIX, {"prefix": str(prefix), "eni_id": eni_id}, subject=subject)
        elif holder != eni_id:
            raise InvariantError(f"prefix {prefix} is on {holder}, not on {eni_id}", details="remove it there first")

    def _remove(self, addresses: list[Address], *, what: str, reason: str, now: datetime) -> None:
        held = [address for address in addresses if address.state in IN_USE]
        if held:
            names = ", ".join(f"{address.address} ({address.state} to {address.owner})" for address in held[:3])
            raise InvariantError(f"{what}: {len(held)} in use", details=f"I2: {names}")
        for address in addresses:
            params: Params = {"key_address": str(address.address), "key_state": address.state.value}
            self._expect_one(sql.DELETE_ADDRESS, params, address)
            self._view.staged.addresses[address.address] = None
            self._log(LedgerEvent.REMOVED, at=now, address=address.address, eni_id=address.eni_id, detail=reason)
        for prefix in sorted({str(address.prefix) for address in addresses if address.prefix is not None}):
            self._disk.execute(sql.DELETE_EMPTY_PREFIX, {"key_prefix": prefix}, subject=f"forgetting prefix {prefix}")

    def _assign(self, old: Address, attachment: Attachment, state: AddressState) -> None:
        key = attachment.key
        if old.eni_id != attachment.eni_id:
            raise InvariantError(f"address {old.address} is on {old.eni_id}, not on {attachment.eni_id}", details="I7")
        present = self._view.attachment(key)
        if present is not None:
            raise InvariantError(f"sandbox {key} is attached with {present.address}", details="I1")
        if self._view.has_tombstone(key):
            raise InvariantError(f"sandbox {key} cannot be attached: its DEL was done", details="I4")
        self._disk.execute(sql.INSERT_ATTACHMENT, attachment_params(attachment), subject=f"assigning {old.address} to {key}")
        new = replace(
            old, state=state, since=attachment.created_at, owner=key, cooling_until=None, cooldown_deadline_s=None, reason=""
        )
        self._write(old, new)
        self._view.staged.attachments[key] = attachment

    def _cool(self, old: Address, event: AddressEvent, *, now: datetime, cooling_until: datetime, reason: str) -> None:
        state = _after(old, event)
        cooldown_deadline_s = self._cooled_at_s(now, cooling_until)
        cooldown = replace(
            old,
            state=state,
            since=now,
            owner=None,
            reason=reason,
            cooling_until=cooling_until,
            cooldown_deadline_s=cooldown_deadline_s,
        )
        self._write(old, cooldown)

    def _cooled_at_s(self, now: datetime, cooling_until: datetime) -> float:
        """The same end on the monotonic clock: the wall clock may be stepped while no daemon runs (I8)."""
        return self._clock.monotonic() + (cooling_until - now).total_seconds()

    def _write(self, old: Address, new: Address) -> None:
        row = address_params(new)
        params: Params = {name: row[name] for name in sql.ADDRESS_CHANGES}
        params["key_address"] = str(old.address)
        params["key_state"] = str(AddressState.FREE if old.state is AddressState.RESERVED else old.state)
        self._expect_one(sql.UPDATE_ADDRESS, params, old)
        self._view.staged.addresses[old.address] = new

    def _expect_one(self, statement: sql.Statement, params: Params, address: Address) -> None:
        subject = f"changing address {address.address}"
        if self._disk.execute(statement, params, subject=subject).rowcount != 1:
            raise InvariantError(
                f"address {address.address} is {address.state} in memory but not on disk",
                details="nothing was changed; `ipamctl audit` compares them all; restarting ipamd reads the disk again",
            )

    def _known_intent(self, intent_id: str) -> Intent:
        intent = self._view.intent(intent_id)
        if intent is None:
            raise InvariantError(f"intent {intent_id} is not open", details="I9")
        return intent


def _after(address: Address, event: AddressEvent) -> AddressState:
    try:
        return next_state(address.state, event)
    except IllegalTransitionError as error:
        raise IllegalTransitionError(f"address {address.address}: {error.message}", details=error.details) from None


def _by_key(key: AttachmentKey) -> Params:
    return {"key_container_id": key.container_id, "key_ifname": key.ifname}


def _told(intent: Intent) -> str:
    payload = ", ".join(f"{name}={value}" for name, value in sorted(intent.payload.items()))
    return f"{intent.kind} {intent.intent_id}: {payload}"
