"""The pool grows ahead of need, and nothing that it creates at EC2 is lost."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.core.demand import PoolStatus
from ipamd.model.cloud import DescribedEni
from ipamd.model.errors import CloudError, CloudNotFoundError, EniLimitError, SubnetExhaustedError, ThrottledError
from ipamd.model.ids import EniId
from ipamd.model.pool import PoolSettings
from tests.fakes.cloud import INSTANCE, PRIMARY, FakeEc2
from tests.fakes.node import FakeNode


def no_eni_is_lost(node: FakeNode) -> None:
    """I9: every ENI at EC2 is attached and recorded, or covered by an open intent."""
    recorded = {eni.eni_id for eni in node.datastore.enis()}
    covered = {intent.payload.get("eni_id") for intent in node.datastore.open_intents()}
    covered_unnamed = any("eni_id" not in intent.payload for intent in node.datastore.open_intents())
    for eni in node.ec2.enis.values():
        assert (eni.instance_id == INSTANCE and eni.eni_id in recorded) or eni.eni_id in covered or covered_unnamed


def test_a_second_eni_comes_before_it_is_needed(node: FakeNode) -> None:
    """With WARM_ENI_TARGET=1 the first sandbox brings the next ENI."""
    node.add("a")
    node.pool.cycle()
    assert len(node.datastore.enis()) == 2
    assert node.datastore.counts().free == 17
    no_eni_is_lost(node)


def test_an_eni_costs_one_creation_call(node: FakeNode) -> None:
    """CreateNetworkInterface brings the addresses along; no assign call follows (docs/pool.md, The pool)."""
    node.add("a")
    before = node.ec2.calls["assign_addresses"]
    node.pool.cycle()
    assert node.ec2.calls["create_eni"] == 1
    assert node.ec2.calls["assign_addresses"] == before


@pytest.mark.parametrize("by_prefix", [False, True])
def test_addresses_that_describe_shows_late_are_known_from_the_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_prefix: bool
) -> None:
    """EC2 shows the new ENI attached before its addresses: they are supply all the same, and are not asked for again (I7)."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_prefix_target=40, prefix_delegation=True) if by_prefix else None)

    def without_addresses(eni_id: EniId) -> DescribedEni:
        return replace(node.ec2.describe_eni(eni_id), secondary_addresses=frozenset(), prefixes=frozenset())

    monkeypatch.setattr(node.ec2, "describe_attached_eni", without_addresses)
    node.bring_up()
    node.add("a")
    node.pool.cycle()
    made = [eni for eni in node.ec2.enis.values() if eni.eni_id != PRIMARY]
    assert made
    for eni in made:
        there = eni.secondary_addresses | {address for prefix in eni.prefixes for address in prefix}
        assert there == {row.address for row in node.datastore.addresses() if row.eni_id == eni.eni_id}
    no_eni_is_lost(node)


def test_an_idle_pool_asks_nothing(node: FakeNode) -> None:
    """A cycle at the target makes no EC2 call (I13)."""
    before = dict(node.ec2.calls)
    node.pool.cycle()
    node.pool.cycle()
    assert node.ec2.calls == before


@pytest.mark.parametrize("method", ["create_eni", "attach_eni"])
def test_a_lost_answer_leaks_no_eni(node: FakeNode, method: str) -> None:
    """When EC2 did it and the answer was lost, the replay finds the same ENI (I9)."""
    node.add("a")
    node.ec2.lose[method] = [CloudError("connection reset")]
    node.pool.cycle()
    no_eni_is_lost(node)
    node.clock.advance(120)
    node.pool.cycle()
    no_eni_is_lost(node)
    assert len(node.ec2.enis) == 2
    assert node.datastore.open_intents() == ()


def test_a_crash_after_creation_leaks_no_eni(node: FakeNode) -> None:
    """kill -9 between CreateNetworkInterface and its record: the stored token gives the same ENI again (I9)."""
    node.add("a")
    node.ec2.lose["create_eni"] = [CloudError("killed here")]
    node.pool.cycle()
    node.crash()
    node.bring_up()
    no_eni_is_lost(node)
    assert len(node.ec2.enis) == 2
    assert len(node.datastore.enis()) == 2


