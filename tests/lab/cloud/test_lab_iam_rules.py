"""What the role may not do, what is unknown of EC2 and can be chosen; large accounts, full slots, crowded subnets."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest

from lab.vpc.model import ReservationKind

DENIED = "UnauthorizedOperation"
TAGGED = [{"ResourceType": "network-interface", "Tags": [{"Key": "team", "Value": "net-a"}]}]


def rules(cloud: Any, **chosen: str) -> None:
    """Choose how EC2 plays what is unknown."""
    cloud.vpc.faults.apply({"rules": chosen})


def deny(cloud: Any, *denials: dict[str, Any]) -> None:
    """Put rules of IAM in force."""
    cloud.vpc.faults.apply({"iam": list(denials)})


def test_an_action_is_denied(cloud: Any, refused: Any) -> None:
    """With the words of EC2 and an encoded message; other actions go on, and nothing is denied any more once it is taken back."""
    deny(cloud, {"action": "ec2:CreateNetworkInterface"})
    with refused(DENIED, "not authorized to perform: ec2:CreateNetworkInterface on resource", status=403):
        cloud.create()
    with refused(DENIED, "Encoded authorization failure message: ", status=403):
        cloud.create()
    cloud.ec2.describe_network_interfaces()
    cloud.vpc.faults.apply({"iam": None})
    cloud.create()


def test_a_describe_is_denied_without_an_encoded_message(cloud: Any, refused: Any) -> None:
    """Lists name no resource; a dry run is refused as the real call would be."""
    deny(cloud, {"action": "Describe*"})
    with refused(DENIED, "on resource: * because", status=403):
        cloud.ec2.describe_network_interfaces()
    with refused(DENIED, status=403):
        cloud.ec2.describe_subnets(DryRun=True)
    cloud.create()


def test_a_rule_for_instances_concerns_no_other_caller(cloud: Any) -> None:
    """The caller here is no instance."""
    deny(cloud, {"action": "Describe*", "instances": ["i-0123456789abcdef0"]})
    cloud.ec2.describe_network_interfaces()


def test_a_condition_on_the_tags_of_the_request(cloud: Any, refused: Any) -> None:
    """Allowed with the right value, refused with another or none."""
    deny(cloud, {"action": "CreateNetworkInterface", "unless": {"aws:RequestTag/team": "net-*"}})
    with refused(DENIED, status=403):
        cloud.create()
    wrong = [{"ResourceType": "network-interface", "Tags": [{"Key": "team", "Value": "web"}]}]
    with refused(DENIED, status=403):
        cloud.create(TagSpecifications=wrong)
    cloud.create(TagSpecifications=TAGGED)


def test_a_condition_on_the_keys_of_the_tags(cloud: Any, refused: Any) -> None:
    """Each key of the request is one of those allowed; no tags are allowed too."""
    deny(cloud, {"action": "CreateTags", "unless": {"aws:TagKeys": ["owner"]}})
    with refused(DENIED, "ec2:CreateTags", status=403):
        cloud.create(TagSpecifications=TAGGED)
    eni_id = cloud.create()
    cloud.ec2.create_tags(Resources=[eni_id], Tags=[{"Key": "owner", "Value": "me"}])
    with refused(DENIED, "ec2:CreateTags", status=403):
        cloud.ec2.create_tags(Resources=[eni_id], Tags=[{"Key": "team", "Value": "me"}])


def test_a_condition_on_the_tags_of_the_resource(cloud: Any, refused: Any) -> None:
    """Found by the ENI's own ID and by its attachment's."""
    mine, other = cloud.create(TagSpecifications=TAGGED), cloud.create()
    attachments = cloud.attach(mine, 1), cloud.attach(other, 2)
    deny(cloud, {"action": "Detach*", "unless": {"ec2:ResourceTag/team": "net-a"}})
    with refused(DENIED, other, status=403):
        cloud.ec2.detach_network_interface(AttachmentId=attachments[1])
    cloud.ec2.detach_network_interface(AttachmentId=attachments[0])


def test_the_token_of_a_deleted_eni(cloud: Any) -> None:
    """Either the dead ENI's ID comes back or a new ENI is made: nobody says which, so both can be played."""
    dead = cloud.create(ClientToken="t")
    cloud.ec2.delete_network_interface(NetworkInterfaceId=dead)
    assert cloud.create(ClientToken="t") == dead
    rules(cloud, token_of_deleted="new-eni")
    fresh = cloud.create(ClientToken="t")
    assert fresh != dead
    assert fresh in cloud.vpc.world.enis
    assert cloud.create(ClientToken="t") == fresh


