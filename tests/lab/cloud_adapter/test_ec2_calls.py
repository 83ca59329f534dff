"""What each EC2 method does when EC2 works."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.model.errors import CloudNotFoundError, EniLimitError, SubnetExhaustedError
from ipamd.model.ids import EniId, SubnetId
from tests.errors import refused_by_ec2
from tests.lab.cloud_adapter.conftest import TAGS, Bench


def test_an_eni_lives_from_create_to_delete(bench: Bench) -> None:
    """Create with addresses and tags, attach, mark, describe, detach, delete: one call each, and EC2 is left as found (I9)."""
    before = bench.vpc.enis()
    made = bench.ec2.create_eni(bench.request(addresses=4))
    assert len(made.secondary_addresses) == 4
    assert made.primary_address not in made.secondary_addresses
    assert (made.tags, made.description, made.instance_id) == (TAGS, "aws-K8S-lab", "")
    attachment_id = bench.ec2.attach_eni(made.eni_id, instance_id=bench.instance_id, device_index=1, network_card=0)
    bench.ec2.set_delete_on_termination(made.eni_id, attachment_id=attachment_id)
    seen = bench.ec2.describe_eni(made.eni_id)
    assert (seen.instance_id, seen.device_index, seen.attachment_id) == (bench.instance_id, 1, attachment_id)
    assert seen.delete_on_termination
    assert seen.secondary_addresses == made.secondary_addresses
    bench.ec2.detach_eni(attachment_id)
    bench.ec2.delete_eni(made.eni_id)
    assert bench.vpc.enis() == before
    assert set(bench.vpc.call_counts().values()) == {1}


def test_describe_tells_all_enis_by_device_index(bench: Bench) -> None:
    """Both ENIs are told, the primary one first, and no primary address is among the secondary ones (I6)."""
    second = bench.attached(addresses=2)
    enis = bench.ec2.describe_enis(bench.instance_id)
    assert [eni.device_index for eni in enis] == [0, 1]
    assert enis[1].eni_id == second
    assert all(eni.primary_address not in eni.secondary_addresses for eni in enis)
    assert [len(eni.secondary_addresses) for eni in enis] == [0, 2]


def test_describe_follows_every_page(make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer in pages is read to the end, and each page is counted (I11)."""
    bench = make_bench(instance_type="m5.4xlarge")
    for device_index in range(1, 7):
        bench.attached(device_index=device_index, addresses=1)
    whole = bench.ec2.describe_enis(bench.instance_id)
    bench.vpc.clear_calls()
    monkeypatch.setattr("ipamd.cloud.ec2.PAGE_SIZE", 5)
    assert bench.ec2.describe_enis(bench.instance_id) == whole
    assert [eni.device_index for eni in whole] == list(range(7))
    assert bench.vpc.call_counts() == {"DescribeNetworkInterfaces": 2}
    assert bench.ec2.call_reports()["DescribeNetworkInterfaces"].count == 3


def test_addresses_are_allocated_and_released(bench: Bench) -> None:
    """Assign answers exactly what EC2 added, unassign takes exactly what was named."""
    eni_id = bench.attached(addresses=1)
    before = bench.owned(eni_id)
    added = bench.ec2.assign_addresses(eni_id, count=3)
    assert len(added) == 3
    assert bench.owned(eni_id) == before | added
    bench.ec2.unassign(eni_id, addresses=added, prefixes=())
    assert bench.owned(eni_id) == before


def test_prefixes_are_allocated_and_released(bench: Bench) -> None:
    """A /28 per slot, at creation and later; addresses and prefixes released together leave neither."""
    made = bench.ec2.create_eni(bench.request(prefixes=2))
    assert {prefix.prefixlen for prefix in made.prefixes} == {28}
    assert not made.secondary_addresses
    more = bench.ec2.assign_prefixes(made.eni_id, count=1)
    single = bench.ec2.assign_addresses(made.eni_id, count=2)
    seen = bench.ec2.describe_eni(made.eni_id)
    assert seen.prefixes == made.prefixes | more
    bench.ec2.unassign(made.eni_id, addresses=single, prefixes=seen.prefixes)
    left = bench.ec2.describe_eni(made.eni_id)
    assert (left.prefixes, left.secondary_addresses) == (frozenset(), frozenset())


