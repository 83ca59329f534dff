"""Addresses that EC2 does not show any more, and those that it shows again.

`lost` is laid over the states of an address and kept in a table of its own, so that the release before can use the file. A
lost address keeps its sandbox (I2) and is given to nobody again (I7): where it would become free it is removed.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

from ipamd.datastore import statements as sql
from ipamd.datastore.changes import Changes, change
from ipamd.datastore.rows import doubt_params, lost_params
from ipamd.model.absence import Doubts
from ipamd.model.address import AddressState
from ipamd.model.ledger import LedgerEvent


class LossChanges(Changes):
    """The part of `SqlUnitOfWork` that follows what EC2 shows."""

    @change
    def lose(self, address: IPv4Address, *, reason: str) -> None:
        """An unknown or lost address is fine."""
        old = self._view.address(address)
        if old is None or old.is_lost:
            return
        owner = self._view.attachment(old.owner) if old.owner else None
        self._log(LedgerEvent.LOST, address=address, key=old.owner, eni_id=old.eni_id, detail=reason, of=owner)
        if old.state is AddressState.FREE:
            self._forget([old], reason=f"lost: {reason}")
            return
        new = replace(old, lost_since=self._now, lost_reason=reason)
        self._disk.write(sql.INSERT_LOST, lost_params(new), subject=f"marking {address} as lost")
        self._view.staged.addresses[address] = new

    @change
    def heal(self, address: IPv4Address, *, reason: str) -> None:
        """An unknown address, or one that is not lost, is fine."""
        old = self._view.address(address)
        if old is None or not old.is_lost:
            return
        self._disk.write(sql.DELETE_LOST, {"key_address": str(address)}, subject=f"marking {address} as found")
        self._view.staged.addresses[address] = replace(old, lost_since=None, lost_reason="")
        owner = self._view.attachment(old.owner) if old.owner else None
        self._log(LedgerEvent.HEALED, address=address, key=old.owner, eni_id=old.eni_id, detail=reason, of=owner)

    @change
    def put_doubts(self, doubts: Doubts) -> None:
        """Writes no ledger row: most doubts end at the next look."""
        self._disk.write(sql.DELETE_DOUBTS, {}, subject="forgetting doubts")
        if rows := doubt_params(doubts):
            self._disk.write(sql.INSERT_DOUBT, rows, subject="recording doubts")
        self._view.staged.doubts.append(doubts)
