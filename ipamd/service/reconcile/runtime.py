"""Compare attachments with the runtime's sandboxes, and free those that are provably gone.

It subscribes to events first, then lists sandboxes again and again. An event only brings the next list forward, and a burst of
events causes one list. A list counts as evidence if it is complete, plausible and taken after the datastore was read; attachments
made later are not judged by it (whereabouts issue 162).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from ipamd.model.attachment import Attachment
from ipamd.model.errors import IpamError, NetnsError, RuntimeUnreachableError, log_text
from ipamd.model.evidence import REAP_MIN_ABSENT_LISTS, REAP_MIN_AGE, Evidence, Judgement, Presence, Verdict, judge
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import KernelSurvey
from ipamd.model.ledger import LedgerEvent
from ipamd.model.sandbox import RuntimeView, Sandbox
from ipamd.model.words import counted
from ipamd.ports import Runtime
from ipamd.service.context import ServiceContext
from ipamd.service.reconcile.events import EventStream
from ipamd.service.reconcile.quarantine import QuarantineService
from ipamd.service.request import Deadline, Steps
from ipamd.service.sandbox.detach import DetachService

RELIST_WITH_EVENTS_S = 60.0
RELIST_WITHOUT_EVENTS_S = 10.0
"""Ours: with events a list only confirms them; without, a sandbox that vanished is noticed within seconds (docs/adr/0013)."""

RELIST_UNREACHABLE_S = 2.0
"""After a list that failed. Ours: a restarted runtime is noticed within seconds, for one refused call every 2 s."""

LIST_GAP_S = 1.0
"""Least time from the start of one list to the next, or twice the duration of a list if that is longer. Ours: after a quiet
second an event causes a list at once; a busy node is listed once a second, not once per event."""

SUBSCRIBE_PATIENCE_S = 5.0
"""How long the first list waits for the stream. Ours: twice the adapter's own deadline for it; then polling has to do."""

LIST_INTERVAL_S = 10.0
"""Least time between two lists that count as successive evidence. Ours: the re-list interval without events."""

REAP_DEADLINE_S = 10.0

FAILPOINTS = ("reap.judged", "reap.done")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Absence:
    """Points of the monotonic clock: a wall clock that NTP sets at boot must not make an absence of seconds one of hours."""

    began_monotonic_s: float
    last_counted_monotonic_s: float
    list_count: int


