"""Changes in the life of one address, by the table in `model.address`, and of the attachment that has it.

An address and its attachment change together: the schema's constraints let neither exist without the other (I1).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from ipaddress import IPv4Address

from ipamd.datastore import statements as sql
from ipamd.datastore.changes import Changes, change
from ipamd.datastore.rows import Params, address_params, attachment_params
from ipamd.model.address import Address, AddressEvent, AddressState, next_state
from ipamd.model.attachment import Attachment
from ipamd.model.errors import IllegalTransitionError, InvariantError, UnknownAttachmentError
from ipamd.model.ids import AttachmentKey
from ipamd.model.ledger import LedgerEvent


class AddressChanges(Changes):
    """The part of `SqlUnitOfWork` that assigns addresses and takes them back."""

    @change
    def confirm(self, attachment: Attachment) -> None:
        """Until COMMIT has succeeded memory keeps the address reserved, so that the caller can abort."""
        old = self._view.known_address(attachment.address)
        state = _after(old, AddressEvent.CONFIRM)
        if old.owner != attachment.key:
            raise InvariantError(f"address {old.address} is reserved for {old.owner}, not for {attachment.key}", details="I1")
        self._assign(old, attachment, state)
        self._log(
            LedgerEvent.ASSIGNED,
            at=attachment.created_at,
            address=old.address,
            key=attachment.key,
            eni_id=old.eni_id,
            detail=attachment.sandbox_name,
            of=attachment,
        )

    @change
    def adopt(self, attachment: Attachment) -> None:
        """A key that has a reservation is refused: an ADD for it is at work."""
        old = self._view.known_address(attachment.address)
        state = _after(old, AddressEvent.ADOPT)
        reserved = self._view.memory.reservation(attachment.key)
        if reserved is not None:
            raise InvariantError(f"sandbox {attachment.key} is just being given {reserved}", details="I1")
        self._assign(old, attachment, state)
        self._log(
            LedgerEvent.ADOPTED,
            at=attachment.created_at,
            address=old.address,
            key=attachment.key,
            eni_id=old.eni_id,
            detail=f"was {old.state}",
            of=attachment,
        )

    @change
    def move_table(self, key: AttachmentKey, *, route_table: int) -> Attachment:
        """UnknownAttachmentError does not fail the unit, as for `unassign`."""
        known = self._view.attachment(key)
        if known is None:
            raise UnknownAttachmentError(f"sandbox {key} is not attached")
        params: Params = {"key_container_id": key.container_id, "key_ifname": key.ifname, "route_table": route_table}
        self._disk.write(sql.MOVE_ATTACHMENT, params, subject=f"moving {key} to table {route_table}")
        moved = replace(known, route_table=route_table)
        self._view.staged.attachments[key] = moved
        detail = f"its ENI's table is {route_table} now, and was {known.route_table}"
        self._log(LedgerEvent.REPAIRED, address=known.address, key=key, eni_id=known.eni_id, detail=detail, of=known)
        return moved

    @change
    def rename_veth(self, key: AttachmentKey, *, host_veth: str, result: bytes) -> Attachment:
        """UnknownAttachmentError does not fail the unit, as for `unassign`."""
        known = self._view.attachment(key)
        if known is None:
            raise UnknownAttachmentError(f"sandbox {key} is not attached")
        names: Params = {"new_host_veth": host_veth, "new_result": result}
        params: Params = {"key_container_id": key.container_id, "key_ifname": key.ifname, **names}
        self._disk.write(sql.RENAME_ATTACHMENT, params, subject=f"renaming the veth of {key}")
        renamed = replace(known, host_veth=host_veth, result=result)
        self._view.staged.attachments[key] = renamed
        detail = f"its host veth is {host_veth} now, and was {known.host_veth}"
        self._log(LedgerEvent.REPAIRED, address=known.address, key=key, eni_id=known.eni_id, detail=detail, of=known)
        return renamed

    @change
    def unassign(
        self, key: AttachmentKey, *, cooldown: timedelta, reason: str, event: LedgerEvent = LedgerEvent.UNASSIGNED
    ) -> Attachment:
        """UnknownAttachmentError changes nothing and does not fail the unit: a DEL may come twice (I3)."""
        attachment = self._view.attachment(key)
        if attachment is None:
            raise UnknownAttachmentError(f"sandbox {key} is not attached")
        old = self._view.known_address(attachment.address)
        params: Params = {"key_container_id": key.container_id, "key_ifname": key.ifname}
        self._disk.write(sql.DELETE_ATTACHMENT, params, subject=f"unassigning {old.address} from {key}")
        self._view.staged.attachments[key] = None
        self._cool(old, AddressEvent.UNASSIGN, cooldown=cooldown, reason=reason)
        self._log(event, address=old.address, key=key, eni_id=old.eni_id, detail=reason, of=attachment)
        return attachment

    @change
    def abort(self, address: IPv4Address, *, cooldown: timedelta, reason: str) -> None:
        """On disk the address was free: a reservation is in memory only (I5)."""
        old = self._view.known_address(address)
        self._cool(old, AddressEvent.ABORT, cooldown=cooldown, reason=reason)
        self._log(LedgerEvent.ABORTED, address=address, key=old.owner, eni_id=old.eni_id, detail=reason)

    @change
    def free(self, address: IPv4Address, *, reason: str) -> None:
        """The caller decides whether the address has cooled, by the monotonic clock: a wall clock may be stepped (I8)."""
        old = self._view.known_address(address)
        state = _after(old, AddressEvent.COOLED)
        if old.is_lost:
            self._forget([old], reason=f"{reason}; lost: {old.lost_reason}")
            return
        self._settle(old, state, reason=reason)
        self._log(LedgerEvent.COOLED, address=address, eni_id=old.eni_id, detail=reason)

    @change
    def quarantine(self, address: IPv4Address, *, reason: str) -> None:
        """Ends a reservation: the ADD that holds it can no longer confirm it."""
        old = self._view.known_address(address)
        self._settle(old, _after(old, AddressEvent.DISAGREE), reason=reason)
        self._log(LedgerEvent.QUARANTINED, address=address, key=old.owner, eni_id=old.eni_id, detail=reason)

    @change
    def resolve(self, address: IPv4Address, *, cooldown: timedelta, reason: str) -> None:
        """It cools before it is free: its DEL may have come a moment ago (docs/adr/0012)."""
        old = self._view.known_address(address)
        self._cool(old, AddressEvent.RESOLVE, cooldown=cooldown, reason=reason)
        self._log(LedgerEvent.RESOLVED, address=address, eni_id=old.eni_id, detail=reason)

    def _assign(self, old: Address, attachment: Attachment, state: AddressState) -> None:
        key = attachment.key
        if old.eni_id != attachment.eni_id:
            raise InvariantError(f"address {old.address} is on {old.eni_id}, not on {attachment.eni_id}", details="I7")
        present = self._view.attachment(key)
        if present is not None:
            raise InvariantError(f"sandbox {key} is attached with {present.address}", details="I1")
        if self._view.has_tombstone(key):
            raise InvariantError(f"sandbox {key} cannot be attached: its DEL was done", details="I4")
        self._disk.write(sql.INSERT_ATTACHMENT, attachment_params(attachment), subject=f"assigning {old.address} to {key}")
        new = replace(
            old,
            state=state,
            since=attachment.created_at,
            since_monotonic_s=self._now_s,
            owner=key,
            cooling_until=None,
            cooldown_deadline_s=None,
            reason="",
        )
        self._write(old, new)
        self._view.staged.attachments[key] = attachment

    def _cool(self, old: Address, event: AddressEvent, *, cooldown: timedelta, reason: str) -> None:
        new = replace(
            old,
            state=_after(old, event),
            since=self._now,
            since_monotonic_s=self._now_s,
            owner=None,
            reason=reason,
            cooling_until=self._now + cooldown,
            # The same end on the monotonic clock: the wall clock may be stepped while no daemon runs (I8).
            cooldown_deadline_s=self._now_s + cooldown.total_seconds(),
        )
        self._write(old, new)

    def _settle(self, old: Address, state: AddressState, *, reason: str) -> None:
        new = replace(
            old,
            state=state,
            since=self._now,
            since_monotonic_s=self._now_s,
            owner=None,
            cooling_until=None,
            cooldown_deadline_s=None,
            reason=reason,
        )
        self._write(old, new)

    def _write(self, old: Address, new: Address) -> None:
        row = address_params(new)
        params: Params = {name: row[name] for name in sql.ADDRESS_CHANGES}
        params["key_address"] = str(old.address)
        params["key_state"] = str(AddressState.FREE if old.state is AddressState.RESERVED else old.state)
        self._expect_one(sql.UPDATE_ADDRESS, params, old)
        self._view.staged.addresses[old.address] = new


def _after(address: Address, event: AddressEvent) -> AddressState:
    try:
        return next_state(address.state, event)
    except IllegalTransitionError as error:
        raise IllegalTransitionError(f"address {address.address}: {error.message}", details=error.details) from None
