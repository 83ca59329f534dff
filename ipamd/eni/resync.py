"""A resync with EC2: one Describe out of turn, asked for by whoever noticed something, made by the pool's thread.

`EniService` and the provisioner are used by one thread at a time, the pool maintainer's. So others only say that a resync is due and
why; the maintainer makes it between two plans, where no call of ours is under way, and plans again with what it found. Rejected: a
lock around the comparison, which an allocation of many seconds would hold, and a thread that compares beside one that creates an ENI.
A resync that EC2 refused stays due. What one leaves in doubt makes the next one due (I11), less and less often if it stays so.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ipamd.core.agenda import EC2, soonest_s
from ipamd.core.context import ServiceContext
from ipamd.eni.sync_result import EniSyncResult
from ipamd.model.errors import log_text

PATIENCE_S = 720.0
"""For so long in doubt looks are made as soon as they are useful; then each pause is as long as the doubt has lasted since. Ours: a
real mass loss is believed after ten minutes."""

DOUBT_MAX_S = 3600.0
"""Longest pause between two looks in doubt. Ours: as for metadata that stays stuck."""

DOUBT, UNPLACED, AGAIN = ("resync", "doubt"), ("resync", "unplaced"), ("resync", "again")
"""In the agenda: the second look at what was not shown; the next one for a sandbox whose address EC2 shows on no ENI, as a partial
answer does after a lost datastore (it may never show it); and the repetition of one that EC2 did not answer."""

CONDITION = "another look"

log = logging.getLogger(__name__)


class LookReason(StrEnum):
    """Why EC2 is looked at: the label of the metric `ipamd_ec2_looks_total`."""

    LINK = "link"
    METADATA = "metadata"
    DOUBT = "doubt"
    OTHER = "other"


class Found(StrEnum):
    """What comparisons with EC2 found that calls of ours do not explain: the key of `ResyncScheduler.found`.

    ENI_ADDED to ADDRESS_REMOVED: in looks out of turn. FORCED_ENI, FORCED_ADDRESS: in any comparison, and a sandbox had it.
    """

    ENI_ADDED = "eni-added"
    ENI_REMOVED = "eni-removed"
    ADDRESS_ADDED = "address-added"
    ADDRESS_REMOVED = "address-removed"
    FORCED_ENI = "forced-eni"
    FORCED_ADDRESS = "forced-address"


@dataclass(frozen=True, slots=True)
class Due:
    """A resync to make: who asked for it, and the last ticket that it answers."""

    reasons: Mapping[str, LookReason]
    upto: int


class ResyncScheduler:
    """Which resyncs are due: `EniService.resync_due` makes them, on the pool's thread. Safe from any thread."""

    def __init__(self, context: ServiceContext, *, unplaced: Callable[[], frozenset[str]]) -> None:
        """`unplaced` names the sandboxes that are wired with an address that has no row."""
        self._demand = context.demand
        self._health = context.health
        self._clock = context.clock
        self._agenda = context.agenda
        self.changed = threading.Event()
        self._lock = threading.Lock()
        self._reasons: dict[str, LookReason] = {}
        self._requested = 0
        self._answered = 0
        self._result = EniSyncResult()
        self._doubt_since_monotonic_s = 0.0
        self._unplaced = unplaced
        self._unplaced_before: frozenset[str] = frozenset()
        self._counts: Counter[LookReason] = Counter()
        self._found: Counter[Found] = Counter()

    def request(self, reason: LookReason, why: str) -> int:
        """Make a resync due, `why` in a few words; returns a ticket that `is_answered` takes."""
        with self._lock:
            self._requested += 1
            ticket = self._requested
            self._reasons.setdefault(why, reason)
        self._wake()
        return ticket

    def is_answered(self, ticket: int) -> bool:
        """Whether EC2 has answered a look that began after this request, and nothing is in doubt since."""
        with self._lock:
            return ticket <= self._answered and not (self._result.pending or self._result.implausible)

    def note(self, result: EniSyncResult) -> None:
        """Take the result of a comparison, ours or another's: what it leaves in doubt is looked at again."""
        with self._lock:
            before, self._result = self._result, result
            self._found[Found.FORCED_ENI] += result.forced_eni_count
            self._found[Found.FORCED_ADDRESS] += result.forced_count
            now_s = self._clock.monotonic()
            if _is_progress(before, result):
                self._doubt_since_monotonic_s = now_s
            lasted_s = now_s - self._doubt_since_monotonic_s
        self._agenda.clear(DOUBT)
        if result.again_s is not None:
            # Measured in time: whoever else compares, such as a creation that is tried again, may do so every few seconds.
            self._agenda.put(DOUBT, in_s=max(result.again_s, min(lasted_s - PATIENCE_S, DOUBT_MAX_S)))
        self.changed.set()

    def trigger_due(self) -> None:
        """Wake the pool if a look has become due by the clock: a second look, or a repetition after a refusal."""
        before, self._unplaced_before = self._unplaced_before, self._unplaced()
        if self._unplaced_before - before:
            self._agenda.clear(UNPLACED)
            self._agenda.put_off(UNPLACED, EC2)  # EC2 has just been asked, which is how it became unplaced
        if DOUBT in self._agenda.keys("resync") and self._agenda.is_due(DOUBT):
            self._agenda.clear(DOUBT)
            self.request(LookReason.DOUBT, "a second look at what was not shown")
        elif self._unplaced_before and self._agenda.is_due(UNPLACED):
            self._agenda.put_off(UNPLACED, EC2)
            self.request(LookReason.DOUBT, "the address of a running sandbox was not shown")
        elif self._reasons and self._agenda.is_due(AGAIN):
            self._demand.trigger()

    def wait_s(self) -> float | None:
        """Seconds until `trigger_due` has something to do; None: until something changes."""
        keys = self._agenda.keys("resync")
        waits = [self._agenda.left_s(DOUBT) if DOUBT in keys else None, self._agenda.next_s(*AGAIN)]
        return soonest_s([*waits, self._agenda.left_s(UNPLACED) if self._unplaced_before else None])

    def take(self) -> Due | None:
        """The resync that is due now, if any; whoever takes it makes it, and says what became of it."""
        is_due = self._agenda.is_due(AGAIN)
        with self._lock:
            if not self._reasons or not is_due:
                return None
            due, self._reasons = Due(self._reasons, self._requested), {}
            self._counts.update(set(due.reasons.values()))
        return due

    def answer(self, due: Due, result: EniSyncResult) -> None:
        """EC2 has answered."""
        with self._lock:
            self._answered = due.upto
            self._found[Found.ENI_ADDED] += len(result.adopted)
            self._found[Found.ENI_REMOVED] += result.lost_eni_count
            self._found[Found.ADDRESS_ADDED] += result.added_count
            self._found[Found.ADDRESS_REMOVED] += result.lost_count
        self._agenda.clear(AGAIN)
        self._report(due.reasons, result)

    def put_off(self, due: Due, error: Exception) -> None:
        """It failed, and stays due."""
        with self._lock:
            self._reasons = {**due.reasons, **self._reasons}
        self._agenda.put_off(AGAIN, EC2)
        self._health.report(CONDITION, f"another look: EC2 did not answer ({'; '.join(due.reasons)}): {log_text(error)}")
        self.changed.set()

    def counts(self) -> Mapping[LookReason, int]:
        """Looks since the start, by reason; a look with two reasons counts for both."""
        with self._lock:
            return dict(self._counts)

    def found(self) -> Mapping[Found, int]:
        """What other hands did, as EC2 showed it, since the start."""
        with self._lock:
            return dict(self._found)

    def _wake(self) -> None:
        self.changed.set()
        self._demand.trigger()

    def _report(self, reasons: Mapping[str, LookReason], result: EniSyncResult) -> None:
        sentence = f"EC2 was looked at because {'; '.join(reasons)}: {result}"
        is_different = result.added_count or result.lost_count or result.healed_count or result.kept or result.implausible
        log.log(logging.WARNING if is_different else logging.INFO, "%s", sentence)
        meanwhile = "it is asked again" if result.implausible else "what EC2 did not show is not given, it is asked again"
        self._health.report(CONDITION, f"another look: {result}; {meanwhile}" if result.pending else "")


def _is_progress(before: EniSyncResult, result: EniSyncResult) -> bool:
    """Whether a comparison says something else than the one before: what is in doubt since this look only, or may be concluded by the
    next one, must not wait for as long as what has been in doubt for hours."""
    is_believed_again = bool(before.implausible) != bool(result.implausible)
    return before.again_s is None or is_believed_again or bool(result.doubted - before.doubted or result.lost_count)
