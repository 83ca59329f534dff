"""Let addresses cool after their DEL, and free them again (I4, I8).

The link of the sandbox, which DEL has only marked (a dying link), is deleted. The address cools, which means that it is not assigned
for some time. Then the tracked connections that name it are deleted, and it is free. Deleting a link costs 16 to 20 ms of waiting in
the kernel, so the thread of the cooldown deletes all marked links in one call. Cooldowns are measured on the monotonic clock, so a
stepped wall clock changes none of them. The datastore stores the end of each cooldown by the monotonic clock too. That clock continues
while no daemon runs, and starts over at a boot, after which the datastore is empty as well.
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
"""A sweep deletes all marked links in one call. It waits until no request has come for this long, in seconds. It holds the kernel's
lock of all links for about 20 ms (measured), and an ADD or DEL at that time waits for the lock. Ours: longer than the pauses between
the sandboxes of a busy node, and longer than a runtime takes to start the next plugin of a chain, so a sweep seldom meets an ADD or
DEL."""

SWEEP_QUIET_TRIES = 3
"""After this many waits the sweep starts even if requests still come. Ours: that is 0.6 s after the first DEL, and so within the
second that I4 allows."""

SWEEP_RETRY_S = 1.0
"""Pause in seconds after the kernel refused to delete dying links. Ours: I4 requires that links are deleted within a second."""

CONNECTIONS_RETRY_S = 1.0
"""Pause in seconds after tracked connections could not be deleted. Ours: short, because cooled addresses wait for the deletion, and a
try costs only one refused call."""

CONNECTIONS_PAUSE_FACTOR, CONNECTIONS_PAUSE_MAX_S = 30, 3.0
"""The pause after a dump of the tracked connections, in multiples of the time that the dump took, and the longest pause.

Ours: a dump takes 0.1 ms where nothing is tracked, 10 ms with a few connections, and up to a second with 200,000. So a steady turnover
of pods costs a thirtieth of a processor, or a quarter with 200,000 connections. The pause has a bound, because an ADD that waits for a
cooled address also waits for the pause.
"""

CONNECTIONS = "tracked connections"
"""Subject of the condition that tracked connections could not be deleted."""

FAILPOINTS = ("cooling.swept", "cooling.forgotten", "cooling.cooled")


class DyingLink(NamedTuple):
    """A link that is to be deleted.

    `address`: the address of its sandbox, which is not free before the link is deleted; None if the link shows no address.
    `uplink`: the uplink that is to be deleted, if this link is its VLAN link; None if this link is a veth.
    """

    address: IpAddress | None
    uplink: Uplink | None = None


class LockedLinks(NamedTuple):
    """The links that must not be deleted now, because an operation holds the lock of their sandbox, of their name or of their address.

    `veth_suffixes`: the host veths of locked sandboxes, by the ends of their names, because the prefix of the name is a setting.
    `names`: locked names of links, and locked addresses as text. The key of such a lock has the name or the address as its container
    ID (`name_key`).
    """

    veth_suffixes: tuple[str, ...]
    names: frozenset[str]

    @classmethod
    def of(cls, locked_keys: Iterable[AttachmentKey]) -> LockedLinks:
        """Derive the links that must not be deleted now from the keys of all locks that are held."""
        keys = tuple(locked_keys)
        return cls(tuple(veth_name(key, prefix="") for key in keys), frozenset(key.container_id for key in keys))

    def has(self, link: str, address: IpAddress | None) -> bool:
        """Whether an operation holds the lock of a link's sandbox, of its name or of its address."""
        return link.endswith(self.veth_suffixes) or link in self.names or str(address) in self.names


