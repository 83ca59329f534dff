"""Notice what others do to our ENIs, at no EC2 cost, and ask for a resync with EC2 when something differs.

Two free sources say that something may have changed: the kernel's link notifications at once (`links.py`), instance metadata within
a few minutes (here). Neither removes anything (I7). They make a resync due, which the pool's thread makes between two plans
(`ipamd/eni/resync.py` says why it), and what two looks prove is acted upon there. While nothing differs EC2 is not called at all
(I13). What follows from each difference: docs/pool.md, External changes.

A turn of metadata refreshes the node's identity (VPC CIDRs, security groups), asks for a spot instance's notices, lists the ENIs, and
reads those that were not read for longest, as many as the budget of requests allows: REQUESTS_PER_TURN, whatever the number of ENIs.
Metadata is throttled for the whole instance
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html), and other programs on the node need it too. A
failed turn says nothing (I11).
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Collection

from ipamd.core.agenda import soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.eni.book import EniBook
from ipamd.eni.links import LinkWatch
from ipamd.eni.resync import ResyncReason, ResyncScheduler
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import CloudError, log_text
from ipamd.model.ids import MacAddress
from ipamd.model.metadata_evidence import (
    ASK_AGAIN_S,
    Difference,
    Recent,
    differences,
    sentence,
)
from ipamd.model.record import dataclass
from ipamd.ports import Metadata

TURN_S = 60.0
"""Least time between two turns of metadata. Ours: one turn's requests are then the most in any minute; amazon-vpc-cni-k8s compares
once a minute too (pkg/ipamd/ipamd.go, nodeIPPoolReconcileInterval)."""

TURN_JITTER = 0.25
"""Up to this part of a turn is added at random, so that the nodes of a cluster do not ask in step. Ours."""

LINKS_S = 60.0
"""Longest time between two readings of all links: for changes that no notification told, and links whose MAC was changed. Ours."""

REQUESTS_PER_TURN = 10
"""HTTP requests, the node's identity and tokens included. Ours: with a minute between turns as many in a minute; amazon-vpc-cni-k8s
makes some six for each ENI every minute (pkg/awsutils/awsutils.go, getENIMetadata)."""

FIRST_REQUESTS, LATER_REQUESTS = 4, 2
"""What `Metadata.interface` costs for an ENI that was not read before, and for one that was."""

SPARE_REQUESTS = 1
"""Metadata may forget our token in the middle of a turn; then one more is needed."""

CONDITION = "other hands"

TURN, ASKED = ("metadata turn",), "metadata difference"
"""In the agenda: the next turn; and each difference that EC2 was asked about, until it is asked again."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetadataDifference:
    """How metadata and the record differ. `since_s`: how long without a break, 0 if they agree. `turn_age_s`: since the last list."""

    count: int
    since_s: float
    turn_age_s: float | None


