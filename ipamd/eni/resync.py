"""A resync with EC2: one Describe out of turn, asked for by whoever noticed something, made by the pool's thread.

`EniService` and the provisioner are used by one thread at a time, the pool maintainer's. So others only say that a resync is due and
why; the maintainer makes it between two plans, where no call of ours is under way, and plans again with what it found. Rejected: a
lock around the comparison, which an allocation of many seconds would hold, and a thread that compares beside one that creates an ENI.
A resync that EC2 refused stays due. What one leaves in doubt makes the next one due (I11), less and less often if it stays so.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

from ipamd.core.agenda import EC2, soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.core.health import Health
from ipamd.model.cloud_evidence import CloudKey
from ipamd.model.errors import IpamError, log_text
from ipamd.model.ids import EniId
from ipamd.model.record import dataclass, field, replace
from ipamd.model.words import counted, first_of

PATIENCE_S = 720.0
"""For so long in doubt looks are made as soon as they are useful; then each pause is as long as the doubt has lasted since. Ours: a
real mass loss is believed after ten minutes."""

DOUBT_MAX_S = 3600.0
"""Longest pause between two looks in doubt. Ours: as for metadata that stays stuck."""

DOUBT, UNPLACED, AGAIN = ("resync", "doubt"), ("resync", "unplaced"), ("resync", "again")
"""In the agenda: the second look at what was not shown; the next one for a sandbox whose address EC2 shows on no ENI, as a partial
answer does after a lost datastore (it may never show it); and the repetition of one that EC2 did not answer."""

ANSWER, DIFFERENCES, LOST, MASS_LOSS = "ec2 answer", "ec2 differences", "lost addresses", "mass loss"
"""Conditions: the last answer was not believed; objects on which EC2 and the datastore contradict each other; addresses that EC2 does
not show any more; a loss that was concluded from implausible answers."""

CONDITION = "another look"

UNREADABLE = "cannot be read"
"""In a sentence about an ENI whose entry is malformed."""

SAID_COUNT = 5
"""Differences that a condition names. Ours: `ipamctl audit` has all."""

log = logging.getLogger(__name__)


class ResyncReason(StrEnum):
    """Why EC2 is looked at: the label of the metric `ipamd_ec2_looks_total`."""

    LINK = "link"
    METADATA = "metadata"
    DOUBT = "doubt"
    OTHER = "other"


class Found(StrEnum):
    """What comparisons with EC2 found that calls of ours do not explain: a key of `ResyncScheduler.counts`.

    ENI_ADDED to ADDRESS_REMOVED: in looks out of turn. FORCED_ENI, FORCED_ADDRESS: in any comparison, and a sandbox had it.
    """

    ENI_ADDED = "eni-added"
    ENI_REMOVED = "eni-removed"
    ADDRESS_ADDED = "address-added"
    ADDRESS_REMOVED = "address-removed"
    FORCED_ENI = "forced-eni"
    FORCED_ADDRESS = "forced-address"


@dataclass(slots=True)
class EniSyncResult:
    """What one comparison with EC2 changed, counted; shown as the detail of its stage.

    `eni_count`: ENIs that the answer shows attached; `adopted`: those of them that were not recorded before. `removed_count`:
    addresses forgotten; `lost_count`: addresses found absent now, the forgotten ones included; `healed_count`: lost ones that EC2
    shows again. `lost_eni_count`: ENIs found absent now. `forced_count`, `forced_eni_count`: those of the lost addresses and ENIs that
    a sandbox had. `kept`: one sentence per object that was left as it was; `foreign`: one per attached ENI that has no IPv4 address
    or could not be read. `implausible`: why the answer was not believed, "" if it was; then nothing was added. `again_s`: seconds
    after which to look again, None if nothing is in doubt; `doubted`: the ENIs and addresses that were not shown once.
    `began_monotonic_s`: when EC2 was asked; `doubt_since_monotonic_s`: since when the same is in doubt.
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
    kept: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    implausible: str = ""
    again_s: float | None = None
    doubted: frozenset[CloudKey] = frozenset()

    def keep(self, sentence: str) -> None:
        """Report something that was left as it is; a repeated sentence counts once."""
        if sentence not in self.kept:
            self.kept.append(sentence)

    def look_again(self, after_s: float | None) -> None:
        """Ask for another look, the earliest that anybody asked for."""
        self.again_s = soonest_s([self.again_s, after_s])

    def __str__(self) -> str:
        text = f"{counted(self.eni_count, 'ENI')}, {counted(self.added_count, 'address')} added, {self.removed_count} forgotten"
        if self.implausible:
            text = f"EC2's answer is not believed: {self.implausible}"
        if self.lost_count > self.removed_count:
            text += f", {self.lost_count - self.removed_count} lost"
        if self.healed_count:
            text += f", {self.healed_count} shown again"
        if self.kept:
            text += f"; kept: {'; '.join(self.kept)}"
        return f"{text}; left alone: {'; '.join(self.foreign)}" if self.foreign else text


