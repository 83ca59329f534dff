"""What is released, against the behaviour of amazon-vpc-cni-k8s (`vectors_pool.json`), in which order, and why the rest is kept."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest

from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.growth_state import GrowthState, PendingEni, growth_refusal
from ipamd.model.ids import EniId
from ipamd.model.plan import Plan, plan, surplus_count
from ipamd.model.pool_actions import ReleaseAddresses, ReleaseEni
from ipamd.model.pool_counts import PoolCounts
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot
from ipamd.model.release import draining
from ipamd.model.surplus import Hold
from tests.unit.model.plan_vectors import settings_of, vectors

LIMITS = InstanceLimits("t", 4, 15)
LONG_S = 3600.0
W5_M10 = PoolSettings(warm_ip_target=5, minimum_ip_target=10)


def an_eni(index: int, counts: PoolCounts, *, ours: bool = True, state: EniState = EniState.ATTACHED) -> EniCapacity:
    """One ENI; index 0 is the primary one."""
    used = counts.total
    return EniCapacity(
        EniId(f"eni-{index}"), index, state, used, is_primary=index == 0, created_by_us=ours and index > 0, counts=counts
    )


def pool(*enis: EniCapacity, limits: InstanceLimits = LIMITS) -> PoolSnapshot:
    """A pool whose surplus has been there for long; free addresses of ENI n are 10.0.n.x, the longest free first."""
    total = PoolCounts(**{name: sum(getattr(eni.counts, name) for eni in enis) for name in PoolCounts.__slots__})
    free = {
        eni.eni_id: ReleaseAddresses(
            eni.eni_id, tuple(IPv4Address(f"10.0.{eni.device_index}.{n + 1}") for n in range(eni.counts.free))
        )
        for eni in enis
        if eni.counts.free
    }
    hold = Hold(10_000, ages={eni.eni_id: LONG_S for eni in enis}, releasable=free)
    return PoolSnapshot(enis=enis, counts=total, limits=limits, hold=hold)


def decide(snapshot: PoolSnapshot, settings: PoolSettings = W5_M10) -> Plan:
    """Plan now."""
    return plan(snapshot, settings=settings)


@pytest.mark.parametrize(("given_", "expect"), [*vectors("deletable_eni"), *vectors("remove_extra_enis")])
def test_whole_enis_as_vpc_cni(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    """The same ENIs are deleted; trunk and EFA ENIs are no part of the pool."""
    slots = given_.get("max_ips_per_eni", 14)
    enis = [
        an_eni(index, PoolCounts(free=eni["free"], assigned=eni["used"]))
        for index, eni in enumerate(given_["enis"])
        if "unmanaged" not in eni
    ]
    decided = decide(pool(*enis, limits=InstanceLimits("t", 4, slots + 1)), settings_of(given_))
    assert [a.eni_id for a in decided.actions if isinstance(a, ReleaseEni)] == [f"eni-{n}" for n in expect["removed"]]


def test_a_target_of_no_eni_keeps_one_free_address() -> None:
    """Departure: amazon-vpc-cni-k8s would delete the last free ENI with WARM_ENI_TARGET=0, and create it again at once."""
    full = an_eni(0, PoolCounts(assigned=14))
    assert decide(pool(full, an_eni(1, PoolCounts(free=14))), PoolSettings(warm_eni_target=0)).actions == ()


def test_sparsest_eni_last_device_longest_free() -> None:
    """Single addresses go from the ENI that empties first, the longest free first, one call for each ENI."""
    snapshot = pool(
        an_eni(0, PoolCounts(free=4, assigned=10)),
        an_eni(1, PoolCounts(free=3, assigned=2)),
        an_eni(2, PoolCounts(free=6, assigned=2)),
    )
    first, second = decide(snapshot).actions
    assert first == ReleaseAddresses(EniId("eni-2"), tuple(IPv4Address(f"10.0.2.{n}") for n in range(1, 7)))
    assert second == ReleaseAddresses(EniId("eni-1"), (IPv4Address("10.0.1.1"), IPv4Address("10.0.1.2")))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"counts": PoolCounts(free=11, cooling=1)}, "1 address cooling"),
        ({"counts": PoolCounts(free=11, quarantined=1)}, "1 address quarantined"),
        ({"counts": PoolCounts(free=11, reserved=1)}, "1 address in use"),
        ({"counts": PoolCounts(free=12, withheld=2)}, "2 addresses held back"),
        ({"counts": PoolCounts(free=12), "created_by_us": False}, "was not created by us"),
        ({"counts": PoolCounts(free=12), "host_ready": False}, "no host routing"),
    ],
)
def test_an_eni_that_must_stay_says_why(change: dict[str, Any], why: str) -> None:
    """Whatever is in excess, and the plan's sentence names the reason."""
    other = replace(an_eni(1, PoolCounts()), **change)
    decided = decide(pool(an_eni(0, PoolCounts(free=14)), other), PoolSettings(warm_eni_target=0))
    assert decided.actions == ()
    assert why in decided.retention_reason if decided.excess_count else why == "no host routing"


