"""Ages on the monotonic clock of objects that are recorded with a wall time only.

A wall clock that is set must make nothing older or younger. The wall time of an object counts once, when it is first seen; from
then on its age grows with the monotonic clock. If the clock was set since the last look, the age at first sight is the least that is
possible: an object is rather taken for younger than it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Ages(Generic[K]):
    """Ages of objects `K`. Used by one thread at a time."""

    def __init__(self) -> None:
        self._seen: dict[K, tuple[datetime, float]] = {}
        self._looked: tuple[datetime, float] | None = None

    def look(self, made: Mapping[K, datetime], *, now: datetime, now_s: float) -> None:
        """Record which objects there are, with the wall time (aware UTC) of each; all others are forgotten.

        Args:
            now, now_s: the wall clock and the monotonic clock, read together.
        """
        seen: dict[K, tuple[datetime, float]] = {}
        for key, made_at in made.items():
            known = self._seen.get(key)
            if known is None or known[0] != made_at:
                known = made_at, now_s - self._age_at_first_sight_s(made_at, now, now_s)
            seen[key] = known
        self._seen, self._looked = seen, (now, now_s)

    def __contains__(self, key: K) -> bool:
        """Whether the last look had the object."""
        return key in self._seen

    def age_s(self, key: K, *, now_s: float) -> float:
        """Seconds since the object was made, at most; 0.0 for one that the last look lacked."""
        found = self._seen.get(key)
        return 0.0 if found is None else max(now_s - found[1], 0.0)

    def _age_at_first_sight_s(self, made_at: datetime, now: datetime, now_s: float) -> float:
        by_wall_s = max((now - made_at).total_seconds(), 0.0)
        if self._looked is None:
            return by_wall_s
        looked_at, looked_s = self._looked
        since_look_s = now_s - looked_s
        stepped_s = (now - looked_at).total_seconds() - since_look_s
        return min(max(by_wall_s - max(stepped_s, 0.0), 0.0), since_look_s)
