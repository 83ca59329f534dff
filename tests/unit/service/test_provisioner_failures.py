"""The pool when EC2 refuses, contradicts itself, or another tool changes it: nothing leaks, and the pool is never stuck."""

from __future__ import annotations

import threading
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.model.attachment import Attachment
from ipamd.model.errors import (
    CloudDeniedError,
    CloudError,
    EniLimitError,
    PoolEmptyError,
    SubnetExhaustedError,
    ThrottledError,
    WiringError,
)
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.pool import PoolSettings
from ipamd.settings import PoolConfig, Settings
from tests.fakes.cloud import IDENTITY, INSTANCE, PRIMARY
from tests.fakes.node import FakeNode
from tests.patience import PATIENCE_S
from tests.rig import wait_until
from tests.unit.service.cloud_comparison import OTHER
from tests.unit.service.test_provisioner import no_eni_is_lost


@pytest.mark.parametrize(
    "refusal",
    [
        ThrottledError("slow down"),
        CloudDeniedError("credentials expired"),
        SubnetExhaustedError("no free address"),
        EniLimitError("too many ENIs in this account"),
    ],
)
def test_a_replay_that_is_refused_keeps_its_intent(node: FakeNode, refusal: CloudError) -> None:
    """The first try's answer was lost, and may have made an ENI: a refusal of the replay says nothing about it (I9)."""
    node.add("a")
    node.ec2.lose["create_eni"] = [CloudError("connection reset")]
    node.pool.cycle()
    node.clock.advance(700)
    node.ec2.fail["create_eni"] = [refusal]
    node.pool.cycle()
    no_eni_is_lost(node)
    node.clock.advance(700)
    node.pool.cycle()
    assert len(node.ec2.enis) == len(node.datastore.enis()) == 2
    assert node.datastore.open_intents() == ()


def test_a_replay_that_stays_refused_is_closed(node: FakeNode) -> None:
    """Two refusals a minute or more apart are an answer: nothing was made, and the pool goes on (I9).

    Whether EC2 looks at the token before it looks for free addresses is not documented, so one refusal is not believed.
    """
    node.add("a")
    node.ec2.fail["create_eni"] = [CloudError("not answered"), *[SubnetExhaustedError("no free address")] * 2]
    node.pool.cycle()
    for is_closed in (False, True):
        assert node.datastore.open_intents() != ()
        node.clock.advance(121)
        node.pool.cycle()
        assert (node.datastore.open_intents() == ()) is is_closed


def test_the_first_refusal_of_a_creation_closes_it(node: FakeNode) -> None:
    """No try came before it, so EC2 has made nothing."""
    node.add("a")
    node.ec2.fail["create_eni"] = [SubnetExhaustedError("no free address")]
    node.pool.cycle()
    assert node.datastore.open_intents() == ()


def test_an_add_outwaits_a_short_pause_of_the_pool(tmp_path: Path) -> None:
    """EC2 failed once and is asked again in a second: an ADD with a minute left waits for that."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=1))
    node.bring_up()
    node.add("only")
    refused = CloudError("not now")
    refused.may_have_happened = False
    node.ec2.fail["assign_addresses"] = [refused]
    node.pool.cycle()
    assert node.demand.status().blocked_by
    node.demand.publish(replace(node.demand.status(), generation=10))
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
    node.demand.publish(replace(node.demand.status(), generation=10))
    with pytest.raises(PoolEmptyError, match="no free address"):
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
    assert "eni-2: its link did not appear" in node.demand.status().blocked_by
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
    """Where no whole /28 fits under MAX_PODS any more, single addresses fill the rest, and never more."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_prefix_target=1, prefix_delegation=True, max_pods=20))
    node.bring_up()
    for number in range(20):
        node.pool.cycle()
        node.add(f"s{number}", deadline_s=0.5)
    assert node.datastore.counts().total == 20


def go_on(node: FakeNode, *, minutes: int) -> None:
    """Let the pool work once a minute."""
    for _ in range(minutes):
        node.pool.cycle()
        node.clock.advance(61)


def test_an_eni_is_not_given_up_because_ec2_does_not_answer(node: FakeNode) -> None:
    """EC2 attached it, and answers nothing about it for some minutes: it is asked again, and the ENI is taken into use."""
    node.add("a")
    node.ec2.fail["describe_eni"] = [CloudError("Unavailable") for _ in range(8)]
    go_on(node, minutes=20)
    assert node.ec2.failed["describe_eni"] == 8
    assert (node.ec2.calls["create_eni"], node.ec2.calls["delete_eni"]) == (1, 0)
    assert len(node.datastore.enis()) == 2
    assert node.datastore.open_intents() == ()
    node.assert_sound()


def test_an_eni_is_given_up_when_ec2_never_tells(node: FakeNode) -> None:
    """After a quarter of an hour it is deleted, and another one is made (I9)."""
    node.add("a")
    node.ec2.fail["attach_eni"] = [CloudError("InternalError") for _ in range(100)]
    go_on(node, minutes=14)
    assert node.ec2.calls["delete_eni"] == 0
    go_on(node, minutes=3)
    assert node.ec2.calls["delete_eni"] == 1
    node.ec2.fail["attach_eni"] = []
    go_on(node, minutes=3)
    assert set(node.ec2.enis) == {eni.eni_id for eni in node.datastore.enis()}
    assert len(node.ec2.enis) == 2
    node.assert_sound()


@pytest.mark.parametrize("step", ["attach_eni", "set_delete_on_termination", "describe_eni"])
def test_a_throttled_step_is_continued_without_asking_where_things_stand(node: FakeNode, step: str) -> None:
    """EC2 throttled and did nothing: no Describe is spent on that, and no step that is done is repeated."""
    node.add("a")
    node.ec2.fail[step] = [ThrottledError("slow down") for _ in range(3)]
    go_on(node, minutes=8)
    assert len(node.datastore.enis()) == 2
    assert node.ec2.calls["describe_eni"] - node.ec2.failed["describe_eni"] == 1, "the last one, which verifies the attachment"
    done = {
        name: node.ec2.calls[name] - node.ec2.failed[name] for name in ("create_eni", "attach_eni", "set_delete_on_termination")
    }
    assert done == dict.fromkeys(done, 1)
    node.assert_sound()
