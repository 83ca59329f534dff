"""Compare attachments with the runtime's sandboxes, and free those that are provably gone.

It subscribes to events first, then lists sandboxes again and again. An event only brings the next list forward, and a burst of
events causes one list. A list counts as evidence if it is complete, plausible and taken after the datastore was read; attachments
made later are not judged by it (whereabouts issue 162).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from ipaddress import IPv4Address

from ipamd.model.attachment import Attachment
from ipamd.model.errors import IpamError, RuntimeUnreachableError, log_text
from ipamd.model.evidence import Evidence, Judgement, Verdict
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import KernelSurvey
from ipamd.model.ledger import LedgerEvent
from ipamd.model.sandbox import RuntimeView, Sandbox
from ipamd.model.words import counted
from ipamd.ports import Runtime
from ipamd.service.context import ServiceContext
from ipamd.service.odd_objects import OddObjects
from ipamd.service.reconcile.events import EventStream
from ipamd.service.reconcile.imported import ImportService
from ipamd.service.reconcile.quarantine import QuarantineService
from ipamd.service.request import Deadline, Steps
from ipamd.service.sandbox.detach import DetachService
from ipamd.service.sandbox_judge import LIST_INTERVAL_S, SandboxJudge

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

log = logging.getLogger(__name__)


class RuntimeReconciler:
    """Lists sandboxes, asks the judge, and reaps. `run` and `run_events` are thread bodies."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        runtime: Runtime,
        detach: DetachService,
        judge: SandboxJudge,
        quarantine: QuarantineService,
        imported: ImportService,
    ) -> None:
        self._imported = imported
        self._failpoint = context.failpoint
        self._runtime = runtime
        self._datastore = context.datastore
        self._wiring = context.wiring
        self._detach = detach
        self._judge = judge
        self._quarantine_service = quarantine
        self._health = context.health
        self._clock = context.clock
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._seen: frozenset[str] | None = None
        self._listed_monotonic_s: float | None = None
        self._detail = "not listed yet"
        self._reachable = False
        self._stream = EventStream(runtime=runtime, health=context.health, clock=context.clock, wake=self._wake.set)
        self._odd = OddObjects(context.health, work="reaping")

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

    def list_soon(self) -> None:
        """List now, or as soon as the gap between two lists allows. For any thread."""
        self._wake.set()

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
        if listed is None:
            return []
        for veth in self._imported.look_again(listed):
            if veth.address is not None and self._datastore.address(veth.address) is None:
                self._quarantine_service.remember_unplaced(veth)
        self._judge.look(attachments, listed, unrecorded=self._quarantine_service.wired_sandboxes())
        self._quarantine_service.resolve(listed)
        suspects = self._judge.suspects(attachments)
        survey = self._survey() if suspects else None
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
            self._reachable, self._detail = False, log_text(error)
            self._health.set_condition("cri", f"CRI: {log_text(error)}; nothing is reaped")
            return None
        listed: dict[str, Sandbox] = {sandbox.container_id: sandbox for sandbox in sandboxes}
        if not self._reachable and self._listed_monotonic_s is not None:
            self._stream.runtime_is_back()
        self._reachable = True
        self._seen, self._listed_monotonic_s = frozenset(listed), self._clock.monotonic()
        self._stream.missed_events.on_list(self._seen, stream=stream)
        missing_count = self._judge.missing_count(attachments, listed)
        if missing_count > 1:
            self._detail = f"implausible: none of {missing_count} wired sandboxes is in a list of {len(listed)}"
            self._health.set_condition("cri", f"CRI: {self._detail}; nothing is reaped")
            return None
        self._detail = counted(len(listed), "sandbox")
        self._health.clear_condition("cri")
        return listed

    def _decide(self, attachment: Attachment, listed: Collection[str], survey: KernelSurvey | None) -> bool:
        """Judge one attachment and reap it if that is the verdict. Raises: whatever refuses; it is kept then."""
        judgement = self._judge.judge_attachment(attachment, listed=listed, survey=survey)
        if judgement.verdict is Verdict.KEEP:
            self._judge.note_kept(attachment.key, judgement)
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
        log.info("reaped sandbox %s (%s): %s", attachment.key, attachment.address, detail)
        return True

    def present_judgement(self, attachment: Attachment) -> tuple[Evidence, Judgement]:
        """Judge with what the sources say now; the runtime's part comes from the last list. Reads only."""
        evidence = self._judge.evidence(attachment, listed=self._last_list(), survey=self._survey())
        return evidence, self._judge.judge_evidence(evidence)

    def present_verdicts(self, address: IPv4Address) -> list[str]:
        """Say what the verdict is now on each veth that carries a quarantined address, one sentence each. Reads only."""
        survey = self._survey()
        return [] if survey is None else self._quarantine_service.verdicts(address, survey, self._last_list())

    def _last_list(self) -> frozenset[str] | None:
        return self._seen if self._reachable else None

    def _survey(self) -> KernelSurvey | None:
        try:
            return self._wiring.survey()
        except IpamError as error:
            log.info("the kernel could not be surveyed, nothing is reaped now: %s", log_text(error))
            return None
