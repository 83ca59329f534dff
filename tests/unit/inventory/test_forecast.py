"""The forecast of exhaustion: a line through the last day's samples, and nothing where there are too few."""

from __future__ import annotations

import math

import pytest

from ipamd.inventory.forecast import SAMPLES_MAX, WINDOW_S, CapacitySample, exhausted_in_s, with_sample

NOW = 1_800_000_000.0
HOUR = 3600.0


def hourly(*free_counts: int) -> tuple[CapacitySample, ...]:
    """Samples an hour apart, the last one now."""
    count = len(free_counts)
    return tuple(CapacitySample(NOW - (count - 1 - number) * HOUR, free, free // 16) for number, free in enumerate(free_counts))


def addresses(samples: tuple[CapacitySample, ...], *, now_s: float = NOW) -> float | None:
    """The forecast for addresses."""
    return exhausted_in_s(samples, now_s=now_s, are_prefixes=False)


def test_a_steady_fall_reaches_zero() -> None:
    """100 addresses less each hour, 400 left: four hours; whole /28s have a line of their own."""
    samples = hourly(800, 700, 600, 500, 400)
    assert addresses(samples) == pytest.approx(4 * HOUR)
    assert exhausted_in_s(samples, now_s=NOW, are_prefixes=True) == pytest.approx(4 * HOUR, rel=0.02)


def test_time_that_passed_since_the_last_sample_counts() -> None:
    """The line goes on."""
    assert addresses(hourly(800, 700, 600, 500, 400), now_s=NOW + HOUR) == pytest.approx(3 * HOUR)


@pytest.mark.parametrize("counts", [(400, 400, 400), (300, 400, 500)])
def test_a_count_that_does_not_fall_lasts_for_ever(counts: tuple[int, ...]) -> None:
    """Infinity, which is not the same as not known."""
    assert addresses(hourly(*counts)) == math.inf


@pytest.mark.parametrize(
    "samples",
    [
        (),
        hourly(400, 300),
        tuple(CapacitySample(NOW - 1800 + 600 * number, 400 - number, 9) for number in range(4)),
        tuple(CapacitySample(NOW - WINDOW_S - HOUR * number, 400 + number, 9) for number in range(9, 0, -1)),
        tuple(CapacitySample(NOW + HOUR * number, 400 - number, 9) for number in range(1, 9)),
    ],
    ids=["none", "two", "half an hour", "older than a day", "of the future"],
)
def test_too_little_is_not_known(samples: tuple[CapacitySample, ...]) -> None:
    """Nothing is guessed."""
    assert addresses(samples) is None


def test_an_exhausted_subnet_is_exhausted_now() -> None:
    """Also by a single sample, and where the line says otherwise."""
    assert addresses(hourly(0)) == 0.0
    assert addresses(hourly(900, 500, 100, 0)) == 0.0


def test_samples_are_bounded() -> None:
    """A day's, at most twice the job's pace; a run by hand in the same minute replaces the one before it."""
    samples: tuple[CapacitySample, ...] = ()
    for number in range(200):
        samples = with_sample(samples, CapacitySample(NOW + number * 1200, number, 0))
    assert len(samples) == SAMPLES_MAX
    last = samples[-1]
    again = with_sample(samples, CapacitySample(last.at_s + 30, 7, 0))
    assert (len(again), again[-1].free_count) == (SAMPLES_MAX, 7)
    set_back = with_sample(samples, CapacitySample(NOW, 1, 0))
    assert [sample.at_s for sample in set_back] == [NOW]
