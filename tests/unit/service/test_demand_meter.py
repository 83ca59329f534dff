"""The demand meter: bounded memory, slow decay, a hold before the target falls, and a restart that changes nothing."""

from __future__ import annotations

from pathlib import Path

from ipamd.model.eni import InstanceLimits
from ipamd.model.ids import EniId
from ipamd.model.pool import AllocateAddresses, CreateEni, PoolCounts, PoolSettings
from ipamd.pool.demand_window import (
    BUCKET_S,
    FILL_S,
    FULL_BUCKETS,
    HALF_BUCKETS,
    HOLD_S,
    MEMORY_BUCKETS,
    START_COUNT,
    DemandMeter,
)
from tests.fakes.cloud import FakeEc2
from tests.fakes.node import FakeNode

AUTO = PoolSettings(warm_target_auto=True)


def meter_of(*looks: tuple[float, int], free: int = 2) -> DemandMeter:
    """A meter that saw so many addresses in use at these times, on a node that is not new; each ADD was served at once."""
    meter, served, before = DemandMeter(), 0, 0
    for at_s, assigned in looks:
        served += max(assigned - before, 0)
        before = assigned
        meter.note(PoolCounts(free=free, assigned=assigned), waiting_count=0, served_count=served, now_s=at_s)
    return meter


def test_a_burst_is_growth_once() -> None:
    """The first burst of ten is growth; the second, within what was busy before, is not."""
    meter = meter_of((0.0, 0), (1.0, 10), (100.0, 0), (200.0, 10))
    seen = meter.seen(now_s=200.0)
    assert (seen.short_growth_count, seen.long_growth_count, seen.peak_count) == (10, 10, 10)
    later = meter.seen(now_s=200.0 + MEMORY_BUCKETS * BUCKET_S)
    assert (later.short_growth_count, later.peak_count) == (0, 10), "what is busy now is the peak, however old"


def test_a_slow_growth_is_small_within_two_seconds_and_larger_within_ten() -> None:
    """One a second."""
    seen = meter_of(*((float(second), second) for second in range(60)), free=1).seen(now_s=60.0)
    assert (seen.short_growth_count, seen.long_growth_count) == (3, 11), (
        "nothing of the first look is growth but what it finds free"
    )
    assert 0.6 < seen.minute_rate < 1.0
    assert 0.05 < seen.ten_minute_rate < 0.15


def test_the_first_fill_of_a_new_node_is_no_growth() -> None:
    """What comes within five minutes is the first peak; a deploy after it is growth."""
    meter = meter_of((0.0, 0), (2.0, 20), (FILL_S + 1, 26), free=0)
    seen = meter.seen(now_s=FILL_S + 1)
    assert (seen.start_count, seen.peak_count, seen.short_growth_count) == (START_COUNT, 26, 6)


def test_a_peak_fades_by_halves() -> None:
    """In full for two hours, a half for one, a quarter, ... then forgotten."""
    meter = meter_of((0.0, 0), (1.0, 40), (2.0, 0))
    full_s, half_s = FULL_BUCKETS * BUCKET_S, HALF_BUCKETS * BUCKET_S
    peaks = [meter.seen(now_s=at_s).peak_count for at_s in (full_s - 1, full_s + 1, full_s + half_s + 1, full_s + 5 * half_s + 1)]
    assert peaks == [40, 20, 10, 0]


def test_an_add_that_comes_again_is_one_demand() -> None:
    """ADDs that time out and are retried while the pool is empty count once."""
    meter = DemandMeter()
    for turn in range(100):
        meter.note(PoolCounts(assigned=1), waiting_count=turn % 2 * 5, served_count=0, now_s=float(turn))
    assert meter.seen(now_s=100.0).ten_minute_rate <= 5 / 600


def test_memory_is_bounded() -> None:
    """A week of bursts leaves no more behind than seven hours of them."""
    meter = DemandMeter()
    for turn in range(20_000):
        meter.note(PoolCounts(assigned=turn % 60), waiting_count=0, served_count=turn, now_s=turn * 30.0)
    assert len(meter._peaks._seen) <= MEMORY_BUCKETS + 1
    assert len(meter._rises) <= 101


def test_the_slowest_growth_of_late_counts() -> None:
    """A slower call counts at once, a faster one gradually."""
    meter = DemandMeter()
    meter.took(4.0, AllocateAddresses(EniId("eni-0"), 1))
    meter.took(0.5, AllocateAddresses(EniId("eni-0"), 1))
    meter.took(20.0, CreateEni(1, 1))
    seen = meter.seen(now_s=0.0)
    assert (round(seen.allocation_s, 2), seen.creation_s) == (3.3, 20.0)


def auto_node(run_dir: Path) -> FakeNode:
    """A new node with WARM_TARGET=auto."""
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


def test_a_lower_reserve_waits(tmp_path: Path) -> None:
    """What was computed once holds for HOLD_S, then the target falls; until everything has faded the pool wakes by itself."""
    node = auto_node(tmp_path)
    node.clock.advance(FILL_S + 1)
    for number in range(8):
        node.add(f"s{number}")
    node.pool.cycle()
    node.clock.advance((FULL_BUCKETS - 1) * BUCKET_S)
    node.pool.cycle()
    node.clock.advance(BUCKET_S)
    node.pool.cycle()
    assert node.pool.auto is not None
    assert (node.pool.auto.reserve_count, node.pool.auto.held_count, node.pool.auto.count) == (4, 8, 8)
    node.clock.advance(HOLD_S + 1)
    node.pool.cycle()
    assert node.pool.auto.count == START_COUNT // 2
    assert node.pool._pause_s() is not None
    node.clock.advance(MEMORY_BUCKETS * BUCKET_S)
    node.pool.cycle()
    node.clock.advance(HOLD_S + 1)
    node.pool.cycle()
    assert node.pool.auto.count == 2
    assert node.pool._meter.next_change_s(now_s=node.clock.monotonic()) is None, "nothing is left that could fade (I13)"
    node.datastore.close()
