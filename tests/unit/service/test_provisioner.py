"""The pool grows ahead of need, and nothing that it creates at EC2 is lost, though calls fail and others change things."""

from __future__ import annotations

import threading
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.core.demand import PoolStatus
from ipamd.model.attachment import Attachment
from ipamd.model.blocked import Blocked
from ipamd.model.cloud import DescribedEni
from ipamd.model.errors import (
    CloudError,
    EniLimitError,
    PoolEmptyError,
    SubnetExhaustedError,
    WiringError,
)
from ipamd.model.growth_state import growth_refusal
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.refusals import RefusalCode
from ipamd.settings import PoolConfig, Settings
from tests.errors import refused_add
from tests.fakes.cloud import IDENTITY, INSTANCE, PRIMARY
from tests.fakes.node import FakeNode
from tests.patience import PATIENCE_S
from tests.rig import wait_until
from tests.unit.service.cloud_comparison import OTHER


def no_eni_is_lost(node: FakeNode) -> None:
    """I9: every ENI at EC2 is attached and recorded, or covered by an open intent."""
    recorded = {eni.eni_id for eni in node.datastore.enis()}
    covered = {intent.payload.get("eni_id") for intent in node.datastore.open_intents()}
    covered_unnamed = any("eni_id" not in intent.payload for intent in node.datastore.open_intents())
    for eni in node.ec2.enis.values():
        assert (eni.instance_id == INSTANCE and eni.eni_id in recorded) or eni.eni_id in covered or covered_unnamed


def test_a_second_eni_comes_before_it_is_needed(node: FakeNode) -> None:
    """With WARM_ENI_TARGET=1 the first sandbox brings the next ENI, in one creation that brings its addresses along."""
    node.add("a")
    before = node.ec2.calls["assign_addresses"]
    node.pool.cycle()
    assert (node.ec2.calls["create_eni"], node.ec2.calls["assign_addresses"]) == (1, before)
    assert len(node.datastore.enis()) == 2
    assert node.datastore.counts().free == 17
    no_eni_is_lost(node)


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


def test_prefix_mode_gives_all_sixteen_addresses(tmp_path: Path) -> None:
    """A delegated /28 gives 16 addresses, its first and last included (amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, GetIPv4Limit)."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_prefix_target=1, prefix_delegation=True))
    node.bring_up()
    assert node.datastore.counts().free == 16
    given = {node.add(f"s{number}").address for number in range(16)}
    assert len(given) == 16
    node.assert_sound()


def test_a_status_that_names_no_time_is_final() -> None:
    """A node that is full has no next try to wait for."""
    assert PoolStatus(blocked=growth_refusal("full")).retry_deadline is None


def test_an_add_outwaits_a_short_pause_of_the_pool(tmp_path: Path) -> None:
    """EC2 failed once and is asked again in a second: an ADD with a minute left waits for that."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=1))
    node.bring_up()
    node.add("only")
    refused = CloudError("not now")
    refused.may_have_happened = False
    node.ec2.fail["assign_addresses"] = [refused]
    node.pool.cycle()
    assert node.demand.status.blocked is not None
    node.demand.publish(replace(node.demand.status, generation=10))
    made: list[Attachment] = []
    waiter = threading.Thread(target=lambda: made.append(node.add("waits")))
    waiter.start()
    wait_until(lambda: node.demand.waiting()[0] == 1, what="the ADD waits")
    node.clock.advance(2)
    node.pool.cycle()
    waiter.join(PATIENCE_S)
    assert made, "it was refused although the pool was about to grow"


def test_an_add_does_not_wait_out_a_long_pause(tmp_path: Path) -> None:
    """The subnet is empty, and EC2 is asked again after the caller's deadline: it is told at once (I14)."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=1))
    node.bring_up()
    node.add("only")
    node.ec2.fail["assign_addresses"] = [SubnetExhaustedError("no free address")]
    node.pool.cycle()
    node.demand.publish(replace(node.demand.status, generation=10))
    with pytest.raises(PoolEmptyError, check=refused_add(RefusalCode.NO_ADDRESS)):
        node.add("told", deadline_s=60)


def behind_a_missing_link(node: FakeNode, *, failures: int) -> None:
    """Nine sandboxes use the primary ENI up, and the next ENI's host routing fails."""
    node.bring_up()
    for number in range(8):
        node.add(f"s{number}")
    node.hostnet.fail["setup_eni"] = [WiringError("its link did not appear") for _ in range(failures)]
    node.pool.cycle()
    node.add("s8")
    assert node.datastore.counts().free == 9


