"""Schedule resyncs with EC2. A resync is one Describe and a comparison, which any part of the daemon may request.

`EniService` and the provisioner are used by one thread at a time, the pool maintainer's. So other threads only request a resync, with
the reason. The maintainer makes it between two plans, when no call of ours is under way, and then plans again. Rejected: a lock around
the comparison, which an allocation would hold for many seconds; a thread that compares while another one creates an ENI. A resync that
EC2 refused stays due. If a resync leaves a doubt, another one becomes due (I11), with longer and longer pauses if the doubt lasts.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum

from ipamd.core.backoffs import EC2, schedule_of, soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.eni.differences import CloudDifference
from ipamd.model.cloud_evidence import CloudKey
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.errors import IpamError, log_text
from ipamd.model.ids import EniId
from ipamd.model.record import dataclass, field, replace
from ipamd.model.words import counted

PATIENCE_S = 720.0
"""While a doubt is younger than this, resyncs are made as soon as they are useful. Later each pause is as long as the age of the doubt
minus PATIENCE_S. Ours: a real mass loss is believed after ten minutes, so it is believed before the pauses grow."""

DOUBT_MAX_S = 3600.0
"""Longest pause between two resyncs because of a doubt. Ours: as long as `ASK_AGAIN_S`, the longest pause between two resyncs because
of a difference in instance metadata."""

DOUBT = ("resync", "doubt")
"""Back-off key: the next resync about objects that EC2 did not show."""
UNPLACED = ("resync", "unplaced")
"""Back-off key: the next resync for a sandbox whose address EC2 shows on no ENI. That happens with a partial answer after a lost
datastore; EC2 may never show the address."""
AGAIN = ("resync", "again")
"""Back-off key: the retry of a resync that EC2 did not answer."""

CONDITION = "resync"

log = logging.getLogger(__name__)


class ResyncReason(StrEnum):
    """Why a resync is requested: the label of the metric `ipamd_ec2_resyncs_total`."""

    LINK = "link"
    METADATA = "metadata"
    DOUBT = "doubt"
    OTHER = "other"


class ExternalChange(StrEnum):
    """Changes that a comparison with EC2 showed and that no call of ours explains: keys of `ResyncScheduler.counts`.

    ENI_ADDED to ADDRESS_REMOVED are counted only if a resync showed the change. FORCED_ENI and FORCED_ADDRESS, the removals of an ENI
    or address that a sandbox used, are also counted if another comparison showed them, such as that of the start.
    """

    ENI_ADDED = "eni-added"
    ENI_REMOVED = "eni-removed"
    ADDRESS_ADDED = "address-added"
    ADDRESS_REMOVED = "address-removed"
    FORCED_ENI = "forced-eni"
    FORCED_ADDRESS = "forced-address"


@dataclass(slots=True)
class EniSyncResult:
    """The result of one comparison with EC2. Its text is shown in logs, in conditions, and as the detail of the start's stage.

    began_monotonic_s: when EC2 was called.
    doubt_since_monotonic_s: since when an object has been in doubt without a break.
    eni_count: ENIs that the answer shows attached.
    adopted: ENIs that were not recorded before.
    added_count: addresses that got a row.
    removed_count: addresses whose row was removed.
    lost_count: addresses that were concluded to be absent now, including removed ones.
    healed_count: lost addresses that EC2 shows again.
    lost_eni_count: ENIs that were concluded to be absent now.
    forced_count, forced_eni_count: lost addresses and ENIs that a sandbox used.
    contradictions: objects that were left unchanged because they contradict a row, and lost addresses that a sandbox uses.
    foreign: one sentence per attached ENI without a usable address.
    unreadable: ENIs that could not be read.
    implausible: why the answer was not believed, so that nothing was added; "" if it was believed.
    again_s: seconds until the next comparison is useful, None without a doubt.
    missing: the recorded ENIs and addresses that EC2's answer did not show, whether or not the answer was believed. If the answer
        lacked the primary ENI, this is the value from the last answer that showed it. Objects that our calls changed lately
        are left out.
    attached: the ENIs that the answer showed attached; empty if it lacked the primary ENI.
    """

    began_monotonic_s: float = -math.inf
    doubt_since_monotonic_s: float = 0.0
    eni_count: int = 0
    adopted: list[EniId] = field(default_factory=list)
    added_count: int = 0
    removed_count: int = 0
    lost_count: int = 0
    healed_count: int = 0
    lost_eni_count: int = 0
    forced_count: int = 0
    forced_eni_count: int = 0
    contradictions: list[CloudDifference] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    unreadable: list[CloudDifference] = field(default_factory=list)
    implausible: str = ""
    again_s: float | None = None
    missing: frozenset[CloudKey] = frozenset()
    attached: frozenset[EniId] = frozenset()

    def add_contradiction(self, difference: CloudDifference) -> None:
        """Add a contradiction, unless it is there already."""
        if difference not in self.contradictions:
            self.contradictions.append(difference)

    def compare_again(self, after_s: float | None) -> None:
        """Request another comparison after `after_s`, None for none. The earliest request counts."""
        self.again_s = soonest_s([self.again_s, after_s])

    def __str__(self) -> str:
        text = f"{counted(self.eni_count, 'ENI')}, {counted(self.added_count, 'address')} added, {self.removed_count} forgotten"
        if self.implausible:
            text = f"EC2's answer is not believed: {self.implausible}"
        if self.lost_count > self.removed_count:
            text += f", {self.lost_count - self.removed_count} lost"
        if self.healed_count:
            text += f", {self.healed_count} shown again"
        if self.contradictions:
            text += f"; unchanged: {'; '.join(map(str, self.contradictions))}"
        left_alone = [*self.foreign, *map(str, self.unreadable)]
        if left_alone:
            return f"{text}; ignored: {'; '.join(left_alone)}"
        return text


class ResyncScheduler(Service):
    """Schedules resyncs: keeps the reasons for which they were requested, and the result of the last comparison.

    The pool's thread calls `run_due`, the cloud loop's thread calls `trigger_due` and `wait_s`, and any thread may call the other
    methods. No lock is needed: each step is one operation on a dictionary, and only `run_due` removes reasons. A reason that is added
    while a resync begins belongs to that resync, or stays for the next one.

    `counts`: resyncs since the start by reason (a resync counts once for each of its reasons), and external changes that EC2 showed.
    """

    def __init__(self, context: ServiceContext, *, unplaced: Callable[[], frozenset[str]]) -> None:
        """`unplaced` returns the names of host veths. Each is that of a wired sandbox whose address is of the pool, but has no row."""
        super().__init__(context)
        self.changed = threading.Event()
        self._reasons: dict[str, ResyncReason] = {}
        self._result = EniSyncResult()
        self._unplaced = unplaced
        self._unplaced_before: frozenset[str] = frozenset()
        self.counts: Counter[ResyncReason | ExternalChange] = Counter()

    def request(self, reason: ResyncReason, description: str) -> None:
        """Make a resync due. `description`: why, in a few words.

        After failed resyncs the back-off delays the next one. The reason LINK makes this delay as short as if an ADD waited, usually
        at most a minute, because EC2 may answer again by now, and sandboxes may be without network.
        """
        self._reasons.setdefault(description, reason)
        if reason is ResyncReason.LINK:
            self._backoffs.hasten(AGAIN)
        self.changed.set()
        self._demand.trigger()

    def is_answered(self, since_monotonic_s: float) -> bool:
        """Whether a comparison that began at `since_monotonic_s` or later left no doubt, and no resync is requested."""
        last = self._result
        is_clear = last.again_s is None and not last.implausible
        return not self._reasons and since_monotonic_s <= last.began_monotonic_s and is_clear

    def is_shown(self, eni_id: EniId, *, since_monotonic_s: float) -> bool:
        """Whether a comparison that began at `since_monotonic_s` or later showed an ENI attached, whatever else is in doubt, and no
        other resync is requested.
        """
        last = self._result
        return not self._reasons and since_monotonic_s <= last.began_monotonic_s and eni_id in last.attached

    @property
    def is_asked(self) -> bool:
        """Whether a resync is under way, or is requested and not backed off. Also True if the last answer was not believed, or there
        was none yet.
        """
        last = self._result
        is_unanswered = last.began_monotonic_s == -math.inf or bool(last.implausible)
        return is_unanswered or (bool(self._reasons) and self._backoffs.is_due(AGAIN))

    def record_result(self, result: EniSyncResult) -> None:
        """Keep the result of a comparison, requested or not. If it leaves a doubt, schedule the next resync."""
        before, now_s = self._result, self._clock.monotonic()
        # A new doubt, or one that the next answer may end, must not wait for as long as a doubt that has lasted for hours.
        has_plausibility_changed = bool(before.implausible) != bool(result.implausible)
        had_no_doubt, has_new_doubt = before.again_s is None, bool(result.missing - before.missing)
        if had_no_doubt or has_new_doubt or has_plausibility_changed or result.lost_count:
            result.doubt_since_monotonic_s = now_s
        else:
            result.doubt_since_monotonic_s = before.doubt_since_monotonic_s
        self._result = result
        self.counts.update(
            {ExternalChange.FORCED_ENI: result.forced_eni_count, ExternalChange.FORCED_ADDRESS: result.forced_count}
        )
        self._backoffs.clear(DOUBT)
        if result.again_s is None:
            # The condition ends now: without a doubt, no resync is due soon that could end it.
            self._health.report(CONDITION, None)
        else:
            # The pause depends on the doubt's age, not on the number of comparisons: a retried creation may compare every few seconds.
            lasted_s = now_s - result.doubt_since_monotonic_s
            self._backoffs.put(DOUBT, in_s=max(result.again_s, min(lasted_s - PATIENCE_S, DOUBT_MAX_S)))
        self.changed.set()

    def trigger_due(self) -> None:
        """Wake the pool if a resync has become due by the clock, because of a doubt or after a failure."""
        before = self._unplaced_before
        self._unplaced_before = self._unplaced()
        if self._unplaced_before - before:
            self._backoffs.clear(UNPLACED)
            self._backoffs.back_off(UNPLACED, EC2)  # pause first: the last answer, which did not show the address, is recent
        if self._backoffs.keys(*DOUBT) and self._backoffs.is_due(DOUBT):
            self._backoffs.clear(DOUBT)
            self.request(ResyncReason.DOUBT, "a second answer about objects that were not shown")
        elif self._unplaced_before and self._backoffs.is_due(UNPLACED):
            self._backoffs.back_off(UNPLACED, EC2)
            self.request(ResyncReason.DOUBT, "the address of a running sandbox was not shown")
        elif self._reasons and self._backoffs.is_due(AGAIN):
            self._demand.trigger()

    def wait_s(self) -> float | None:
        """Seconds until `trigger_due` has something to do; None if only a request can make a resync due."""
        doubt_s = self._backoffs.left_s(DOUBT) if self._backoffs.keys(*DOUBT) else None
        unplaced_s = self._backoffs.left_s(UNPLACED) if self._unplaced_before else None
        return soonest_s([doubt_s, unplaced_s, self._backoffs.next_s(*AGAIN)])

    def run_due(self, compare: Callable[[], EniSyncResult]) -> EniSyncResult | None:
        """Make the resync that is due, if any: one comparison for all requests.

        A failed resync stays due, because a frozen ENI may wait for it.
        Returns: the result; None if no resync was due, or if it failed with an IpamError.
        Raises: any other exception of `compare`, which is a defect of ours.
        """
        if not self._reasons or not self._backoffs.is_due(AGAIN):
            return None
        requested = self._reasons.copy()
        for description in requested:
            self._reasons.pop(description)
        self.counts.update(set(requested.values()))
        before = self._result
        self._result = replace(before, began_monotonic_s=-math.inf)  # the last result counts as outdated until EC2 has answered
        try:
            result = compare()
        except Exception as error:
            self._result = before
            self._requeue(requested, error)
            if isinstance(error, IpamError):
                return None
            raise
        self._backoffs.clear(AGAIN)
        self._report_result(result, "; ".join(requested))
        return result

    def _requeue(self, requested: Mapping[str, ResyncReason], error: Exception) -> None:
        """Make the reasons of a failed resync due again, after a pause. A link that changed meanwhile shortens it, as in `request`."""
        for description, reason in requested.items():
            self._reasons.setdefault(description, reason)
        self._backoffs.back_off(AGAIN, schedule_of(error))
        if ResyncReason.LINK in {reason for description, reason in self._reasons.copy().items() if description not in requested}:
            self._backoffs.hasten(AGAIN)
        unanswered = problem(ConditionCode.RESYNC_UNANSWERED, reasons="; ".join(requested), cause=log_text(error))
        self._health.report(CONDITION, unanswered)
        self.changed.set()

    def _report_result(self, result: EniSyncResult, reasons: str) -> None:
        """Count, log and report the result of a resync."""
        self.counts.update(
            {
                ExternalChange.ENI_ADDED: len(result.adopted),
                ExternalChange.ENI_REMOVED: result.lost_eni_count,
                ExternalChange.ADDRESS_ADDED: result.added_count,
                ExternalChange.ADDRESS_REMOVED: result.lost_count,
            }
        )
        is_different = (
            result.added_count or result.lost_count or result.healed_count or result.contradictions or result.implausible
        )
        level = logging.WARNING if is_different else logging.INFO
        log.log(level, "compared with EC2 reasons=%s result=%s", reasons, result)
        if result.again_s is None:
            self._health.report(CONDITION, None)
            return
        code = ConditionCode.RESYNC_NOT_BELIEVED if result.implausible else ConditionCode.RESYNC_DOUBTS
        self._health.report(CONDITION, problem(code, result=result))
