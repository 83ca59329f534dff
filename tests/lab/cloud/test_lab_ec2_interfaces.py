"""The life of an ENI through the wire: create, attach, detach, delete, modify."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any

import pytest

DEVICE_TAKEN = "already has an interface attached at device index '1'"


def test_create_answers_with_everything_asked_for(cloud: Any) -> None:
    """A created ENI carries its addresses, tags, groups and description, and is pending in the answer only."""
    group = cloud.vpc.add_security_group("pods")
    answer = cloud.ec2.create_network_interface(
        SubnetId=cloud.subnet.subnet_id,
        Description="aws-K8S-<i> & co",
        SecondaryPrivateIpAddressCount=9,
        Groups=[group],
        TagSpecifications=[{"ResourceType": "network-interface", "Tags": [{"Key": "k", "Value": "v<&>"}]}],
        ClientToken="t",
    )
    eni = answer["NetworkInterface"]
    assert answer["ClientToken"] == "t"
    assert eni["Status"] == "pending"
    assert eni["Description"] == "aws-K8S-<i> & co"
    assert eni["Groups"] == [{"GroupId": group, "GroupName": "pods"}]
    assert eni["TagSet"] == [{"Key": "k", "Value": "v<&>"}]
    listed = [(IPv4Address(a["PrivateIpAddress"]), a["Primary"]) for a in eni["PrivateIpAddresses"]]
    assert len({address for address, _ in listed}) == 10
    assert [primary for _, primary in listed] == [True] + [False] * 9
    assert all(address in cloud.subnet.cidr for address, _ in listed)
    assert cloud.show(eni["NetworkInterfaceId"])["Status"] == "available"


def test_create_with_prefixes(cloud: Any) -> None:
    """A created ENI can carry /28 prefixes at once, aligned, in the subnet and apart from its primary address."""
    eni = cloud.vpc.eni(cloud.create(Ipv4PrefixCount=3))
    assert len(set(eni.prefixes)) == 3
    assert all(p.prefixlen == 28 and p.subnet_of(cloud.subnet.cidr) and eni.primary_address not in p for p in eni.prefixes)


def test_create_with_chosen_addresses(cloud: Any) -> None:
    """Addresses asked for by name are the ones that come, the one marked primary first."""
    listed = [
        {"PrivateIpAddress": "10.0.1.50", "Primary": False},
        {"PrivateIpAddress": "10.0.1.40", "Primary": True},
    ]
    eni = cloud.vpc.eni(cloud.create(PrivateIpAddresses=listed, Ipv4Prefixes=[{"Ipv4Prefix": "10.0.1.64/28"}]))
    assert [str(a) for a in eni.addresses] == ["10.0.1.40", "10.0.1.50"]
    assert [str(p) for p in eni.prefixes] == ["10.0.1.64/28"]


@pytest.mark.parametrize(
    ("address", "code", "part"),
    [
        ("10.0.1.3", "InvalidParameterValue", "reserved address range"),
        ("10.0.1.255", "InvalidParameterValue", "reserved address range"),
        ("10.0.2.9", "InvalidParameterValue", "does not fall within"),
        ("no-address", "InvalidParameterValue", "invalid value for parameter address"),
    ],
)
def test_create_refuses_addresses_that_are_not_there(cloud: Any, refused: Any, address: str, code: str, part: str) -> None:
    """Reserved, foreign and unreadable addresses are refused, each with its reason."""
    with refused(code, part):
        cloud.create(PrivateIpAddress=address)


def test_create_refuses_a_taken_address(cloud: Any, refused: Any) -> None:
    """An address with an owner makes no second ENI."""
    with refused("InvalidIPAddress.InUse", "is in use"):
        cloud.create(PrivateIpAddress=str(cloud.primary().primary_address))


def test_create_refuses_unknown_things(cloud: Any, refused: Any) -> None:
    """An unknown subnet and an unknown group are named in the refusal."""
    with refused("InvalidSubnetID.NotFound", "subnet-0123"):
        cloud.ec2.create_network_interface(SubnetId="subnet-0123")
    with refused("InvalidGroup.NotFound", "sg-0123"):
        cloud.create(Groups=["sg-0123"])


def test_same_token_same_interface(cloud: Any) -> None:
    """A repeated CreateNetworkInterface with its token makes no second ENI (the crash replay of I9)."""
    first = cloud.create(ClientToken="once", SecondaryPrivateIpAddressCount=2)
    again = cloud.create(ClientToken="once", SecondaryPrivateIpAddressCount=2)
    assert first == again
    assert len(cloud.vpc.enis()) == 2


def test_same_token_other_parameters(cloud: Any, refused: Any) -> None:
    """A token reused for another request is refused, and makes nothing."""
    cloud.create(ClientToken="once")
    with refused("IdempotentParameterMismatch"):
        cloud.create(ClientToken="once", Description="other")
    assert len(cloud.vpc.enis()) == 2


def test_token_of_a_deleted_interface(cloud: Any, refused: Any) -> None:
    """A replayed token of an ENI deleted since answers with the dead ID: the caller has to notice."""
    eni_id = cloud.create(ClientToken="once")
    cloud.ec2.delete_network_interface(NetworkInterfaceId=eni_id)
    assert cloud.create(ClientToken="once") == eni_id
    with refused("InvalidNetworkInterfaceID.NotFound", f"'{eni_id}'"):
        cloud.attach(eni_id)


def test_attach_takes_its_time(cloud: Any) -> None:
    """An accepted attachment is `attaching` until the delay has passed, then `attached`."""
    eni_id = cloud.create()
    attachment_id = cloud.attach(eni_id)
    shown = cloud.show(eni_id)
    assert (shown["Status"], shown["Attachment"]["Status"]) == ("in-use", "attaching")
    assert shown["Attachment"]["AttachmentId"] == attachment_id
    assert shown["Attachment"]["DeleteOnTermination"] is False
    cloud.advance(1.9)
    assert cloud.show(eni_id)["Attachment"]["Status"] == "attaching"
    cloud.advance(0.2)
    assert cloud.show(eni_id)["Attachment"]["Status"] == "attached"


def test_attach_refusals(cloud: Any, refused: Any) -> None:
    """Index taken, ENI in use, unknown IDs, foreign zone and unknown card are refused with EC2's codes."""
    first, second = cloud.create(), cloud.create()
    cloud.attach(first, 1)
    with refused("InvalidParameterValue", DEVICE_TAKEN):
        cloud.attach(second, 1)
    with refused("InvalidNetworkInterface.InUse", f"[{first}]"):
        cloud.attach(first, 2)
    with refused("InvalidNetworkInterfaceID.NotFound"):
        cloud.attach("eni-0", 2)
    with refused("InvalidInstanceID.NotFound"):
        cloud.ec2.attach_network_interface(NetworkInterfaceId=second, InstanceId="i-0", DeviceIndex=2)
    with refused("InvalidParameterValue", "card index 1"):
        cloud.ec2.attach_network_interface(
            NetworkInterfaceId=second, InstanceId=cloud.node.instance_id, DeviceIndex=2, NetworkCardIndex=1
        )
    far = cloud.vpc.add_subnet("10.0.9.0/24", az="us-west-2b")
    eni = cloud.ec2.create_network_interface(SubnetId=far.subnet_id)["NetworkInterface"]["NetworkInterfaceId"]
    with refused("InvalidParameterCombination", "availability zone"):
        cloud.attach(eni, 2)


