"""The datastore: what the rooms may ask of it. They import neither its classes nor SQLAlchemy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from ipaddress import IPv4Network
from typing import Protocol

from ipamd.model.absences import Doubts
from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.family import Family, IpAddress, IpNetwork
from ipamd.model.history import HistoryRecord, LedgerEvent, RecordedHistory
from ipamd.model.ids import AttachmentKey, EniId, PodName
from ipamd.model.intent import Intent
from ipamd.model.pool_counts import PoolCounts, Stock
from ipamd.model.release import Draining
from ipamd.model.repeats import PodId
from ipamd.model.snapshot import Snapshot
from ipamd.ports.history import History


class UnitOfWork(Protocol):
    """Changes that become true together, on disk and in memory, or not at all. Made by `Datastore.transaction`.

    All changes of one unit have one time, the clock's when it was opened; `cooldown` counts from then. Nothing outside SQLite may be
    called while one is open (I10). All methods raise InvariantError when a constraint refuses, IllegalTransitionError for a wrong
    address state. The first refusal fails the whole unit, so that a caller that catches the error cannot commit half of it.
    """

    def lose(self, address: IpAddress, *, reason: str) -> None:
        """Mark an address as lost, because EC2 does not show it any more. It is not assigned again (I7).

        A lost address keeps its state and its sandbox (I2), and is removed when it would become free. If the row that stands for the
        rest of a /80 is lost, all addresses of the /80 are. Repeatable; an unknown address is fine.
        """

    def heal(self, address: IpAddress, *, reason: str) -> None:
        """Remove the mark of `lose`: EC2 shows the address again. Repeatable; an unknown address, or one that is not lost, is fine."""

    def put_doubts(self, doubts: Doubts) -> None:
        """Replace the record of ENIs and addresses that EC2 did not show lately. Writes no ledger row, because most doubts end at the
        next Describe.
        """

    def put_tombstone(self, key: AttachmentKey) -> None:
        """Record that DEL was done for a key, so that a late ADD is refused (I4). Replaces an earlier tombstone of the key."""

    def drop_tombstones(self, *, older_than: timedelta) -> int:
        """Remove tombstones older than an age on the monotonic clock. Returns: how many.

        Writes no ledger row: the row of the DEL itself stays.
        """

    def open_intent(self, intent: Intent) -> None:
        """Record a changing EC2 call before it is made (I9).

        Raises: InvariantError if the intent is open already, or if an address that it releases (`unassign`), or that is on the ENI
            that it deletes (`delete-eni`), is not free (I2).
        """

    def update_intent(self, intent: Intent) -> None:
        """Replace the payload of an open intent, for example with an ENI ID. Raises: InvariantError if it is not open."""

    def close_intent(self, intent_id: str, *, outcome: str) -> None:
        """Close an intent, with its outcome for the ledger. Raises: InvariantError if it is not open."""

    def record_policy_pod(self, pod: PodName) -> None:
        """Record that the network policy agent may know a pod's name from now on. Repeatable; writes no ledger row."""

    def erase_policy_pod(self, pod: PodName) -> None:
        """Record that the network policy agent does not know a pod's name any more. A pod that was not recorded is fine."""

    def mark_restored(self, *, detail: str, was_lost: bool = False, unplaced: Iterable[AttachmentKey] = ()) -> None:
        """Record that kernel and runtime were read completely: from now on this datastore has every sandbox.

        Args:
            was_lost: rows of this boot were lost before. That is recorded, because no other source has everything that they had.
            unplaced: sandboxes that are wired and got no row.
        """

    def record_identity(self, identity: InstanceIdentity) -> None:
        """Record the node's identity from instance metadata."""

    def record_marked(self) -> None:
        """Record that a pod had the admission policy's mark."""

    def record_event(
        self,
        event: LedgerEvent,
        *,
        address: IpAddress | None = None,
        key: AttachmentKey | None = None,
        detail: str,
    ) -> None:
        """Append a ledger row that no other change writes (a refusal, a repair, a verdict)."""

    def confirm(self, attachment: Attachment) -> None:
        """reserved -> assigned, with the attachment. InvariantError if the reservation is not this key's.

        Until COMMIT has succeeded the address stays reserved in memory, so that the caller can abort. A sandbox whose address is not
        from the pool has no reservation: its attachment is recorded, no row of an address changes, and no address cools later.
        Raises: InvariantError if such a sandbox has an address already, if its DEL was done, or if a part of its uplink belongs to
        another sandbox or ENI (I1).
        """

    def adopt(self, attachment: Attachment) -> None:
        """free, cooling or quarantined -> assigned for a wired sandbox without a row.

        A key with a reservation is refused, because an ADD for it is running. For a sandbox whose address is not from the pool: see
        `confirm`.
        """

    def record_contradiction(self, key: AttachmentKey, *, contradiction: str) -> Attachment:
        """Record how EC2 contradicts the ENI of an attached sandbox, "" if it does not. Writes a ledger row if that changed.

        Returns: the attachment as it is now. UnknownAttachmentError, which does not fail the unit, if there is none.
        """

    def move_table(self, key: AttachmentKey, *, route_table: int) -> Attachment:
        """Record that an attached sandbox uses another route table now: its ENI was attached again at another device index.

        Returns: the attachment as it is now. UnknownAttachmentError, which does not fail the unit, if there is none.
        """

    def rename_veth(self, key: AttachmentKey, *, host_veth: str) -> Attachment:
        """Record that an attached sandbox's host veth has another name, also in its stored result.

        Returns: the attachment as it is now. UnknownAttachmentError, which does not fail the unit, if there is none.
        """

    def record_extra_address(self, address: IpAddress, *, other_address: IpAddress) -> None:
        """Record the address of an extra leg that the sandbox of an assigned or quarantined address was found to have.

        The record can be missing after the datastore's file was lost, or was downgraded and upgraded again. From now on no other
        sandbox gets `other_address`, and it cools together with `address`.
        """

    def unassign(
        self, key: AttachmentKey, *, cooldown: timedelta, reason: str, event: LedgerEvent = LedgerEvent.UNASSIGNED
    ) -> Attachment:
        """assigned -> cooling, and remove the attachment. The address of a branch ENI does not cool, because it is not from the pool.

        `event`: `unassigned` if the runtime requested it, `reaped` if we concluded it. Raises: UnknownAttachmentError if there is
        none; that changes nothing and does not fail the unit, because a DEL may come twice (I3).
        """

    def abort(self, address: IpAddress, *, cooldown: timedelta, reason: str) -> None:
        """reserved -> cooling: an ADD failed after its reservation. On disk the address was free: reservations are in memory (I5)."""

    def return_unused(self, address: IpAddress, *, cooldown: timedelta, reason: str) -> None:
        """reserved -> free: an ADD failed before its sandbox or the node's routing had the address, so no packet can have carried it
        (I8). An address that was lost meanwhile is aborted instead.
        """

    def free(self, address: IpAddress, *, reason: str) -> None:
        """cooling -> free: its cooldown is over. A lost address is removed instead.

        The caller decides whether the address has cooled, by the monotonic clock: a wall clock may be stepped (I8).
        """

    def quarantine(self, address: IpAddress, *, reason: str) -> None:
        """free, reserved or cooling -> quarantined: the sources disagree on who has it.

        Ends a reservation: the ADD that holds it can no longer confirm it.
        """

    def resolve(self, address: IpAddress, *, cooldown: timedelta, reason: str) -> None:
        """quarantined -> cooling: no source names an owner any more. Its DEL may have come a moment ago (docs/datastore.md)."""

    def end_keeping(self, address: IpAddress, *, reason: str) -> None:
        """End the time for which an address is kept for a pod: others may have it as soon as it is free. A no-op if it is not kept, or
        is reserved for its pod just now.
        """

    def put_eni(self, eni: Eni) -> None:
        """Add or replace an ENI. If nothing changed, no ledger row is written."""

    def remove_eni(self, eni_id: EniId, *, reason: str) -> None:
        """Remove an ENI and its addresses. InvariantError if one of them is assigned or reserved. An unknown ENI is fine."""

    def add_addresses(
        self,
        eni_id: EniId,
        addresses: Iterable[IpAddress],
        *,
        prefix: IpNetwork | None = None,
        cooldown: timedelta | None = None,
    ) -> None:
        """Add addresses that EC2 confirmed. With a `cooldown` they are cooling, otherwise free.

        A cooldown is needed after a lost datastore, when it is not known when they were last used (I8). The rest of a /80 is always
        free, because its addresses are assigned in a cycle. An address that is recorded for the same ENI does not change; if it is
        lost, `heal` ends that.
        Raises: InvariantError also for an unknown ENI, a primary address (I6) or a wrong prefix.
        """

    def remove_addresses(self, addresses: Iterable[IpAddress], *, reason: str) -> None:
        """Remove addresses that are neither assigned nor reserved. InvariantError otherwise (I2). Unknown addresses are fine.

        The rest of a /80 is removed only if no sandbox has an address of the /80.
        """


