"""A second ADD of one sandbox with another interface name (Multus's `net1`): an attachment of its own beside the first."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.attachment import Attachment
from ipamd.model.errors import NothingWiredError, WiringError
from ipamd.model.ids import parse_key
from tests.fakes.node import FakeNode


def add_further(node: FakeNode, name: str = "a", ifname: str = "net1") -> Attachment:
    """ADD of a further interface."""
    request = replace(node.request(name), key=parse_key(name, ifname), network_name="vpc-net1")
    return node.attacher.attach_sandbox(request, deadline=Deadline.after(node.clock, 60.0), steps=StepTimer(node.clock))


def delete(node: FakeNode, name: str, ifname: str) -> bool:
    """DEL of one interface."""
    return node.detacher.detach_sandbox(
        parse_key(name, ifname), deadline=Deadline.after(node.clock, 30.0), steps=StepTimer(node.clock), reason="DEL"
    )


def test_each_interface_has_address_veth_and_answer(node: FakeNode) -> None:
    """Nothing but sandbox and interface decides: two addresses, two links, two answers (docs/adr/0001)."""
    first, second = node.add("a"), add_further(node)
    assert first.address != second.address
    assert first.host_veth != second.host_veth
    answer = json.loads(second.result)
    assert [interface["name"] for interface in answer["interfaces"]] == [second.host_veth, "net1"]
    assert answer["routes"] == [], "the default route is eth0's"
    assert add_further(node) == second
    node.assert_sound()


@pytest.mark.parametrize("order", [("eth0", "net1"), ("net1", "eth0")])
def test_each_is_deleted_alone(node: FakeNode, order: tuple[str, str]) -> None:
    """DEL in any order; only a further interface leaves something inside a sandbox that lives on."""
    attachments = {"eth0": node.add("a"), "net1": add_further(node)}
    assert delete(node, "a", order[0])
    assert node.datastore.attachment(attachments[order[0]].key) is None
    assert node.datastore.attachment(attachments[order[1]].key) == attachments[order[1]]
    assert delete(node, "a", order[1])
    assert node.wiring.forgotten_inside == [("/run/netns/a", attachments["net1"].address)]
    node.assert_sound()


def test_what_stays_inside_does_not_fail_a_del(node: FakeNode) -> None:
    """A rule that cannot be removed leads to an empty table: the DEL is done all the same (I3)."""
    add_further(node)
    node.wiring.fail["forget_inside"] = [WiringError("refused")]
    assert delete(node, "a", "net1")
    node.assert_sound()


def test_a_failed_add_leaves_the_first_alone(node: FakeNode) -> None:
    """However often Multus repeats it, eth0 keeps its address and nothing cools (I2, I8)."""
    first = node.add("a")
    counts = node.datastore.counts()
    for _ in range(5):
        node.wiring.fail["wire"] = [NothingWiredError("the pod has net1 already")]
        with pytest.raises(NothingWiredError):
            add_further(node)
    assert node.datastore.attachment(first.key) == first
    assert node.datastore.counts() == counts
    node.assert_sound()
