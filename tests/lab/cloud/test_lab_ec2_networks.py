"""Subnets made and deleted through the wire, and their association with a route table."""

from __future__ import annotations

from typing import Any


def test_a_subnet_made_by_a_call_carries_enis_and_goes_when_empty(cloud: Any, refused: Any) -> None:
    """It is a subnet as any other; with an ENI in it EC2 does not delete it."""
    made = cloud.ec2.create_subnet(VpcId=cloud.vpc.vpc_id, CidrBlock="10.0.7.0/24", AvailabilityZone="us-west-2a")["Subnet"]
    subnet_id = made["SubnetId"]
    assert (made["CidrBlock"], made["AvailableIpAddressCount"]) == ("10.0.7.0/24", 251)
    eni = cloud.ec2.create_network_interface(SubnetId=subnet_id)["NetworkInterface"]["NetworkInterfaceId"]
    with refused("DependencyViolation", "dependencies"):
        cloud.ec2.delete_subnet(SubnetId=subnet_id)
    cloud.ec2.delete_network_interface(NetworkInterfaceId=eni)
    cloud.ec2.delete_subnet(SubnetId=subnet_id)
    with refused("InvalidSubnetID.NotFound", subnet_id):
        cloud.ec2.describe_subnets(SubnetIds=[subnet_id])


def test_subnets_that_do_not_fit_are_refused(cloud: Any, refused: Any) -> None:
    """Outside of the VPC, over another subnet, or in another VPC."""
    with refused("InvalidSubnet.Range", "within"):
        cloud.ec2.create_subnet(VpcId=cloud.vpc.vpc_id, CidrBlock="192.168.0.0/24")
    with refused("InvalidSubnet.Conflict", "overlaps"):
        cloud.ec2.create_subnet(VpcId=cloud.vpc.vpc_id, CidrBlock=str(cloud.subnet.cidr))
    with refused("InvalidVpcID.NotFound", "vpc-0123"):
        cloud.ec2.create_subnet(VpcId="vpc-0123", CidrBlock="10.0.7.0/24")


def test_a_route_table_is_associated_with_a_subnet_that_is_there(cloud: Any, refused: Any) -> None:
    """The lab has one set of routes, so the answer is an ID and nothing else."""
    answer = cloud.ec2.associate_route_table(RouteTableId="rtb-0", SubnetId=cloud.subnet.subnet_id)
    assert answer["AssociationId"].startswith("rtbassoc-0")
    cloud.ec2.disassociate_route_table(AssociationId=answer["AssociationId"])
    with refused("InvalidSubnetID.NotFound", "subnet-0123"):
        cloud.ec2.associate_route_table(RouteTableId="rtb-0", SubnetId="subnet-0123")


def test_zones_are_those_of_the_subnets(cloud: Any, refused: Any) -> None:
    """A zone appears with its first subnet, has the ID that all accounts know it by, and can be asked for by name."""
    zones = cloud.ec2.describe_availability_zones()["AvailabilityZones"]
    assert [(zone["ZoneName"], zone["ZoneId"], zone["State"]) for zone in zones] == [("us-west-2a", "usw2-az1", "available")]
    cloud.ec2.create_subnet(VpcId=cloud.vpc.vpc_id, CidrBlock="10.0.7.0/24", AvailabilityZone="us-west-2b")
    assert _zone_names(cloud.ec2.describe_availability_zones()) == ["us-west-2a", "us-west-2b"]
    assert _zone_names(cloud.ec2.describe_availability_zones(ZoneNames=["us-west-2b"])) == ["us-west-2b"]
    by_id = [{"Name": "zone-id", "Values": ["usw2-az1"]}]
    assert _zone_names(cloud.ec2.describe_availability_zones(Filters=by_id)) == ["us-west-2a"]
    with refused("InvalidParameterValue", "us-west-2c"):
        cloud.ec2.describe_availability_zones(ZoneNames=["us-west-2c"])


def _zone_names(answer: dict[str, Any]) -> list[str]:
    return [zone["ZoneName"] for zone in answer["AvailabilityZones"]]
