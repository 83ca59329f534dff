"""A unit of work writes each change to the open transaction at once; the copy in memory is changed after COMMIT."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ipamd.datastore import rows as sql
from ipamd.datastore import schema
from ipamd.datastore.disk import Disk
from ipamd.datastore.legs.uplinked_rows import UPLINKED_ROWS, require_unshared
from ipamd.datastore.memory_state import MemoryState, View
from ipamd.datastore.rows import POOL_ROWS, address_params, key_params
from ipamd.datastore.statements import AttachmentRows, Params, Statement, spelling
from ipamd.model.absences import Doubts
from ipamd.model.address import Address, AddressEvent, AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.cloud import InstanceIdentity, all_addresses
from ipamd.model.cniresult import renamed_result
from ipamd.model.eni import Eni
from ipamd.model.errors import DatastoreError, InvariantError, UnknownAttachmentError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IpAddress, IpNetwork, family_of
from ipamd.model.history import LEFT_OUT_OF_HISTORY, HistoryRecord, LedgerEvent
from ipamd.model.ids import AttachmentKey, EniId, PodName
from ipamd.model.intent import Intent, IntentKind, objects_to_release
from ipamd.model.tombstone import Tombstone
from ipamd.ports.process import Clock

P = ParamSpec("P")
R = TypeVar("R")


def change(method: Callable[Concatenate[SqlUnitOfWork, P], R]) -> Callable[Concatenate[SqlUnitOfWork, P], R]:
    """Decorate a method that makes a change: its error fails the whole unit, even if the caller catches the error."""

    @wraps(method)
    def guarded(self: SqlUnitOfWork, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self.raise_if_failed()
        try:
            return method(self, *args, **kwargs)
        except DatastoreError as error:
            self.failure = error
            raise
        except ValueError as error:
            self.failure = failure(InvariantError, FailureCode.VALUE_WITHOUT_PLACE, method=method.__name__, cause=str(error))
            raise self.failure from error

    return guarded


class SqlUnitOfWork:
    """Changes that become true together, on disk and in memory, or not at all. Made by `Datastore.transaction`.

    Every change writes its ledger row in the same transaction. The time of a change is that at which the unit was opened, and
    `cooldown` counts from then. Only a new attachment or intent brings its own time. Nothing outside SQLite may be called while a unit
    is open (I10).

    A change is checked against the transition table and the view. It is then written only if the row on disk still has the state that
    was checked (compare-and-set); the constraints of `schema` are a second check. All methods raise InvariantError if a constraint
    refuses, and IllegalTransitionError for a wrong address state. The first error fails the whole unit, so that a caller that catches
    the error cannot commit half of the changes.

    `failure`: the error that failed the unit; every later change raises it.
    `ledger_rows`: written right before COMMIT.
    `recorded`: passed to the history after COMMIT.
    """

    def __init__(self, *, disk: Disk, memory: MemoryState, clock: Clock) -> None:
        self.view = View(memory)
        self._disk = disk
        # Taken after BEGIN, so that waiting for the transaction is not part of a cooldown.
        self._now = clock.now()
        self._now_s = clock.monotonic()
        self.ledger_rows: list[Params] = []
        self.recorded: list[HistoryRecord] = []
        self.failure: DatastoreError | None = None
        self._is_ended = False

    def raise_if_failed(self) -> None:
        """Raise the error that failed this unit, if there is one; an error too if the unit has ended."""
        if self.failure is not None:
            raise self.failure
        if self._is_ended:
            raise failure(DatastoreError, FailureCode.UNIT_ENDED)

    def _log(
        self,
        event: LedgerEvent,
        *,
        detail: str = "",
        about: Address | None = None,
        of: Attachment | None = None,
        at: datetime | None = None,
        address: IpAddress | None = None,
        eni_id: str = "",
        key: AttachmentKey | None = None,
    ) -> None:
        """Write a row to the ledger, and remember it for the history.

        Args:
            about: the row of an address before the change; address, ENI and key are taken from it.
            of: the attachment that the event is about; by default that of the owner of `about`.
            at: the time of the event; by default that of the unit.
        """
        if about is not None:
            address, eni_id, key = about.address, about.eni_id, about.owner
            of = of or (self.view.attachments.get(key) if key else None)
        pod, since, other = "", None, ""
        if of is not None:
            key, pod, since, other = of.key, of.sandbox_name, of.created_at, str(of.other_address or "")
        row = key_params(key) | {"at": at or self._now, "event": event.value, "address": str(address or ""), "eni_id": eni_id}
        self.ledger_rows.append({**row, "detail": detail})
        if event not in LEFT_OUT_OF_HISTORY:
            kept_detail = "" if detail == pod else detail
            self.recorded.append(HistoryRecord(**row, detail=kept_detail, pod=pod, since=since, other_address=other))

    def _cooling(self, cooldown: timedelta | None) -> dict[str, Any]:
        """Return the columns with the end of a cooldown by wall clock and monotonic clock; empty columns without a cooldown.

        The monotonic time is stored too, because the wall clock may be stepped while no daemon runs (I8).
        """
        if cooldown is None:
            return {"cooling_until": None, "cooldown_deadline_s": None}
        return {"cooling_until": self._now + cooldown, "cooldown_deadline_s": self._now_s + cooldown.total_seconds()}

    def _write(self, old: Address, new: Address | None) -> None:
        """Insert, replace or delete the row of an address. Raises: InvariantError if memory and disk differ about its old state."""
        state = AddressState.FREE if old.state is AddressState.RESERVED else old.state
        params: Params = {"key_address": old.address, "key_state": state}
        subject = f"changing address {old.address}"
        if new is not None and not new.has_row:
            new = None
        if old.is_rest and new is not None:
            raise failure(InvariantError, FailureCode.ADDRESS_STANDS_FOR_REST, address=old.address, prefix=old.prefix)
        if not old.has_row:
            written = self._insert(new, subject) if new else 1
        elif new is not None:
            written = self._disk.write(sql.UPDATE_ADDRESS, params | sql.state_params(new), subject=subject)
        else:
            written = self._disk.write(sql.DELETE_ADDRESS, params, subject=subject)
        if written != 1:
            raise failure(InvariantError, FailureCode.MEMORY_AHEAD_OF_DISK, address=old.address, state=old.state)
        self.view.addresses.changes[old.address] = new

    def _insert(self, new: Address, subject: str) -> int:
        """Insert the row of an address of a /80. The cursor is stored too, so that addresses used before are not assigned soon
        (I8).
        """
        # A reservation is in memory only (I5). If a reserved address gets a row, because EC2 lacks it, the row says that it is free.
        is_reserved = new.state is AddressState.RESERVED
        on_disk = replace(new, state=AddressState.FREE, owner=None, other_address=None) if is_reserved else new
        cursor: Params = {"name": schema.CURSOR, "value": str(self.view.memory.rows.cursor)}
        self._disk.write(sql.UPSERT_META, cursor, subject=subject)
        return self._disk.write(sql.INSERT_ADDRESS, address_params(on_disk), subject=subject)

    def _remove(self, addresses: Iterable[Address], *, reason: str) -> None:
        """Delete addresses, and prefixes without addresses. No sandbox may have one of the addresses (I2)."""
        rows = [address for address in addresses if address.has_row or address.is_in_use]
        _require_unused(rows)
        for row in rows:
            self._write(row, None)
            self._log(LedgerEvent.REMOVED, about=row, detail=reason)
        if any(row.prefix for row in rows):
            self._disk.write(sql.DELETE_EMPTY_PREFIXES, {}, subject="forgetting prefixes")

    # Addresses that EC2 does not show any more, and addresses that it shows again.
    #
    # `lost` is a mark in addition to the state, stored in a table of its own. A lost address keeps its sandbox (I2) and is not
    # assigned again (I7): when it would become free it is removed.

    @change
    def lose(self, address: IpAddress, *, reason: str) -> None:
        old = self.view.address(address)
        if old is None or old.is_lost or (old.state is AddressState.FREE and not old.has_row):
            return
        if old.is_rest:
            self._lose_recorded_of(old.prefix, reason=reason)
        self._log(LedgerEvent.LOST, about=old, detail=reason)
        if old.state is AddressState.FREE:
            self._remove([old], reason=f"lost: {reason}")
            return
        mark: Params = {"address": address, "since": self._now, "reason": reason}
        lost = replace(old, lost_since=self._now, lost_reason=reason)
        if not old.has_row:
            self._write(old, lost)
        self._disk.write(sql.INSERT_LOST, mark, subject=f"marking {address} as lost")
        self.view.addresses.changes[address] = lost

    def _lose_recorded_of(self, prefix: IpNetwork | None, *, reason: str) -> None:
        """Mark as lost the addresses of a /80 that have a row of their own."""
        for row in self.view.addresses.all().values():
            if row.prefix == prefix and not row.is_rest:
                self.lose(row.address, reason=reason)

    @change
    def heal(self, address: IpAddress, *, reason: str) -> None:
        old = self.view.address(address)
        if old is None or not old.is_lost:
            return
        self._disk.write(sql.DELETE_LOST, {"address": address}, subject=f"marking {address} as found")
        healed = replace(old, lost_since=None, lost_reason="")
        if not healed.has_row:
            self._write(old, healed)
        self.view.addresses.changes[address] = healed
        self._log(LedgerEvent.HEALED, about=old, detail=reason)

    @change
    def put_doubts(self, doubts: Doubts) -> None:
        self._disk.write(sql.DELETE_DOUBTS, {}, subject="forgetting doubts")
        self._disk.write(sql.INSERT_DOUBT, sql.doubt_params(doubts), subject="recording doubts")
        self.view.doubts = doubts

    # Records besides addresses: tombstones, intents, pods that the policy agent may know, rows of `meta`, events in the ledger.

    @change
    def put_tombstone(self, key: AttachmentKey) -> None:
        self._write_tombstone(key, Tombstone(self._now, self._now_s))
        self._log(LedgerEvent.TOMBSTONED, key=key)

    @change
    def drop_tombstones(self, *, older_than: timedelta) -> int:
        before_s = self._now_s - older_than.total_seconds()
        old: list[AttachmentKey] = []
        for key, tombstone in self.view.tombstones.all().items():
            if tombstone.at_monotonic_s < before_s:
                old.append(key)
        self._disk.write(sql.DELETE_TOMBSTONE, [key_params(key) for key in old], subject="dropping old tombstones")
        self.view.tombstones.changes.update(dict.fromkeys(old))
        return len(old)

    def _write_tombstone(self, key: AttachmentKey, tombstone: Tombstone) -> None:
        params = sql.spell_tombstone(tombstone) | key_params(key)
        self._disk.write(sql.UPSERT_TOMBSTONE, params, subject=f"recording DEL of {key}")
        self.view.tombstones.changes[key] = tombstone

    @change
    def open_intent(self, intent: Intent) -> None:
        if self.view.intents.get(intent.intent_id) is not None:
            raise failure(InvariantError, FailureCode.INTENT_OPEN, intent=intent.intent_id)
        for address in self._addresses_to_release(intent):
            row = self.view.address(address)  # this claims the address, so that no ADD reserves it before the intent is committed
            _require_releasable(address, row, eni_id=intent.eni_id)
        self._put_intent(sql.INSERT_INTENT, intent, at=intent.opened_at)

    def _addresses_to_release(self, intent: Intent) -> Sequence[IpAddress]:
        """List the addresses that leave the pool when an intent is carried out; () if the intent releases none."""
        if intent.kind is IntentKind.UNASSIGN:
            singles, prefixes = objects_to_release(intent)
            recorded = {row.address for row in self.view.addresses.all().values() if row.prefix in prefixes}
            return sorted(all_addresses(singles, prefixes) | recorded)
        if intent.kind is IntentKind.DELETE_ENI:
            return [row.address for row in self.view.addresses_of(intent.eni_id)]
        return ()

    @change
    def update_intent(self, intent: Intent) -> None:
        self._known_intent(intent.intent_id)
        self._put_intent(sql.UPSERT_INTENT, intent, now="now ")

    @change
    def close_intent(self, intent_id: str, *, outcome: str) -> None:
        intent = self._known_intent(intent_id)
        self._disk.write(sql.DELETE_INTENT, {"intent_id": intent_id}, subject=f"closing intent {intent_id}")
        self.view.intents.changes[intent_id] = None
        self._log(LedgerEvent.INTENT_CLOSED, eni_id=intent.eni_id, detail=f"{intent.kind} {intent_id}: {outcome}")

    @change
    def record_policy_pod(self, pod: PodName) -> None:
        if self.view.policy_pods.get(pod) is None:
            row: Params = {"namespace": pod.namespace, "pod": pod.pod, "since": self._now}
            self._disk.write(sql.INSERT_POLICY_POD, row, subject=f"recording that the policy agent may know {pod}")
            self.view.policy_pods.changes[pod] = self._now

    @change
    def erase_policy_pod(self, pod: PodName) -> None:
        if self.view.policy_pods.get(pod) is not None:
            row: Params = {"namespace": pod.namespace, "pod": pod.pod}
            self._disk.write(sql.DELETE_POLICY_POD, row, subject=f"recording that the policy agent forgot {pod}")
            self.view.policy_pods.changes[pod] = None

    @change
    def mark_restored(self, *, detail: str, was_lost: bool = False, unplaced: Iterable[AttachmentKey] = ()) -> None:
        marks = {schema.RESTORED_AT: self._now, schema.UNPLACED: sql.spell_keys(unplaced)}
        if was_lost:
            marks[schema.LOST_AT] = self._now
        for name, value in marks.items():
            mark: Params = {"name": name, "value": value}
            self._disk.write(sql.UPSERT_META, mark, subject="marking the restore")
        self._log(LedgerEvent.RESTORED, detail=detail)

    @change
    def record_identity(self, identity: InstanceIdentity) -> None:
        row: Params = {"name": schema.IDENTITY, "value": sql.spell_identity(identity)}
        self._disk.write(sql.UPSERT_META, row, subject="recording the node's identity")
        self.view.identity = identity

    @change
    def record_marked(self) -> None:
        mark: Params = {"name": schema.MARKED_AT, "value": self._now}
        self._disk.write(sql.UPSERT_META, mark, subject="recording that pods are marked")
        self.view.are_pods_marked = True

    @change
    def record_event(
        self,
        event: LedgerEvent,
        *,
        address: IpAddress | None = None,
        key: AttachmentKey | None = None,
        detail: str,
    ) -> None:
        self._log(event, address=address, key=key, detail=detail)

    # State changes of one address and of its attachment. The table in `model.address` has all changes of state that are allowed.
    #
    # An address and its attachment change together: the schema's constraints allow neither without the other (I1).

    @change
    def confirm(self, attachment: Attachment) -> None:
        if attachment.is_of_pool:
            self._assign(attachment, AddressEvent.CONFIRM)
        else:
            self._attach_uplinked(attachment)

    @change
    def adopt(self, attachment: Attachment) -> None:
        if attachment.is_of_pool:
            self._assign(attachment, AddressEvent.ADOPT)
        else:
            self._attach_uplinked(attachment, is_adopted=True)

    def _attach_uplinked(self, attachment: Attachment, *, is_adopted: bool = False) -> None:
        """Record a sandbox with an uplink. Its address is in no pool, so no row of an address changes now, and none cools later."""
        key = attachment.key
        self._require_unattached(key)
        others, enis = self.view.attachments.all().values(), self.view.enis.all().values()
        require_unshared(attachment, row=self.view.address(attachment.address), others=others, enis=enis)
        recorded = replace(attachment, since_monotonic_s=self._now_s)
        subject = f"attaching {key} to {attachment.eni_id}"
        self._disk.write(UPLINKED_ROWS.insert, UPLINKED_ROWS.params(recorded), subject=subject)
        self.view.attachments.changes[key] = recorded
        if is_adopted:
            event, detail = LedgerEvent.ADOPTED, f"VLAN {attachment.uplink.vlan}" if attachment.uplink else ""
        else:
            event, detail = LedgerEvent.ASSIGNED, attachment.sandbox_name
        self._log(
            event, at=attachment.created_at, detail=detail, of=recorded, address=attachment.address, eni_id=attachment.eni_id
        )

    @change
    def record_contradiction(self, key: AttachmentKey, *, contradiction: str) -> Attachment:
        attachment = self._attached(key)
        marked = replace(attachment, contradiction=contradiction)
        self._put_attachment(marked, subject=f"marking {key}")
        if marked.objection != attachment.objection:
            event = LedgerEvent.LOST if marked.objection else LedgerEvent.HEALED
            self._log(event, detail=marked.objection, of=marked, address=attachment.address, eni_id=attachment.eni_id)
        return marked

    @change
    def move_table(self, key: AttachmentKey, *, route_table: int) -> Attachment:
        attachment = self._attached(key)
        return self._amend(
            replace(attachment, route_table=route_table),
            detail=f"its ENI's table is {route_table} now, and was {attachment.route_table}",
        )

    @change
    def rename_veth(self, key: AttachmentKey, *, host_veth: str) -> Attachment:
        attachment = self._attached(key)
        detail = f"its host veth is {host_veth} now, and was {attachment.host_veth}"
        return self._amend(
            replace(attachment, host_veth=host_veth, result=renamed_result(attachment.result, attachment.host_veth, host_veth)),
            detail=detail,
        )

    @change
    def record_extra_address(self, address: IpAddress, *, other_address: IpAddress) -> None:
        old = self.view.known_address(address)
        params: Params = {"key_address": old.address, "key_state": old.state, "other_address": other_address}
        self._disk.write(sql.UPDATE_OTHER_ADDRESS, params, subject=f"finding {other_address}")  # its state stays as it is (I8)
        self.view.addresses.changes[old.address] = replace(old, other_address=other_address)
        if old.owner is not None:
            amended = replace(self._attached(old.owner), other_address=other_address)
            self._amend(amended, detail=f"it has {other_address} of the other family")

    @change
    def unassign(
        self, key: AttachmentKey, *, cooldown: timedelta, reason: str, event: LedgerEvent = LedgerEvent.UNASSIGNED
    ) -> Attachment:
        attachment = self._attached(key)
        subject = f"unassigning {attachment.address} from {key}"
        self._disk.write(_rows_of(attachment).delete, key_params(key), subject=subject)
        self.view.attachments.changes[key] = None
        if not attachment.is_of_pool:
            self._log(event, address=attachment.address, eni_id=attachment.eni_id, detail=reason, of=attachment)
            return attachment
        self._move(attachment.address, AddressEvent.UNASSIGN, log=event, reason=reason, cooldown=cooldown, of=attachment)
        return attachment

    @change
    def abort(self, address: IpAddress, *, cooldown: timedelta, reason: str) -> None:
        self._move(address, AddressEvent.ABORT, log=LedgerEvent.ABORTED, reason=reason, cooldown=cooldown)

    @change
    def return_unused(self, address: IpAddress, *, cooldown: timedelta, reason: str) -> None:
        if self.view.known_address(address).is_lost:
            self.abort(address, cooldown=cooldown, reason=reason)
        else:
            self._move(address, AddressEvent.RETURN, log=LedgerEvent.ABORTED, reason=reason)

    @change
    def free(self, address: IpAddress, *, reason: str) -> None:
        old = self.view.known_address(address)
        if old.is_lost:
            old.after(AddressEvent.COOLED)
            self._remove([old], reason=f"{reason}; lost: {old.lost_reason}")
        else:
            self._move(address, AddressEvent.COOLED, log=LedgerEvent.COOLED, reason=reason)

    @change
    def quarantine(self, address: IpAddress, *, reason: str) -> None:
        self._move(address, AddressEvent.DISAGREE, log=LedgerEvent.QUARANTINED, reason=reason)

    @change
    def resolve(self, address: IpAddress, *, cooldown: timedelta, reason: str) -> None:
        self._move(address, AddressEvent.RESOLVE, log=LedgerEvent.RESOLVED, reason=reason, cooldown=cooldown)

    @change
    def end_keeping(self, address: IpAddress, *, reason: str) -> None:
        old = self.view.known_address(address)
        if old.kept_for is None or old.state is AddressState.RESERVED:  # the ADD of its pod ends the mark
            return
        self._write(old, replace(old, kept_for=None, kept_until_s=None))
        self._log(LedgerEvent.KEEPING_ENDED, about=old, detail=f"{reason}; it was kept for {old.kept_for}")

    def _known_intent(self, intent_id: str) -> Intent:
        intent = self.view.intents.get(intent_id)
        if intent is None:
            raise failure(InvariantError, FailureCode.INTENT_NOT_OPEN, intent=intent_id)
        return intent

    def _put_intent(self, statement: Statement, intent: Intent, *, now: str = "", **fields: Any) -> None:
        self._disk.write(statement, sql.intent_params(intent), subject=f"recording intent {intent.intent_id}")
        self.view.intents.changes[intent.intent_id] = intent
        # `ipamd/eni/earlier_changes.py::remember_released` parses this text at the next start, in the ledger or the history.
        payload = ", ".join(f"{name}={value}" for name, value in sorted(intent.payload.items()))
        self._log(
            LedgerEvent.INTENT_OPENED, detail=f"{now}{intent.kind} {intent.intent_id}: {payload}", eni_id=intent.eni_id, **fields
        )

    def _attached(self, key: AttachmentKey) -> Attachment:
        attachment = self.view.attachments.get(key)
        if attachment is None:
            raise failure(UnknownAttachmentError, FailureCode.NOT_ATTACHED, sandbox=key)
        return attachment

    def _amend(self, amended: Attachment, *, detail: str) -> Attachment:
        """Replace the recorded wiring of a sandbox; its address stays."""
        self._put_attachment(amended, subject=f"amending {amended.key}: {detail}")
        self._log(LedgerEvent.REPAIRED, address=amended.address, eni_id=amended.eni_id, detail=detail, of=amended)
        return amended

    def _put_attachment(self, attachment: Attachment, *, subject: str) -> None:
        rows = _rows_of(attachment)
        self._disk.write(rows.upsert, rows.params(attachment), subject=subject)
        self.view.attachments.changes[attachment.key] = attachment

    def _require_unattached(self, key: AttachmentKey, *, reserved_for_key: IpAddress | None = None) -> None:
        """Raise InvariantError if the sandbox is attached, if an address other than `reserved_for_key` is reserved for it, or if its
        DEL was done.
        """
        reserved = self.view.memory.reservations.get(key)
        if reserved is not None and reserved != reserved_for_key:
            raise failure(InvariantError, FailureCode.BEING_GIVEN, sandbox=key, address=reserved)
        present = self.view.attachments.get(key)
        if present is not None:
            raise failure(InvariantError, FailureCode.ATTACHED_ALREADY, sandbox=key, address=present.address)
        if self.view.tombstones.get(key) is not None:
            raise failure(InvariantError, FailureCode.DELETED_BEFORE, sandbox=key)

    def _assign(self, attachment: Attachment, event: AddressEvent) -> None:
        key = attachment.key
        old = self.view.known_address(attachment.address)
        state = old.after(event)
        is_confirmed = event is AddressEvent.CONFIRM
        if is_confirmed:
            if old.owner != key:
                raise failure(InvariantError, FailureCode.ADDRESS_RESERVED, address=old.address, owner=old.owner, sandbox=key)
        else:
            holder = self._uplinked().get(old.address)
            if holder is not None:
                raise failure(InvariantError, FailureCode.ADDRESS_OF_UPLINK, address=old.address, sandbox=holder)
        if old.eni_id != attachment.eni_id:
            raise failure(
                InvariantError,
                FailureCode.ADDRESS_ON_OTHER_ENI,
                address=old.address,
                eni=old.eni_id,
                wanted_eni=attachment.eni_id,
            )
        self._require_unattached(key, reserved_for_key=old.address if is_confirmed else None)
        if is_confirmed and attachment.other_address != old.other_address:
            reserved_for = f"{attachment.other_address} is not {old.other_address}, which is reserved for {key}"
            raise failure(InvariantError, FailureCode.OTHER_ADDRESS_NOT_RESERVED, reserved_for=reserved_for)
        params, subject = POOL_ROWS.params(attachment), f"assigning {old.address} to {key}"
        self._disk.write(POOL_ROWS.insert, params, subject=subject)
        at, log = attachment.created_at, LedgerEvent.ASSIGNED if is_confirmed else LedgerEvent.ADOPTED
        taken = replace(old, state=state, since=at, since_monotonic_s=self._now_s, owner=key, reason="", **self._cooling(None))
        self._write(old, replace(taken, other_address=attachment.other_address, kept_for=None, kept_until_s=None))
        self.view.attachments.changes[key] = attachment
        detail = attachment.sandbox_name if is_confirmed else f"was {old.state}"
        self._log(log, at=at, about=old, detail=detail, of=attachment)

    def _move(
        self,
        address: IpAddress,
        event: AddressEvent,
        *,
        log: LedgerEvent,
        reason: str,
        cooldown: timedelta | None = None,
        of: Attachment | None = None,
    ) -> None:
        """Give an address the state that follows the event, and remove its owner.

        `cooldown`: must be given if that state is `cooling`.
        `of`: the attachment that had the address. If its pod asked for the address, the address is kept for the pod for `kept_s`.
        """
        old = self.view.known_address(address)
        state = old.after(event)
        new = replace(
            old,
            state=state,
            other_address=None if state is AddressState.FREE else old.other_address,
            since=self._now,
            since_monotonic_s=self._now_s,
            owner=None,
            reason=reason,
            **self._cooling(cooldown),
        )
        if of is not None and of.kept_s is not None:
            new = replace(new, kept_for=of.sandbox_name, kept_until_s=self._now_s + of.kept_s)
        self._write(old, new)
        self._log(log, about=old, detail=reason, of=of)

    # Changes to the pool itself: ENIs, and the addresses that EC2 assigns to them or takes away.
    #
    # An address is added only for a recorded ENI (I7), never if it is a primary address (I6), and removed only if no sandbox has it
    # (I2).

    @change
    def put_eni(self, eni: Eni) -> None:
        recorded = self.view.enis.get(eni.eni_id)
        if recorded == eni:
            return
        self._require_own_primary(eni)
        self._disk.write(
            sql.UPSERT_ENI,
            spelling(schema.eni, "excluded", "pool")(eni) | {"excluded": eni.excluded or None, "pool": eni.pool or None},
            subject=f"recording {eni.eni_id}",
        )
        self.view.enis.changes[eni.eni_id] = eni
        ready = "host routing ready" if eni.host_ready else "host routing not ready"
        detail = f"device {eni.device_index} on card {eni.network_card}, {eni.state}, {ready}"
        if not eni.managed:
            detail += ", not managed"
        event = LedgerEvent.ENI_CHANGED if recorded else LedgerEvent.ENI_ADDED
        self._log(event, address=eni.primary_address, eni_id=eni.eni_id, detail=detail)

    def _require_own_primary(self, eni: Eni) -> None:
        """Raise InvariantError if an ENI's primary address is also recorded in the pool, for a sandbox, or for another ENI."""
        if self.view.address(eni.primary_address) is not None:
            raise failure(InvariantError, FailureCode.PRIMARY_IN_POOL, address=eni.primary_address, eni=eni.eni_id)
        sandbox = self._uplinked().get(eni.primary_address)
        if sandbox is not None:
            raise failure(
                InvariantError, FailureCode.PRIMARY_OF_SANDBOX, address=eni.primary_address, eni=eni.eni_id, sandbox=sandbox
            )
        holder = self.view.eni_of_primary(eni.primary_address)
        if holder is not None and holder != eni.eni_id:
            raise failure(
                InvariantError, FailureCode.PRIMARY_OF_OTHER_ENI, address=eni.primary_address, eni=eni.eni_id, holder=holder
            )

    @change
    def remove_eni(self, eni_id: EniId, *, reason: str) -> None:
        eni = self.view.enis.get(eni_id)
        if eni is None:
            return
        self._remove(self.view.addresses_of(eni_id), reason=reason)
        self._disk.write(sql.DELETE_ENI, {"eni_id": eni_id}, subject=f"forgetting {eni_id}")
        self.view.enis.changes[eni_id] = None
        self._log(LedgerEvent.ENI_REMOVED, address=eni.primary_address, eni_id=eni_id, detail=reason)

    @change
    def add_addresses(
        self,
        eni_id: EniId,
        addresses: Iterable[IpAddress],
        *,
        prefix: IpNetwork | None = None,
        cooldown: timedelta | None = None,
    ) -> None:
        if self.view.enis.get(eni_id) is None:
            raise failure(InvariantError, FailureCode.ENI_UNKNOWN, eni=eni_id)
        uplinked = self._uplinked()
        fresh = [address for address in sorted(set(addresses)) if self._is_fresh(address, eni_id, prefix, uplinked)]
        if not fresh:
            return
        place = "" if prefix is None else f"in prefix {prefix}"
        subject = f"adding {fresh[0]} and {len(fresh) - 1} more to {eni_id} {place}"
        if prefix is not None:
            self._disk.write(sql.INSERT_PREFIX, {"prefix": prefix, "eni_id": eni_id}, subject=subject)
        first = self._new_row(fresh[0], eni_id, prefix, cooldown)
        rows = [replace(first, address=address) for address in fresh]
        self._disk.write(sql.INSERT_ADDRESS, list(map(address_params, rows)), subject=subject)
        for row in rows:
            self.view.addresses.changes[row.address] = row
            self._log(LedgerEvent.ADDED, about=row, detail="" if prefix is None else f"in {prefix}")

    def _new_row(self, address: IpAddress, eni_id: EniId, prefix: IpNetwork | None, cooldown: timedelta | None) -> Address:
        """Return the row of a new address of the pool: cooling if there is a cooldown. The row that stands for all addresses of a /80
        without a row of their own (`Address.is_rest`) is free at once.

        Raises: InvariantError for any other address of a /80.
        """
        state = AddressState.FREE if cooldown is None else AddressState.COOLING
        row = Address(address, eni_id, state, self._now, prefix, since_monotonic_s=self._now_s, **self._cooling(cooldown))
        if row.is_rest:
            return replace(row, state=AddressState.FREE, **self._cooling(None))
        if not replace(row, state=AddressState.FREE).has_row:
            raise failure(InvariantError, FailureCode.ADDRESS_NOT_OF_PREFIX, address=row.address, prefix=prefix)
        return row

    @change
    def remove_addresses(self, addresses: Iterable[IpAddress], *, reason: str) -> None:
        rows = (self.view.address(address) for address in sorted(set(addresses)))
        removed = [row for row in rows if row is not None]
        whole_prefixes = {row.prefix for row in removed if row.is_rest}
        if whole_prefixes:
            removed += self._in_use_of(whole_prefixes)
        self._remove(removed, reason=reason)

    def _in_use_of(self, prefixes: Container[IpNetwork | None]) -> Iterator[Address]:
        """Yield the addresses of these prefixes that are in use and not lost."""
        for row in self.view.addresses.all().values():
            if row.prefix in prefixes and row.is_in_use and not row.is_lost:
                yield row

    def _is_fresh(
        self, address: IpAddress, eni_id: EniId, prefix: IpNetwork | None, uplinked: Mapping[IpAddress, AttachmentKey]
    ) -> bool:
        """Whether an address is not in the pool yet. Raises: InvariantError if it cannot be on this ENI."""
        if prefix is not None:
            _require_in_prefix(address, prefix)
        holder = self.view.eni_of_primary(address)
        if holder is not None:
            raise failure(InvariantError, FailureCode.ADDRESS_IS_PRIMARY, address=address, holder=holder)
        _require_not_uplinked(address, prefix, uplinked)
        recorded = self.view.address(address)
        if recorded is not None and recorded.eni_id != eni_id:
            raise failure(InvariantError, FailureCode.ADDRESS_ELSEWHERE, address=address, eni=recorded.eni_id, wanted_eni=eni_id)
        return recorded is None

    def _uplinked(self) -> dict[IpAddress, AttachmentKey]:
        """Return the sandboxes with an uplink (a branch ENI), by their address."""
        return {row.address: row.key for row in self.view.attachments.all().values() if not row.is_of_pool}

    def end(self) -> None:
        """Refuse further use."""
        self._is_ended = True


