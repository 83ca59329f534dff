"""The Describe calls through the wire: filters, pages, instance types, subnets, tags; and the table of limits."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lab.vpc.limits import LIMITS


def ids(answer: Any) -> list[str]:
    """List the ENI IDs of an answer."""
    return [eni["NetworkInterfaceId"] for eni in answer["NetworkInterfaces"]]


def found(cloud: Any, **filters: list[str]) -> list[str]:
    """List the IDs of the ENIs that satisfy the filters."""
    named = [{"Name": name, "Values": values} for name, values in filters.items()]
    return ids(cloud.ec2.describe_network_interfaces(Filters=named))


def test_interface_filters(cloud: Any) -> None:
    """Each filter the daemon uses picks exactly the ENIs that it describes; several filters are joined by and."""
    tags = [{"ResourceType": "network-interface", "Tags": [{"Key": "owner", "Value": "ipamd"}]}]
    idle = cloud.create(TagSpecifications=tags, Description="aws-K8S-i-0")
    bound = cloud.create(TagSpecifications=tags)
    cloud.attach(bound)
    primary = cloud.primary().eni_id
    node = cloud.node.instance_id
    assert found(cloud, **{"attachment.instance-id": [node]}) == [primary, bound]
    assert found(cloud, **{"attachment.status": ["attaching"]}) == [bound]
    assert found(cloud, **{"attachment.device-index": ["0"]}) == [primary]
    assert found(cloud, status=["available"]) == [idle]
    assert found(cloud, status=["available", "in-use"]) == [primary, idle, bound]
    assert found(cloud, **{"tag-key": ["owner"]}) == [idle, bound]
    assert found(cloud, **{"tag:owner": ["ipamd", "other"]}) == [idle, bound]
    assert found(cloud, **{"tag:owner": ["other"]}) == []
    assert found(cloud, **{"tag-key": ["owner"], "status": ["available"]}) == [idle]
    assert found(cloud, **{"vpc-id": [cloud.vpc.vpc_id], "subnet-id": [cloud.subnet.subnet_id]}) == [primary, idle, bound]
    assert found(cloud, **{"vpc-id": ["vpc-0"]}) == []
    assert found(cloud, **{"network-interface-id": [idle]}) == [idle]
    assert found(cloud, description=["aws-K8S-*"]) == [idle]
    assert found(cloud, description=["aws?K8S?i?0"]) == [idle]


def test_unknown_filter(cloud: Any, refused: Any) -> None:
    """A filter that the API does not have is refused, not ignored."""
    with refused("InvalidParameterValue", "The filter 'colour' is invalid"):
        found(cloud, colour=["red"])


def test_unknown_interfaces_are_named(cloud: Any, refused: Any) -> None:
    """One missing ID fails the whole Describe, which names the first of the missing ones only (amazon-vpc-cni-k8s issue 1011)."""
    known = cloud.primary().eni_id
    with refused("InvalidNetworkInterfaceID.NotFound", "The networkInterface ID 'eni-0aa' does not exist"):
        cloud.ec2.describe_network_interfaces(NetworkInterfaceIds=[known, "eni-0aa"])
    with refused("InvalidNetworkInterfaceID.NotFound", "The networkInterface ID 'eni-0aa' does not exist"):
        cloud.ec2.describe_network_interfaces(NetworkInterfaceIds=["eni-0aa", "eni-0bb"])


def test_pages(cloud: Any) -> None:
    """Pages show each ENI once and in order, also when one is deleted between two pages."""
    made = [cloud.primary().eni_id, *(cloud.create() for _ in range(12))]
    first = cloud.ec2.describe_network_interfaces(MaxResults=5)
    cloud.ec2.delete_network_interface(NetworkInterfaceId=made[4])
    second = cloud.ec2.describe_network_interfaces(MaxResults=5, NextToken=first["NextToken"])
    third = cloud.ec2.describe_network_interfaces(MaxResults=5, NextToken=second["NextToken"])
    assert [*ids(first), *ids(second), *ids(third)] == made
    assert "NextToken" not in third


def test_paginator(cloud: Any) -> None:
    """boto3's own paginator walks through all pages, filters included."""
    made = [cloud.create() for _ in range(11)]
    paginator = cloud.ec2.get_paginator("describe_network_interfaces")
    pages = paginator.paginate(Filters=[{"Name": "status", "Values": ["available"]}], PaginationConfig={"PageSize": 5})
    assert [eni for shown in pages for eni in ids(shown)] == made