class CloudReconciler(Service):
    """Takes the turns of metadata and keeps the time for both sources. Of the thread that asked EC2 at the start."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        metadata: Metadata,
        learn_identity: Callable[[], InstanceIdentity],
        identity: Callable[[], InstanceIdentity | None],
        book: EniBook,
        resyncs: ResyncScheduler,
        links: LinkWatch,
    ) -> None:
        super().__init__(context)
        self._freeze = context.freeze
        self._metadata = metadata
        self._learn_identity = learn_identity
        self._identity = identity
        self._book = book
        self._resyncs = resyncs
        self.links = links
        self._differing: tuple[frozenset[Difference], float] = frozenset(), 0.0  # and since when
        self._said = ""
        self._agenda.put(TURN, in_s=_jittered(TURN_S))  # the start has just asked metadata

    def run_once(self) -> None:
        """Do everything that is due."""
        self.links.compare()
        if self._agenda.is_due(TURN):
            self._agenda.put(TURN, in_s=TURN_S)  # now: a turn that fails must not be repeated at once
            request_count = self.take_turn()
            self._agenda.put(TURN, in_s=_jittered(TURN_S * max(1.0, request_count / REQUESTS_PER_TURN)))
        elif self._differing[0]:
            self._evaluate()  # what EC2 said since may have ended a difference
        self.links.thaw_confirmed()
        self._resyncs.trigger_due()

    def pause_s(self) -> float:
        """Seconds until something is due by the clock."""
        return soonest_s([LINKS_S, self._agenda.left_s(TURN), self._resyncs.wait_s()]) or 0.0

    def take_turn(self) -> int:
        """Make one turn. Returns: how many requests it made; an error ends it early and is logged, once.

        Until metadata has answered once, the start asks it: no turn is made.
        """
        began, known = self._metadata.request_count(), self._identity()
        if known is None:
            return 0
        is_listed, read = False, set()
        try:
            # A new CIDR of the VPC changes the SNAT rules at the next repair; new security groups are for the pool to hand on.
            if self._learn_identity().security_group_ids != known.security_group_ids:
                self._demand.trigger()
            problem = self.follow_notices()
            self._book.list_metadata(self._metadata.list_interfaces())
            is_listed = True
            ours = {eni.mac for eni in self._datastore.enis()}
            readings = self._book.readings()
            # Ours before those of others: a node with many of either has its own sandboxes' addresses compared first.
            for mac, one in sorted(readings.items(), key=lambda item: (item[1].tried_monotonic_s, item[0] not in ours, item[0])):
                is_cheap = one.shown is not None or one.known is not None
                cost = (LATER_REQUESTS if is_cheap else FIRST_REQUESTS) + SPARE_REQUESTS
                if self._metadata.request_count() - began + cost > REQUESTS_PER_TURN:
                    break
                now = self._clock.monotonic()
                # Also if it cannot be read: the others have their turn before it is tried again.
                self._book.read_metadata(mac, tried_monotonic_s=now, known=None)
                self._book.read_metadata(mac, shown=self._metadata.interface(mac, known=one.known), monotonic_s=now)
                read.add(mac)
        except CloudError as error:
            problem = log_text(error)
        if problem != self._said:
            self._said = problem
            log.info("instance metadata state=%s", problem or "it answers again")
        self._evaluate(is_listed=is_listed, read=read)
        return self._metadata.request_count() - began

    def difference(self) -> MetadataDifference:
        """What the last comparison found; from any thread."""
        now_s, (found, since_s), listed_s = self._clock.monotonic(), self._differing, self._book.listed_monotonic_s
        age_s = None if math.isinf(listed_s) else now_s - listed_s
        return MetadataDifference(len(found), now_s - since_s if found else 0.0, age_s)

    def follow_notices(self) -> str:
        """Take over what EC2 announces. Returns: why that is not known; it must not keep the ENIs from being looked at."""
        try:
            self._freeze.follow_notices(self._metadata.notices())
        except CloudError as error:
            return log_text(error)
        return ""

    def _evaluate(self, *, is_listed: bool = False, read: Collection[MacAddress] = ()) -> None:
        """Compare what metadata showed with the record as it is now, and ask for a resync if one is due.

        `is_listed`, `read`: what is fresh. Later changes of ours must not turn an old list or reading into a difference, but they may
        end one.
        """
        readings, places = self._book.readings(), self._book.shown()
        if not readings:
            return
        late = set()
        for reading in readings.values():
            if reading.shown is not None and reading.shown.eni_id in places:
                self._book.observe(reading.shown.eni_id, mac=reading.mac)
                if reading.shown.addresses and self._book.of(reading.shown.eni_id).is_bare:
                    late.add(reading.shown.eni_id)  # EC2 showed it without the address that it has: not left alone for good
        snapshot = self._datastore.snapshot()
        is_growing = any(not (one.is_settled or one.is_release) for one in self._datastore.open_intents())
        in_list, in_enis = differences(
            snapshot,
            {mac: one.shown for mac, one in readings.items()},
            left_alone={eni_id: self._book.of(eni_id).mac for eni_id in places if eni_id not in late},
            recent=Recent(self._book.added(), self._book.removed(), is_growing=is_growing),
        )
        before, since_s = self._differing
        found = {one for one in in_list if is_listed or one in before} | {
            one for one in in_enis if one.mac in read or one in before
        }
        self._differing = frozenset(found), since_s if before else self._clock.monotonic()
        # EC2 is asked about new differences, and about those that it was asked about an hour ago. One that ends and comes back within
        # the hour is not asked about again.
        due = [one for one in found if self._agenda.is_due((ASKED, one))]
        if due:
            self._resyncs.request(ResyncReason.METADATA, f"of instance metadata: {sentence(due)}")
            self._agenda.clear(*(key for key in self._agenda.keys(ASKED) if self._agenda.is_due(key)))
            for difference in found:
                self._agenda.put((ASKED, difference), in_s=ASK_AGAIN_S)
        left_s = max((self._agenda.left_s((ASKED, one)) for one in found), default=0.0)
        asked_s = self._clock.monotonic() - ASK_AGAIN_S + left_s - 0.001  # less what the sum may be wrong by
        answered = "EC2 does not say so, it is asked again every hour" if self._resyncs.is_answered(asked_s) else "EC2 is asked"
        self._health.report(CONDITION, f"{CONDITION}: instance metadata: {sentence(found)}; {answered}" if found else "")


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(1.0, 1.0 + TURN_JITTER)  # noqa: S311  # not for secrets
