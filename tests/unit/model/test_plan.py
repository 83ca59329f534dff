"""The pool planner against the behaviour of amazon-vpc-cni-k8s (`vectors_pool.json`), and its own promises for any input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.errors import SettingsError
from ipamd.model.growth import AllocateAddresses, AllocatePrefixes, CreateEni, GrowthState, PendingEni, Refusal
from ipamd.model.ids import EniId
from ipamd.model.placement import room_for_eni
from ipamd.model.plan import deficit_count, excess_count, plan
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot
from ipamd.model.stock import PoolCounts

NOW = datetime(2026, 1, 1, tzinfo=UTC)
VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors_pool.json").read_text())


def vectors(area: str, *, only: Mapping[str, Any] | None = None) -> list[Any]:
    """Vectors of one area as test parameters; `only` narrows by fields of `given`."""
    wanted = only or {}
    return [
        pytest.param(vector["given"], vector["expect"], id=f"{area}-{number}")
        for number, vector in enumerate(VECTORS)
        if vector["area"] == area and all(vector["given"].get(key) == value for key, value in wanted.items())
    ]


def settings_of(given_: Mapping[str, Any], *, max_pods: int = 0) -> PoolSettings:
    """Settings from a vector's environment; amazon-vpc-cni-k8s ignores WARM_ENI_TARGET in prefix mode."""
    env = given_.get("env", {})
    return PoolSettings(
        warm_eni_target=env.get("WARM_ENI_TARGET", 1),
        warm_ip_target=env.get("WARM_IP_TARGET", 0),
        minimum_ip_target=env.get("MINIMUM_IP_TARGET", 0),
        warm_prefix_target=env.get("WARM_PREFIX_TARGET", 0),
        max_eni=env.get("MAX_ENI", 0),
        max_pods=max_pods,
        prefix_delegation=given_.get("mode") == "prefix_delegation",
    )


def snapshot_of(total: int, assigned: int, *, limits: InstanceLimits) -> PoolSnapshot:
    """A pool with so many addresses on the primary ENI, none cooling."""
    return PoolSnapshot(
        enis=(EniCapacity(EniId("eni-0"), 0, EniState.ATTACHED, min(total, limits.slots_per_eni)),),
        counts=PoolCounts(free=total - assigned, assigned=assigned),
        limits=limits,
    )


