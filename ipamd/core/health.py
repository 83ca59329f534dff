"""The health of the daemon: phase, start-up stages with timings, degraded conditions, last error.

STATUS, ipamctl, probes and metrics read the same object, so that they never contradict each other. All text in it is bounded and safe
to print, because errors quote EC2, the runtime and requests.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial

from ipamd.core.deadline import Deadline
from ipamd.model.condition_messages import condition_text
from ipamd.model.conditions import ConditionCode, Problem, problem
from ipamd.model.defects import Defect, defect_of
from ipamd.model.disk_refusal import disk_refusal
from ipamd.model.errors import DATASTORE, SERVICE, DatastoreError, IpamError, log_text
from ipamd.model.legs.condition_codes import LegConditionCode
from ipamd.model.record import dataclass, replace
from ipamd.model.refusals import RefusalCode, refusal
from ipamd.model.words import printable
from ipamd.ports.process import Clock

STATUS_GRACE_S = 30.0
"""For this many seconds after a start STATUS succeeds although ADD is not served yet. Ours: a restart, which takes a second or two,
must not fail STATUS, because containerd reports the node NotReady then (containerd pull request 11135)."""

START = "start"
"""Subject of the condition of a start that cannot go on (`ipamd/process/lifecycle.py`)."""

REPLY_MARGIN_S = 0.5
"""An ADD stops waiting this many seconds before its deadline, so that its refusal reaches the caller in time. Ours: far
more than an answer over the local socket takes."""

LOOK_S = 1.0
"""Longest pause, in seconds, until a waiting ADD checks again whether its caller has left. Ours: the check may be frequent, because it
only reads memory."""

TURN_S, TURNS_S = 0.02, 1.0
"""The pause between two ADDs that waited for the start, and the longest time that such an ADD waits for its turn, in seconds. Ours:
the runtime needs more processor time for a sandbox than this pause, so the pause delays little. Without it, none of the pods of 30
such ADDs started before the last ADD had ended."""

READY = "ready"
"""Key in `Health.reached_s` of the time at which the node first became ready. The other keys are phases."""

SUBJECT_MAX = 200
"""The largest number of characters of the subject of an error. Ours: the verb and the container ID of a request have some 70."""

log = logging.getLogger(__name__)


class Phase(StrEnum):
    """The phase of the daemon process.

    STARTING: the process has not begun to restore its state.
    RESTORING: the process compares its rows with kernel and runtime.
    SERVING: ADD is served.
    DRAINING: the process is about to end. DEL is served, and ADD is not.
    """

    STARTING = "starting"
    RESTORING = "restoring"
    SERVING = "serving"
    DRAINING = "draining"


class StageState(StrEnum):
    """The state of a stage of the start.

    RUNNING: the start works on the stage, or waits for its result.
    DEGRADED: the start has gone on without the result of the stage. The state does not change if the result comes later.
    """

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    DEGRADED = "degraded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage of the daemon's start, as `ipamctl status` shows it. `detail`: the result of the stage, or why it failed."""

    name: str
    state: StageState = StageState.PENDING
    elapsed_ms: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Condition:
    """The problems of one subject, in the order of their parts.

    `text`: the sentences of the problems.
    `since`: since when the subject has had a problem (aware UTC).
    `disk`: how a disk refused a write (`disk_refusal`), "" if the problem has another cause.
    """

    problems: tuple[Problem, ...]
    text: str
    since: datetime
    disk: str = ""

    @property
    def codes(self) -> tuple[ConditionCode | LegConditionCode, ...]:
        """The codes of the problems."""
        return tuple(problem.code for problem in self.problems)

    def text_about(self, subject: str) -> str:
        """Return the sentences of the problems, with this text in place of the subject."""
        return text_of(subject, self.problems)

    @property
    def next_step(self) -> str:
        """The next step of the first problem that has one; "" if none has."""
        return next((problem.next_step for problem in self.problems if problem.next_step), "")

    @property
    def advised_text(self) -> str:
        """The sentences of the problems, with the next step if there is one."""
        if self.next_step:
            return f"{self.text}; next: {self.next_step}"
        return self.text