def test_a_young_eni_stays() -> None:
    """For a minute."""
    snapshot = pool(an_eni(0, PoolCounts(free=14)), an_eni(1, PoolCounts(free=14)))
    young = replace(snapshot, hold=replace(snapshot.hold, ages={EniId("eni-1"): 59.0}))
    decided = decide(young, PoolSettings())
    assert decided.actions == ()
    assert "younger than 60 s" in decided.retention_reason
    assert decide(snapshot, PoolSettings()).actions == (ReleaseEni(EniId("eni-1")),)


@pytest.mark.parametrize(
    "obstacle",
    [
        {"waiting_count": 1},
        {"growth": GrowthState(pending_enis=(PendingEni(3, 1),))},
        {"growth": GrowthState(pending_address_count=1)},
        {"growth": GrowthState(has_stuck_eni=True)},
        {"fault": growth_refusal("a fault")},
    ],
)
def test_nothing_goes_while_something_is_under_way(obstacle: dict[str, Any]) -> None:
    """Growth comes first, and so does an ADD that waits."""
    snapshot = pool(an_eni(0, PoolCounts(free=14)), an_eni(1, PoolCounts(free=14)))
    assert decide(snapshot).actions != ()
    stopped = decide(replace(snapshot, **obstacle))
    assert stopped.actions == ()
    assert stopped.retention_reason


def test_an_earlier_refusal_is_named() -> None:
    """EC2 refuses to take anything back."""
    snapshot = pool(an_eni(0, PoolCounts(free=14)))
    refused = replace(snapshot, hold=replace(snapshot.hold, refusal=growth_refusal("IAM does not allow it", left_s=60.0)))
    decided = decide(refused)
    assert decided.actions == ()
    assert "IAM does not allow it" in decided.retention_reason


def test_no_more_than_what_was_surplus_all_the_time() -> None:
    """Two addresses settled: two go, though more are in excess now."""
    snapshot = pool(an_eni(0, PoolCounts(free=14)), an_eni(1, PoolCounts(free=14)))
    decided = decide(replace(snapshot, hold=replace(snapshot.hold, stable_surplus=2)))
    assert decided.excess_count == 18
    assert decided.actions == (ReleaseAddresses(EniId("eni-1"), (IPv4Address("10.0.1.1"), IPv4Address("10.0.1.2"))),)


def test_addresses_of_the_mode_that_is_off_go_first() -> None:
    """After a switch to prefixes single addresses are released before /28s, and after a switch back /28s before single ones."""
    block = IPv4Network("10.0.9.0/28")
    singles = tuple(IPv4Address(f"10.0.1.{n}") for n in range(1, 5))
    eni = replace(an_eni(0, PoolCounts(free=36)), prefix_count=2)
    snapshot = pool(eni, limits=LIMITS)
    hold = replace(snapshot.hold, releasable={eni.eni_id: ReleaseAddresses(eni.eni_id, singles, (block,))}, stable_surplus=4)
    to_prefixes = decide(replace(snapshot, hold=hold), PoolSettings(prefix_delegation=True, warm_prefix_target=1))
    assert to_prefixes.actions == (ReleaseAddresses(eni.eni_id, singles),)
    hold = replace(hold, stable_surplus=18)
    back = decide(replace(snapshot, hold=hold), PoolSettings(warm_ip_target=1))
    assert back.actions == (ReleaseAddresses(eni.eni_id, singles[:2], (block,)),)


def test_draining_marks_the_sparse_enis_that_the_target_can_do_without() -> None:
    """As many as fit into the surplus, and what was marked stays marked while it fits."""
    enis = (
        an_eni(0, PoolCounts(free=10, assigned=4)),
        an_eni(1, PoolCounts(free=5, assigned=2)),
        an_eni(2, PoolCounts(free=6, assigned=1)),
    )
    snapshot = pool(*enis)
    surplus = surplus_count(snapshot, W5_M10)
    assert draining(snapshot, W5_M10, surplus=8).enis == {"eni-2"}
    assert draining(snapshot, W5_M10, surplus=8, before={EniId("eni-1")}).enis == {"eni-1"}
    assert draining(snapshot, W5_M10, surplus=surplus).enis == {"eni-1", "eni-2"}
    assert draining(snapshot, W5_M10, surplus=6, before={EniId("eni-1")}).enis == set()