class RuntimeReconciler:
    """Lists sandboxes, counts absences, asks `judge`, and reaps. `run` and `run_events` are thread bodies."""

    def __init__(
        self, context: ServiceContext, *, runtime: Runtime, detach: DetachService, quarantine: QuarantineService
    ) -> None:
        self._failpoint = context.failpoint
        self._runtime = runtime
        self._datastore = context.datastore
        self._wiring = context.wiring
        self._detach = detach
        self._quarantine_service = quarantine
        self._health = context.health
        self._clock = context.clock
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._absences: dict[AttachmentKey, _Absence] = {}
        self._seen: frozenset[str] | None = None
        self._listed_monotonic_s: float | None = None
        self._detail = "not listed yet"
        self._reachable = False
        self._stream = EventStream(runtime=runtime, health=context.health, clock=context.clock, wake=self._wake.set)
        self._kept: dict[AttachmentKey, tuple[str, ...]] = {}

    def view(self) -> RuntimeView:
        """What is known of the runtime now."""
        age = self._clock.monotonic() - self._listed_monotonic_s if self._listed_monotonic_s is not None else -1.0
        count = len(self._seen) if self._seen is not None else 0
        events = self._stream.missed_events
        return RuntimeView(self._reachable, events.is_open, count, age, self._detail, events.missed_count)

    def run(self) -> None:
        """Thread body: wait for the first subscription, then reconcile after every event and every interval; until `stop`."""
        self._stream.wait_for_outcome(SUBSCRIBE_PATIENCE_S)
        while not self._stopped.is_set():
            self._wake.clear()  # an event during the list asks for another one
            began = self._clock.monotonic()
            try:
                self.reconcile_once()
            except Exception as error:  # noqa: BLE001  # top of a loop: it must outlive any one failure
                self._health.record_error("runtime", error)
                log.warning("the runtime reconciler continues after an error: %s", log_text(error))
            took_s = self._clock.monotonic() - began
            gap_s = max(LIST_GAP_S - took_s, took_s)
            self._stopped.wait(gap_s)
            self._wake.wait(max(self.interval_s() - took_s - gap_s, 0.0))

    def run_events(self) -> None:
        """Thread body: hold the event stream open; until `stop`."""
        self._stream.run()

    def stop(self) -> None:
        """End both threads."""
        self._stopped.set()
        self._stream.stop()
        self._wake.set()

    def interval_s(self) -> float:
        """How long until the next list if nothing happens."""
        if not self._reachable:
            return RELIST_UNREACHABLE_S
        return RELIST_WITH_EVENTS_S if self._stream.missed_events.is_open else RELIST_WITHOUT_EVENTS_S

    def reconcile_once(self) -> list[AttachmentKey]:
        """List once, judge every attachment that is old enough for this list, and reap; returns what was reaped."""
        attachments = self._datastore.attachments()
        listed = self._list(attachments)
        suspects = self._count_absences(attachments, listed)
        survey = self._survey() if suspects else None
        if listed is not None:
            self._quarantine_service.resolve_listed(listed)
        return [attachment.key for attachment in suspects if self._decide(attachment, listed, survey)]

    def _list(self, attachments: tuple[Attachment, ...]) -> dict[str, Sandbox] | None:
        """A complete, plausible list of sandboxes by ID, or None: then nothing is judged (I11)."""
        stream = self._stream.missed_events.before_list()
        try:
            sandboxes = self._runtime.sandboxes()
        except RuntimeUnreachableError as error:
            self._reachable, self._detail = False, log_text(error)
            self._health.set_condition("cri", f"CRI: {log_text(error)}; nothing is reaped")
            return None
        listed: dict[str, Sandbox] = {sandbox.container_id: sandbox for sandbox in sandboxes}
        if not self._reachable and self._listed_monotonic_s is not None:
            self._stream.runtime_is_back()
        self._reachable = True
        self._seen, self._listed_monotonic_s = frozenset(listed), self._clock.monotonic()
        self._stream.missed_events.on_list(self._seen, stream=stream)
        missing_count = self._missing_count(attachments, listed)
        if missing_count > 1:
            self._detail = f"implausible: none of {missing_count} wired sandboxes is in a list of {len(listed)}"
            self._health.set_condition("cri", f"CRI: {self._detail}; nothing is reaped")
            return None
        self._detail = counted(len(listed), "sandbox")
        self._health.clear_condition("cri")
        return listed

    def _missing_count(self, attachments: tuple[Attachment, ...], listed: Collection[str]) -> int:
        """Count the wired sandboxes, recorded or quarantined, if a list has none of them: such a list is not plausible. Else 0.

        The kernel is asked only if the answer matters: attachments are old enough to be judged, or addresses are quarantined.
        """
        if any(attachment.key.container_id in listed for attachment in attachments):
            return 0
        oldest_at = min((attachment.created_at for attachment in attachments), default=self._clock.now())
        is_settled = len(attachments) > 1 and self._clock.now() - oldest_at >= REAP_MIN_AGE
        quarantined_count = self._datastore.counts().quarantined
        if not is_settled and quarantined_count < 2:
            return 0
        survey = self._survey()
        if survey is None:
            return len(attachments) + quarantined_count
        wired = [veth for veth in survey.veths if not veth.is_dying]
        if any(veth.key is not None and veth.key.container_id in listed for veth in wired):
            return 0
        return len(wired)

    def _count_absences(self, attachments: tuple[Attachment, ...], listed: Collection[str] | None) -> list[Attachment]:
        """Count the lists that lack each attachment; returns the attachments that enough lists lack."""
        if listed is None:
            return []
        monotonic = self._clock.monotonic()
        absent = [attachment for attachment in attachments if attachment.key.container_id not in listed]
        self._absences = {a.key: self._absences[a.key] for a in absent if a.key in self._absences}
        self._kept = {a.key: self._kept[a.key] for a in absent if a.key in self._kept}
        for attachment in absent:
            absence = self._absences.get(attachment.key)
            if absence is None:
                self._absences[attachment.key] = _Absence(monotonic, monotonic, 1)
            elif monotonic - absence.last_counted_monotonic_s >= LIST_INTERVAL_S:
                absence.last_counted_monotonic_s, absence.list_count = monotonic, absence.list_count + 1
        return [a for a in absent if self._absences[a.key].list_count >= REAP_MIN_ABSENT_LISTS]

    def _decide(self, attachment: Attachment, listed: Collection[str] | None, survey: KernelSurvey | None) -> bool:
        judgement = judge(self.evidence(attachment, listed, survey), now=self._clock.now())
        if judgement.verdict is Verdict.KEEP:
            self._note_kept(attachment.key, judgement)
            return False
        detail = "; ".join(judgement.reasons)
        self._failpoint("reap.judged")
        try:
            self._detach.detach_sandbox(
                attachment.key,
                deadline=Deadline.after(self._clock, REAP_DEADLINE_S),
                steps=Steps(self._clock),
                reason=detail,
                event=LedgerEvent.REAPED,
            )
        except IpamError as error:
            self._health.record_error(f"reap of {attachment.key}", error)
            log.warning("sandbox %s is reaped later: %s", attachment.key, log_text(error))
            return False
        self._failpoint("reap.done")
        log.info("reaped sandbox %s (%s): %s", attachment.key, attachment.address, detail)
        return True

    def present_evidence(self, attachment: Attachment) -> Evidence:
        """Collect what the sources say now; the runtime's part comes from the last list."""
        listed = self._seen if self._reachable else None
        return self.evidence(attachment, listed, self._survey())

    def evidence(self, attachment: Attachment, listed: Collection[str] | None, survey: KernelSurvey | None) -> Evidence:
        """Collect what every source says of one attachment."""
        absence = self._absences.get(attachment.key)
        absent_s = self._clock.monotonic() - absence.began_monotonic_s if absence else 0.0
        host_veth = _veth_presence(attachment, survey)
        if listed is None:
            runtime = Presence.UNKNOWN
        else:
            runtime = Presence.PRESENT if attachment.key.container_id in listed else Presence.ABSENT
        return Evidence(
            attached_at=attachment.created_at,
            runtime=runtime,
            absent_list_count=absence.list_count if absence else 0,
            absent_since=self._clock.now() - timedelta(seconds=absent_s) if absence else None,
            netns=self._netns(attachment, host_veth),
            host_veth=host_veth,
        )

    def _netns(self, attachment: Attachment, host_veth: Presence) -> Presence:
        if not attachment.netns:
            return host_veth  # adopted, its path is not known; a veth pair dies with its namespace
        try:
            identity = self._wiring.identify_netns(attachment.netns)
        except NetnsError:
            return Presence.ABSENT
        except IpamError:
            return Presence.UNKNOWN
        return Presence.PRESENT if identity == attachment.netns_identity else Presence.ABSENT

    def _survey(self) -> KernelSurvey | None:
        try:
            return self._wiring.survey()
        except IpamError as error:
            log.info("the kernel could not be surveyed, nothing is reaped now: %s", log_text(error))
            return None

    def _note_kept(self, key: AttachmentKey, judgement: Judgement) -> None:
        """Record the reasons to keep only when their kinds change, not after every list."""
        kinds = tuple(reason.split(" ")[0] for reason in judgement.reasons)
        if self._kept.get(key) == kinds:
            return
        self._kept[key] = kinds
        with self._datastore.transaction() as uow:
            uow.note(LedgerEvent.KEPT, key=key, detail="; ".join(judgement.reasons))


def _veth_presence(attachment: Attachment, survey: KernelSurvey | None) -> Presence:
    if survey is None:
        return Presence.UNKNOWN
    names = {veth.name for veth in survey.veths if not veth.is_dying}
    return Presence.PRESENT if attachment.host_veth in names else Presence.ABSENT