class ResyncScheduler(Service):
    """Which resyncs are due. `run_due` is for the pool's thread, `trigger_due` and `wait_s` are for the cloud loop's, all else is for
    any. It needs no lock: each step is one operation on a dictionary, and only `run_due` takes reasons out;
    a reason that comes while it begins is of that look, or stays.

    `counts`: looks since the start by reason, a look with two reasons for both; and what external changes EC2 showed.
    """

    def __init__(self, context: ServiceContext, *, unplaced: Callable[[], frozenset[str]]) -> None:
        """`unplaced` names the sandboxes that are wired with an address that has no row."""
        super().__init__(context)
        self.changed = threading.Event()
        self._reasons: dict[str, ResyncReason] = {}
        self._result = EniSyncResult()
        self._unplaced = unplaced
        self._unplaced_before: frozenset[str] = frozenset()
        self.counts: Counter[ResyncReason | Found] = Counter()

    def request(self, reason: ResyncReason, why: str) -> None:
        """Make a resync due, `why` in a few words."""
        self._reasons.setdefault(why, reason)
        self.changed.set()
        self._demand.trigger()

    def is_answered(self, since_monotonic_s: float) -> bool:
        """Whether EC2 has answered a look that began since then, nothing is in doubt, and no other look is asked for."""
        last = self._result
        is_clear = last.again_s is None and not last.implausible
        return not self._reasons and since_monotonic_s <= last.began_monotonic_s and is_clear

    @property
    def is_asked(self) -> bool:
        """Whether a look is under way or asked for, and EC2 is not left alone for a while."""
        last = self._result
        is_unanswered = last.began_monotonic_s == -math.inf or bool(last.implausible)
        return is_unanswered or (bool(self._reasons) and self._agenda.is_due(AGAIN))

    def record_result(self, result: EniSyncResult) -> None:
        """Take the result of a comparison, ours or another's, one at a time: what it leaves in doubt is looked at again."""
        before, now_s = self._result, self._clock.monotonic()
        # What says something else than the one before, which is in doubt since this look only, or may be concluded by the next one,
        # must not wait for as long as what has been in doubt for hours.
        is_believed_again = bool(before.implausible) != bool(result.implausible)
        is_progress = before.again_s is None or is_believed_again or result.doubted - before.doubted or result.lost_count
        result.doubt_since_monotonic_s = now_s if is_progress else before.doubt_since_monotonic_s
        self._result = result
        self.counts.update({Found.FORCED_ENI: result.forced_eni_count, Found.FORCED_ADDRESS: result.forced_count})
        self._agenda.clear(DOUBT)
        if result.again_s is not None:
            # Measured in time: whoever else compares, such as a creation that is tried again, may do so every few seconds.
            lasted_s = now_s - result.doubt_since_monotonic_s
            self._agenda.put(DOUBT, in_s=max(result.again_s, min(lasted_s - PATIENCE_S, DOUBT_MAX_S)))
        self.changed.set()

    def trigger_due(self) -> None:
        """Wake the pool if a look has become due by the clock: a second look, or a repetition after a refusal."""
        before, self._unplaced_before = self._unplaced_before, self._unplaced()
        if self._unplaced_before - before:
            self._agenda.clear(UNPLACED)
            self._agenda.put_off(UNPLACED, EC2)  # EC2 has just been asked, which is how it became unplaced
        if self._agenda.keys(*DOUBT) and self._agenda.is_due(DOUBT):
            self._agenda.clear(DOUBT)
            self.request(ResyncReason.DOUBT, "a second look at what was not shown")
        elif self._unplaced_before and self._agenda.is_due(UNPLACED):
            self._agenda.put_off(UNPLACED, EC2)
            self.request(ResyncReason.DOUBT, "the address of a running sandbox was not shown")
        elif self._reasons and self._agenda.is_due(AGAIN):
            self._demand.trigger()

    def wait_s(self) -> float | None:
        """Seconds until `trigger_due` has something to do; None: until something changes."""
        doubt_s = self._agenda.left_s(DOUBT) if self._agenda.keys(*DOUBT) else None
        unplaced_s = self._agenda.left_s(UNPLACED) if self._unplaced_before else None
        return soonest_s([doubt_s, unplaced_s, self._agenda.next_s(*AGAIN)])

    def run_due(self, compare: Callable[[], EniSyncResult]) -> EniSyncResult | None:
        """Make the resync that is due, if any: one comparison for all that asked. Returns: what EC2 answered.

        What failed stays due: an ENI would stay frozen. Raises: what is a defect.
        """
        if not self._reasons or not self._agenda.is_due(AGAIN):
            return None
        due = self._reasons.copy()
        for why in due:
            self._reasons.pop(why)
        self.counts.update(set(due.values()))
        reasons, before = "; ".join(due), self._result
        self._result = replace(before, began_monotonic_s=-math.inf)  # until EC2 has answered
        try:
            result = compare()
        except Exception as error:
            self._result = before
            for why, reason in due.items():
                self._reasons.setdefault(why, reason)
            self._agenda.put_off(AGAIN, EC2)
            self._health.report(CONDITION, f"another look: EC2 did not answer ({reasons}): {log_text(error)}")
            self.changed.set()
            if isinstance(error, IpamError):
                return None
            raise
        self._agenda.clear(AGAIN)
        self.counts.update(
            {
                Found.ENI_ADDED: len(result.adopted),
                Found.ENI_REMOVED: result.lost_eni_count,
                Found.ADDRESS_ADDED: result.added_count,
                Found.ADDRESS_REMOVED: result.lost_count,
            }
        )
        is_different = result.added_count or result.lost_count or result.healed_count or result.kept or result.implausible
        log.log(logging.WARNING if is_different else logging.INFO, "compared with EC2 reasons=%s result=%s", reasons, result)
        meanwhile = "it is asked again" if result.implausible else "what EC2 did not show is not given, it is asked again"
        self._health.report(CONDITION, "" if result.again_s is None else f"another look: {result}; {meanwhile}")
        return result


def say_result(health: Health, outcome: EniSyncResult, *, mass_loss: str) -> None:
    """Say what people should know until the next comparison. `mass_loss`: a sentence, or an empty string."""
    if mass_loss:
        health.report(MASS_LOSS, f"EC2's answer: {mass_loss}")
    why = outcome.implausible
    health.report(ANSWER, f"EC2's answer is not believed: {why}; nothing is concluded from it" if why else "")
    if not why:
        sentences = outcome.kept + [sentence for sentence in outcome.foreign if UNREADABLE in sentence]
        health.report(DIFFERENCES, f"EC2 and the datastore differ: {first_of(sentences, SAID_COUNT)}" if sentences else "")
