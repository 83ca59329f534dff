"""A look at EC2 out of turn: one Describe, asked for by whoever noticed something, made by the pool's thread.

`EniService` and the provisioner are used by one thread at a time, the pool maintainer's. So others only say that a look is due and
why; the maintainer makes it between two plans, where no call of ours is under way, and plans again with what it found. Rejected: a
lock around the comparison, which an allocation of many seconds would hold, and a thread that compares beside one that creates an ENI.
A look that EC2 refused stays due. What one look leaves in doubt makes the next one due (I11), less and less often if it stays so.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from ipamd.core.backoff import Retry, soonest_s
from ipamd.core.context import ServiceContext
from ipamd.eni.enis import EniService
from ipamd.eni.sync_result import EniSyncResult
from ipamd.model.cloud import InstanceIdentity, MetadataEni
from ipamd.model.errors import IpamError, log_text

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 600.0
"""Doubling pause after EC2 did not answer. Ours: what is in doubt is not given meanwhile, so a throttled account is not hurried."""

PATIENCE_S = 720.0
"""For so long in doubt looks are made as soon as they are useful; then each pause is as long as the doubt has lasted since. Ours: a
real mass loss is believed after ten minutes."""

DOUBT_MAX_S = 3600.0
"""Longest pause between two looks in doubt. Ours: as for metadata that stays stuck."""

UNPLACED_FIRST_S = 5.0
UNPLACED_MAX_S = 3600.0
"""Doubling pause between looks while a sandbox is wired whose address EC2 shows on no ENI, as a partial answer does after a lost
datastore. Ours: that it shows an address is believed at once, so there is no second look to wait for; and it may never show it."""

CONDITION = "another look"

log = logging.getLogger(__name__)


class LookReason(StrEnum):
    """Why EC2 is looked at: the label of the metric `ipamd_ec2_looks_total`."""

    LINK = "link"
    METADATA = "metadata"
    DOUBT = "doubt"
    OTHER = "other"


class Found(StrEnum):
    """What comparisons with EC2 found that calls of ours do not explain: the key of `CloudLook.found`.

    ENI_ADDED to ADDRESS_REMOVED: in looks out of turn. FORCED_ENI, FORCED_ADDRESS: in any comparison, and a sandbox had it.
    """

    ENI_ADDED = "eni-added"
    ENI_REMOVED = "eni-removed"
    ADDRESS_ADDED = "address-added"
    ADDRESS_REMOVED = "address-removed"
    FORCED_ENI = "forced-eni"
    FORCED_ADDRESS = "forced-address"


class CloudLook:
    """Which looks are due. Only `run_due` makes one, on the pool's thread; everything else is safe from any thread."""

    def __init__(self, context: ServiceContext, *, enis: EniService, identity: Callable[[], InstanceIdentity | None]) -> None:
        self._enis = enis
        self._identity = identity
        self._demand = context.demand
        self._health = context.health
        self._clock = context.clock
        self.changed = threading.Event()
        self._lock = threading.Lock()
        self._reasons: dict[str, LookReason] = {}
        self._requested = 0
        self._answered = 0
        self._result = EniSyncResult()
        self._doubt_since_monotonic_s = 0.0
        self._doubt_deadline: float | None = None
        self._retry = Retry(first_s=RETRY_FIRST_S, max_s=RETRY_MAX_S)
        self._unplaced = Retry(first_s=UNPLACED_FIRST_S, max_s=UNPLACED_MAX_S)
        self._unplaced_names: Callable[[], frozenset[str]] = frozenset
        self._unplaced_before: frozenset[str] = frozenset()
        self._counts: Counter[LookReason] = Counter()
        self._found: Counter[Found] = Counter()
        self._view: Callable[[], Iterable[MetadataEni] | None] = lambda: None
        enis.use_listener(self.note)

    def use_view(self, view: Callable[[], Iterable[MetadataEni] | None]) -> None:
        """Take `view` for what metadata shows of every ENI; it returns None if it does not know. Called once, before the start."""
        self._view = view

    def use_unplaced(self, unplaced: Callable[[], frozenset[str]]) -> None:
        """`unplaced` names the sandboxes that are wired with an address that has no row. Called once, before the start."""
        self._unplaced_names = unplaced

    def request(self, reason: LookReason, why: str) -> int:
        """Make a look due, `why` in a few words; returns a ticket that `is_answered` takes."""
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
            if result.again_s is None:
                self._doubt_deadline = None
            else:
                now_s = self._clock.monotonic()
                if _is_progress(before, result):
                    self._doubt_since_monotonic_s = now_s
                # Measured in time: whoever else compares, such as a creation that is tried again, may do so every few seconds.
                pause_s = max(result.again_s, min(now_s - self._doubt_since_monotonic_s - PATIENCE_S, DOUBT_MAX_S))
                self._doubt_deadline = now_s + pause_s
        self.changed.set()

    def trigger_due(self) -> None:
        """Wake the pool if a look has become due by the clock: a second look, or a repetition after a refusal."""
        now = self._clock.monotonic()
        is_unplaced = self._unplaced_left_s(now) == 0
        if is_unplaced:
            self._unplaced.put_off(now_s=now)
        with self._lock:
            is_in_doubt = self._doubt_deadline is not None and now >= self._doubt_deadline
            if is_in_doubt:
                self._doubt_deadline = None
            is_due = bool(self._reasons) and self._retry.is_due(now_s=now)
        if is_in_doubt:
            self.request(LookReason.DOUBT, "a second look at what was not shown")
        elif is_unplaced:
            self.request(LookReason.DOUBT, "the address of a running sandbox was not shown")
        elif is_due:
            self._demand.trigger()

    def wait_s(self) -> float | None:
        """Seconds until `trigger_due` has something to do; None: until something changes."""
        now = self._clock.monotonic()
        with self._lock:
            second = None if self._doubt_deadline is None else max(self._doubt_deadline - now, 0.0)
            is_put_off = self._reasons and not self._retry.is_due(now_s=now)
            pauses = [second, self._retry.left_s(now_s=now) if is_put_off else None, self._unplaced_left_s(now)]
            return soonest_s(pauses)

    def run_due(self) -> None:
        """Make the look that is due, if any: one Describe for all that asked. For the pool's thread."""
        identity = self._identity()
        with self._lock:
            if not self._reasons or identity is None or not self._retry.is_due(now_s=self._clock.monotonic()):
                return
            reasons, self._reasons, upto = self._reasons, {}, self._requested
            self._counts.update(set(reasons.values()))
        try:
            result = self._enis.sync_with_ec2(identity, metadata=self._view())
        except IpamError as error:
            self._put_off(reasons, error)
            return
        except Exception as error:
            self._put_off(reasons, error)  # a defect must not be the end of the look: an ENI would stay frozen
            raise
        with self._lock:
            self._answered = upto
            self._found[Found.ENI_ADDED] += len(result.adopted)
            self._found[Found.ENI_REMOVED] += result.lost_eni_count
            self._found[Found.ADDRESS_ADDED] += result.added_count
            self._found[Found.ADDRESS_REMOVED] += result.lost_count
        self._retry.end()
        self._report(reasons, result)
        self._enis.set_up_adopted(result)
        self._demand.trigger()  # with what it found another plan may be right

    def counts(self) -> Mapping[LookReason, int]:
        """Looks since the start, by reason; a look with two reasons counts for both."""
        with self._lock:
            return dict(self._counts)

    def found(self) -> Mapping[Found, int]:
        """What other hands did, as EC2 showed it, since the start."""
        with self._lock:
            return dict(self._found)

    def _unplaced_left_s(self, now_s: float) -> float | None:
        """Seconds until the next look because of an unplaced sandbox; None if there is none. For the thread that keeps the time."""
        before, self._unplaced_before = self._unplaced_before, self._unplaced_names()
        if self._unplaced_before - before:
            self._unplaced.end()
            self._unplaced.put_off(now_s=now_s)  # EC2 has just been looked at, which is how it became unplaced
        if not self._unplaced_before:
            return None
        return self._unplaced.left_s(now_s=now_s)

    def _wake(self) -> None:
        self.changed.set()
        self._demand.trigger()

    def _put_off(self, reasons: dict[str, LookReason], error: Exception) -> None:
        with self._lock:
            self._reasons = reasons | self._reasons
            pause_s = self._retry.put_off(now_s=self._clock.monotonic())
        sentence = f"another look: EC2 did not answer ({'; '.join(reasons)}): {log_text(error)}"
        self._health.set_condition(CONDITION, sentence)
        log.warning("%s; again in %.0f s", sentence, pause_s)
        self.changed.set()

    def _report(self, reasons: dict[str, LookReason], result: EniSyncResult) -> None:
        sentence = f"EC2 was looked at because {'; '.join(reasons)}: {result}"
        is_different = result.added_count or result.lost_count or result.healed_count or result.kept or result.implausible
        log.log(logging.WARNING if is_different else logging.INFO, "%s", sentence)
        if result.pending:
            meanwhile = "it is asked again" if result.implausible else "what EC2 did not show is not given, it is asked again"
            self._health.set_condition(CONDITION, f"another look: {result}; {meanwhile}")
        else:
            self._health.clear_condition(CONDITION)


def _is_progress(before: EniSyncResult, result: EniSyncResult) -> bool:
    """Whether a comparison says something else than the one before: what is in doubt since this look only, or may be concluded by the
    next one, must not wait for as long as what has been in doubt for hours."""
    is_believed_again = bool(before.implausible) != bool(result.implausible)
    return before.again_s is None or is_believed_again or bool(result.doubted - before.doubted or result.lost_count)
