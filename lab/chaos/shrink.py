"""Delta debugging: find a smaller plan that still breaks the invariant, within a bound on time.

Zeller's ddmin over events. A chaos run is not deterministic (threads, a busy machine): a subset that does not fail proves
nothing, a subset that fails does, and only those are kept. Pure, except for the function that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(events: Sequence[T], *, fails: Callable[[Sequence[T]], bool], has_time: Callable[[], bool]) -> list[T]:
    """Leave out events as long as the rest still fails.

    Args:
        events: n >= 0, known to fail together.
        fails: whether a subset, in the same order, fails.
        has_time: asked before each question; False ends the search.
    Returns: a subset that failed (or `events`), in order; of no single one is it known that it could go.
    """
    kept = list(events)
    chunk_count = 2
    while len(kept) >= 2 and has_time():
        size = -(-len(kept) // chunk_count)
        starts = range(0, len(kept), size)
        smaller = _first_failing([kept[:start] + kept[start + size :] for start in starts], fails, has_time)
        if smaller is not None:
            kept, chunk_count = smaller, max(chunk_count - 1, 2)
        elif chunk_count < len(kept):
            chunk_count = min(chunk_count * 2, len(kept))
        else:
            break
    return kept


def _first_failing(
    candidates: Sequence[list[T]], fails: Callable[[Sequence[T]], bool], has_time: Callable[[], bool]
) -> list[T] | None:
    for candidate in candidates:
        if not has_time():
            return None
        if fails(candidate):
            return candidate
    return None