def text_of(subject: str, problems: Iterable[Problem]) -> str:
    """Return the sentences of the problems of a subject, without repetitions."""
    sentences = [printable(condition_text(subject, problem)) for problem in problems]
    return "; ".join(dict.fromkeys(sentences))


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """The last failure.

    `at`: when it happened.
    `subject`: the work that failed.
    `message`: the text of the error.
    `resolved_at`: when the failure ended, None before.
    `ends_with`: a further event that ends the failure, as in `IpamError.ends_with`. The subject of a condition: the condition ends;
        SUPPLY: an address can be assigned again; SERVICE: ADD is served again; "": there is no such event.

    A failure ends when the same work succeeds. The failure of a request also ends with the event `ends_with`, because the next request
    may come late. The failure of an ADD without such an event ends with the DEL of the sandbox.
    """

    at: datetime
    subject: str
    message: str
    resolved_at: datetime | None = None
    ends_with: str = ""


class Stage:
    """A stage of the start, from the moment at which the stage begins.

    `elapsed_ms`: how long the stage took; None while it is running.
    `detail`: its sentence in `ipamctl status`.
    `ends_as`: the state that the stage has after its end.
    """

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.elapsed_ms: float | None = None
        self.detail = ""
        self.ends_as = StageState.DONE

    def degrade(self, detail: str) -> None:
        """End the stage as degraded: the start goes on without its result."""
        self.ends_as, self.detail = StageState.DEGRADED, detail


class ConditionHandle:
    """The right to report one condition, or one part of a condition. `Health.claim` makes the only handle for it."""

    def __init__(self, subject: str, report: Callable[[Problem | None, BaseException | None, float], None]) -> None:
        self.subject = subject
        self._report = report

    def report(self, problem: Problem | None, *, error: BaseException | None = None, age_s: float = 0.0) -> None:
        """Set the problem of this condition or part. None ends it. See `Health.report`.

        `age_s`: how long ago the problem began, which counts if the condition is new. A call to EC2 is refused for a minute before it
            fails.
        """
        self._report(problem, error, age_s)


