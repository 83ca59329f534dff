"""Refused ADDs, recorded for people: the pod, the time, the code, the cause and the next step of each refusal.

A runtime repeats a refused ADD every few seconds, possibly for days, each time with a new sandbox. So the refusals of one pod for one
cause are counted as one series. A series is written to the history at its 1st, 2nd, 4th, 8th ... refusal and once an hour. If the
process is killed, the refusals after a series' last record are lost. `records` returns the present counts.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict

from ipamd.model.history import HistoryEvent, HistoryRecord
from ipamd.model.history_subject import HistorySubject
from ipamd.model.record import dataclass, replace
from ipamd.model.words import printable
from ipamd.ports.history import History
from ipamd.ports.process import Clock

SERIES_MAX = 256
"""The largest number of series that are kept. Ours: a node usually has up to 110 pods, and most refused pods have one cause, so this
is enough."""

RECORD_INTERVAL_S = 3600.0
"""Longest time, in seconds, between two history records of a series that goes on."""

GOES_ON_S = 300.0
"""If this many seconds pass without a refusal, the time that a series has lasted (`RefusedAdds.longest_s`) starts anew at the next
refusal; its count does not. Ours: kubelet retries every 10 to 15 s, and an ADD may wait for a minute, so a longer gap means that
nobody retries the pod."""

_VARYING = re.compile(r"[0-9a-f]{12,}|\d+")
"""Matches the parts of a cause's text that may differ between refusals although the cause is the same: IDs, counts, seconds."""


@dataclass(frozen=True, slots=True)
class RefusedAdd:
    """One refusal.

    `container_id`, `ifname`: the key of the sandbox.
    `pod`: `namespace/name`, "" if the runtime did not name the pod.
    `code`: the CNI error code.
    `cause`: message and details of the error, with the next step.
    `kind`: the kind of error, as in the label of the metrics.
    """

    container_id: str
    ifname: str
    pod: str
    code: int
    cause: str
    kind: str


@dataclass(frozen=True, slots=True)
class _Series:
    """The refusals of one pod for one cause.

    `record`: the record about the last refusal, with the count of all.
    `recorded_count`, `recorded_s`: the count in the last record of the history, and when it was written, on the monotonic clock.
    `began_s`, `last_s`: when the first refusal since the last gap (GOES_ON_S) and the last refusal came, on the monotonic clock.
    """

    record: HistoryRecord
    recorded_count: int
    recorded_s: float
    began_s: float
    last_s: float


class RefusedAdds:
    """The series of refused ADDs. Safe from any thread. No method accesses the disk."""

    def __init__(self, *, history: History, clock: Clock) -> None:
        self._history = history
        self._clock = clock
        self._lock = threading.Lock()
        self._series: OrderedDict[tuple[str, str, str], _Series] = OrderedDict()

    def record_refusal(self, refused: RefusedAdd) -> None:
        """Count one refusal, and pass the record of its series to the history if one is due."""
        name = refused.pod or f"{refused.container_id}/{refused.ifname}"
        key = (name, refused.kind, _VARYING.sub("#", refused.cause.replace(refused.container_id, "#")))
        with self._lock:
            now, now_s = self._clock.now(), self._clock.monotonic()
            new = HistoryRecord(now, HistoryEvent.REFUSED, since=now, count=0)
            before = self._series.pop(key, None) or _Series(new, 0, now_s, now_s, now_s)
            record = replace(
                before.record,
                at=now,
                container_id=printable(refused.container_id),
                ifname=printable(refused.ifname),
                detail=printable(refused.cause),
                pod=printable(refused.pod),
                count=before.record.count + 1,
                code=refused.code,
            )
            new_records = []
            recorded_count, recorded_s = before.recorded_count, before.recorded_s
            if record.count >= 2 * recorded_count or now_s - recorded_s >= RECORD_INTERVAL_S:
                new_records.append(record)
                recorded_count, recorded_s = record.count, now_s
            began_s = now_s
            if now_s - before.last_s < GOES_ON_S:
                began_s = before.began_s
            self._series[key] = _Series(record, recorded_count, recorded_s, began_s, now_s)
            if len(self._series) > SERIES_MAX:
                _, oldest = self._series.popitem(last=False)
                new_records += _unrecorded(oldest)
        self._history.enqueue(new_records)

    def records(self, subject: HistorySubject) -> tuple[HistoryRecord, ...]:
        """Return the records of the series about a subject, with their present counts."""
        with self._lock:
            return tuple(series.record for series in self._series.values() if subject.fits(series.record))

    def longest_s(self) -> dict[str, float]:
        """Return, by kind of error, for how many seconds the longest series that still goes on has lasted.

        The time runs from the first refusal since the last gap (GOES_ON_S) to the last refusal.
        """
        since_s = self._clock.monotonic() - GOES_ON_S
        longest_s: dict[str, float] = {}
        with self._lock:
            for (_, kind, _), series in self._series.items():
                if series.last_s > since_s:
                    longest_s[kind] = max(series.last_s - series.began_s, longest_s.get(kind, 0.0))
        return longest_s

    def record_all(self) -> None:
        """Pass every series whose present count is not in the history yet to the history. Called before the process ends."""
        new_records = []
        with self._lock:
            for series in self._series.values():
                new_records += _unrecorded(series)
            self._history.enqueue(new_records)


def _unrecorded(series: _Series) -> list[HistoryRecord]:
    """Return a list with the record of a series; [] if the history has its present count already."""
    if series.record.count > series.recorded_count:
        return [series.record]
    return []
