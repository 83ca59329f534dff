"""Carry out what EC2's answers prove about ENIs and addresses that are gone.

Doubted: nobody gets it. Absent: free addresses are forgotten, all others are lost: their sandbox keeps them, they keep cooling (I2,
I8), and they are forgotten when they would become free. An ENI is forgotten, with its routing, once no address of it is left.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from ipaddress import IPv4Address

from ipamd.core.context import ServiceContext
from ipamd.eni.routing import EniRouting
from ipamd.eni.sync_result import EniSyncResult, say_losses
from ipamd.model.address import Address
from ipamd.model.eni import EniState
from ipamd.model.errors import IllegalTransitionError, InvariantError, IpamError, log_text
from ipamd.model.ids import EniId
from ipamd.model.metadata_evidence import CloudKey
from ipamd.ports import UnitOfWork

log = logging.getLogger(__name__)


class EniLosses:
    """Holds, loses and forgets. `hold` and `lose` are called by one thread at a time, `forget_unused` by any."""

    def __init__(self, context: ServiceContext, *, routing: EniRouting) -> None:
        self._datastore = context.datastore
        self._demand = context.demand
        self._health = context.health
        self._routing = routing
        self._departed: set[EniId] = set()
        self._held: frozenset[IPv4Address] = frozenset()

    def hold(self, doubted: Collection[CloudKey]) -> None:
        """Let nobody have the addresses that EC2 did not show once, nor those of ENIs that it did not show; replaces the last call."""
        rows = self._datastore.addresses() if doubted else ()
        held = frozenset(row.address for row in rows if row.address in doubted or row.eni_id in doubted)
        is_supply = bool(self._held - held)
        self._datastore.hold(held)
        self._held = held
        if is_supply:
            self._demand.announce_supply()

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
        self._departed.discard(eni_id)

    def forget_unused(self) -> None:
        """Forget the ENIs that are gone and have no address left, with their routing; tell people what is still lost.

        Called after each comparison, and by the host network reconciler, because the last sandbox may leave long after.
        """
        for eni_id in sorted(self._departed):
            eni = self._datastore.eni(eni_id)
            if eni is None or eni.state is not EniState.DETACHING:
                self._departed.discard(eni_id)
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
        self._departed.discard(eni_id)
        self._demand.trigger()  # its place is free

    def _lose_address(self, address: IPv4Address, outcome: EniSyncResult) -> None:
        row = self._datastore.address(address)
        if row is not None:
            with self._datastore.transaction() as uow:
                uow.lose(address, reason="EC2 no longer shows it on this ENI")
            self._count(row, outcome)

    def _lose_eni(self, eni_id: EniId, outcome: EniSyncResult) -> None:
        rows = [row for row in self._datastore.addresses() if row.eni_id == eni_id and not row.is_lost]
        self._departed.add(eni_id)
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