class Health:
    """Phase, stages, conditions and last error of the daemon. Safe from any thread. Single values may be read without the lock.

    `awaits_first_address`: whether *ready* is delayed until this node can assign its first address of this boot.
    `last_error`: the last failure since the start.
    `defects`: how often each defect was seen. A defect must never happen.
    `reached_s`: by phase, or READY: seconds from the start until it was first reached.
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
        self._add_blocks: dict[str, str] = {}
        self.defects: Counter[Defect] = Counter()
        self.reached_s: dict[str, float] = {}
        self._claimed: set[tuple[str, str]] = set()
        self._parts: dict[str, dict[str, tuple[Problem, str]]] = {}
        """For each subject, and each part of its condition: the problem, and the disk's error if a refused write caused it,
        otherwise ""."""

    def claim(self, subject: str, *, part: str = "") -> ConditionHandle:
        """Claim the right to report a condition, so that no writer ends the condition of another writer.

        Args:
            part: the name of this part, if several writers report the same subject. The condition has the sentences of all parts, and
                ends when the last part has ended.
        Raises: ValueError if the condition or the part was claimed before.
        """
        with self._changed:
            if (subject, part) in self._claimed:
                raise ValueError(f"condition {subject!r} has a writer of {part or 'the whole'!r} already")
            self._claimed.add((subject, part))
        return ConditionHandle(subject, partial(self._report, subject, part))

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Run the block as a stage of the start, and measure its time.

        If the block raises, the stage has failed, and the error is raised.
        """
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
        """Change the phase. After DRAINING it does not change any more."""
        with self._changed:
            if self.phase is not Phase.DRAINING:
                self.phase = phase
                self.reached_s.setdefault(phase, self.uptime_s())
            self._changed.notify_all()
        if phase is Phase.SERVING:
            self.resolve(SERVICE)

    def mark_ready(self) -> None:
        """Record that ADD is served, the conflist is in place, and this node could assign an address in this boot."""
        with self._changed:
            self._is_ready = True
            self.reached_s.setdefault(READY, self.uptime_s())
            self._changed.notify_all()

    def block_adds(self, subject: str, reason: str) -> None:
        """Refuse every ADD in every phase, and end *ready*, until `serve_adds` is called with the same subject."""
        with self._changed:
            self._add_blocks[subject] = reason
            self._changed.notify_all()

    def serve_adds(self, subject: str) -> None:
        """End the block that `block_adds` began. STATUS succeeds for STATUS_GRACE_S then, as after a start."""
        with self._changed:
            self._patient_since_s = self._clock.monotonic()  # set before the block ends, because STATUS reads the block first
            self._add_blocks.pop(subject, None)
        if self.phase is Phase.SERVING and not self._add_blocks:
            self.resolve(SERVICE)

    @property
    def are_adds_blocked(self) -> bool:
        """Whether ADDs are blocked because of another daemon (`block_adds`)."""
        return bool(self._add_blocks)

    def require_adds_allowed(self) -> None:
        """Raise NotServingError while ADDs are blocked.

        Unlike `require_add_service`, it lets a running ADD go on during a shutdown.
        """
        reasons = "; ".join(list(self._add_blocks.values()))
        if reasons:
            raise refusal(RefusalCode.HELD, cause=reasons)

    def report(self, subject: str, problem: Problem | None, *, error: BaseException | None = None) -> None:
        """Set the condition of `subject` to a problem, or end it with None. A change is logged, and `error` becomes the last error.

        Reporting the same problem again changes nothing. If several services report one subject, each claims a part (`claim`).
        """
        self._report(subject, "", problem, error)

    def _report(self, subject: str, part: str, problem: Problem | None, error: BaseException | None, age_s: float = 0.0) -> None:
        if problem is None and subject not in self._conditions:
            self._report_success(subject)
            return
        disk = disk_refusal(error)
        with self._changed:
            before = self._conditions.get(subject)
            problems, disk_of_condition = self._compose(subject, part, problem, disk)
            condition = None
            if problems:
                since = before.since if before else self._clock.now() - timedelta(seconds=age_s)
                text = text_of(subject, problems)
                condition = self._conditions[subject] = Condition(problems, text, since, disk_of_condition)
            else:
                self._conditions.pop(subject, None)
            self._changed.notify_all()  # also if nothing changed, because a start may wait for the report
        if condition is None:
            self.resolve(subject)
            if before:
                log.info("condition ended subject=%s text=%s", subject, before.text)
        elif before is None or condition.problems != before.problems:
            self._log_condition(subject, condition.text, disk, error)

    def _report_success(self, subject: str) -> None:
        """Handle a report without a problem for a subject without a condition. Every ADD makes several such reports, so this method
        leaves out the work of `_report` that such a report does not need.

        `wait_for` is woken, because the start may wait for this report.
        """
        with self._changed:
            self._changed.notify_all()
        self.resolve(subject)

    def _log_condition(self, subject: str, sentence: str, disk: str, error: BaseException | None) -> None:
        if error is not None:
            self.record_error(subject, error)
        is_expected = bool(disk) or isinstance(error, IpamError)
        stack = None if is_expected else error  # an unexpected error is a defect and needs its stack
        log.warning("condition subject=%s text=%s", subject, sentence, exc_info=stack)

    def _compose(self, subject: str, part: str, problem: Problem | None, disk: str) -> tuple[tuple[Problem, ...], str]:
        """Update one part of a condition and combine all parts. The lock is held.

        Returns: the problems of all parts, and how a disk refused a write ("" if none did).
        """
        parts = self._parts.setdefault(subject, {})
        if problem:
            parts[part] = problem, disk
        else:
            parts.pop(part, None)
        if not parts:
            del self._parts[subject]
        disks = [refusal for _, refusal in parts.values() if refusal]
        return tuple(problem for problem, _ in parts.values()), disks[0] if disks else ""

    def wait_for(self, is_done: Callable[[], bool], timeout_s: float) -> bool:
        """Sleep until `is_done` returns true. `is_done` is called after each change of phase, stage or condition.

        Returns: False if `timeout_s` seconds have passed first.
        """
        with self._changed:
            return self._changed.wait_for(is_done, timeout_s)

    def record_error(self, subject: str, error: BaseException) -> None:
        """Record the last error, which `ipamctl status` shows, and count it if it shows a defect of ours."""
        self.count_defects(defect_of(error), 1)
        self.last_error = ErrorReport(
            self._clock.now(),
            printable(subject, most=SUBJECT_MAX),
            printable(str(error)),
            ends_with=error.ends_with if isinstance(error, IpamError) else "",
        )

    def report_refused_change(self, error: DatastoreError) -> None:
        """Report that the datastore's disk refuses changes."""
        self.report(DATASTORE, problem(ConditionCode.DATASTORE_REFUSES, cause=log_text(error)), error=error)

    def report_accepted_change(self) -> None:
        """Report that the datastore's disk accepts changes again."""
        self.report(DATASTORE, None)

    def resolve(self, subject: str, *, is_over: Callable[[], bool] = lambda: True) -> None:
        """Mark the last error as resolved if it belongs to `subject`.

        `subject`: the work that failed, as in `record_error`, or its first words, such as the verb; or the event with which the
            failure ends (`ErrorReport.ends_with`).
        `is_over`: returns whether the failure has really ended. It is called only if `subject` matches the last error.
        """
        last = self.last_error
        if last is None or last.resolved_at is not None:
            return
        if (last.ends_with == subject or f"{last.subject} ".startswith(f"{subject} ")) and is_over():
            self.last_error = replace(last, resolved_at=self._clock.now())

    def resolve_deleted(self, add: str) -> None:
        """Mark the error of an ADD as resolved after the DEL of its sandbox, unless the event `ends_with` will resolve it.

        `add`: the subject of the error: the verb and the container ID.
        """
        last = self.last_error
        if last is not None and not last.ends_with:
            self.resolve(add)

    def count_defects(self, defect: Defect | None, count: int) -> None:
        """Add `count` to the count of a defect. None instead of a defect is ignored."""
        if defect is not None:
            with self._changed:
                self.defects[defect] += count

    @property
    def is_ready(self) -> bool:
        """Whether ADD is served, the conflist was written, and this node could assign an address in this boot."""
        return self._is_ready and self.phase is Phase.SERVING and not self._add_blocks

    @property
    def is_ending_ready(self) -> bool:
        """Whether the daemon drains and was ready before.

        The readiness probe must not fail then: that would cause a Warning event about a pod that is about to end anyway.
        """
        return self.phase is Phase.DRAINING and self._is_ready

    def stages(self) -> list[StageReport]:
        """Return the stages of the start, in order. The report of a running stage has the time that it has taken so far."""
        reports, now_s = [], self._clock.monotonic()
        for name, stage in list(self._stages.items()):
            if stage is None:
                reports.append(StageReport(name))
                continue
            elapsed_ms = stage.elapsed_ms  # read before `ends_as`, which does not change after `elapsed_ms` is set
            if elapsed_ms is None:
                state, elapsed_ms = StageState.RUNNING, (now_s - stage.began_s) * 1000
            else:
                state = stage.ends_as
            reports.append(StageReport(name, state, elapsed_ms, printable(stage.detail)))
        return reports

    def conditions(self) -> list[str]:
        """Return the sentences of all conditions with their next steps, sorted."""
        return sorted(self.conditions_by_subject().values())

    def conditions_by_subject(self) -> dict[str, str]:
        """Return the sentence of each condition with its next step, by subject."""
        return {subject: condition.advised_text for subject, condition in self.conditions_since().items()}

    def conditions_since(self) -> dict[str, Condition]:
        """Return all conditions, by subject. Each has the time at which it began."""
        with self._changed:
            return self._conditions.copy()

    def uptime_s(self) -> float:
        """Return the seconds since the start."""
        return self._clock.monotonic() - self._started_monotonic_s

    @property
    def is_starting(self) -> bool:
        """Whether ADD is not served because the daemon starts or stops. The plugin reads this in a successful answer to STATUS, and
        limits for how long STATUS succeeds in this way.

        A start during which ADDs are blocked does not count, because STATUS succeeds without this limit while ADDs are blocked.
        """
        return self.phase is Phase.DRAINING or (self.phase is not Phase.SERVING and not self._add_blocks)

    def wait_until_serving_adds(self, deadline: Deadline) -> None:
        """Let an ADD wait for the end of the start, so that a pod that is created during a restart needs no second try (I17).

        ADDs that waited continue one after the other, TURN_S apart, so that the first pods run while the runtime makes the next
        sandboxes.
        Raises: NotServingError, as `require_add_service`; DeadlineError if the caller leaves.
        """
        has_waited = False
        with self._changed:
            while self.phase in (Phase.STARTING, Phase.RESTORING) and START not in self._conditions and not self._add_blocks:
                left_s = deadline.remaining_s() - REPLY_MARGIN_S
                if left_s <= 0:
                    break
                deadline.check("waiting for the end of the start")
                self._changed.wait(min(left_s, LOOK_S))
                has_waited = True
            if has_waited:
                now = self._clock.monotonic()
                turn = max(now, self._next_turn_s)
                self._next_turn_s = turn + TURN_S
                self._changed.wait_for(lambda: self.phase is Phase.DRAINING, min(turn - now, TURNS_S, deadline.remaining_s()))
        self.require_add_service()

    def require_add_service(self) -> None:
        """Return if ADD is served. Otherwise raise NotServingError with the cause (I14).

        The cause is why ADDs are blocked, or that the daemon ends, or during a start the phase and the work that is not done yet.
        """
        self.require_adds_allowed()
        phase = self.phase
        if phase is Phase.SERVING:
            return
        if phase is Phase.DRAINING:
            raise refusal(RefusalCode.SHUTTING_DOWN)
        running = [stage.name for stage in self.stages() if stage.state is StageState.RUNNING]
        work = ", ".join(running) or "; ".join(self.conditions()) or "nothing"
        raise refusal(RefusalCode.NOT_SERVING_YET, phase=phase, up_s=f"{self.uptime_s():.1f}", work=work)

    def require_status(self) -> None:
        """Answer CNI STATUS: return, or raise PluginNotAvailableError.

        More than STATUS_GRACE_S after the start, or after the end of a block of ADDs, STATUS fails if ADD is not served yet, or if
        this node could not assign its first address of this boot. Before the first *ready* a runtime calls STATUS only if an earlier
        boot left a conflist. STATUS does not fail if the pool becomes empty later, because the pods of a node that is NotReady for
        minutes are evicted. It does not fail while the daemon drains either, nor while ADDs are blocked because of another daemon.
        """
        phase, are_adds_blocked = self.phase, bool(self._add_blocks)
        for_s = self._clock.monotonic() - self._patient_since_s
        if for_s <= STATUS_GRACE_S or are_adds_blocked:
            return
        cause = "; ".join(self.conditions()) or "see `ipamctl status`"
        if phase in (Phase.STARTING, Phase.RESTORING):
            raise refusal(RefusalCode.STATUS_NOT_SERVING, phase=phase, for_s=f"{for_s:.0f}", cause=cause)
        if phase is Phase.SERVING and self.awaits_first_address:
            raise refusal(RefusalCode.STATUS_NO_ADDRESS, for_s=f"{for_s:.0f}", cause=cause)
