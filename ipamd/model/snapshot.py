"""The whole content of the datastore at one moment, for readers that need consistent rows.

If ENIs, addresses and attachments were read one after the other, a change between two reads would look like a contradiction.
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
    """All rows of the datastore at one moment. Each dictionary has the rows of one kind by their keys, in no order.

    tombstones: the keys whose DEL was done.
    intents: the open intents, by their ID.
    doubts: the absences of ENIs and addresses that EC2 did not show lately.
    cursor: with IPv6, the position in the node's /80 of the address that was assigned last; the search for the next address begins
        behind it.
    identity: the node's identity as instance metadata last showed it; None if it never did.
    policy_pods: pod -> since when the network policy agent may have state for the pod's name.
    was_lost: whether earlier rows of this boot were lost.
    are_pods_marked: whether a pod of this boot had the admission policy's mark.
    unplaced: the keys, as text, of the sandboxes that were wired without a row when a start had compared the rows with kernel and
        runtime (`UnitOfWork.mark_restored`); None if this was not recorded.
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
        """Return a snapshot with copies of the dictionaries."""
        tables = dict(self.enis), dict(self.addresses), dict(self.attachments), dict(self.tombstones), dict(self.intents)
        facts = self.was_lost, self.are_pods_marked, self.unplaced
        return Snapshot(*tables, self.doubts, self.cursor, self.identity, dict(self.policy_pods), *facts)


def eni_place(eni: Eni) -> tuple[int, int, EniId]:
    """Return the sort key of an ENI: network card, device index, and ID. On a correct node no two ENIs are at the same place."""
    return eni.network_card, eni.device_index, eni.eni_id
