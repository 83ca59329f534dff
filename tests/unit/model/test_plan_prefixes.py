"""The planner in prefix mode: mixed ENIs, instance types that cannot have prefixes, the largest types, and short subnets."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.growth_state import GrowthState, growth_refusal
from ipamd.model.ids import EniId
from ipamd.model.plan import deficit_count, plan
from ipamd.model.pool_actions import Allocate, CreateEni, ReleaseAddresses
from ipamd.model.pool_counts import PoolCounts
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot
from ipamd.model.surplus import Hold

M5_LARGE = InstanceLimits("m5.large", 3, 10)
M4_LARGE = InstanceLimits("m4.large", 2, 10, hypervisor="xen")
M8I_48XLARGE = InstanceLimits("m8i.48xlarge", 24, 64)
PREFIXES = PoolSettings(warm_prefix_target=1, prefix_delegation=True)


def a_pool(*used: int, free: int = 0, assigned: int = 0, limits: InstanceLimits = M5_LARGE) -> PoolSnapshot:
    """One ENI for each of `used`, its slots taken; addresses by state, none cooling."""
    counts = PoolCounts(free=free, assigned=assigned)
    enis = tuple(EniCapacity(EniId(f"eni-{n}"), n, EniState.ATTACHED, count, counts=counts) for n, count in enumerate(used))
    return PoolSnapshot(enis, counts, limits)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (replace(PREFIXES, warm_prefix_target=2), CreateEni(1, address_count=9)),
        (replace(PREFIXES, warm_prefix_target=0), CreateEni(1, address_count=9)),
        (replace(PREFIXES, warm_eni_target=0), None),
        (replace(PREFIXES, warm_ip_target=6), CreateEni(1, address_count=2)),
    ],
)
def test_a_type_without_prefixes_follows_the_targets_of_single_addresses(
    settings: PoolSettings, expected: CreateEni | None
) -> None:
    """m4.large is no Nitro type: WARM_PREFIX_TARGET says nothing there, WARM_ENI_TARGET does, as if prefixes were off."""
    snapshot = a_pool(9, free=4, assigned=5, limits=M4_LARGE)
    found = plan(snapshot, settings=settings)
    assert found.actions == (() if expected is None else (expected,))
    assert found == plan(snapshot, settings=replace(settings, prefix_delegation=False))


@pytest.mark.parametrize("by_prefix", [False, True])
def test_an_eni_of_the_largest_types_is_filled_by_one_call(by_prefix: bool) -> None:
    """64 IPv4 addresses an ENI: all 63 slots come with the creation, whatever they hold; no second call for the last 14."""
    if by_prefix:
        settings = PoolSettings(warm_ip_target=63 * 16, prefix_delegation=True)
        expected = CreateEni(1, prefix_count=63)
    else:
        settings, expected = PoolSettings(warm_eni_target=1), CreateEni(1, address_count=63)
    assert plan(a_pool(63, assigned=63, limits=M8I_48XLARGE), settings=settings).actions == (expected,)


def test_a_new_eni_gets_no_more_than_ec2_takes_at_once() -> None:
    """Where a creation was refused for its size, the next asks for less; attached ENIs are filled as before."""
    growth = GrowthState(creation_cap=31)
    pool = replace(a_pool(63, assigned=63, limits=M8I_48XLARGE), growth=growth)
    assert plan(pool, settings=PoolSettings()).actions[0] == CreateEni(1, address_count=31)
    pool = replace(a_pool(3, assigned=3, limits=M8I_48XLARGE), growth=growth)
    assert plan(pool, settings=PoolSettings()).actions[0] == Allocate(EniId("eni-0"), 60)


def test_fewer_prefixes_are_asked_for_where_many_were_refused() -> None:
    """A subnet with two whole /28s refuses four: half as many are asked for, not none."""
    settings = PoolSettings(warm_prefix_target=4, prefix_delegation=True)
    pool = a_pool(0)
    assert plan(pool, settings=settings).actions == (Allocate(EniId("eni-0"), prefix_count=4),)
    pool = replace(pool, growth=GrowthState(prefix_cap=2))
    assert plan(pool, settings=settings).actions == (Allocate(EniId("eni-0"), prefix_count=2),)
    pool = replace(a_pool(9, assigned=9), growth=GrowthState(prefix_cap=2))
    assert plan(pool, settings=settings).actions == (CreateEni(1, prefix_count=2),)


@pytest.mark.parametrize(
    ("used", "free", "expected"),
    [
        (0, 0, 1),  # nothing there
        (8, 8, 1),  # 8 single addresses of other hands: one slot is left, and one prefix fills it
        (5, 16 + 4, 0),  # one prefix and 4 single addresses: at target
        (2, 16 + 1 - 2, 1),  # a prefix of which 2 are used and a single address
    ],
)
def test_single_addresses_on_a_mixed_eni_are_supply(used: int, free: int, expected: int) -> None:
    """Whatever holds a free address, it is free: a /28 is asked for only once fewer than 16 are, and each takes one slot."""
    decided = plan(a_pool(used, free=free, assigned=3), settings=PREFIXES)
    assert decided.actions == ((Allocate(EniId("eni-0"), prefix_count=expected),) if expected else ())


@pytest.mark.parametrize(
    ("settings", "short"),
    [
        (PoolSettings(warm_prefix_target=3, prefix_delegation=True), 48),
        (PoolSettings(warm_prefix_target=3, warm_eni_target=5, prefix_delegation=True), 48),
        (PoolSettings(warm_prefix_target=0, warm_eni_target=5, prefix_delegation=True), 1),
        (PoolSettings(warm_prefix_target=3, warm_ip_target=2, prefix_delegation=True), 2),
        (PoolSettings(warm_prefix_target=3, minimum_ip_target=20, prefix_delegation=True), 20),
        (PoolSettings(warm_prefix_target=3, minimum_ip_target=20, warm_ip_target=40, prefix_delegation=True), 40),
        (PoolSettings(warm_prefix_target=3, warm_eni_target=1), 9),
        (PoolSettings(warm_prefix_target=3, warm_eni_target=0), 1),
    ],
)
def test_which_target_counts(settings: PoolSettings, short: int) -> None:
    """IP targets override both others; in prefix mode WARM_PREFIX_TARGET overrides WARM_ENI_TARGET, else it is ignored.

    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, datastoreTargetState and isDatastorePoolTooLow.
    """
    assert deficit_count(a_pool(0), settings) == short


def test_the_primary_eni_gets_prefixes_first() -> None:
    """Device 0 has slots like any other ENI."""
    decided = plan(a_pool(3, 1, free=0, assigned=20), settings=PREFIXES)
    assert decided.actions == (Allocate(EniId("eni-0"), prefix_count=1),)


@given(
    used=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    free=st.integers(0, 60),
    assigned=st.integers(0, 60),
    settings=st.builds(
        PoolSettings,
        warm_ip_target=st.integers(0, 70),
        warm_prefix_target=st.integers(0, 5),
        max_pods=st.sampled_from([0, 20, 110]),
        prefix_delegation=st.just(True),
    ),
    prefix_cap=st.sampled_from([None, 1, 2]),
    has_no_prefix=st.booleans(),
)
def test_a_mixed_node_never_asks_for_more_slots_than_there_are(
    used: list[int], free: int, assigned: int, settings: PoolSettings, prefix_cap: int | None, has_no_prefix: bool
) -> None:
    """For any mix: an ENI's addresses and prefixes together fit its slots, and one call has one kind of them."""
    growth = GrowthState(prefix_cap=prefix_cap, prefixes=growth_refusal("no /28") if has_no_prefix else None)
    decided = plan(replace(a_pool(*used, free=free, assigned=assigned), growth=growth), settings=settings)
    slots = {f"eni-{n}": count for n, count in enumerate(used)}
    for action in decided.actions:
        match action:
            case Allocate(eni_id, count, 0):
                slots[eni_id] += count
            case Allocate(eni_id, 0, count):
                assert not has_no_prefix
                assert prefix_cap is None or count <= prefix_cap
                slots[eni_id] += count
            case CreateEni(device_index, address_count, prefix_count):
                assert 0 in (address_count, prefix_count)
                assert not (has_no_prefix and prefix_count)
                slots[f"new-{device_index}"] = address_count + prefix_count
    assert max(slots.values()) <= 9