def test_page_refusals(cloud: Any, refused: Any, make_client: Any) -> None:
    """Page sizes out of range, IDs together with a page size, and forged tokens are refused."""
    unchecked = make_client(cloud.server.url, validate=False)
    with refused("InvalidParameterValue", "Expecting a value greater than 5"):
        unchecked.describe_network_interfaces(MaxResults=4)
    with refused("InvalidParameterValue", "Expecting a value less than 1000"):
        unchecked.describe_network_interfaces(MaxResults=1001)
    with refused("InvalidParameterCombination", "NetworkInterfaceIds"):
        cloud.ec2.describe_network_interfaces(MaxResults=5, NetworkInterfaceIds=[cloud.primary().eni_id])
    with refused("InvalidPaginationToken"):
        cloud.ec2.describe_network_interfaces(MaxResults=5, NextToken="not a token")


def test_instances_show_their_interfaces(cloud: Any, refused: Any) -> None:
    """DescribeInstances lists each bound ENI with device index, card and addresses."""
    eni_id = cloud.create(SecondaryPrivateIpAddressCount=1, Description="x")
    cloud.attach(eni_id, 2)
    answer = cloud.ec2.describe_instances(InstanceIds=[cloud.node.instance_id])
    (instance,) = answer["Reservations"][0]["Instances"]
    assert (instance["InstanceType"], instance["State"]["Name"]) == ("m5.large", "running")
    assert instance["PrivateIpAddress"] == str(cloud.primary().primary_address)
    primary, second = instance["NetworkInterfaces"]
    assert (primary["Attachment"]["DeviceIndex"], second["Attachment"]["DeviceIndex"]) == (0, 2)
    assert second["Attachment"]["NetworkCardIndex"] == 0
    assert (second["NetworkInterfaceId"], len(second["PrivateIpAddresses"])) == (eni_id, 2)
    with refused("InvalidInstanceID.NotFound", "'i-0'"):
        cloud.ec2.describe_instances(InstanceIds=["i-0"])


def test_instance_filters_and_hosts(cloud: Any) -> None:
    """A plain host is an instance too; a terminated one stays visible as such."""
    host = cloud.vpc.add_host(name="client", subnet_id=cloud.subnet.subnet_id)

    def names(name: str, value: str) -> list[str]:
        answer = cloud.ec2.describe_instances(Filters=[{"Name": name, "Values": [value]}])
        return [i["InstanceId"] for r in answer["Reservations"] for i in r["Instances"]]

    assert names("instance-type", "t3.nano") == [host.instance_id]
    assert names("network-interface.network-interface-id", cloud.primary().eni_id) == [cloud.node.instance_id]
    cloud.vpc.terminate_instance(host.instance_id)
    assert names("instance-state-name", "terminated") == [host.instance_id]


