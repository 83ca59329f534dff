"""One unit of work: each change goes to the open transaction at once, and to memory only after COMMIT.

`ports.UnitOfWork` says what each promises; docstrings here add only what is specific to this implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import wraps
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Concatenate, ParamSpec, TypeVar

from ipamd.datastore import schema
from ipamd.datastore import statements as sql
from ipamd.datastore.disk import Disk
from ipamd.datastore.ledger import Ledger
from ipamd.datastore.rows import (
    Params,
    address_params,
    attachment_params,
    doubt_params,
    eni_params,
    intent_params,
    key_params,
    ledger_params,
    lost_params,
    this_attachment,
    time_text,
)
from ipamd.datastore.view import View
from ipamd.model.absence import Doubts
from ipamd.model.address import Address, AddressEvent, AddressState, next_state
from ipamd.model.attachment import Attachment
from ipamd.model.cloud import all_addresses
from ipamd.model.eni import PREFIX_LENGTH, Eni
from ipamd.model.errors import DatastoreError, IllegalTransitionError, InvariantError, UnknownAttachmentError
from ipamd.model.history import UNKEPT, HistoryRecord
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.intent import Intent, IntentKind, named
from ipamd.model.ledger import LedgerEvent
from ipamd.model.snapshot import Tombstone
from ipamd.ports import Clock, UnitOfWork

P = ParamSpec("P")
R = TypeVar("R")


def change(method: Callable[Concatenate[SqlUnitOfWork, P], R]) -> Callable[Concatenate[SqlUnitOfWork, P], R]:
    """Make a method fail the whole unit when it refuses, also if the caller swallows the error."""

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
    """The changes of one transaction. Made by `SqlDatastore.transaction`, which commits or rolls back.

    Every change is checked against the transition table and the view, then written with a compare-and-set on the state it was checked
    against; the constraints of `schema` stand behind both. The first refusal fails the whole unit, so that a caller that catches the
    error cannot commit half of it.

    `failure` is the error that failed the unit; from then on every change raises it.
    `recorded` is what the history is told once it is committed.
    """

    def __init__(self, *, disk: Disk, view: View, clock: Clock) -> None:
        self._disk = disk
        self._view = view
        self._clock = clock
        # One time for all changes of a unit, taken once the transaction is ours: waiting for it is not part of a cooldown.
        self._now = clock.now()
        self._now_s = clock.monotonic()
        self._ledger_rows: list[Params] = []
        self.recorded: list[HistoryRecord] = []
        self.failure: DatastoreError | None = None

    def raise_if_failed(self) -> None:
        """Raise the error that failed this unit, if there is one."""
        if self.failure is not None:
            raise self.failure

    def _log(
        self,
        event: LedgerEvent,
        *,
        at: datetime | None = None,
        address: IPv4Address | None = None,
        key: AttachmentKey | None = None,
        eni_id: EniId | None = None,
        detail: str = "",
        of: Attachment | None = None,
    ) -> None:
        """Write a row to the ledger, and remember it for the history; `of` is the attachment that the event is about."""
        objects: dict[str, Any] = dict(key_params(key)) if key is not None else {}
        if of is not None:
            objects |= {"pod": of.sandbox_name, "since": of.created_at}
        record = HistoryRecord(
            at or self._now,
            event.value,
            address=str(address or ""),
            eni_id=eni_id or "",
            detail="" if of is not None and detail == of.sandbox_name else detail,
            **objects,
        )
        self._ledger_rows.append({**ledger_params(record), "detail": detail})
        if event not in UNKEPT:
            self.recorded.append(record)

    def _log_address(
        self, event: LedgerEvent, old: Address, *, detail: str, of: Attachment | None = None, at: datetime | None = None
    ) -> None:
        """The same about an address as it was; the key is that of the attachment, or else of who had it reserved."""
        key = of.key if of is not None else old.owner
        self._log(event, at=at, address=old.address, key=key, eni_id=old.eni_id, detail=detail, of=of)

    def _cooling(self, cooldown: timedelta | None) -> dict[str, Any]:
        """When a cooldown ends, on both clocks: the wall clock may be stepped while no daemon runs (I8)."""
        if cooldown is None:
            return {"cooling_until": None, "cooldown_deadline_s": None}
        return {"cooling_until": self._now + cooldown, "cooldown_deadline_s": self._now_s + cooldown.total_seconds()}

    def _expect_one(self, statement: sql.Statement, params: Params, address: Address) -> None:
        subject = f"changing address {address.address}"
        if self._disk.write(statement, params, subject=subject) != 1:
            raise InvariantError(
                f"address {address.address} is {address.state} in memory but not on disk",
                details="nothing was changed; `ipamctl audit` compares them all; restarting ipamd reads the disk again",
            )

    def _forget(self, addresses: Iterable[Address], *, reason: str) -> None:
        """Remove rows; the caller has made sure that no sandbox has one of them (I2)."""
        prefixes = set()
        for address in addresses:
            params: Params = {"key_address": str(address.address), "key_state": address.state.value}
            self._expect_one(sql.DELETE_ADDRESS, params, address)
            self._view.staged.addresses[address.address] = None
            self._log_address(LedgerEvent.REMOVED, address, detail=reason)
            prefixes |= {str(address.prefix)} if address.prefix is not None else set()
        # A prefix row goes with the last of its addresses: the statement leaves one that still has some.
        for prefix in sorted(prefixes):
            self._disk.write(sql.DELETE_EMPTY_PREFIX, {"key_prefix": prefix}, subject=f"forgetting prefix {prefix}")

    # Addresses that EC2 does not show any more, and those that it shows again.
    #
    # `lost` is laid over the states of an address and kept in a table of its own, so that the release before can use the file. A lost
    # address keeps its sandbox (I2) and is given to nobody again (I7): where it would become free it is removed.

    @change
    def lose(self, address: IPv4Address, *, reason: str) -> None:
        """An unknown or lost address is fine."""
        old = self._view.address(address)
        if old is None or old.is_lost:
            return
        owner = self._view.attachment(old.owner) if old.owner else None
        self._log_address(LedgerEvent.LOST, old, detail=reason, of=owner)
        if old.state is AddressState.FREE:
            self._forget([old], reason=f"lost: {reason}")
            return
        new = replace(old, lost_since=self._now, lost_reason=reason)
        self._disk.write(sql.INSERT_LOST, lost_params(new), subject=f"marking {address} as lost")
        self._view.staged.addresses[address] = new

    @change
    def heal(self, address: IPv4Address, *, reason: str) -> None:
        """An unknown address, or one that is not lost, is fine."""
        old = self._view.address(address)
        if old is None or not old.is_lost:
            return
        self._disk.write(sql.DELETE_LOST, {"key_address": str(address)}, subject=f"marking {address} as found")
        self._view.staged.addresses[address] = replace(old, lost_since=None, lost_reason="")
        owner = self._view.attachment(old.owner) if old.owner else None
        self._log_address(LedgerEvent.HEALED, old, detail=reason, of=owner)

    @change
    def put_doubts(self, doubts: Doubts) -> None:
        """Writes no ledger row: most doubts end at the next look."""
        self._disk.write(sql.DELETE_DOUBTS, {}, subject="forgetting doubts")
        if rows := doubt_params(doubts):
            self._disk.write(sql.INSERT_DOUBT, rows, subject="recording doubts")
        self._view.staged.doubts.append(doubts)

    # Changes to what is recorded besides addresses: tombstones, intents, the mark of a finished restore, notes in the ledger.

    @change
    def put_tombstone(self, key: AttachmentKey) -> None:
        """Replaces an earlier tombstone of the key."""
        params: Params = {**key_params(key), "at": time_text(self._now), "at_monotonic_s": self._now_s}
        self._disk.write(sql.UPSERT_TOMBSTONE, params, subject=f"recording DEL of {key}")
        self._view.staged.tombstones[key] = Tombstone(self._now, self._now_s)
        self._log(LedgerEvent.TOMBSTONED, key=key)

    @change
    def drop_tombstones(self, *, older_than: timedelta) -> int:
        """Writes no ledger row: the row of the DEL itself stays."""
        before_s = self._now_s - older_than.total_seconds()
        old: list[AttachmentKey] = []
        for key, found in self._view.tombstones().items():
            if found.at_monotonic_s is None:  # the release before wrote it: its age counts from now
                dated = {"now_s": self._now_s, **this_attachment(key)}
                self._disk.write(sql.DATE_TOMBSTONE, dated, subject=f"dating the tombstone of {key}")
                self._view.staged.tombstones[key] = Tombstone(found.at, self._now_s)
            elif found.at_monotonic_s < before_s:
                old.append(key)
        if old:
            self._disk.write(sql.DELETE_TOMBSTONES, {"before_s": before_s}, subject="dropping old tombstones")
        self._view.staged.tombstones.update(dict.fromkeys(old))
        return len(old)

    @change
    def open_intent(self, intent: Intent) -> None:
        """Raises: InvariantError if it is open already, or gives back what is not free."""
        if self._view.intent(intent.intent_id) is not None:
            raise InvariantError(f"intent {intent.intent_id} is open already", details="I9: each has its own ID")
        self._refuse_what_is_not_free(intent)
        self._disk.write(sql.INSERT_INTENT, intent_params(intent), subject=f"opening intent {intent.intent_id}")
        self._view.staged.intents[intent.intent_id] = intent
        self._log(LedgerEvent.INTENT_OPENED, at=intent.opened_at, detail=_told(intent))

    @change
    def update_intent(self, intent: Intent) -> None:
        """Raises: InvariantError if it is not open."""
        self._known_intent(intent.intent_id)
        params = intent_params(intent)
        params["key_intent_id"] = params.pop("intent_id")
        self._disk.write(sql.UPDATE_INTENT, params, subject=f"updating intent {intent.intent_id}")
        self._view.staged.intents[intent.intent_id] = intent
        self._log(LedgerEvent.INTENT_OPENED, detail=f"now {_told(intent)}")

    @change
    def close_intent(self, intent_id: str, *, outcome: str) -> None:
        """Raises: InvariantError if it is not open."""
        intent = self._known_intent(intent_id)
        self._disk.write(sql.DELETE_INTENT, {"key_intent_id": intent_id}, subject=f"closing intent {intent_id}")
        self._view.staged.intents[intent_id] = None
        eni_id = intent.eni_id
        self._log(LedgerEvent.INTENT_CLOSED, eni_id=eni_id, detail=f"{intent.kind} {intent_id}: {outcome}")

    @change
    def mark_restored(self, *, detail: str) -> None:
        params: Params = {"name": schema.RESTORED_AT, "value": time_text(self._now)}
        self._disk.write(sql.UPSERT_META, params, subject="marking the restore")
        self._log(LedgerEvent.RESTORED, detail=detail)

    @change
    def note(
        self,
        event: LedgerEvent,
        *,
        address: IPv4Address | None = None,
        key: AttachmentKey | None = None,
        detail: str = "",
    ) -> None:
        self._log(event, address=address, key=key, detail=detail)

    def _refuse_what_is_not_free(self, intent: Intent) -> None:
        """Reading claims the rows: no reservation comes between this check and the hold that begins with the intent."""
        eni_id = intent.eni_id
        if intent.kind is IntentKind.UNASSIGN:
            rows = [(address, self._view.address(address)) for address in sorted(all_addresses(*named(intent)))]
        elif intent.kind is IntentKind.DELETE_ENI:
            rows = [(row.address, row) for row in self._view.addresses_of(eni_id)]
        else:
            return
        for address, row in rows:
            if row is None or not row.is_free or row.eni_id != eni_id:
                what = "not known" if row is None else f"{row.state} on {row.eni_id}" if row.is_free else str(row.state)
                raise InvariantError(f"{address} of {eni_id} cannot be given back: it is {what}", details="I2")

    def _known_intent(self, intent_id: str) -> Intent:
        intent = self._view.intent(intent_id)
        if intent is None:
            raise InvariantError(f"intent {intent_id} is not open", details="I9")
        return intent

    # Changes in the life of one address, by the table in `model.address`, and of the attachment that has it.
    #
    # An address and its attachment change together: the schema's constraints let neither exist without the other (I1).

    @change
    def confirm(self, attachment: Attachment) -> None:
        """Until COMMIT has succeeded memory keeps the address reserved, so that the caller can abort."""
        old = self._view.known_address(attachment.address)
        state = _after(old, AddressEvent.CONFIRM)
        if old.owner != attachment.key:
            raise InvariantError(f"address {old.address} is reserved for {old.owner}, not for {attachment.key}", details="I1")
        self._assign(old, attachment, state, event=LedgerEvent.ASSIGNED, detail=attachment.sandbox_name)

    @change
    def adopt(self, attachment: Attachment) -> None:
        """A key that has a reservation is refused: an ADD for it is at work."""
        old = self._view.known_address(attachment.address)
        state = _after(old, AddressEvent.ADOPT)
        reserved = self._view.memory.reservation(attachment.key)
        if reserved is not None:
            raise InvariantError(f"sandbox {attachment.key} is just being given {reserved}", details="I1")
        self._assign(old, attachment, state, event=LedgerEvent.ADOPTED, detail=f"was {old.state}")

    @change
    def move_table(self, key: AttachmentKey, *, route_table: int) -> Attachment:
        """UnknownAttachmentError does not fail the unit, as for `unassign`."""
        known = self._attached(key)
        detail = f"its ENI's table is {route_table} now, and was {known.route_table}"
        return self._amend(known, replace(known, route_table=route_table), detail=detail)

    @change
    def rename_veth(self, key: AttachmentKey, *, host_veth: str, result: bytes) -> Attachment:
        """UnknownAttachmentError does not fail the unit, as for `unassign`."""
        known = self._attached(key)
        detail = f"its host veth is {host_veth} now, and was {known.host_veth}"
        return self._amend(known, replace(known, host_veth=host_veth, result=result), detail=detail)

    @change
    def unassign(
        self, key: AttachmentKey, *, cooldown: timedelta, reason: str, event: LedgerEvent = LedgerEvent.UNASSIGNED
    ) -> Attachment:
        """UnknownAttachmentError changes nothing and does not fail the unit: a DEL may come twice (I3)."""
        attachment = self._attached(key)
        old = self._view.known_address(attachment.address)
        self._disk.write(sql.DELETE_ATTACHMENT, this_attachment(key), subject=f"unassigning {old.address} from {key}")
        self._view.staged.attachments[key] = None
        self._move(old, AddressEvent.UNASSIGN, log=event, reason=reason, cooldown=cooldown, of=attachment)
        return attachment

    @change
    def abort(self, address: IPv4Address, *, cooldown: timedelta, reason: str) -> None:
        """On disk the address was free: a reservation is in memory only (I5)."""
        old = self._view.known_address(address)
        self._move(old, AddressEvent.ABORT, log=LedgerEvent.ABORTED, reason=reason, cooldown=cooldown)

    @change
    def free(self, address: IPv4Address, *, reason: str) -> None:
        """The caller decides whether the address has cooled, by the monotonic clock: a wall clock may be stepped (I8)."""
        old = self._view.known_address(address)
        if old.is_lost:
            _after(old, AddressEvent.COOLED)
            self._forget([old], reason=f"{reason}; lost: {old.lost_reason}")
        else:
            self._move(old, AddressEvent.COOLED, log=LedgerEvent.COOLED, reason=reason)

    @change
    def quarantine(self, address: IPv4Address, *, reason: str) -> None:
        """Ends a reservation: the ADD that holds it can no longer confirm it."""
        old = self._view.known_address(address)
        self._move(old, AddressEvent.DISAGREE, log=LedgerEvent.QUARANTINED, reason=reason)

    @change
    def resolve(self, address: IPv4Address, *, cooldown: timedelta, reason: str) -> None:
        """It cools before it is free: its DEL may have come a moment ago (docs/adr/0012)."""
        old = self._view.known_address(address)
        self._move(old, AddressEvent.RESOLVE, log=LedgerEvent.RESOLVED, reason=reason, cooldown=cooldown)

    def _attached(self, key: AttachmentKey) -> Attachment:
        known = self._view.attachment(key)
        if known is None:
            raise UnknownAttachmentError(f"sandbox {key} is not attached")
        return known

    def _amend(self, known: Attachment, amended: Attachment, *, detail: str) -> Attachment:
        """Replace what is recorded of how a sandbox is wired; its address stays."""
        params = this_attachment(known.key)
        params |= {f"new_{name}": getattr(amended, name) for name in sql.WIRING}
        self._disk.write(sql.AMEND_ATTACHMENT, params, subject=f"amending {known.key}: {detail}")
        self._view.staged.attachments[known.key] = amended
        self._log(LedgerEvent.REPAIRED, address=known.address, key=known.key, eni_id=known.eni_id, detail=detail, of=known)
        return amended

    def _assign(self, old: Address, attachment: Attachment, state: AddressState, *, event: LedgerEvent, detail: str) -> None:
        key = attachment.key
        if old.eni_id != attachment.eni_id:
            raise InvariantError(f"address {old.address} is on {old.eni_id}, not on {attachment.eni_id}", details="I7")
        present = self._view.attachment(key)
        if present is not None:
            raise InvariantError(f"sandbox {key} is attached with {present.address}", details="I1")
        if self._view.has_tombstone(key):
            raise InvariantError(f"sandbox {key} cannot be attached: its DEL was done", details="I4")
        self._disk.write(sql.INSERT_ATTACHMENT, attachment_params(attachment), subject=f"assigning {old.address} to {key}")
        new = replace(
            old,
            state=state,
            since=attachment.created_at,
            since_monotonic_s=self._now_s,
            owner=key,
            cooling_until=None,
            cooldown_deadline_s=None,
            reason="",
        )
        self._write(old, new)
        self._view.staged.attachments[key] = attachment
        self._log_address(event, old, at=attachment.created_at, detail=detail, of=attachment)

    def _move(
        self,
        old: Address,
        event: AddressEvent,
        *,
        log: LedgerEvent,
        reason: str,
        cooldown: timedelta | None = None,
        of: Attachment | None = None,
    ) -> None:
        """Take an address from whoever has it, into the state that follows; `cooldown` where that is `cooling`."""
        new = replace(
            old,
            state=_after(old, event),
            since=self._now,
            since_monotonic_s=self._now_s,
            owner=None,
            reason=reason,
            **self._cooling(cooldown),
        )
        self._write(old, new)
        self._log_address(log, old, detail=reason, of=of)

    def _write(self, old: Address, new: Address) -> None:
        row = address_params(new)
        params: Params = {name: row[name] for name in sql.ADDRESS_CHANGES}
        params["key_address"] = str(old.address)
        params["key_state"] = str(AddressState.FREE if old.state is AddressState.RESERVED else old.state)
        self._expect_one(sql.UPDATE_ADDRESS, params, old)
        self._view.staged.addresses[old.address] = new

    # Changes to the pool itself: ENIs, and the addresses that EC2 gives to them or takes away.
    #
    # An address enters only with an ENI that we know (I7), never as a primary address (I6), and leaves only when no sandbox has it
    # (I2).

    @change
    def put_eni(self, eni: Eni) -> None:
        """An ENI that has not changed is left alone, without a ledger row."""
        known = self._view.eni(eni.eni_id)
        if known == eni:
            return
        if self._view.address(eni.primary_address) is not None:
            raise InvariantError(
                f"primary address {eni.primary_address} of {eni.eni_id} is in the pool",
                details="I6: the primary address of an ENI is never given to a sandbox",
            )
        self._disk.write(sql.UPSERT_ENI, eni_params(eni), subject=f"recording {eni.eni_id}")
        self._view.staged.enis[eni.eni_id] = eni
        ready = "host routing ready" if eni.host_ready else "host routing not ready"
        detail = f"device {eni.device_index} on card {eni.network_card}, {eni.state}, {ready}"
        if not eni.managed:
            detail += ", not managed"
        event = LedgerEvent.ENI_CHANGED if known else LedgerEvent.ENI_ADDED
        self._log(event, address=eni.primary_address, eni_id=eni.eni_id, detail=detail)

    @change
    def remove_eni(self, eni_id: EniId, *, reason: str) -> None:
        """An unknown ENI is fine."""
        eni = self._view.eni(eni_id)
        if eni is None:
            return
        self._remove(self._view.addresses_of(eni_id), what=f"ENI {eni_id} cannot be forgotten", reason=reason)
        self._disk.write(sql.DELETE_ENI, {"key_eni_id": eni_id}, subject=f"forgetting {eni_id}")
        self._view.staged.enis[eni_id] = None
        self._log(LedgerEvent.ENI_REMOVED, address=eni.primary_address, eni_id=eni_id, detail=reason)

    @change
    def add_addresses(
        self,
        eni_id: EniId,
        addresses: Iterable[IPv4Address],
        *,
        prefix: IPv4Network | None = None,
        cooldown: timedelta | None = None,
    ) -> None:
        """Raises: InvariantError also for an unknown ENI, a primary address (I6) or a wrong prefix."""
        if self._view.eni(eni_id) is None:
            raise InvariantError(f"ENI {eni_id} is not known", details="I7: an address needs an ENI that we know")
        fresh = [address for address in sorted(set(addresses)) if self._is_fresh(address, eni_id, prefix)]
        if not fresh:
            return
        subject = f"adding {fresh[0]} and {len(fresh) - 1} more to {eni_id}"
        if prefix is not None:
            self._put_prefix(prefix, eni_id)
        state = AddressState.FREE if cooldown is None else AddressState.COOLING
        first = Address(fresh[0], eni_id, state, self._now, prefix, since_monotonic_s=self._now_s, **self._cooling(cooldown))
        rows = [replace(first, address=address) for address in fresh]
        self._disk.write(sql.INSERT_ADDRESS, [address_params(row) for row in rows], subject=subject)
        for row in rows:
            self._view.staged.addresses[row.address] = row
            detail = "" if prefix is None else f"in {prefix}"
            self._log_address(LedgerEvent.ADDED, row, detail=detail)

    @change
    def remove_addresses(self, addresses: Iterable[IPv4Address], *, reason: str) -> None:
        """Unknown addresses are fine."""
        found = [self._view.address(address) for address in sorted(set(addresses))]
        known = [address for address in found if address is not None]
        self._remove(known, what="addresses cannot be forgotten", reason=reason)

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
            self._disk.write(sql.INSERT_PREFIX, {"prefix": str(prefix), "eni_id": eni_id}, subject=subject)
        elif holder != eni_id:
            raise InvariantError(f"prefix {prefix} is on {holder}, not on {eni_id}", details="remove it there first")

    def _remove(self, addresses: list[Address], *, what: str, reason: str) -> None:
        held = [address for address in addresses if address.is_in_use]
        if held:
            names = ", ".join(f"{address.address} ({address.state} to {address.owner})" for address in held[:3])
            raise InvariantError(f"{what}: {len(held)} in use", details=f"I2: {names}")
        self._forget(addresses, reason=reason)

    def flush(self, ledger: Ledger) -> None:
        """Write the ledger rows, all in one statement: the last step before COMMIT."""
        self.raise_if_failed()
        ledger.write(self._ledger_rows)

    def events(self) -> list[str]:
        """The events of the ledger rows that were written, one for each row."""
        return [str(row["event"]) for row in self._ledger_rows]

    def end(self) -> None:
        """Refuse further use."""
        self.failure = self.failure or DatastoreError(
            "the unit of work has ended", details="a change was asked of it after its transaction; nothing was changed"
        )


def _told(intent: Intent) -> str:
    payload = ", ".join(f"{name}={value}" for name, value in sorted(intent.payload.items()))
    return f"{intent.kind} {intent.intent_id}: {payload}"


def _after(address: Address, event: AddressEvent) -> AddressState:
    try:
        return next_state(address.state, event)
    except IllegalTransitionError as error:
        raise IllegalTransitionError(f"address {address.address}: {error.message}", details=error.details) from None
