"""DescribeNetworkInterfaces that lies: each lie is told as it was ordered, to the call it was ordered for, and not once more."""

from __future__ import annotations

from typing import Any

import pytest

from lab.vpc.faults import Faults, FaultSpecError
from lab.vpc.lies import CAUSES

MISSING = "InvalidNetworkInterfaceID.NotFound"


IPV6_CAUSES = {"AssignIpv6Addresses", "UnassignIpv6Addresses"}
"""Left behind by calls in a VPC with IPv6 (test_lab_ipv6.py)."""


def ids(cloud: Any, **params: Any) -> list[str]:
    """The ENIs that a list shows."""
    return [eni["NetworkInterfaceId"] for eni in cloud.ec2.describe_network_interfaces(**params)["NetworkInterfaces"]]


def addresses(cloud: Any, eni_id: str) -> list[str]:
    """The addresses that Describe shows of an ENI."""
    return [entry["PrivateIpAddress"] for entry in cloud.show(eni_id)["PrivateIpAddresses"]]


def lie(cloud: Any, **lies: Any) -> None:
    """Let Describe lie."""
    cloud.vpc.faults.apply({"describe": lies})


def attached(cloud: Any, index: int = 1, **params: Any) -> str:
    """An ENI that is attached."""
    eni_id = cloud.create(**params)
    cloud.attach(eni_id, index)
    cloud.advance(2)
    return str(eni_id)


def test_an_answer_without_the_primary(cloud: Any) -> None:
    """The next answer lacks the instance's first ENI, the one after is whole."""
    second = attached(cloud)
    lie(cloud, omit={"primary": True, "count": 1})
    assert ids(cloud) == [second]
    assert ids(cloud) == [cloud.primary().eni_id, second]


def test_an_empty_answer(cloud: Any) -> None:
    """It is a success with nothing in it."""
    lie(cloud, omit={"everything": True, "count": 1})
    assert ids(cloud) == []
    assert len(ids(cloud)) == 1


def test_named_enis_and_addresses_are_left_out(cloud: Any) -> None:
    """A list is left out of every answer until the lie is taken back."""
    eni_id = attached(cloud, SecondaryPrivateIpAddressCount=3)
    gone = addresses(cloud, eni_id)[2]
    lie(cloud, omit={"enis": [cloud.primary().eni_id], "addresses": [gone]})
    for _ in range(2):
        assert ids(cloud) == [eni_id]
        assert gone not in addresses(cloud, eni_id)
        assert len(addresses(cloud, eni_id)) == 3
    cloud.vpc.faults.apply({"describe": None})
    assert gone in addresses(cloud, eni_id)


def test_a_share_is_left_out(cloud: Any) -> None:
    """About that share, other ones in each answer; `steady` leaves out the same ones each time. Primary addresses stay."""
    eni_id = cloud.create(SecondaryPrivateIpAddressCount=40)
    every = set(addresses(cloud, eni_id))
    for is_steady, kinds in ((False, 5), (True, 1)):
        lie(cloud, omit={"addresses": 0.5, "steady": is_steady})
        answers = [frozenset(addresses(cloud, eni_id)) for _ in range(5)]
        assert len(set(answers)) == kinds
        assert all(8 < len(answer) < 34 and answer < every for answer in answers)
        assert all(cloud.show(eni_id)["PrivateIpAddress"] in answer for answer in answers)


def test_prefixes_are_addresses_too(cloud: Any) -> None:
    """A prefix is left out by its name."""
    eni_id = cloud.create(Ipv4PrefixCount=2)
    prefixes = [one["Ipv4Prefix"] for one in cloud.show(eni_id)["Ipv4Prefixes"]]
    lie(cloud, omit={"addresses": prefixes[:1]})
    assert [one["Ipv4Prefix"] for one in cloud.show(eni_id)["Ipv4Prefixes"]] == prefixes[1:]


