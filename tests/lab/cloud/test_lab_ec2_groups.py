"""Rules of security groups through the wire."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any


def _permission(**peers: object) -> list[dict[str, object]]:
    return [{"IpProtocol": "TCP", "FromPort": 80, "ToPort": 80, **peers}]


def test_a_rule_is_added_once_and_taken_once(cloud: Any, refused: Any) -> None:
    """EC2 refuses a rule that is there, and to take one that is not; ingress and egress are apart."""
    group, anywhere = cloud.vpc.add_security_group("pods"), _permission(IpRanges=[{"CidrIp": "0.0.0.0/0"}])
    cloud.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=anywhere)
    with refused("InvalidPermission.Duplicate", "already exists"):
        cloud.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=anywhere)
    with refused("InvalidPermission.NotFound", "does not exist"):
        cloud.ec2.revoke_security_group_egress(GroupId=group, IpPermissions=anywhere)
    cloud.ec2.authorize_security_group_egress(GroupId=group, IpPermissions=anywhere)
    cloud.ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=anywhere)
    assert [rule.is_egress for rule in cloud.vpc.world.group(group).rules] == [True]


def test_rules_need_a_group_and_a_peer(cloud: Any, refused: Any) -> None:
    """A group that does not exist, and a rule for nobody, are refused."""
    with refused("InvalidGroup.NotFound", "sg-0123"):
        cloud.ec2.authorize_security_group_ingress(
            GroupId="sg-0123", IpPermissions=_permission(IpRanges=[{"CidrIp": "10.0.0.0/8"}])
        )
    with refused("MissingParameter", "ipPermissions"):
        cloud.ec2.authorize_security_group_ingress(GroupId=cloud.vpc.default_group_id, IpPermissions=_permission())


def test_ingress_admits_its_peer_and_egress_nobody(cloud: Any) -> None:
    """Networks of both families and members of a group may send to the group's ENIs once a rule of ingress names them."""
    clients = cloud.vpc.add_security_group("clients")
    client = cloud.vpc.eni(cloud.create(Groups=[clients]))
    servers = cloud.vpc.add_security_group("servers", sources=[])
    server = cloud.vpc.eni(cloud.create(Groups=[servers]))
    peers = {
        "IpRanges": [{"CidrIp": "192.0.2.0/24"}],
        "Ipv6Ranges": [{"CidrIpv6": "2001:db8::/32"}],
        "UserIdGroupPairs": [{"GroupId": clients}],
    }
    cloud.ec2.authorize_security_group_ingress(GroupId=servers, IpPermissions=_permission(**peers))
    cloud.ec2.authorize_security_group_egress(
        GroupId=servers, IpPermissions=_permission(IpRanges=[{"CidrIp": "198.51.100.0/24"}])
    )
    expected = {ip_network(name) for name in ("192.0.2.0/24", "2001:db8::/32", f"{client.primary_address}/32")}
    assert cloud.vpc.world.admitted(server) == expected
    cloud.ec2.revoke_security_group_ingress(GroupId=servers, IpPermissions=_permission(**peers))
    assert cloud.vpc.world.admitted(server) == frozenset()


def test_a_rule_adds_nobody_where_everybody_may_send(cloud: Any) -> None:
    """The default group admits everybody, with rules and without."""
    eni = cloud.vpc.eni(cloud.create())
    permission = _permission(IpRanges=[{"CidrIp": "192.0.2.0/24"}])
    cloud.ec2.authorize_security_group_ingress(GroupId=cloud.vpc.default_group_id, IpPermissions=permission)
    assert cloud.vpc.world.admitted(eni) is None
