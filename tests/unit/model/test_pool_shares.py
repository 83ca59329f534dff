"""How pools share the ENIs of a node: each row is a node, and how many ENIs each pool may get more."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.model.blocked import Blocked
from ipamd.model.eni import Eni, InstanceLimits
from ipamd.model.growth_blocker import full_node
from ipamd.model.growth_state import PendingEni
from ipamd.model.ids import EniId, MacAddress, SubnetId
from ipamd.model.plan import plan
from ipamd.model.pod_pools import OWN, PodPool, PodPools
from ipamd.model.pool_actions import CreateEni
from ipamd.model.pool_counts import EniStock, PoolCounts, Stock
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_shares import claims, most_pods, other_pool_eni_count, stock_of_pool, with_share
from ipamd.model.pool_snapshot import PoolSnapshot, pool_snapshot

SETTINGS = PoolSettings(warm_ip_target=5)
SLOTS = 10


def stock_of(*pools: str, full: bool = True) -> Stock:
    """The primary ENI of the node's own pool, and one ENI of each named pool; all slots in use."""
    enis = []
    for index, pool in enumerate((OWN, *pools)):
        eni = Eni(
            EniId(f"eni-{index}"),
            MacAddress(f"02:00:00:00:00:{index:02x}"),
            index,
            0,
            SubnetId("subnet-1"),
            IPv4Network("10.0.0.0/16"),
            IPv4Address(f"10.0.0.{index + 1}"),
            index == 0,
            host_ready=True,
            created_by_us=index > 0,
            pool=pool,
        )
        counts = PoolCounts(assigned=SLOTS) if full else PoolCounts(free=SLOTS)
        enis.append(EniStock(eni, counts, SLOTS, 0, 0))
    return Stock(tuple(enis), PoolCounts(assigned=SLOTS * len(enis)))


def snapshot_of(stock: Stock, pool: str, pools: PodPools, *, eni_count: int, waiting_count: int = 0) -> PoolSnapshot:
    """The planner's input for one pool, with its share."""
    snapshot = pool_snapshot(
        stock_of_pool(stock, pool, pools), limits=InstanceLimits("t", eni_count, SLOTS + 1), waiting_count=waiting_count
    )
    snapshot = replace(snapshot, pool=pool, other_pool_eni_count=other_pool_eni_count(stock, pool, pools))
    return with_share(snapshot, SETTINGS, claims(stock, pools))


TWO = PodPools({"a": PodPool("a"), "b": PodPool("b")})
UNRESERVED = PodPools({"a": PodPool("a", reserved_enis=0), "b": PodPool("b", reserved_enis=0, max_enis=2)})
GREEDY = PodPools({"a": PodPool("a", reserved_enis=2), "b": PodPool("b")})


@pytest.mark.parametrize(
    ("pools", "eni_count", "enis", "expected"),
    [
        (TWO, 4, (), {OWN: 1, "a": 2, "b": 2}),
        (TWO, 4, ("a",), {OWN: 1, "a": 1, "b": 2}),
        (TWO, 4, ("a", "b"), {OWN: 1, "a": 1, "b": 1}),
        (TWO, 4, ("a", ""), {OWN: 0, "a": 0, "b": 1}),
        (TWO, 3, (), {OWN: 0, "a": 1, "b": 1}),
        (TWO, 2, (), {OWN: 0, "a": 1, "b": 1}),
        (TWO, 1, (), {OWN: 0, "a": 0, "b": 0}),
        (UNRESERVED, 4, (), {OWN: 3, "a": 3, "b": 2}),
        (UNRESERVED, 8, ("b", "b"), {OWN: 5, "a": 5, "b": 0}),
        (GREEDY, 5, (), {OWN: 1, "a": 3, "b": 2}),
        (GREEDY, 5, ("a",), {OWN: 1, "a": 2, "b": 2}),
        (GREEDY, 5, ("a", "a"), {OWN: 1, "a": 1, "b": 2}),
    ],
)
def test_a_pool_leaves_the_places_of_others(
    pools: PodPools, eni_count: int, enis: tuple[str, ...], expected: dict[str, int]
) -> None:
    """Up to its reservation a pool may take any free place, beyond it only those that no other pool needs for its own."""
    stock = stock_of(*enis)
    allowed = {pool: snapshot_of(stock, pool, pools, eni_count=eni_count).place_cap for pool in pools.names}
    assert allowed == expected


