"""Freeze an ENI as soon as its link is gone, and thaw it when the link is back and EC2 or metadata still shows the ENI.

A link that disappears is the first sign, within milliseconds and without an EC2 call, that an ENI was detached. It does not prove that
EC2 released the ENI's addresses, so nothing is removed: new sandboxes get none of them, and a resync is requested. A link that is only
down stays in the list of links, and the host network reconciler sets it up. The list decides; an event only triggers a reading of the
list. If the list lacks the primary ENI's link, it is of another namespace, or MACs were changed, and nothing is concluded from it
(I11). If the list is not usable, however, the event that a link is gone is enough to freeze its ENI. Other notifications of the kernel
are passed to the host network reconciler.

EC2's answer may lag behind the link. While link and row contradict each other (the link of an attached ENI is gone, or the link of an
ENI that others detached is there), EC2 is asked again, after pauses that grow to an hour. Metadata would show most of these
contradictions too, but its answers may be out of date, or missing. A link that comes and goes costs few calls: each ENI has an
allowance of them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from enum import Enum

from ipamd.core.backoffs import CONTRADICTION, soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.core.loop import Loop
from ipamd.eni.book import EniBook, MissingLink
from ipamd.eni.resync import ResyncReason, ResyncScheduler
from ipamd.eni.routing import EniRouting
from ipamd.model.eni import Eni, EniState
from ipamd.model.errors import IpamError, log_text
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel import ChangeKind, HostChange, LinkEvent, LinkEventKind
from ipamd.model.record import dataclass
from ipamd.ports.kernel import HostNetwork

REOPEN_S = 0.5
"""Pause before the subscription is opened again if it ended without an error. That should happen only when the daemon stops, so this
pause only prevents an endless loop without pauses. If the subscription breaks, `Loop` chooses the pause. Ours: half a second is short,
so few notifications are missed, and opening twice a second costs little."""

LINK_CALLS, LINK_CALL_S = 4, 600.0
"""The changes of one ENI's link may cause LINK_CALLS calls in a burst, and then one more every LINK_CALL_S seconds. Ours: if a link
goes and comes back twice, each of these four changes causes a call without delay; a link that goes on changing costs six calls an hour
(I13). While a call is delayed, the ENI is frozen, unless metadata lists it after the link's return."""

QUESTION = "link question"
"""First part of the back-off keys (QUESTION, ENI ID). Such a key is due when EC2 is to be asked again about an ENI whose link
contradicts its row."""

log = logging.getLogger(__name__)


class _Contradiction(Enum):
    """How the link of an ENI contradicts the ENI's row."""

    GONE = "the ENI is attached, and its link is gone"
    PRESENT = "others detached the ENI, and its link is there"


