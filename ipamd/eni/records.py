"""Record ENIs and addresses that EC2 confirmed, one transaction per ENI (I6, I7).

What contradicts a record is left out and reported: an address that is recorded on another ENI, or is some ENI's primary address, a
prefix that is recorded elsewhere. The rest of the same ENI is recorded all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import timedelta
from ipaddress import IPv4Address, IPv4Network

from ipamd.core.context import ServiceContext
from ipamd.eni.sync_result import EniSyncResult
from ipamd.model.cloud import DescribedEni, all_addresses
from ipamd.model.eni import Eni
from ipamd.model.ids import EniId
from ipamd.ports import UnitOfWork
from ipamd.sandbox.cooldown import Cooldown

Batch = tuple[IPv4Network | None, list[IPv4Address]]
"""Addresses with the prefix that contains them, None for single ones."""


class EniRecords:
    """Adds to the datastore what EC2 shows. `outcome` counts, and gets a sentence per contradiction."""

    def __init__(self, context: ServiceContext, *, cooldown: Cooldown) -> None:
        self._datastore = context.datastore
        self._wiring = context.wiring
        self._cooldown = cooldown
        self.on_quarantined: Callable[[], None] = lambda: None

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
            self.on_quarantined()
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
            self.on_quarantined()
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


def _batches(addresses: Collection[IPv4Address], prefixes: Collection[IPv4Network]) -> list[Batch]:
    return [(None, sorted(addresses)), *((prefix, list(prefix)) for prefix in sorted(prefixes))]
