"""A frozen pool makes no ENI, and its attached ENIs still give what waiting ADDs need."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.growth_state import GrowthState
from ipamd.model.ids import EniId
from ipamd.model.plan import plan
from ipamd.model.pool_actions import Allocate, CreateEni
from ipamd.model.pool_counts import PoolCounts
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot

WHY = "operator: maintenance"


def pool(used: int, *, free: int = 0, waiting: int = 0, eni_count: int = 3) -> PoolSnapshot:
    """The primary ENI with `used` of nine slots in use, `free` of their addresses free."""
    return PoolSnapshot(
        enis=(EniCapacity(EniId("eni-0"), 0, EniState.ATTACHED, used),),
        counts=PoolCounts(free=free, assigned=used - free),
        limits=InstanceLimits("m5.large", eni_count, 10),
        waiting_count=waiting,
        frozen=WHY,
    )


def test_no_eni_is_made() -> None:
    """A full ENI and a place for another: thawed one is made; frozen none is, and the blocker says why and what helps."""
    full = pool(9, waiting=1)
    assert [type(action) for action in plan(replace(full, frozen=""), settings=PoolSettings()).actions] == [CreateEni]
    decided = plan(full, settings=PoolSettings())
    assert decided.actions == ()
    assert decided.blocked is not None
    assert WHY in decided.blocked.reason
    assert "ipamctl thaw" in decided.blocked.next_step
    assert decided.sentence.endswith(f"frozen, no new ENI and nothing released: {WHY}")


@pytest.mark.parametrize(("waiting", "free", "made"), [(0, 0, 0), (1, 0, 1), (2, 2, 0), (10, 0, 2)])
def test_after_a_rebalance_recommendation_an_eni_is_made_for_adds_only(waiting: int, free: int, made: int) -> None:
    """The instance may run for days: what ADDs wait for is made, nothing ahead of need, and no warm ENI beside it."""
    full = replace(pool(9, waiting=waiting, free=free, eni_count=4), may_grow_for_adds=True)
    decided = plan(full, settings=PoolSettings())
    assert [type(action) for action in decided.actions] == [CreateEni] * made
    assert (decided.blocked is None) == bool(waiting)
    assert "that no ADD waits for" in decided.sentence


@pytest.mark.parametrize("is_prefix_mode", [False, True])
def test_attached_enis_still_give(is_prefix_mode: bool) -> None:
    """An ADD that waits gets an address or a /28 of an ENI that has a slot left."""
    decided = plan(pool(4, waiting=1), settings=PoolSettings(prefix_delegation=is_prefix_mode, warm_ip_target=2))
    assert [(type(action), bool(action.prefix_count)) for action in decided.actions] == [(Allocate, is_prefix_mode)]
    assert decided.blocked is None


def test_a_full_node_is_full_not_frozen() -> None:
    """Where the limits leave no place, thawing would not help: the limit is named."""
    decided = plan(pool(9, waiting=1, eni_count=1), settings=PoolSettings())
    assert decided.blocked is not None
    assert "frozen" not in decided.blocked.reason


def test_at_target_it_is_said_too() -> None:
    """A pool that wants nothing says that it is frozen."""
    assert WHY in plan(pool(9, free=9), settings=PoolSettings()).sentence


@given(
    used=st.integers(0, 9),
    waiting=st.integers(0, 40),
    is_prefix_mode=st.booleans(),
    warm_ip_target=st.integers(0, 30),
    warm_eni_target=st.integers(0, 3),
)
def test_whatever_is_wanted(used: int, waiting: int, is_prefix_mode: bool, warm_ip_target: int, warm_eni_target: int) -> None:
    """For any demand and targets a frozen plan is the thawed one without its new ENIs, and asks no ENI for more than that."""
    settings = PoolSettings(
        warm_eni_target=warm_eni_target, warm_ip_target=warm_ip_target, prefix_delegation=is_prefix_mode, warm_prefix_target=1
    )
    frozen = pool(used, waiting=waiting)
    thawed = plan(replace(frozen, frozen=""), settings=settings)
    kept = tuple(action for action in thawed.actions if not isinstance(action, CreateEni))
    assert plan(frozen, settings=settings).actions == kept


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize("is_stuck", [False, True])
def test_free_addresses_that_nobody_can_have_keep_no_add_waiting(is_frozen: bool, is_stuck: bool) -> None:
    """After a rebalance recommendation an ENI is made for an ADD that waits, though another one has free addresses."""
    full = EniCapacity(EniId("eni-0"), 0, EniState.ATTACHED, 9, counts=PoolCounts(assigned=9))
    unusable = EniCapacity(EniId("eni-1"), 1, EniState.ATTACHED, 9, host_ready=False, counts=PoolCounts(free=9))
    snapshot = PoolSnapshot(
        enis=(full, unusable),
        counts=PoolCounts(free=9, assigned=9),
        limits=InstanceLimits("m5.xlarge", 4, 10),
        unready_free_count=9,
        unplugged_free_count=0 if is_stuck else 9,
        waiting_count=1,
        frozen="rebalance-recommendation: soon" if is_frozen else "",
        may_grow_for_adds=is_frozen,
        growth=GrowthState(has_stuck_eni=is_stuck, slot_caps={} if is_stuck else {EniId("eni-1"): 0}),
    )
    assert [type(one) for one in plan(snapshot, settings=PoolSettings(warm_ip_target=1)).actions] == [CreateEni]
