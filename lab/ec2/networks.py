"""Subnets and route tables: CreateSubnet, DeleteSubnet, and the association of a subnet with a route table.

Every subnet of the lab has the same routes: an association is remembered by nobody, and changes nothing.
"""

from __future__ import annotations

from ipaddress import IPv4Network

from lab.ec2 import render
from lab.ec2.query import Params, parsed
from lab.ec2.xml import Tree
from lab.errors import LabError
from lab.vpc import errors
from lab.vpc.state import Vpc

_DONE: Tree = {"return": True}


def create_subnet(vpc: Vpc, params: Params) -> Tree:
    """CreateSubnet, without IPv6."""
    if params.required("VpcId") != vpc.vpc_id:
        raise errors.vpc_not_found(params.required("VpcId"))
    (cidr,) = parsed(IPv4Network, [params.required("CidrBlock")])
    try:
        subnet = vpc.add_subnet(str(cidr), az=params.text("AvailabilityZone") or f"{vpc.region}a")
    except LabError as error:
        raise errors.subnet_refused(str(error)) from error
    return {"subnet": render.subnet_tree(vpc, vpc.world, subnet)}


def delete_subnet(vpc: Vpc, params: Params) -> Tree:
    """DeleteSubnet."""
    vpc.delete_subnet(params.required("SubnetId"))
    return _DONE


def associate_route_table(vpc: Vpc, params: Params) -> Tree:
    """AssociateRouteTable."""
    vpc.world.subnet(params.required("SubnetId"))
    params.required("RouteTableId")
    return {"associationId": vpc.ids.make("rtbassoc"), "associationState": {"state": "associated"}}


def disassociate_route_table(_: Vpc, params: Params) -> Tree:
    """DisassociateRouteTable."""
    params.required("AssociationId")
    return _DONE
