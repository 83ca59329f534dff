"""The automatic warm target: its bounds, that more demand never lowers it, and what it costs and saves in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.model.auto_target import FLOOR_COUNT, auto_target, most_count, resolved
from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.growth_state import GrowthState
from ipamd.model.ids import EniId
from ipamd.model.plan import deficit_count, plan
from ipamd.model.pool_actions import CreateEni
from ipamd.model.pool_counts import PoolCounts
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot
from ipamd.model.seen_demand import SeenDemand
from tests.unit.model.pool_simulation import Outcome, PoolSimulation, Trace

AUTO = PoolSettings(warm_target_auto=True)
M5_LARGE, M5_4XLARGE = InstanceLimits("m5.large", 3, 10), InstanceLimits("m5.4xlarge", 8, 30)
HOUR_S = 3600.0


def snapshot_of(
    seen: SeenDemand, *, assigned: int = 0, cooling: int = 0, free: int = 0, waiting: int = 0, limits: InstanceLimits = M5_4XLARGE
) -> PoolSnapshot:
    """A pool on the primary ENI."""
    counts = PoolCounts(free=free, assigned=assigned, cooling=cooling)
    eni = EniCapacity(EniId("eni-0"), 0, EniState.ATTACHED, min(counts.total, limits.slots_per_eni))
    return PoolSnapshot((eni,), counts, limits, waiting_count=waiting, growth=GrowthState(demand=seen))


def target(seen: SeenDemand, settings: PoolSettings = AUTO, **pool: int) -> int:
    """The target alone."""
    return auto_target(snapshot_of(seen, **pool), settings).count


demands = st.builds(
    SeenDemand,
    minute_rate=st.floats(0, 50),
    ten_minute_rate=st.floats(0, 50),
    peak_count=st.integers(0, 300),
    short_growth_count=st.integers(0, 100),
    long_growth_count=st.integers(0, 100),
    start_count=st.integers(0, 100),
    allocation_s=st.floats(0, 120),
    creation_s=st.floats(0, 120),
)
types = st.builds(InstanceLimits, st.just("t"), st.integers(1, 15), st.integers(2, 50))
snapshots = st.builds(
    snapshot_of,
    demands,
    assigned=st.integers(0, 300),
    cooling=st.integers(0, 100),
    free=st.integers(0, 100),
    waiting=st.integers(0, 50),
    limits=types,
)
settings_in_use = st.builds(
    PoolSettings, max_pods=st.integers(0, 300), prefix_delegation=st.booleans(), warm_target_auto=st.just(True)
)


@given(snapshot=snapshots, settings=settings_in_use)
def test_the_target_keeps_its_bounds(snapshot: PoolSnapshot, settings: PoolSettings) -> None:
    """At least one address; below what WARM_ENI_TARGET=1 keeps free (a /28 in prefix mode); within maxPods."""
    found = auto_target(snapshot, settings)
    unit = 16 if settings.prefix_delegation and snapshot.limits.supports_prefixes else snapshot.limits.slots_per_eni
    assert 1 <= found.count <= max(unit - 1, 1)
    assert not settings.max_pods or found.count <= max(settings.max_pods - snapshot.counts.in_use, 1)
    assert found.count <= found.most_count == most_count(snapshot, settings)
    assert str(found).startswith(f"auto: {found.count} because a reserve of {found.effective_reserve_count}")


MORE: dict[str, Callable[[SeenDemand], SeenDemand]] = {
    "arrivals": lambda seen: replace(seen, minute_rate=seen.minute_rate + 0.5),
    "long arrivals": lambda seen: replace(seen, ten_minute_rate=seen.ten_minute_rate + 0.5),
    "peak": lambda seen: replace(seen, peak_count=seen.peak_count + 3),
    "start": lambda seen: replace(seen, start_count=seen.start_count + 2),
    "growth": lambda seen: replace(
        seen, short_growth_count=seen.short_growth_count + 2, long_growth_count=seen.long_growth_count + 2
    ),
}


@pytest.mark.parametrize("what", MORE)
@given(snapshot=snapshots, settings=settings_in_use)
def test_more_demand_never_lowers_the_target(what: str, snapshot: PoolSnapshot, settings: PoolSettings) -> None:
    """Each input by itself; growth within two seconds is part of that within ten."""
    seen = replace(
        snapshot.growth.demand,
        long_growth_count=max(snapshot.growth.demand.long_growth_count, snapshot.growth.demand.short_growth_count),
        creation_s=max(snapshot.growth.demand.creation_s, snapshot.growth.demand.allocation_s),
    )
    less = replace(snapshot, growth=replace(snapshot.growth, demand=seen))
    more = replace(snapshot, growth=replace(snapshot.growth, demand=MORE[what](seen)))
    assert auto_target(more, settings).count >= auto_target(less, settings).count


@given(snapshot=snapshots, settings=settings_in_use)
def test_the_plan_is_that_of_the_target_it_names(snapshot: PoolSnapshot, settings: PoolSettings) -> None:
    """The planner with auto does what it does with WARM_IP_TARGET of the same number."""
    fixed = replace(settings, warm_target_auto=False, warm_ip_target=auto_target(snapshot, settings).count)
    assert plan(snapshot, settings=settings) == plan(snapshot, settings=fixed)
    assert deficit_count(snapshot, settings) == deficit_count(snapshot, fixed)
    assert resolved(snapshot, resolved(snapshot, settings)) == resolved(snapshot, settings)


def test_without_auto_nothing_changes() -> None:
    """Fixed targets are not touched."""
    fixed = PoolSettings(warm_ip_target=3)
    assert resolved(snapshot_of(SeenDemand(peak_count=20)), fixed) is fixed


def test_what_was_busy_is_kept_and_no_more_while_it_is_busy() -> None:
    """A burst of ten that comes back finds ten beside the reserve; while it runs or cools only the reserve is free."""
    seen = SeenDemand(peak_count=14)
    assert target(seen, assigned=4) == 10 + FLOOR_COUNT
    assert target(seen, assigned=14) == target(seen, assigned=4, cooling=10) == FLOOR_COUNT


def test_time_to_grow_counts_with_the_rate() -> None:
    """One ADD a second: little where an allocation is enough, more where a new ENI is needed."""
    seen = SeenDemand(minute_rate=1.0, allocation_s=0.6, creation_s=8.0)
    assert target(seen, assigned=5, free=5) == 3  # 0.6 + 2 x 0.77
    found = auto_target(snapshot_of(seen, assigned=29), AUTO)
    assert (found.count, found.needs_eni) == (14, True)  # 8 + 2 x 2.83
    assert plan(snapshot_of(seen, assigned=29), settings=AUTO).actions == (CreateEni(1, address_count=14),)


def test_what_a_new_node_expects_needs_no_eni_while_it_fills() -> None:
    """Then it is bounded by the attached ENIs' room; growth that was seen is not."""
    filling = SeenDemand(start_count=10, is_filling=True)
    assert target(filling, assigned=5, free=4, limits=M5_LARGE) == 4
    assert target(filling, assigned=5, limits=M5_4XLARGE) == 10
    assert target(replace(filling, is_filling=False), assigned=5, free=4, limits=M5_LARGE) == 8
    assert target(SeenDemand(short_growth_count=8, long_growth_count=8), assigned=5, free=4, limits=M5_LARGE) == 8