def test_instance_types(cloud: Any, refused: Any) -> None:
    """DescribeInstanceTypes tells ENIs, addresses and cards, and knows bare metal and Xen."""

    def one(name: str) -> Any:
        return cloud.ec2.describe_instance_types(InstanceTypes=[name])["InstanceTypes"][0]

    network = one("p4d.24xlarge")["NetworkInfo"]
    assert (network["MaximumNetworkInterfaces"], network["Ipv4AddressesPerInterface"]) == (60, 50)
    cards = [(card["NetworkCardIndex"], card["MaximumNetworkInterfaces"]) for card in network["NetworkCards"]]
    assert cards == [(0, 15), (1, 15), (2, 15), (3, 15)]
    assert (one("m5.metal")["BareMetal"], "Hypervisor" in one("m5.metal")) == (True, False)
    assert (one("m5.large")["Hypervisor"], one("m4.large")["Hypervisor"]) == ("nitro", "xen")
    with refused("InvalidInstanceType", "z9.huge"):
        one("z9.huge")


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_limits_agree_with_another_source(name: str) -> None:
    """Each row of our table equals moto's copy of what AWS answers."""
    import moto.ec2

    source = Path(moto.ec2.__file__).parent / "resources" / "instance_types.json.gz"
    theirs = json.loads(gzip.decompress(source.read_bytes()))[name]
    ours, network = LIMITS[name], theirs["NetworkInfo"]
    assert ours.total_enis == network["MaximumNetworkInterfaces"]
    assert ours.addresses_per_eni == network["Ipv4AddressesPerInterface"]
    assert list(ours.enis_per_card) == [card["MaximumNetworkInterfaces"] for card in network["NetworkCards"]]
    assert (ours.hypervisor or None) == theirs.get("Hypervisor")
    assert ours.is_bare_metal == theirs["BareMetal"]
    assert ours.architecture in theirs["ProcessorInfo"]["SupportedArchitectures"]
    assert (ours.vcpus, ours.memory_mib) == (theirs["VCpuInfo"]["DefaultVCpus"], theirs["MemoryInfo"]["SizeInMiB"])


def test_subnets_and_vpc(cloud: Any, refused: Any) -> None:
    """Subnets are found by zone, tag and VPC; the VPC tells its blocks."""
    far = cloud.vpc.add_subnet("10.0.9.0/24", az="us-west-2b", tags={"kubernetes.io/role/cni": "1"})

    def named(name: str, value: str) -> list[str]:
        answer = cloud.ec2.describe_subnets(Filters=[{"Name": name, "Values": [value]}])
        return [subnet["SubnetId"] for subnet in answer["Subnets"]]

    assert named("availability-zone", "us-west-2b") == [far.subnet_id]
    assert named("tag:kubernetes.io/role/cni", "1") == [far.subnet_id]
    assert sorted(named("vpc-id", cloud.vpc.vpc_id)) == sorted([cloud.subnet.subnet_id, far.subnet_id])
    vpc = cloud.ec2.describe_vpcs(VpcIds=[cloud.vpc.vpc_id])["Vpcs"][0]
    assert [block["CidrBlock"] for block in vpc["CidrBlockAssociationSet"]] == ["10.0.0.0/16"]
    with refused("InvalidSubnetID.NotFound"):
        cloud.ec2.describe_subnets(SubnetIds=["subnet-0"])
    with refused("InvalidVpcID.NotFound"):
        cloud.ec2.describe_vpcs(VpcIds=["vpc-0"])


def test_tags(cloud: Any, refused: Any) -> None:
    """Tags are made, replaced, shown, and deleted by key, by key and value, and altogether."""
    eni_id = cloud.create()

    def shown() -> dict[str, str]:
        answer = cloud.ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [eni_id]}])
        assert {tag["ResourceType"] for tag in answer["Tags"]} <= {"network-interface"}
        assert cloud.show(eni_id)["TagSet"] == [{"Key": t["Key"], "Value": t["Value"]} for t in answer["Tags"]]
        return {tag["Key"]: tag["Value"] for tag in answer["Tags"]}

    cloud.ec2.create_tags(Resources=[eni_id, cloud.node.instance_id], Tags=[{"Key": "a", "Value": "1"}])
    cloud.ec2.create_tags(Resources=[eni_id], Tags=[{"Key": "a", "Value": "2"}, {"Key": "b", "Value": ""}])
    assert shown() == {"a": "2", "b": ""}
    cloud.ec2.delete_tags(Resources=[eni_id], Tags=[{"Key": "a", "Value": "1"}])
    assert shown() == {"a": "2", "b": ""}
    cloud.ec2.delete_tags(Resources=[eni_id], Tags=[{"Key": "a"}])
    assert shown() == {"b": ""}
    cloud.ec2.delete_tags(Resources=[eni_id])
    assert shown() == {}
    with refused("InvalidNetworkInterfaceID.NotFound"):
        cloud.ec2.create_tags(Resources=["eni-0"], Tags=[{"Key": "a", "Value": "1"}])
