"""Notice without EC2 calls that people or other software have changed our ENIs, and request a resync with EC2 when something differs.

Two sources show without an EC2 call that something may have changed: the kernel's link notifications at once (`links.py`), and
instance metadata within a few minutes (this module). Nothing is removed because of them (I7); they make a resync due. The pool's
thread makes the resync between two plans (`ipamd/eni/resync.py` explains why), and concludes an absence only from two answers of EC2.
While nothing differs, EC2 is not called at all (I13). docs/pool.md, External changes, describes what follows from each difference.

A turn of metadata refreshes the node's identity (VPC CIDRs, security groups), reads a spot instance's notices, lists the ENIs, and
reads the ENIs whose last reading is oldest, as many as REQUESTS_PER_TURN allows. Metadata is throttled for the whole instance
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html), and other programs on the node need it too. If
a turn fails, nothing is concluded about what it did not read (I11).
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Collection, Iterable

from ipamd.core.backoffs import soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.eni.book import EniBook, Reading
from ipamd.eni.links import LinkWatch
from ipamd.eni.resync import ResyncReason, ResyncScheduler
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.errors import CloudError, log_text
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.metadata_evidence import (
    ASK_AGAIN_S,
    InterfaceDifference,
    Recent,
    ask_pause_s,
    differences,
    sentence,
    suspects,
)
from ipamd.model.record import dataclass
from ipamd.ports.cloud import Metadata

TURN_S = 60.0
"""Least time between the beginnings of two turns. In a turn the daemon reads instance metadata and compares it with its rows. Ours:
no minute has more requests than one turn makes; amazon-vpc-cni-k8s compares once a minute too (pkg/ipamd/ipamd.go,
nodeIPPoolReconcileInterval)."""

TURN_JITTER = 0.25
"""Up to this part of a turn is added at random, so that the nodes of a cluster, which may all see a change, do not call EC2 about it
at the same time. Ours: with 0.25 the turns of the nodes spread over 15 s."""

LINKS_S = 60.0
"""Longest time between two readings of all links, which show changes without a notification, and links whose MAC was changed. Ours:
rare readings are enough, because a notification shows nearly every change at once."""

REQUESTS_PER_TURN = 10
"""Most HTTP requests of a turn, including those for the node's identity and for tokens. No ENI is read beyond this number. If the
requests for the identity alone exceed it, the next turn comes later. Ours: at most ten requests a minute; amazon-vpc-cni-k8s makes
some six for each ENI every minute (pkg/awsutils/awsutils.go, getENIMetadata)."""

FIRST_REQUESTS, LATER_REQUESTS = 4, 2
"""Requests of `Metadata.interface` at the first reading of an ENI, and at later ones. The first reading needs only LATER_REQUESTS if
EC2 described the ENI at the start."""

SPARE_REQUESTS = 1
"""Requests that are kept in reserve when an ENI is read: metadata may drop our token in the middle of a turn, and a new token costs
one request."""

CONDITION = "external changes"

TURN = ("metadata turn",)
"""Back-off key: the next turn."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Question:
    """The resyncs that were requested because of one difference: how many, and when the last one was requested (monotonic)."""

    count: int
    monotonic_s: float


NEVER_ASKED = Question(0, -math.inf)


@dataclass(frozen=True, slots=True)
class MetadataDifference:
    """How metadata and the rows differ.

    `count`: the number of differences.
    `since_s`: seconds for which there has been any difference, without a break; 0 if there is none.
    `turn_age_s`: seconds since metadata last listed the ENIs; None if it never did.
    """

    count: int
    since_s: float
    turn_age_s: float | None


