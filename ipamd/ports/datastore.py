"""The datastore as the daemon's other packages use it. These packages import neither the datastore's classes nor SQLAlchemy."""

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
    """Changes that are made together, on disk and in memory, or not at all. Made by `Datastore.transaction`.

    All changes of one unit have the same time, at which the unit was opened; a `cooldown` begins at this time. Nothing outside
    SQLite may be called while a unit is open (I10). Every method raises InvariantError if a constraint refuses its change, and
    IllegalTransitionError if the state of an address does not allow its change. Such an error fails the whole unit, so that a caller
    that catches it cannot commit half of the unit.
    """

    def lose(self, address: IpAddress, *, reason: str) -> None:
        """Mark an address as lost, because EC2 does not show it any more. It is not assigned again (I7).

        A free address is removed at once. Any other address keeps its state and its sandbox (I2), and is removed when it would become
        free. One row stands for all addresses of a /80 that have no row of their own; if that row is marked, all addresses of the /80
        are lost.
        The call can be repeated; an unknown address is not an error.
        """

    def heal(self, address: IpAddress, *, reason: str) -> None:
        """Remove the mark of `lose`, because EC2 shows the address again. Nothing changes if the address is not lost or not known."""

    def put_doubts(self, doubts: Doubts) -> None:
        """Replace the recorded absences of ENIs and addresses that EC2 did not show lately.

        No ledger row is written, because most doubts end at the next Describe.
        """

    def put_tombstone(self, key: AttachmentKey) -> None:
        """Record that DEL was done for a key, so that a late ADD is refused (I4). Replaces an earlier tombstone of the key."""

    def drop_tombstones(self, *, older_than: timedelta) -> int:
        """Remove the tombstones that are older than `older_than` on the monotonic clock. Returns: how many were removed.

        No ledger row is written, because the ledger row of the DEL stays.
        """

    def open_intent(self, intent: Intent) -> None:
        """Record an operation that changes something in EC2, before its first call is made (I9).

        Raises: InvariantError if the intent is open already; if an `unassign` intent releases an address that is not free, or that is
            not on the intent's ENI; or if an address on the ENI of a `delete-eni` intent is not free (I2). A lost address is not free.
        """

    def update_intent(self, intent: Intent) -> None:
        """Replace the payload of an open intent, for example with an ENI ID. Raises: InvariantError if it is not open."""

    def close_intent(self, intent_id: str, *, outcome: str) -> None:
        """Close an intent. `outcome`: words for the ledger. Raises: InvariantError if the intent is not open."""

    def record_policy_pod(self, pod: PodName) -> None:
        """Record that the network policy agent may have state for a pod's name from now on. Repeatable. No ledger row is written."""

    def erase_policy_pod(self, pod: PodName) -> None:
        """Record that the network policy agent has no state for a pod's name any more. The pod need not be recorded."""

    def mark_restored(self, *, detail: str, was_lost: bool = False, unplaced: Iterable[AttachmentKey] = ()) -> None:
        """Record that kernel and runtime were read completely: from now on this datastore has every sandbox except `unplaced`.

        Args:
            was_lost: whether rows of this boot were lost before. This is recorded, because no other source has all content of these
                rows.
            unplaced: the sandboxes that are wired although they got no row.
        """

    def record_identity(self, identity: InstanceIdentity) -> None:
        """Record the node's identity from instance metadata."""

    def record_marked(self) -> None:
        """Record that a pod had the mark of the admission policy (`pod_annotations.MARK`)."""

    def record_event(
        self,
        event: LedgerEvent,
        *,
        address: IpAddress | None = None,
        key: AttachmentKey | None = None,
        detail: str,
    ) -> None:
        """Append a ledger row for an event that changes no other row, such as a repair or a verdict."""

    def confirm(self, attachment: Attachment) -> None:
        """Make a reserved address assigned (reserved -> assigned), and record the attachment.

        Until COMMIT has succeeded the address stays reserved in memory, so that the caller can abort. A sandbox whose address is not
        from the pool has no reservation: its attachment is recorded, no row of an address changes, and no address cools later.
        Raises: InvariantError if another key has the reservation, if the sandbox has an address already, or if its DEL was done (I1,
            I4). A sandbox whose address is not from the pool is refused too if a part of its uplink belongs to another sandbox or ENI.
        """

    def adopt(self, attachment: Attachment) -> None:
        """Record a wired sandbox without a row, and make its address assigned (free, cooling or quarantined -> assigned).

        A key with a reservation is refused, because its ADD is running. A sandbox whose address is not from the pool is recorded as by
        `confirm`.
        """

    def record_contradiction(self, key: AttachmentKey, *, contradiction: str) -> Attachment:
        """Record whether, and how, EC2's answer contradicts the claim that an attached sandbox's ENI is its pod's own.

        A ledger row is written if what EC2 says changes (`Attachment.objection`).

        `contradiction`: as in `Attachment`; "" if EC2 does not contradict.
        Returns: the changed attachment. Raises: UnknownAttachmentError, which does not fail the unit, if the key has no attachment.
        """

    def move_table(self, key: AttachmentKey, *, route_table: int) -> Attachment:
        """Record another route table of an attached sandbox, because its ENI was attached again at another device index.

        Returns: the changed attachment. Raises: UnknownAttachmentError, which does not fail the unit, if the key has no attachment.
        """

    def rename_veth(self, key: AttachmentKey, *, host_veth: str) -> Attachment:
        """Record the new name of an attached sandbox's host veth, in its attachment and in its stored CNI result.

        Returns: the changed attachment. Raises: UnknownAttachmentError, which does not fail the unit, if the key has no attachment.
        """

    def record_extra_address(self, address: IpAddress, *, other_address: IpAddress) -> None:
        """Record `other_address`, the address of an extra leg, for the sandbox whose assigned or quarantined address is `address`.

        This record is missing after the datastore's file was lost, or was downgraded and upgraded again. After this call no other
        sandbox gets `other_address`, and it cools together with `address`.
        """

    def unassign(
        self, key: AttachmentKey, *, cooldown: timedelta, reason: str, event: LedgerEvent = LedgerEvent.UNASSIGNED
    ) -> Attachment:
        """Remove an attachment, and make its address cooling (assigned -> cooling).

        The address of a branch ENI does not cool, because it is not from the pool.

        `event`: `unassigned` if the runtime requested it, `reaped` if the daemon decided it.
        Raises: UnknownAttachmentError if the key has no attachment. This changes nothing and does not fail the unit, because a DEL may
        come twice (I3).
        """

    def abort(self, address: IpAddress, *, cooldown: timedelta, reason: str) -> None:
        """Make a reserved address cooling (reserved -> cooling), because its ADD failed. On disk it was free until now (I5)."""

    def return_unused(self, address: IpAddress, *, cooldown: timedelta, reason: str) -> None:
        """Make a reserved address free (reserved -> free), because its ADD failed before sandbox or routing had the address.

        So no packet can have carried the address (I8). An address that was lost meanwhile is treated as by `abort`.
        """

    def free(self, address: IpAddress, *, reason: str) -> None:
        """Make a cooling address free (cooling -> free), because its cooldown is over. A lost address is removed instead.

        The caller decides whether the cooldown is over. It uses the monotonic clock, because the wall clock may be stepped (I8).
        """

    def quarantine(self, address: IpAddress, *, reason: str) -> None:
        """Make an address quarantined (free, reserved or cooling -> quarantined), because the sources disagree about its sandbox.

        If the address was reserved, the ADD that reserved it cannot confirm it after this call.
        """

    def resolve(self, address: IpAddress, *, cooldown: timedelta, reason: str) -> None:
        """Make a quarantined address cooling (quarantined -> cooling), because no source names an owner any more.

        The address cools because the DEL of its sandbox may have come a moment ago (docs/datastore.md).
        """

    def end_keeping(self, address: IpAddress, *, reason: str) -> None:
        """End the time for which an address is kept for a pod, so that other pods may have it as soon as it is free.

        Nothing changes if the address is not kept, or if an ADD of its pod has reserved it.
        """

    def put_eni(self, eni: Eni) -> None:
        """Add or replace an ENI. If nothing changed, no ledger row is written."""

    def remove_eni(self, eni_id: EniId, *, reason: str) -> None:
        """Remove an ENI and its addresses. An unknown ENI is not an error.

        Raises: InvariantError if one of the addresses is assigned or reserved.
        """

    def add_addresses(
        self,
        eni_id: EniId,
        addresses: Iterable[IpAddress],
        *,
        prefix: IpNetwork | None = None,
        cooldown: timedelta | None = None,
    ) -> None:
        """Add addresses that EC2 confirmed.

        An address that is already recorded for the same ENI does not change; a lost one stays lost until `heal`.

        Args:
            prefix: the delegated prefix that contains the addresses; None for single addresses.
            cooldown: the added addresses cool for this time; None: they are free at once. A cooldown is needed after a lost datastore,
                because then it is not known when the addresses were last used (I8). The row that stands for all addresses of a /80
                without a row of their own (the rest of the /80) is always free, because addresses of a /80 are assigned in a cycle.
        Raises: InvariantError also for an unknown ENI, a primary address (I6), an address of another ENI or of an uplink (I1), or a
            wrong prefix.
        """

    def remove_addresses(self, addresses: Iterable[IpAddress], *, reason: str) -> None:
        """Remove addresses. Unknown addresses are not errors.

        Raises: InvariantError if one of them is assigned or reserved (I2), or if its row is the one for the rest of a /80, and a
            sandbox still has an address of this /80 that is not lost.
        """


