"""Follow the runtime: subscribe first, list second, re-list for ever, and free what is provably gone (design 4).

An event only shortens the time to the next list. A list counts for a verdict when it is complete, plausible and taken after the
datastore was read; attachments made later are not judged by it (whereabouts #162).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from ipamd.model.attachment import Attachment
from ipamd.model.errors import EventsUnsupportedError, IpamError, NetnsError, RuntimeUnreachableError
from ipamd.model.evidence import Evidence, Judgement, Presence, Verdict, judge
from ipamd.model.ids import AttachmentKey
from ipamd.model.ledger import LedgerEvent
from ipamd.model.sandbox import KernelSurvey, Sandbox
from ipamd.ports import Clock, Datastore, Failpoint, Runtime, Wiring, no_failpoint
from ipamd.service.adopt import AdoptionService
from ipamd.service.deadline import Deadline
from ipamd.service.detach import DetachService
from ipamd.service.health import Health, log_text
from ipamd.service.steps import Steps

RELIST_WITH_EVENTS_S = 60.0
RELIST_WITHOUT_EVENTS_S = 10.0
"""Source: design 4, Events."""

LIST_INTERVAL_S = 10.0
"""Least time between two lists that count as successive evidence. Ours: the re-list interval without events."""

REAP_DEADLINE_S = 10.0
RESUBSCRIBE_S = 5.0

FAILPOINTS = ("reap.judged", "reap.done")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FollowerView:
    """What the follower knows of the runtime, for ipamctl and metrics. `list_age_s` is negative before the first list."""

    reachable: bool
    events: bool
    sandbox_count: int
    list_age_s: float
    detail: str
    missed_events_count: int


@dataclass(slots=True)
class _Absence:
    since: datetime
    last_counted: float
    list_count: int


class Follower:
    """Lists sandboxes, keeps count of absences, and asks `judge`."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        datastore: Datastore,
        wiring: Wiring,
        detach: DetachService,
        adoption: AdoptionService,
        health: Health,
        clock: Clock,
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        self._failpoint = failpoint
        self._runtime = runtime
        self._datastore = datastore
        self._wiring = wiring
        self._detach = detach
        self._adoption = adoption
        self._health = health
        self._clock = clock
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._absences: dict[AttachmentKey, _Absence] = {}
        self._seen: frozenset[str] | None = None
        self._announced: set[str] = set()
        self._announced_lock = threading.Lock()
        self._listed_at: float | None = None
        self._has_events = False
        self._detail = "not listed yet"
        self._reachable = False
        self._missed_events_count = 0
        self._kept: dict[AttachmentKey, tuple[str, ...]] = {}

    def view(self) -> FollowerView:
        """What is known of the runtime now."""
        age = self._clock.monotonic() - self._listed_at if self._listed_at is not None else -1.0
        count = len(self._seen) if self._seen is not None else 0
        return FollowerView(self._reachable, self._has_events, count, age, self._detail, self._missed_events_count)

    def run(self) -> None:
        """Thread body: list, judge, sleep until an event or the interval; until `stop`."""
        while not self._stopped.is_set():
            try:
                self.look()
            except Exception as error:  # noqa: BLE001  # top of a loop: it must outlive any one failure
                self._health.record_error("follow", error)
                log.warning("following the runtime goes on after an error: %s", log_text(error))
            self._wake.wait(RELIST_WITH_EVENTS_S if self._has_events else RELIST_WITHOUT_EVENTS_S)
            self._wake.clear()

    def run_events(self) -> None:
        """Thread body: hold the event stream open and turn every event into "look again"; until `stop`."""
        while not self._stopped.is_set():
            try:
                for event in self._runtime.events():
                    self._has_events = True
                    with self._announced_lock:
                        self._announced.add(event.container_id)
                    self._wake.set()
            except EventsUnsupportedError as error:
                self._has_events = False
                log.info("no events from the runtime, re-listing every %.0f s: %s", RELIST_WITHOUT_EVENTS_S, log_text(error))
                return
            except RuntimeUnreachableError as error:
                self._has_events = False
                if not self._stopped.is_set():
                    log.info("event stream broke and is opened again: %s", log_text(error))
            self._stopped.wait(RESUBSCRIBE_S)
            self._wake.set()

    def stop(self) -> None:
        """End both threads."""
        self._stopped.set()
        self._runtime.cancel_events()
        self._wake.set()

    def look(self) -> list[AttachmentKey]:
        """List once, judge every attachment that is old enough for this list, and reap; returns what was reaped."""
        attachments = self._datastore.attachments()
        listed = self._list(attachments)
        suspects = self._count_absences(attachments, listed)
        survey = self._survey() if suspects else None
        if listed is not None:
            self._adoption.settle_quarantine(listed)
        return [attachment.key for attachment in suspects if self._decide(attachment, listed, survey)]

    def _list(self, attachments: tuple[Attachment, ...]) -> dict[str, Sandbox] | None:
        """A complete, plausible list of sandboxes by ID, or None: then nothing is judged (I11)."""
        try:
            sandboxes = self._runtime.sandboxes()
        except RuntimeUnreachableError as error:
            self._reachable, self._detail = False, log_text(error)
            self._health.lack("cri", f"CRI: {log_text(error)}; nothing is reaped")
            return None
        listed: dict[str, Sandbox] = {sandbox.container_id: sandbox for sandbox in sandboxes}
        self._reachable = True
        self._note_missed_events(sandboxes)
        self._seen, self._listed_at = frozenset(listed), self._clock.monotonic()
        if len(attachments) > 1 and not any(attachment.key.container_id in listed for attachment in attachments):
            survey = self._survey()
            wired_count = sum(not veth.is_dying for veth in survey.veths) if survey else len(attachments)
            if wired_count > 1:
                self._detail = f"implausible: none of {wired_count} wired sandboxes is in a list of {len(listed)}"
                self._health.lack("cri", f"CRI: {self._detail}; nothing is reaped")
                return None
        self._detail = f"{len(listed)} sandboxes"
        self._health.regain("cri")
        return listed

    def _count_absences(self, attachments: tuple[Attachment, ...], listed: Collection[str] | None) -> list[Attachment]:
        if listed is None:
            return []
        now, monotonic = self._clock.now(), self._clock.monotonic()
        absent = [attachment for attachment in attachments if attachment.key.container_id not in listed]
        self._absences = {a.key: self._absences[a.key] for a in absent if a.key in self._absences}
        self._kept = {a.key: self._kept[a.key] for a in absent if a.key in self._kept}
        for attachment in absent:
            absence = self._absences.get(attachment.key)
            if absence is None:
                self._absences[attachment.key] = _Absence(now, monotonic, 1)
            elif monotonic - absence.last_counted >= LIST_INTERVAL_S:
                absence.last_counted, absence.list_count = monotonic, absence.list_count + 1
        return absent

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
                reason=f"reaped: {detail}",
            )
        except IpamError as error:
            self._health.record_error(f"reap of {attachment.key}", error)
            log.warning("sandbox %s is reaped later: %s", attachment.key, log_text(error))
            return False
        self._failpoint("reap.done")
        log.info("reaped sandbox %s (%s): %s", attachment.key, attachment.address, detail)
        return True

    def present_evidence(self, attachment: Attachment) -> Evidence:
        """What the witnesses say now, from the last list; asks the kernel, not the runtime."""
        listed = self._seen if self._reachable else None
        return self.evidence(attachment, listed, self._survey())

    def evidence(self, attachment: Attachment, listed: Collection[str] | None, survey: KernelSurvey | None) -> Evidence:
        """Collect what every witness says of one attachment."""
        absence = self._absences.get(attachment.key)
        host_veth = _veth_presence(attachment, survey)
        if listed is None:
            runtime = Presence.UNKNOWN
        else:
            runtime = Presence.PRESENT if attachment.key.container_id in listed else Presence.ABSENT
        return Evidence(
            attached_at=attachment.created_at,
            runtime=runtime,
            absent_list_count=absence.list_count if absence else 0,
            absent_since=absence.since if absence else None,
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
            log.info("the kernel gave no complete picture, nothing is reaped now: %s", log_text(error))
            return None

    def _note_kept(self, key: AttachmentKey, judgement: Judgement) -> None:
        """Put reasons into the ledger when their kinds change, not at every look."""
        kinds = tuple(reason.split(" ")[0] for reason in judgement.reasons)
        if self._kept.get(key) == kinds:
            return
        self._kept[key] = kinds
        with self._datastore.transaction() as uow:
            uow.note(LedgerEvent.KEPT, now=self._clock.now(), key=key, detail="; ".join(judgement.reasons))

    def _note_missed_events(self, sandboxes: tuple[Sandbox, ...]) -> None:
        """Count changes that this list found and no event announced."""
        now = frozenset(sandbox.container_id for sandbox in sandboxes)
        with self._announced_lock:
            announced, self._announced = self._announced, set()
        if self._seen is not None and self._has_events:
            self._missed_events_count += len((self._seen ^ now) - announced)


def _veth_presence(attachment: Attachment, survey: KernelSurvey | None) -> Presence:
    if survey is None:
        return Presence.UNKNOWN
    names = {veth.name for veth in survey.veths if not veth.is_dying}
    return Presence.PRESENT if attachment.host_veth in names else Presence.ABSENT
