"""The promises of the pool planner, for examples and for any input."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.model.blocked import Blocked
from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode
from ipamd.model.growth_state import GrowthState, PendingEni, growth_refusal
from ipamd.model.ids import EniId
from ipamd.model.plan import deficit_count, plan, surplus_count
from ipamd.model.pool_actions import Allocate, CreateEni
from ipamd.model.pool_counts import PoolCounts
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot
from tests.errors import failed
from tests.unit.model.plan_vectors import converge, snapshot_of


@pytest.mark.parametrize(
    ("max_pods", "limits", "expected"),
    [
        (110, InstanceLimits("m5.large", 3, 10), [[7, 112]]),
        (20, InstanceLimits("m5.large", 3, 10), [[5, 20]]),
        (110, InstanceLimits("m5.4xlarge", 8, 30), [[20, 110]]),
        (160, InstanceLimits("m5.large", 3, 10), [[9, 144], [1, 16]]),
        (150, InstanceLimits("m5.large", 3, 10), [[9, 144], [1, 16]]),
    ],
)
def test_prefix_mode_reaches_max_pods_with_the_fewest_enis(
    max_pods: int, limits: InstanceLimits, expected: list[list[int]]
) -> None:
    """The last addresses below maxPods are single ones if slots are left for all of them; else one more /28, and no ENI more."""
    settings = PoolSettings(warm_prefix_target=1, prefix_delegation=True, max_pods=max_pods)
    assert converge(limits, settings, pods=max_pods) == expected


def test_an_allocation_in_doubt_is_not_asked_for_twice() -> None:
    """Its slots count as taken, and its addresses as on their way."""
    snapshot = snapshot_of(9, 9, limits=InstanceLimits("t", 3, 30))
    growth = GrowthState(pending_slots={EniId("eni-0"): 5}, pending_address_count=5, pending="the answer was lost")
    decided = plan(replace(snapshot, growth=growth), settings=PoolSettings(warm_ip_target=5))
    assert decided.actions == ()
    assert "the answer was lost" in decided.sentence
    more = plan(replace(snapshot, growth=growth), settings=PoolSettings(warm_ip_target=7))
    assert more.actions == (Allocate(EniId("eni-0"), 2),)


def test_a_creation_in_doubt_takes_its_place() -> None:
    """Neither its device index nor its place among the ENIs is used again."""
    snapshot = snapshot_of(9, 9, limits=InstanceLimits("t", 3, 10))
    growth = GrowthState(pending_enis=(PendingEni(1, 0),))
    decided = plan(replace(snapshot, growth=growth), settings=PoolSettings(warm_ip_target=20))
    assert decided.actions == (CreateEni(2, address_count=9),)


@pytest.mark.parametrize("is_lasting", [False, True])
def test_an_eni_is_created_only_where_waiting_does_not_help(is_lasting: bool) -> None:
    """Allocation is throttled for a second: its slots are waited for. Denied by IAM: addresses come with a new ENI."""
    snapshot = snapshot_of(5, 5, limits=InstanceLimits("t", 3, 10))
    growth = GrowthState(allocation=growth_refusal("refused", "do this", 1.0, is_lasting))
    decided = plan(replace(snapshot, growth=growth), settings=PoolSettings(warm_ip_target=2))
    assert decided.actions == ((CreateEni(1, address_count=2),) if is_lasting else ())
    assert bool(decided.blocked) is not is_lasting


def test_cooling_addresses_are_not_free() -> None:
    """A cooling address is not available, other than in amazon-vpc-cni-k8s (I8)."""
    snapshot = replace(snapshot_of(5, 0, limits=InstanceLimits("t", 3, 10)), counts=PoolCounts(cooling=5))
    assert deficit_count(snapshot, PoolSettings(warm_ip_target=3)) == 3


@pytest.mark.parametrize(
    ("free", "cooling", "leaving", "deficit", "surplus"),
    [
        (9, 0, 0, 0, 0),
        (5, 4, 0, 0, 0),
        (2, 7, 0, 0, 0),
        (2, 9, 0, 0, 0),
        (1, 9, 0, 1, 0),
        (0, 9, 0, 2, 0),
        (5, 4, 4, 4, 0),
        (11, 7, 0, 0, 9),
        (11, 9, 0, 0, 9),
        (18, 0, 0, 0, 9),
    ],
)
def test_cooling_addresses_are_three_quarters_of_a_whole_eni_at_most(
    free: int, cooling: int, leaving: int, deficit: int, surplus: int
) -> None:
    """Of WARM_ENI_TARGET=1 with 9 addresses, 7 may be cooling: what is short and what is surplus agree. Those of an ENI that leaves
    come to nobody."""
    counts = PoolCounts(free=free, assigned=3, cooling=cooling)
    snapshot = replace(snapshot_of(9, 0, limits=InstanceLimits("t", 3, 10)), counts=counts, leaving_cooling_count=leaving)
    assert deficit_count(snapshot, PoolSettings()) == deficit
    assert surplus_count(snapshot, PoolSettings()) == surplus


LATER = PoolSettings(spare_eni_delay_s=30.0)


@pytest.mark.parametrize(
    ("settling", "free", "waiting", "settings", "is_postponed"),
    [
        (True, 5, 0, LATER, True),
        (False, 5, 0, LATER, False),
        (True, 4, 0, LATER, False),
        (True, 5, 6, LATER, False),
        (True, 5, 0, PoolSettings(), False),
        (True, 5, 0, replace(LATER, warm_ip_target=6), False),
        (True, 9, 0, replace(LATER, warm_eni_target=2), True),
        (True, 8, 0, replace(LATER, warm_eni_target=2), False),
    ],
)
def test_a_spare_eni_is_asked_for_once_no_add_has_come_for_a_while(
    settling: bool, free: int, waiting: int, settings: PoolSettings, is_postponed: bool
) -> None:
    """Only one that nobody waits for, and while half of the target is there; IP targets say themselves what they want."""
    full = snapshot_of(9, 9 - free, limits=InstanceLimits("t", 3, 10))
    growth = GrowthState(is_spare_eni_settling=settling)
    decided = plan(replace(full, growth=growth, waiting_count=waiting), settings=settings)
    assert decided.is_postponed is is_postponed
    assert bool(decided.actions) is not is_postponed
    assert decided.deficit_count > 0


@pytest.mark.parametrize(
    ("free", "cooling", "is_postponed"), [(5, 0, True), (4, 0, False), (3, 2, True), (3, 1, False), (2, 3, False), (2, 6, False)]
)
def test_half_of_the_target_may_be_cooling_by_half(free: int, cooling: int, is_postponed: bool) -> None:
    """WARM_ENI_TARGET=1 is 9 here. What cools comes back within the delay, so the spare ENI can wait; a quarter must be free."""
    counts = PoolCounts(free=free, cooling=cooling, assigned=9 - free - cooling)
    full = replace(snapshot_of(9, 9, limits=InstanceLimits("t", 3, 10)), counts=counts)
    decided = plan(replace(full, growth=GrowthState(is_spare_eni_settling=True)), settings=replace(LATER, warm_eni_target=1))
    assert decided.is_postponed is is_postponed
    assert decided.deficit_count == 9 - free - min(cooling, 7)


def test_addresses_that_are_held_back_do_not_fill_the_node() -> None:
    """maxPods counts what sandboxes can have: with 9 of 9 not shown by EC2 and held back, the pool grows elsewhere."""
    full = snapshot_of(9, 0, limits=InstanceLimits("t", 3, 10))
    settings = PoolSettings(warm_ip_target=2, max_pods=9)
    assert deficit_count(full, settings) == 0
    held = replace(full, counts=PoolCounts(free=9, withheld=9))
    assert deficit_count(held, settings) == 2
    assert plan(replace(held, waiting_count=4), settings=settings).actions == (CreateEni(1, address_count=4 + 2),)


def test_what_adds_wait_for_and_the_target_behind_them_share_a_call() -> None:
    """Several ADDs that wait take what comes, so WARM_IP_TARGET is asked for beside it; one alone may be the start's: it takes
    none."""
    empty = snapshot_of(0, 0, limits=InstanceLimits("t", 3, 15))
    settings = PoolSettings(warm_ip_target=5)
    for waiting, count in ((0, 5), (1, 5), (2, 7), (7, 12)):
        decided = plan(replace(empty, waiting_count=waiting), settings=settings)
        assert [action.address_count for action in decided.actions if isinstance(action, Allocate)] == [count]


def test_waiting_adds_are_demand() -> None:
    """With no target unmet, an ADD that waits makes the pool grow by what it needs."""
    snapshot = replace(snapshot_of(9, 9, limits=InstanceLimits("t", 3, 10)), waiting_count=4)
    decided = plan(snapshot, settings=PoolSettings(minimum_ip_target=1))
    assert decided.actions == (CreateEni(1, address_count=4),)


def test_a_full_instance_says_so() -> None:
    """The reason names the instance type, its ENIs and slots (I14)."""
    limits = InstanceLimits("m5.large", 3, 10)
    enis = tuple(EniCapacity(EniId(f"eni-{n}"), n, EniState.ATTACHED, 9) for n in range(3))
    decided = plan(PoolSnapshot(enis, PoolCounts(assigned=27), limits), settings=PoolSettings())
    assert decided.actions == ()
    assert decided.blocked is not None
    assert decided.blocked.kind is Blocked.NODE_FULL
    assert (decided.sentence, decided.deficit_count) == ("full: 27 of 27 slots hold addresses, free ones included", 9)


def test_an_eni_on_its_way_is_no_fullness() -> None:
    """While EC2 may have created the last ENI the node is not called full, for its slots are to come."""
    limits = InstanceLimits("m5.large", 3, 10)
    enis = tuple(EniCapacity(EniId(f"eni-{n}"), n, EniState.ATTACHED, 9) for n in range(2))
    growth = GrowthState(pending_enis=(PendingEni(2, 9),), pending="a creation is not answered")
    decided = plan(PoolSnapshot(enis, PoolCounts(assigned=18), limits, growth=growth), settings=PoolSettings())
    assert (decided.actions, decided.blocked) == ((), None)
    assert "full" not in decided.sentence


def test_one_is_not_many() -> None:
    """Counts of one are in the singular, wherever the planner speaks."""
    assert str(PoolCounts(assigned=1)) == "1 address: 1 assigned, 0 reserved, 0 cooling, 0 quarantined, 0 free"
    assert str(CreateEni(2, prefix_count=1)) == "create an ENI with 1 prefix as device 2"
    decided = plan(snapshot_of(0, 0, limits=InstanceLimits("t", 3, 10)), settings=PoolSettings(warm_ip_target=1))
    assert decided.sentence.startswith("short of 1 address: ")
    assert "1 addresses" not in decided.sentence


def test_a_block_is_kept_and_told() -> None:
    """While EC2's refusal lasts nothing is planned, and the sentence says for how long."""
    snapshot = replace(
        snapshot_of(0, 0, limits=InstanceLimits("t", 3, 10)),
        fault=growth_refusal("subnet-1 is empty", left_s=90.0),
    )
    decided = plan(snapshot, settings=PoolSettings())
    assert decided.actions == ()
    assert decided.blocked == snapshot.fault


