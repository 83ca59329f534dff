"""The calls of a run: 10,000 ENIs in 20, every list over several pages, long answers, and what is left for the next run."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ipamd.cloud.bounded_http import AWS_BYTES_MAX
from ipamd.cloud.client import Ec2Client
from ipamd.cloud.errors import AttemptError
from ipamd.inventory import ec2_lists
from ipamd.inventory.capacity import CidrReservation
from ipamd.inventory.report import InventoryReport, ReadPart
from ipamd.model.errors import CloudDeniedError, SettingsError
from ipamd.model.failures import FailureCode
from ipamd.model.ids import SubnetId
from ipamd.settings import CloudConfig
from lab.vpc.model import ReservationKind
from tests.errors import failed
from tests.lab.inventory.account import InventoryAccount, an_account, report_of


def unread(report: InventoryReport, part: ReadPart) -> set[str]:
    """Subnets of which a part was not read."""
    return {subnet_id for gap in report.gaps if gap.part is part for subnet_id in gap.subnet_ids}


def hour(account: InventoryAccount) -> None:
    """Let an hour pass."""
    account.clock.advance(3600)


@pytest.mark.slow
def test_ten_thousand_enis_take_at_most_twenty_calls() -> None:
    """Ten pages of ENIs, one of subnets, and nine subnets' reservations: all subnets are read, and the rest is left by name."""
    with an_account(cidr="10.0.0.0/16,10.1.0.0/16") as account:
        subnets = [account.vpc.add_subnet(f"10.0.{number * 16}.0/20") for number in range(12)]
        counts = [833] * 11 + [837]
        for subnet, count in zip(subnets, counts, strict=True):
            account.many(subnet, count)
        report = account.take()
        assert sum(counts) == 10_000
        assert account.vpc.call_counts() == {
            "DescribeSubnets": 1,
            "DescribeNetworkInterfaces": 10,
            "GetSubnetCidrReservations": 9,
        }
        assert report.call_count == 20
        assert [report_of(report, subnet).eni_count for subnet in subnets] == counts
        assert [report_of(report, subnet).unseen_count for subnet in subnets] == [0] * 12
        first_unread = unread(report, ReadPart.RESERVATIONS)
        assert len(first_unread) == 3
        assert unread(report, ReadPart.ENIS) == set()
        hour(account)
        report = account.take()
        read_ids = {call.params["SubnetId"] for call in account.vpc.calls() if call.api == "GetSubnetCidrReservations"}
        assert first_unread <= read_ids
        assert all(subnet.reservations_read_at is not None for subnet in report.subnets)


