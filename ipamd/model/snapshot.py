"""The whole content of the datastore at one moment, for readers that need rows which agree with each other.

Reading ENIs, then addresses, then attachments gives three moments, and a change between two of them looks like a contradiction.
"""

from __future__ import annotations

from datetime import datetime

from ipamd.model.absences import Doubts
from ipamd.model.address import Address
from ipamd.model.attachment import Attachment
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.family import IpAddress
from ipamd.model.ids import AttachmentKey, EniId, PodName
from ipamd.model.intent import Intent
from ipamd.model.record import dataclass, field
from ipamd.model.tombstone import Tombstone


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All rows of the datastore at one moment. Each mapping has the rows of one kind by what identifies them, in no order.

    tombstones: the sandboxes' interfaces whose DEL was done.
    intents: the open ones, by their ID.
    doubts: the ENIs and addresses that EC2 did not show lately.
    cursor: with IPv6, the offset in its /80 of the address that was assigned last; the next search begins behind it.
    identity: the node's identity as instance metadata last showed it; None if it never did.
    policy_pods: since when the network policy agent may hold state under a pod's name.
    was_lost: whether earlier rows of this boot were lost.
    are_pods_marked: whether a pod of this boot had the admission policy's mark.
    unplaced: the keys, as text, of sandboxes that were wired without a row when the restore finished; None if this was not recorded.
    """

    enis: dict[EniId, Eni]
    addresses: dict[IpAddress, Address]
    attachments: dict[AttachmentKey, Attachment]
    tombstones: dict[AttachmentKey, Tombstone]
    intents: dict[str, Intent]
    doubts: Doubts = field(default_factory=Doubts)
    cursor: int = field(default=0, compare=False)
    identity: InstanceIdentity | None = field(default=None, compare=False)
    policy_pods: dict[PodName, datetime] = field(default_factory=dict)
    was_lost: bool = field(default=False, compare=False)
    are_pods_marked: bool = field(default=False, compare=False)
    unplaced: frozenset[str] | None = field(default=None, compare=False)

    def copy(self) -> Snapshot:
        """Return the same rows in dictionaries of their own."""
        tables = dict(self.enis), dict(self.addresses), dict(self.attachments), dict(self.tombstones), dict(self.intents)
        facts = self.was_lost, self.are_pods_marked, self.unplaced
        return Snapshot(*tables, self.doubts, self.cursor, self.identity, dict(self.policy_pods), *facts)


def eni_place(eni: Eni) -> tuple[int, int, EniId]:
    """Return the sort key of an ENI: network card, device index, and the ID for ties, which a correct node does not have."""
    return eni.network_card, eni.device_index, eni.eni_id
