"""From DEL to free again: delete the dying link, let the address cool, delete the connections that name it, free it (I4, I8).

Deleting a link costs 16 to 20 ms of waiting in the kernel, so DEL only marks it; this thread deletes all marked links in one
call. Cooldowns are measured on the monotonic clock, so a stepped wall clock changes none of them. The datastore stores their ends by
that clock too: it continues while no daemon runs, and starts over at a boot, after which the datastore is empty as well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from ipamd.core.context import Service, ServiceContext
from ipamd.core.failure_isolation import FailureIsolation
from ipamd.core.loop import Loop
from ipamd.model.address import AddressState
from ipamd.model.attachment import WiringSpec, veth_name
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.errors import BusyError, DatastoreError, IpamError, log_text
from ipamd.model.family import IpAddress
from ipamd.model.ids import AttachmentKey
from ipamd.model.legs import first_leg
from ipamd.model.uplink import Uplink
from ipamd.model.words import counted
from ipamd.ports.process import ConnectionTracking

log = logging.getLogger(__name__)


SWEEP_QUIET_S = 0.2
"""A sweep waits until no request has come for this long. It holds the kernel's lock of all links for about 20 ms, and an ADD or DEL at
that time waits for the lock (ours, measured). It is longer than the pauses between the sandboxes of a busy node, and longer than a
runtime takes to start the next plugin of a chain."""

SWEEP_QUIET_TRIES = 3
"""After this many waits the sweep starts in any case: at the latest 0.6 s after the first DEL, within the second that I4 allows.
Ours.
"""

SWEEP_RETRY_S = 1.0
"""Pause after the kernel refused to delete dying links. Ours: I4 requires a second."""

CONNECTIONS_RETRY_S = 1.0
"""Pause after tracked connections could not be deleted. Ours."""

CONNECTIONS_PAUSE_FACTOR, CONNECTIONS_PAUSE_MAX_S = 30, 3.0
"""The pause after a dump of the tracked connections, in multiples of the time that the dump took, and its upper bound. Ours.

