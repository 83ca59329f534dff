"""What the daemon is doing: phase, start-up stages with timings, degraded conditions, last error.

One object, read by STATUS, ipamctl, probes and metrics, so that all of them tell the same. What is kept here is bounded and safe to
print: errors quote EC2, the runtime and requests.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum

from ipamd.core.deadline import Deadline
from ipamd.model.errors import (
    DATASTORE,
    SERVICE,
    DatastoreError,
    Defect,
    IpamError,
    NotServingError,
    PluginNotAvailableError,
    defect_of,
    disk_refusal,
    log_text,
)
from ipamd.model.record import dataclass, replace
from ipamd.model.words import printable
from ipamd.ports import Clock

STATUS_GRACE_S = 30.0
"""STATUS succeeds this long after start though ADD is not served yet. Ours: a failing STATUS makes containerd report the node
NotReady (containerd pull request 11135), and a restart takes a second or two."""

START = "start"
"""Subject of the condition of a start that has stopped for good (`ipamd/lifecycle.py`)."""

REPLY_MARGIN_S = 0.5
"""Of an ADD's deadline, for its refusal. Ours."""

LOOK_S = 1.0
"""How often a waiting ADD looks whether its caller is still there. Ours; it reads memory only."""

TURN_S, TURNS_S = 0.02, 1.0
"""Between two ADDs that waited for the start, and for how long at most one of them waits for its turn. Ours: a sandbox costs the
runtime more of a processor than this; 30 of them at once had all their pods start when the last one did."""

READY = "ready"
"""Beside the phases: when the node was ready first."""

WHAT_MAX = 200
"""Characters of what was being done when an error came. Ours."""

log = logging.getLogger(__name__)


class Phase(StrEnum):
    """The life of the process."""

    STARTING = "starting"
    RESTORING = "restoring"
    SERVING = "serving"
    DRAINING = "draining"


class StageState(StrEnum):
    """The state of a start-up stage. Degraded: the daemon continues without it."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    DEGRADED = "degraded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StageReport:
    """One start-up stage."""

    name: str
    state: StageState = StageState.PENDING
    elapsed_ms: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Condition:
    """What is not as it should be, in one sentence, and since when its subject has had one. `disk`: how a disk refused, "" if none."""

    text: str
    since: datetime
    disk: str = ""


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """The last thing that went wrong; `resolved_at`: when it was over, None if it has not been seen to. `ends_with`: what tells it.

    It is over when the same thing went well. That of a request also when what `ends_with` names tells that the cause is gone: the
    next try may be long in coming. Where nothing on the node tells, the DEL of the sandbox ends it: nobody waits for it any more.
    """

    at: datetime
    what: str
    message: str
    resolved_at: datetime | None = None
    ends_with: str = ""


class Stage:
    """A stage that runs or has run; `detail` becomes its sentence in `ipamctl status`."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.elapsed_ms: float | None = None
        self.detail = ""
        self.ends_as = StageState.DONE

    def degrade(self, detail: str) -> None:
        """End the stage as degraded: the daemon continues without its result."""
        self.ends_as, self.detail = StageState.DEGRADED, detail


