"""Count successive looks at a source that lack an object, and how long it has been absent.

One look without an object proves nothing: the list may be older than the object, partial, or lag. Whoever concludes absence asks
here for the number of looks and their age. All ages are on the monotonic clock: a wall clock that is stepped must not make seconds
an hour.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from ipamd.model.record import dataclass, field, replace

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Absence:
    """How often and since when one object was not seen, in successive looks."""

    began_monotonic_s: float
    counted_monotonic_s: float
    look_count: int


@dataclass(frozen=True, slots=True)
class Doubts:
    """What EC2 did not show lately, by ENI or address as text: in successive plausible answers, and in any successive answers."""

    plausible: Mapping[str, Absence] = field(default_factory=dict)
    any: Mapping[str, Absence] = field(default_factory=dict)


class Absences(Generic[K]):
    """Absences of objects `K` from one source. Used by one thread at a time.

    `gap_s`: the least time between two looks that count as successive; looks that follow sooner count as one. `known`: what an
    earlier process counted on the same clock. `absent`: what the last look lacked, replaced with each.
    """

    def __init__(self, *, gap_s: float, known: Mapping[K, Absence] | None = None) -> None:
        self._gap_s = gap_s
        self.absent: Mapping[K, Absence] = dict(known or {})

    def look(self, absent: Iterable[K], *, now_s: float) -> None:
        """Record a complete look that lacked `absent`; every other object is present and starts over. `now_s` is monotonic."""
        counted = {}
        for key in absent:
            known = self.absent.get(key)
            if known is None:
                counted[key] = Absence(now_s, now_s, 1)
            elif now_s - known.counted_monotonic_s < self._gap_s:
                counted[key] = known
            else:
                counted[key] = replace(known, counted_monotonic_s=now_s, look_count=known.look_count + 1)
        self.absent = counted

    def count(self, key: K) -> int:
        """Successive looks without it; 0 if the last one had it."""
        found = self.absent.get(key)
        return 0 if found is None else found.look_count

    def age_s(self, key: K, *, now_s: float) -> float:
        """Seconds since the first of the successive looks without it; 0.0 if the last one had it."""
        found = self.absent.get(key)
        return 0.0 if found is None else now_s - found.began_monotonic_s