class Datastore(Protocol):
    """The addresses and their owners. Reads are from memory and never block on disk; they equal the last committed unit of work."""

    def reserve(
        self,
        key: AttachmentKey,
        *,
        extra_family: Family | None = None,
        address: IpAddress | None = None,
        pod: str = "",
        pool: str = "",
    ) -> Address:
        """Reserve a free address of a pool for `key`, in memory only (I5).

        The order is: not suspected (`suspect`), not draining, densest ENI, densest prefix, longest free. Ties go to the lower
        network card, device index, prefix and address; addresses outside any prefix come before prefixes. In a /80 it is the one
        above the last that was assigned, so that none is assigned again before all others were (I8). Only attached, host-ready,
        managed ENIs count (I7); lost and withheld addresses are not taken. See docs/life.md, "The life of an ADD". Cost: the number
        of ENIs.

        `extra_family`: the sandbox also gets an address of this family's local range, the one that has been free for longest.
        `address`: take this one, also if it is pinned (`pin`), unless it is kept for another pod than `pod` or is of another pool.
        Raises: PoolEmptyError with the counts; LocalRangeEmptyError; InvariantError if the key has an address already (I1).
        """

    def withhold(self, addresses: frozenset[IpAddress]) -> None:
        """Replace the set of addresses that `reserve` must not take for now, because EC2 did not show them (I7). In memory only.

        It may contain addresses that are not free or not known; they are withheld once they become free. The addresses of an open
        `unassign` intent are withheld besides, from the moment at which the intent is on disk, also after a restart.
        """

    def pin(self, ranges: tuple[IPv4Network, ...]) -> None:
        """Replace the ranges whose addresses `reserve` takes only by name (docs/adr/0083). In memory only; prefixes are left out."""

    def pinned(self) -> frozenset[IpAddress]:
        """The addresses that are kept for a pod, or are in one of the ranges of `pin`, in any state. Cost: their number."""

    def suspect(self, addresses: frozenset[IpAddress]) -> None:
        """Replace the set of addresses that `reserve` takes only if there is no other. In memory only.

        A hint says that EC2 took them away, which alone proves nothing (I7, I11). It may contain addresses that are not free or not
        known.
        """

    def draining(self) -> Draining:
        """The ENIs and kinds of addresses that are assigned last."""

    def set_draining(self, draining: Draining) -> None:
        """Replace the ENIs and kinds of addresses that `reserve` takes only if there is no other free address. In memory only."""

    def identity(self) -> InstanceIdentity | None:
        """The node's identity as instance metadata last gave it in this boot, also to an earlier process; None if it never did."""

    def are_pods_marked(self) -> bool:
        """Whether a pod of this boot had the admission policy's mark."""

    def may_have_lost_row_of(self, key: AttachmentKey) -> bool:
        """Whether this sandbox may have no row only because an earlier file was lost. Decided by what was known when the present file
        was opened.
        """

    def eni(self, eni_id: EniId) -> Eni | None:
        """Find one ENI."""

    def address(self, address: IpAddress) -> Address | None:
        """Find one address. In a /80 an address without a row is free."""

    def attachment(self, key: AttachmentKey) -> Attachment | None:
        """Find one attachment."""

    def is_tombstoned(self, key: AttachmentKey) -> bool:
        """Whether DEL was done for this key."""

    def counts(self) -> PoolCounts:
        """Addresses by state over managed ENIs. Cost: the number of ENIs."""

    def stock(self) -> Stock:
        """ENIs with their counters, and the sum, all of one moment. Cost: the number of ENIs, not of addresses."""

    def enis(self) -> tuple[Eni, ...]:
        """All ENIs, by network card and device index."""

    def addresses(self, *, state: AddressState | None = None) -> tuple[Address, ...]:
        """All addresses, or those in one state, ascending, including lost ones. Cost: the number of addresses; not for every ADD."""

    def attachments(self) -> tuple[Attachment, ...]:
        """All attachments, by creation. Cost: the number of attachments; not for every ADD."""

    def sandboxes_of(self, pod: PodId) -> frozenset[str]:
        """Container IDs of the pod's recorded sandboxes that have an address of the pool."""

    def repeated_pods(self) -> Counter[PodId]:
        """Number of recorded sandboxes with an address of the pool, for each pod that has more than one."""

    def open_intents(self) -> tuple[Intent, ...]:
        """Open intents, oldest first: their outcome at EC2 is not known."""

    def policy_pods(self) -> dict[PodName, datetime]:
        """Pods whose names the network policy agent may know, each with the time since when."""

    def snapshot(self) -> Snapshot:
        """Copy everything at one moment, for readers that need consistent rows. Reserved addresses are included as reserved.

        Cost: a full copy.
        """

    def withheld(self) -> frozenset[IpAddress]:
        """Addresses that `reserve` does not take for now."""

    def doubts(self) -> Doubts:
        """ENIs and addresses that EC2 did not show lately; an earlier process may have recorded them."""

    def transaction(self) -> AbstractContextManager[UnitOfWork]:
        """Open the one unit of work: serialised, BEGIN IMMEDIATE. An exception inside rolls back disk and memory.

        Waits for other units of work, not for reservations or reads.
        Raises: DatastoreError if the disk refuses; then memory is as before, an address being confirmed is still reserved.
        """

    def keep_history(self, history: History) -> None:
        """Pass the records of every later commit to the history, which touches no disk (I10)."""

    def history(self, subject: str, *, limit: int) -> tuple[HistoryRecord, ...]:
        """Ledger rows of an address or of container IDs that begin with `subject`, oldest first, the last `limit` of them.

        Reads the disk, after any unit of work that is open.
        """

    def latest_history(self, *, limit: int = ..., since: str = "") -> tuple[HistoryRecord, ...]:
        """The last `limit` ledger rows of all, oldest first. Reads the disk, after any unit of work that is open."""

    def read_since(self, since: datetime) -> RecordedHistory:
        """The ledger's rows since a time, in the form of `History.read_since`. Reads the disk."""

    def event_counts(self) -> Mapping[str, int]:
        """How many ledger rows this process has committed, by LedgerEvent; events that did not happen may be missing.

        A reader never waits for the disk.
        """

    def file_problem(self) -> str:
        """Explain why no change is accepted any more; "" if changes are accepted.

        The file was removed or replaced, or a transaction failed so that its outcome is unknown. Only a restart helps. Does not wait
        for an open unit of work.
        """

    def audit(self) -> list[str]:
        """Compare memory with disk, and check rules that constraints cannot express; one sentence per difference.

        Reads the disk, after any unit of work that is open.
        """

    def close(self) -> None:
        """Release the file, after any unit of work that is open; a second call is fine."""


