"""Statistics of timings: medians and nearest-rank percentiles.

There is no mean, because one slow sample would change it. There is no interpolation and no removal of outliers, because slow samples
are part of the result.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def median(samples: Sequence[float]) -> float:
    """Return the middle sample, or the mean of the middle two. Raises: ValueError without samples."""
    if not samples:
        raise ValueError("no samples to take a median of")
    return statistics.median(samples)


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least `share` (0 to 1) of all samples do not exceed. Raises: ValueError without samples."""
    if not samples:
        raise ValueError("no samples to take a percentile of")
    if not 0 < share <= 1:
        raise ValueError(f"a share lies above 0 and not above 1, not at {share}")
    return sorted(samples)[math.ceil(share * len(samples)) - 1]


def spread(samples: Sequence[float]) -> str:
    """Return a text with the range of the middle half of the samples, and the worst sample."""
    return f"middle half {percentile(samples, 0.25):.2f}-{percentile(samples, 0.75):.2f}, worst {max(samples):.2f}"


def covered(intervals: Sequence[tuple[float, float]]) -> float:
    """Return the total time in which at least one of the intervals (start, end) was under way."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(intervals):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total
