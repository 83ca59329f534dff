"""Delete an ENI whose creation failed: none is leaked (I9), and none that sandboxes use is deleted (I2).

EC2 refuses to delete an attached ENI, may show an attachment late, and may not show a new ENI at all. So the intent stays open
until the ENI is known to be deleted, or is recorded because it was attached after all.
"""

from __future__ import annotations

import logging

from ipamd.model.errors import CloudError, CloudNotFoundError, IpamError, log_text
from ipamd.model.ids import EniId
from ipamd.model.intent import Intent
from ipamd.ports import Ec2
from ipamd.service.context import ServiceContext
from ipamd.service.pool.intents import IntentLog
from ipamd.service.pool.recent_changes import RecentChanges

DELETING = "deleting"
"""Mark in an intent's payload: EC2 has shown the ENI, and was asked to delete it."""

FAILPOINTS = ("growth.detached", "growth.deleted", "growth.marked")
"""Between every two effects of a deletion."""

log = logging.getLogger(__name__)


class EniDeletion:
    """Deletes ENIs of ours, through their intents; used by the provisioner's thread."""

    def __init__(self, context: ServiceContext, *, ec2: Ec2, intents: IntentLog, recent_changes: RecentChanges) -> None:
        self._recent_changes = recent_changes
        self._datastore = context.datastore
        self._failpoint = context.failpoint
        self._ec2 = ec2
        self._intents = intents

    def resume(self, intent: Intent, eni_id: EniId) -> None:
        """Continue a deletion that EC2 refused, unless the ENI was attached after all and has been recorded since (I2).

        Raises: CloudError if EC2 still refuses; the intent stays open.
        """
        if self._datastore.eni(eni_id) is not None:
            self._mark_attached(eni_id)
            self._intents.close(intent, "attached and recorded after all: not deleted")
            return
        self.delete(intent, eni_id, outcome="deleted after all")

    def give_up(self, intent: Intent, eni_id: EniId, error: CloudError) -> None:
        """Delete an ENI that could not be attached; what EC2 refuses now is done by the recovery of its intent."""
        log.warning("ENI %s could not be attached and is deleted: %s", eni_id, log_text(error))
        try:
            self.delete(intent, eni_id, outcome=f"not attached: {log_text(error)}")
        except IpamError as refused:
            log.warning("ENI %s is deleted later: %s", eni_id, log_text(refused))

    def delete(self, intent: Intent, eni_id: EniId, *, outcome: str) -> None:
        """Detach and delete an ENI of ours. Raises: CloudError; the intent stays open and is tried again."""
        try:
            attachment_id = self._ec2.describe_eni(eni_id).attachment_id
            if attachment_id:
                self._ec2.detach_eni(attachment_id)
                self._failpoint("growth.detached")
            intent = self._intents.mark(intent, eni_id=eni_id, **{DELETING: "asked"})
            self._ec2.delete_eni(eni_id)
            self._recent_changes.note_removed(enis=[eni_id])
            self._failpoint("growth.deleted")
        except CloudNotFoundError as error:
            # After we asked to delete it, NotFound means that it is deleted; before, EC2 may only not show it yet.
            if DELETING not in intent.payload and self._intents.is_too_new_to_be_gone(intent):
                log.info("ENI %s is not visible yet and is described again: %s", eni_id, log_text(error))
                raise
            outcome = f"{outcome} (it was gone already)"
        self._intents.close(intent, outcome)

    def _mark_attached(self, eni_id: EniId) -> None:
        """Have EC2 delete it with the instance if the failed creation did not get that far: else it outlives the node (I9)."""
        try:
            described = self._ec2.describe_eni(eni_id)
        except CloudNotFoundError:
            return  # nothing is left to mark; the next sync with EC2 forgets the ENI
        if described.attachment_id and not described.delete_on_termination:
            self._ec2.set_delete_on_termination(eni_id, attachment_id=described.attachment_id)
            self._failpoint("growth.marked")