def _require_unused(rows: Iterable[Address]) -> None:
    """Raise InvariantError if one of the addresses is in use (I2)."""
    in_use = [row for row in rows if row.is_in_use]
    if in_use:
        names = ", ".join(f"{row.address} ({row.state} to {row.owner})" for row in in_use[:3])
        raise failure(InvariantError, FailureCode.ADDRESSES_IN_USE, count=len(in_use), addresses=names)


def _require_releasable(address: IpAddress, row: Address | None, *, eni_id: EniId) -> None:
    """Raise InvariantError unless an address is free and on the ENI from which it is to be released (I2)."""
    if row is None:
        problem = "not known"
    elif not row.is_free:
        problem = str(row.state)
    elif row.eni_id != eni_id:
        problem = f"{row.state} on {row.eni_id}"
    else:
        return
    raise failure(InvariantError, FailureCode.ADDRESS_NOT_RELEASABLE, address=address, eni=eni_id, problem=problem)


def _require_in_prefix(address: IpAddress, prefix: IpNetwork) -> None:
    """Raise InvariantError unless the prefix has the length of EC2's prefixes and contains the address."""
    length = family_of(address).prefix_length
    if prefix.prefixlen != length or address not in prefix:
        raise failure(InvariantError, FailureCode.ADDRESS_OUTSIDE_PREFIX, address=address, length=length, prefix=prefix)


def _require_not_uplinked(address: IpAddress, prefix: IpNetwork | None, uplinked: Mapping[IpAddress, AttachmentKey]) -> None:
    """Raise InvariantError if a sandbox has the address by its uplink (I1).

    The row of the last address of a /80 stands for all its addresses without a row. So the whole /80 is checked when that row is
    added, and no ADD has to check whether a sandbox has the address by an uplink.
    """
    whole_prefix = prefix if prefix is not None and family_of(prefix).is_sparse else None
    for own_address, key in uplinked.items():
        if own_address == address or (whole_prefix is not None and own_address in whole_prefix):
            raise failure(InvariantError, FailureCode.ADDRESS_OF_UPLINK, address=own_address, sandbox=key)


def _rows_of(attachment: Attachment) -> AttachmentRows:
    """Return the statements of the table to which an attachment belongs."""
    return POOL_ROWS if attachment.is_of_pool else UPLINKED_ROWS