def test_a_full_node_expects_less() -> None:
    """Half of what the node can still take bounds the target, and maxPods does."""
    seen = SeenDemand(long_growth_count=20, short_growth_count=20)
    assert target(seen, assigned=5, limits=M5_LARGE) == 8
    assert target(seen, assigned=20, limits=M5_LARGE) == 4
    assert target(seen, replace(AUTO, max_pods=21), assigned=20, limits=M5_LARGE) == 1


def churn(per_s: float, life_s: float, total_s: float) -> Trace:
    """Pods that come and go at random, at a constant load."""
    draw, at_s, pods = Random("churn"), 0.0, []
    while at_s < total_s:
        at_s += draw.expovariate(per_s)
        pods.append((at_s, draw.expovariate(1 / life_s)))
    return pods


def cron(period_s: float, sizes: tuple[int, int], total_s: float) -> Trace:
    """Bursts of pods that live one to three minutes, on a node with four residents."""
    draw, pods = Random("cron"), [(20.0 + n, 10 * total_s) for n in range(4)]
    for number in range(1, int(total_s / period_s)):
        size = draw.randint(*sizes)
        pods += [(number * period_s + draw.uniform(0, 1.5), draw.uniform(60, 180)) for _ in range(size)]
    return sorted(pods)


def residents(number: int, *later: float) -> Trace:
    """Pods that stay: `number` at the start, the others at their times."""
    return [*((5.0 + n, 1e9) for n in range(number)), *((at_s, 1e9) for at_s in later)]


