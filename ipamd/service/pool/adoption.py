"""Compare with EC2 after it refused: what others attached or filled meanwhile is taken into account, and the pool plans anew."""

from __future__ import annotations

import logging

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import IpamError, log_text
from ipamd.service.context import ServiceContext
from ipamd.service.pool.enis import EniService

log = logging.getLogger(__name__)


class Adoption:
    """One Describe per refused action (I13). Used by the provisioner's thread."""

    def __init__(self, context: ServiceContext, *, enis: EniService) -> None:
        self._datastore = context.datastore
        self._enis = enis
        self._asked_by = ""

    def adopt_changes(self, identity: InstanceIdentity) -> bool:
        """After a refused allocation: somebody else filled the ENI, or detached it.

        Returns: whether the datastore changed.
        """
        before = self._datastore.enis(), self._datastore.counts().total
        return self.adopt_enis(identity) or before != (self._datastore.enis(), self._datastore.counts().total)

    def adopt_once(self, identity: InstanceIdentity, *, by: str) -> bool:
        """As `adopt_enis`, but not a second time in a row for the same creation, whose ID is `by`."""
        is_asked, self._asked_by = by == self._asked_by, by
        return not is_asked and self.adopt_enis(identity)

    def adopt_enis(self, identity: InstanceIdentity) -> bool:
        """After a refusal, ask EC2 what is attached to the instance. ENIs attached by another tool are adopted or counted; the attach
        is never retried for ever (amazon-vpc-cni-k8s issue 3833).

        Returns: whether there was an ENI that the datastore did not know.
        """
        try:
            outcome = self._enis.sync_with_ec2(identity)
        except IpamError as error:
            log.warning("the ENIs attached to the instance could not be listed: %s", log_text(error))
            return False
        if outcome.adopted:
            log.warning("ENIs attached by another tool were adopted: %s", ", ".join(sorted(outcome.adopted)))
        self._enis.set_up_adopted(outcome)
        return bool(outcome.adopted)
