"""The state as a unit of work sees it: its own staged changes first, then memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address

from ipamd.datastore.memory_state import MemoryState, Staged
from ipamd.model.address import Address
from ipamd.model.attachment import Attachment
from ipamd.model.eni import Eni
from ipamd.model.errors import InvariantError
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.intent import Intent
from ipamd.model.snapshot import Tombstone


@dataclass(slots=True)
class View:
    """What one unit of work reads. Reading an address claims it (see `MemoryState.claim`) until the unit ends."""

    memory: MemoryState
    staged: Staged = field(default_factory=Staged)
    claimed: set[IPv4Address] = field(default_factory=set)

    def eni(self, eni_id: EniId) -> Eni | None:
        """Find one ENI."""
        return self.staged.enis[eni_id] if eni_id in self.staged.enis else self.memory.eni(eni_id)

    def eni_of_primary(self, address: IPv4Address) -> EniId | None:
        """Which ENI has this primary address."""
        for eni in self.staged.enis.values():
            if eni is not None and eni.primary_address == address:
                return eni.eni_id
        found = self.memory.eni_of_primary(address)
        return None if found in self.staged.enis else found

    def address(self, address: IPv4Address) -> Address | None:
        """Find one address, and claim it."""
        if address in self.staged.addresses:
            return self.staged.addresses[address]
        self.claimed.add(address)
        return self.memory.claim(address)

    def known_address(self, address: IPv4Address) -> Address:
        """Find one address that must be there. Raises: InvariantError."""
        found = self.address(address)
        if found is None:
            raise InvariantError(f"address {address} is not known", details="I7: EC2 has not confirmed it on an ENI of this node")
        return found

    def addresses_of(self, eni_id: EniId) -> list[Address]:
        """All addresses of one ENI, ascending, each claimed."""
        candidates = {*self.memory.addresses_of(eni_id), *self.staged.addresses}
        found = [self.address(candidate) for candidate in sorted(candidates)]
        return [address for address in found if address is not None and address.eni_id == eni_id]

    def attachment(self, key: AttachmentKey) -> Attachment | None:
        """Find one attachment."""
        return self.staged.attachments[key] if key in self.staged.attachments else self.memory.attachment(key)

    def has_tombstone(self, key: AttachmentKey) -> bool:
        """Whether DEL was done for a key."""
        staged = self.staged.tombstones
        return staged[key] is not None if key in staged else self.memory.is_tombstoned(key)

    def tombstones(self) -> dict[AttachmentKey, Tombstone]:
        """All tombstones."""
        merged = {**self.memory.tombstones(), **self.staged.tombstones}
        return {key: found for key, found in merged.items() if found is not None}

    def intent(self, intent_id: str) -> Intent | None:
        """Find one open intent."""
        staged = self.staged.intents
        return staged[intent_id] if intent_id in staged else self.memory.intent(intent_id)

    def release(self) -> None:
        """Give the claims back: the unit has ended, with or without a commit."""
        self.memory.release(self.claimed)
