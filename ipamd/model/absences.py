"""Count the successive answers of a source that lack an object, and how long the object has been absent.

One answer without an object proves nothing: the answer may be older than the object, partial, or late. So code that concludes that an
object is gone uses two numbers: how many successive answers lacked the object, and the time since the first of these answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from ipamd.model.record import dataclass, field, replace

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Absence:
    """How many successive answers lacked an object, and since when.

    began_monotonic_s: when the first of these answers came.
    counted_monotonic_s: when the last counted answer came. Answers in quick succession count as one (`Absences`).
    look_count: how many answers were counted.
    Both times are seconds on the monotonic clock.
    """

    began_monotonic_s: float
    counted_monotonic_s: float
    look_count: int


@dataclass(frozen=True, slots=True)
class Doubts:
    """The absences that are stored, so that a restarted daemon goes on counting. The keys are ENI IDs and addresses, as text.

    `plausible`: the absences of the objects that the last plausible answer of EC2 lacked.
    `any`: the absences of the objects that the last answer which showed the primary ENI lacked, whether it was plausible or not.
    """

    plausible: Mapping[str, Absence] = field(default_factory=dict)
    any: Mapping[str, Absence] = field(default_factory=dict)


class Absences(Generic[K]):
    """Absences of objects `K` from one source. Used by one thread at a time.

    `absent`: the objects that the last answer lacked; replaced with each answer.
    """

    def __init__(self, *, gap_s: float, recorded: Mapping[K, Absence] | None = None) -> None:
        """Begin to count.

        Args:
            gap_s: the least time between two answers that count as two. An answer that follows sooner is not counted.
            recorded: absences that an earlier process counted, with times of the same monotonic clock.
        """
        self._gap_s = gap_s
        self.absent: Mapping[K, Absence] = dict(recorded or {})

    def record_answer(self, absent: Iterable[K], *, now_s: float) -> None:
        """Record a complete answer that lacked the objects `absent`. Every other object is present, so its count ends.

        `now_s`: on the monotonic clock.
        """
        counted = {}
        for key in absent:
            absence = self.absent.get(key)
            if absence is None:
                counted[key] = Absence(now_s, now_s, 1)
            elif now_s - absence.counted_monotonic_s < self._gap_s:
                counted[key] = absence
            else:
                counted[key] = replace(absence, counted_monotonic_s=now_s, look_count=absence.look_count + 1)
        self.absent = counted

    def count(self, key: K) -> int:
        """Return how many successive counted answers lacked an object; 0 if the last answer had it."""
        absence = self.absent.get(key)
        if absence is None:
            return 0
        return absence.look_count

    def age_s(self, key: K, *, now_s: float) -> float:
        """Return the seconds since the first of the successive answers that lacked an object; 0.0 if the last answer had it."""
        absence = self.absent.get(key)
        if absence is None:
            return 0.0
        return now_s - absence.began_monotonic_s
