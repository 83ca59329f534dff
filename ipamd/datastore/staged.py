"""The changes of one unit of work: an overlay over memory, dropped on rollback and applied after COMMIT.

A value of None means "removed". Only the thread that holds the transaction lock uses it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address

from ipamd.model.absence import Doubts
from ipamd.model.address import Address
from ipamd.model.attachment import Attachment
from ipamd.model.eni import Eni
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.intent import Intent
from ipamd.model.tombstone import Tombstone


@dataclass(frozen=True, slots=True)
class Staged:
    """Changes by identity, in the order in which they were first made; of `doubts` the last one replaces what was there."""

    enis: dict[EniId, Eni | None] = field(default_factory=dict)
    addresses: dict[IPv4Address, Address | None] = field(default_factory=dict)
    attachments: dict[AttachmentKey, Attachment | None] = field(default_factory=dict)
    tombstones: dict[AttachmentKey, Tombstone | None] = field(default_factory=dict)
    intents: dict[str, Intent | None] = field(default_factory=dict)
    doubts: list[Doubts] = field(default_factory=list)