class SpoolEntry(Protocol):
    """One spooled DEL; its file was read while the lock was held."""

    @property
    def name(self) -> str:
        """The name of its file."""

    @property
    def key(self) -> AttachmentKey:
        """The key of the DEL."""

    def done(self) -> None:
        """Remove the entry durably: its DEL has been carried out. A second call is fine."""


class Spool(Protocol):
    """DELs that the plugin stored on disk because the daemon did not answer, in a run directory that only root can write."""

    def free_places(self) -> None:
        """Move aside files that prevent plugins from spooling a DEL. Raises: SettingsError, which says what to remove."""

    def pending_count(self) -> int:
        """How many entries there are. Counted without the lock: one that is being written is not counted yet."""

    def pending_keys(self) -> frozenset[AttachmentKey]:
        """The keys of all entries, read without the lock and without changing anything; unreadable entries are left out."""

    def replay(self, *, lock_wait_s: float = ...) -> AbstractContextManager[Iterator[SpoolEntry]]:
        """Hold the exclusive lock and yield the entries, oldest first. Damaged ones are set aside and not yielded.

        Args:
            lock_wait_s: how long plugins may hold the lock; at most LOCK_WAIT_S.
        Raises: TryAgainError if plugins hold the lock for too long; DatastoreError if the disk refuses.
        """
