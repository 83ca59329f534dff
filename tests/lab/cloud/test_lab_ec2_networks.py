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