def test_the_order_of_token_and_capacity(cloud: Any, refused: Any) -> None:
    """A repeated Create in a subnet that is full by now: found by its token first, or refused for want of room."""
    made = cloud.create(ClientToken="t")
    cloud.vpc.exhaust_subnet(cloud.subnet.subnet_id)
    assert cloud.create(ClientToken="t") == made
    rules(cloud, token_check="after-capacity")
    with refused("InsufficientFreeAddressesInSubnet"):
        cloud.create(ClientToken="t")


@pytest.mark.parametrize(
    ("chosen", "fragmented", "full"),
    [
        ("by-cause", "InsufficientCidrBlocks", "InvalidParameterValue"),
        ("InsufficientCidrBlocks", "InsufficientCidrBlocks", "InsufficientCidrBlocks"),
        ("InvalidParameterValue", "InvalidParameterValue", "InvalidParameterValue"),
    ],
)
def test_two_codes_for_a_refused_prefix(cloud: Any, refused: Any, chosen: str, fragmented: str, full: str) -> None:
    """Whatever the cause, either code may come, each with its own words."""
    words = {"InvalidParameterValue": "There aren't sufficient free Ipv4", "InsufficientCidrBlocks": "enough free cidr blocks"}
    rules(cloud, prefix_refusal=chosen)
    for fault, code in (({"fragmented": True}, fragmented), ({"leave": 3}, full)):
        cloud.vpc.faults.apply({"subnets": {"*": fault}})
        with refused(code, words[code]):
            cloud.create(Ipv4PrefixCount=1)
    cloud.vpc.faults.apply({"subnets": None})
    cloud.create(Ipv4PrefixCount=1)


@pytest.mark.parametrize("code", ["InvalidParameterValue", "InvalidNetworkInterface.InUse"])
def test_two_codes_for_in_use(cloud: Any, refused: Any, code: str) -> None:
    """At deletion and at attachment."""
    eni_id = cloud.create()
    cloud.attach(eni_id)
    rules(cloud, in_use=code)
    with refused(code, "in use"):
        cloud.ec2.delete_network_interface(NetworkInterfaceId=eni_id)
    with refused(code, "in use"):
        cloud.attach(eni_id, 2)


def test_two_orders_of_refusing_an_attach(cloud: Any, refused: Any) -> None:
    """An ENI that is where it is asked to be is in use, or its place is taken; asked to be elsewhere, it is in use."""
    eni_id = cloud.create()
    cloud.attach(eni_id)
    with refused("InvalidNetworkInterface.InUse", "in use"):
        cloud.attach(eni_id, 1)
    rules(cloud, attach_check="place-first")
    with refused("InvalidParameterValue", "already has an interface attached"):
        cloud.attach(eni_id, 1)
    with refused("InvalidNetworkInterface.InUse", "in use"):
        cloud.attach(eni_id, 2)


def test_an_assign_answer_with_old_addresses(cloud: Any) -> None:
    """It holds what was added, or all that the ENI has now."""
    eni_id = cloud.create(SecondaryPrivateIpAddressCount=2)

    def answered() -> int:
        answer = cloud.ec2.assign_private_ip_addresses(NetworkInterfaceId=eni_id, SecondaryPrivateIpAddressCount=1)
        return len(answer["AssignedPrivateIpAddresses"])

    assert answered() == 1
    rules(cloud, assign_answer="all")
    assert answered() == 4


def test_a_large_account_must_page_or_filter(cloud: Any, refused: Any) -> None:
    """The filter by instance is not one of the six that help; IDs, pages and a filter by VPC do."""
    mine = {"Name": "attachment.instance-id", "Values": [cloud.node.instance_id]}
    deep = {"Name": "vpc-id", "Values": [cloud.vpc.vpc_id]}
    cloud.vpc.faults.apply({"large_account": {}})
    cloud.vpc.faults.apply({"large_account": {"page_size": 2}})
    with refused("OperationNotPermitted", "pagination"):
        cloud.ec2.describe_network_interfaces(Filters=[mine])
    for params in (
        {"Filters": [mine], "MaxResults": 5},
        {"Filters": [mine, deep]},
        {"NetworkInterfaceIds": [cloud.primary().eni_id]},
    ):
        assert len(cloud.ec2.describe_network_interfaces(**params)["NetworkInterfaces"]) == 1
    cloud.vpc.faults.apply({"large_account": None})
    cloud.ec2.describe_network_interfaces(Filters=[mine])