def test_a_throttled_attach_goes_on_later(node: FakeNode) -> None:
    """Throttling says nothing against the ENI: it is kept, and attached when EC2 allows (I9, I13)."""
    node.add("a")
    node.ec2.fail["attach_eni"] = [ThrottledError("slow down")]
    node.pool.cycle()
    assert len(node.ec2.enis) == 2
    no_eni_is_lost(node)
    node.clock.advance(120)
    node.pool.cycle()
    assert len(node.datastore.enis()) == 2


def test_a_lost_allocation_is_read_back(tmp_path: Path) -> None:
    """Addresses whose answer was lost are found on the ENI, not allocated again (I9)."""
    ec2 = FakeEc2()
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=3), ec2=ec2)
    ec2.lose["assign_addresses"] = [CloudError("connection reset")]
    node.bring_up()
    assert node.datastore.counts().total == 0
    node.clock.advance(120)
    node.pool.cycle()
    assert node.datastore.counts().free == 3
    assert ec2.calls["assign_addresses"] == 1


def test_an_empty_subnet_pauses_growth_and_says_why(tmp_path: Path) -> None:
    """Subnet exhaustion blocks for its pause and is the cause that a refused ADD names (I13, I14)."""
    ec2 = FakeEc2()
    node = FakeNode(tmp_path, ec2=ec2)
    ec2.fail["assign_addresses"] = [SubnetExhaustedError("subnet-1 has no free address")]
    node.bring_up()
    assert "no free address" in node.demand.status().blocked_by
    calls = dict(ec2.calls)
    node.pool.cycle()
    assert ec2.calls == calls, "not asked again during the pause"
    node.clock.advance(121)
    node.pool.cycle()
    assert node.datastore.counts().free == 9


def test_prefix_mode_falls_back_to_addresses(tmp_path: Path) -> None:
    """A subnet without a free /28 may still have addresses."""
    ec2 = FakeEc2()
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=5, prefix_delegation=True), ec2=ec2)
    ec2.fail["assign_prefixes"] = [SubnetExhaustedError("no free /28")]
    node.bring_up()
    assert node.datastore.counts().free == 5
    assert ec2.calls["assign_addresses"] == 1


