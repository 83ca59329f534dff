"""amazon-vpc-cni-k8s #3753 (2026): pods were given the node's own primary address.

On SageMaker HyperPod nodes the primary ENI is device 1, not 0, and an optional check of the subnet failed at start. A map of
"the primary address of each ENI" was left without its entry, and the reconciler trusted the map rather than EC2's flag: the
primary address went into the pool, a pod got it, and node and pod fought for every packet. (The older report of the same leak,
#1466, could not be found in the stored issues; the code of both is pkg/ipamd/ipamd.go, verifyAndAddIPsToDatastore.)

Here: primary and secondary are told apart where EC2's answer is read, by the ENI's own field and by the flag
(`cloud/answers._addresses`); the unit of work refuses a primary address (`SqlUnitOfWork.put_eni`, `_is_fresh`); and the tables
refuse it (`schema.TRIGGERS`; I6). Each of the three suffices. A primary ENI that is not device 0 keeps the main table, and no
new ENI is attached as device 0. Bound: never, that is from start to a full node; 0 s (fake).
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from ipamd.cloud import answers
from ipamd.model.eni import MAIN_TABLE
from ipamd.model.errors import PoolEmptyError
from tests.fakes.cloud import IDENTITY, INSTANCE, PRIMARY, SUBNET
from tests.fakes.node import FakeNode
from tests.stories.mutations import Mutate
from tests.stories.stale_reads import give_the_threads_their_turn, recorded

ANSWER: dict[str, Any] = {
    "NetworkInterfaceId": PRIMARY,
    "MacAddress": IDENTITY.primary_mac,
    "SubnetId": SUBNET,
    "PrivateIpAddress": str(IDENTITY.primary_address),
    "Status": "in-use",
    "Attachment": {
        "AttachmentId": "attach-primary",
        "Status": "attached",
        "InstanceId": INSTANCE,
        "DeviceIndex": 1,
        "DeleteOnTermination": True,
    },
}
"""The primary ENI as EC2 tells it on such a node: device 1."""

SECONDARY = tuple(f"10.0.14.{number}" for number in range(1, 9))


def play(run_dir: Path, *, is_flagged: bool = False) -> FakeNode:
    """EC2's answer lists all addresses alike (or flags the primary one); the node starts and is filled to the last address."""
    node = FakeNode(run_dir)
    primary = {"PrivateIpAddress": ANSWER["PrivateIpAddress"]} | ({"Primary": True} if is_flagged else {})
    listed = [primary, *({"PrivateIpAddress": address} for address in SECONDARY)]
    node.ec2.enis[PRIMARY] = answers.described_eni(ANSWER | {"PrivateIpAddresses": listed})
    node.ec2.limits = replace(node.ec2.limits, eni_count=2)
    give_the_threads_their_turn(node)
    try:
        node.bring_up()
        for number in range(18):
            node.add(f"s{number}")
            node.pool.cycle()
        with pytest.raises(PoolEmptyError):
            node.add("one-too-many")
        given = recorded(node)
        assert [eni.is_primary for eni in node.datastore.enis()] == [True, False]
        assert IDENTITY.primary_address not in given.values(), "a sandbox has the node's own address"
        assert {IPv4Address(address) for address in SECONDARY} <= set(given.values())
        assert len(given) == 18, "nine places on each of two ENIs"
        node.assert_sound()
    finally:
        node.datastore.close()
    return node


@pytest.mark.parametrize("is_flagged", [False, True])
def test_the_primary_address_is_given_to_nobody(tmp_path: Path, is_flagged: bool) -> None:
    """A full node has given every address but the primary ones, flagged or not (I6)."""
    play(tmp_path, is_flagged=is_flagged)


def test_a_primary_eni_at_another_device_index_is_still_the_primary_one(tmp_path: Path) -> None:
    """Its sandboxes leave through the main table, as the node does, and device 0 is never requested."""
    node = play(tmp_path)
    primary, second = node.datastore.enis()
    assert primary.route_table == MAIN_TABLE
    assert (second.device_index, second.route_table) == (2, 3)


def test_the_primary_address_is_given_without_all_three_lines(tmp_path: Path, mutate: Mutate) -> None:
    """With none of the lines the node's own address ends up in a sandbox: the story can fail."""
    mutate("primary-read-as-secondary")
    mutate("unit-of-work-accepts-primary")
    mutate("tables-accept-primary")
    with pytest.raises(AssertionError, match="the node's own address"):
        play(tmp_path)


@pytest.mark.parametrize("still_off", ["unit-of-work-accepts-primary", "tables-accept-primary"])
def test_each_line_behind_the_first_refuses_it(
    tmp_path: Path, mutate: Mutate, caplog: pytest.LogCaptureFixture, still_off: str
) -> None:
    """If the answer were read wrongly, either of the two lines behind it refuses the ENI, and the log names the invariant (I6)."""
    mutate("primary-read-as-secondary")
    mutate(still_off)
    with pytest.raises(PoolEmptyError):
        play(tmp_path)
    assert "I6: the primary address of an ENI is never given to a sandbox" in caplog.text
