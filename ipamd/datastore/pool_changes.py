"""Changes to the pool itself: ENIs, and the addresses that EC2 gives to them or takes away.

An address enters only with an ENI that we know (I7), never as a primary address (I6), and leaves only when no sandbox has it (I2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from ipaddress import IPv4Address, IPv4Network

from ipamd.datastore import statements as sql
from ipamd.datastore.changes import Changes, change
from ipamd.datastore.rows import address_params, eni_params
from ipamd.model.address import Address, AddressState
from ipamd.model.eni import PREFIX_LENGTH, Eni
from ipamd.model.errors import InvariantError
from ipamd.model.ids import EniId
from ipamd.model.ledger import LedgerEvent


class PoolChanges(Changes):
    """The part of `SqlUnitOfWork` that makes the pool larger or smaller."""

    @change
    def put_eni(self, eni: Eni) -> None:
        """An ENI that has not changed is left alone, without a ledger row."""
        known = self._view.eni(eni.eni_id)
        if known == eni:
            return
        if self._view.address(eni.primary_address) is not None:
            raise InvariantError(
                f"primary address {eni.primary_address} of {eni.eni_id} is in the pool",
                details="I6: the primary address of an ENI is never given to a sandbox",
            )
        self._disk.write(sql.UPSERT_ENI, eni_params(eni), subject=f"recording {eni.eni_id}")
        self._view.staged.enis[eni.eni_id] = eni
        ready = "host routing ready" if eni.host_ready else "host routing not ready"
        detail = f"device {eni.device_index} on card {eni.network_card}, {eni.state}, {ready}"
        if not eni.managed:
            detail += ", not managed"
        event = LedgerEvent.ENI_CHANGED if known else LedgerEvent.ENI_ADDED
        self._log(event, address=eni.primary_address, eni_id=eni.eni_id, detail=detail)

    @change
    def remove_eni(self, eni_id: EniId, *, reason: str) -> None:
        """An unknown ENI is fine."""
        eni = self._view.eni(eni_id)
        if eni is None:
            return
        self._remove(self._view.addresses_of(eni_id), what=f"ENI {eni_id} cannot be forgotten", reason=reason)
        self._disk.write(sql.DELETE_ENI, {"key_eni_id": eni_id}, subject=f"forgetting {eni_id}")
        self._view.staged.enis[eni_id] = None
        self._log(LedgerEvent.ENI_REMOVED, address=eni.primary_address, eni_id=eni_id, detail=reason)

    @change
    def add_addresses(
        self,
        eni_id: EniId,
        addresses: Iterable[IPv4Address],
        *,
        prefix: IPv4Network | None = None,
        cooldown: timedelta | None = None,
    ) -> None:
        """Raises: InvariantError also for an unknown ENI, a primary address (I6) or a wrong prefix."""
        if self._view.eni(eni_id) is None:
            raise InvariantError(f"ENI {eni_id} is not known", details="I7: an address needs an ENI that we know")
        fresh = [address for address in sorted(set(addresses)) if self._is_fresh(address, eni_id, prefix)]
        if not fresh:
            return
        subject = f"adding {fresh[0]} and {len(fresh) - 1} more to {eni_id}"
        if prefix is not None:
            self._put_prefix(prefix, eni_id)
        if cooldown is None:
            first = Address(fresh[0], eni_id, AddressState.FREE, self._now, prefix, since_monotonic_s=self._now_s)
        else:
            first = Address(
                fresh[0],
                eni_id,
                AddressState.COOLING,
                self._now,
                prefix,
                cooling_until=self._now + cooldown,
                cooldown_deadline_s=self._now_s + cooldown.total_seconds(),
                since_monotonic_s=self._now_s,
            )
        rows = [replace(first, address=address) for address in fresh]
        self._disk.write(sql.INSERT_ADDRESS, [address_params(row) for row in rows], subject=subject)
        for row in rows:
            self._view.staged.addresses[row.address] = row
            detail = "" if prefix is None else f"in {prefix}"
            self._log(LedgerEvent.ADDED, address=row.address, eni_id=eni_id, detail=detail)

    @change
    def remove_addresses(self, addresses: Iterable[IPv4Address], *, reason: str) -> None:
        """Unknown addresses are fine."""
        found = [self._view.address(address) for address in sorted(set(addresses))]
        known = [address for address in found if address is not None]
        self._remove(known, what="addresses cannot be forgotten", reason=reason)

    def _is_fresh(self, address: IPv4Address, eni_id: EniId, prefix: IPv4Network | None) -> bool:
        if prefix is not None and (prefix.prefixlen != PREFIX_LENGTH or address not in prefix):
            raise InvariantError(f"address {address} is not in a /{PREFIX_LENGTH} named {prefix}", details="EC2 has no other")
        if self._view.eni_of_primary(address) is not None:
            raise InvariantError(
                f"address {address} is the primary one of {self._view.eni_of_primary(address)}",
                details="I6: the primary address of an ENI is never given to a sandbox",
            )
        known = self._view.address(address)
        if known is not None and known.eni_id != eni_id:
            raise InvariantError(
                f"address {address} is on {known.eni_id}, not on {eni_id}", details="I1: remove it there before adding it here"
            )
        return known is None

    def _put_prefix(self, prefix: IPv4Network, eni_id: EniId) -> None:
        subject = f"adding prefix {prefix} to {eni_id}"
        holder = self._disk.execute(sql.PREFIX_HOLDER, {"key_prefix": str(prefix)}, subject=subject).scalar_one_or_none()
        if holder is None:
            self._disk.write(sql.INSERT_PREFIX, {"prefix": str(prefix), "eni_id": eni_id}, subject=subject)
        elif holder != eni_id:
            raise InvariantError(f"prefix {prefix} is on {holder}, not on {eni_id}", details="remove it there first")

    def _remove(self, addresses: list[Address], *, what: str, reason: str) -> None:
        held = [address for address in addresses if address.is_in_use]
        if held:
            names = ", ".join(f"{address.address} ({address.state} to {address.owner})" for address in held[:3])
            raise InvariantError(f"{what}: {len(held)} in use", details=f"I2: {names}")
        self._forget(addresses, reason=reason)