class Cooldown(Service):
    """Owns the dying links and the cooling addresses. Only the loop calls `turn`. Every other method may be called from any thread.

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
        # Dying links that the kernel refused to move into the group of dying links: they are deleted by name.
        self._unmarked_links: set[str] = set()
        # Addresses of failed ADDs for which the datastore refused the write, each with the reason of the failure.
        self._pending_rollbacks: dict[IpAddress, str] = {}
        # Cooling addresses whose cooldown `hasten` has ended early.
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
        """Start the cooldown of an address whose leftover links were removed just now, unless its cooldown was ended early.

        A runtime repeats a DEL within milliseconds, while the link of the first DEL is still being deleted. The repeated DEL must not
        restart a cooldown that `hasten` has ended.
        """
        with self._lock:
            is_ended_early = address in self._cooling and address in self._hastened
        if not is_ended_early:
            self.start(address, dying_veth=None)

    def start_after_delete(self, wiring: WiringSpec, *, host_veth: str) -> None:
        """Start the cooldown after a DEL that has marked the sandbox's links.

        An address that is not of the pool does not cool, so only its links are deleted. A cooldown ends early if the address goes back
        to EC2 after the DEL (`kept_s` is 0).
        `host_veth`: the present name of the first host veth, which may differ from the name in `wiring`.
        """
        if wiring.is_of_pool:
            self.start(wiring.address, dying_veth=host_veth)
            if wiring.kept_s == 0:
                self.hasten(wiring.address)
        else:
            self._schedule_links(wiring, host_veth=host_veth, is_marked=True)

    def hasten(self, address: IpAddress) -> None:
        """End the cooldown of an address early, because only its own pod or EC2 gets it next.

        It is free as soon as its link and its tracked connections are deleted (I8).
        """
        with self._lock:
            if address in self._cooling:
                self._cooling[address] = min(self._cooling[address], self._clock.monotonic())
                self._hastened.add(address)
                self.loop.wake()

    def roll_back(self, wiring: WiringSpec, *, reason: str, is_unused: bool, is_unwired: bool, is_marked: bool) -> None:
        """End the reservation of a failed ADD's address, and have its links deleted.

        An address of the pool cools, unless it was never used and its links are gone: then it is free at once.

        Args:
            reason: why the ADD failed, for the ledger.
            is_unused: the address never reached the sandbox, so it need not cool.
            is_unwired: its links are gone.
            is_marked: its links are marked as dying. Links that are not marked are deleted by name.
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
        """Schedule the tracked connections of an uplink's address for deletion. Its sandbox is gone, and the address does not cool."""
        with self._lock:
            self._uplink_addresses.add(address)
            self.loop.wake()

    def abort(self, address: IpAddress, *, reason: str, dying_veth: str | None, is_marked: bool = True) -> None:
        """End the reservation of a failed ADD: the address starts to cool.

        If the datastore cannot write (the disk is full, for example), this raises nothing, so that the caller can raise the error of
        the ADD. The address stays reserved, and the write is repeated every second until it succeeds.

        Args:
            reason: why the ADD failed, for the ledger.
            dying_veth: the name of the host veth that the ADD made, None if it is gone.
            is_marked: `dying_veth` is in the group of dying links. If it is not, its deletion by name is repeated until it succeeds.
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

        If the datastore cannot write, `abort` is used instead, and the address cools.
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
        """Continue after a restart with the cooling addresses of the datastore, and with the dying links that the kernel has.

        `dying`: name and data of each link.
        """
        monotonic, period_s = self._clock.monotonic(), self._period()
        with self._lock:
            for row in self._datastore.addresses(state=AddressState.COOLING):
                if row.address not in self._cooling:
                    remaining_s = period_s if row.cooldown_deadline_s is None else row.cooldown_deadline_s - monotonic
                    self._cooling[row.address] = monotonic + min(max(remaining_s, 0.0), period_s)
            self._dying.update(dying)
            self.loop.wake()

    def is_cooling(self, address: IpAddress) -> bool:
        """Whether an address cools. It may be an address without a row."""
        return address in self._cooling

    def is_dying(self, *links: str) -> bool:
        """Whether a link of one of these names waits for its deletion."""
        return not self._dying.keys().isdisjoint(links)

    def dying_count(self) -> int:
        """The number of links that are marked for deletion and not deleted yet."""
        return len(self._dying)

    def next_due_s(self) -> float | None:
        """Seconds until the next address has cooled, or until tracked connections can be deleted. Negative: that time has passed.

        None if no address is cooling and no tracked connections are to be deleted.
        """
        now = self._clock.monotonic()
        with self._lock:
            deadlines = [*self._cooling.values(), *([now] if self._uplink_addresses else [])]
        return max(min(deadlines), self._connections_due_s) - now if deadlines else None

    def next_free_s(self) -> float | None:
        """Seconds until an address has cooled that any pod may have; None if no such address is cooling.

        An address that is kept for a pod, or that is in a range from which only named addresses are given, does not count.
        """
        pinned = self._datastore.pinned()
        with self._lock:
            deadlines = [until_s for address, until_s in self._cooling.items() if address not in pinned]
        return max(min(deadlines), self._connections_due_s) - self._clock.monotonic() if deadlines else None

    def turn(self) -> float | None:
        """Delete the dying links and free the cooled addresses. Returns: the result of `next_due_s`."""
        if self._dying:
            self._await_quiet()
        self.work()
        return self.next_due_s()

    def work(self) -> None:
        """Delete the dying links, repeat refused writes of failed ADDs, and free the cooled addresses, each once.

        A step that fails does not stop the steps after it. Raises: the last error, after all steps.
        """
        with self._lock:
            has_new, self._has_new = self._has_new, False
        if has_new:
            self._demand.trigger()  # fewer addresses are in demand, so the pool may have a surplus
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
        """Delete every link that was dying before the call. Returns: the number of these links.

        All marked links are deleted in one call to the kernel. If it refuses the call, they are deleted one by one, so that a link
        that cannot be deleted delays its own address only. Links that could not be marked are always deleted one by one.
        Raises: the last IpamError, after every link was tried.
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
        """Drop the links that the kernel has deleted. The tracked connections of the addresses of deleted uplinks are deleted next."""
        with self._lock:
            for name in removed:
                self._unmarked_links.discard(name)
                dying = self._dying.pop(name, None)
                if dying is not None and dying.address is not None and dying.uplink is not None:
                    self._uplink_addresses.add(dying.address)

    def _remove_one_by_one(self, links: dict[str, DyingLink]) -> dict[str, IpamError]:
        """Remove links by name. Returns: by name, the error of each link that could not be removed.

        The name of a host veth comes from the sandbox's key. If the sandbox was added again after a failed ADD, the link of this name
        is the new one and stays (I2).
        """
        errors: dict[str, IpamError] = {}
        recorded_veths = set[str]()
        addresses_in_use = set[IpAddress]()
        for attachment in self._datastore.attachments():
            recorded_veths.add(attachment.host_veth)
            if not attachment.is_of_pool:
                # A pod's next sandbox may have the same address: then links and rules of the address are in use again.
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
        """Free every address that has cooled, whose link is gone and which no tracked connection names.

        Returns: the number of freed addresses; 0 if the tracked connections of the addresses cannot be deleted now.
        Raises: the last DatastoreError, after every address was tried. An address that was not freed is tried again by the next call.
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
        """Return the addresses whose cooldown is over and whose links are gone, with the end of each cooldown on the monotonic clock.

        The caller has the lock.
        """
        now = self._clock.monotonic()
        return {
            address: deadline for address, deadline in self._cooling.items() if deadline <= now and address not in dying_addresses
        }

    def _free_if_cooling(self, address: IpAddress) -> bool:
        """Free an address unless it was adopted, quarantined or removed in the meantime.

        Returns: whether it was freed. Raises: DatastoreError.
        """
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
        Returns: True if no tracked connection names an address in `due` any more. False if the deletion failed, which is reported as a
            condition, or if the pause after the last dump is not over. The addresses must go on cooling then.
        """
        uplinked = self._unused_uplink_addresses(dying_addresses)
        cooled = self._with_extra_addresses(due)
        if not cooled and not uplinked:
            return True
        began_s = self._clock.monotonic()
        if began_s < self._connections_due_s:
            return False
        try:
            count = self._connections.remove(cooled | uplinked)
        except IpamError as error:
            self._connections_due_s = self._clock.monotonic() + CONNECTIONS_RETRY_S
            addresses = counted(len(due), "cooled address")
            kept = problem(ConditionCode.CONNECTIONS_KEPT, count=addresses, cause=log_text(error))
            self._health.report(CONNECTIONS, kept, error=error)
            return False
        ended_s = self._clock.monotonic()
        self._connections_due_s = ended_s + min(CONNECTIONS_PAUSE_FACTOR * (ended_s - began_s), CONNECTIONS_PAUSE_MAX_S)
        if count:
            log.info("tracked connections deleted addresses=%d connections=%d", len(cooled | uplinked), count)
        self._failpoint("cooling.forgotten")
        self._health.report(CONNECTIONS, None)
        with self._lock:
            self._uplink_addresses -= uplinked
        return True

    def _with_extra_addresses(self, due: Iterable[IpAddress]) -> set[IpAddress]:
        """Return the due addresses that are still cooling or have no row, and the addresses of extra legs that cool with them."""
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
        """Return the addresses of deleted uplinks that no sandbox has at present.

        The next sandbox of a pod may get the same address. The connections of that sandbox must not be deleted.
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
        """Wait until no ADD or DEL is running, but at most `SWEEP_QUIET_TRIES` times.

        The sweep that follows holds the kernel's lock of links, for which an ADD or DEL would have to wait.
        """
        for _ in range(SWEEP_QUIET_TRIES):
            count_before = self._locks.asked_count
            if self.loop.pause(SWEEP_QUIET_S):
                return
            # If an ADD waits for an address to cool, it waits for the sweep, so the sweep begins at once.
            if self._demand.waiting()[0] or (self._locks.asked_count == count_before and not self._locks.holders()):
                return


def _veths_before_uplinks(link: tuple[str, DyingLink]) -> tuple[bool, str]:
    """Sort key of named links: host veths first, then uplinks, each by name."""
    name, dying = link
    return dying.uplink is not None, name