def test_negative_targets_are_refused() -> None:
    """Settings that cannot be meant are an error, not a guess."""
    with pytest.raises(SettingsError, check=failed(FailureCode.TARGET_NEGATIVE, name="warm_ip_target")):
        PoolSettings(warm_ip_target=-1)


SNAPSHOTS = st.builds(
    lambda enis, free, assigned, cooling, waiting, limit, slots: PoolSnapshot(
        enis=tuple(EniCapacity(EniId(f"eni-{n}"), n, EniState.ATTACHED, min(used, slots)) for n, used in enumerate(enis[:limit])),
        counts=PoolCounts(free=free, assigned=assigned, cooling=cooling),
        limits=InstanceLimits("t", limit, slots + 1),
        waiting_count=waiting,
    ),
    st.lists(st.integers(0, 50), min_size=1, max_size=15),
    st.integers(0, 100),
    st.integers(0, 100),
    st.integers(0, 100),
    st.integers(0, 30),
    st.integers(1, 15),
    st.integers(1, 49),
)
SETTINGS = st.builds(
    PoolSettings,
    warm_eni_target=st.integers(0, 4),
    warm_ip_target=st.integers(0, 40),
    minimum_ip_target=st.integers(0, 60),
    warm_prefix_target=st.integers(0, 4),
    max_eni=st.integers(0, 16),
    max_pods=st.integers(0, 300),
    prefix_delegation=st.booleans(),
)


