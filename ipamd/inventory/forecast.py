"""Forecast when a subnet is exhausted: a straight line through the job's own last samples. Pure.

The line is the least squares fit of the free counts of the last day, as in Prometheus' `predict_linear`. It is computed here so that
it works without Prometheus. A sample is one complete reading of the subnet; there is about one an hour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ipamd.model.record import dataclass

WINDOW_S = 86_400.0
"""Age of the oldest sample that counts. Ours: a whole day, so that the nights of a cluster that shrinks and grows are in it."""

SAMPLES_LEAST = 3
"""Fewest samples of a forecast. Ours: a line fits any two samples, so the third sample is the first that can disagree."""

SPAN_LEAST_S = 2 * 3600.0
"""Least time between the first and the last sample. Ours: two intervals of the job. A shorter time shows a rolling update of pods
and not a trend."""

SAMPLES_MAX = 48
"""The largest number of samples of a subnet that are kept. Ours: one each half hour of the window, twice as many as the job takes."""

SAME_S = 60.0
"""A new sample replaces earlier ones that are at most this much older. Ours: repeated runs by hand must not fill the window."""


@dataclass(frozen=True, slots=True)
class CapacitySample:
    """The free addresses and free /28s of a subnet at one complete reading. `at_s`: Unix time of the reading."""

    at_s: float
    free_count: int
    free_prefix_count: int


def with_sample(samples: Sequence[CapacitySample], sample: CapacitySample) -> tuple[CapacitySample, ...]:
    """Append a sample, and drop those that no forecast will use.

    These are samples older than the window, samples that the new one replaces, and samples of the future after a clock was set back.
    """
    kept = [old for old in samples if sample.at_s - WINDOW_S <= old.at_s < sample.at_s - SAME_S]
    return tuple([*kept, sample][-SAMPLES_MAX:])


def exhausted_in_s(samples: Sequence[CapacitySample], *, now_s: float, are_prefixes: bool) -> float | None:
    """Return the seconds from now until the free count is 0, if the trend continues.

    Args:
        now_s: Unix time.
        are_prefixes: True to forecast whole free /28s, False to forecast free addresses.
    Returns: 0 if nothing is free; infinity if the count does not fall; None if the samples are too few or span too short a time.
    """
    recent = [sample for sample in samples if now_s - WINDOW_S <= sample.at_s <= now_s]
    points = [(sample.at_s - now_s, sample.free_prefix_count if are_prefixes else sample.free_count) for sample in recent]
    if points and points[-1][1] <= 0:
        return 0.0
    if len(points) < SAMPLES_LEAST or points[-1][0] - points[0][0] < SPAN_LEAST_S:
        return None
    slope_per_s, free_now = _line(points)
    if slope_per_s >= 0:
        return math.inf
    return max(free_now, 0.0) / -slope_per_s


def _line(points: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Fit a line by least squares. Returns: its slope, and its value at time 0."""
    count = len(points)
    mean_time = sum(time for time, _ in points) / count
    mean_free = sum(free for _, free in points) / count
    spread = sum((time - mean_time) ** 2 for time, _ in points)
    slope = sum((time - mean_time) * (free - mean_free) for time, free in points) / spread
    return slope, mean_free - slope * mean_time
