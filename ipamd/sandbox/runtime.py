"""Compare attachments with the runtime's sandboxes, and free the attachments whose sandboxes are provably gone.

The reconciler subscribes to events first, then lists sandboxes again and again. An event only makes the next list come earlier, and a
burst of events causes one list. A list counts as evidence if it is complete, plausible and requested after the datastore was read.
Attachments made later are not judged by it (whereabouts issue 162).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline, StepTimer
from ipamd.core.failure_isolation import FailureIsolation
from ipamd.core.loop import Loop
from ipamd.model.attachment import Attachment
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.errors import RuntimeUnreachableError, log_text
from ipamd.model.evidence import Evidence, Judgement, SandboxVerdict
from ipamd.model.family import IpAddress
from ipamd.model.history import LedgerEvent
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import KernelSurvey
from ipamd.model.sandbox import RuntimeInfo, RuntimeView, Sandbox
from ipamd.model.words import counted
from ipamd.ports.aws_node import Import
from ipamd.ports.runtime import Runtime
from ipamd.sandbox.detach import DetachService
from ipamd.sandbox.event_stream import EventStream
from ipamd.sandbox.judge import LIST_INTERVAL_S
from ipamd.sandbox.quarantine import QuarantineService

FIRST_RETRY_S = 0.5
"""Pause in seconds between attempts while the start waits for the first list. Ours: short, because an attempt costs only one refused
call."""

RELIST_WITH_EVENTS_S = 60.0
"""Seconds between two lists while the event stream is open. Ours: rare lists are enough, because a list only confirms what the events
have announced."""

RELIST_WITHOUT_EVENTS_S = LIST_INTERVAL_S
"""Seconds between two lists without an event stream. Ours: the lists reveal within seconds that a sandbox is gone (docs/adr/0013)."""

RELIST_REPEATED_S = LIST_INTERVAL_S + 0.5
"""Seconds until the next list if a list lacks a sandbox whose pod has another sandbox. A second list may prove that the sandbox is
gone. Ours: a little more than `LIST_INTERVAL_S`, so that both lists count."""

RELIST_UNREACHABLE_S = 2.0
"""Pause in seconds after a failed list. Ours: a restarted runtime is noticed within seconds, at the cost of one refused call every 2
s.
"""

LIST_GAP_S = 1.0
"""Least number of seconds from the start of one list to the start of the next. If a list takes more than half of this time, the next
one starts after twice the duration of the list. Ours: after a quiet second an event causes a list at once. On a busy node there is one
list a second, and not one for each event."""

SUBSCRIBE_PATIENCE_S = 5.0
"""How many seconds the first list waits for the event stream. If no stream is open then, the lists begin without one. Ours: the
adapter waits at most 2.2 s until it knows whether the stream is open."""

REAP_WAIT_S = 1.0
"""How many seconds a reap waits for another operation on the same sandbox. If that is not enough, the reap is tried again at the next
list. Ours: the time is short, because the next list and the other reaps wait meanwhile."""

FAILPOINTS = ("reap.judged", "reap.done")


class RuntimeReconciler(Service):
    """Asks the runtime for the list of its sandboxes again and again, has the attachments judged by it, and reaps.

    `first_list`: the sandboxes in the runtime's first list, by container ID, for the start; None until the runtime has answered.
    `events`: the loop that keeps the event stream open.

    Before `begin` is called, nothing is judged, and the turns only request the first list.
    """

    def __init__(
        self,
        context: ServiceContext,
        *,
        runtime: Runtime,
        detach: DetachService,
        quarantine: QuarantineService,
        imported: Import,
        on_info: Callable[[RuntimeInfo], None] = lambda _: None,
    ) -> None:
        """`on_info`: called with name, version and socket of the runtime after it has answered."""
        self._imported = imported
        self._on_info = on_info
        super().__init__(context)
        self._runtime = runtime
        self._detach = detach
        self._judge = quarantine.judge
        self._quarantine_service = quarantine
        self._unlisted = context.health.claim("cri")
        self.loop = Loop("runtime", self.turn, health=context.health, clock=context.clock)
        self.first_list: dict[str, Sandbox] | None = None
        self._is_begun = False
        self._is_second_list_due = False
        self._patience_deadline = 0.0
        self._listed_count = 0
        # Container IDs of the last list; None if that list was not plausible, or if the runtime did not answer.
        self._believed: frozenset[str] | None = None
        self._believed_monotonic_s = 0.0
        self._listed_monotonic_s: float | None = None
        self._detail = "not listed yet"
        self._reachable = False
        self._stream = EventStream(context, runtime=runtime, wake=self.loop.wake)
        self.events = self._stream.loop
        self._failures = FailureIsolation(context.health, work="reaping")

    def view(self) -> RuntimeView:
        """Return the present state of the connection to the runtime."""
        age = self._clock.monotonic() - self._listed_monotonic_s if self._listed_monotonic_s is not None else -1.0
        events = self._stream.missed_events
        return RuntimeView(self._reachable, events.is_open, self._listed_count, age, self._detail, events.missed_count)

    def begin(self) -> None:
        """Begin to judge sandboxes. The daemon calls it when its start has reconciled datastore, kernel and runtime."""
        self._patience_deadline = self._clock.monotonic() + SUBSCRIBE_PATIENCE_S
        self._is_begun = True
        self.loop.wake()

    def turn(self) -> float | None:
        """Reconcile by a new list. Before `begin` is called, only request the first list.

        Returns: seconds until the next turn, which an event ends early; None if the next turn comes only with `begin`.
        """
        began = self._clock.monotonic()
        if self._is_begun and not self._stream.has_outcome and began < self._patience_deadline:
            return self._patience_deadline - began
        if self.first_list is None and not self._request_first_list():
            return RELIST_UNREACHABLE_S if self._is_begun else FIRST_RETRY_S
        if not self._is_begun:
            return None
        self.reconcile_once()
        took_s = self._clock.monotonic() - began
        gap_s = max(LIST_GAP_S - took_s, took_s)
        self.loop.pause(gap_s)  # an event during the pause causes another list
        return max(self.interval_s() - took_s - gap_s, 0.0)

    def _request_first_list(self) -> bool:
        """Request the runtime's version and a complete list. Returns: whether the runtime answered both requests."""
        try:
            self._on_info(self._runtime.info())
            self.first_list = {sandbox.container_id: sandbox for sandbox in self._runtime.sandboxes()}
        except RuntimeUnreachableError as error:
            self._discard_list(log_text(error))
            return False
        self._unlisted.report(None)
        return True

    def list_soon(self) -> None:
        """Request a list now, or as soon as `LIST_GAP_S` allows. Safe from any thread."""
        self.loop.wake()

    def interval_s(self) -> float:
        """Return the seconds until the next list if no event comes."""
        if not self._reachable:
            return RELIST_UNREACHABLE_S
        if self._is_second_list_due:
            return RELIST_REPEATED_S
        return RELIST_WITH_EVENTS_S if self._stream.missed_events.is_open else RELIST_WITHOUT_EVENTS_S

    def reconcile_once(self) -> list[AttachmentKey]:
        """Ask the runtime once for its sandboxes, and reap the attachments that are gone according to this list and earlier ones.

        The same list decides about quarantined addresses. An attachment is judged if it is absent from enough lists
        (`SandboxJudge.suspects`).
        Returns: the keys that were reaped; [] if the runtime gave no plausible list.
        """
        attachments = self._datastore.attachments()
        listed = self._list(attachments)
        if listed is None:
            return []
        for veth in self._imported.retry_unnamed(listed):
            if veth.address is not None and self._datastore.address(veth.address) is None:
                self._quarantine_service.remember_unplaced(veth)
        self._judge.record_list(attachments, listed, unrecorded=self._quarantine_service.wired_sandboxes())
        self._quarantine_service.resolve(listed)
        self._is_second_list_due = self._judge.is_second_list_due(attachments, listed)
        suspects = self._judge.suspects(attachments)
        survey = self._quarantine_service.survey() if suspects else None
        self._failures.retain(str(attachment.key) for attachment in suspects)
        reaped = []
        for attachment in suspects:
            with self._failures.isolate(str(attachment.key)):
                if self._decide(attachment, listed, survey):
                    reaped.append(attachment.key)
        return reaped

    def _list(self, attachments: tuple[Attachment, ...]) -> dict[str, Sandbox] | None:
        """Return a complete, plausible list of sandboxes by container ID.

        Returns None if there is none; nothing is judged then (I11).
        """
        stream = self._stream.missed_events.before_list()
        began_monotonic_s = self._clock.monotonic()
        try:
            sandboxes = self._runtime.sandboxes()
        except RuntimeUnreachableError as error:
            self._reachable = False
            self._discard_list(log_text(error))
            return None
        listed: dict[str, Sandbox] = {sandbox.container_id: sandbox for sandbox in sandboxes}
        if not self._reachable and self._listed_monotonic_s is not None:
            self.events.wake()  # subscribe again now
        self._reachable = True
        self._listed_count, self._listed_monotonic_s = len(listed), self._clock.monotonic()
        missing_count = self._judge.missing_count(attachments, listed)
        if missing_count > 1:
            self._discard_list(f"implausible: none of {missing_count} wired sandboxes is in a list of {len(listed)}")
            return None
        self._believed, self._believed_monotonic_s = frozenset(listed), began_monotonic_s
        self._stream.missed_events.on_list(self._believed, stream=stream)
        self._detail = counted(len(listed), "sandbox")
        self._unlisted.report(None)
        return listed

    def _discard_list(self, why: str) -> None:
        """Discard the last plausible list, so that `ipamctl explain` does not judge by an old list (I11), and report the reason."""
        self._believed = None
        self._detail = why
        self._unlisted.report(problem(ConditionCode.RUNTIME_NOT_BELIEVED, cause=why))

    def _decide(self, attachment: Attachment, listed: Collection[str], survey: KernelSurvey | None) -> bool:
        """Judge one attachment and reap it if that is the verdict. Returns: whether it was reaped.

        Raises: any error of the reap. The attachment is kept then.
        """
        _, judgement = self._judge.judge_attachment(attachment, listed=listed, survey=survey)
        if judgement.verdict is SandboxVerdict.KEEP:
            self._judge.record_kept(attachment.key, judgement)
            return False
        detail = judgement.text
        self._failpoint("reap.judged")
        self._detach.detach_sandbox(
            attachment.key,
            deadline=Deadline.after(self._clock, REAP_WAIT_S),
            steps=StepTimer(self._clock),
            reason=detail,
            event=LedgerEvent.REAPED,
        )
        self._failpoint("reap.done")
        return True

    def present_judgement(self, attachment: Attachment) -> tuple[Evidence, Judgement]:
        """Judge an attachment on the present state of the sources and the runtime's last plausible list. Changes nothing.

        A list that was requested before the attachment's ADD is no evidence about the attachment.
        """
        listed, list_age_s = self._believed, self._clock.monotonic() - self._believed_monotonic_s
        if listed is not None and attachment.key.container_id not in listed and self._judge.age_s(attachment) < list_age_s:
            listed = None
        return self._judge.judge_attachment(attachment, listed=listed, survey=self._quarantine_service.survey())

    def present_verdicts(self, address: IpAddress) -> list[str]:
        """Describe the present verdict on each unrecorded veth that has this address, one sentence each. Changes nothing."""
        return self._quarantine_service.verdicts(address, self._believed)
