"""Delete the ENIs that this node leaked, because their intents were lost with the datastore (I9). This is done once after each start.

The first Describe comes a minute or two after the start. Only if it shows a leaked ENI, a second and last one follows half a minute
later (I13). An ENI is deleted if both answers show it detached, if this node created it before this process started
(it has our tags, including an intent's token), and if no intent or row names it. The pool's thread does this between two plans, so
that no creation of ours is under way. An ENI that was attached meanwhile is kept. Rejected: deleting ENIs that amazon-vpc-cni-k8s
leaked, because `vpc-ipamd-sweeper` does that, and waits until they are older.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from datetime import timedelta

from ipamd.core.backoffs import ROOM
from ipamd.core.context import Service, ServiceContext
from ipamd.eni.book import EniBook
from ipamd.eni.operations import OperationLog
from ipamd.model.cloud import INTENT_TAG, DescribedEni, InstanceIdentity
from ipamd.model.eni_tags import INSTANCE_TAG, description
from ipamd.model.errors import CloudError, IpamError, log_text
from ipamd.model.ids import EniId
from ipamd.model.intent import Delete, DeleteReason, Intent
from ipamd.model.leaked_eni import why_kept
from ipamd.ports.cloud import Ec2

FIRST_LOOK_S = 60.0
"""Time from the start to the first Describe. Ours: by then the start is over, and the calls of a killed daemon have ended. A random
time of up to the same length is added, so that nodes that start together do not call EC2 together."""

SECOND_LOOK_S = 30.0
"""Time between the two Describes. Ours: the same as `LOOK_GAP_S`, the least time between two answers about an absent address."""

MIN_AGE = timedelta(seconds=60)
"""Least age of a leaked ENI, from the time of creation that this node wrote into the ENI's tag. The ENI must also be older than this
process. Ours: short, because a creation that is under way has an open intent, so its ENI does not count as leaked."""

LOOK = ("leaked ENIs",)
"""Back-off key: the next Describe."""

log = logging.getLogger(__name__)


class LeakedEnis(Service):
    """Finds the ENIs that this node leaked, and deletes them. Used by the pool's thread."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        ec2: Ec2,
        book: EniBook,
        operations: OperationLog,
        delete: Callable[[Intent], object],
    ) -> None:
        """`delete` carries out the intent of a deletion. If it raises CloudError, the intent stays open."""
        super().__init__(context)
        self._freeze = context.freeze
        self._ec2 = ec2
        self._log = operations
        self._delete = delete
        self._book = book
        self._started_at = context.clock.now()
        self._backoffs.put(LOOK, in_s=_jittered(FIRST_LOOK_S))

    def disable(self) -> None:
        """Make no further Describe. Open deletions of an earlier daemon go on."""
        self._backoffs.clear(LOOK)

    def run_due(self, identity: InstanceIdentity) -> None:
        """Make the Describe that is due, if any. After an error it is repeated later. While the pool is frozen, nothing is done."""
        if self.next_look_s() != 0:
            return
        self._backoffs.back_off(LOOK, ROOM)  # before the call, so that a defect does not make the pool's loop spin
        try:
            self._look(identity)
        except IpamError as error:
            log.warning("leaked-ENI check failed, will retry error=%s", log_text(error))

    def next_look_s(self) -> float | None:
        """Seconds until a Describe is due; None if all are done, or the pool is frozen."""
        if self._backoffs.keys(*LOOK) and not self._freeze.reason:
            return self._backoffs.left_s(LOOK)
        return None

    def _look(self, identity: InstanceIdentity) -> None:
        detached = self._ec2.find_detached({INSTANCE_TAG: identity.instance_id})
        leaked = {eni.eni_id for eni in detached if self._is_leaked(eni, identity)}
        seen_before = {eni_id for eni_id, facts in self._book.all().items() if facts.is_leaked}
        if leaked and not seen_before:
            for eni_id in leaked:
                self._book.observe(eni_id, is_leaked=True)
            self._backoffs.put(LOOK, in_s=SECOND_LOOK_S)
            return
        self.disable()
        self._delete_all(sorted(leaked & seen_before))

    def _delete_all(self, eni_ids: Iterable[EniId]) -> None:
        """Open an intent for each leaked ENI, then delete them until EC2 refuses one."""
        intents = [self._log.open(Delete(eni_id, DeleteReason.LEAKED)) for eni_id in eni_ids]
        for intent in intents:
            try:
                self._delete(intent)
            except CloudError as error:
                # EC2 may refuse the other deletions too. The recovery of open intents makes them later, one after the other.
                log.warning("deleting a leaked ENI failed, will retry eni=%s error=%s", intent.eni_id, log_text(error))
                break

    def _is_leaked(self, eni: DescribedEni, identity: InstanceIdentity) -> bool:
        """Whether this node created the ENI before this process started, and neither a row nor an intent names it."""
        if eni.tags.get(INSTANCE_TAG) != identity.instance_id or INTENT_TAG not in eni.tags:
            return False
        if eni.description != description(identity) or self._datastore.eni(eni.eni_id) or self._log.is_about(eni):
            return False
        now = self._clock.now()
        reason = why_kept(eni, now=now, min_age=max(MIN_AGE, now - self._started_at))
        if reason:
            log.info("detached ENI kept eni=%s reason=%s", eni.eni_id, reason)
        return not reason


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(1.0, 2.0)  # noqa: S311  # not for secrets
