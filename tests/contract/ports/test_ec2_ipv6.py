"""What every `Ec2` promises a pool of IPv6: the fake of the service tests, and boto3 against the lab's EC2 over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ipamd.cloud.ec2 import BotoEc2
from ipamd.model.cloud import INTENT_TAG, EniRequest
from ipamd.model.errors import CloudDeniedError, CloudNotFoundError, SubnetExhaustedError
from ipamd.model.family import IPV6
from ipamd.model.ids import EniId, InstanceId, SubnetId
from ipamd.ports.cloud import Ec2
from ipamd.settings import CloudConfig
from lab.ec2.server import Ec2Server
from lab.vpc.state import Vpc
from tests.fakes.cloud import INSTANCE, PRIMARY, SUBNET, FakeEc2
from tests.unit.cloud.clocks import FakeClock


@dataclass(frozen=True)
class Cloud:
    """One EC2, whichever, with an m5.large in a subnet of both families. `vpc`: behind boto3, None of the fake."""

    ec2: Ec2
    instance_id: InstanceId
    subnet_id: SubnetId
    primary: EniId
    groups: tuple[str, ...]
    vpc: Vpc | None = None

    def hold_prefixes(self) -> None:
        """The subnet has no free /80 any more."""
        if self.vpc is not None:
            self.vpc.hold_ipv6_prefixes(self.subnet_id)
        elif isinstance(self.ec2, FakeEc2):
            self.ec2.left_prefix_count = 0


@pytest.fixture(params=["fake", "boto3"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """Both implementations."""
    if request.param == "fake":
        yield Cloud(FakeEc2(family=IPV6), INSTANCE, SUBNET, PRIMARY, ("sg-1",))
        return
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "lab")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "lab")
    clock = FakeClock()
    with Vpc(clock=clock.monotonic, ipv6_cidr="2001:db8:0:100::/56") as vpc:
        subnet = vpc.add_subnet("10.0.0.0/20", ipv6_cidr="2001:db8:0:101::/64")
        instance = vpc.add_instance(name="node", instance_type="m5.large", subnet_id=subnet.subnet_id)
        with Ec2Server(vpc, sockets=[("127.0.0.1", 0)]) as server:
            config = CloudConfig(ec2_endpoint=server.url)
            ec2 = BotoEc2(
                config, region=lambda: vpc.region, vpc_id=lambda: vpc.vpc_id, clock=clock, sleep=clock.sleep, family=IPV6
            )
            instance_id, subnet_id = InstanceId(instance.instance_id), SubnetId(subnet.subnet_id)
            (primary,) = ec2.describe_enis(instance_id)
            yield Cloud(ec2, instance_id, subnet_id, primary.eni_id, (vpc.default_group_id,), vpc)


def test_a_prefix_is_given_shown_and_taken_back(cloud: Cloud) -> None:
    """One /80, by count; Describe shows it and nothing else of IPv6 or IPv4 for pods; and it is taken back by name."""
    (before,) = cloud.ec2.describe_enis(cloud.instance_id)
    assert (before.prefixes, before.secondary_addresses, before.has_ipv6) == (frozenset(), frozenset(), True)
    given = cloud.ec2.assign_prefixes(cloud.primary, count=1)
    assert [(prefix.version, prefix.prefixlen) for prefix in given] == [(6, 80)]
    shown = cloud.ec2.describe_eni(cloud.primary)
    assert (shown.prefixes, shown.secondary_addresses, shown.primary_address) == (given, frozenset(), before.primary_address)
    cloud.ec2.unassign(cloud.primary, addresses=(), prefixes=given)
    assert cloud.ec2.describe_eni(cloud.primary).prefixes == frozenset()
    cloud.ec2.unassign(cloud.primary, addresses=(), prefixes=given)  # what is not there any more is as it should be


def test_a_subnet_says_whether_it_has_ipv6(cloud: Cloud) -> None:
    """An ENI for pods of IPv6 is made in no other one."""
    if cloud.vpc is not None:
        cloud.vpc.add_subnet("10.0.64.0/20")
    elif isinstance(cloud.ec2, FakeEc2):
        cloud.ec2.add_subnet("subnet-plain", "10.0.64.0/20", has_ipv6=False)
    own = cloud.ec2.describe_subnet(cloud.subnet_id)
    found = cloud.ec2.describe_subnets(vpc_id=own.vpc_id, availability_zone=own.availability_zone)
    assert {str(one.cidr): one.has_ipv6 for one in found} == {"10.0.0.0/20": True, "10.0.64.0/20": False}


def test_a_second_call_gives_a_second_prefix(cloud: Cloud) -> None:
    """The call has no token: whoever repeats it gets another /80, which is why Describe is asked first."""
    first, second = (cloud.ec2.assign_prefixes(cloud.primary, count=1) for _ in range(2))
    assert not first & second
    assert cloud.ec2.describe_eni(cloud.primary).prefixes == first | second


def test_a_subnet_without_a_free_prefix(cloud: Cloud) -> None:
    """Refused with its own error, and nothing happened."""
    cloud.hold_prefixes()
    with pytest.raises(SubnetExhaustedError):
        cloud.ec2.assign_prefixes(cloud.primary, count=1)
    assert cloud.ec2.describe_eni(cloud.primary).prefixes == frozenset()


def test_an_eni_of_ipv6_is_made_with_an_address_of_its_own(cloud: Cloud) -> None:
    """And gets its /80 afterwards; the same token makes no second ENI (I9)."""
    request = EniRequest(cloud.subnet_id, cloud.groups, "aws-K8S-test", {INTENT_TAG: "t1"}, "t1", ipv6_address_count=1)
    made, again = (cloud.ec2.create_eni(request) for _ in range(2))
    assert made.eni_id == again.eni_id
    assert (made.has_ipv6, made.prefixes, made.secondary_addresses) == (True, frozenset(), frozenset())
    cloud.ec2.attach_eni(made.eni_id, instance_id=cloud.instance_id, device_index=1, network_card=0)
    given = cloud.ec2.assign_prefixes(made.eni_id, count=1)
    shown = {eni.eni_id: eni for eni in cloud.ec2.describe_enis(cloud.instance_id)}
    assert shown[made.eni_id].prefixes == given


def test_an_address_of_a_prefix_is_found_by_its_subnet(cloud: Cloud) -> None:
    """As a pod's; nobody's is found nowhere."""
    (prefix,) = cloud.ec2.assign_prefixes(cloud.primary, count=1)
    inside, outside = prefix.network_address + 3, prefix.broadcast_address + 1
    assert cloud.ec2.find_address(inside) == ()
    assert [one.eni_id for one in cloud.ec2.find_address(inside, subnet_id=cloud.subnet_id)] == [cloud.primary]
    assert cloud.ec2.find_address(outside, subnet_id=cloud.subnet_id) == ()


def test_an_eni_that_does_not_exist(cloud: Cloud) -> None:
    """It is not found."""
    with pytest.raises(CloudNotFoundError):
        cloud.ec2.assign_prefixes(EniId("eni-00000000000000000"), count=1)


def test_a_denial_names_the_line_of_the_policy(cloud: Cloud) -> None:
    """IAM denies the call, as with AWS's own policy for nodes: the error says which action to allow (I14)."""
    if cloud.vpc is None:
        pytest.skip("the fake has no IAM")
    cloud.vpc.faults.apply({"apis": {"AssignIpv6Addresses": {"error": {"code": "UnauthorizedOperation", "message": "no"}}}})
    with pytest.raises(CloudDeniedError) as denied:
        cloud.ec2.assign_prefixes(cloud.primary, count=1)
    assert "ec2:AssignIpv6Addresses (AmazonEKS_CNI_Policy lacks it)" in denied.value.next_step
