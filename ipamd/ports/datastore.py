"""What services may ask of the disk: who has which address, and the DELs that the plugin kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from ipaddress import IPv4Address, IPv4Network
from typing import Protocol

from ipamd.model.absence import Doubts
from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.eni import Eni
from ipamd.model.history import HistoryRecord
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.intent import Intent
from ipamd.model.ledger import LedgerEvent
from ipamd.model.pool import PoolCounts, Stock
from ipamd.model.release import Draining
from ipamd.model.snapshot import Snapshot


class UnitOfWork(Protocol):
    """Changes that become true together, on disk and in memory, or not at all.

    Every change writes its ledger row in the same transaction. All changes of one unit have one time, the clock's when it was
    opened; `cooldown` counts from then. Nothing outside SQLite may be called while one is open (I10).
    All methods raise InvariantError when a constraint refuses, IllegalTransitionError for a wrong address state; either rolls
    the whole unit back.
    """

    def put_eni(self, eni: Eni) -> None:
        """Add an ENI, or replace what is known of it."""
        ...

    def remove_eni(self, eni_id: EniId, *, reason: str) -> None:
        """Forget an ENI and its unassigned addresses. InvariantError if one is assigned or reserved."""
        ...

    def add_addresses(
        self,
        eni_id: EniId,
        addresses: Iterable[IPv4Address],
        *,
        prefix: IPv4Network | None = None,
        cooldown: timedelta | None = None,
    ) -> None:
        """Add addresses which EC2 confirmed: free, or cooling where a lost datastore cannot tell when they were last used (I8).

        An address that is known on the same ENI is left as it is; if it is lost, `heal` says that it is there again.
        """
        ...

    def remove_addresses(self, addresses: Iterable[IPv4Address], *, reason: str) -> None:
        """Forget addresses which are neither assigned nor reserved. InvariantError otherwise (I2)."""
        ...

    def confirm(self, attachment: Attachment) -> None:
        """reserved -> assigned, with the attachment. InvariantError if the reservation is not this key's."""
        ...

    def adopt(self, attachment: Attachment) -> None:
        """free, cooling or quarantined -> assigned for a wired sandbox that the datastore did not know."""
        ...

    def move_table(self, key: AttachmentKey, *, route_table: int) -> Attachment:
        """Record that an attached sandbox uses another route table now: its ENI was attached again at another device index.

        Returns: the attachment as it is now. UnknownAttachmentError if there is none; it changes nothing.
        """
        ...

    def rename_veth(self, key: AttachmentKey, *, host_veth: str, result: bytes) -> Attachment:
        """Record that an attached sandbox's host veth has another name, which its stored result tells too.

        Returns: the attachment as it is now. UnknownAttachmentError if there is none; it changes nothing.
        """
        ...

    def unassign(
        self, key: AttachmentKey, *, cooldown: timedelta, reason: str, event: LedgerEvent = LedgerEvent.UNASSIGNED
    ) -> Attachment:
        """assigned -> cooling; the attachment row goes. UnknownAttachmentError if there is none.

        `event` is what the ledger says: `unassigned` when the runtime asked, `reaped` when we concluded it.
        """
        ...

    def abort(self, address: IPv4Address, *, cooldown: timedelta, reason: str) -> None:
        """reserved -> cooling: an ADD failed after its reservation."""
        ...

    def free(self, address: IPv4Address, *, reason: str) -> None:
        """cooling -> free: its cooldown is over. A lost address is removed instead."""
        ...

    def lose(self, address: IPv4Address, *, reason: str) -> None:
        """EC2 does not show an address any more: a free one is removed, any other is lost from now on. It is never given again (I7).

        A lost address keeps its state and its sandbox (I2), and is removed where it would become free. Repeatable; an unknown
        address is fine.
        """
        ...

    def heal(self, address: IPv4Address, *, reason: str) -> None:
        """EC2 shows a lost address again. Repeatable; an unknown address, or one that is not lost, is fine."""
        ...

    def put_doubts(self, doubts: Doubts) -> None:
        """Replace what is recorded of ENIs and addresses that EC2 did not show lately."""
        ...

    def quarantine(self, address: IPv4Address, *, reason: str) -> None:
        """free, reserved or cooling -> quarantined: the sources disagree on who has it."""
        ...

    def resolve(self, address: IPv4Address, *, cooldown: timedelta, reason: str) -> None:
        """quarantined -> cooling: nothing claims the address any more."""
        ...

    def put_tombstone(self, key: AttachmentKey) -> None:
        """Remember that DEL was done for a key: a late ADD is refused (I4)."""
        ...

    def drop_tombstones(self, *, older_than: timedelta) -> int:
        """Forget tombstones older than an age on the monotonic clock; returns how many. One of unknown age is dated now."""
        ...

    def open_intent(self, intent: Intent) -> None:
        """Record what we are about to ask of EC2, before asking (I9).

        InvariantError if it gives back an address (`unassign`), or an ENI with an address (`delete-eni`), that is not free (I2).
        """
        ...

    def update_intent(self, intent: Intent) -> None:
        """Replace the payload of an open intent (an ENI ID learnt on the way, say)."""
        ...

    def close_intent(self, intent_id: str, *, outcome: str) -> None:
        """Close an intent, with its outcome for the ledger."""
        ...

    def mark_restored(self, *, detail: str) -> None:
        """Record that kernel and runtime were read completely: from now on this datastore knows every sandbox."""
        ...

    def note(
        self,
        event: LedgerEvent,
        *,
        address: IPv4Address | None = None,
        key: AttachmentKey | None = None,
        detail: str = "",
    ) -> None:
        """Append a ledger row that no other change writes (a refusal, a repair, a verdict)."""
        ...


