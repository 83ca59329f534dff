"""Compare attachments with the runtime's sandboxes, and free those that are provably gone.

It subscribes to events first, then lists sandboxes again and again. An event only brings the next list forward, and a burst of
events causes one list. A list counts as evidence if it is complete, plausible and taken after the datastore was read; attachments
made later are not judged by it (whereabouts issue 162).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection

from ipamd.core.agenda import NODE
from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline, Steps
from ipamd.core.loop import Loop, OddObjects
from ipamd.model.attachment import Attachment
from ipamd.model.errors import EventsUnsupportedError, IpamError, RuntimeUnreachableError, log_text
from ipamd.model.evidence import Evidence, Judgement, Verdict
from ipamd.model.family import IpAddress
from ipamd.model.history import LedgerEvent
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import KernelSurvey
from ipamd.model.sandbox import EventKind, RuntimeInfo, RuntimeView, Sandbox, SandboxEvent
from ipamd.model.words import counted
from ipamd.ports import Clock, Import, Runtime
from ipamd.sandbox.detach import DetachService
from ipamd.sandbox.judge import LIST_INTERVAL_S
from ipamd.sandbox.quarantine import QuarantineService

log = logging.getLogger(__name__)


# Count changes of the runtime's list that no event announced: this tells operators how complete the event stream is.
#
# Only changes between two lists within one open stream count: changes while no stream was open could not be announced. An event
# may come shortly after the list that shows its change, so a change counts as missed at a list LATE_EVENT_S later. Only existence
# is compared, not READY or NOTREADY: both are reasons to keep. No decision depends on the count.


LATE_EVENT_S = 5.0
"""How long after the list its event may come. Ours: containerd 1.7 sends within a millisecond; the rest is for a busy machine."""

ANNOUNCED_LIMIT_COUNT = 4096
"""Announcements remembered, the oldest forgotten first. Ours: a list follows within seconds, a node has some hundreds."""

Change = tuple[str, bool]
"""Sandbox ID, and whether it was removed (True) or created (False)."""


class MissedEventDetector:
    """Compares events with lists. `on_event`, `on_open` and `on_close` are the stream's thread's, all else is the reconciler's.

    `is_open`: whether a stream is known to be open. `missed_count`: changes that a list found and no event announced. What both
    threads use is one number each, or the queue, whose single steps are whole: no lock is needed.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stream_count = 0
        self.is_open = False
        self._base: frozenset[str] = frozenset()
        self._base_stream = 0
        self._announced: deque[Change] = deque(maxlen=ANNOUNCED_LIMIT_COUNT)
        self._unannounced: dict[Change, float] = {}
        self.missed_count = 0

    def on_open(self) -> None:
        """Note that a stream is open from now on; changes not yet counted are dropped."""
        self._announced.clear()
        self._stream_count += 1
        self.is_open = True

    def on_close(self) -> None:
        """Note that the stream ended."""
        self.is_open = False

    def on_event(self, event: SandboxEvent) -> None:
        """Note what an event announces.

        DELETED announces the removal of the sandbox or container that it names (lists show no container IDs). Every other kind
        announces that it exists. An event of a container also announces that its sandbox exists.
        """
        self._announced.append((event.container_id, event.kind is EventKind.DELETED))
        if event.sandbox_id and event.sandbox_id != event.container_id:
            self._announced.append((event.sandbox_id, False))

    def before_list(self) -> int:
        """Return the number of the open stream, to be passed to `on_list`; 0 if none is open."""
        return self._stream_count if self.is_open else 0

    def on_list(self, sandbox_ids: frozenset[str], *, stream: int) -> None:
        """Compare a complete list, begun when `before_list` returned `stream`, with the one before it."""
        if not stream or stream != self.before_list():
            return
        now_s, announced = self._clock.monotonic(), set(self._announced.copy())
        if stream == self._base_stream:
            changes = {(sandbox_id, sandbox_id in self._base) for sandbox_id in self._base ^ sandbox_ids}
            since_s = dict.fromkeys(changes, now_s) | self._unannounced
        else:
            since_s = {}
        self._base, self._base_stream = sandbox_ids, stream
        open_s = {change: found_s for change, found_s in since_s.items() if change not in announced}
        self._unannounced = {change: found_s for change, found_s in open_s.items() if now_s - found_s < LATE_EVENT_S}
        self.missed_count += len(open_s) - len(self._unannounced)


# Keep the runtime's event stream open; every event asks for a new list of sandboxes.
#
# The stream is opened before the first list that counts, and again whenever it breaks. A runtime without events is asked for them
# again every 5 min: it may be upgraded in place. Nothing else is concluded from an event (docs/datastore.md, Sources).


STREAM = ("events",)
"""Key of the agenda: pauses before a stream that broke is opened again, by the schedule of a service of this node. A list that
succeeds after one that failed ends a pause early; a stream that lasted as long as the longest one starts over."""

UNSUPPORTED_RETRY_S = 300.0
"""Pause before a runtime without events is asked for them again. Ours: an upgrade in place is noticed within five minutes."""