def test_addresses_behind_a_missing_link_do_not_hold_growth_back(tmp_path: Path) -> None:
    """An ENI whose link never appears has free addresses that nobody can get: after a minute another takes its place (I7, I14)."""
    node = FakeNode(tmp_path)
    behind_a_missing_link(node, failures=2)
    node.demand.join()
    node.clock.advance(61)
    node.pool.cycle()
    assert node.add("served").eni_id not in (PRIMARY, OTHER)


def test_a_host_that_refuses_every_eni_gets_one_more_and_no_other(tmp_path: Path) -> None:
    """ADDs wait, and the host refuses the routing of each new ENI: their addresses are on the way, so nothing runs away (I13), and
    the refusal names what stands in the way (I14)."""
    node = FakeNode(tmp_path)
    behind_a_missing_link(node, failures=1000)
    node.pool.set_limits(replace(node.ec2.limits, eni_count=15), settings=node.settings)
    for _ in range(3):
        node.demand.join()
    for _ in range(300):
        node.clock.advance(2)
        node.pool.cycle()
    assert node.ec2.calls["create_eni"] == 2, "one may be the ENI's fault, two are the host's"
    assert node.demand.status.kind is Blocked.HOST_ROUTING
    node.hostnet.fail["setup_eni"] = []
    node.clock.advance(31)
    node.pool.cycle()
    assert node.add("served").eni_id in (OTHER, "eni-3")


def test_enis_of_other_network_cards_take_no_place_on_ours(node: FakeNode) -> None:
    """The limit is the default card's: an EFA interface of card 1 is not subtracted from it."""
    for card in (1, 2):
        eni_id = EniId(f"eni-efa{card}")
        node.ec2.enis[eni_id] = replace(
            node.ec2.enis[PRIMARY],
            eni_id=eni_id,
            mac=MacAddress(f"02:00:00:00:ff:0{card}"),
            primary_address=IPv4Address(f"10.0.15.{card}"),
            secondary_addresses=frozenset(),
            interface_type="efa-only",
            attachment_id=f"attach-{eni_id}",
            instance_id=INSTANCE,
            device_index=10 + card,
            network_card=card,
        )
    node.enis.sync_with_ec2(IDENTITY)
    node.ec2.limits = replace(node.ec2.limits, eni_count=5)
    node.pool.set_limits(replace(node.ec2.limits, eni_count=3), settings=node.settings)
    node.add("a")
    node.pool.cycle()
    assert sum(eni.managed for eni in node.datastore.enis()) == 2


def test_prefix_mode_is_not_capped_by_the_table_of_single_addresses() -> None:
    """The instance type's maximum of pods counts single addresses (m5.large: 29); with prefixes it is no cap."""
    assert Settings(pool=PoolConfig(prefix_delegation=True)).pool_settings(max_pods=29).max_pods == 0
    assert Settings(pool=PoolConfig(prefix_delegation=True, max_pods=110)).pool_settings(max_pods=29).max_pods == 110
    assert Settings(pool=PoolConfig()).pool_settings(max_pods=29).max_pods == 29


def test_prefix_mode_reaches_max_pods(tmp_path: Path) -> None:
    """Where no whole /28 fits under VPC_IPAMD_MAX_PODS any more, single addresses fill the rest, and never more."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_prefix_target=1, prefix_delegation=True, max_pods=20))
    node.bring_up()
    for number in range(20):
        node.pool.cycle()
        node.add(f"s{number}", deadline_s=0.5)
    assert node.datastore.counts().total == 20


def test_a_deletion_that_ec2_refuses_is_tried_again_after_a_pause(node: FakeNode) -> None:
    """One try per wake-up, not one after the other (I13)."""
    node.add("a")
    node.ec2.fail["attach_eni"] = [EniLimitError("full") for _ in range(100)]
    node.ec2.fail["delete_eni"] = [CloudError("EC2 has a fault") for _ in range(100)]
    node.pool.cycle()
    node.clock.advance(700)
    before = node.ec2.calls["delete_eni"]
    node.pool.cycle()
    assert node.ec2.calls["delete_eni"] - before <= 2
    no_eni_is_lost(node)
