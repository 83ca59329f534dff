"""What every `Ec2` promises: the fake of the service tests, and boto3 against the lab's EC2 over real HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.cloud.ec2 import BotoEc2
from ipamd.model.call_report import ANSWERED, CallOutcome
from ipamd.model.cloud import INTENT_TAG, AddressHolder, EniRequest
from ipamd.model.errors import CloudError, CloudNotFoundError, DeviceIndexTakenError, EniLimitError
from ipamd.model.ids import EniId, InstanceId, SubnetId
from ipamd.ports.cloud import Ec2
from ipamd.settings import CloudConfig
from lab.ec2.server import Ec2Server
from lab.vpc.model import ReservationKind
from lab.vpc.state import Vpc
from tests.errors import refused_by_ec2
from tests.fakes.cloud import INSTANCE, SUBNET, FakeEc2
from tests.unit.cloud.clocks import FakeClock

OPERATOR = "eks.amazonaws.com"


@dataclass(frozen=True)
class Cloud:
    """One EC2, whichever, with an m5.large in a subnet."""

    ec2: Ec2
    instance_id: InstanceId
    subnet_id: SubnetId
    security_group_ids: tuple[str, ...]
    manage: Callable[[EniId], object]
    """Have an AWS service manage an ENI, hidden by default."""
    stop: Callable[[EniId], object]
    """Have EC2 say that the instance is stopped, and turn off the source check of an ENI."""
    reserve: Callable[[str], object]
    """Reserve a range of the subnet, with type `explicit`, and another with type `prefix`."""

    def request(self, token: str, *, addresses: int = 0, prefixes: int = 0) -> EniRequest:
        """A CreateNetworkInterface."""
        tags = {"team": "net", INTENT_TAG: token}
        return EniRequest(self.subnet_id, self.security_group_ids, "aws-K8S-test", tags, token, addresses, prefixes)

    def attached(self, token: str = "t1", *, addresses: int = 3, device_index: int = 1) -> EniId:
        """An ENI of ours."""
        eni = self.ec2.create_eni(self.request(token, addresses=addresses))
        self.ec2.attach_eni(eni.eni_id, instance_id=self.instance_id, device_index=device_index, network_card=0)
        return eni.eni_id


@pytest.fixture(params=["fake", "boto3"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """Both implementations."""
    if request.param == "fake":
        fake = FakeEc2()

        def stop(eni_id: EniId) -> None:
            fake.states[INSTANCE] = "stopped"
            fake.enis[eni_id] = replace(fake.enis[eni_id], is_source_checked=False)

        def reserve(cidr: str) -> None:
            fake.reservations[SUBNET] = (IPv4Network(cidr),)

        yield Cloud(fake, INSTANCE, SUBNET, ("sg-1",), lambda eni_id: fake.manage(eni_id, OPERATOR), stop, reserve)
        return
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "lab")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "lab")
    clock = FakeClock()
    with Vpc(clock=clock.monotonic) as vpc:
        subnet = vpc.add_subnet("10.0.0.0/20")
        instance = vpc.add_instance(name="node", instance_type="m5.large", subnet_id=subnet.subnet_id)
        with Ec2Server(vpc, sockets=[("127.0.0.1", 0)]) as server:
            config = CloudConfig(ec2_endpoint=server.url)
            ec2 = BotoEc2(config, region=lambda: vpc.region, vpc_id=lambda: vpc.vpc_id, clock=clock, sleep=clock.sleep)
            node, groups = InstanceId(instance.instance_id), (vpc.default_group_id,)

            def stop_in_lab(eni_id: EniId) -> None:
                vpc.stop_instance(node)
                vpc.hands.check_source(eni_id, is_on=False)

            def reserve_in_lab(cidr: str) -> None:
                vpc.reserve_cidr(subnet.subnet_id, cidr, ReservationKind.EXPLICIT)
                vpc.reserve_cidr(subnet.subnet_id, "10.0.15.0/24", ReservationKind.PREFIX)

            yield Cloud(
                ec2,
                node,
                SubnetId(subnet.subnet_id),
                groups,
                lambda eni_id: vpc.hands.manage(eni_id, OPERATOR),
                stop_in_lab,
                reserve_in_lab,
            )


def test_creation_brings_addresses_and_is_idempotent(cloud: Cloud) -> None:
    """One call gives an unattached ENI with its addresses; the same token gives the same ENI (I9)."""
    first = cloud.ec2.create_eni(cloud.request("t1", addresses=4))
    again = cloud.ec2.create_eni(cloud.request("t1", addresses=4))
    assert again.eni_id == first.eni_id
    assert len(first.secondary_addresses) == 4
    assert first.primary_address not in first.secondary_addresses
    assert (first.attachment_id, first.tags["team"]) == ("", "net")


def test_connection_tracking_timeouts_that_are_set_are_kept(cloud: Cloud) -> None:
    """Those of a creation are shown by Describe, and nothing where none was set."""
    timeouts = (("TcpEstablishedTimeout", 350), ("UdpTimeout", 40))
    made = cloud.ec2.create_eni(replace(cloud.request("t1", addresses=1), connection_tracking=timeouts))
    assert cloud.ec2.describe_eni(made.eni_id).connection_tracking == timeouts
    plain = cloud.ec2.create_eni(cloud.request("t2", addresses=1))
    assert cloud.ec2.describe_eni(plain.eni_id).connection_tracking == ()


def test_an_eni_is_found_by_the_token_that_made_it(cloud: Cloud) -> None:
    """What a creation made is found by its tag, attached or not, and nothing else is; unknown tokens find nothing (I9)."""
    made = cloud.ec2.create_eni(cloud.request("t1", addresses=2))
    cloud.attached("t2", device_index=2)
    assert [eni.eni_id for eni in cloud.ec2.find_by_token("t1")] == [made.eni_id]
    assert [eni.device_index for eni in cloud.ec2.find_by_token("t2")] == [2]
    assert cloud.ec2.find_by_token("never used") == ()


def test_enis_are_found_by_their_ids(cloud: Cloud) -> None:
    """In one call, attached or not; one that does not exist spoils nothing, and none that was not named is among them."""
    first, second = cloud.attached("t1"), cloud.ec2.create_eni(cloud.request("t2", addresses=1)).eni_id
    cloud.attached("t3", device_index=2)
    found = cloud.ec2.find_enis([second, EniId("eni-0123456789abcdef0"), first])
    assert [one.eni_id for one in found] == sorted([first, second])
    assert found[0].mac == cloud.ec2.describe_eni(found[0].eni_id).mac
    assert cloud.ec2.find_enis([EniId("eni-0123456789abcdef0")]) == ()


def test_an_eni_that_a_service_manages_is_in_every_list(cloud: Cloud) -> None:
    """By instance, ID, token, tag and address, with the service; other ENIs have none."""
    attached, made = cloud.attached("t1", addresses=1), cloud.ec2.create_eni(cloud.request("t2", addresses=1))
    cloud.manage(attached)
    cloud.manage(made.eni_id)
    assert [one.operator for one in cloud.ec2.describe_enis(cloud.instance_id)] == ["", OPERATOR]
    assert [one.operator for one in cloud.ec2.find_enis([attached, made.eni_id])] == [OPERATOR] * 2
    assert [one.eni_id for one in cloud.ec2.find_by_token("t1")] == [attached]
    assert [one.operator for one in cloud.ec2.find_detached({INTENT_TAG: "t2"})] == [OPERATOR]
    (address,) = made.secondary_addresses
    assert [one.eni_id for one in cloud.ec2.find_address(address)] == [made.eni_id]
    assert cloud.ec2.describe_eni(attached).operator == OPERATOR


def test_an_address_is_assigned_by_name_to_one_eni(cloud: Cloud) -> None:
    """EC2 refuses one that another ENI has; withdrawn from there it can be had, and is not withdrawn twice."""
    first, second = cloud.attached("t1", addresses=1), cloud.attached("t2", addresses=1, device_index=2)
    address = IPv4Address("10.0.14.200")
    assert cloud.ec2.find_holder(address) is None
    cloud.ec2.assign_address(first, address)
    holder = cloud.ec2.find_holder(address)
    assert holder == AddressHolder(cloud.instance_id, "running", first, is_primary=False, is_source_checked=True)
    with pytest.raises(CloudError) as refused:
        cloud.ec2.assign_address(second, address)
    assert not refused.value.may_have_happened
    cloud.ec2.withdraw_address(first, address)
    with pytest.raises(CloudNotFoundError):
        cloud.ec2.withdraw_address(first, address)
    cloud.ec2.assign_address(second, address)
    assert address in cloud.ec2.describe_eni(second).secondary_addresses


def test_a_holder_is_described(cloud: Cloud) -> None:
    """Whether the address is its ENI's own, and whether the instance still runs and its source is checked."""
    eni_id = cloud.attached("t1", addresses=1)
    primary = cloud.ec2.describe_eni(eni_id).primary_address
    assert primary is not None
    cloud.stop(eni_id)
    holder = cloud.ec2.find_holder(primary)
    assert holder == AddressHolder(cloud.instance_id, "stopped", eni_id, is_primary=True, is_source_checked=False)
    assert holder.is_gone
    assert not cloud.ec2.describe_eni(eni_id).is_source_checked


