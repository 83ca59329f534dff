"""An ENI whose addresses nobody can be given is deleted, and another one is made: it takes no place for a pod's life (I9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from itertools import chain

import pytest

from ipamd.model.errors import CloudDeniedError
from tests.fakes.cloud import PRIMARY
from tests.fakes.node import FakeNode


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
    assert node.health.conditions() == [] or not any("of no use" in line for line in node.health.conditions())


def test_ec2_that_gives_the_same_address_again_is_asked_with_pauses(node: FakeNode) -> None:
    """It is bounded: doubling pauses, and never more than one such ENI (I13, I18)."""
    address = steal(node, "a")
    take = node.ec2._take
    node.ec2._take = lambda count, *subnet: [address] if count == 1 else take(count, *subnet)  # type: ignore[method-assign]
    grow(node, 3600)
    assert node.ec2.calls["create_eni"] <= 80
    assert node.ec2.calls["attach_eni"] == 0
    assert len(node.ec2.enis) <= 2
    assert any("of no use" in line for line in node.health.conditions())


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
