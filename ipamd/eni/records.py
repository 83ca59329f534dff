"""Record what EC2 confirmed, and what its answers prove to be gone, one transaction per ENI (I6, I7).

What contradicts a record is left out and reported: an address that is recorded on another ENI, or is some ENI's primary address, a
prefix that is recorded elsewhere. The rest of the same ENI is recorded all the same.

Doubted: nobody gets it. Absent: free addresses are forgotten, all others are lost: their sandbox keeps them, they keep cooling (I2,
I8), and they are forgotten when they would become free. An ENI is forgotten, with its routing, once no address of it is left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import timedelta
from ipaddress import IPv4Address, IPv4Network

from ipamd.core.context import ServiceContext
from ipamd.eni.book import EniBook
from ipamd.eni.routing import EniRouting
from ipamd.eni.sync_result import EniSyncResult, say_losses
from ipamd.model.address import Address
from ipamd.model.cloud import DescribedEni, all_addresses
from ipamd.model.eni import Eni, EniState
from ipamd.model.errors import IllegalTransitionError, InvariantError, IpamError, log_text
from ipamd.model.ids import EniId
from ipamd.model.metadata_evidence import CloudKey
from ipamd.ports import UnitOfWork
from ipamd.sandbox.cooldown import Cooldown

log = logging.getLogger(__name__)

Batch = tuple[IPv4Network | None, list[IPv4Address]]
"""Addresses with the prefix that contains them, None for single ones."""


class EniRecords:
    """Adds, doubts, loses and forgets. `outcome` counts, and gets a sentence per contradiction. `hold` and `lose` are called by one
    thread at a time, the rest by any."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        book: EniBook,
        routing: EniRouting,
        cooldown: Cooldown,
        on_quarantined: Callable[[], None],
    ) -> None:
        """`on_quarantined`: EC2 has shown the address of a sandbox that is not recorded: it can be adopted. It must not block."""
        self._datastore = context.datastore
        self._wiring = context.wiring
        self._demand = context.demand
        self._health = context.health
        self._book = book
        self._routing = routing
        self._cooldown = cooldown
        self._on_quarantined = on_quarantined

    def wired_addresses(self) -> frozenset[IPv4Address]:
        """Addresses that the kernel has wired to a sandbox, recorded or not. Raises: KernelDumpError."""
        survey = self._wiring.survey()
        return frozenset(survey.routes) | {veth.address for veth in survey.veths if veth.address and not veth.is_dying}

    def new_to_us(self, addresses: Iterable[IPv4Address], prefixes: Iterable[IPv4Network]) -> list[IPv4Address]:
        """Those that a call of ours may have added. EC2 may name old ones with the new, and what was there before is no recent change:
        that it is not shown any more is no lag."""
        rows = {address: self._datastore.address(address) for address in all_addresses(addresses, prefixes)}
        return [address for address, row in rows.items() if row is None or row.is_lost]

    def lose_elsewhere(self, eni_id: EniId, addresses: Collection[IPv4Address], prefixes: Collection[IPv4Network]) -> None:
        """Lose the addresses that are recorded on another ENI than the one to which EC2 gave them in answer to a call of ours.

        An address is on one ENI at a time, so the answer proves that it has left the other one, whatever a Describe says of that.
        Without it the address would count as a recent change of ours on the ENI that has lost it, and be given there (I7).
        """
        rows = [self._datastore.address(address) for address in sorted(all_addresses(addresses, prefixes))]
        moved = [row for row in rows if row is not None and row.eni_id != eni_id and not row.is_lost]
        if not moved:
            return
        with self._datastore.transaction() as uow:
            for row in moved:
                uow.lose(row.address, reason=f"EC2 has given it to {eni_id}")

    def store(
        self,
        eni: Eni,
        described: DescribedEni,
        outcome: EniSyncResult,
        *,
        wired: Collection[IPv4Address],
        may_be_warm: bool = False,
    ) -> None:
        """Store one ENI with its addresses: new ones become free, lost ones heal.

        `wired`: what the kernel has wired. `may_be_warm`: new to us, but perhaps given and released before our datastore was lost;
        then they cool first (I8).
        Raises: InvariantError if the ENI itself contradicts a record; nothing of it is stored then.
        """
        is_wired = False
        with self._datastore.transaction() as uow:
            known = self._datastore.eni(eni.eni_id)
            if known is not None:
                is_ready = known.host_ready and known.route_table == eni.route_table  # another table is set up first (I7)
                eni = replace(eni, host_ready=is_ready, created_by_us=known.created_by_us or eni.created_by_us)
            uow.put_eni(eni)
            if eni.managed:
                batches = _batches(described.secondary_addresses, described.prefixes)
                cooldown = self._cooldown.period if may_be_warm else None
                is_wired = self._admit(uow, eni.eni_id, batches, outcome, wired=wired, cooldown=cooldown)
        if is_wired:
            self._on_quarantined()
        if may_be_warm:
            self._cooldown.resume(())

    def add(
        self,
        eni_id: EniId,
        addresses: Collection[IPv4Address],
        prefixes: Collection[IPv4Network],
        outcome: EniSyncResult,
        *,
        may_be_warm: bool,
    ) -> None:
        """Add addresses to a recorded ENI; `may_be_warm`: see `store`.

        Raises: InvariantError if it is not recorded; KernelDumpError.
        """
        wired = self.wired_addresses()
        cooldown = self._cooldown.period if may_be_warm else None
        with self._datastore.transaction() as uow:
            is_wired = self._admit(uow, eni_id, _batches(addresses, prefixes), outcome, wired=wired, cooldown=cooldown)
        if is_wired:
            self._on_quarantined()
        if may_be_warm:
            self._cooldown.resume(())

    def _admit(
        self,
        uow: UnitOfWork,
        eni_id: EniId,
        batches: Iterable[Batch],
        outcome: EniSyncResult,
        *,
        wired: Collection[IPv4Address],
        cooldown: timedelta | None,
    ) -> bool:
        """Add what does not contradict a record. An address that is new to us but wired already is quarantined at once: after a lost
        datastore a live sandbox may have it (I1, I2). Returns: whether there was one."""
        is_any_wired = False
        primaries = {eni.primary_address: eni.eni_id for eni in self._datastore.enis()}
        for prefix, batch in batches:
            rows = {address: self._datastore.address(address) for address in batch}
            elsewhere = [row for row in rows.values() if row is not None and row.eni_id != eni_id]
            for row in elsewhere:
                outcome.keep(f"{row.address} is on {eni_id} for EC2, and stays recorded on {row.eni_id}")
            if prefix is not None and any(row.prefix == prefix for row in elsewhere):
                continue  # a prefix is recorded on one ENI: the whole of it waits until no address of it is left there
            taken = {row.address for row in elsewhere}
            for address in rows.keys() & primaries.keys():
                outcome.keep(f"{address} is on {eni_id} for EC2, and recorded as the primary address of {primaries[address]}")
                taken.add(address)
            fresh = [address for address, row in rows.items() if row is None and address not in taken]
            outcome.added_count += len(fresh)
            uow.add_addresses(eni_id, fresh, prefix=prefix, cooldown=cooldown)
            for address in fresh:
                if address in wired:
                    uow.quarantine(address, reason="wired in the kernel, unknown to the datastore")
                    is_any_wired = True
            for shown in rows.values():
                if shown is not None and shown.is_lost and shown.address not in taken:
                    uow.heal(shown.address, reason="EC2 shows it again")
                    outcome.healed_count += 1
        return is_any_wired

    def hold(self, doubted: Collection[CloudKey]) -> None:
        """Let nobody have the addresses that EC2 did not show once, nor those of ENIs that it did not show; replaces the last call."""
        rows = self._datastore.addresses() if doubted else ()
        self._datastore.hold(frozenset(row.address for row in rows if row.address in doubted or row.eni_id in doubted))

    def lose(self, absent: Collection[CloudKey], outcome: EniSyncResult) -> None:
        """Record that these are gone. One that the datastore refuses is reported, and does not stop the others."""
        for key in sorted(absent, key=str):
            try:
                self._lose_address(key, outcome) if isinstance(key, IPv4Address) else self._lose_eni(key, outcome)
            except (InvariantError, IllegalTransitionError) as error:
                log.error("%s is gone at EC2 and stays recorded: %s", key, log_text(error))
                outcome.keep(f"{key} is gone at EC2 and stays recorded: {log_text(error)}")
        if outcome.lost_count:
            self._demand.trigger()  # the pool has less than it planned with

    def mark_leaving(self, eni_id: EniId) -> None:
        """Record that EC2 shows an ENI being detached: it gives no address from now on (I7), and its sandboxes keep theirs (I2)."""
        with self._datastore.transaction() as uow:
            self._mark_detaching(uow, eni_id)

    def is_back(self, eni_id: EniId) -> None:
        """EC2 shows an ENI attached again."""
        self._book.observe(eni_id, is_absent=False)

    def forget_unused(self) -> None:
        """Forget the ENIs that are gone and have no address left, with their routing; tell people what is still lost.

        Called after each comparison, and by the host network reconciler, because the last sandbox may leave long after.
        """
        for eni_id in sorted(eni_id for eni_id, facts in self._book.all().items() if facts.is_absent):
            eni = self._datastore.eni(eni_id)
            if eni is None:
                self._book.forget(eni_id)
            elif eni.state is not EniState.DETACHING:
                self.is_back(eni_id)
            elif self._is_unused(eni_id):
                self._routing.tear_down(eni)
                try:
                    self._forget(eni_id)
                except IpamError as error:  # a full disk must not stop the repair of the sandboxes' routes, which comes next
                    log.warning("ENI %s is forgotten later: %s", eni_id, log_text(error))
        say_losses(self._health, lost_count=self._datastore.counts().lost)

    def _is_unused(self, eni_id: EniId) -> bool:
        return not any(row.eni_id == eni_id for row in self._datastore.addresses())

    def _forget(self, eni_id: EniId) -> None:
        with self._datastore.transaction() as uow:
            eni = self._datastore.eni(eni_id)  # units of work are serialised; EC2 may have shown it again meanwhile
            if eni is None or eni.state is not EniState.DETACHING or not self._is_unused(eni_id):
                return
            uow.remove_eni(eni_id, reason="EC2 no longer shows it attached")
        self._book.forget(eni_id)
        self._demand.trigger()  # its place is free

    def _lose_address(self, address: IPv4Address, outcome: EniSyncResult) -> None:
        row = self._datastore.address(address)
        if row is not None:
            with self._datastore.transaction() as uow:
                uow.lose(address, reason="EC2 no longer shows it on this ENI")
            self._count(row, outcome)

    def _lose_eni(self, eni_id: EniId, outcome: EniSyncResult) -> None:
        rows = [row for row in self._datastore.addresses() if row.eni_id == eni_id and not row.is_lost]
        self._book.observe(eni_id, is_absent=True)
        with self._datastore.transaction() as uow:
            self._mark_detaching(uow, eni_id)
            for row in rows:
                uow.lose(row.address, reason="EC2 no longer shows its ENI attached")
        outcome.lost_eni_count += 1
        outcome.forced_eni_count += any(row.is_in_use for row in rows)
        for row in rows:
            self._count(row, outcome)

    def _mark_detaching(self, uow: UnitOfWork, eni_id: EniId) -> None:
        """From here on it gives no address (I7)."""
        known = self._datastore.eni(eni_id)
        if known is not None:
            uow.put_eni(replace(known, state=EniState.DETACHING, host_ready=False))

    def _count(self, before: Address, outcome: EniSyncResult) -> None:
        outcome.lost_count += 1
        outcome.forced_count += before.is_in_use
        if self._datastore.address(before.address) is None:
            outcome.removed_count += 1
        elif before.is_in_use:
            outcome.keep(f"{before.address} is in use and EC2 no longer shows it on {before.eni_id}")


def _batches(addresses: Collection[IPv4Address], prefixes: Collection[IPv4Network]) -> list[Batch]:
    return [(None, sorted(addresses)), *((prefix, list(prefix)) for prefix in sorted(prefixes))]
