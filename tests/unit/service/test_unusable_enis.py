"""An ENI that cannot give addresses does not keep the pool from growing elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from itertools import chain
from pathlib import Path

import pytest

from ipamd.model.cloud import DescribedEni, EniRequest
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import CloudDeniedError, PoolEmptyError, SubnetExhaustedError
from ipamd.model.ids import EniId, MacAddress, SubnetId
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.cloud import INSTANCE, PRIMARY, FakeEc2
from tests.fakes.node import FakeNode
from tests.stories.external_changes import link_event, pass_time, settle


def started(tmp_path: Path, ec2: FakeEc2, **targets: int) -> FakeNode:
    """A node that serves."""
    node = FakeNode(tmp_path, settings=PoolSettings(**targets), ec2=ec2)  # type: ignore[arg-type]  # only numbers are used
    node.bring_up()
    return node


def add_all(node: FakeNode, names: Iterable[str]) -> int:
    """ADD each, time passing in between; returns how many got an address."""
    served = 0
    for name in names:
        try:
            node.add(name, deadline_s=0.1)
            served += 1
        except PoolEmptyError:
            node.wiring.netns.pop(f"/run/netns/{name}")
        pass_time(node, 20.0)
    return served


def take_link(node: FakeNode, name: str) -> None:
    """Somebody moves the link of an ENI into another namespace: EC2 shows the ENI attached for ever."""
    mac = node.ec2.enis[EniId(name)].mac
    node.hostnet.unplugged.add(mac)
    link_event(node, mac)


def test_free_addresses_of_an_eni_that_is_being_detached_are_no_supply(tmp_path: Path) -> None:
    """EC2 says *detaching* for hours: nobody will get them, so the pool grows and does not say that it is at its target."""
    node = started(tmp_path, FakeEc2(), warm_eni_target=1)
    assert add_all(node, ["a"]) == 1
    settle(node)
    leaving = node.ec2.enis[EniId("eni-2")]
    node.ec2.enis[leaving.eni_id] = replace(leaving, attachment_status="detaching")
    take_link(node, leaving.eni_id)
    settle(node)
    assert add_all(node, (f"s{number}" for number in range(12))) == 12
    assert EniId("eni-3") in node.ec2.enis
    node.datastore.close()


@pytest.mark.parametrize("max_pods", [0, 40])
def test_a_stuck_eni_gets_no_more_and_is_not_counted_for_max_pods(tmp_path: Path, max_pods: int) -> None:
    """Its free addresses and slots are of no use to anybody: it is not filled, and 40 pods fit on the other three ENIs."""
    ec2 = FakeEc2(limits=InstanceLimits("m5.xlarge", 4, 15))
    node = started(tmp_path, ec2, warm_ip_target=2, minimum_ip_target=16, max_pods=max_pods)
    assert len(ec2.attached()) == 2
    settle(node)
    take_link(node, "eni-2")
    before = ec2.enis[EniId("eni-2")].secondary_addresses
    assert add_all(node, (f"s{number}" for number in range(60))) >= 36
    assert len(ec2.enis[EniId("eni-2")].secondary_addresses - before) <= 2
    attached = len(node.datastore.attachments())
    assert not max_pods or attached <= max_pods
    node.datastore.close()


def test_several_enis_without_link_do_not_starve_the_node(tmp_path: Path) -> None:
    """Two links were moved away: why is known for each, and it is not the node's fault, so a further ENI is filled."""
    node = started(tmp_path, FakeEc2(limits=InstanceLimits("m5.xlarge", 4, 4)), warm_ip_target=1)
    assert add_all(node, (f"s{number}" for number in range(8))) == 8
    for attachment in node.datastore.attachments():
        if attachment.eni_id != PRIMARY:
            node.delete(attachment.key.container_id)
    node.cool()
    settle(node)
    assert len(node.ec2.attached()) == 3
    take_link(node, "eni-2")
    take_link(node, "eni-3")
    assert add_all(node, (f"t{number}" for number in range(8))) == 3
    node.datastore.close()