def test_what_is_not_there_is_released_all_the_same(bench: Bench) -> None:
    """EC2 refuses a release of which a part is gone; the rest is released, and the caller hears nothing of it."""
    eni_id = bench.attached(addresses=3)
    gone, *rest = sorted(bench.owned(eni_id))
    bench.ec2.unassign(eni_id, addresses=[gone], prefixes=())
    bench.ec2.unassign(eni_id, addresses=[gone, *rest], prefixes=[IPv4Network("10.0.0.32/28")])
    assert bench.owned(eni_id) == frozenset()
    bench.ec2.unassign(eni_id, addresses=[gone], prefixes=())
    bench.ec2.unassign(EniId("eni-00000000000000000"), addresses=[gone], prefixes=())


def test_releasing_nothing_is_a_mistake_of_the_caller(bench: Bench) -> None:
    """No call is made for nothing."""
    with pytest.raises(ValueError, match="nothing to release"):
        bench.ec2.unassign(EniId("eni-1"), addresses=(), prefixes=())
    assert not bench.vpc.calls()


def test_deleting_and_detaching_what_is_gone_is_fine(bench: Bench) -> None:
    """Clean-up after a crash may repeat every step (I9)."""
    bench.ec2.delete_eni(EniId("eni-00000000000000000"))
    bench.ec2.detach_eni("eni-attach-00000000000000000")


def test_an_unknown_eni_is_typed(bench: Bench) -> None:
    """Describe of an ENI that never was says so at once, without retries."""
    with pytest.raises(CloudNotFoundError, check=refused_by_ec2("InvalidNetworkInterfaceID.NotFound")):
        bench.ec2.describe_eni(EniId("eni-00000000000000000"))
    assert bench.vpc.call_counts() == {"DescribeNetworkInterfaces": 1}


def test_a_subnet_is_asked_once(bench: Bench) -> None:
    """The block of a subnet never changes: one call for the life of the process (I13)."""
    assert bench.ec2.subnet_cidr(bench.subnet_id) == IPv4Network("10.0.0.0/24")
    assert bench.ec2.subnet_cidr(bench.subnet_id) == IPv4Network("10.0.0.0/24")
    assert bench.vpc.call_counts() == {"DescribeSubnets": 1}
    with pytest.raises(CloudNotFoundError):
        bench.ec2.subnet_cidr(SubnetId("subnet-0"))


@pytest.mark.parametrize("kind", ["addresses", "prefixes"])
def test_a_full_subnet_is_typed(bench: Bench, kind: str) -> None:
    """A subnet without free addresses, and one without a free /28, are the same class with EC2's own code in the details."""
    made = bench.ec2.create_eni(bench.request(addresses=1))
    bench.vpc.exhaust_subnet(bench.subnet_id)
    with pytest.raises(SubnetExhaustedError):
        getattr(bench.ec2, f"assign_{kind}")(made.eni_id, count=1)
    with pytest.raises(SubnetExhaustedError):
        bench.ec2.create_eni(bench.request(token="another", **{kind: 1}))


def test_a_fragmented_subnet_is_typed(bench: Bench) -> None:
    """Free addresses but no whole /28: prefix mode hears InsufficientCidrBlocks and can fall back to single addresses."""
    made = bench.ec2.create_eni(bench.request(addresses=1))
    bench.vpc.fragment_subnet(bench.subnet_id)
    with pytest.raises(SubnetExhaustedError, check=refused_by_ec2("InsufficientCidrBlocks")):
        bench.ec2.assign_prefixes(made.eni_id, count=1)
    assert len(bench.ec2.assign_addresses(made.eni_id, count=1)) == 1