@dataclass(slots=True)
class _LinkRecord:
    """What `LinkWatch` remembers about the link of one ENI.

    Attributes:
        counted_monotonic_s: when `call_count` was counted.
        call_count: the calls that the link was allowed to cause at that time.
        is_postponed: whether the link has changed while no call was allowed, so that a call is still to be made.
        contradiction: how link and row contradicted each other at the last comparison; None if they agreed.
    """

    counted_monotonic_s: float
    call_count: float = LINK_CALLS
    is_postponed: bool = False
    contradiction: _Contradiction | None = None

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until a call is allowed; 0.0 if one is allowed now."""
        return max((1.0 - self.call_count) * LINK_CALL_S - (now_s - self.counted_monotonic_s), 0.0)

    def count_call(self, now_s: float) -> None:
        """Subtract a call. The call also answers a postponed change."""
        self.call_count = min(self.call_count + (now_s - self.counted_monotonic_s) / LINK_CALL_S, LINK_CALLS) - 1.0
        self.counted_monotonic_s = now_s
        self.is_postponed = False


class LinkWatch(Service):
    """Compares the recorded ENIs with the links of the host's namespace.

    The loop calls `turn`; any thread may call the other methods.
    """

    def __init__(
        self,
        context: ServiceContext,
        *,
        hostnet: HostNetwork,
        book: EniBook,
        routing: EniRouting,
        resyncs: ResyncScheduler,
        on_change: Callable[[HostChange], None],
    ) -> None:
        """`on_change`: called with the kernel's notifications that are not about links, and also when the link of a recorded ENI
        appears, or notifications may have been missed (`HostNetworkReconciler.on_change`).
        """
        super().__init__(context)
        self._hostnet = hostnet
        self._book = book
        self._routing = routing
        self._resyncs = resyncs
        self._on_change = on_change
        self.loop = Loop("links", self.turn, health=context.health, clock=context.clock, cancel=hostnet.stop_host_events)
        self._lock = threading.Lock()
        self._records: dict[EniId, _LinkRecord] = {}
        self._is_readable = True
        self._last_logged = ""

    def turn(self) -> float:
        """Follow the kernel's notifications until the loop is stopped. Returns: seconds until the subscription is opened again.

        Raises: any error of the subscription, after which `Loop` makes a pause and calls this again.
        """
        try:
            for event in self._hostnet.host_events():
                if self.loop.is_stopped:
                    break
                if self.loop.recovered():
                    self._on_change(HostChange(ChangeKind.MISSED))  # events may have come while the subscription was broken
                if isinstance(event, HostChange):
                    self._on_change(event)
                else:
                    self.on_event(event)
        except Exception:
            self._on_change(HostChange(ChangeKind.MISSED))
            raise
        return REOPEN_S

    def on_event(self, event: LinkEvent) -> None:
        """Compare at once if the event concerns a recorded ENI, or has no MAC, which means that events may have been missed."""
        if event.mac and not self._is_recorded(event.mac):
            return
        if event.mac and event.kind is LinkEventKind.SEEN:
            self._on_change(HostChange(ChangeKind.LINK))  # the link may be down, or have another MTU
        gone = event.mac if event.kind is LinkEventKind.GONE else None
        is_compared = self.compare(gone=gone)
        if not is_compared and gone is not None:
            with self._lock:  # without a usable list the event alone is enough to freeze the ENI
                self._freeze([eni for eni in self._attached() if eni.mac == gone])

    def compare(self, *, gone: MacAddress | None = None) -> bool:
        """Read the list of links, freeze the ENIs whose link is gone, and request the resyncs about links that are due.

        Args:
            gone: a link of which the kernel has just reported the removal, so it existed, even if its ENI was never set up.
        Returns: whether the list of links was usable.
        """
        with self._lock:
            self._is_readable = False
            attached = self._attached()
            try:
                present = self._hostnet.links([eni.mac for eni in self._datastore.enis()])
            except IpamError as error:
                self._log_state(f"the links are read again: {log_text(error)}")
                return False
            if any(eni.is_primary and eni.mac not in present for eni in attached):
                self._log_state("the primary ENI's link is not among them: nothing is concluded")
                return False
            self._is_readable = True
            self._log_state("")
            self._freeze([eni for eni in attached if eni.mac not in present], gone=gone)
            missing = self._missing()
            for eni in self._datastore.enis():
                link = missing.get(eni.eni_id)
                if link is not None:
                    self._observe_missing(eni, link, is_present=eni.mac in present)
            self._ask_again(present)
        return True

    def next_question_s(self) -> float | None:
        """Seconds until EC2 is asked again about an ENI whose link contradicts its row; None if no question is open. From any thread.

        Also None while the list of links is unusable: a due question waits for the next reading of the list and does not hasten it.
        """
        with self._lock:
            if not self._is_readable:
                return None
            now_s = self._clock.monotonic()
            return soonest_s(self._question_wait_s(eni_id, record, now_s) for eni_id, record in self._records.items())

    def _question_wait_s(self, eni_id: EniId, record: _LinkRecord, now_s: float) -> float | None:
        """Return the seconds until EC2 is asked about the link of an ENI; None if there is nothing to ask."""
        if record.is_postponed:
            return record.wait_s(now_s)
        if record.contradiction is not None:
            return max(self._backoffs.left_s((QUESTION, eni_id)), record.wait_s(now_s))
        return None

    def _record_of(self, eni_id: EniId) -> _LinkRecord:
        """Return the record of an ENI, a new one if it has none."""
        return self._records.setdefault(eni_id, _LinkRecord(self._clock.monotonic()))

    def _request_or_postpone(self, eni_id: EniId, description: str) -> None:
        """Request a resync because the link of an ENI has changed, or postpone it if the ENI has no call left."""
        record, now_s = self._record_of(eni_id), self._clock.monotonic()
        if record.wait_s(now_s):
            record.is_postponed = True
        else:
            record.count_call(now_s)
            self._resyncs.request(ResyncReason.LINK, description)

    def _ask_again(self, present: Collection[MacAddress]) -> None:
        """Ask EC2 again about ENIs whose link and row have contradicted each other since the last question.

        The first question is not asked here: EC2 was asked when the link disappeared or came back, or has just answered.
        """
        self._update_records(present)
        now_s = self._clock.monotonic()
        due = sorted(eni_id for eni_id, record in self._records.items() if self._question_wait_s(eni_id, record, now_s) == 0.0)
        if not due:
            return
        for eni_id in due:
            self._records[eni_id].count_call(now_s)
        self._resyncs.request(ResyncReason.LINK, f"links and rows still differ: {', '.join(due)}")
        for eni_id, record in self._records.items():
            if record.contradiction is not None:  # one resync answers the questions about all of them
                self._backoffs.back_off((QUESTION, eni_id), CONTRADICTION)

    def _update_records(self, present: Collection[MacAddress]) -> None:
        """Record the present contradictions, start the pauses of questions about new ones, and forget ENIs that have no row."""
        leaving = {intent.eni_id for intent in self._datastore.open_intents() if intent.is_leaving}
        missing = self._missing()
        records = {}
        for eni in self._datastore.enis():
            record = records[eni.eni_id] = self._record_of(eni.eni_id)
            contradiction = _contradiction_of(eni, is_present=eni.mac in present, is_leaving=eni.eni_id in leaving)
            if contradiction is not record.contradiction:
                record.contradiction = contradiction
                self._backoffs.clear((QUESTION, eni.eni_id))
                if contradiction is not None:
                    self._backoffs.back_off((QUESTION, eni.eni_id), CONTRADICTION)
            if contradiction is None and eni.eni_id not in missing:
                record.is_postponed = False  # EC2 or metadata has shown the ENI meanwhile
        self._records = records
        self._backoffs.retain(QUESTION, records.keys())

    def _observe_missing(self, eni: Eni, link: MissingLink, *, is_present: bool) -> None:
        """Record that the missing link of an ENI is back, or gone again.

        ENIs that EC2 shows detaching are included, because their sandboxes need the link.
        """
        if is_present and link.back_monotonic_s is None:
            self._book.observe(eni.eni_id, link=replace(link, back_monotonic_s=self._clock.monotonic()))
            self._request_or_postpone(eni.eni_id, f"the link of {eni.eni_id} is back")
        elif not is_present and eni.state is EniState.DETACHING:
            self._book.observe(eni.eni_id, link=replace(link, back_monotonic_s=None))  # so that its next return is noticed

    def thaw_confirmed(self) -> None:
        """Thaw the ENIs whose link is back, if EC2 has shown them attached or metadata has listed them since. Removed ENIs are thawed
        too.
        """
        recorded = {eni.eni_id: eni for eni in self._datastore.enis()}
        confirmed = []
        with self._lock:
            for eni_id, link in self._missing().items():
                eni = recorded.get(eni_id)
                if eni is None:
                    self._routing.thaw(eni_id)  # the ENI was removed because EC2 did not show it any more
                elif self._is_confirmed(eni, link):
                    self._routing.thaw(eni_id)
                    confirmed.append(eni_id)
        for eni_id in self._missing():
            self._routing.report_frozen(eni_id)  # EC2 may have answered since
        for eni_id in confirmed:
            log.info("ENI link restored, ENI unfrozen eni=%s", eni_id)
            self._routing.set_up_again(eni_id)  # outside the lock: it may wait for the link

    def _is_confirmed(self, eni: Eni, link: MissingLink) -> bool:
        """Whether the link of an attached ENI is back, and EC2 or metadata has shown the ENI since."""
        since_s = link.back_monotonic_s
        if since_s is None or eni.state is not EniState.ATTACHED:
            return False
        is_listed = eni.mac in self._book.readings() and self._book.listed_monotonic_s > since_s
        return is_listed or self._resyncs.is_shown(eni.eni_id, since_monotonic_s=since_s)

    def _missing(self) -> dict[EniId, MissingLink]:
        return {eni_id: facts.link for eni_id, facts in self._book.all().items() if facts.link is not None}

    def _attached(self) -> list[Eni]:
        return [eni for eni in self._datastore.enis() if eni.is_in_pool]

    def _freeze(self, enis: list[Eni], *, gone: MacAddress | None = None) -> None:
        for eni in enis:
            link = self._book.facts_of(eni.eni_id).link
            was_there = eni.host_ready or eni.mac == gone
            is_frozen = link is not None and link.back_monotonic_s is None and link.was_there >= was_there
            if not is_frozen or eni.host_ready:  # a frozen ENI is still marked ready if the disk refused that change
                self._routing.freeze(eni.eni_id, was_there=was_there)
                self._request_or_postpone(eni.eni_id, f"the link of {eni.eni_id} is gone")

    def _is_recorded(self, mac: MacAddress) -> bool:
        return any(eni.mac == mac for eni in self._datastore.enis())

    def _log_state(self, sentence: str) -> None:
        """Log the state of the comparison if it has changed. `sentence`: why links could not be compared, "" after a success."""
        if sentence != self._last_logged and not self.loop.is_stopped:
            self._last_logged = sentence
            log.info("links state=%s", sentence or "compared again")


def _contradiction_of(eni: Eni, *, is_present: bool, is_leaving: bool) -> _Contradiction | None:
    """Return how the link of an ENI contradicts its row; None if they agree.

    Args:
        is_present: whether the link is there.
        is_leaving: whether this daemon detaches the ENI.
    """
    if eni.is_in_pool and not is_present:
        return _Contradiction.GONE
    if eni.managed and eni.state is EniState.DETACHING and not is_leaving and is_present:
        return _Contradiction.PRESENT
    return None