def test_an_eni_is_shown_attached_before_its_addresses(cloud: Any) -> None:
    """For the time ordered, counted from the call that attached; then it is whole (amazon-vpc-cni-k8s issues 1148 and 1174)."""
    lie(cloud, late_addresses_s=5)
    eni_id = attached(cloud, SecondaryPrivateIpAddressCount=2)
    assert (cloud.show(eni_id)["Attachment"]["Status"], len(addresses(cloud, eni_id))) == ("attached", 1)
    lie(cloud, late_addresses_s=5, late_primary=True)
    assert addresses(cloud, eni_id) == []
    assert "PrivateIpAddress" not in cloud.show(eni_id)
    cloud.advance(3)
    assert len(addresses(cloud, eni_id)) == 3


def test_only_the_cause_that_was_named_is_late(cloud: Any) -> None:
    """Describe shows an unassigned address for so long, and an assigned one at once; and the other way round."""
    eni_id = cloud.create(SecondaryPrivateIpAddressCount=2)
    first, second = addresses(cloud, eni_id)[1:]
    lie(cloud, stale_s={"UnassignPrivateIpAddresses": 60})
    cloud.ec2.unassign_private_ip_addresses(NetworkInterfaceId=eni_id, PrivateIpAddresses=[first])
    cloud.ec2.assign_private_ip_addresses(NetworkInterfaceId=eni_id, SecondaryPrivateIpAddressCount=1)
    assert {first, second} < set(addresses(cloud, eni_id))
    assert len(addresses(cloud, eni_id)) == 4
    cloud.advance(60)
    assert first not in addresses(cloud, eni_id)
    lie(cloud, stale_s={"AssignPrivateIpAddresses": 61})
    assert addresses(cloud, eni_id)[1:] == [second]
    cloud.advance(1)
    assert len(addresses(cloud, eni_id)) == 3


def test_detach_and_delete_are_shown_late(cloud: Any) -> None:
    """Attached while it is detached, and there while it is deleted; each for its own time. Only the answer is late."""
    eni_id = attached(cloud)
    lie(cloud, stale_s={"DetachNetworkInterface": 30, "DeleteNetworkInterface": 100})
    cloud.ec2.detach_network_interface(AttachmentId=cloud.show(eni_id)["Attachment"]["AttachmentId"])
    cloud.advance(3)
    assert cloud.show(eni_id)["Attachment"]["Status"] == "attached"
    cloud.advance(30)
    assert cloud.show(eni_id)["Status"] == "available"
    cloud.ec2.delete_network_interface(NetworkInterfaceId=eni_id)
    assert eni_id in ids(cloud)
    assert eni_id not in cloud.vpc.world.enis
    cloud.advance(100)
    assert eni_id not in ids(cloud)


def test_a_new_eni_is_shown_late(cloud: Any, refused: Any) -> None:
    """Create and Attach have their times too."""
    lie(cloud, stale_s={"CreateNetworkInterface": 10, "AttachNetworkInterface": 20})
    eni_id = attached(cloud)
    assert eni_id not in ids(cloud)
    with refused(MISSING, eni_id):
        cloud.show(eni_id)
    cloud.advance(8)
    assert cloud.show(eni_id)["Status"] == "available"
    cloud.advance(12)
    assert cloud.show(eni_id)["Attachment"]["Status"] == "attached"


def test_instances_show_the_same_lie(cloud: Any) -> None:
    """DescribeInstances names the ENIs that DescribeNetworkInterfaces does."""
    lie(cloud, stale_s={"AttachNetworkInterface": 20})
    attached(cloud)
    shown = cloud.ec2.describe_instances()["Reservations"][0]["Instances"][0]["NetworkInterfaces"]
    assert [eni["NetworkInterfaceId"] for eni in shown] == [cloud.primary().eni_id]