class EventStream:
    """One subscription at a time. `wake` is called for every event, after it was noted, and for the first outcome."""

    def __init__(self, context: ServiceContext, *, runtime: Runtime, wake: Callable[[], None]) -> None:
        clock = context.clock
        self.missed_events = MissedEventDetector(clock)
        self._agenda = context.agenda
        self._runtime = runtime
        self._wake = wake
        self._said = ""
        self._clock = clock
        self._opened_monotonic_s = 0.0
        self.has_outcome = False
        self.loop = Loop("events", self.turn, health=context.health, clock=clock, cancel=runtime.cancel_events)

    def turn(self) -> float:
        """Hold one subscription until it breaks. Returns: seconds until the next one."""
        is_supported = True
        try:
            for event in self._runtime.events():
                if self.loop.is_stopped:
                    break
                if event.kind is EventKind.SUBSCRIBED:
                    self._opened_monotonic_s = self._clock.monotonic()
                    self.missed_events.on_open()
                    self._say("the event stream is open")
                    self.loop.recovered()
                else:
                    self.missed_events.on_event(event)
                self.has_outcome = True
                self._wake()
        except EventsUnsupportedError as error:
            is_supported = False
            self._say(f"no events: {log_text(error)}")
        except IpamError as error:
            self._say(f"the event stream is not open: {log_text(error)}")
        finally:
            if was_open := self.missed_events.is_open:
                if self._clock.monotonic() - self._opened_monotonic_s >= NODE.longest_s:
                    self._agenda.clear(STREAM)
                self.missed_events.on_close()
            is_first, self.has_outcome = not self.has_outcome, True
            if was_open or is_first:
                self._wake()  # what broke the stream may have changed the list
        return self._agenda.put_off(STREAM, NODE) if is_supported else UNSUPPORTED_RETRY_S

    def _say(self, sentence: str) -> None:
        if sentence != self._said and not self.loop.is_stopped:
            self._said = sentence
            log.info("container runtime state=%s", sentence)


FIRST_RETRY_S = 0.5
"""While the start waits for the first list. Ours: a refused call."""

RELIST_WITH_EVENTS_S = 60.0
RELIST_WITHOUT_EVENTS_S = LIST_INTERVAL_S
"""Ours: with events a list only confirms them; without, a sandbox that vanished is noticed within seconds (docs/adr/0013)."""

RELIST_UNREACHABLE_S = 2.0
"""After a list that failed. Ours: a restarted runtime is noticed within seconds, for one refused call every 2 s."""

LIST_GAP_S = 1.0
"""Least time from the start of one list to the next, or twice the duration of a list if that is longer. Ours: after a quiet
second an event causes a list at once; a busy node is listed once a second, not once per event."""

SUBSCRIBE_PATIENCE_S = 5.0
"""How long the first list waits for the stream. Ours: twice the adapter's own deadline for it; then polling has to do."""

REAP_DEADLINE_S = 10.0

FAILPOINTS = ("reap.judged", "reap.done")