TRACES: dict[str, tuple[Trace, float]] = {
    "idle": (residents(4), 6 * HOUR_S),
    "churn": (churn(0.05, 100.0, HOUR_S), HOUR_S),
    "slow churn": (churn(0.01, 900.0, 4 * HOUR_S), 4 * HOUR_S),
    "ramp": (residents(0, *(60.0 + n for n in range(20))), HOUR_S),
    "deploy": (residents(5, *[1800.0] * 10), HOUR_S),
    "two deploys": (residents(5, *[1800.0] * 10, *[2700.0] * 8), HOUR_S),
    "cron 5 min": (cron(300.0, (5, 12), 3 * HOUR_S), 3 * HOUR_S),
    "cron 10 min": (cron(600.0, (5, 20), 3 * HOUR_S), 3 * HOUR_S),
    "cron 60 min": (cron(3600.0, (5, 20), 12 * HOUR_S), 12 * HOUR_S),
}
BURSTY = ("deploy", "two deploys", "cron 5 min", "cron 10 min", "cron 60 min")


def played(settings: PoolSettings, name: str, limits: InstanceLimits) -> Outcome:
    """One trace on one type."""
    trace, total_s = TRACES[name]
    return PoolSimulation(settings, limits).run(trace, total_s=total_s)


@pytest.mark.parametrize("limits", [M5_LARGE, M5_4XLARGE], ids=lambda limits: str(limits.instance_type))
@pytest.mark.parametrize("name", TRACES)
def test_auto_holds_less_than_a_warm_eni_and_waits_less_than_two_addresses(name: str, limits: InstanceLimits) -> None:
    """Fewer addresses held on average than WARM_ENI_TARGET=1; no more ADDs wait than with WARM_IP_TARGET=2, fewer of bursts."""
    auto = played(AUTO, name, limits)
    assert auto.held < played(PoolSettings(), name, limits).held
    two = played(PoolSettings(warm_ip_target=2), name, limits)
    assert auto.waited < two.waited if name in BURSTY else auto.waited <= two.waited


@pytest.mark.parametrize("name", ["churn", "slow churn", "cron 5 min"])
def test_a_load_that_comes_back_costs_few_calls(name: str) -> None:
    """Where an ENI has room for what was busy at most, the pool breathes without EC2: a fifth of the calls of WARM_IP_TARGET=2."""
    assert played(AUTO, name, M5_4XLARGE).calls * 5 <= played(PoolSettings(warm_ip_target=2), name, M5_4XLARGE).calls


def test_an_hourly_burst_is_remembered_and_an_old_one_is_not() -> None:
    """For the window in full, then the floor; the target falls in steps, it does not flap."""
    simulation = PoolSimulation(AUTO, M5_4XLARGE)
    outcome = simulation.run(residents(4) + [(3600.0, 60.0)] * 12, total_s=14 * HOUR_S)
    late = [(at_s, count) for at_s, count in outcome.targets if at_s > 3900]
    at_next_hour = [count for at_s, count in outcome.targets if at_s <= 2 * 3600.0][-1]
    assert at_next_hour >= 12
    assert [count for _, count in late] == sorted((count for _, count in late), reverse=True)
    assert late[-1][1] == FLOOR_COUNT
    assert simulation.window.next_change_s(AUTO, now_s=14 * HOUR_S) is None, "an idle pool has no timer (I13)"
