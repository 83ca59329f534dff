"""Refused ADDs, kept for people: who, when, with which code, why, and what to do next.

A runtime repeats a refused ADD every few seconds, for days if nobody helps, each time with a new sandbox. So refusals of one pod for
one cause are one series with a count; the history gets a series at its 1st, 2nd, 4th, 8th ... refusal and once an hour, which is what
a kill can make it forget. The count of now is told from here.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict

from ipamd.model.history import HistoryEvent, HistoryRecord, Subject
from ipamd.model.record import dataclass, replace
from ipamd.model.words import printable
from ipamd.ports import Clock, History

SERIES_MAX = 256
"""Series that are counted at once. Ours: a node has 110 pods, most of them with one cause."""

TELL_S = 3600.0
"""Longest time for which the history does not hear of a series that goes on."""

GOES_ON_S = 300.0
"""After the last refusal. Ours: kubelet tries every 10 to 15 s, and an ADD that waits may take a minute; a pod that starts later with
the same name is another one."""

_VARYING = re.compile(r"[0-9a-f]{12,}|\d+")
"""What differs between two refusals for the same cause: IDs, counts, seconds."""


@dataclass(frozen=True, slots=True)
class RefusedAdd:
    """One refusal. `pod` is `namespace/name`, "" if the runtime did not tell; `cause` is message and details, with the next step;
    `kind` of error, as the metrics have it.
    """

    container_id: str
    ifname: str
    pod: str
    code: int
    cause: str
    kind: str


@dataclass(frozen=True, slots=True)
class _Series:
    record: HistoryRecord
    told_count: int
    told_s: float
    began_s: float
    last_s: float


class RefusedAdds:
    """Safe from any thread; touches no disk."""

    def __init__(self, *, history: History, clock: Clock) -> None:
        self._history = history
        self._clock = clock
        self._lock = threading.Lock()
        self._series: OrderedDict[tuple[str, str, str], _Series] = OrderedDict()

    def record_refusal(self, refused: RefusedAdd) -> None:
        """Count one refusal."""
        who = refused.pod or f"{refused.container_id}/{refused.ifname}"
        key = (who, refused.kind, _VARYING.sub("#", refused.cause.replace(refused.container_id, "#")))
        with self._lock:
            now, now_s = self._clock.now(), self._clock.monotonic()
            new = HistoryRecord(now, HistoryEvent.REFUSED, since=now, count=0)
            known = self._series.pop(key, None) or _Series(new, 0, now_s, now_s, now_s)
            record = replace(
                known.record,
                at=now,
                container_id=printable(refused.container_id),
                ifname=printable(refused.ifname),
                detail=printable(refused.cause),
                pod=printable(refused.pod),
                count=known.record.count + 1,
                code=refused.code,
            )
            is_due = record.count >= 2 * known.told_count or now_s - known.told_s >= TELL_S
            told = (record.count, now_s) if is_due else (known.told_count, known.told_s)
            tell = [record] if is_due else []
            began_s = known.began_s if now_s - known.last_s < GOES_ON_S else now_s
            self._series[key] = _Series(record, *told, began_s, now_s)
            if len(self._series) > SERIES_MAX:
                tell += _untold(self._series.popitem(last=False)[1])
        self._history.enqueue(tell)

    def records(self, subject: Subject) -> tuple[HistoryRecord, ...]:
        """Tell the series about a subject as they are now."""
        with self._lock:
            return tuple(series.record for series in self._series.values() if subject.fits(series.record))

    def longest_s(self) -> dict[str, float]:
        """By the kind of error: between the first and the last refusal of the pod that has been refused for longest and still is."""
        since_s = self._clock.monotonic() - GOES_ON_S
        with self._lock:
            lasting = [(one.last_s - one.began_s, key[1]) for key, one in self._series.items() if one.last_s > since_s]
        return {kind: lasting_s for lasting_s, kind in sorted(lasting)}

    def tell_all(self) -> None:
        """Give the history what it has not heard, before the process ends."""
        with self._lock:
            self._history.enqueue([record for series in self._series.values() for record in _untold(series)])


def _untold(series: _Series) -> list[HistoryRecord]:
    return [series.record] if series.record.count > series.told_count else []