def test_explicit_reservations_are_listed(cloud: Cloud) -> None:
    """Those of a subnet, of this type only."""
    assert cloud.ec2.explicit_reservations(cloud.subnet_id) == ()
    cloud.reserve("10.0.14.0/24")
    assert cloud.ec2.explicit_reservations(cloud.subnet_id) == (IPv4Network("10.0.14.0/24"),)


def test_a_subnet_tells_how_much_is_free(cloud: Cloud) -> None:
    """The count goes down by what an ENI takes: its primary address and those that come with it."""
    before = cloud.ec2.subnet_free_count(cloud.subnet_id)
    cloud.ec2.create_eni(cloud.request("t1", addresses=4))
    assert cloud.ec2.subnet_free_count(cloud.subnet_id) == before - 5


def test_the_subnets_of_a_zone_are_listed(cloud: Cloud) -> None:
    """With VPC, zone, CIDR and free addresses; those of another zone or VPC are not among them, and one alone says the same."""
    one = cloud.ec2.describe_subnet(cloud.subnet_id)
    assert one.free_count == cloud.ec2.subnet_free_count(cloud.subnet_id) > 0
    assert one.cidr == cloud.ec2.subnet_cidr(cloud.subnet_id)
    assert cloud.ec2.describe_subnets(vpc_id=one.vpc_id, availability_zone=one.availability_zone) == (one,)
    assert cloud.ec2.describe_subnets(vpc_id=one.vpc_id, availability_zone="us-west-2z") == ()
    assert cloud.ec2.describe_subnets(vpc_id="vpc-0", availability_zone=one.availability_zone) == ()


