"""Find the recorded interfaces of further network cards in a pod's sandbox (docs/adr/0086).

They are attached and detached together with the pod's first interface.
"""

from __future__ import annotations

from ipamd.model.attachment import Attachment
from ipamd.model.card_interfaces import further_keys
from ipamd.model.ids import AttachmentKey
from ipamd.ports.datastore import Datastore


def recorded_further(datastore: Datastore, key: AttachmentKey) -> list[Attachment]:
    """Return the recorded further interfaces of a pod's sandbox in the order of their numbers.

    The search ends at the first number without a record. The numbers have no gap, because a DEL detaches the interface with the
    highest number first. So a sandbox without further interfaces costs one look-up in memory.

    Args:
        key: the key of the pod's first interface; for any other key the list is empty.
    """
    attachments: list[Attachment] = []
    for further in further_keys(key):
        attachment = datastore.attachment(further)
        if attachment is None:
            break
        attachments.append(attachment)
    return attachments