class RuntimeReconciler(Service):
    """Lists sandboxes, asks the judge, and reaps. `first_list`: sandboxes by ID, for the start; None until the runtime answered.

    Nothing is judged before `begin`: the first turns only ask for that list.
    """

    def __init__(
        self,
        context: ServiceContext,
        *,
        runtime: Runtime,
        detach: DetachService,
        quarantine: QuarantineService,
        imported: Import,
        learned: Callable[[RuntimeInfo], None] = lambda _: None,
    ) -> None:
        """`learned` takes which runtime has answered."""
        self._imported = imported
        self._learned = learned
        super().__init__(context)
        self._runtime = runtime
        self._detach = detach
        self._judge = quarantine.judge
        self._quarantine_service = quarantine
        self.loop = Loop("runtime", self.turn, health=context.health, clock=context.clock)
        self.first_list: dict[str, Sandbox] | None = None
        self._is_begun = False
        self._patience_deadline = 0.0
        self._seen: frozenset[str] | None = None
        self._listed_monotonic_s: float | None = None
        self._detail = "not listed yet"
        self._reachable = False
        self._stream = EventStream(context, runtime=runtime, wake=self.loop.wake)
        self.events = self._stream.loop
        self._odd = OddObjects(context.health, work="reaping")

    def view(self) -> RuntimeView:
        """What is known of the runtime now."""
        age = self._clock.monotonic() - self._listed_monotonic_s if self._listed_monotonic_s is not None else -1.0
        count = len(self._seen) if self._seen is not None else 0
        events = self._stream.missed_events
        return RuntimeView(self._reachable, events.is_open, count, age, self._detail, events.missed_count)

    def begin(self) -> None:
        """The start is over: judge from now on."""
        self._patience_deadline = self._clock.monotonic() + SUBSCRIBE_PATIENCE_S
        self._is_begun = True
        self.loop.wake()

    def turn(self) -> float | None:
        """Reconcile after the first subscription, every event and every interval. Returns: seconds until the next list."""
        began = self._clock.monotonic()
        if self._is_begun and not self._stream.has_outcome and began < self._patience_deadline:
            return self._patience_deadline - began
        if self.first_list is None and not self._look_first():
            return RELIST_UNREACHABLE_S if self._is_begun else FIRST_RETRY_S
        if not self._is_begun:
            return None
        self.reconcile_once()
        took_s = self._clock.monotonic() - began
        gap_s = max(LIST_GAP_S - took_s, took_s)
        self.loop.pause(gap_s)  # an event meanwhile asks for another list
        return max(self.interval_s() - took_s - gap_s, 0.0)

    def _look_first(self) -> bool:
        """Ask for the runtime's version and a complete list. Returns: whether both were answered."""
        with self._health.stage("cri") as stage:
            try:
                self._learned(self._runtime.info())
                self.first_list = {sandbox.container_id: sandbox for sandbox in self._runtime.sandboxes()}
            except RuntimeUnreachableError as error:
                self._refuse(log_text(error))
                stage.degrade(self._detail)
                return False
            self._health.report("cri", "")
            stage.detail = counted(len(self.first_list), "sandbox")
            return True

    def list_soon(self) -> None:
        """List now, or as soon as the gap between two lists allows. For any thread."""
        self.loop.wake()

    def interval_s(self) -> float:
        """How long until the next list if nothing happens."""
        if not self._reachable:
            return RELIST_UNREACHABLE_S
        return RELIST_WITH_EVENTS_S if self._stream.missed_events.is_open else RELIST_WITHOUT_EVENTS_S

    def reconcile_once(self) -> list[AttachmentKey]:
        """List once, judge every attachment that is old enough for this list, and reap; returns what was reaped."""
        attachments = self._datastore.attachments()
        listed = self._list(attachments)
        if listed is None:
            return []
        for veth in self._imported.look_again(listed):
            if veth.address is not None and self._datastore.address(veth.address) is None:
                self._quarantine_service.remember_unplaced(veth)
        self._judge.look(attachments, listed, unrecorded=self._quarantine_service.wired_sandboxes())
        self._quarantine_service.resolve(listed)
        suspects = self._judge.suspects(attachments)
        survey = self._quarantine_service.survey() if suspects else None
        self._odd.keep_only(str(attachment.key) for attachment in suspects)
        reaped = []
        for attachment in suspects:
            with self._odd.skip(str(attachment.key)):
                if self._decide(attachment, listed, survey):
                    reaped.append(attachment.key)
        return reaped

    def _list(self, attachments: tuple[Attachment, ...]) -> dict[str, Sandbox] | None:
        """A complete, plausible list of sandboxes by ID, or None: then nothing is judged (I11)."""
        stream = self._stream.missed_events.before_list()
        try:
            sandboxes = self._runtime.sandboxes()
        except RuntimeUnreachableError as error:
            self._reachable = False
            self._refuse(log_text(error))
            return None
        listed: dict[str, Sandbox] = {sandbox.container_id: sandbox for sandbox in sandboxes}
        if not self._reachable and self._listed_monotonic_s is not None:
            self.events.wake()  # subscribe again now
        self._reachable = True
        self._seen, self._listed_monotonic_s = frozenset(listed), self._clock.monotonic()
        self._stream.missed_events.on_list(self._seen, stream=stream)
        missing_count = self._judge.missing_count(attachments, listed)
        if missing_count > 1:
            self._refuse(f"implausible: none of {missing_count} wired sandboxes is in a list of {len(listed)}")
            return None
        self._detail = counted(len(listed), "sandbox")
        self._health.report("cri", "")
        return listed

    def _refuse(self, why: str) -> None:
        """There is no list to judge by (I11)."""
        self._detail = why
        self._health.report("cri", f"CRI: {why}; nothing is reaped")

    def _decide(self, attachment: Attachment, listed: Collection[str], survey: KernelSurvey | None) -> bool:
        """Judge one attachment and reap it if that is the verdict. Raises: whatever refuses; it is kept then."""
        _, judgement = self._judge.judge_attachment(attachment, listed=listed, survey=survey)
        if judgement.verdict is Verdict.KEEP:
            self._judge.record_kept(attachment.key, judgement)
            return False
        detail = "; ".join(judgement.reasons)
        self._failpoint("reap.judged")
        self._detach.detach_sandbox(
            attachment.key,
            deadline=Deadline.after(self._clock, REAP_DEADLINE_S),
            steps=Steps(self._clock),
            reason=detail,
            event=LedgerEvent.REAPED,
        )
        self._failpoint("reap.done")
        return True

    def present_judgement(self, attachment: Attachment) -> tuple[Evidence, Judgement]:
        """Judge with what the sources say now; the runtime's part comes from the last list. Reads only."""
        return self._judge.judge_attachment(attachment, listed=self._last_list(), survey=self._quarantine_service.survey())

    def present_verdicts(self, address: IpAddress) -> list[str]:
        """Say what the verdict is now on each veth that carries a quarantined address, one sentence each. Reads only."""
        return self._quarantine_service.verdicts(address, self._last_list())

    def _last_list(self) -> frozenset[str] | None:
        return self._seen if self._reachable else None