class Datastore(Protocol):
    """The addresses and their owners.

    Unless a docstring says otherwise, methods read from memory and never wait for the disk. They show the state after the last
    committed unit of work.
    """

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

        Addresses are preferred in this order: not suspected (`suspect`), not draining, on the densest ENI, in the densest prefix,
        free for the longest time. Ties go to the lower network card, device index, prefix and address; single addresses come before
        prefixes.
        In a /80 the address after the one that was assigned last is taken, so that no address is assigned again before all others
        have been assigned (I8). Only addresses of ENIs that give addresses (`Eni.gives_addresses`) are taken (I7), and no lost or
        withheld ones. See docs/life.md, "The life of an ADD". Cost: the number of ENIs.

        Args:
            extra_family: the sandbox also gets the address of this family's local range that has been free for the longest time; None:
                it gets none.
            address: reserve this address, even if it is in a range of `pin`, unless it is kept for another pod than `pod` or belongs
                to another pool; None: any address.
            pod: the pod (`namespace/name`) for which addresses may be kept.
            pool: the pool; "" for the node's own pool.
        Raises: PoolEmptyError with the counts, also if `address` is not available; LocalRangeEmptyError; InvariantError if the key has
        an address already (I1).
        """

    def withhold(self, addresses: frozenset[IpAddress]) -> None:
        """Replace the set of addresses that `reserve` must not take for now, because EC2 did not show them (I7). In memory only.

        The set may contain addresses that are not free or not known; they are withheld once they become free. In addition, the
        addresses of an open `unassign` intent are withheld from the moment at which the intent is on disk, even after a restart.
        """

    def pin(self, ranges: tuple[IPv4Network, ...]) -> None:
        """Replace the pinned ranges: `reserve` takes an address of these only if its argument `address` asks for this very address
        (docs/adr/0083). In memory only.

        Addresses of delegated prefixes are not affected.
        """

    def pinned(self) -> frozenset[IpAddress]:
        """Return the addresses that are kept for a pod, or are in a range of `pin`, in any state. Cost: their number."""

    def suspect(self, addresses: frozenset[IpAddress]) -> None:
        """Replace the set of addresses that `reserve` takes only if no other address is free. In memory only.

        A hint, such as instance metadata, says that EC2 has taken these addresses away. The hint alone proves nothing (I7, I11). The
        set may contain addresses that are not free or not known.
        """

    def draining(self) -> Draining:
        """Return the ENIs and kinds of addresses that are assigned last."""

    def set_draining(self, draining: Draining) -> None:
        """Replace the ENIs and kinds of addresses that `reserve` takes only if there is no other free address. In memory only."""

    def identity(self) -> InstanceIdentity | None:
        """Return the node's identity as instance metadata last showed it in this boot, even to an earlier process; None if never."""

    def are_pods_marked(self) -> bool:
        """Whether a pod of this boot had the admission policy's mark."""

    def may_have_lost_row_of(self, key: AttachmentKey) -> bool:
        """Whether the row of a sandbox may be missing because an earlier file of the datastore was lost.

        The answer depends on what the present file contained when this process opened it. If an earlier process had called
        `mark_restored`, the result is true only for the sandboxes in the argument `unplaced` of that call. Otherwise it is true for
        every sandbox if rows were lost, and for none if not.
        """

    def eni(self, eni_id: EniId) -> Eni | None:
        """Return one ENI; None if it is not recorded."""

    def address(self, address: IpAddress) -> Address | None:
        """Return one address; None if it is not recorded. In a recorded /80 an address without a row is returned as free."""

    def attachment(self, key: AttachmentKey) -> Attachment | None:
        """Return one attachment; None if it is not recorded."""

    def card_interfaces(self, key: AttachmentKey) -> list[Attachment]:
        """Return the recorded interfaces of further network cards in a pod's sandbox, in the order of their numbers (docs/adr/0086).

        They are attached and detached together with the pod's first interface.
        `key`: the key of the pod's first interface; for any other key the list is empty.
        """

    def is_tombstoned(self, key: AttachmentKey) -> bool:
        """Whether there is a tombstone of a key, because its DEL was done."""

    def counts(self) -> PoolCounts:
        """Return the number of addresses in each state, over all managed ENIs. Cost: the number of ENIs."""

    def stock(self) -> Stock:
        """Return the ENIs with their counts, and the sum of the counts, all of one moment. Cost: the number of ENIs."""

    def enis(self) -> tuple[Eni, ...]:
        """Return all ENIs, sorted by network card and device index."""

    def addresses(self, *, state: AddressState | None = None) -> tuple[Address, ...]:
        """Return all addresses, or the addresses in one state, in ascending order. Lost addresses are included.

        Cost: the number of addresses, so an ADD should not call it.
        """

    def attachments(self) -> tuple[Attachment, ...]:
        """Return all attachments, sorted by their time of creation. Cost: the number of attachments, so an ADD should not call it."""

    def sandboxes_of(self, pod: PodId) -> frozenset[str]:
        """Return the container IDs of the pod's recorded sandboxes that have an address of the pool."""

    def repeated_pods(self) -> Counter[PodId]:
        """Return the number of recorded sandboxes with an address of the pool, for each pod that has more than one."""

    def open_intents(self) -> tuple[Intent, ...]:
        """Return the open intents, oldest first. An intent whose success is recorded stays open too, as long as EC2 may still show the
        objects that it released.
        """

    def policy_pods(self) -> dict[PodName, datetime]:
        """Return the pods for whose names the network policy agent may have state, each with the time from which on it may."""

    def snapshot(self) -> Snapshot:
        """Copy everything at one moment, for readers that need consistent rows. Reserved addresses are included as reserved.

        Cost: a full copy.
        """

    def withheld(self) -> frozenset[IpAddress]:
        """Return the addresses that `reserve` does not take for now (`withhold`), and those that it takes only if they are asked for
        (`pinned`).
        """

    def doubts(self) -> Doubts:
        """Return the absences of ENIs and addresses that EC2 did not show lately. An earlier process may have recorded them."""

    def transaction(self) -> AbstractContextManager[UnitOfWork]:
        """Open a unit of work (BEGIN IMMEDIATE). Only one is open at a time. An exception inside it rolls back disk and memory.

        The call waits for other units of work, not for reservations or reads.
        Raises: DatastoreError if the disk refuses. Then memory is as before: an address that was to be confirmed is still reserved.
        """

    def keep_history(self, history: History) -> None:
        """Pass the ledger rows of every later commit to a history (`History.enqueue`), which does not access the disk (I10)."""

    def history(self, subject: str, *, limit: int) -> tuple[HistoryRecord, ...]:
        """Return the last `limit` ledger rows about a subject, oldest first. Reads the disk, after any unit of work that is open.

        `subject`: an address, a pod that had an address, or the beginning of container IDs.
        """

    def latest_history(self, *, limit: int = ..., since: str = "") -> tuple[HistoryRecord, ...]:
        """Return the last `limit` ledger rows, oldest first. Reads the disk, after any unit of work that is open.

        `since`: only rows from this time on, as the ledger writes times (text, UTC); "": all rows.
        """

    def read_since(self, since: datetime) -> RecordedHistory:
        """Return the ledger rows since a time, in the form of `History.read_since`. Reads the disk."""

    def event_counts(self) -> Mapping[str, int]:
        """Return how many ledger rows this process has committed, by LedgerEvent. Events that did not happen may be missing."""

    def file_problem(self) -> str:
        """Return why no change is accepted any more; "" if changes are accepted.

        The reason is that the file was removed or replaced, or that a transaction failed with an unknown outcome. Only a restart
        helps. The call does not wait for an open unit of work.
        """

    def audit(self) -> list[str]:
        """Compare memory with disk, and check rules that constraints cannot express. Returns: one sentence per difference.

        Reads the disk, after any unit of work that is open.
        """

    def close(self) -> None:
        """Close the file, after any unit of work that is open. A second call is not an error."""