class Health:
    """Phase and stages; safe to use from any thread. What is one value or one copy is read without the lock.

    `awaits_first_address`: *ready* waits for the first address that can be given since the boot. `last_error`: what went wrong last
    since start; `defects`: what must never happen and did. `reached_s`: seconds from the start until a phase, or READY, was reached
    first.
    """

    def __init__(self, clock: Clock, stages: tuple[str, ...]) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._started_monotonic_s = self._patient_since_s = clock.monotonic()
        self.phase = Phase.STARTING
        self.awaits_first_address = False
        self._stages: dict[str, Stage | None] = dict.fromkeys(stages)
        self._conditions: dict[str, Condition] = {}
        self.last_error: ErrorReport | None = None
        self._is_ready = False
        self._next_turn_s = -math.inf
        self._held: dict[str, str] = {}
        self.defects: Counter[Defect] = Counter()
        self.reached_s: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Run a stage: timed, and failed if it raises (the error passes on)."""
        stage = Stage(self._clock.monotonic())
        self._set_stage(name, stage)
        try:
            yield stage
        except BaseException as error:
            stage.ends_as, stage.detail = StageState.FAILED, str(error)
            raise
        finally:
            stage.elapsed_ms = (self._clock.monotonic() - stage.began_s) * 1000
            self._set_stage(name, stage)

    def _set_stage(self, name: str, stage: Stage) -> None:
        with self._changed:
            self._stages[name] = stage
            self._changed.notify_all()

    def enter(self, phase: Phase) -> None:
        """Change the phase. Draining is never left."""
        with self._changed:
            if self.phase is not Phase.DRAINING:
                self.phase = phase
                self.reached_s.setdefault(phase, self.uptime_s())
            self._changed.notify_all()
        if phase is Phase.SERVING:
            self.resolve(SERVICE)

    def mark_ready(self) -> None:
        """Say that ADD is served, the conflist is in place, and this node could give an address in this boot."""
        with self._changed:
            self._is_ready = True
            self.reached_s.setdefault(READY, self.uptime_s())
            self._changed.notify_all()

    def hold_adds(self, subject: str, reason: str) -> None:
        """Refuse every ADD from now on, whatever the phase, and end *ready*; `serve_adds` of the same subject ends it."""
        with self._changed:
            self._held[subject] = reason
            self._changed.notify_all()

    def serve_adds(self, subject: str) -> None:
        """End what `hold_adds` began; STATUS is as patient from here as after a start."""
        with self._changed:
            self._patient_since_s = self._clock.monotonic()  # before the hold ends: STATUS reads in the other order
            self._held.pop(subject, None)
        if self.phase is Phase.SERVING and not self._held:
            self.resolve(SERVICE)

    @property
    def is_held(self) -> bool:
        """Whether no address is given, because of another daemon (`hold_adds`)."""
        return bool(self._held)

    def require_unheld(self) -> None:
        """Raise NotServingError while ADD is held; a shutdown does not stop an ADD that is under way."""
        if reasons := "; ".join(list(self._held.values())):
            raise NotServingError("vpc-ipamd gives no address now", details=reasons)

    def report(self, subject: str, problem: str, *, error: BaseException | None = None) -> None:
        """Set the condition of `subject` to a sentence, or clear it with ""; a change is logged once, an error is remembered.

        The one way in which a part says how it is: whoever finds out reports, again and again if it likes.
        """
        sentence, disk = printable(problem), disk_refusal(error)
        with self._changed:
            known = self._conditions.pop(subject, None)
            before = known.text if known else ""
            if sentence:
                since = known.since if known else self._clock.now()
                self._conditions[subject] = Condition(sentence, since, disk)
            self._changed.notify_all()  # also of a success that changes nothing: a start may wait for it
        if sentence and sentence != before:
            if error is not None:
                self.record_error(subject, error)
            # A defect needs its stack. A denied or wrong thing says all in its words.
            stack = None if disk or isinstance(error, IpamError) else error
            log.warning("condition subject=%s text=%s", subject, sentence, exc_info=stack)
        elif not sentence:
            self.resolve(subject)
            if before:
                log.info("condition ended subject=%s text=%s", subject, before)

    def wait_for(self, is_done: Callable[[], bool], timeout_s: float) -> bool:
        """Sleep until `is_done`, asked after each change of phase or stage and each report, or time is up. Returns: whether it is."""
        with self._changed:
            return self._changed.wait_for(is_done, timeout_s)

    def record_error(self, what: str, error: BaseException) -> None:
        """Remember the last error for people, and count it if it shows a defect of ours."""
        self.count_defects(defect_of(error), 1)
        self.last_error = ErrorReport(
            self._clock.now(),
            printable(what, most=WHAT_MAX),
            printable(str(error)),
            ends_with=error.ends_with if isinstance(error, IpamError) else "",
        )

    def report_refused_change(self, error: DatastoreError) -> None:
        """The datastore's disk refuses changes."""
        self.report(DATASTORE, f"{DATASTORE}: ADD and DEL fail: {log_text(error)}", error=error)

    def resolve(self, what: str, *, is_over: Callable[[], bool] = lambda: True) -> None:
        """What went wrong has gone well: the last error says so if it was of this, or of this verb, or ends with it.

        Costs a comparison; `is_over` is asked only then.
        """
        last = self.last_error
        if last is None or last.resolved_at is not None:
            return
        if (last.ends_with == what or f"{last.what} ".startswith(f"{what} ")) and is_over():
            self.last_error = replace(last, resolved_at=self._clock.now())

    def resolve_deleted(self, add: str) -> None:
        """The sandbox of this ADD was deleted: an error that nothing else on the node would end went with it."""
        last = self.last_error
        if last is not None and not last.ends_with:
            self.resolve(add)

    def count_defects(self, defect: Defect | None, count: int) -> None:
        """Count what must never happen; None is nothing."""
        if defect is not None:
            with self._changed:
                self.defects[defect] += count

    @property
    def is_ready(self) -> bool:
        """ADD is served, the conflist was written, and this node could give an address in this boot."""
        return self._is_ready and self.phase is Phase.SERVING and not self._held

    @property
    def is_ending_ready(self) -> bool:
        """It drains, and was ready: a probe that failed now would be an event of a pod that is being ended anyway."""
        return self.phase is Phase.DRAINING and self._is_ready

    def stages(self) -> list[StageReport]:
        """Start-up stages, in order; of a running one, its time and its detail so far."""
        reports, now_s = [], self._clock.monotonic()
        for name, stage in list(self._stages.items()):
            if stage is None:
                reports.append(StageReport(name))
            elif (elapsed_ms := stage.elapsed_ms) is None:
                reports.append(StageReport(name, StageState.RUNNING, (now_s - stage.began_s) * 1000, printable(stage.detail)))
            else:
                reports.append(StageReport(name, stage.ends_as, elapsed_ms, printable(stage.detail)))
        return reports

    def conditions(self) -> list[str]:
        """Degraded conditions, one sentence each."""
        return sorted(self.conditions_by_subject().values())

    def conditions_by_subject(self) -> dict[str, str]:
        """Subject of each degraded condition -> its sentence."""
        return {subject: one.text for subject, one in self.conditions_since().items()}

    def conditions_since(self) -> dict[str, Condition]:
        """Subject of each degraded condition -> its sentence, and since when."""
        with self._changed:  # a sentence that is replaced is away for a moment
            return self._conditions.copy()

    def uptime_s(self) -> float:
        """Seconds since start."""
        return self._clock.monotonic() - self._started_monotonic_s

    @property
    def is_starting(self) -> bool:
        """ADD is not served, though STATUS may still say yes: out of patience with a restart.

        A daemon whose ADD is held does not start: a restart of it changes no condition of the node (I17).
        """
        return self.phase is Phase.DRAINING or (self.phase is not Phase.SERVING and not self._held)

    def await_add_service(self, deadline: Deadline) -> None:
        """Let an ADD through, which waits for the end of the start: a pod that comes during a restart needs no second try (I17).

        Those that waited go one after the other, TURN_S apart: the first pods run while the runtime makes the next sandboxes.
        Raises: NotServingError with the phase and what is missing (I14); DeadlineError if the caller leaves.
        """
        has_waited = False
        with self._changed:
            while self.phase in (Phase.STARTING, Phase.RESTORING) and START not in self._conditions and not self._held:
                left_s = deadline.remaining_s() - REPLY_MARGIN_S
                if left_s <= 0:
                    break
                deadline.check("waiting for the end of the start")
                self._changed.wait(min(left_s, LOOK_S))
                has_waited = True
            if has_waited:
                now = self._clock.monotonic()
                turn, self._next_turn_s = max(now, self._next_turn_s), max(now, self._next_turn_s) + TURN_S
                self._changed.wait_for(lambda: self.phase is Phase.DRAINING, min(turn - now, TURNS_S, deadline.remaining_s()))
        self.require_add_service()

    def require_add_service(self) -> None:
        """Let an ADD through, or raise NotServingError with the phase and what is missing (I14)."""
        self.require_unheld()
        if (phase := self.phase) is Phase.SERVING:
            return
        if phase is Phase.DRAINING:
            raise NotServingError("vpc-ipamd is shutting down", details="its successor will take this ADD: retry")
        running = [stage.name for stage in self.stages() if stage.state is StageState.RUNNING]
        work = ", ".join(running) or "; ".join(self.conditions()) or "nothing"
        raise NotServingError(
            f"vpc-ipamd is {phase} and does not take ADD yet",
            details=f"up for {self.uptime_s():.1f} s, at work on: {work}; retry; see `ipamctl status`",
        )

    def require_status(self) -> None:
        """CNI STATUS: succeed unless, for longer than a grace, ADD has not been served or no address ever given since the boot.

        A runtime asks before the first *ready* of a boot if an earlier boot left a conflist. A pool that is empty later is no
        reason to fail: a node that is NotReady for minutes has its pods evicted; nor is a node that is being exported.
        Raises: PluginNotAvailableError.
        """
        phase, is_held = self.phase, bool(self._held)
        for_s = self._clock.monotonic() - self._patient_since_s
        if for_s <= STATUS_GRACE_S or is_held:
            return
        details = "; ".join(self.conditions()) or "see `ipamctl status`"
        if phase in (Phase.STARTING, Phase.RESTORING):
            raise PluginNotAvailableError(f"vpc-ipamd has been {phase} for {for_s:.0f} s and does not take ADD", details=details)
        if phase is Phase.SERVING and self.awaits_first_address:
            raise PluginNotAvailableError(f"vpc-ipamd has had no address to give for {for_s:.0f} s", details=details)