A dump takes 0.1 ms where nothing is tracked, 10 ms with a few connections, and up to a second with 200,000. So a steady turnover of
pods costs a thirtieth of a processor, or a quarter in the last case. An ADD that waits for a cooled address also waits for the pause.
"""

CONNECTIONS = "tracked connections"
"""Subject of the condition."""

FAILPOINTS = ("cooling.swept", "cooling.forgotten", "cooling.cooled")


class DyingLink(NamedTuple):
    """A link that is to be deleted.

    `address`: the address of its sandbox, which is not free before the link is deleted; None if the link shows no address.
    `uplink`: set if the link is an uplink's VLAN link, and not a veth.
    """

    address: IpAddress | None
    uplink: Uplink | None = None


class LockedLinks(NamedTuple):
    """The links that must not be deleted now, because an operation holds the lock of their sandbox, of their name or of their address.

    A lock on a name or an address has a key whose container ID is that name or address (`name_key`).
    """

    veth_suffixes: tuple[str, ...]
    names: frozenset[str]

    @classmethod
    def of(cls, locked_keys: Iterable[AttachmentKey]) -> LockedLinks:
        """Derive the links that must not be deleted now from the keys of all locks that are held."""
        keys = tuple(locked_keys)
        return cls(tuple(veth_name(key, prefix="") for key in keys), frozenset(key.container_id for key in keys))

    def has(self, link: str, address: IpAddress | None) -> bool:
        """Whether an operation works on a link or its address."""
        return link.endswith(self.veth_suffixes) or link in self.names or str(address) in self.names


class Cooldown(Service):
    """Owns the dying links and the cooling addresses. Only the loop calls `turn`; all else may be called from any thread.

    Cooling begins by `start_after_delete` after a DEL, by `roll_back` or `abort` after a failed ADD, and by `start` for an address
    whose sandbox was not recorded. After a restart `resume` continues it. `turn` deletes the links, and frees the addresses.
    """

    def __init__(self, context: ServiceContext, *, connections: ConnectionTracking, period_s: Callable[[], float]) -> None:
        super().__init__(context)
        self._connections = connections
        self._period = period_s
        self._lock = threading.Lock()
        self._dying: dict[str, DyingLink] = {}  # by name
        self._cooling: dict[IpAddress, float] = {}  # the end of each cooldown, on the monotonic clock
        # Dying links that are not in the group of dying links, because the kernel refused that: they are deleted by name.
        self._unmarked_links: set[str] = set()
        # Addresses of failed ADDs for which the datastore refused the write, each with the reason of the failure.
        self._pending_rollbacks: dict[IpAddress, str] = {}
        # Cooling addresses whose cooldown was ended early, for the pod for which they are kept.
        self._hastened: set[IpAddress] = set()
        # Addresses of deleted uplinks: they are not in the pool and do not cool, but their tracked connections are still to be
        # deleted.
        self._uplink_addresses: set[IpAddress] = set()
        self._connections_due_s = 0.0  # when the tracked connections may be dumped next, on the monotonic clock
        self._has_new = False
        self.loop = Loop("cooldown", self.turn, health=context.health, clock=context.clock, failed_max_s=SWEEP_RETRY_S)
        self._failures = FailureIsolation(context.health, work="removal of links")

    @property
    def period(self) -> timedelta:
        """How long an address cools."""
        return timedelta(seconds=self._period())

    def start(self, address: IpAddress, *, dying_veth: str | None) -> None:
        """Start the cooldown of an address and schedule its link, if any, for deletion. The address may have no row yet (I8)."""
        with self._lock:
            self._cooling[address] = self._clock.monotonic() + self._period()
            self._hastened.discard(address)
            self._has_new = True
            if dying_veth is not None:
                self._dying[dying_veth] = DyingLink(address)
            self.loop.wake()

    def start_after_leftover(self, address: IpAddress) -> None:
        """Start the cooldown of an address whose leftover links were removed just now; one that was ended early stays so.

        The runtime repeats a DEL within milliseconds, while the link of the first one is still being deleted.
        """
        with self._lock:
            is_ended = address in self._cooling and address in self._hastened
        if not is_ended:
            self.start(address, dying_veth=None)

    def start_after_delete(self, wiring: WiringSpec, *, host_veth: str) -> None:
        """Start the cooldown after a DEL, whose links are marked. An address that is not the pool's does not cool: only links are
        deleted.

        `host_veth`: the present name of the first host veth, which may differ from the one in `wiring`.
        """
        if wiring.is_of_pool:
            self.start(wiring.address, dying_veth=host_veth)
            if wiring.kept_s == 0:
                self.hasten(wiring.address)
        else:
            self._schedule_links(wiring, host_veth=host_veth, is_marked=True)

    def hasten(self, address: IpAddress) -> None:
        """End the cooldown of an address that only its own pod, or EC2, gets next: once its link and its connections are gone (I8)."""
        with self._lock:
            if address in self._cooling:
                self._cooling[address] = min(self._cooling[address], self._clock.monotonic())
                self._hastened.add(address)
                self.loop.wake()

    def roll_back(self, wiring: WiringSpec, *, reason: str, is_unused: bool, is_unwired: bool, is_marked: bool) -> None:
        """Release the address of a failed ADD, and have its links deleted. An address of the pool cools, except if it was never used.

        Args:
            is_unused: the address never reached the sandbox, so it need not cool.
            is_unwired: its links are gone.
            is_marked: its links are marked as dying; if not, they are deleted by name.
        """
        if wiring.is_of_pool and is_unused and is_unwired:
            self.return_unused(wiring.address, reason=reason)
        elif wiring.is_of_pool:
            dying_veth = None if is_unwired else wiring.host_veth
            self.abort(wiring.address, reason=reason, dying_veth=dying_veth, is_marked=is_marked)
        elif not is_unwired:
            self._schedule_links(wiring, host_veth=wiring.host_veth, is_marked=is_marked)

    def _schedule_links(self, wiring: WiringSpec, *, host_veth: str, is_marked: bool) -> None:
        """Schedule the links of a sandbox with an uplink for deletion. Its address is not in our pool and does not cool."""
        dying = {host_veth: DyingLink(wiring.address)}
        uplink = first_leg(wiring).uplink
        if uplink is not None:
            dying[uplink.link] = DyingLink(wiring.address, uplink)
        with self._lock:
            self._dying |= dying
            if not is_marked:
                self._unmarked_links |= dying.keys()
            self.loop.wake()

    def delete_connections_soon(self, address: IpAddress) -> None:
        """Schedule the tracked connections of an address for deletion: its sandbox is gone, and the address does not cool."""
        with self._lock:
            self._uplink_addresses.add(address)
            self.loop.wake()

    def abort(self, address: IpAddress, *, reason: str, dying_veth: str | None, is_marked: bool = True) -> None:
        """End the reservation of a failed ADD: the address starts to cool.

        If the datastore cannot write (the disk is full, for example), the address stays reserved and the write is repeated every
        second: no address is lost, and the caller still gets the error of the ADD.

        Args:
            reason: why the ADD failed, for the ledger.
            dying_veth: the name of the host veth that the ADD made, None if none is left.
            is_marked: it is in the group of dying links. If it is not, it is removed by its name until the kernel accepts that.
        """
        if dying_veth is not None:
            with self._lock:
                self._dying[dying_veth] = DyingLink(address)
                if not is_marked:
                    self._unmarked_links.add(dying_veth)
        try:
            self._write_abort(address, reason)
        except DatastoreError as error:
            self._health.record_error(f"abort of {address}", error)
            log.error("reserved until the datastore accepts writes again address=%s error=%s", address, log_text(error))
            self._pending_rollbacks[address] = reason
            self.loop.wake()

    def return_unused(self, address: IpAddress, *, reason: str) -> None:
        """Free an address at once, because its ADD failed before the address reached the sandbox.

        If the datastore cannot write, `abort` is used instead: the address cools, as soon as the datastore accepts the write.
        """
        try:
            with self._datastore.transaction() as uow:
                uow.return_unused(address, cooldown=self.period, reason=reason)
        except DatastoreError as error:
            log.info("an unused address could not be freed, so it cools address=%s error=%s", address, log_text(error))
            self.abort(address, reason=reason, dying_veth=None)
            return
        if self._datastore.address(address) is not None:
            self._demand.announce_supply()

    def resume(self, dying: Iterable[tuple[str, DyingLink]]) -> None:
        """Continue after a restart: with the cooling addresses of the datastore and the dying links of the kernel."""
        monotonic, period_s = self._clock.monotonic(), self._period()
        with self._lock:
            for row in self._datastore.addresses(state=AddressState.COOLING):
                if row.address not in self._cooling:
                    remaining_s = period_s if row.cooldown_deadline_s is None else row.cooldown_deadline_s - monotonic
                    self._cooling[row.address] = monotonic + min(max(remaining_s, 0.0), period_s)
            self._dying.update(dying)
            self.loop.wake()

    def is_cooling(self, address: IpAddress) -> bool:
        """Whether an address cools, recorded or not."""
        return address in self._cooling

    def is_dying(self, *links: str) -> bool:
        """Whether a link of one of these names waits for its deletion."""
        return not self._dying.keys().isdisjoint(links)

    def dying_count(self) -> int:
        """The number of links that are marked for deletion and not deleted yet."""
        return len(self._dying)

    def next_due_s(self) -> float | None:
        """Seconds until the next address has cooled and can be freed; None if none is cooling."""
        now = self._clock.monotonic()
        with self._lock:
            deadlines = [*self._cooling.values(), *([now] if self._uplink_addresses else [])]
        return max(min(deadlines), self._connections_due_s) - now if deadlines else None

    def next_free_s(self) -> float | None:
        """Seconds until the next address has cooled that any pod may have; None if none is cooling.

        An address that is kept for a pod, or in a range from which only named addresses are given, is nobody else's.
        """
        pinned = self._datastore.pinned()
        with self._lock:
            deadlines = [until_s for address, until_s in self._cooling.items() if address not in pinned]
        return max(min(deadlines), self._connections_due_s) - self._clock.monotonic() if deadlines else None

    def turn(self) -> float | None:
        """Delete the marked links and free the cooled addresses. Returns: seconds until the next address has cooled, None without
        one.
        """
        if self._dying:
            self._await_quiet()
        self.work()
        return self.next_due_s()

    def work(self) -> None:
        """Run every step once; a failed step does not stop the others. Raises: the last error."""
        with self._lock:
            has_new, self._has_new = self._has_new, False
        if has_new:
            self._demand.trigger()  # a cooling address is no demand any more: the pool may have a surplus
        last_error: IpamError | None = None
        aborts = [partial(self._write_abort, address, reason) for address, reason in self._pending_rollbacks.copy().items()]
        steps: list[Callable[[], object]] = [self.sweep, *aborts, self.free_cooled]
        for step in steps:
            try:
                step()
            except IpamError as error:
                last_error = error
        if last_error is not None:
            raise last_error

    def sweep(self) -> int:
        """Delete every link that was marked before the call; returns how many.

        All marked links are deleted in one call. Links that could not be marked, and all links if the kernel refuses that call, are
        deleted one by one; a link that cannot be deleted then delays its own address only. Raises: the last IpamError, after every
        link was tried.
        """
        with self._lock:
            batch = dict(self._dying)
            unmarked = {name: dying for name, dying in batch.items() if name in self._unmarked_links}
        errors = self._remove_one_by_one(unmarked) if unmarked else {}
        marked = {name: dying for name, dying in batch.items() if name not in unmarked}
        if marked:
            try:
                self._wiring.sweep()
            except IpamError as error:  # the group may contain a link that cannot be deleted
                log.info("dying links are deleted one by one error=%s", log_text(error))
                errors |= self._remove_one_by_one(marked)
        self._failures.retain(errors)
        removed = batch.keys() - errors.keys()
        if removed:
            self._failpoint("cooling.swept")
        self._forget_removed(removed)
        if errors:
            raise list(errors.values())[-1]
        return len(batch)

    def _forget_removed(self, removed: Collection[str]) -> None:
        """Drop the links that the kernel has deleted. Where one was an uplink, the connections of its address can be deleted now."""
        with self._lock:
            for name in removed:
                self._unmarked_links.discard(name)
                dying = self._dying.pop(name, None)
                if dying is not None and dying.address is not None and dying.uplink is not None:
                    self._uplink_addresses.add(dying.address)

    def _remove_one_by_one(self, links: dict[str, DyingLink]) -> dict[str, IpamError]:
        """Remove links by name; returns the errors of those that could not be removed.

        The name of a link comes from the key: a sandbox that was added again after a failed ADD has a new link of that name (I2).
        """
        errors: dict[str, IpamError] = {}
        recorded_veths = set[str]()
        addresses_in_use = set[IpAddress]()
        for attachment in self._datastore.attachments():
            recorded_veths.add(attachment.host_veth)
            if not attachment.is_of_pool:
                # A pod's next sandbox may have the same address: then nothing of it is a leftover any more.
                addresses_in_use.add(attachment.address)
        locked_links = LockedLinks.of(holder.key for holder in self._locks.holders())
        for name, (address, uplink) in sorted(links.items(), key=_veths_before_uplinks):
            if locked_links.has(name, address):
                errors[name] = BusyError(f"link {name} is in work", details="it is removed later")
                continue
            if address in addresses_in_use:
                continue
            try:
                host_veth = None if name in recorded_veths or uplink else name
                self._wiring.remove_leftover(host_veth=host_veth, address=address, uplink=uplink)
            except IpamError as error:
                self._failures.report(name, error)
                errors[name] = error
        return errors

    def free_cooled(self) -> int:
        """Free every address that has cooled, whose link is gone and which no tracked connection names; returns how many.

        Raises: the last DatastoreError, after every address was tried; an address that was not freed stays due.
        """
        with self._lock:
            dying_addresses = {dying.address for dying in self._dying.values()}
            due = self._cooled_without(dying_addresses)
        if not self._forget_connections(due, dying_addresses=dying_addresses):
            return 0
        freed_count = 0
        last_error = None
        try:
            for address, deadline in due.items():
                try:
                    freed_count += self._free_if_cooling(address)
                except DatastoreError as error:
                    last_error = error
                    continue
                with self._lock:
                    if self._cooling.get(address) == deadline:  # the address may have been assigned and released again since
                        del self._cooling[address]
                        self._hastened.discard(address)
        finally:
            if freed_count:
                self._demand.announce_supply()
                self._demand.trigger()
        if last_error is not None:
            raise last_error
        return freed_count

    def _cooled_without(self, dying_addresses: Collection[IpAddress | None]) -> dict[IpAddress, float]:
        """Return the addresses whose cooldown is over and whose links are gone, with the end of each cooldown. The caller has the
        lock.
        """
        now = self._clock.monotonic()
        return {
            address: deadline for address, deadline in self._cooling.items() if deadline <= now and address not in dying_addresses
        }

    def _free_if_cooling(self, address: IpAddress) -> bool:
        """Free an address unless it was adopted, quarantined or removed in the meantime. Raises: DatastoreError."""
        row = self._datastore.address(address)
        if row is None or row.state is not AddressState.COOLING:
            return False
        with self._datastore.transaction() as uow:
            uow.free(address, reason="cooldown over and link gone")
        self._failpoint("cooling.cooled")
        return True

    def _forget_connections(self, due: Collection[IpAddress], *, dying_addresses: Collection[IpAddress | None]) -> bool:
        """Delete the tracked connections of addresses that are about to be free, and of the addresses of deleted uplinks.

        The links of these addresses are gone already, so no packet can renew an entry. One dump of the table serves all addresses.
        Returns: whether no tracked connection names one of `due` any more; False also if the pause after the last dump is not over.
        After a failure, a condition is reported and the addresses stay as they are.
        """
        left = self._unused_uplink_addresses(dying_addresses)
        cooled = self._with_extra_addresses(due)
        if not cooled and not left:
            return True
        began_s = self._clock.monotonic()
        if began_s < self._connections_due_s:
            return False
        try:
            count = self._connections.remove(cooled | left)
        except IpamError as error:
            self._connections_due_s = self._clock.monotonic() + CONNECTIONS_RETRY_S
            addresses = counted(len(due), "cooled address")
            kept = problem(ConditionCode.CONNECTIONS_KEPT, count=addresses, cause=log_text(error))
            self._health.report(CONNECTIONS, kept, error=error)
            return False
        ended_s = self._clock.monotonic()
        self._connections_due_s = ended_s + min(CONNECTIONS_PAUSE_FACTOR * (ended_s - began_s), CONNECTIONS_PAUSE_MAX_S)
        if count:
            log.info("tracked connections deleted addresses=%d connections=%d", len(cooled | left), count)
        self._failpoint("cooling.forgotten")
        self._health.report(CONNECTIONS, None)
        with self._lock:
            self._uplink_addresses -= left
        return True

    def _with_extra_addresses(self, due: Iterable[IpAddress]) -> set[IpAddress]:
        """Return the due addresses that are still cooling (or have no row), each with the address of its sandbox's extra leg."""
        addresses = set[IpAddress]()
        for address in due:
            row = self._datastore.address(address)
            if row is not None and row.state is not AddressState.COOLING:
                continue
            addresses.add(address)
            if row is not None and row.other_address is not None:
                addresses.add(row.other_address)
        return addresses

    def _unused_uplink_addresses(self, dying_addresses: Collection[IpAddress | None]) -> set[IpAddress]:
        """Return the addresses of deleted uplinks that no sandbox has now.

        The next sandbox of a pod may get the same address: its connections must not be deleted.
        """
        with self._lock:
            candidates = self._uplink_addresses - set(dying_addresses)
        if not candidates:
            return candidates
        attached = {attachment.address for attachment in self._datastore.attachments()}
        locked_names = {holder.key.container_id for holder in self._locks.holders()}
        with self._lock:
            self._uplink_addresses -= attached
        return {address for address in candidates - attached if str(address) not in locked_names}

    def _write_abort(self, address: IpAddress, reason: str) -> None:
        with self._datastore.transaction() as uow:
            uow.abort(address, cooldown=self.period, reason=reason)
        self._pending_rollbacks.pop(address, None)
        self.start(address, dying_veth=None)

    def _await_quiet(self) -> None:
        """Wait until no ADD or DEL is running before a sweep, for a bounded time, because a sweep blocks the kernel's lock of
        links.
        """
        for _ in range(SWEEP_QUIET_TRIES):
            count_before = self._locks.asked_count
            if self.loop.pause(SWEEP_QUIET_S):
                return
            # An ADD that waits for an address to cool waits for this thread, not for the kernel.
            if self._demand.waiting()[0] or (self._locks.asked_count == count_before and not self._locks.holders()):
                return


def _veths_before_uplinks(link: tuple[str, DyingLink]) -> tuple[bool, str]:
    """Sort key of named links: host veths first, then uplinks, each by name."""
    name, dying = link
    return dying.uplink is not None, name