@pytest.mark.parametrize(("given_", "expect"), vectors("warm_pool_short_over", only={"mode": "secondary_ip"}))
def test_short_and_over_equal_vpc_cni(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    """With nothing cooling, deficit and excess equal short and over of amazon-vpc-cni-k8s."""
    snapshot = snapshot_of(given_["total_ips"], given_["assigned_ips"], limits=InstanceLimits("t", 15, 50))
    settings = settings_of(given_)
    assert (deficit_count(snapshot, settings), excess_count(snapshot, settings)) == (expect["short"], expect["over"])
    assert settings.ip_targets_defined == expect["targets_defined"]


@pytest.mark.parametrize(("given_", "expect"), vectors("warm_pool_short_over", only={"mode": "prefix_delegation"}))
def test_short_in_prefixes_equals_vpc_cni(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    """In prefix mode the deficit, rounded up to /28s, equals short of amazon-vpc-cni-k8s; the excess, in whole free /28s, its over."""
    snapshot = snapshot_of(given_["total_ips"], given_["assigned_ips"], limits=InstanceLimits("t", 15, 50))
    assert -(-deficit_count(snapshot, settings_of(given_)) // 16) == expect["short"]
    assert min(excess_count(snapshot, settings_of(given_)) // 16, given_["free_prefixes"]) == expect["over"]


@pytest.mark.parametrize(
    ("given_", "expect"),
    [vector for vector in vectors("pool_too_low") if "total_ips" in vector.values[0]],
)
def test_low_equals_vpc_cni(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    """Whether the pool is low equals the answer of amazon-vpc-cni-k8s, maxPods included."""
    slots = given_.get("max_ips_per_eni") or given_["max_prefixes_per_eni"]
    snapshot = snapshot_of(given_["total_ips"], given_["assigned_ips"], limits=InstanceLimits("t", given_["max_eni"], slots + 1))
    settings = settings_of(given_, max_pods=given_["max_pods"])
    assert (deficit_count(snapshot, settings) > 0) == expect["low"]


@pytest.mark.parametrize(("given_", "expect"), vectors("room_for_eni"))
def test_room_for_an_eni_equals_vpc_cni(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    """A trunk's reserved place is one more that is not ours."""
    snapshot = PoolSnapshot(
        enis=tuple(EniCapacity(EniId(f"eni-{n}"), n, EniState.ATTACHED, 0) for n in range(given_["enis_in_store"])),
        counts=PoolCounts(),
        limits=InstanceLimits("t", given_["max_eni"], 10),
        unmanaged_eni_count=given_["unmanaged"] + given_["trunk_slot_reserved"],
    )
    assert room_for_eni(snapshot, PoolSettings()) == expect["result"]


@pytest.mark.parametrize(("given_", "expect"), [v for v in vectors("instance_limits") if "max_pods" in v.values[1]])
def test_max_pods_equals_vpc_cni(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    """maxPods = ENIs x (addresses - 1) + 2."""
    assert InstanceLimits(given_["instance_type"], given_["enis"], given_["ipv4_per_eni"]).max_pods == expect["max_pods"]


def converge(limits: InstanceLimits, settings: PoolSettings, pods: int) -> list[list[int]]:
    """Place pods one by one as the pool loop would see them.

    Returns: per ENI, the slots used and the addresses it gives. EC2 does what it is asked at once; placement is dense.
    """
    enis: list[list[int]] = [[0, 0]]
    placed = 0
    for _ in range(10_000):
        total = sum(addresses for _, addresses in enis)
        snapshot = PoolSnapshot(
            enis=tuple(EniCapacity(EniId(f"eni-{n}"), n, EniState.ATTACHED, used) for n, (used, _) in enumerate(enis)),
            counts=PoolCounts(free=total - placed, assigned=placed),
            limits=limits,
            waiting_count=int(placed < pods and total == placed),
        )
        decided = plan(snapshot, settings=settings, now=NOW)
        if not decided.actions:
            if placed == pods or total == placed:
                return enis
            placed += 1
            continue
        match decided.actions[0]:
            case AllocateAddresses(eni_id, count):
                enis[int(eni_id[4:])][0] += count
                enis[int(eni_id[4:])][1] += count
            case AllocatePrefixes(eni_id, count):
                enis[int(eni_id[4:])][0] += count
                enis[int(eni_id[4:])][1] += count * 16
            case CreateEni(_, address_count, prefix_count):
                enis.append([address_count + prefix_count, address_count + prefix_count * 16])
    raise AssertionError("the planner never comes to rest")


@pytest.mark.parametrize(("given_", "expect"), vectors("warm_pool_steady_state"))
def test_the_steady_state_equals_vpc_cni(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    """From empty to steady state: ENIs, addresses and prefixes as the tables of amazon-vpc-cni-k8s have them."""
    limits = InstanceLimits("t", given_.get("eni_limit", 15), given_.get("ipv4_limit_per_eni", 50))
    enis = converge(limits, settings_of(given_), given_["pods"])
    by_prefix = given_["mode"] == "prefix_delegation"
    total = sum(addresses for _, addresses in enis)
    found = {
        "attached_enis": len(enis),
        "total_secondary_ips": 0 if by_prefix else total,
        "free_ips": total - given_["pods"],
        "attached_prefixes": total // 16 if by_prefix else 0,
        "ips_per_eni": sorted((addresses for _, addresses in enis), reverse=True),
    }
    for name in ("attached_enis", "total_secondary_ips", "free_ips", "attached_prefixes", "ips_per_eni"):
        if name in expect:
            wanted = sorted(expect[name], reverse=True) if isinstance(expect[name], list) else expect[name]
            assert found[name] == wanted, name


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
    decided = plan(replace(snapshot, growth=growth), settings=PoolSettings(warm_ip_target=5), now=NOW)
    assert decided.actions == ()
    assert "the answer was lost" in decided.sentence
    more = plan(replace(snapshot, growth=growth), settings=PoolSettings(warm_ip_target=7), now=NOW)
    assert more.actions == (AllocateAddresses(EniId("eni-0"), 2),)


def test_a_creation_in_doubt_takes_its_place() -> None:
    """Neither its device index nor its place among the ENIs is used again."""
    snapshot = snapshot_of(9, 9, limits=InstanceLimits("t", 3, 10))
    growth = GrowthState(pending_enis=(PendingEni(1, 0),))
    decided = plan(replace(snapshot, growth=growth), settings=PoolSettings(warm_ip_target=20), now=NOW)
    assert decided.actions == (CreateEni(2, address_count=9),)


@pytest.mark.parametrize("is_lasting", [False, True])
def test_an_eni_is_created_only_where_waiting_does_not_help(is_lasting: bool) -> None:
    """Allocation is throttled for a second: its slots are waited for. Denied by IAM: addresses come with a new ENI."""
    snapshot = snapshot_of(5, 5, limits=InstanceLimits("t", 3, 10))
    growth = GrowthState(allocation=Refusal("refused", "do this", 1.0, is_lasting))
    decided = plan(replace(snapshot, growth=growth), settings=PoolSettings(warm_ip_target=2), now=NOW)
    assert decided.actions == ((CreateEni(1, address_count=2),) if is_lasting else ())
    assert bool(decided.blocked) is not is_lasting


def test_cooling_addresses_are_not_free() -> None:
    """A cooling address is not available, other than in amazon-vpc-cni-k8s (I8)."""
    snapshot = replace(snapshot_of(5, 0, limits=InstanceLimits("t", 3, 10)), counts=PoolCounts(cooling=5))
    assert deficit_count(snapshot, PoolSettings(warm_ip_target=3)) == 3


def test_addresses_that_are_held_back_do_not_fill_the_node() -> None:
    """maxPods counts what sandboxes can have: with 9 of 9 not shown by EC2 and held back, the pool grows elsewhere."""
    full = snapshot_of(9, 0, limits=InstanceLimits("t", 3, 10))
    settings = PoolSettings(warm_ip_target=2, max_pods=9)
    assert deficit_count(full, settings) == 0
    held = replace(full, counts=PoolCounts(free=9, held=9))
    assert deficit_count(held, settings) == 2
    assert plan(replace(held, waiting_count=4), settings=settings, now=NOW).actions == (CreateEni(1, address_count=4 + 2),)


def test_what_adds_wait_for_and_the_target_behind_them_share_a_call() -> None:
    """Several ADDs that wait take what comes, so WARM_IP_TARGET is asked for beside it; one alone may be the start's: it takes
    none."""
    empty = snapshot_of(0, 0, limits=InstanceLimits("t", 3, 15))
    settings = PoolSettings(warm_ip_target=5)
    for waiting, count in ((0, 5), (1, 5), (2, 7), (7, 12)):
        decided = plan(replace(empty, waiting_count=waiting), settings=settings, now=NOW)
        assert [action.count for action in decided.actions if isinstance(action, AllocateAddresses)] == [count]


def test_waiting_adds_are_demand() -> None:
    """With no target unmet, an ADD that waits makes the pool grow by what it needs."""
    snapshot = replace(snapshot_of(9, 9, limits=InstanceLimits("t", 3, 10)), waiting_count=4)
    decided = plan(snapshot, settings=PoolSettings(minimum_ip_target=1), now=NOW)
    assert decided.actions == (CreateEni(1, address_count=4),)


def test_a_full_instance_says_so() -> None:
    """The reason names the instance type, its ENIs and slots (I14)."""
    limits = InstanceLimits("m5.large", 3, 10)
    enis = tuple(EniCapacity(EniId(f"eni-{n}"), n, EniState.ATTACHED, 9) for n in range(3))
    decided = plan(PoolSnapshot(enis, PoolCounts(assigned=27), limits), settings=PoolSettings(), now=NOW)
    assert decided.actions == ()
    assert "all 3 of 3 ENIs that m5.large may have" in decided.blocked_by
    assert (decided.sentence, decided.deficit_count) == ("full: 27 of 27 slots are in use", 9)


def test_an_eni_on_its_way_is_no_fullness() -> None:
    """While the last ENI attaches the node is not called full, for its slots are to come."""
    limits = InstanceLimits("m5.large", 3, 10)
    states = (EniState.ATTACHED, EniState.ATTACHED, EniState.ATTACHING)
    enis = tuple(EniCapacity(EniId(f"eni-{n}"), n, state, 9) for n, state in enumerate(states))
    decided = plan(PoolSnapshot(enis, PoolCounts(assigned=27), limits), settings=PoolSettings(), now=NOW)
    assert decided.blocked_by == ""


def test_one_is_not_many() -> None:
    """Counts of one are in the singular, wherever the planner speaks."""
    assert str(PoolCounts(assigned=1)) == "1 address: 1 assigned, 0 reserved, 0 cooling, 0 quarantined, 0 free"
    assert str(CreateEni(2, prefix_count=1)) == "create an ENI with 1 prefix as device 2"
    decided = plan(snapshot_of(0, 0, limits=InstanceLimits("t", 3, 10)), settings=PoolSettings(warm_ip_target=1), now=NOW)
    assert decided.sentence.startswith("short of 1 address: ")
    assert "1 addresses" not in decided.sentence


def test_a_block_is_kept_and_told() -> None:
    """While EC2's refusal lasts nothing is planned, and the sentence says for how long."""
    snapshot = replace(
        snapshot_of(0, 0, limits=InstanceLimits("t", 3, 10)),
        retry_at=NOW + timedelta(seconds=90),
        blocked_reason="subnet-1 is empty",
    )
    decided = plan(snapshot, settings=PoolSettings(), now=NOW)
    assert decided.actions == ()
    assert decided.blocked_by == "subnet-1 is empty (next try in 90 s)"


def test_negative_targets_are_refused() -> None:
    """Settings that cannot be meant are an error, not a guess."""
    with pytest.raises(SettingsError, match="warm_ip_target"):
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
    decided = plan(snapshot, settings=settings, now=NOW)
    assert decided == plan(snapshot, settings=settings, now=NOW), "same input, same output"
    slots, limits = snapshot.limits.slots_per_eni, snapshot.limits
    used = {eni.eni_id: eni.used_slot_count for eni in snapshot.enis}
    indexes = [eni.device_index for eni in snapshot.enis]
    added = 0
    for action in decided.actions:
        match action:
            case AllocateAddresses(eni_id, count) | AllocatePrefixes(eni_id, count):
                used[eni_id] += count
                assert count >= 1
                assert used[eni_id] <= slots
                added += count * (16 if isinstance(action, AllocatePrefixes) else 1)
            case CreateEni(device_index, address_count, prefix_count):
                assert 1 <= address_count + prefix_count <= slots
                assert 0 in (address_count, prefix_count)
                indexes.append(device_index)
                added += address_count + prefix_count * 16
    assert len(set(indexes)) == len(indexes)
    assert len(indexes) <= max(limits.eni_count, len(snapshot.enis))
    if settings.max_pods and decided.actions:
        last = decided.actions[-1]
        is_prefix = isinstance(last, AllocatePrefixes) or (isinstance(last, CreateEni) and last.prefix_count)
        assert snapshot.counts.total + added <= settings.max_pods + (15 if is_prefix else 0)


@given(SNAPSHOTS, SETTINGS)
def test_a_plan_explains_itself(snapshot: PoolSnapshot, settings: PoolSettings) -> None:
    """For any pool: a deficit is acted upon or its blocker is named; nothing is done without a deficit (I14)."""
    decided = plan(snapshot, settings=settings, now=NOW)
    assert decided.sentence
    if decided.deficit_count == 0:
        assert decided.actions == ()
    elif not decided.actions and not settings.prefix_delegation:
        assert decided.blocked_by