def test_attachment_limit(cloud: Any, refused: Any) -> None:
    """An m5.large takes three ENIs, those still attaching and detaching included."""
    cloud.attach(cloud.create(), 1)
    leaving = cloud.attach(cloud.create(), 2)
    cloud.advance(2.0)
    cloud.ec2.detach_network_interface(AttachmentId=leaving)
    with refused("AttachmentLimitExceeded", "Interface count 4 exceeds the limit for m5.large"):
        cloud.attach(cloud.create(), 3)
    cloud.advance(3.0)
    cloud.attach(cloud.create(), 3)


def test_attach_refuses_an_interface_with_too_many_addresses(cloud: Any, refused: Any) -> None:
    """An unattached ENI may carry more than the type allows; attaching it is refused."""
    eni_id = cloud.create(SecondaryPrivateIpAddressCount=10)
    with refused("PrivateIpAddressLimitExceeded"):
        cloud.attach(eni_id)


def test_cards_have_their_own_indexes(cloud: Any, refused: Any) -> None:
    """On a type with four cards the same device index is free on each card, and each card has its limit."""
    big = cloud.vpc.add_instance(name="gpu", instance_type="p4d.24xlarge", subnet_id=cloud.subnet.subnet_id)

    def attach(index: int, card: int) -> int:
        answer = cloud.ec2.attach_network_interface(
            NetworkInterfaceId=cloud.create(), InstanceId=big.instance_id, DeviceIndex=index, NetworkCardIndex=card
        )
        return int(answer["NetworkCardIndex"])

    assert [attach(1, card) for card in range(4)] == [0, 1, 2, 3]
    for index in range(2, 16):
        attach(index, 3)
    with refused("AttachmentLimitExceeded", "p4d.24xlarge"):
        attach(16, 3)


def test_detach_takes_its_time(cloud: Any) -> None:
    """A detaching ENI is in use until the delay has passed, then available; repeating the call does no harm."""
    eni_id = cloud.create()
    attachment_id = cloud.attach(eni_id)
    cloud.advance(2.0)
    cloud.ec2.detach_network_interface(AttachmentId=attachment_id)
    cloud.ec2.detach_network_interface(AttachmentId=attachment_id)
    assert cloud.show(eni_id)["Attachment"]["Status"] == "detaching"
    cloud.advance(3.0)
    assert cloud.show(eni_id)["Status"] == "available"
    assert "Attachment" not in cloud.show(eni_id)