def test_a_full_eni_and_a_full_instance_are_typed(bench: Bench) -> None:
    """Neither limit is retried; both say which one it was, so that the pool can learn it."""
    eni_id = bench.attached(addresses=9)
    with pytest.raises(EniLimitError, check=refused_by_ec2("PrivateIpAddressLimitExceeded")):
        bench.ec2.assign_addresses(eni_id, count=1)
    bench.attached(device_index=2)
    third = bench.ec2.create_eni(bench.request(token="one-too-many", addresses=1))
    with pytest.raises(EniLimitError, check=refused_by_ec2("AttachmentLimitExceeded")):
        bench.ec2.attach_eni(third.eni_id, instance_id=bench.instance_id, device_index=3, network_card=0)


def test_limits_come_from_ec2_once(bench: Bench) -> None:
    """EC2's word is preferred to the table, and asked for once (I13)."""
    for _ in range(3):
        limits = bench.ec2.instance_limits("m5.large")
        assert (limits.eni_count, limits.ipv4_per_eni, limits.source, limits.max_pods) == (3, 10, "ec2", 29)
    assert bench.vpc.call_counts() == {"DescribeInstanceTypes": 1}


@pytest.mark.parametrize(
    ("name", "enis", "addresses", "cards", "metal"),
    [("p4d.24xlarge", 15, 50, 4, False), ("m5.metal", 15, 50, 1, True), ("m4.large", 2, 10, 1, False)],
)
def test_limits_of_ec2_and_table_agree(bench: Bench, name: str, enis: int, addresses: int, cards: int, metal: bool) -> None:
    """Several cards, bare metal and xen are read alike from EC2 and from the table."""
    told = bench.ec2.instance_limits(name)
    assert (told.eni_count, told.ipv4_per_eni, told.network_card_count, told.is_bare_metal) == (enis, addresses, cards, metal)
    assert told.source == "ec2"


@pytest.mark.parametrize(("name", "source", "max_pods"), [("c5.xlarge", "table", 58), ("zz9.huge", "default", 8)])
def test_unknown_types_fall_back(bench: Bench, name: str, source: str, max_pods: int) -> None:
    """A type that EC2 does not know here comes from the table, or is a safe default; nothing is raised."""
    limits = bench.ec2.instance_limits(name)
    assert (limits.source, limits.max_pods) == (source, max_pods)


def test_second_network_card(make_bench: Callable[..., Bench]) -> None:
    """An ENI is attached to the card that was named, and described there."""
    bench = make_bench(instance_type="p4d.24xlarge")
    made = bench.ec2.create_eni(bench.request(addresses=1))
    bench.ec2.attach_eni(made.eni_id, instance_id=bench.instance_id, device_index=1, network_card=2)
    assert bench.ec2.describe_eni(made.eni_id).network_card == 2


def test_calls_are_counted_as_ec2_counts_them(bench: Bench) -> None:
    """The adapter's counts are what arrived at EC2, failed attempts included."""
    bench.fault("DescribeSubnets", error={"code": "InternalError", "count": 2})
    bench.ec2.subnet_cidr(bench.subnet_id)
    bench.attached()
    with pytest.raises(CloudNotFoundError):
        bench.ec2.describe_eni(EniId("eni-00000000000000000"))
    assert {api: report.count for api, report in bench.ec2.call_reports().items()} == dict(bench.vpc.call_counts())
    assert bench.ec2.call_reports()["DescribeSubnets"].count == 3


def test_a_fresh_adapter_makes_no_call(bench: Bench) -> None:
    """Building the adapter calls nothing and looks for nothing (I12, I13)."""
    bench.new_ec2()
    assert bench.vpc.calls() == []
    assert bench.imds_server.request_count == 0


def test_the_primary_address_is_never_secondary(bench: Bench) -> None:
    """On the instance's own ENI, too, the address of the node is not one for sandboxes (I6)."""
    (primary,) = bench.ec2.describe_enis(bench.instance_id)
    bench.ec2.assign_addresses(primary.eni_id, count=5)
    (after,) = bench.ec2.describe_enis(bench.instance_id)
    assert isinstance(after.primary_address, IPv4Address)
    assert after.primary_address == primary.primary_address
    assert after.primary_address not in after.secondary_addresses
    assert len(after.secondary_addresses) == 5
