"""Trunks and branches of the lab's EC2: where a trunk goes, what Describe says of both, and what a node cannot call."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from lab.vpc.errors import Ec2Error
from lab.vpc.model import AdmissionChanged, EniAttached, EniDetached, EniStatus, VpcEvent
from lab.vpc.state import Vpc
from tests.errors import refused_by_lab

TAGS = {"vpcresources.k8s.aws/vlan-id": "1"}


@pytest.fixture
def vpc() -> Vpc:
    """A VPC with one m5.large: three device indices, nine branches."""
    made = Vpc()
    subnet = made.add_subnet("10.0.0.0/24")
    made.add_instance(name="node-a", subnet_id=subnet.subnet_id)
    return made


def _trunk(vpc: Vpc) -> str:
    made = vpc.trunks.create_trunk(vpc.instance("node-a").instance_id, description="trunk", tags={})
    assert made is not None
    return made.eni_id


def _branch(vpc: Vpc, trunk: str, vlan: int, *groups: str) -> str:
    made = vpc.trunks.create_branch(trunk, groups=groups or (vpc.default_group_id,), description="branch", tags=TAGS)
    vpc.trunks.associate(trunk, made.eni_id, vlan)
    return made.eni_id


def test_a_trunk_takes_the_highest_unused_index_of_card_0(vpc: Vpc) -> None:
    """Ipamd takes them from the lowest. Source: amazon-vpc-resource-controller-k8s, GetHighestUnusedDeviceIndex."""
    instance_id = vpc.instance("node-a").instance_id
    vpc.hands.attach(instance_id)
    trunk = vpc.eni(_trunk(vpc))
    assert trunk.attachment is not None
    assert (trunk.interface_type, trunk.attachment.device_index, trunk.attachment.delete_on_termination) == ("trunk", 2, True)
    assert vpc.trunks.trunk_of(instance_id) == trunk
    assert vpc.trunks.create_trunk(instance_id, description="", tags={}) is None, "there is no index left"


def test_a_branch_is_in_use_by_its_trunk_and_attached_to_nothing(vpc: Vpc) -> None:
    """And is an ordinary ENI again, available, when its bond ends."""
    trunk = _trunk(vpc)
    branch = vpc.eni(_branch(vpc, trunk, 7))
    assert (branch.interface_type, branch.status, branch.attachment) == ("branch", EniStatus.IN_USE, None)
    assert branch.association is not None
    assert (branch.association.trunk_id, branch.association.vlan) == (trunk, 7)
    assert [one.eni_id for one in vpc.enis_of(vpc.instance("node-a").instance_id)][1:] == [trunk], "it is no ENI of the instance"
    vpc.trunks.disassociate(branch.association.association_id)
    assert (vpc.eni(branch.eni_id).interface_type, vpc.eni(branch.eni_id).status) == ("interface", EniStatus.AVAILABLE)
    with pytest.raises(Ec2Error, check=refused_by_lab("InvalidAssociationID.NotFound")):
        vpc.trunks.disassociate(branch.association.association_id)


def test_an_id_has_one_branch_and_a_type_so_many(vpc: Vpc) -> None:
    """m5.large: nine (branch_capacity)."""
    trunk = _trunk(vpc)
    for vlan in range(1, 10):
        _branch(vpc, trunk, vlan)
    with pytest.raises(Ec2Error, check=refused_by_lab("InvalidParameterValue")):
        _branch(vpc, trunk, 9)
    with pytest.raises(Ec2Error, check=refused_by_lab("AttachmentLimitExceeded")):
        _branch(vpc, trunk, 10)
    assert [eni.association.vlan for eni in vpc.trunks.branches_of(trunk) if eni.association] == list(range(1, 10))


def test_a_branch_is_plugged_where_its_trunk_is(vpc: Vpc) -> None:
    """What listens hears it come after its trunk and go with it; a trunk with branches is not deleted."""
    heard: list[VpcEvent] = []
    vpc.subscribe(heard.append)
    trunk = _trunk(vpc)
    branch = _branch(vpc, trunk, 1)
    with pytest.raises(Ec2Error, check=refused_by_lab("InvalidParameterValue")):
        vpc.hands.delete(trunk)
    vpc.drain(5.0)
    came = [event.eni.eni_id for event in heard if isinstance(event, EniAttached)]
    went = [event.eni_id for event in heard if isinstance(event, EniDetached)]
    assert (came[-2:], went) == ([trunk, branch], [trunk, branch])
    assert vpc.eni(branch).association is not None, "the bond is EC2's, not the wire's"
    vpc.close()


def test_groups_name_networks_and_members_of_groups(vpc: Vpc) -> None:
    """Nothing is said while every group admits everybody."""
    heard: list[VpcEvent] = []
    vpc.subscribe(heard.append)
    trunk = _trunk(vpc)
    clients = vpc.add_security_group("clients")
    client = vpc.eni(_branch(vpc, trunk, 1, clients))
    vpc.drain(5.0)
    assert not [event for event in heard if isinstance(event, AdmissionChanged)]
    servers = vpc.add_security_group("servers", sources=[clients, ip_network("192.0.2.0/24")])
    server = _branch(vpc, trunk, 2, servers)
    expected = frozenset({ip_network(client.addresses[0]), ip_network("192.0.2.0/24")})
    assert vpc.world.admitted(vpc.eni(server)) == expected
    vpc.admit(servers, [])
    vpc.drain(5.0)
    said = [(event.eni_id, event.sources) for event in heard if isinstance(event, AdmissionChanged)]
    assert said == [(server, expected), (server, frozenset())]
    vpc.close()