def test_what_is_due_has_happened_before_the_next_call(cloud: Any) -> None:
    """A call that comes after the attach delay finds the ENI attached, though nobody looked in between."""
    eni_id = cloud.create()
    attachment_id = cloud.attach(eni_id)
    cloud.clock.advance(2.0)
    cloud.ec2.detach_network_interface(AttachmentId=attachment_id)
    assert cloud.show(eni_id)["Attachment"]["Status"] == "detaching"


def test_forced_detach_is_immediate(cloud: Any) -> None:
    """Force skips the wait."""
    eni_id = cloud.create()
    attachment_id = cloud.attach(eni_id)
    cloud.advance(2.0)
    cloud.ec2.detach_network_interface(AttachmentId=attachment_id, Force=True)
    assert cloud.show(eni_id)["Status"] == "available"


def test_detach_refusals(cloud: Any, refused: Any) -> None:
    """The primary ENI stays, and an unknown attachment is not found."""
    with refused("OperationNotPermitted", "device index 0"):
        cloud.ec2.detach_network_interface(AttachmentId=cloud.primary().attachment.attachment_id)
    with refused("InvalidAttachmentID.NotFound", "eni-attach-0"):
        cloud.ec2.detach_network_interface(AttachmentId="eni-attach-0")


def test_delete_needs_an_available_interface(cloud: Any, refused: Any) -> None:
    """An ENI attaching, attached or detaching is not deleted; a deleted one is not found."""
    eni_id = cloud.create()
    attachment_id = cloud.attach(eni_id)
    with refused("InvalidParameterValue", f"Network interface '{eni_id}' is currently in use."):
        cloud.ec2.delete_network_interface(NetworkInterfaceId=eni_id)
    cloud.advance(2.0)
    cloud.ec2.detach_network_interface(AttachmentId=attachment_id)
    with refused("InvalidParameterValue", "currently in use"):
        cloud.ec2.delete_network_interface(NetworkInterfaceId=eni_id)
    cloud.advance(3.0)
    cloud.ec2.delete_network_interface(NetworkInterfaceId=eni_id)
    with refused("InvalidNetworkInterfaceID.NotFound", f"'{eni_id}'"):
        cloud.ec2.delete_network_interface(NetworkInterfaceId=eni_id)


def test_modify_attributes(cloud: Any, refused: Any) -> None:
    """Delete-on-termination, groups and description change one at a time, against the right attachment."""
    eni_id = cloud.create()
    attachment_id = cloud.attach(eni_id)
    change = {"AttachmentId": attachment_id, "DeleteOnTermination": True}
    cloud.ec2.modify_network_interface_attribute(NetworkInterfaceId=eni_id, Attachment=change)
    group = cloud.vpc.add_security_group("pods")
    cloud.ec2.modify_network_interface_attribute(NetworkInterfaceId=eni_id, Groups=[group])
    cloud.ec2.modify_network_interface_attribute(NetworkInterfaceId=eni_id, Description={"Value": "new"})
    shown = cloud.show(eni_id)
    assert shown["Attachment"]["DeleteOnTermination"] is True
    assert [g["GroupId"] for g in shown["Groups"]] == [group]
    assert shown["Description"] == "new"
    with refused("InvalidAttachmentID.NotFound"):
        cloud.ec2.modify_network_interface_attribute(
            NetworkInterfaceId=eni_id, Attachment={**change, "AttachmentId": "eni-attach-0"}
        )
    with refused("InvalidParameterCombination"):
        cloud.ec2.modify_network_interface_attribute(NetworkInterfaceId=eni_id, Groups=[group], Attachment=change)


def test_termination_deletes_or_frees(cloud: Any, refused: Any) -> None:
    """Terminating a node deletes the ENIs marked so, frees the others, and ends attaching."""
    kept, gone = cloud.create(), cloud.create()
    cloud.attach(kept, 1)
    change = {"AttachmentId": cloud.attach(gone, 2), "DeleteOnTermination": True}
    cloud.ec2.modify_network_interface_attribute(NetworkInterfaceId=gone, Attachment=change)
    cloud.vpc.terminate_instance(cloud.node.instance_id)
    assert [(eni.eni_id, eni.status) for eni in cloud.vpc.enis()] == [(kept, "available")]
    with refused("IncorrectInstanceState"):
        cloud.attach(kept)


def test_dry_run_changes_nothing(cloud: Any, refused: Any) -> None:
    """DryRun is answered as such and has no effect."""
    with refused("DryRunOperation", status=412):
        cloud.create(DryRun=True)
    assert len(cloud.vpc.enis()) == 1


def test_quota(cloud: Any, refused: Any) -> None:
    """An account at its quota creates no ENI until the quota is lifted."""
    cloud.vpc.faults.apply({"interface_quota": 2})
    cloud.create()
    with refused("NetworkInterfaceLimitExceeded"):
        cloud.create()
    cloud.vpc.faults.clear()
    cloud.create()


def test_unknown_action(cloud: Any, refused: Any) -> None:
    """An API the lab does not have is refused, not ignored."""
    with refused("InvalidAction", "RunInstances"):
        cloud.ec2.run_instances(MinCount=1, MaxCount=1)