def test_a_new_eni_is_not_found_at_first(cloud: Any, refused: Any) -> None:
    """The first calls that name it do not find it, as often as ordered per API; older ENIs are found (aws-sdk issue 301)."""
    old = cloud.create()
    cloud.vpc.faults.apply({"unseen": {"AttachNetworkInterface": 2, "DescribeNetworkInterfaces": 1}})
    new = cloud.create()
    cloud.attach(old, 1)
    for _ in range(2):
        with refused(MISSING, new):
            cloud.attach(new, 2)
    cloud.attach(new, 2)
    with refused(MISSING, new):
        cloud.show(new)
    assert cloud.show(new)["Attachment"]["DeviceIndex"] == 2


def test_a_new_attachment_is_not_found_at_first(cloud: Any, refused: Any) -> None:
    """Modify and Detach may not have heard of it: InvalidAttachmentID.NotFound for what is there."""
    cloud.vpc.faults.apply({"unseen": {"ModifyNetworkInterfaceAttribute": 1, "DetachNetworkInterface": 1}})
    eni_id = cloud.create()
    attachment_id = cloud.attach(eni_id)
    change = {"AttachmentId": attachment_id, "DeleteOnTermination": True}
    with refused("InvalidAttachmentID.NotFound", attachment_id):
        cloud.ec2.modify_network_interface_attribute(NetworkInterfaceId=eni_id, Attachment=change)
    with refused(MISSING, eni_id):
        cloud.ec2.modify_network_interface_attribute(NetworkInterfaceId=eni_id, Attachment=change)
    cloud.ec2.modify_network_interface_attribute(NetworkInterfaceId=eni_id, Attachment=change)
    with refused("InvalidAttachmentID.NotFound", attachment_id):
        cloud.ec2.detach_network_interface(AttachmentId=attachment_id)
    cloud.ec2.detach_network_interface(AttachmentId=attachment_id)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"describe": {"omit": {"enis": 2}}}, "describe.omit.enis"),
        ({"describe": {"stale_s": {"Unassign": 3}}}, "describe.stale_s.Unassign is not known"),
        ({"describe": {"late": 3}}, "describe.late is not known"),
        ({"unseen": {"CreateNetworkInterface": 1}}, "unseen.CreateNetworkInterface is not known"),
        ({"apis": {"DescribeVpcs": {"frozen": True}}}, "for imds only"),
        ({"iam": [{"unless": {}}]}, "iam.0.action"),
        ({"iam": [{"action": "X", "unless": {"aws:Tag/x": "y"}}]}, "aws:Tag/x is not known"),
        ({"rules": {"token_check": "never"}}, "rules.token_check must be one of first, after-capacity"),
        ({"large_account": {"page_size": -1}}, "large_account.page_size"),
        ({"account_limits": {"scale": "x"}}, "account_limits.scale"),
        ({"subnets": {"*": {"leaves": 1}}}, "subnets.*.leaves is not known"),
        ({"volumes": {"node-a": 1.5}}, "volumes.node-a"),
    ],
)
def test_a_misspelt_lie_is_refused(spec: dict[str, object], problem: str) -> None:
    """Every key and every value is checked, and nothing is in force afterwards."""
    faults = Faults()
    with pytest.raises(FaultSpecError) as caught:
        faults.apply(spec)
    assert problem in str(caught.value)
    assert faults.as_dict() == {}


def test_every_cause_is_recorded(cloud: Any) -> None:
    """A cause of stale_s that no call leaves behind would be a lie never told."""
    eni_id = attached(cloud, SecondaryPrivateIpAddressCount=1)
    cloud.ec2.assign_private_ip_addresses(NetworkInterfaceId=eni_id, SecondaryPrivateIpAddressCount=1)
    last = addresses(cloud, eni_id)[-1]
    cloud.ec2.unassign_private_ip_addresses(NetworkInterfaceId=eni_id, PrivateIpAddresses=[last])
    cloud.ec2.modify_network_interface_attribute(NetworkInterfaceId=eni_id, Description={"Value": "x"})
    cloud.vpc.hands.delete(eni_id)
    assert {change.api for change in cloud.vpc.changes()} == set(CAUSES) - IPV6_CAUSES