@given(SNAPSHOTS, SETTINGS)
def test_a_plan_never_asks_for_what_does_not_fit(snapshot: PoolSnapshot, settings: PoolSettings) -> None:
    """For any pool: no ENI beyond its slots, no instance beyond its ENIs, no device index twice, no pool beyond maxPods."""
    decided = plan(snapshot, settings=settings)
    assert decided == plan(snapshot, settings=settings), "same input, same output"
    slots, limits = snapshot.limits.slots_per_eni, snapshot.limits
    used = {eni.eni_id: eni.used_slot_count for eni in snapshot.enis}
    indexes = [eni.device_index for eni in snapshot.enis]
    added = 0
    for action in decided.actions:
        match action:
            case Allocate(eni_id, address_count, prefix_count):
                used[eni_id] += address_count + prefix_count
                assert address_count + prefix_count >= 1
                assert 0 in (address_count, prefix_count)
                assert used[eni_id] <= slots
                added += address_count + prefix_count * 16
            case CreateEni(device_index, address_count, prefix_count):
                assert 1 <= address_count + prefix_count <= slots
                assert 0 in (address_count, prefix_count)
                indexes.append(device_index)
                added += address_count + prefix_count * 16
    assert len(set(indexes)) == len(indexes)
    assert len(indexes) <= max(limits.eni_count, len(snapshot.enis))
    if settings.max_pods and decided.actions:
        last = decided.actions[-1]
        assert isinstance(last, Allocate | CreateEni)
        assert snapshot.counts.total + added <= settings.max_pods + (15 if last.prefix_count else 0)


@given(SNAPSHOTS, SETTINGS)
def test_a_plan_explains_itself(snapshot: PoolSnapshot, settings: PoolSettings) -> None:
    """For any pool: a deficit is acted upon or its blocker is named; nothing is done without a deficit (I14)."""
    decided = plan(snapshot, settings=settings)
    assert decided.sentence
    if decided.deficit_count == 0:
        assert decided.actions == ()
    elif not decided.actions and not settings.prefix_delegation:
        assert decided.blocked is not None