def test_prefix_mode_gives_all_sixteen_addresses(tmp_path: Path) -> None:
    """A delegated /28 gives 16 addresses, its first and last included (amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, GetIPv4Limit)."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_prefix_target=1, prefix_delegation=True))
    node.bring_up()
    assert node.datastore.counts().free == 16
    given = {node.add(f"s{number}").address for number in range(16)}
    assert len(given) == 16
    node.assert_sound()


def test_an_address_that_ec2_took_away_is_forgotten_only_if_unused(node: FakeNode) -> None:
    """Two complete answers remove free addresses; one in use is lost: kept and reported (I2)."""
    used = node.add("a").address
    free = next(row.address for row in node.datastore.addresses() if row.owner is None)
    for address in (used, free):
        eni = node.ec2.enis["eni-primary"]
        node.ec2.unassign(eni.eni_id, addresses=[address], prefixes=[])

    outcome = node.look_twice()
    assert node.datastore.address(free) is None
    assert node.datastore.address(used) is not None
    assert any(str(used) in sentence for sentence in outcome.kept)


def test_a_stepped_wall_clock_does_not_hold_the_pool_back(node: FakeNode) -> None:
    """A pause after an error lasts as long as it was meant to, though the wall clock goes back an hour meanwhile."""
    node.add("a")
    node.ec2.fail["create_eni"] = [CloudError("internal error")]
    node.pool.cycle()
    node.clock.step_wall(-3600)
    node.clock.advance(61)
    node.pool.cycle()
    assert len(node.ec2.enis) == 2


def test_a_wall_clock_put_forward_does_not_end_the_pool_s_pause(node: FakeNode) -> None:
    """EC2 is left in peace for the whole pause, whatever the wall clock says (I13)."""
    node.add("a")
    node.ec2.fail["create_eni"] = [EniLimitError("instance is full")]
    node.pool.cycle()
    asked = node.ec2.calls["create_eni"]
    node.clock.step_wall(3600)
    node.pool.cycle()
    assert node.ec2.calls["create_eni"] == asked


def test_prefixes_may_run_out_a_second_time(tmp_path: Path) -> None:
    """Single addresses take the place of a missing /28 every time, not only the first."""
    node = FakeNode(tmp_path, settings=PoolSettings(prefix_delegation=True, warm_prefix_target=1))
    node.ec2.fail["assign_prefixes"] = [SubnetExhaustedError("no free /28")]
    node.bring_up()
    first = node.datastore.counts().total
    assert first > 0
    node.clock.advance(121)
    for number in range(first):
        node.add(f"sandbox-{number}")
    node.ec2.fail["create_eni"] = [SubnetExhaustedError("no free /28")]
    node.pool.cycle()
    assert node.datastore.counts().total > first


def test_an_eni_that_ec2_does_not_show_yet_is_not_taken_for_gone(node: FakeNode) -> None:
    """Describe lags behind Create: NotFound of what we made a moment ago is silence; the intent stays open (I9, I11)."""
    node.add("a")
    node.ec2.fail["describe_eni"] = [CloudNotFoundError("no such ENI") for _ in range(4)]
    node.ec2.fail["describe_enis"] = [CloudError("not now") for _ in range(4)]
    for _ in range(4):
        node.pool.cycle()
        no_eni_is_lost(node)
        node.clock.advance(5)
    node.clock.advance(120)
    node.pool.cycle()
    no_eni_is_lost(node)
    assert not node.provisioner.has_open_intents()
    assert len(node.ec2.enis) == len(node.datastore.enis()) == 2


def test_a_restart_does_not_lose_an_eni_that_ec2_does_not_show_yet(node: FakeNode) -> None:
    """The same, with a crash between creation and attachment (I9)."""
    node.add("a")
    node.ec2.fail["attach_eni"] = [ThrottledError("slow down")]
    node.pool.cycle()
    node.crash()
    node.ec2.fail["describe_eni"] = [CloudNotFoundError("no such ENI")]
    node.bring_up()
    no_eni_is_lost(node)
    node.clock.advance(120)
    node.pool.cycle()
    assert len(node.ec2.enis) == len(node.datastore.enis()) == 2


def test_an_eni_that_is_fuller_than_we_knew_is_read_again(tmp_path: Path) -> None:
    """EC2 refuses an allocation because addresses are there that we do not know of: they are recorded, and the pool continues."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=2))
    node.bring_up()
    node.add("a")
    node.add("b")
    primary = node.ec2.enis[PRIMARY]
    unknown = {IPv4Address("10.0.4.1"), IPv4Address("10.0.4.2")}
    node.ec2.enis[PRIMARY] = replace(primary, secondary_addresses=primary.secondary_addresses | unknown)
    node.ec2.fail["assign_addresses"] = [EniLimitError("the ENI is full")]
    node.pool.cycle()
    assert unknown <= {row.address for row in node.datastore.addresses()}
    assert node.datastore.counts().free == 2
    assert node.add("c").address in unknown


def test_a_clock_that_is_stepped_does_not_lose_a_new_eni(node: FakeNode) -> None:
    """EC2 does not show yet what it made, and the wall clock jumps an hour: NotFound is still only late (I9)."""
    node.add("a")
    node.ec2.lose["create_eni"] = [CloudError("connection reset")]
    node.ec2.fail["attach_eni"] = [ThrottledError("slow down")]
    node.pool.cycle()
    node.clock.advance(5)
    node.pool.cycle()
    (intent,) = node.datastore.open_intents()
    assert "eni_id" in intent.payload
    node.clock.step_wall(3600)
    node.ec2.fail["describe_eni"] = [CloudNotFoundError("not yet")]
    node.clock.advance(5)
    node.pool.cycle()
    assert node.datastore.open_intents() != (), "believed gone an hour too early"
    for _ in range(4):
        node.clock.advance(30)
        node.pool.cycle()
    assert node.datastore.open_intents() == ()
    no_eni_is_lost(node)


def test_a_status_that_names_no_time_is_final() -> None:
    """A node that is full has no next try to wait for."""
    assert PoolStatus(blocked_by="full").retry_deadline is None