def test_an_eni_under_way_counts_for_its_pool() -> None:
    """A creation whose outcome is not known meets the reservation, and no second one is kept free for it."""
    found = {claim.name: claim.eni_count for claim in claims(stock_of("a"), TWO, (PendingEni(2, 0, "b"), PendingEni(3)))}
    assert found == {OWN: 2, "a": 1, "b": 1}


def test_a_draining_eni_meets_no_reservation() -> None:
    """Its pool needs another one for new pods; an ENI of a pool that the file does not name counts for none."""
    stock = stock_of("a", "gone")
    draining = tuple(replace(one, eni=replace(one.eni, excluded="other groups")) for one in stock.enis)
    assert {claim.name: claim.eni_count for claim in claims(replace(stock, enis=draining), TWO)} == {OWN: 0, "a": 0, "b": 0}


@pytest.mark.parametrize("pool", ["a", "b"])
def test_the_planner_creates_for_the_pool(pool: str) -> None:
    """The action names the pool, and its place is not that of another pool's ENI."""
    snapshot = snapshot_of(stock_of("a", "b"), pool, TWO, eni_count=4, waiting_count=1)
    assert plan(snapshot, settings=SETTINGS).actions == (CreateEni(3, address_count=5, pool=pool),)


def test_a_full_share_is_refused_with_its_cause() -> None:
    """There is a place, and it is another pool's; a node without any place says so, as before."""
    kept = snapshot_of(stock_of("a"), "a", TWO, eni_count=3, waiting_count=1)
    decided = plan(kept, settings=SETTINGS)
    assert decided.actions == ()
    assert decided.blocked is not None
    assert decided.blocked.kind is Blocked.NODE_FULL
    assert decided.blocked == full_node(kept, SETTINGS)
    assert "pool b" in decided.blocked.reason
    without_place = full_node(snapshot_of(stock_of("a", "b"), "a", TWO, eni_count=3, waiting_count=1), SETTINGS)
    assert "2 of other pools" in without_place.reason


def test_free_addresses_of_other_pools_take_nothing_from_max_pods() -> None:
    """Pods do; the cap is never 0, which would mean none."""
    assert most_pods(0, stock_of("a"), "a") == 0
    assert most_pods(29, stock_of("a", full=False), "a") == 29
    assert most_pods(29, stock_of("a", "b"), "a") == 29 - 2 * SLOTS
    assert most_pods(10, stock_of("a", "b"), "a") == 1


@given(
    eni_count=st.integers(1, 15),
    held=st.lists(st.sampled_from(["", "a", "b"]), max_size=14),
    reserved=st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
def test_no_pool_is_kept_from_a_reservation_that_fits(eni_count: int, held: list[str], reserved: tuple[int, int]) -> None:
    """If the reservations fit, then whatever pools at or above theirs take, each pool below its own still finds its places."""
    pools = PodPools({"a": PodPool("a", reserved_enis=reserved[0]), "b": PodPool("b", reserved_enis=reserved[1])})
    stock = stock_of(*held[: eni_count - 1])
    unmet = {claim.name: claim.unmet for claim in claims(stock, pools)}
    free_count = eni_count - len(stock.enis)
    for pool in pools.names:
        cap = snapshot_of(stock, pool, pools, eni_count=eni_count).place_cap
        assert cap is not None
        assert 0 <= cap <= free_count
        kept = sum(unmet[other] for other in pools.names if other != pool)
        if unmet[pool]:
            assert cap >= min(unmet[pool], free_count)
        else:
            assert cap == max(free_count - kept, 0)
