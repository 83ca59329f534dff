"""One unit of work: each change goes to the open transaction at once, and to memory only after COMMIT."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ipamd.datastore import rows as sql
from ipamd.datastore import schema
from ipamd.datastore.disk import Disk
from ipamd.datastore.memory_state import MemoryState, View
from ipamd.datastore.rows import Params, address_params, key_params
from ipamd.model.address import Address, AddressEvent, AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.branch import BranchEni
from ipamd.model.cloud import InstanceIdentity, all_addresses
from ipamd.model.cniresult import renamed_result
from ipamd.model.eni import Eni
from ipamd.model.errors import DatastoreError, InvariantError, UnknownAttachmentError
from ipamd.model.evidence import Doubts
from ipamd.model.family import IpAddress, IpNetwork, family_of
from ipamd.model.history import UNKEPT, HistoryRecord, LedgerEvent
from ipamd.model.ids import AttachmentKey, EniId, PodName
from ipamd.model.intent import Intent, IntentKind, named
from ipamd.model.snapshot import Tombstone, branch_conflict
from ipamd.ports import Clock

P = ParamSpec("P")
R = TypeVar("R")

_BRANCH_ROW = sql.UPSERT_BRANCH, sql.branch_params


def change(method: Callable[Concatenate[UnitOfWork, P], R]) -> Callable[Concatenate[UnitOfWork, P], R]:
    """Make a method fail the whole unit when it refuses, also if the caller swallows the error."""

    @wraps(method)
    def guarded(self: UnitOfWork, /, *args: P.args, **kwargs: P.kwargs) -> R:
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


class UnitOfWork:
    """Changes that become true together, on disk and in memory, or not at all. Made by `Datastore.transaction`.

    Every change writes its ledger row in the same transaction. All changes of one unit have one time, the clock's when it was
    opened; `cooldown` counts from then. Nothing outside SQLite may be called while one is open (I10).

    Every change is checked against the transition table and the view, then written with a compare-and-set on the state it was checked
    against; the constraints of `schema` stand behind both. All methods raise InvariantError when a constraint refuses,
    IllegalTransitionError for a wrong address state. The first refusal fails the whole unit, so that a caller that catches the error
    cannot commit half of it.

    `failure` is the error that failed the unit; from then on every change raises it.
    `recorded` is what the history is told once it is committed; `ledger_rows` are written last before COMMIT.
    """

    def __init__(self, *, disk: Disk, memory: MemoryState, clock: Clock) -> None:
        self.view = View(memory)
        self._disk = disk
        # One time for all changes of a unit, taken once the transaction is ours: waiting for it is not part of a cooldown.
        self._now = clock.now()
        self._now_s = clock.monotonic()
        self.ledger_rows: list[Params] = []
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
        detail: str = "",
        about: Address | None = None,
        of: Attachment | None = None,
        at: datetime | None = None,
        address: IpAddress | None = None,
        eni_id: str = "",
        key: AttachmentKey | None = None,
    ) -> None:
        """Write a row to the ledger, and remember it for the history.

        `about`: an address as it was; `of`: the attachment that the event is about, by default the one that has this address.
        """
        if about is not None:
            address, eni_id, key = about.address, about.eni_id, about.owner
            of = of or (self.view.attachments.get(key) if key else None)
        pod, since, other = "", None, ""
        if of is not None:
            key, pod, since, other = of.key, of.sandbox_name, of.created_at, str(of.other_address or "")
        row = key_params(key) | {"at": at or self._now, "event": event.value, "address": str(address or ""), "eni_id": eni_id}
        self.ledger_rows.append({**row, "detail": detail})
        if event not in UNKEPT:
            told = "" if detail == pod else detail
            self.recorded.append(HistoryRecord(**row, detail=told, pod=pod, since=since, other_address=other))

    def _cooling(self, cooldown: timedelta | None) -> dict[str, Any]:
        """When a cooldown ends, on both clocks: the wall clock may be stepped while no daemon runs (I8)."""
        if cooldown is None:
            return {"cooling_until": None, "cooldown_deadline_s": None}
        return {"cooling_until": self._now + cooldown, "cooldown_deadline_s": self._now_s + cooldown.total_seconds()}

    def _write(self, old: Address, new: Address | None) -> None:
        """Replace the row of an address, make it or remove it; memory and disk must agree on what it was."""
        state = AddressState.FREE if old.state is AddressState.RESERVED else old.state
        params: Params = {"key_address": old.address, "key_state": state}
        new, subject = new if new is not None and new.has_row else None, f"changing address {old.address}"
        if old.is_rest and new is not None:
            raise InvariantError(f"address {old.address} stands for the rest of {old.prefix}", details="it is nobody's")
        if not old.has_row:
            written = self._insert(new, subject) if new else 1
        elif new is not None:
            written = self._disk.write(sql.UPDATE_ADDRESS, params | sql.state_params(new), subject=subject)
        else:
            written = self._disk.write(sql.DELETE_ADDRESS, params, subject=subject)
        if written != 1:
            raise InvariantError(
                f"address {old.address} is {old.state} in memory but not on disk",
                details="nothing was changed; `ipamctl audit` compares them all; restarting ipamd reads the disk again",
            )
        self.view.addresses.changes[old.address] = new

    def _insert(self, new: Address, subject: str) -> int:
        """Make the row of an address of a /80, and record how far its addresses were given: no restart goes back behind it (I8)."""
        is_reserved = new.state is AddressState.RESERVED  # and lost: on disk it is free (I5)
        on_disk = replace(new, state=AddressState.FREE, owner=None, other_address=None) if is_reserved else new
        cursor: Params = {"name": schema.CURSOR, "value": str(self.view.memory.rows.cursor)}
        self._disk.write(sql.UPSERT_META, cursor, subject=subject)
        return self._disk.write(sql.INSERT_ADDRESS, address_params(on_disk), subject=subject)

    def _remove(self, addresses: Iterable[Address], *, reason: str) -> None:
        """Forget addresses, with the prefixes of which none is left; none of them may have a sandbox (I2)."""
        found = [address for address in addresses if address.has_row or address.is_in_use]
        held = [address for address in found if address.is_in_use]
        if held:
            names = ", ".join(f"{address.address} ({address.state} to {address.owner})" for address in held[:3])
            raise InvariantError(f"addresses cannot be forgotten: {len(held)} in use", details=f"I2: {names}")
        for address in found:
            self._write(address, None)
            self._log(LedgerEvent.REMOVED, about=address, detail=reason)
        if any(address.prefix for address in found):
            self._disk.write(sql.DELETE_EMPTY_PREFIXES, {}, subject="forgetting prefixes")

    # Addresses that EC2 does not show any more, and those that it shows again.
    #
    # `lost` is laid over the states of an address and kept in a table of its own, so that the release before can use the file. A lost
    # address keeps its sandbox (I2) and is given to nobody again (I7): where it would become free it is removed.

    @change
    def lose(self, address: IpAddress, *, reason: str) -> None:
        """EC2 does not show an address any more: it is given to nobody again (I7).

        A lost address keeps its state and its sandbox (I2), and is removed where it would become free. With the rest of a /80 all of
        it is lost, what was reserved a moment ago too. Repeatable; an unknown address is fine.
        """
        old = self.view.address(address)
        if old is None or old.is_lost or (old.state is AddressState.FREE and not old.has_row):
            return
        if old.is_rest:
            for row in self.view.addresses.all().values():
                if row.prefix == old.prefix and not row.is_rest:
                    self.lose(row.address, reason=reason)
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

    @change
    def heal(self, address: IpAddress, *, reason: str) -> None:
        """EC2 shows a lost address again. Repeatable; an unknown address, or one that is not lost, is fine."""
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
        """Replace what is recorded of ENIs and addresses that EC2 did not show lately. Writes no ledger row: most doubts end at the
        next look.
        """
        self._disk.write(sql.DELETE_DOUBTS, {}, subject="forgetting doubts")
        self._disk.write(sql.INSERT_DOUBT, sql.doubt_params(doubts), subject="recording doubts")
        self.view.doubts = doubts

    # Changes to what is recorded besides addresses: tombstones, intents, the mark of a finished restore, notes in the ledger.

    @change
    def put_tombstone(self, key: AttachmentKey) -> None:
        """Remember that DEL was done for a key: a late ADD is refused (I4). Replaces an earlier tombstone of the key."""
        self._bury(key, Tombstone(self._now, self._now_s))
        self._log(LedgerEvent.TOMBSTONED, key=key)

    @change
    def drop_tombstones(self, *, older_than: timedelta) -> int:
        """Forget tombstones older than an age on the monotonic clock; returns how many. One of unknown age is dated now.

        Writes no ledger row: the row of the DEL itself stays.
        """
        before_s = self._now_s - older_than.total_seconds()
        old: list[AttachmentKey] = []
        for key, found in self.view.tombstones.all().items():
            if found.at_monotonic_s is None:  # the release before wrote it: its age counts from now
                self._bury(key, replace(found, at_monotonic_s=self._now_s))
            elif found.at_monotonic_s < before_s:
                old.append(key)
        self._disk.write(sql.DELETE_TOMBSTONE, [key_params(key) for key in old], subject="dropping old tombstones")
        self.view.tombstones.changes.update(dict.fromkeys(old))
        return len(old)

    def _bury(self, key: AttachmentKey, tombstone: Tombstone) -> None:
        params = sql.spell_tombstone(tombstone) | key_params(key)
        self._disk.write(sql.UPSERT_TOMBSTONE, params, subject=f"recording DEL of {key}")
        self.view.tombstones.changes[key] = tombstone

    @change
    def open_intent(self, intent: Intent) -> None:
        """Record what we are about to ask of EC2, before asking (I9).

        Raises: InvariantError if it is open already, or releases an address (`unassign`), or an ENI with an address (`delete-eni`),
            that is not free (I2).
        """
        if self.view.intents.get(intent.intent_id) is not None:
            raise InvariantError(f"intent {intent.intent_id} is open already", details="I9: each has its own ID")
        leaving: Iterable[IpAddress] = ()
        if intent.kind is IntentKind.UNASSIGN:
            singles, prefixes = named(intent)
            recorded = {row.address for row in self.view.addresses.all().values() if row.prefix in prefixes}
            leaving = sorted(all_addresses(singles, prefixes) | recorded)
        elif intent.kind is IntentKind.DELETE_ENI:
            leaving = [row.address for row in self.view.addresses_of(intent.eni_id)]
        for address in leaving:
            row = self.view.address(
                address
            )  # claimed: no reservation comes between this check and the hold that begins with the intent
            if row is None or not row.is_free or row.eni_id != intent.eni_id:
                what = "not known" if row is None else f"{row.state} on {row.eni_id}" if row.is_free else str(row.state)
                raise InvariantError(f"{address} of {intent.eni_id} cannot be released: it is {what}", details="I2")
        self._put_intent(sql.INSERT_INTENT, intent, at=intent.opened_at)

    @change
    def update_intent(self, intent: Intent) -> None:
        """Replace the payload of an open intent (an ENI ID learnt on the way, say). Raises: InvariantError if it is not open."""
        self._known_intent(intent.intent_id)
        self._put_intent(sql.UPSERT_INTENT, intent, now="now ")

    @change
    def close_intent(self, intent_id: str, *, outcome: str) -> None:
        """Close an intent, with its outcome for the ledger. Raises: InvariantError if it is not open."""
        intent = self._known_intent(intent_id)
        self._disk.write(sql.DELETE_INTENT, {"intent_id": intent_id}, subject=f"closing intent {intent_id}")
        self.view.intents.changes[intent_id] = None
        self._log(LedgerEvent.INTENT_CLOSED, eni_id=intent.eni_id, detail=f"{intent.kind} {intent_id}: {outcome}")

    @change
    def owe(self, pod: PodName) -> None:
        """The network policy agent may know a pod's name from now on. Repeatable; writes no ledger row."""
        if self.view.owed.get(pod) is None:
            row: Params = {"namespace": pod.namespace, "pod": pod.pod, "since": self._now}
            self._disk.write(sql.INSERT_OWED, row, subject=f"recording that the policy agent may know {pod}")
            self.view.owed.changes[pod] = self._now

    @change
    def forget_owed(self, pod: PodName) -> None:
        """The network policy agent confirmed that it does not know a pod's name. One that is not owed is fine."""
        if self.view.owed.get(pod) is not None:
            row: Params = {"namespace": pod.namespace, "pod": pod.pod}
            self._disk.write(sql.DELETE_OWED, row, subject=f"recording that the policy agent forgot {pod}")
            self.view.owed.changes[pod] = None

    @change
    def mark_restored(self, *, detail: str, was_lost: bool = False) -> None:
        """Record that kernel and runtime were read completely: from now on this datastore knows every sandbox.

        `was_lost`: rows of this boot were lost before; that is remembered, because no source tells what else they knew.
        """
        for name in (schema.RESTORED_AT, *([schema.LOST_AT] if was_lost else [])):
            mark: Params = {"name": name, "value": self._now}
            self._disk.write(sql.UPSERT_META, mark, subject="marking the restore")
        self._log(LedgerEvent.RESTORED, detail=detail)

    @change
    def record_identity(self, identity: InstanceIdentity) -> None:
        """Record what instance metadata said of the node."""
        said: Params = {"name": schema.IDENTITY, "value": sql.spell_identity(identity)}
        self._disk.write(sql.UPSERT_META, said, subject="recording the node's identity")
        self.view.identity = identity

    @change
    def record_marked(self) -> None:
        """Record that a pod had the admission policy's mark."""
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
        """Append a ledger row that no other change writes (a refusal, a repair, a verdict)."""
        self._log(event, address=address, key=key, detail=detail)

    # Changes in the life of one address, by the table in `model.address`, and of the attachment that has it.
    #
    # An address and its attachment change together: the schema's constraints let neither exist without the other (I1).

    @change
    def confirm(self, attachment: Attachment) -> None:
        """reserved -> assigned, with the attachment. InvariantError if the reservation is not this key's.

        Until COMMIT has succeeded memory keeps the address reserved, so that the caller can abort.
        """
        self._assign(attachment, AddressEvent.CONFIRM)

    @change
    def adopt(self, attachment: Attachment) -> None:
        """free, cooling or quarantined -> assigned for a wired sandbox that the datastore did not know.

        A key that has a reservation is refused: an ADD for it is at work.
        """
        self._assign(attachment, AddressEvent.ADOPT)

    @change
    def attach_branch(self, attachment: Attachment, *, is_adopted: bool = False) -> None:
        """Record a sandbox with a branch ENI, whose address is in no pool: no row of an address changes, and none cools later.

        Raises: InvariantError if the sandbox has an address, its DEL was done, or something of the branch ENI is somebody else's (I1).
        """
        key, branch = attachment.key, attachment.branch
        if branch is None or attachment.route_table != branch.route_table:
            raise InvariantError(f"sandbox {key} has no branch ENI, or another table than its VLAN's")
        self._require_unattached(key)
        attachments, enis = self.view.attachments.all().values(), self.view.enis.all().values()
        row, wanted = self.view.address(attachment.address), BranchEni.of(attachment)
        if problem := branch_conflict(wanted, key, row=row, others=attachments, enis=enis):
            raise InvariantError(f"sandbox {key} cannot be attached: {problem}", details="I1")
        recorded = replace(attachment, since_monotonic_s=self._now_s)
        self._disk.write(sql.INSERT_BRANCH, sql.branch_params(recorded), subject=f"attaching {key} to {attachment.eni_id}")
        self.view.attachments.changes[key] = recorded
        log, detail = (
            (LedgerEvent.ADOPTED, f"VLAN {branch.vlan}") if is_adopted else (LedgerEvent.ASSIGNED, attachment.sandbox_name)
        )
        self._log(log, at=attachment.created_at, detail=detail, of=recorded, address=attachment.address, eni_id=attachment.eni_id)

    @change
    def mark_branch(self, key: AttachmentKey, *, contradiction: str) -> Attachment:
        """Record what EC2 says against an attached sandbox's branch ENI, "" for nothing. Writes a ledger row if that is news.

        Returns: the attachment as it is now. UnknownAttachmentError, which does not fail the unit, if there is none.
        """
        known = self._attached(key)
        marked = replace(known, contradiction=contradiction)
        self._put_attachment(marked, subject=f"marking {key}")
        if contradiction != (known.contradiction or ""):
            event = LedgerEvent.LOST if contradiction else LedgerEvent.HEALED
            self._log(event, detail=contradiction, of=marked, address=known.address, eni_id=known.eni_id)
        return marked

    @change
    def move_table(self, key: AttachmentKey, *, route_table: int) -> Attachment:
        """Record that an attached sandbox uses another route table now: its ENI was attached again at another device index.

        Returns: the attachment as it is now. UnknownAttachmentError, which does not fail the unit, if there is none.
        """
        known = self._attached(key)
        return self._amend(
            replace(known, route_table=route_table), detail=f"its ENI's table is {route_table} now, and was {known.route_table}"
        )

    @change
    def rename_veth(self, key: AttachmentKey, *, host_veth: str) -> Attachment:
        """Record that an attached sandbox's host veth has another name, which its stored result tells too.

        Returns: the attachment as it is now. UnknownAttachmentError, which does not fail the unit, if there is none.
        """
        known = self._attached(key)
        detail = f"its host veth is {host_veth} now, and was {known.host_veth}"
        return self._amend(
            replace(known, host_veth=host_veth, result=renamed_result(known.result, known.host_veth, host_veth)), detail=detail
        )

    @change
    def find_other(self, address: IpAddress, *, other_address: IpAddress) -> None:
        """Record what the sandbox of an assigned or quarantined address was found to have for egress.

        The file was lost, or taken back a level and up again. What is quarantined holds it back, and cools with it.
        """
        old = self.view.known_address(address)
        params: Params = {"key_address": old.address, "key_state": old.state, "other_address": other_address}
        self._disk.write(sql.UPDATE_OTHER_ADDRESS, params, subject=f"finding {other_address}")  # its state stays as it is (I8)
        self.view.addresses.changes[old.address] = replace(old, other_address=other_address)
        if old.owner is not None:
            known = replace(self._attached(old.owner), other_address=other_address)
            self._amend(known, detail=f"it has {other_address} for egress")

    @change
    def unassign(
        self, key: AttachmentKey, *, cooldown: timedelta, reason: str, event: LedgerEvent = LedgerEvent.UNASSIGNED
    ) -> Attachment:
        """assigned -> cooling; the attachment row goes. The address of a branch ENI does not cool here: it is not ours to give.

        `event` is what the ledger says: `unassigned` when the runtime asked, `reaped` when we concluded it. UnknownAttachmentError if
        there is none; it changes nothing and does not fail the unit: a DEL may come twice (I3).
        """
        attachment = self._attached(key)
        subject = f"unassigning {attachment.address} from {key}"
        statement = sql.DELETE_ATTACHMENT if attachment.branch is None else sql.DELETE_BRANCH
        self._disk.write(statement, key_params(key), subject=subject)
        self.view.attachments.changes[key] = None
        if attachment.branch is not None:
            self._log(event, address=attachment.address, eni_id=attachment.eni_id, detail=reason, of=attachment)
            return attachment
        self._move(attachment.address, AddressEvent.UNASSIGN, log=event, reason=reason, cooldown=cooldown, of=attachment)
        return attachment

    @change
    def abort(self, address: IpAddress, *, cooldown: timedelta, reason: str) -> None:
        """reserved -> cooling: an ADD failed after its reservation. On disk it was free: a reservation is in memory only (I5)."""
        self._move(address, AddressEvent.ABORT, log=LedgerEvent.ABORTED, reason=reason, cooldown=cooldown)

    @change
    def free(self, address: IpAddress, *, reason: str) -> None:
        """cooling -> free: its cooldown is over. A lost address is removed instead.

        The caller decides whether the address has cooled, by the monotonic clock: a wall clock may be stepped (I8).
        """
        old = self.view.known_address(address)
        if old.is_lost:
            old.after(AddressEvent.COOLED)
            self._remove([old], reason=f"{reason}; lost: {old.lost_reason}")
        else:
            self._move(address, AddressEvent.COOLED, log=LedgerEvent.COOLED, reason=reason)

    @change
    def quarantine(self, address: IpAddress, *, reason: str) -> None:
        """free, reserved or cooling -> quarantined: the sources disagree on who has it.

        Ends a reservation: the ADD that holds it can no longer confirm it.
        """
        self._move(address, AddressEvent.DISAGREE, log=LedgerEvent.QUARANTINED, reason=reason)

    @change
    def resolve(self, address: IpAddress, *, cooldown: timedelta, reason: str) -> None:
        """quarantined -> cooling: nothing claims the address any more. Its DEL may have come a moment ago (docs/adr/0012)."""
        self._move(address, AddressEvent.RESOLVE, log=LedgerEvent.RESOLVED, reason=reason, cooldown=cooldown)

    def _known_intent(self, intent_id: str) -> Intent:
        intent = self.view.intents.get(intent_id)
        if intent is None:
            raise InvariantError(f"intent {intent_id} is not open", details="I9")
        return intent

    def _put_intent(self, statement: sql.Statement, intent: Intent, *, now: str = "", **fields: Any) -> None:
        self._disk.write(statement, sql.intent_params(intent), subject=f"recording intent {intent.intent_id}")
        self.view.intents.changes[intent.intent_id] = intent
        # Read again after a lost datastore (`ipamd/eni/book.py::remember_released`).
        payload = ", ".join(f"{name}={value}" for name, value in sorted(intent.payload.items()))
        self._log(
            LedgerEvent.INTENT_OPENED, detail=f"{now}{intent.kind} {intent.intent_id}: {payload}", eni_id=intent.eni_id, **fields
        )

    def _attached(self, key: AttachmentKey) -> Attachment:
        known = self.view.attachments.get(key)
        if known is None:
            raise UnknownAttachmentError(f"sandbox {key} is not attached")
        return known

    def _amend(self, amended: Attachment, *, detail: str) -> Attachment:
        """Replace what is recorded of how a sandbox is wired; its address stays."""
        self._put_attachment(amended, subject=f"amending {amended.key}: {detail}")
        self._log(LedgerEvent.REPAIRED, address=amended.address, eni_id=amended.eni_id, detail=detail, of=amended)
        return amended

    def _put_attachment(self, attachment: Attachment, *, subject: str) -> None:
        statement, params = (sql.UPSERT_ATTACHMENT, sql.attachment_params) if attachment.branch is None else _BRANCH_ROW
        self._disk.write(statement, params(attachment), subject=subject)
        self.view.attachments.changes[attachment.key] = attachment

    def _require_unattached(self, key: AttachmentKey, *, own: IpAddress | None = None) -> None:
        """Raise InvariantError if the sandbox has an address, is just being given another one than `own`, or its DEL was done."""
        if (reserved := self.view.memory.reservations.get(key)) not in (None, own):
            raise InvariantError(f"sandbox {key} is just being given {reserved}", details="I1")
        present = self.view.attachments.get(key)
        if present is not None:
            raise InvariantError(f"sandbox {key} is attached with {present.address}", details="I1")
        if self.view.tombstones.get(key) is not None:
            raise InvariantError(f"sandbox {key} cannot be attached: its DEL was done", details="I4")

    def _assign(self, attachment: Attachment, event: AddressEvent) -> None:
        key = attachment.key
        old = self.view.known_address(attachment.address)
        state = old.after(event)
        is_confirmed = event is AddressEvent.CONFIRM
        if is_confirmed and old.owner != key:
            raise InvariantError(f"address {old.address} is reserved for {old.owner}, not for {key}", details="I1")
        if not is_confirmed and (other := self._branches().get(old.address)):
            raise InvariantError(f"address {old.address} is that of a branch ENI of sandbox {other}", details="I1")
        if old.eni_id != attachment.eni_id:
            raise InvariantError(f"address {old.address} is on {old.eni_id}, not on {attachment.eni_id}", details="I7")
        self._require_unattached(key, own=old.address if is_confirmed else None)
        if is_confirmed and attachment.other_address != old.other_address:
            reserved_for = f"{attachment.other_address} is not {old.other_address}, which is reserved for {key}"
            raise InvariantError(reserved_for, details="I1")
        params, subject = sql.attachment_params(attachment), f"assigning {old.address} to {key}"
        self._disk.write(sql.INSERT_ATTACHMENT, params, subject=subject)
        at, log = attachment.created_at, LedgerEvent.ASSIGNED if is_confirmed else LedgerEvent.ADOPTED
        taken = replace(old, state=state, since=at, since_monotonic_s=self._now_s, owner=key, reason="", **self._cooling(None))
        self._write(old, replace(taken, other_address=attachment.other_address))
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
        """Take an address from whoever has it, into the state that follows; `cooldown` where that is `cooling`."""
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
        self._write(old, new)
        self._log(log, about=old, detail=reason, of=of)

    # Changes to the pool itself: ENIs, and the addresses that EC2 gives to them or takes away.
    #
    # An address enters only with an ENI that we know (I7), never as a primary address (I6), and leaves only when no sandbox has it
    # (I2).

    @change
    def put_eni(self, eni: Eni) -> None:
        """Add an ENI, or replace what is known of it. One that has not changed is left alone, without a ledger row."""
        known = self.view.enis.get(eni.eni_id)
        if known == eni:
            return
        if self.view.address(eni.primary_address) is not None:
            raise InvariantError(
                f"primary address {eni.primary_address} of {eni.eni_id} is in the pool",
                details="I6: the primary address of an ENI is never given to a sandbox",
            )
        if sandbox := self._branches().get(eni.primary_address):
            raise InvariantError(
                f"primary address {eni.primary_address} of {eni.eni_id} is that of sandbox {sandbox}", details="I6"
            )
        if (holder := self.view.eni_of_primary(eni.primary_address)) not in (None, eni.eni_id):
            raise InvariantError(f"primary address {eni.primary_address} of {eni.eni_id} is still recorded as that of {holder}")
        self._disk.write(
            sql.UPSERT_ENI,
            sql.spelling(schema.eni, "excluded")(eni) | {"excluded": eni.excluded or None},
            subject=f"recording {eni.eni_id}",
        )
        self.view.enis.changes[eni.eni_id] = eni
        ready = "host routing ready" if eni.host_ready else "host routing not ready"
        detail = f"device {eni.device_index} on card {eni.network_card}, {eni.state}, {ready}"
        if not eni.managed:
            detail += ", not managed"
        event = LedgerEvent.ENI_CHANGED if known else LedgerEvent.ENI_ADDED
        self._log(event, address=eni.primary_address, eni_id=eni.eni_id, detail=detail)

    @change
    def remove_eni(self, eni_id: EniId, *, reason: str) -> None:
        """Forget an ENI and its unassigned addresses. InvariantError if one is assigned or reserved. An unknown ENI is fine."""
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
        """Add addresses which EC2 confirmed: free, or cooling where a lost datastore cannot tell when they were last used (I8). The
        rest of a /80 is free: what cools in it is not given before all others.

        An address that is known on the same ENI is left as it is; if it is lost, `heal` says that it is there again.
        Raises: InvariantError also for an unknown ENI, a primary address (I6) or a wrong prefix.
        """
        if self.view.enis.get(eni_id) is None:
            raise InvariantError(f"ENI {eni_id} is not known", details="I7: an address needs an ENI that we know")
        branches = self._branches()
        fresh = [address for address in sorted(set(addresses)) if self._is_fresh(address, eni_id, prefix, branches)]
        if not fresh:
            return
        place = "" if prefix is None else f"in prefix {prefix}"
        subject = f"adding {fresh[0]} and {len(fresh) - 1} more to {eni_id} {place}"
        if prefix is not None:
            self._disk.write(sql.INSERT_PREFIX, {"prefix": prefix, "eni_id": eni_id}, subject=subject)
        state = AddressState.FREE if cooldown is None else AddressState.COOLING
        first = Address(fresh[0], eni_id, state, self._now, prefix, since_monotonic_s=self._now_s, **self._cooling(cooldown))
        if first.is_rest:
            first = replace(first, state=AddressState.FREE, **self._cooling(None))
        elif not replace(first, state=AddressState.FREE).has_row:
            raise InvariantError(f"address {first.address} is none by which {prefix} is recorded", details="its last one is")
        added = {address: replace(first, address=address) for address in fresh}
        self._disk.write(sql.INSERT_ADDRESS, [address_params(row) for row in added.values()], subject=subject)
        self.view.addresses.changes.update(added)
        for row in added.values():
            self._log(LedgerEvent.ADDED, about=row, detail="" if prefix is None else f"in {prefix}")

    @change
    def remove_addresses(self, addresses: Iterable[IpAddress], *, reason: str) -> None:
        """Forget addresses which are neither assigned nor reserved. InvariantError otherwise (I2). Unknown addresses are fine.

        The rest of a /80 goes only when nobody has an address of it.
        """
        found = [row for address in sorted(set(addresses)) if (row := self.view.address(address)) is not None]
        if rests := {row.prefix for row in found if row.is_rest}:
            rows = self.view.addresses.all().values()
            found += [row for row in rows if row.prefix in rests and row.is_in_use and not row.is_lost]
        self._remove(found, reason=reason)

    def _is_fresh(
        self, address: IpAddress, eni_id: EniId, prefix: IpNetwork | None, branches: Mapping[IpAddress, AttachmentKey]
    ) -> bool:
        length = family_of(address).prefix_length
        if prefix is not None and (prefix.prefixlen != length or address not in prefix):
            raise InvariantError(f"address {address} is not in a /{length} named {prefix}", details="EC2 has no other")
        if holder := self.view.eni_of_primary(address):
            raise InvariantError(
                f"address {address} is the primary one of {holder}",
                details="I6: the primary address of an ENI is never given to a sandbox",
            )
        # All of a /80 by its last address, so that no ADD has to look for what of it is a branch ENI's.
        taken = (one for one in branches if one == address or (prefix and family_of(prefix).is_sparse and one in prefix))
        if (branch := next(taken, None)) is not None:
            raise InvariantError(f"address {branch} is that of a branch ENI of sandbox {branches[branch]}", details="I1")
        known = self.view.address(address)
        if known is not None and known.eni_id != eni_id:
            raise InvariantError(
                f"address {address} is on {known.eni_id}, not on {eni_id}", details="I1: remove it there before adding it here"
            )
        return known is None

    def _branches(self) -> dict[IpAddress, AttachmentKey]:
        """Whose the addresses of branch ENIs are."""
        return {one.address: one.key for one in self.view.attachments.all().values() if one.branch is not None}

    def end(self) -> None:
        """Refuse further use."""
        self.failure = self.failure or DatastoreError(
            "the unit of work has ended", details="a change was asked of it after its transaction; nothing was changed"
        )