class SpoolEntry(Protocol):
    """One spooled DEL. Its file was read while the spool's lock was held."""

    @property
    def name(self) -> str:
        """The name of its file."""

    @property
    def key(self) -> AttachmentKey:
        """The key of the DEL."""

    def done(self) -> None:
        """Remove the entry durably, because its DEL has been carried out. A second call is not an error. Raises: DatastoreError."""


class Spool(Protocol):
    """The DELs that the plugin wrote to disk because the daemon did not answer. Only root can write the directory."""

    def free_places(self) -> None:
        """Move aside files that prevent plugins from spooling a DEL. Raises: SettingsError, which says what to remove."""

    def pending_count(self) -> int:
        """Return the number of entries. The lock is not taken, so an entry that is being written is not counted yet.

        Raises: DatastoreError if the directory cannot be read; a missing directory is not an error.
        """

    def pending_keys(self) -> frozenset[AttachmentKey]:
        """Return the keys of all entries. The lock is not taken, and nothing is changed.

        Unreadable entries are left out, and all entries if the directory is unreadable.
        """

    def replay(self, *, lock_wait_s: float = ...) -> AbstractContextManager[Iterator[SpoolEntry]]:
        """Hold the exclusive lock and yield the entries, oldest first. Damaged entries are set aside and not yielded.

        Args:
            lock_wait_s: how many seconds to wait for plugins that hold the lock; at most LOCK_WAIT_S of `ipamd/datastore/spool.py`.
        Raises: TryAgainError if plugins hold the lock for longer; DatastoreError if the disk refuses.
        """