def full_of_singles(free: int, *, growth: GrowthState | None = None, limits: InstanceLimits = M5_LARGE) -> PoolSnapshot:
    """Every slot of every ENI that the type may have is a single address; the free ones are on the last ENI."""
    count = limits.eni_count
    pool = a_pool(*[9] * count, free=free, assigned=9 * count - free, limits=limits)
    addresses = tuple(IPv4Address(f"10.0.0.{n}") for n in range(1, free + 1))
    hold = Hold(releasable={EniId(f"eni-{count - 1}"): ReleaseAddresses(EniId(f"eni-{count - 1}"), addresses)} if free else {})
    return replace(pool, hold=hold, growth=growth or GrowthState())


def test_a_free_single_address_makes_way_for_a_prefix() -> None:
    """An instance full of single addresses grows in prefix mode: one slot is emptied, and the next plan puts a /28 there."""
    decided = plan(full_of_singles(2), settings=PREFIXES)
    assert decided.actions == (ReleaseAddresses(EniId("eni-2"), (IPv4Address("10.0.0.1"),)),)
    assert "every slot is taken" in decided.sentence
    after = a_pool(9, 9, 8, free=1, assigned=25)
    assert plan(after, settings=PREFIXES).actions == (Allocate(EniId("eni-2"), prefix_count=1),)