def test_a_full_subnet_of_others_does_not_stop_the_nodes_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody attached an ENI of another subnet, which is full: that says nothing about the subnet of all other ENIs."""
    ec2 = FakeEc2(limits=InstanceLimits("m5.xlarge", 4, 4))
    other = DescribedEni(
        EniId("eni-9"),
        MacAddress("02:00:00:00:00:99"),
        SubnetId("subnet-2"),
        IPv4Address("10.0.1.1"),
        status="in-use",
        attachment_id="attach-9",
        attachment_status="attached",
        instance_id=INSTANCE,
        device_index=1,
    )
    ec2.enis[other.eni_id] = other
    real = ec2.assign_addresses
    refused: list[EniId] = []

    def assign(eni_id: EniId, *, count: int) -> frozenset[IPv4Address]:
        if eni_id == other.eni_id:
            refused.append(eni_id)
            raise SubnetExhaustedError("subnet-2 is full")
        return real(eni_id, count=count)

    monkeypatch.setattr(ec2, "assign_addresses", assign)
    node = started(tmp_path, ec2, warm_ip_target=1)
    assert add_all(node, (f"s{number}" for number in range(20))) == 9
    assert {row.eni_id for row in node.datastore.attachments()} == {PRIMARY, EniId("eni-2"), EniId("eni-3")}
    assert len(refused) <= 3, "it is asked again after minutes, not at every ADD"
    node.datastore.close()


def test_a_new_eni_that_contradicts_a_record_ends_its_creation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EC2 gives the lost address of a running sandbox to our new ENI as its primary one: it is deleted, the ADD that waited for it is
    refused in time, another one serves the others, and nothing is asked for hours afterwards (I9, I13)."""
    ec2 = FakeEc2(limits=InstanceLimits("m5.xlarge", 4, 4))
    node = started(tmp_path, ec2, warm_ip_target=1)
    lost = node.add("a").address
    settle(node)
    ec2.unassign(PRIMARY, addresses=[lost], prefixes=[])
    settle(node)
    real = ec2.create_eni

    def create(request: EniRequest) -> DescribedEni:
        made = real(request)
        if made.eni_id == "eni-2":
            made = ec2.enis[made.eni_id] = replace(made, primary_address=lost)
        return made

    monkeypatch.setattr(ec2, "create_eni", create)
    assert add_all(node, (f"s{number}" for number in range(12))) == 11, (
        "all but the one that waited; a lost address takes no slot"
    )
    assert node.datastore.open_intents() == ()
    assert node.enis.book.unrecorded_enis() == {}
    assert EniId("eni-2") not in ec2.enis
    before = ec2.calls.total()
    for _ in range(12 * 60):
        pass_time(node, 60.0)
    assert ec2.calls.total() - before <= 12
    node.delete("a")
    node.cool()
    for _ in range(70):
        pass_time(node, 60.0)
    node.assert_sound()
    node.datastore.close()


# An ENI whose addresses nobody can be given is deleted, and another one is made: it takes no place for a pod's life (I9)


def steal(node: FakeNode, name: str) -> IPv4Address:
    """Other hands take the address of a live sandbox, and two looks at EC2 show it; then another ENI is wanted."""
    address = node.add(name).address
    primary = node.ec2.enis[PRIMARY]
    node.ec2.enis[PRIMARY] = replace(primary, secondary_addresses=primary.secondary_addresses - {address})
    node.look_twice()
    node.pool.cycle()
    node.add("another")
    return address


def give_next(node: FakeNode, addresses: Iterable[IPv4Address]) -> None:
    """EC2 gives freed addresses to whoever asks next."""
    fresh: Iterator[IPv4Address] = node.ec2._fresh  # type: ignore[assignment]
    node.ec2._fresh = chain(addresses, fresh)  # type: ignore[assignment]