def test_every_list_is_read_over_several_pages(account: InventoryAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    """Subnets, ENIs and reservations, five a page: what the pages have together is in the report."""
    monkeypatch.setattr(ec2_lists, "PAGE_SIZE", 5)
    subnets = [account.vpc.add_subnet(f"10.0.{number}.0/24") for number in range(12)]
    enis = account.many(subnets[3], 13)
    for number in range(1, 13):
        account.vpc.reserve_cidr(subnets[7].subnet_id, f"10.0.7.{number * 16}/28", ReservationKind.EXPLICIT)
    report = account.take(calls_max=40)
    assert account.vpc.call_counts() == {
        "DescribeSubnets": 3,
        "DescribeNetworkInterfaces": 3,
        "GetSubnetCidrReservations": 11 + 3,
    }
    assert report.gaps == ()
    assert [shown.subnet_id for shown in report.subnets] == sorted(subnet.subnet_id for subnet in subnets)
    assert report_of(report, subnets[3]).eni_count == len(enis)
    assert report_of(report, subnets[7]).capacity.block_map == "+" + 12 * "x" + 2 * "." + "+"
    memory = account.memory.of(report_of(report, subnets[7]).subnet_id)
    assert len(memory.reservations) == 12
    assert all(isinstance(reservation, CidrReservation) for reservation in memory.reservations)


def test_small_and_empty_pages_are_read_to_the_end(account: InventoryAccount) -> None:
    """A large account shows fewer ENIs than asked for, some pages empty."""
    account.many(account.vpc.add_subnet("10.0.1.0/24"), 9)
    own = account.vpc.add_subnet("10.0.2.0/24")
    account.many(own, 7)
    account.vpc.faults.apply({"large_account": {"page_size": 3, "sparse": True}})
    report = account.take(subnet_names=(own.subnet_id,))
    assert report_of(report, own).eni_count == 7
    assert report.gaps == ()
    assert account.vpc.call_counts()["DescribeNetworkInterfaces"] == 6


def test_a_second_look_may_have_pages(account: InventoryAccount) -> None:
    """A page that is cut short is not taken for the end, so all leaks are confirmed."""
    subnet = account.vpc.add_subnet("10.0.1.0/24")
    leaks = [account.eni(subnet, subnet.cidr.network_address + 10 + number) for number in range(6)]
    account.vpc.add_enis([replace(eni, description="aws-K8S-i-gone", tags=account.tags("i-gone")) for eni in leaks])
    account.vpc.faults.apply({"large_account": {"page_size": 4}})
    report = account.take()
    assert {finding.subject for finding in report.findings if finding.is_confirmed} == {eni.eni_id for eni in leaks}
    assert account.vpc.call_counts()["DescribeNetworkInterfaces"] == 4


def crowded_page(account: InventoryAccount) -> None:
    """Fill a subnet with 1,000 ENIs of 50 addresses, the most that an ENI has."""
    subnet = account.vpc.add_subnet("10.0.0.0/16")
    first = subnet.cidr.network_address + 256
    enis = []
    for number in range(1000):
        addresses = [first + number * 50 + offset for offset in range(50)]
        eni = account.eni(subnet, addresses[0], secondary=addresses[1:])
        enis.append(replace(eni, tags=account.tags("i-gone")))
    account.vpc.add_enis(enis)


def test_an_answer_may_be_longer_than_the_daemons_bound(account: InventoryAccount) -> None:
    """A page of more than 8 MiB is read; with the daemon's bound the list fails, and a gap says so."""
    crowded_page(account)
    report = account.take()
    assert report.gaps == ()
    assert report.subnets[0].unseen_count == 0
    account.bytes_max = AWS_BYTES_MAX
    report = account.take(calls_max=4)
    assert unread(report, ReadPart.ENIS) == {report.subnets[0].subnet_id}


def test_the_bound_is_that_of_the_client_alone(account: InventoryAccount) -> None:
    """A client of the daemon's in the same process keeps its own bound, and does not change the other's."""
    crowded_page(account)
    assert account.take().gaps == ()
    config = CloudConfig(ec2_endpoint=account.url)
    client = Ec2Client(config, region=lambda: account.vpc.region)
    with pytest.raises(AttemptError, check=lambda attempt: attempt.error.failure == FailureCode.EC2_UNANSWERED):
        client.call("DescribeNetworkInterfaces", "all", {"MaxResults": 1000})
    assert account.take().gaps == ()


def test_too_many_enis_for_a_run_are_read_in_turns(account: InventoryAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that does not end is no answer: it is halved in the next hours, until every subnet has been read."""
    monkeypatch.setattr(ec2_lists, "PAGE_SIZE", 5)
    monkeypatch.setattr(ec2_lists, "FILTER_VALUES_MAX", 4)
    subnets = [account.vpc.add_subnet(f"10.0.{number}.0/24") for number in range(4)]
    for subnet in subnets:
        account.many(subnet, 30)
    account.memory.group_size = 4
    first = account.take(calls_max=10)
    assert first.subnets == ()
    assert unread(first, ReadPart.ENIS) == {subnet.subnet_id for subnet in subnets}
    assert account.memory.group_size == 2
    reads: dict[str, int] = {}
    for _ in range(8):
        hour(account)
        report = account.take(calls_max=10)
        assert report.call_count <= 10
        for shown in report.subnets:
            reads[shown.subnet_id] = shown.eni_count
    assert reads == {subnet.subnet_id: 30 for subnet in subnets}
    times = [shown.read_at for shown in report.subnets]
    assert max(times) - min(times) <= timedelta(hours=8)


def test_a_subnet_that_never_fits_does_not_keep_the_others_out(
    account: InventoryAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named each time that it was tried, and the others are read."""
    monkeypatch.setattr(ec2_lists, "PAGE_SIZE", 5)
    huge, *small = [account.vpc.add_subnet(f"10.0.{number}.0/24") for number in range(3)]
    account.many(huge, 60)
    for subnet in small:
        account.many(subnet, 6)
    for _ in range(6):
        report = account.take(calls_max=8)
        hour(account)
    assert {shown.subnet_id for shown in report.subnets} == {subnet.subnet_id for subnet in small}


@pytest.mark.parametrize("api", ["DescribeNetworkInterfaces", "GetSubnetCidrReservations"])
def test_a_refused_list_is_a_gap_and_not_an_empty_one(account: InventoryAccount, api: str) -> None:
    """I11: the last reading stays, with its time."""
    subnet = account.vpc.add_subnet("10.0.1.0/24")
    account.many(subnet, 3)
    before = account.take()
    hour(account)
    account.vpc.faults.apply({"iam": [{"action": api}]})
    report = account.take()
    part = ReadPart.ENIS if api == "DescribeNetworkInterfaces" else ReadPart.RESERVATIONS
    assert unread(report, part) == {subnet.subnet_id}
    assert report_of(report, subnet).eni_count == 3
    is_kept = report_of(report, subnet).read_at == report_of(before, subnet).read_at
    assert is_kept is (part is ReadPart.ENIS)


def test_no_subnets_no_report(account: InventoryAccount) -> None:
    """Without the first list nothing is concluded, and nothing is forgotten."""
    subnet = account.vpc.add_subnet("10.0.1.0/24")
    account.take()
    account.vpc.faults.apply({"iam": [{"action": "DescribeSubnets"}]})
    with pytest.raises(CloudDeniedError):
        account.take()
    assert account.memory.of(SubnetId(subnet.subnet_id)).report is not None


def test_attempts_that_ec2_throttles_count(account: InventoryAccount) -> None:
    """No run makes more calls than it may, whatever EC2 answers."""
    account.vpc.add_subnet("10.0.1.0/24")
    account.vpc.faults.apply({"apis": {"DescribeNetworkInterfaces": {"throttle": {"rate_per_s": 0.0001, "burst": 1}}}})
    account.take(calls_max=6)
    hour(account)
    report = account.take(calls_max=6)
    assert report.call_count == len(account.vpc.calls()) <= 6


def test_subnets_are_chosen_by_tags(account: InventoryAccount) -> None:
    """Of EKS and of the CNI; another cluster's are not read."""
    tags = [
        {"kubernetes.io/cluster/blue": "shared"},
        {"kubernetes.io/role/cni": "1"},
        {"kubernetes.io/role/cni": "1", "cni.networking.k8s.aws/cluster/blue": ""},
        {"kubernetes.io/role/cni": "0"},
        {"kubernetes.io/cluster/green": "owned"},
        {"kubernetes.io/role/cni": "1", "cni.networking.k8s.aws/cluster/green": ""},
        {},
    ]
    subnets = [account.vpc.add_subnet(f"10.0.{number}.0/24", tags=own) for number, own in enumerate(tags)]
    report = account.take(subnet_names=())
    assert {shown.subnet_id for shown in report.subnets} == {subnet.subnet_id for subnet in subnets[:4]}


@pytest.mark.parametrize(
    ("names", "code"),
    [((), FailureCode.INVENTORY_WITHOUT_SUBNETS), (("subnet-0aa",), FailureCode.INVENTORY_SUBNET_UNKNOWN)],
)
def test_a_choice_without_subnets_is_refused(account: InventoryAccount, names: tuple[str, ...], code: FailureCode) -> None:
    """It is a wrong setting, which the error names."""
    account.vpc.add_subnet("10.0.1.0/24")
    with pytest.raises(SettingsError, check=failed(code)):
        account.take(subnet_names=names)
