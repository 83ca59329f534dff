"""The recorded interfaces of further network cards in a pod's sandbox, which come and go with its first one (docs/adr/0086)."""

from __future__ import annotations

from ipamd.model.attachment import Attachment
from ipamd.model.card_interfaces import further_keys
from ipamd.model.ids import AttachmentKey
from ipamd.ports.datastore import Datastore


def recorded_further(datastore: Datastore, key: AttachmentKey) -> list[Attachment]:
    """Return them in the order of their numbers; [] unless `key` is that of a pod's first interface.

    They are numbered without a gap, so a sandbox without any costs one look into memory. A DEL removes them from the last one on.
    """
    found: list[Attachment] = []
    for further in further_keys(key):
        attachment = datastore.attachment(further)
        if attachment is None:
            break
        found.append(attachment)
    return found