class CloudReconciler(Service):
    """Reads instance metadata in turns, compares it with the rows, and requests a resync with EC2 where they differ.

    Used by the cloud loop's thread.
    """

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
        # The differences of the last comparison, and since when there has been any (monotonic).
        self._differing: tuple[frozenset[InterfaceDifference], float] = frozenset(), 0.0
        self._questions: dict[InterfaceDifference, Question] = {}
        self._logged_problem = ""
        self._backoffs.put(TURN, in_s=_jittered(TURN_S))  # the start has just read metadata

    def run_once(self) -> None:
        """Compare links and metadata with the rows if that is due, thaw ENIs that are back, and trigger due resyncs."""
        self.links.compare()
        if self._backoffs.is_due(TURN):
            self._backoffs.put(TURN, in_s=TURN_S)  # before the turn, so that a failed one is not repeated at once
            request_count = self.take_turn()
            self._backoffs.put(TURN, in_s=_jittered(TURN_S * max(1.0, request_count / REQUESTS_PER_TURN)))
        elif self._differing[0]:
            self._evaluate()  # a resync may have ended a difference
        self.links.thaw_confirmed()
        self._resyncs.trigger_due()

    def pause_s(self) -> float:
        """Seconds until something is due by the clock."""
        now_s = self._clock.monotonic()
        questions = [max(self._next_question_s(difference) - now_s, 0.0) for difference in self._differing[0]]
        waits_s = [LINKS_S, self._backoffs.left_s(TURN), self._resyncs.wait_s(), self.links.next_question_s(), *questions]
        return soonest_s(waits_s) or 0.0

    def take_turn(self) -> int:
        """Make one turn. An error of metadata ends it early, and is logged once. Returns: how many requests it made.

        No turn is made before the start has read the identity.
        """
        count_before, identity = self._metadata.request_count(), self._identity()
        if identity is None:
            return 0
        is_listed = False
        read: set[MacAddress] = set()
        try:
            # The next repair applies a new CIDR of the VPC to the SNAT rules. The pool applies new security groups to the other ENIs.
            if self._learn_identity().security_group_ids != identity.security_group_ids:
                self._demand.trigger()
            problem = self.follow_notices()
            self._book.list_metadata(self._metadata.list_interfaces())
            is_listed = True
            self._read_enis(read, count_before=count_before)
        except CloudError as error:
            problem = log_text(error)
        if problem != self._logged_problem:
            self._logged_problem = problem
            log.info("instance metadata state=%s", problem or "it answers again")
        self._evaluate(is_listed=is_listed, read=read)
        return self._metadata.request_count() - count_before

    def _read_enis(self, read: set[MacAddress], *, count_before: int) -> None:
        """Read the ENIs whose last reading is oldest, as many as the turn's budget allows, and add their MACs to `read`.

        `count_before`: requests before this turn. Raises: CloudError; `read` then has the ENIs that were read before the error.
        """
        ours = {eni.mac for eni in self._datastore.enis()}
        readings = self._book.readings()
        # Among ENIs that were tried at the same time, recorded ENIs come first, because they have sandboxes.
        oldest_first = sorted(readings, key=lambda mac: (readings[mac].tried_monotonic_s, mac not in ours, mac))
        for mac in oldest_first:
            reading = readings[mac]
            cost = FIRST_REQUESTS + SPARE_REQUESTS
            if reading.metadata_eni is not None or reading.described is not None:
                cost = LATER_REQUESTS + SPARE_REQUESTS
            if self._metadata.request_count() - count_before + cost > REQUESTS_PER_TURN:
                break
            now_s = self._clock.monotonic()
            # Recorded before the read, so that after a failure the next turn begins with other ENIs.
            self._book.read_metadata(mac, tried_monotonic_s=now_s, described=None)
            self._book.read_metadata(
                mac, metadata_eni=self._metadata.interface(mac, described=reading.described), monotonic_s=now_s
            )
            read.add(mac)

    def difference(self) -> MetadataDifference:
        """Return the result of the last comparison; from any thread."""
        now_s, listed_s = self._clock.monotonic(), self._book.listed_monotonic_s
        current, began_s = self._differing
        since_s = now_s - began_s if current else 0.0
        age_s = None if math.isinf(listed_s) else now_s - listed_s
        return MetadataDifference(len(current), since_s, age_s)

    def follow_notices(self) -> str:
        """Freeze or thaw the pool by the events that EC2 announces for the instance.

        Returns: the error, "" if there was none. The error is not raised, so that the ENIs are still read in this turn.
        """
        try:
            self._freeze.follow_notices(self._metadata.notices())
        except CloudError as error:
            return log_text(error)
        return ""

    def _evaluate(self, *, is_listed: bool = False, read: Collection[MacAddress] = ()) -> None:
        """Compare metadata with the present rows, and request a resync if one is due.

        Only a new list or reading can begin a difference: compared with an old one, our later changes would look like a difference.
        An old list or reading can still end a difference.

        Args:
            is_listed: whether the list of ENIs is new.
            read: MACs of the ENIs with a new reading.
        """
        readings, places = self._book.readings(), self._book.unrecorded_enis()
        if not readings:
            return
        late = self._observe_unrecorded(readings.values(), places)
        snapshot = self._datastore.snapshot()
        in_list, in_enis = differences(
            snapshot,
            {mac: reading.metadata_eni for mac, reading in readings.items()},
            left_alone={eni_id: self._book.facts_of(eni_id).mac for eni_id in places if eni_id not in late},
            recent=Recent(self._book.added(), self._book.removed(), is_growing=self._is_growing()),
        )
        before, since_s = self._differing
        in_read_enis = {difference for difference in in_enis if difference.mac in read}
        old = before & (in_list | in_enis)
        current = in_read_enis | old
        if is_listed:
            current |= in_list
        if not before:
            since_s = self._clock.monotonic()
        self._differing = frozenset(current), since_s
        if self._differing[0] != before:
            self._datastore.suspect(suspects(self._differing[0], snapshot))
        self._request_due(current)

    def _is_growing(self) -> bool:
        """Whether a creation or an allocation is open."""
        return any(not (intent.is_settled or intent.is_release) for intent in self._datastore.open_intents())

    def _observe_unrecorded(self, readings: Iterable[Reading], places: Collection[EniId]) -> set[EniId]:
        """Record the MACs of the ENIs that EC2 showed but that have no row.

        Returns: the ENIs that have an address in metadata, although EC2 showed them without one. Each counts as a difference.
        """
        late = set()
        for reading in readings:
            if reading.metadata_eni is None or reading.metadata_eni.eni_id not in places:
                continue
            eni_id = reading.metadata_eni.eni_id
            self._book.observe(eni_id, mac=reading.mac)
            if reading.metadata_eni.addresses and self._book.facts_of(eni_id).is_bare:
                late.add(eni_id)
        return late

    def _request_due(self, current: Collection[InterfaceDifference]) -> None:
        """Request a resync if a difference is new, or its pause is over, and report the differences.

        A difference that ends and comes back within ASK_AGAIN_S keeps its count, so that an intermittent difference does not cost a
        call each time.
        """
        now_s = self._clock.monotonic()
        due_differences = [difference for difference in current if now_s >= self._next_question_s(difference)]
        if due_differences:
            self._resyncs.request(ResyncReason.METADATA, f"of instance metadata: {sentence(due_differences)}")
            lately = {key: question for key, question in self._questions.items() if now_s - question.monotonic_s < ASK_AGAIN_S}
            for difference in current:  # one resync answers the questions about all of them
                before = self._questions.get(difference, NEVER_ASKED)
                lately[difference] = Question(before.count + 1, now_s)
            self._questions = lately
        asked_s = max((self._questions[difference].monotonic_s for difference in current), default=now_s)
        is_answered = self._resyncs.is_answered(asked_s)
        if not current:
            self._health.report(CONDITION, None)
            return
        code = ConditionCode.EXTERNAL_CHANGE_NOT_CONFIRMED if is_answered else ConditionCode.EXTERNAL_CHANGE_ASKED
        self._health.report(CONDITION, problem(code, differences=sentence(current)))

    def _next_question_s(self, difference: InterfaceDifference) -> float:
        """Return when to request a resync because of a difference (monotonic)."""
        question = self._questions.get(difference)
        if question is None:
            return -math.inf
        return question.monotonic_s + ask_pause_s(question.count)


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(1.0, 1.0 + TURN_JITTER)  # noqa: S311  # not for secrets
