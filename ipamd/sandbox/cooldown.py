"""From DEL to free again: delete the dying link, let the address cool, free it (I4, I8).

Deleting a link costs 16 to 20 ms of waiting in the kernel, so DEL only marks it; this thread deletes all marked links in one
call. Cooldowns are measured on the monotonic clock, so a stepped wall clock changes none of them. Their ends are recorded on that
clock too: it continues while no daemon runs, and starts over when the machine boots, as the datastore does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from ipamd.core.context import Service, ServiceContext
from ipamd.core.loop import Loop, OddObjects
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment, WiringSpec, veth_name
from ipamd.model.branch import Branch
from ipamd.model.errors import BusyError, DatastoreError, IpamError, log_text
from ipamd.model.family import IpAddress

log = logging.getLogger(__name__)


SWEEP_QUIET_S = 0.2
"""A sweep waits until no request has come for so long. It holds the kernel's lock of all links for about 20 ms, and an ADD or DEL that
meets it waits (ours, measured). Longer than the pauses between the sandboxes of a busy node, and than a runtime takes to start the
next plugin of a chain."""

SWEEP_QUIET_TRIES = 3
"""Then it comes all the same: at the latest 0.6 s after the first DEL, within the second that I4 gives. Ours."""

SWEEP_RETRY_S = 1.0
"""Pause after the kernel refused to delete dying links. Ours: I4 asks for a second."""

FAILPOINTS = ("cooling.swept", "cooling.cooled")


class Dying(NamedTuple):
    """Of a dying link: the address that waits for its end, if there is one. `branch`: it is the VLAN link of that."""

    address: IpAddress | None
    branch: Branch | None = None


class Cooldown(Service):
    """Owns the dying links and the cooling addresses. `turn` is the loop's; everything else may be called from any thread."""

    def __init__(self, context: ServiceContext, *, period_s: Callable[[], float]) -> None:
        super().__init__(context)
        self._period = period_s
        self._lock = threading.Lock()
        self._dying: dict[str, Dying] = {}
        self._cooling: dict[IpAddress, float] = {}
        self._unmarked: set[str] = set()
        self._aborts: dict[IpAddress, str] = {}
        self._has_new = False
        self.loop = Loop("cooldown", self.turn, health=context.health, clock=context.clock, failed_max_s=SWEEP_RETRY_S)
        self._odd = OddObjects(context.health, work="removal of links")

    @property
    def period(self) -> timedelta:
        """How long an address cools."""
        return timedelta(seconds=self._period())

    def start(self, address: IpAddress, *, dying_veth: str | None) -> None:
        """Start the cooldown of an address; its link, if any, waits to be deleted. It may have no row: EC2 shows it later perhaps."""
        with self._lock:
            self._cooling[address] = self._clock.monotonic() + self._period()
            self._has_new = True
            if dying_veth is not None:
                self._dying[dying_veth] = Dying(address)
            self.loop.wake()

    def bury(self, one: Attachment | WiringSpec, *, host_veth: str = "", is_marked: bool = True) -> None:
        """Have the links of a sandbox with a branch ENI deleted; its address is not ours to cool. `host_veth`: under another name."""
        found = {host_veth or one.host_veth: Dying(one.address)}
        if one.branch is not None:
            found[one.branch.link] = Dying(one.address, one.branch)
        with self._lock:
            self._dying |= found
            self._unmarked |= set() if is_marked else found.keys()
            self.loop.wake()

    def abort(self, address: IpAddress, *, reason: str, dying_veth: str | None, is_marked: bool = True) -> None:
        """Take a reservation back after a failed ADD: the address starts to cool.

        A link that could not even be marked is removed by name; this is repeated until the kernel accepts it.
        If the disk refuses (it is full, for example), the address stays reserved and this is repeated every second: no address is
        lost, and the caller still gets the error of the ADD.
        """
        if dying_veth is not None:
            with self._lock:
                self._dying[dying_veth] = Dying(address)
                if not is_marked:
                    self._unmarked.add(dying_veth)
        try:
            self._write_abort(address, reason)
        except DatastoreError as error:
            self._health.record_error(f"abort of {address}", error)
            log.error("reserved until the datastore accepts writes again address=%s error=%s", address, log_text(error))
            self._aborts[address] = reason
            self.loop.wake()

    def resume(self, dying: Iterable[tuple[str, Dying]]) -> None:
        """Continue after a restart: with the cooling addresses of the datastore and the dying links of the kernel."""
        monotonic, period_s = self._clock.monotonic(), self._period()
        with self._lock:
            for row in self._datastore.addresses(state=AddressState.COOLING):
                if row.address not in self._cooling:
                    left = period_s if row.cooldown_deadline_s is None else row.cooldown_deadline_s - monotonic
                    self._cooling[row.address] = monotonic + min(max(left, 0.0), period_s)
            self._dying.update(dying)
            self.loop.wake()

    def is_cooling(self, address: IpAddress) -> bool:
        """Whether an address cools, recorded or not."""
        return address in self._cooling

    def is_dying(self, *links: str) -> bool:
        """Whether a link of one of these names waits for its deletion."""
        return not self._dying.keys().isdisjoint(links)

    def dying_count(self) -> int:
        """Links marked and not yet deleted."""
        return len(self._dying)

    def next_due_s(self) -> float | None:
        """Seconds until the next address has cooled; None if none is cooling."""
        with self._lock:
            deadline = min(self._cooling.values(), default=None)
        return None if deadline is None else max(deadline - self._clock.monotonic(), 0.0)

    def turn(self) -> float | None:
        """Sweep once a link is marked, free an address once it has cooled. Returns: seconds until the next address has cooled."""
        if self._dying:
            self._await_quiet()
        self.work()
        return self.next_due_s()

    def work(self) -> None:
        """Do everything that is due, once; a failed step does not stop the others. Raises: the last error."""
        with self._lock:
            has_new, self._has_new = self._has_new, False
        if has_new:
            self._demand.trigger()  # what cools is no load any more: the pool may have too much
        error: IpamError | None = None
        aborts = [partial(self._write_abort, address, reason) for address, reason in self._aborts.copy().items()]
        steps: list[Callable[[], object]] = [self.sweep, *aborts, self.release_cooled]
        for step in steps:
            try:
                step()
            except IpamError as refused:
                error = refused
        if error is not None:
            raise error

    def sweep(self) -> int:
        """Delete every link that was marked before the call; returns how many.

        A link that could not be marked is removed by itself, and all of them are if the kernel refuses the group: one that refuses
        keeps its own address back and no other. Raises: IpamError of the last that refused, after everything was tried.
        """
        with self._lock:
            batch = dict(self._dying)
            alone = set(batch) & self._unmarked
        refused = self._remove_alone({veth: batch[veth] for veth in alone})
        marked = {veth: address for veth, address in batch.items() if veth not in alone}
        if marked:
            try:
                self._wiring.sweep()
            except IpamError as error:  # something else is in the group, perhaps, that cannot be deleted
                log.info("dying links are deleted one by one error=%s", log_text(error))
                refused |= self._remove_alone(marked)
        self._odd.keep_only(refused)
        if batch.keys() - refused.keys():
            self._failpoint("cooling.swept")
        with self._lock:
            for veth in batch.keys() - refused.keys():
                self._unmarked.discard(veth)
                self._dying.pop(veth, None)
        if refused:
            raise list(refused.values())[-1]
        return len(batch)

    def _remove_alone(self, links: dict[str, Dying]) -> dict[str, IpamError]:
        """Remove links one by one, by name; returns those that refused.

        The name comes from the key: a sandbox that was added again after a failed ADD has a new link of that name (I2).
        """
        refused: dict[str, IpamError] = {}
        if not links:
            return refused
        attachments, held = self._datastore.attachments(), self._locks.held()
        recorded = {one.host_veth for one in attachments}
        # A pod's next sandbox has the same branch ENI, so the same address: nothing of it is a leftover any more.
        succeeded = {one.address for one in attachments if one.branch is not None}
        busy = tuple(veth_name(one.key, prefix="") for one in held)
        claimed = {one.key.container_id for one in held}
        for veth, (address, branch) in sorted(links.items(), key=lambda one: (one[1].branch is not None, one[0])):
            if veth.endswith(busy) or {veth, str(address)} & claimed:
                refused[veth] = BusyError(f"link {veth} is in work", details="it is removed later")
                continue
            if address in succeeded:
                continue
            try:
                name = None if veth in recorded or branch else veth
                self._wiring.remove_leftover(host_veth=name, address=address, branch=branch)
            except IpamError as error:
                self._odd.report(veth, error)
                refused[veth] = error
        return refused

    def release_cooled(self) -> int:
        """Free every address that has cooled and whose link is gone; returns how many.

        Raises: the last DatastoreError, after every address was tried; what was not freed stays due.
        """
        now = self._clock.monotonic()
        with self._lock:
            dying = {one.address for one in self._dying.values()}
            due = {address: end for address, end in self._cooling.items() if end <= now and address not in dying}
        freed, error = 0, None
        try:
            for address, deadline in due.items():
                row = self._datastore.address(address)
                if row is not None and row.state is AddressState.COOLING:  # else adopted, quarantined or removed in the meantime
                    try:
                        with self._datastore.transaction() as uow:
                            uow.free(address, reason="cooldown over and link gone")
                    except DatastoreError as refused:
                        error = refused
                        continue
                    self._failpoint("cooling.cooled")
                    freed += 1
                with self._lock:
                    if self._cooling.get(address) == deadline:  # not one that was given and released again since
                        del self._cooling[address]
        finally:
            if freed:
                self._demand.announce_supply()
                self._demand.trigger()
        if error is not None:
            raise error
        return freed

    def _write_abort(self, address: IpAddress, reason: str) -> None:
        with self._datastore.transaction() as uow:
            uow.abort(address, cooldown=self.period, reason=reason)
        self._aborts.pop(address, None)
        self.start(address, dying_veth=None)

    def _await_quiet(self) -> None:
        """Let requests pass before a sweep, for a bounded time."""
        for _ in range(SWEEP_QUIET_TRIES):
            seen = self._locks.asked_count
            if self.loop.pause(SWEEP_QUIET_S):
                return
            # An ADD that waits for an address to cool waits for this thread, not for the kernel.
            if self._demand.waiting()[0] or (self._locks.asked_count == seen and not self._locks.held()):
                return