def test_attached_enis_are_described_by_device_index(cloud: Cloud) -> None:
    """The primary ENI comes first; what we attached follows with its index, and is deleted with the instance if we say so."""
    eni_id = cloud.attached()
    described = cloud.ec2.describe_attached_eni(eni_id)
    assert (described.attachment_status, described.device_index) == ("attached", 1)
    cloud.ec2.set_delete_on_termination(eni_id, attachment_id=described.attachment_id)
    assert cloud.ec2.describe_eni(eni_id).delete_on_termination
    assert [eni.device_index for eni in cloud.ec2.describe_enis(cloud.instance_id)] == [0, 1]


def test_addresses_and_prefixes_come_and_go(cloud: Cloud) -> None:
    """What is assigned is described, what is unassigned is not; both are idempotent enough to be repeated."""
    eni_id = cloud.attached(addresses=2)
    before = cloud.ec2.describe_eni(eni_id).secondary_addresses
    more = cloud.ec2.assign_addresses(eni_id, count=3)
    assert len(more) == 3
    assert not more & before
    prefixes = cloud.ec2.assign_prefixes(eni_id, count=1)
    seen = cloud.ec2.describe_eni(eni_id)
    assert seen.secondary_addresses == before | more
    assert seen.prefixes == prefixes
    for _ in range(2):
        cloud.ec2.unassign(eni_id, addresses=more, prefixes=prefixes)
    assert cloud.ec2.describe_eni(eni_id).secondary_addresses == before


def test_limits_are_typed(cloud: Cloud) -> None:
    """A tenth secondary address and a fourth ENI do not fit an m5.large; both are EniLimitError, and nothing has changed."""
    eni_id = cloud.attached(addresses=9)
    with pytest.raises(EniLimitError):
        cloud.ec2.assign_addresses(eni_id, count=1)
    assert len(cloud.ec2.describe_eni(eni_id).secondary_addresses) == 9
    cloud.attached("t2", device_index=2)
    extra = cloud.ec2.create_eni(cloud.request("t3", addresses=1))
    with pytest.raises(EniLimitError):
        cloud.ec2.attach_eni(extra.eni_id, instance_id=cloud.instance_id, device_index=3, network_card=0)


