"""The recorded interfaces of further network cards in a pod's sandbox, which come and go with its first one (docs/adr/0086)."""

from __future__ import annotations

from ipamd.model.attachment import Attachment
from ipamd.model.card_interfaces import further_keys
from ipamd.model.ids import AttachmentKey
from ipamd.ports.datastore import Datastore


def recorded_further(datastore: Datastore, key: AttachmentKey) -> list[Attachment]:
    """Return the further interfaces of a pod's sandbox in the order of their numbers.

    They are numbered without a gap, because a DEL removes the last one first. So a sandbox that has none costs one look into memory.

    Args:
        key: of the pod's first interface; for any other key the list is empty.
    """
    found: list[Attachment] = []
    for further in further_keys(key):
        attachment = datastore.attachment(further)
        if attachment is None:
            break
        found.append(attachment)
    return found
