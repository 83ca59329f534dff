"""The demand window: bounded memory, one window for target and release, and a restart that changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipamd.model.eni import InstanceLimits
from ipamd.model.ids import EniId
from ipamd.model.pool_actions import Allocate, CreateEni
from ipamd.model.pool_counts import PoolCounts
from ipamd.model.pool_settings import RELEASE_HOLD_S, PoolSettings
from ipamd.pool.demand_window import FILL_S, LONG_RATE_S, START_COUNT, DemandWindow, RollingMax
from tests.fakes.cloud import FakeEc2
from tests.fakes.node import FakeNode

AUTO = PoolSettings(warm_target_auto=True)


def window_of(*looks: tuple[float, int], free: int = 2) -> DemandWindow:
    """A window that saw so many addresses in use at these times, on a node that is not new; each ADD was served at once."""
    window, served, before = DemandWindow(), 0, 0
    for at_s, assigned in looks:
        served += max(assigned - before, 0)
        before = assigned
        look(window, assigned, at_s=at_s, served=served, free=free)
    return window


def look(window: DemandWindow, assigned: int, *, at_s: float, served: int = 0, waiting: int = 0, free: int = 0) -> None:
    """One look at the pool."""
    counts = PoolCounts(free=free, assigned=assigned)
    window.observe(counts, AUTO, waiting_count=waiting, served_count=served, now_s=at_s)


@pytest.mark.parametrize(
    ("now_s", "of_60_s", "of_300_s"),
    [(0.0, None, None), (59.0, None, None), (60.0, 5, None), (119.0, 9, None), (300.0, 3, 9), (400.0, 3, 9), (421.0, 3, 3)],
)
def test_the_highest_value_over_a_window(now_s: float, of_60_s: int | None, of_300_s: int | None) -> None:
    """5, from the second minute on 9, from the third on 3: each value lasts until the next, nothing is said of half a window."""
    highest = RollingMax()
    for at_s, value in ((0.0, 5), (60.5, 9), (120.5, 3)):
        if at_s <= now_s:
            highest.record(value, now_s=at_s, kept_s=300.0)
    assert (highest.over(60.0, now_s=now_s), highest.over(300.0, now_s=now_s)) == (of_60_s, of_300_s)


def test_a_burst_is_growth_once() -> None:
    """The first burst of ten is growth; the second, within what was busy before, is not."""
    window = window_of((0.0, 0), (1.0, 10), (100.0, 0), (200.0, 10))
    seen = window.measured_demand(AUTO, now_s=200.0)
    assert (seen.short_growth_count, seen.long_growth_count, seen.peak_count) == (10, 10, 10)
    look(window, 10, at_s=300.0)
    later = window.measured_demand(AUTO, now_s=300.0 + RELEASE_HOLD_S)
    assert (later.short_growth_count, later.peak_count) == (0, 10), "what is busy now is the peak, however old"


def test_a_slow_growth_is_small_within_two_seconds_and_larger_within_ten() -> None:
    """One a second."""
    seen = window_of(*((float(second), second) for second in range(60)), free=1).measured_demand(AUTO, now_s=60.0)
    assert (seen.short_growth_count, seen.long_growth_count) == (3, 11), (
        "nothing of the first look is growth but what it finds free"
    )
    assert 0.9 < seen.minute_rate < 1.0
    assert 0.05 < seen.ten_minute_rate < 0.15


def test_the_first_fill_of_a_new_node_is_no_growth() -> None:
    """What comes within five minutes is the first peak; a deploy after it is growth."""
    window = window_of((0.0, 0), (2.0, 20), (FILL_S + 1, 26), free=0)
    seen = window.measured_demand(AUTO, now_s=FILL_S + 1)
    assert (seen.start_count, seen.peak_count, seen.short_growth_count) == (START_COUNT, 26, 6)


def test_a_peak_is_remembered_for_the_window() -> None:
    """The one for which a surplus is held: in full, then it is forgotten."""
    window = window_of((0.0, 0), (1.0, 40), (2.0, 0))
    assert [window.measured_demand(AUTO, now_s=2.0 + at_s).peak_count for at_s in (0.0, RELEASE_HOLD_S - 1, RELEASE_HOLD_S)] == [
        40,
        40,
        0,
    ]


def test_an_add_that_comes_again_is_one_demand() -> None:
    """ADDs that time out and are retried while the pool is empty are no arrivals, and grow what is busy once."""
    window = DemandWindow()
    for turn in range(100):
        look(window, 1, at_s=float(turn), waiting=turn % 2 * 5)
    seen = window.measured_demand(AUTO, now_s=100.0)
    assert (seen.ten_minute_rate, seen.peak_count, seen.long_growth_count) == (0.0, 6, 5)


def test_memory_is_bounded() -> None:
    """A week of bursts leaves no more behind than one window of them."""
    window = DemandWindow()
    for turn in range(20_000):
        look(window, turn % 60, at_s=turn * 30.0, served=turn)
        window.record_surplus(turn % 60, AUTO, now_s=turn * 30.0)
    kept = (window._busy, window._short_growth, window._long_growth, window._start, window._negative_surplus)
    assert all(len(one._steps) <= 61 for one in kept)
    assert len(window._rises) <= 101
    assert len(window._served) <= LONG_RATE_S / 30 + 2


def test_the_slowest_growth_of_late_counts() -> None:
    """A slower call counts at once, a faster one gradually."""
    window = DemandWindow()
    window.record_growth_time(Allocate(EniId("eni-0"), 1), took_s=4.0)
    window.record_growth_time(Allocate(EniId("eni-0"), 1), took_s=0.5)
    window.record_growth_time(CreateEni(1, 1), took_s=20.0)
    seen = window.measured_demand(AUTO, now_s=0.0)
    assert (round(seen.allocation_s, 2), seen.creation_s) == (3.3, 20.0)


def auto_node(run_dir: Path) -> FakeNode:
    """A new node with VPC_IPAMD_WARM_TARGET_MODE=auto."""
    node = FakeNode(run_dir, settings=AUTO, ec2=FakeEc2(limits=InstanceLimits("m5.4xlarge", 8, 30)))
    node.bring_up()
    return node


def test_a_new_node_expects_pods(tmp_path: Path) -> None:
    """The first fill is START_COUNT, in one call; `auto` says why."""
    node = auto_node(tmp_path)
    assert node.datastore.counts().free == START_COUNT
    assert node.ec2.calls["assign_addresses"] == 1
    assert node.pool.auto is not None
    assert str(node.pool.auto).startswith(f"auto: {START_COUNT} because a reserve of {START_COUNT}")
    node.datastore.close()


def test_a_restart_changes_nothing(tmp_path: Path) -> None:
    """The next process keeps what it finds free, and asks EC2 for nothing."""
    node = auto_node(tmp_path)
    for number in range(4):
        node.add(f"s{number}")
    node.pool.cycle()
    free, calls = node.datastore.counts().free, node.ec2.calls["assign_addresses"]
    node.crash()
    node.bring_up()
    node.pool.cycle()
    assert (node.datastore.counts().free, node.ec2.calls["assign_addresses"]) == (free, calls)
    node.datastore.close()


def test_the_target_falls_after_the_window(tmp_path: Path) -> None:
    """Growth is remembered for the window, then the target is the floor; until everything has faded the pool wakes by itself."""
    node = auto_node(tmp_path)
    node.clock.advance(FILL_S + 1)
    for number in range(8):
        node.add(f"s{number}")
    node.pool.cycle()
    node.clock.advance(RELEASE_HOLD_S - 1)
    node.pool.cycle()
    assert node.pool.auto is not None
    assert (node.pool.auto.reserve_count, node.pool.auto.count) == (8, 8)
    assert node.pool._pause_s() is not None
    node.clock.advance(LONG_RATE_S)
    node.pool.cycle()
    node.clock.advance(RELEASE_HOLD_S)
    node.pool.cycle()
    assert node.pool.auto.count == 2
    node.clock.advance(RELEASE_HOLD_S)
    node.pool.cycle()
    assert node.pool._own.window.next_change_s(AUTO, now_s=node.clock.monotonic()) is None, (
        "nothing is left that could fade (I13)"
    )
    node.datastore.close()


ENI_SIZE = 29


def settled(*looks: tuple[float, int], eni_count: int, now_s: float) -> int | None:
    """What may go of a node with so many full ENIs that keeps one free (WARM_ENI_TARGET=1), after so many were busy at these times."""
    window, settings, served, before = DemandWindow(), PoolSettings(), 0, looks[0][1]
    for at_s, busy in (*looks, (now_s, looks[-1][1])):
        served, before = served + max(busy - before, 0), busy
        counts = PoolCounts(free=eni_count * ENI_SIZE - busy, assigned=busy)
        window.observe(counts, settings, waiting_count=0, served_count=served, now_s=at_s)
        window.record_surplus(max((eni_count - 1) * ENI_SIZE - busy, 0), settings, now_s=at_s)
    return window.stable_surplus(settings, kept_count=ENI_SIZE, now_s=now_s)


@pytest.mark.parametrize(
    ("looks", "eni_count", "now_s", "count"),
    [
        (((0, 6), (10, 126), (310, 6)), 6, 365, None),  # a burst has ended, for less than a minute
        (((0, 6), (10, 126), (310, 6)), 6, 370, 5 * 29 - 6 - 29),  # what it needed goes, but for one ENI
        (((0, 60), (10, 120), (310, 60)), 6, 370, 5 * 29 - 60 - 29),  # the same beside pods that stay
        (((0, 20), (10, 60), (3000, 60), (3010, 20)), 6, 3075, 5 * 29 - 20 - 29),  # however long it lasted
        (((0, 60), (600, 88), (1200, 60)), 5, 1300, None),  # 28 are less than an ENI: held for the whole window
        (((0, 80), (600, 110), (1200, 70)), 7, 1300, None),  # 40 of 110 may be chance
        (((0, 60), (10, 120), (900, 100), (1500, 80), (2100, 60)), 6, 2200, None),  # it falls slowly: 40 within ten minutes
        (((0, 60), (600, 80), (1200, 60)), 5, 4900, 4 * 29 - 60),  # a whole window without ADDs: all that was surplus in it
        (((0, 60), (600, 80), (1200, 60), (4700, 69)), 5, 4900, 4 * 29 - 69 - 9),  # nine came lately, and as many may again
        (((0, 60), (600, 80), (1200, 60), (4700, 80), (4800, 60)), 5, 4900, 4 * 29 - 80 - 18),  # 20 came, chance explains 18
    ],
)
def test_a_burst_goes_soon_and_what_varies_is_held(
    looks: tuple[tuple[int, int], ...], eni_count: int, now_s: int, count: int | None
) -> None:
    """One ENI is held for the window in any case. Chance is the square root of what is busy, and no more than came lately."""
    assert settled(*looks, eni_count=eni_count, now_s=now_s) == count


def test_a_shorter_hold_ends_the_rest_after_a_batch() -> None:
    """The setting is live: what became surplus after a batch waits for the window in force, not for the one before."""
    window, long, short = DemandWindow(), PoolSettings(release_hold_s=3600), PoolSettings(release_hold_s=60)
    window.record_surplus(30, long, now_s=0.0)
    assert window.stable_surplus(long, kept_count=None, now_s=3600.0) == 30
    window.record_release(30, long, kept_count=None, now_s=3600.0)
    for settings, now_s in ((long, 3600.0), (short, 3610.0)):
        window.record_surplus(60, settings, now_s=now_s)
    assert window.stable_surplus(short, kept_count=None, now_s=3671.0) == 60