class Datastore(Protocol):
    """Who owns which address. Reads are from memory and never block on disk; they equal the last committed unit of work."""

    def transaction(self) -> AbstractContextManager[UnitOfWork]:
        """Open the one unit of work: serialised, BEGIN IMMEDIATE. An exception inside rolls back disk and memory."""
        ...

    def reserve(self, key: AttachmentKey) -> Address:
        """Take a free address for a key, in memory only (I5).

        Densest ENI first, densest prefix within it, longest-free first within that; only attached, host-ready, managed ENIs
        (I7). Returns: the address, now reserved. Raises: PoolEmptyError with the counts; InvariantError if the key has one.
        """
        ...

    def hold(self, addresses: frozenset[IPv4Address]) -> None:
        """Replace the set of addresses that `reserve` must not take for now, in memory only: their proof is in doubt (I7).

        It may name addresses that are not free or not known; they are held once they become free. What an open `unassign` intent
        names is held besides, from the instant in which the intent is on disk, also after a restart.
        """
        ...

    def held(self) -> frozenset[IPv4Address]:
        """Addresses that `reserve` does not take for now."""
        ...

    def set_draining(self, draining: Draining) -> None:
        """Replace what `reserve` takes only if nothing else has an address to give; in memory only."""
        ...

    def snapshot(self) -> Snapshot:
        """Copy everything at one moment: for readers to whom two reads must not contradict each other. Costs a full copy."""
        ...

    def attachment(self, key: AttachmentKey) -> Attachment | None:
        """Find one attachment."""
        ...

    def attachments(self) -> tuple[Attachment, ...]:
        """All attachments, by creation."""
        ...

    def address(self, address: IPv4Address) -> Address | None:
        """Find one address."""
        ...

    def addresses(self, *, state: AddressState | None = None) -> tuple[Address, ...]:
        """All addresses, or those in one state (lost ones too), ascending. Cost: the number of addresses; not for every ADD."""
        ...

    def eni(self, eni_id: EniId) -> Eni | None:
        """Find one ENI."""
        ...

    def enis(self) -> tuple[Eni, ...]:
        """All ENIs, by network card and device index."""
        ...

    def counts(self) -> PoolCounts:
        """Addresses by state over managed ENIs. Cost: the number of ENIs."""
        ...

    def stock(self) -> Stock:
        """ENIs with their counters, and the sum, all of one moment. Cost: the number of ENIs, not of addresses."""
        ...

    def is_tombstoned(self, key: AttachmentKey) -> bool:
        """Whether DEL was done for this key."""
        ...

    def open_intents(self) -> tuple[Intent, ...]:
        """Open intents, oldest first: their outcome at EC2 is not known."""
        ...

    def doubts(self) -> Doubts:
        """ENIs and addresses that EC2 did not show lately; an earlier process may have recorded them."""
        ...

    def history(self, subject: str, *, limit: int) -> tuple[HistoryRecord, ...]:
        """Ledger rows of an address or of container IDs that begin with `subject`, oldest first, the last `limit` of them."""
        ...

    def latest_history(self, *, limit: int) -> tuple[HistoryRecord, ...]:
        """The last `limit` ledger rows of all, oldest first."""
        ...

    def event_counts(self) -> Mapping[str, int]:
        """How many ledger rows this process has committed, by event (a LedgerEvent); events that did not happen may be missing."""
        ...

    def file_problem(self) -> str:
        """Say in one sentence if no change is accepted any more; else "".

        The file was removed or replaced under us, or the disk failed so that nobody knows what it holds: only a restart helps.
        """
        ...

    def audit(self) -> list[str]:
        """Compare memory with disk and check what constraints cannot say; one sentence per difference, empty if clean."""
        ...

    def close(self) -> None:
        """Finish and release the file."""
        ...


class Spool(Protocol):
    """DELs that the plugin stored on disk because the daemon did not answer."""

    def pending_count(self) -> int:
        """How many entries wait."""
        ...

    def replay(self) -> AbstractContextManager[Iterator[SpoolEntry]]:
        """Hold the exclusive lock and yield the entries, oldest first. Damaged ones are set aside and not yielded."""
        ...


class SpoolEntry(Protocol):
    """One spooled DEL."""

    @property
    def name(self) -> str:
        """The entry's file name, for messages."""
        ...

    @property
    def key(self) -> AttachmentKey:
        """Which interface of which sandbox is to be detached."""
        ...

    def done(self) -> None:
        """Remove the entry durably: its DEL has been carried out."""
        ...
