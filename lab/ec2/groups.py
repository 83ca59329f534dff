"""Rules of security groups: AuthorizeSecurityGroupIngress and the three calls beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Network, IPv6Network

from lab.ec2.query import Params, parsed
from lab.ec2.xml import Tree
from lab.vpc import errors
from lab.vpc.model import GroupRule, Network
from lab.vpc.state import Vpc

_DONE: Tree = {"return": True}


def _authorize(vpc: Vpc, params: Params, *, is_egress: bool) -> Tree:
    vpc.authorize(params.required("GroupId"), _rules(params, is_egress=is_egress))
    return _DONE


def _revoke(vpc: Vpc, params: Params, *, is_egress: bool) -> Tree:
    vpc.revoke(params.required("GroupId"), _rules(params, is_egress=is_egress))
    return _DONE


CALLS: dict[str, Callable[[Vpc, Params], Tree]] = {
    "AuthorizeSecurityGroupIngress": partial(_authorize, is_egress=False),
    "AuthorizeSecurityGroupEgress": partial(_authorize, is_egress=True),
    "RevokeSecurityGroupIngress": partial(_revoke, is_egress=False),
    "RevokeSecurityGroupEgress": partial(_revoke, is_egress=True),
}
"""By API. Source: API_IpPermission.html."""


def _rules(params: Params, *, is_egress: bool) -> frozenset[GroupRule]:
    rules = frozenset(
        GroupRule(
            is_egress=is_egress,
            protocol=permission.required("IpProtocol").lower(),
            from_port=permission.integer("FromPort"),
            to_port=permission.integer("ToPort"),
            peer=peer,
        )
        for permission in params.structures("IpPermissions")
        for peer in _peers(permission)
    )
    if not rules:
        raise errors.missing_parameter("ipPermissions")
    return rules


def _peers(permission: Params) -> list[Network | str]:
    ipv4 = parsed(IPv4Network, (entry.required("CidrIp") for entry in permission.structures("IpRanges")))
    ipv6 = parsed(IPv6Network, (entry.required("CidrIpv6") for entry in permission.structures("Ipv6Ranges")))
    members = (entry.required("GroupId") for entry in permission.structures("Groups"))
    return [*ipv4, *ipv6, *members]