def test_a_taken_device_index_is_typed(cloud: Cloud) -> None:
    """A place that another ENI has is refused as taken, for sure, and the ENI may be attached at the next one."""
    cloud.attached()
    second = cloud.ec2.create_eni(cloud.request("t2", addresses=1))
    with pytest.raises(DeviceIndexTakenError) as refused:
        cloud.ec2.attach_eni(second.eni_id, instance_id=cloud.instance_id, device_index=1, network_card=0)
    assert not refused.value.may_have_happened
    cloud.ec2.attach_eni(second.eni_id, instance_id=cloud.instance_id, device_index=2, network_card=0)
    assert cloud.ec2.describe_attached_eni(second.eni_id).device_index == 2


def test_what_is_gone_is_gone_quietly(cloud: Cloud) -> None:
    """Detach and delete of what is gone succeed; a Describe of it is typed."""
    eni_id = cloud.attached()
    attachment_id = cloud.ec2.describe_eni(eni_id).attachment_id
    for _ in range(2):
        cloud.ec2.detach_eni(attachment_id)
        cloud.ec2.delete_eni(eni_id)
    with pytest.raises(CloudNotFoundError):
        cloud.ec2.describe_eni(eni_id)


def test_what_is_attached_is_not_deleted(cloud: Cloud) -> None:
    """EC2 refuses to delete an ENI that is attached, however long it is asked; it stays, attached (amazon-vpc-cni-k8s #537)."""
    eni_id = cloud.attached()
    with pytest.raises(CloudError, check=refused_by_ec2("InvalidParameterValue")):
        cloud.ec2.delete_eni(eni_id)
    assert cloud.ec2.describe_eni(eni_id).instance_id == cloud.instance_id


def test_limits_of_the_instance_type(cloud: Cloud) -> None:
    """m5.large: 3 ENIs with 10 addresses each; calls are counted."""
    limits = cloud.ec2.instance_limits("m5.large")
    assert (limits.eni_count, limits.ipv4_per_eni, limits.slots_per_eni) == (3, 10, 9)
    cloud.ec2.describe_enis(cloud.instance_id)
    assert sum(report.count for report in cloud.ec2.call_reports().values()) >= 1


def test_detached_enis_are_found_by_their_tags(cloud: Cloud) -> None:
    """Only what is attached to nothing, and carries every tag; "" stands for any value, and no tag at all is refused."""
    free = cloud.ec2.create_eni(cloud.request("free")).eni_id
    cloud.attached("taken")
    if isinstance(cloud.ec2, FakeEc2):
        cloud.ec2.enis[free] = replace(cloud.ec2.enis[free], status="available")
    assert [eni.eni_id for eni in cloud.ec2.find_detached({"team": "net"})] == [free]
    assert [eni.eni_id for eni in cloud.ec2.find_detached({"team": ""})] == [free]
    assert [eni.eni_id for eni in cloud.ec2.find_detached({"team": "net", INTENT_TAG: ""})] == [free]
    assert cloud.ec2.find_detached({"team": "n*"}) == ()
    assert cloud.ec2.find_detached({"team": "net", INTENT_TAG: "other"}) == ()
    with pytest.raises(ValueError, match="no tag"):
        cloud.ec2.find_detached({})


def test_calls_are_reported_by_api(cloud: Cloud) -> None:
    """Attempts that EC2 carried out and that it refused, whatever the names of the APIs; an API that was not called is not there."""
    assert cloud.ec2.call_reports() == {}
    cloud.ec2.describe_enis(cloud.instance_id)
    (report,) = cloud.ec2.call_reports().values()
    assert (report.outcomes[CallOutcome.OK], report.count, report.statuses[ANSWERED].count) == (1, 1, 1)
    assert report.buckets[-1] == 1
    assert report.left_count > 0
    assert report.rate_per_s > 0


def test_an_address_is_found_with_its_eni_and_instance(cloud: Cloud) -> None:
    """A primary one, a secondary one, and by its subnet one of a prefix; nobody's is found nowhere."""
    eni_id = cloud.attached()
    eni = cloud.ec2.describe_eni(eni_id)
    (secondary,) = sorted(cloud.ec2.assign_addresses(eni_id, count=1))
    (prefix,) = cloud.ec2.assign_prefixes(eni_id, count=1)
    assert eni.primary_address is not None
    for address in (eni.primary_address, secondary):
        assert [(one.eni_id, one.instance_id) for one in cloud.ec2.find_address(address)] == [(eni_id, cloud.instance_id)]
    inside = prefix.network_address + 3
    assert cloud.ec2.find_address(inside) == ()
    assert [one.eni_id for one in cloud.ec2.find_address(inside, subnet_id=eni.subnet_id)] == [eni_id]
    assert cloud.ec2.find_address(IPv4Address("192.0.2.1"), subnet_id=eni.subnet_id) == ()