def test_an_exchange_comes_before_another_eni() -> None:
    """Two calls instead of four, and no primary address of the subnet."""
    hold = Hold(releasable={EniId("eni-0"): ReleaseAddresses(EniId("eni-0"), (IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2")))})
    pool = replace(a_pool(9, free=2, assigned=7), hold=hold)
    assert plan(pool, settings=PREFIXES).actions == (ReleaseAddresses(EniId("eni-0"), (IPv4Address("10.0.0.1"),)),)
    assert plan(replace(pool, hold=Hold()), settings=PREFIXES).actions == (CreateEni(1, prefix_count=1),)


@pytest.mark.parametrize(
    ("pool", "settings"),
    [
        (full_of_singles(0), PREFIXES),
        (full_of_singles(2), replace(PREFIXES, prefix_delegation=False)),
        (full_of_singles(2, growth=GrowthState(prefixes=growth_refusal("no /28", left_s=60.0))), PREFIXES),
        (full_of_singles(2, growth=GrowthState(allocation=growth_refusal("denied", left_s=60.0))), PREFIXES),
        (full_of_singles(2, growth=GrowthState(pending_slots={EniId("eni-2"): 1}, pending_address_count=16)), PREFIXES),
        (full_of_singles(2, growth=GrowthState(slot_caps={EniId("eni-2"): 9})), PREFIXES),
        (replace(full_of_singles(2), waiting_count=3), PREFIXES),
        (replace(full_of_singles(2), limits=replace(M5_LARGE, hypervisor="xen")), PREFIXES),
        (full_of_singles(20), PREFIXES),
    ],
)
def test_nothing_is_exchanged_in_vain(pool: PoolSnapshot, settings: PoolSettings) -> None:
    """Not where no /28 can follow, nor while one may be on its way, nor without need."""
    decided = plan(pool, settings=settings)
    assert not any(isinstance(action, ReleaseAddresses) for action in decided.actions)


def test_a_node_without_any_eni_begins_with_a_prefix() -> None:
    """Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd_test.go, the increase of an empty datastore in prefix mode."""
    pool = PoolSnapshot((), PoolCounts(), InstanceLimits("t", 4, 17))
    assert plan(pool, settings=PREFIXES).actions == (CreateEni(1, prefix_count=1),)
