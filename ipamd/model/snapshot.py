"""The whole content of the datastore at one moment, for readers that need rows which agree with each other.

Reading ENIs, then addresses, then attachments gives three moments, and a change between two of them looks like a contradiction.
"""

from __future__ import annotations

from datetime import datetime

from ipamd.model.absence import Doubts
from ipamd.model.address import Address
from ipamd.model.attachment import Attachment
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.family import IpAddress
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.intent import Intent
from ipamd.model.record import dataclass, field

# That DEL was done for a key: for some time a late ADD of it is refused (I4).


@dataclass(frozen=True, slots=True)
class Tombstone:
    """`at` is when DEL was done (aware UTC); `at_monotonic_s` the same on the machine's monotonic clock, None if not known."""

    at: datetime
    at_monotonic_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything by identity, in no order.

    `tombstones` says when DEL was done for a key; `intents` are the open ones. `cursor`: place in its /80 of what was given last.
    `identity`: what instance metadata last said of the node; None if it never did.
    """

    enis: dict[EniId, Eni]
    addresses: dict[IpAddress, Address]
    attachments: dict[AttachmentKey, Attachment]
    tombstones: dict[AttachmentKey, Tombstone]
    intents: dict[str, Intent]
    doubts: Doubts = field(default_factory=Doubts)
    cursor: int = field(default=0, compare=False)
    identity: InstanceIdentity | None = field(default=None, compare=False)

    def copy(self) -> Snapshot:
        """The same rows in dictionaries of its own."""
        tables = dict(self.enis), dict(self.addresses), dict(self.attachments), dict(self.tombstones), dict(self.intents)
        return Snapshot(*tables, self.doubts, self.cursor, self.identity)


def eni_place(eni: Eni) -> tuple[int, int, EniId]:
    """Sort key of ENIs: by network card, then device index; the ID settles ties, which a correct node does not have."""
    return eni.network_card, eni.device_index, eni.eni_id