def grow(node: FakeNode, seconds: int) -> None:
    """Let the pool loop run."""
    for _ in range(seconds // 5):
        node.pool.cycle()
        node.clock.advance(5)


def test_an_eni_with_a_pods_lost_address_is_replaced(node: FakeNode) -> None:
    """The address comes back as the primary address of our next ENI: that one goes, and the next one serves."""
    address = steal(node, "a")
    give_next(node, [address])
    grow(node, 120)
    assert [eni.eni_id for eni in node.ec2.enis.values() if eni.primary_address == address] == []
    assert {eni.eni_id for eni in node.datastore.enis()} == {eni.eni_id for eni in node.ec2.attached()}
    assert len(node.datastore.enis()) == 2
    assert node.datastore.open_intents() == ()
    assert node.health.conditions() == [] or not any("useless" in line for line in node.health.conditions())


def test_an_eni_with_the_primary_address_of_one_deleted_under_its_pods_is_not_attached(node: FakeNode) -> None:
    """The record of that one stays while they live, so EC2 is told before the attach, not after it, that the new one is of no use."""
    while len({row.eni_id for row in node.datastore.attachments()}) < 2:
        node.add(f"p{len(node.datastore.attachments())}")
        node.pool.cycle()
    gone = next(node.ec2.enis[row.eni_id] for row in node.datastore.attachments() if row.eni_id != PRIMARY)
    del node.ec2.enis[gone.eni_id]
    node.look_twice()
    assert gone.eni_id in {eni.eni_id for eni in node.datastore.enis()}
    take, attached = node.ec2._take, node.ec2.calls["attach_eni"]
    node.ec2._take = lambda count, *subnet: [gone.primary_address] if count == 1 else take(count, *subnet)  # type: ignore[method-assign]
    for number in range(6):  # another ENI is wanted
        node.add(f"q{number}")
    grow(node, 3600)
    assert node.ec2.calls["create_eni"] > attached
    assert node.ec2.calls["attach_eni"] == attached
    assert any("useless" in line for line in node.health.conditions())


def test_ec2_that_gives_the_same_address_again_is_asked_with_pauses(node: FakeNode) -> None:
    """It is bounded: doubling pauses, and never more than one such ENI (I13, I18)."""
    address = steal(node, "a")
    take = node.ec2._take
    node.ec2._take = lambda count, *subnet: [address] if count == 1 else take(count, *subnet)  # type: ignore[method-assign]
    grow(node, 3600)
    assert node.ec2.calls["create_eni"] <= 80
    assert node.ec2.calls["attach_eni"] == 0
    assert len(node.ec2.enis) <= 2
    assert any("useless" in line for line in node.health.conditions())


def test_a_free_address_that_became_a_primary_one_is_not_given(node: FakeNode) -> None:
    """Others took it, no Describe has shown that yet, and EC2's answer to our Create says where it is: it is believed at once (I7)."""
    made = node.ec2.calls["create_eni"]
    address = max(row.address for row in node.datastore.addresses() if row.eni_id == PRIMARY)
    primary = node.ec2.enis[PRIMARY]
    node.ec2.enis[PRIMARY] = replace(primary, secondary_addresses=primary.secondary_addresses - {address})
    give_next(node, [address])
    for number in range(14):
        node.pool.cycle()
        given = node.add(f"pod{number}", deadline_s=0.1)
        assert given.address not in {eni.primary_address for eni in node.ec2.enis.values()}
    assert node.ec2.calls["create_eni"] > made
    assert address in {eni.primary_address for eni in node.ec2.enis.values()}


@pytest.mark.parametrize("crash_at", ["growth.created", "growth.named", "growth.intent-closed"])
def test_a_crash_leaves_none(node: FakeNode, crash_at: str) -> None:
    """Killed between two of its steps: the next process deletes it."""

    class Killed(BaseException):
        """The process is gone."""

    def reached(name: str) -> None:
        if name == crash_at:
            raise Killed

    address = steal(node, "a")
    give_next(node, [address])
    node.failpoint = reached
    with pytest.raises(Killed):
        grow(node, 5)
    node.crash()
    node.bring_up()
    grow(node, 120)
    assert [eni.eni_id for eni in node.ec2.enis.values() if eni.primary_address == address] == []
    assert node.datastore.open_intents() == ()


def test_an_adopted_eni_is_deleted_with_its_instance(node: FakeNode) -> None:
    """A datastore that is lost between Attach and ModifyNetworkInterfaceAttribute: the creation goes on with the ENI found (I9)."""
    for number in range(20):
        node.pool.cycle()
        node.add(f"pod{number}", deadline_s=0.1) if number < 16 else None
    made = next(eni for eni in node.ec2.attached() if eni.eni_id != PRIMARY)
    node.ec2.enis[made.eni_id] = replace(made, delete_on_termination=False)
    node.crash(keep_datastore=False)
    node.ec2.fail["set_delete_on_termination"] = [CloudDeniedError("IAM denies it")]
    node.bring_up()
    node.pool.cycle()
    assert node.ec2.failed["set_delete_on_termination"] == 1
    assert node.datastore.eni(made.eni_id) is not None
    grow(node, 3600)
    assert node.ec2.enis[made.eni_id].delete_on_termination
    assert node.datastore.open_intents() == ()