def test_pages_are_smaller_than_asked_for(cloud: Any) -> None:
    """A page has fewer entries than MaxResults and is not the last; a sparse one may have none at all."""
    made = [cloud.create() for _ in range(6)]
    wanted = {"Name": "network-interface-id", "Values": [made[-1]]}

    def pages(**params: Any) -> list[int]:
        sizes, more = [], {}
        while True:
            answer = cloud.ec2.describe_network_interfaces(MaxResults=1000, **params, **more)
            sizes.append(len(answer["NetworkInterfaces"]))
            if not answer.get("NextToken"):
                return sizes
            more = {"NextToken": answer["NextToken"]}

    cloud.vpc.faults.apply({"large_account": {"page_size": 3}})
    assert (pages(), pages(Filters=[wanted])) == ([3, 3, 1], [1])
    cloud.vpc.faults.apply({"large_account": {"page_size": 3, "sparse": True}})
    assert pages(Filters=[wanted]) == [0, 0, 1]


def test_documented_buckets_are_per_api(cloud: Any, refused: Any) -> None:
    """Attach and Detach have the smallest bucket; a bare Describe has a smaller one than a filtered one; time fills them."""
    cloud.vpc.faults.apply({"account_limits": {"scale": 0.02}})
    cloud.ec2.describe_network_interfaces()
    with refused("RequestLimitExceeded", status=503):
        cloud.ec2.describe_network_interfaces()
    for _ in range(2):
        cloud.ec2.describe_network_interfaces(MaxResults=5)
    with refused("RequestLimitExceeded", status=503):
        cloud.ec2.describe_network_interfaces(MaxResults=5)
    eni_id = cloud.create()
    attachment_id = cloud.attach(eni_id)
    with refused("RequestLimitExceeded", status=503):
        cloud.attach(eni_id)
    cloud.ec2.detach_network_interface(AttachmentId=attachment_id)
    cloud.advance(10)
    cloud.attach(eni_id)


def test_volumes_take_the_slots_of_enis(cloud: Any, refused: Any) -> None:
    """An m5 has 28 slots for both; with 26 volumes its second ENI is refused, though the type allows three. It can change any time."""
    first, second = cloud.create(), cloud.create()
    cloud.vpc.attach_volumes("node-a", 26)
    cloud.attach(first, 1)
    with refused("AttachmentLimitExceeded"):
        cloud.attach(second, 2)
    cloud.vpc.attach_volumes("node-a", 25)
    cloud.attach(second, 2)
    shown = cloud.ec2.describe_instance_types(InstanceTypes=["m5.large", "m7i.large"])["InstanceTypes"]
    assert {one["InstanceType"]: one["EbsInfo"]["AttachmentLimitType"] for one in shown} == {
        "m5.large": "shared",
        "m7i.large": "dedicated",
    }


def test_a_subnet_nearly_full(cloud: Any, refused: Any) -> None:
    """So many are free, and DescribeSubnets says so; taken back, the rest is free again."""
    cloud.vpc.faults.apply({"subnets": {cloud.subnet.subnet_id: {"leave": 3}}})
    assert cloud.ec2.describe_subnets()["Subnets"][0]["AvailableIpAddressCount"] == 3
    with refused("InsufficientFreeAddressesInSubnet"):
        cloud.create(SecondaryPrivateIpAddressCount=3)
    cloud.create(SecondaryPrivateIpAddressCount=2)
    cloud.vpc.faults.clear()
    assert cloud.ec2.describe_subnets()["Subnets"][0]["AvailableIpAddressCount"] > 200


def test_reserved_ranges(cloud: Any, refused: Any) -> None:
    """Prefixes come from a reservation for prefixes, single addresses do not; from an explicit one only what is named comes."""
    cloud.vpc.reserve_cidr(cloud.subnet.subnet_id, "10.0.1.128/25", ReservationKind.PREFIX)
    cloud.vpc.reserve_cidr(cloud.subnet.subnet_id, "10.0.1.0/25", ReservationKind.EXPLICIT)
    with refused("InsufficientFreeAddressesInSubnet"):
        cloud.create()
    eni_id = cloud.create(PrivateIpAddress="10.0.1.50")
    answer = cloud.ec2.assign_private_ip_addresses(NetworkInterfaceId=eni_id, Ipv4PrefixCount=7)
    assert all(IPv4Network(one["Ipv4Prefix"])[0] >= IPv4Address("10.0.1.128") for one in answer["AssignedIpv4Prefixes"])
    with refused("InsufficientCidrBlocks"):
        cloud.ec2.assign_private_ip_addresses(NetworkInterfaceId=eni_id, Ipv4PrefixCount=1)
