"""Find this node's own leaked ENIs once after each start, and delete them: those whose intent died with the datastore (I9).

One Describe a minute or two after the start, a second one half a minute later only if the first found something, then never again
(I13). Deleted is what both showed detached, what we made (our tags, an intent's token among them) before this process began, and what
no intent and no record names. The pool's thread does it, between two plans, so no creation of ours is under way. An ENI that is
attached meanwhile is left alone. Rejected: to delete what amazon-vpc-cni-k8s left here: `vpc-ipamd-sweeper` does, with a longer age.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from datetime import timedelta

from ipamd.core.agenda import ROOM
from ipamd.core.context import Service, ServiceContext
from ipamd.eni.book import EniBook
from ipamd.eni.operations import OperationLog
from ipamd.model.cloud import INTENT_TAG, DescribedEni, InstanceIdentity
from ipamd.model.eni import INSTANCE_TAG, description, why_kept
from ipamd.model.errors import CloudError, IpamError, log_text
from ipamd.model.intent import Delete, Intent, Why
from ipamd.ports import Ec2

FIRST_LOOK_S = 60.0
"""After the start. Ours: start-up is over, and so is a call of a killed daemon. Up to as much is added at random, so
that nodes which start together do not ask together."""

SECOND_LOOK_S = 30.0
"""Between the looks. Ours: as for the second look at what EC2 did not show."""

MIN_AGE = timedelta(seconds=60)
"""By the tag, this node's own clock. Ours: enough, because every creation of ours that is under way has an open intent."""

LOOK = ("leaked ENIs",)
"""The look that is put off."""

log = logging.getLogger(__name__)


class LeakedEnis(Service):
    """Used by the pool's thread."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        ec2: Ec2,
        book: EniBook,
        operations: OperationLog,
        delete: Callable[[Intent], object],
    ) -> None:
        """`delete` carries out an intent. Raises: CloudError; the intent stays open."""
        super().__init__(context)
        self._freeze = context.freeze
        self._ec2 = ec2
        self._log = operations
        self._delete = delete
        self._book = book
        self._started_at = context.clock.now()
        self._agenda.put(LOOK, in_s=_jittered(FIRST_LOOK_S))

    def disable(self) -> None:
        """Look no more. What an earlier daemon began to delete is deleted all the same: its intent is open."""
        self._agenda.clear(LOOK)

    def run_due(self, identity: InstanceIdentity) -> None:
        """Make the look that is due, if any. While the pool is frozen nothing is deleted; an error is logged, and tried again."""
        if self.next_look_s() != 0:
            return
        self._agenda.put_off(LOOK, ROOM)  # now: a defect must not make the pool's loop spin
        try:
            self._look(identity)
        except IpamError as error:
            log.warning("whether an ENI of this node leaked is asked again error=%s", log_text(error))

    def next_look_s(self) -> float | None:
        """Seconds until a look is due; None: all is done, or the pool is frozen."""
        return self._agenda.left_s(LOOK) if self._agenda.keys(*LOOK) and not self._freeze.reason else None

    def _look(self, identity: InstanceIdentity) -> None:
        found = self._ec2.find_detached({INSTANCE_TAG: identity.instance_id})
        leaked = {eni.eni_id for eni in found if self._is_leaked(eni, identity)}
        seen = {eni_id for eni_id, facts in self._book.all().items() if facts.is_leaked}
        if leaked and not seen:
            for eni_id in leaked:
                self._book.observe(eni_id, is_leaked=True)
            self._agenda.put(LOOK, in_s=SECOND_LOOK_S)
            return
        self.disable()
        opened = [self._log.open(Delete(eni_id, Why.LEAKED)) for eni_id in sorted(leaked & seen)]
        for intent in opened:
            try:
                self._delete(intent)
            except CloudError as error:
                # By the recovery of their intents, one after the other: what EC2 refuses for one it may refuse for all.
                log.warning("a leaked ENI is deleted later eni=%s error=%s", intent.eni_id, log_text(error))
                break

    def _is_leaked(self, eni: DescribedEni, identity: InstanceIdentity) -> bool:
        """Whether it is one that this node made, and that nobody knows of."""
        if eni.tags.get(INSTANCE_TAG) != identity.instance_id or INTENT_TAG not in eni.tags:
            return False
        if eni.description != description(identity) or self._datastore.eni(eni.eni_id) or self._log.is_about(eni):
            return False
        now = self._clock.now()
        kept = why_kept(eni, now=now, min_age=max(MIN_AGE, now - self._started_at))
        if kept:
            log.info("detached and not deleted eni=%s reason=%s", eni.eni_id, kept)
        return not kept


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(1.0, 2.0)  # noqa: S311  # not for secrets
