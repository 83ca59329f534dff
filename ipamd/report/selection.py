"""Find recorded sandboxes by pod, by the beginning of a container ID, or by an address."""

from __future__ import annotations

from ipamd.model.attachment import Attachment
from ipamd.model.errors import InvalidRequestError
from ipamd.model.family import IpAddress
from ipamd.model.history_subject import HistorySubject
from ipamd.model.legs import addresses_of
from ipamd.report.sources import Sources


def sandboxes_of_pod(sources: Sources, name: str) -> list[Attachment]:
    """Return the attachments of a pod, which is given as `namespace/name` or by its name alone; [] if no sandbox is of that pod.

    Raises: InvalidRequestError if pods of several namespaces have the name.
    """
    subject = HistorySubject(name)
    attachments = [attachment for attachment in sources.datastore.attachments() if subject.names_pod(attachment.sandbox_name)]
    pods = sorted({attachment.sandbox_name for attachment in attachments})
    if len(pods) > 1:
        raise InvalidRequestError(f"{name} is the name of {len(pods)} pods", details=f"give one of {', '.join(pods)}")
    return attachments


def sandboxes_by_container_id(sources: Sources, beginning: str) -> list[Attachment]:
    """Return the attachments of the sandbox whose container ID has this beginning; [] if there is no such sandbox.

    Raises: InvalidRequestError if several container IDs have this beginning.
    """
    attachments = []
    for attachment in sources.datastore.attachments():
        if attachment.key.container_id.startswith(beginning):
            attachments.append(attachment)
    container_ids = {attachment.key.container_id for attachment in attachments}
    if len(container_ids) > 1:
        raise InvalidRequestError(
            f"{beginning} is the beginning of {len(container_ids)} container IDs", details="give more characters"
        )
    return attachments


def sandboxes_by_address(sources: Sources, address: IpAddress) -> list[Attachment]:
    """Return the attachments that have an address, by any of their legs; [] if no sandbox has it."""
    return [attachment for attachment in sources.datastore.attachments() if address in addresses_of(attachment)]
