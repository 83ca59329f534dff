"""`vpc-ipamd-sweeper` over real HTTP: only this cluster's leaked ENIs go, and nothing goes without `--delete`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ipamd.cloud.ec2 import BotoEc2
from ipamd.core.deadline import SystemClock
from ipamd.model.cloud import EniRequest
from ipamd.model.eni_tags import CLUSTER_TAG, CREATED_AT_TAG, INSTANCE_TAG
from ipamd.model.errors import CloudError, ThrottledError
from ipamd.model.ids import InstanceId, SubnetId
from ipamd.model.time_text import rfc3339
from ipamd.settings import CloudConfig
from ipamd.sweeper import command as command
from ipamd.sweeper.sweep import SECOND_LIST_S, SweepOrder, SweepOutcome, is_complete, sweep
from lab.ec2.server import Ec2Server
from lab.vpc.state import Vpc
from tests import aws_environment
from tests.fakes.clock import FakeClock
from tests.fakes.cloud import SUBNET, FakeEc2
from tests.unit.model.test_leaked_eni import VECTORS

CLUSTER = "blue"


@dataclass
class Account:
    """A VPC with a node, its EC2, and the sweeper's command with its output."""

    vpc: Vpc
    ec2: BotoEc2
    subnet_id: str
    capture: pytest.CaptureFixture[str]
    slept_s: list[float]
    count: int = 0

    def eni(
        self, *, cluster: str = CLUSTER, age: timedelta = timedelta(hours=1), description: str = "aws-K8S-i-gone", **tags: str
    ) -> str:
        """An available ENI, as a node that is gone has left it."""
        self.count += 1
        created_at = rfc3339(datetime.now(UTC) - age, timespec="seconds")
        held = {INSTANCE_TAG: "i-gone", CREATED_AT_TAG: created_at, CLUSTER_TAG: cluster} | tags
        held = {key: value for key, value in held.items() if value}
        request = EniRequest(SubnetId(self.subnet_id), (self.vpc.default_group_id,), description, held, f"token-{self.count}")
        return self.ec2.create_eni(request).eni_id

    def attached(self, node: str) -> str:
        """One that hangs on a node."""
        eni_id = self.eni()
        self.ec2.attach_eni(eni_id, instance_id=InstanceId(node), device_index=1, network_card=0)
        return eni_id

    def sweep(self, *arguments: str) -> tuple[int, str]:
        """Run the command. Returns: exit status and standard output."""
        self.vpc.clear_calls()
        status = command.main(arguments, sleep=self.slept_s.append)
        return status, self.capture.readouterr().out

    def swept(self, *arguments: str) -> dict[str, str]:
        """Run it with JSON. Returns: ENI -> verdict."""
        status, text = self.sweep("-o", "json", *arguments)
        assert status == 0
        return {one["eni_id"]: one["verdict"] for one in json.loads(text)["enis"]}

    def left(self) -> set[str]:
        """Every ENI of the account but primary ones."""
        return {eni.eni_id for eni in self.vpc.enis() if eni.description.startswith("aws-K8S") or eni.description == "by hand"}


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Account]:
    """The environment is that of the CronJob."""
    aws_environment.clean(monkeypatch)
    with Vpc() as vpc:
        subnet = vpc.add_subnet("10.0.0.0/20")
        with Ec2Server(vpc, sockets=[("127.0.0.1", 0)]) as server:
            for name, value in {"CLUSTER_NAME": CLUSTER, "VPC_ID": vpc.vpc_id, "AWS_REGION": vpc.region}.items():
                monkeypatch.setenv(name, value)
            monkeypatch.setenv("AWS_EC2_ENDPOINT", server.url)
            config = CloudConfig(ec2_endpoint=server.url)
            ec2 = BotoEc2(config, region=lambda: vpc.region, vpc_id=lambda: vpc.vpc_id, clock=SystemClock())
            yield Account(vpc, ec2, subnet.subnet_id, capsys, [])


def test_only_this_clusters_leaked_enis_go(account: Account) -> None:
    """Each of the others is kept by EC2's filter or by the rule, and the calls are two looks and one deletion for each."""
    node = account.vpc.add_instance(name="node", subnet_id=account.subnet_id)
    leaked = {account.eni(), account.eni(**{INSTANCE_TAG: node.instance_id})}
    kept = {
        account.eni(cluster="green"),
        account.eni(cluster=""),
        account.eni(cluster="blue2"),
        account.eni(age=timedelta(minutes=20)),
        account.eni(description="by hand"),
        account.eni(**{CREATED_AT_TAG: ""}),
        account.eni(**{CREATED_AT_TAG: "once"}),
        account.eni(**{INSTANCE_TAG: ""}),
        account.attached(node.instance_id),
    }
    status, text = account.sweep("--delete")
    assert (status, account.left(), account.slept_s) == (0, kept, [SECOND_LIST_S])
    assert account.vpc.call_counts() == {"DescribeNetworkInterfaces": 2, "DeleteNetworkInterface": 2}
    lines = text.splitlines()
    assert len([line for line in lines if " deleted: made by i-" in line]) == len(leaked)
    assert lines[-1] == f"cluster blue in {account.vpc.vpc_id}: 2 deleted, 4 kept"


def test_by_hand_it_changes_nothing(account: Account) -> None:
    """A dry run is one Describe."""
    leaked = account.eni()
    assert account.swept() == {leaked: SweepOutcome.LEAKED}
    assert account.left() == {leaked}
    assert account.vpc.call_counts() == {"DescribeNetworkInterfaces": 1}
    assert account.slept_s == []


@pytest.mark.parametrize("name", ["CLUSTER_NAME", "VPC_ID", "AWS_REGION"])
@pytest.mark.parametrize("value", ["", " "])
def test_never_without_a_cluster(account: Account, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Without cluster, VPC or region nothing is asked of EC2."""
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, check=lambda ended: ended.code == 2):
        account.sweep("--delete")
    assert name in account.capture.readouterr().err
    assert not account.vpc.calls()


@pytest.mark.parametrize(("cluster", "asked"), [("*", "\\*"), ("bl?e", "bl\\?e"), ("blue\\", "blue\\\\")])
def test_a_wildcard_is_a_letter(account: Account, cluster: str, asked: str) -> None:
    """EC2 takes * and ? in a filter for wildcards: a cluster of such a name gets its own ENIs and no other's."""
    own = account.eni(cluster=cluster)
    other = account.eni()
    assert account.swept("--cluster", cluster, "--delete") == {own: SweepOutcome.DELETED}
    assert account.left() == {other}
    assert asked in account.vpc.calls()[0].params.values()


def test_a_cap_leaves_the_youngest_for_the_next_run(account: Account) -> None:
    """Oldest first; what is left is no failure."""
    enis = [account.eni(age=timedelta(hours=hours)) for hours in (1, 3, 2)]
    assert account.swept("--delete", "--max-deletions", "2") == {
        enis[0]: SweepOutcome.LEFT,
        enis[1]: SweepOutcome.DELETED,
        enis[2]: SweepOutcome.DELETED,
    }
    assert account.swept("--delete") == {enis[0]: SweepOutcome.DELETED}


def test_many_pages(account: Account) -> None:
    """A large account shows few ENIs a page, some pages empty: all are read."""
    enis = {account.eni() for _ in range(7)}
    account.vpc.faults.apply({"large_account": {"page_size": 2}})
    assert set(account.swept()) == enis


@pytest.mark.parametrize(("action", "status"), [("ec2:DescribeNetworkInterfaces", 3), ("ec2:DeleteNetworkInterface", 1)])
def test_a_refusal_is_said(account: Account, action: str, status: int) -> None:
    """A list that is refused deletes nothing; a deletion that is refused leaves the rest; the exit status tells which."""
    enis = {account.eni(), account.eni()}
    account.vpc.faults.apply({"iam": [{"action": action}]})
    found, text = account.sweep("--delete")
    assert (found, account.left()) == (status, enis)
    assert account.vpc.call_counts()["DeleteNetworkInterface"] <= 1
    if status == 1:
        assert "left for the next run: EC2 refused an earlier deletion" in text


@pytest.mark.parametrize(
    "vector", [one for one in VECTORS if one["area"] == "describe_filter"], ids=lambda one: str(one["given"])
)
def test_the_filters_of_vpc_cni(account: Account, vector: dict[str, Any]) -> None:
    """EC2 selects: the same filters and page size as amazon-vpc-cni-k8s."""
    tags = {INSTANCE_TAG: ""} | ({CLUSTER_TAG: vector["given"]["cluster_name"]} if vector["given"]["cluster_name"] else {})
    asked: list[dict[str, Any]] = []
    call = account.ec2.call

    def noting(api: str, subject: str, params: dict[str, Any], policy: Any, *, about: str = "") -> Any:
        asked.append(params)
        return call(api, subject, params, policy, about=about)

    account.ec2.call = noting  # type: ignore[method-assign]
    account.ec2.find_detached(tags)
    assert sorted(one["Name"] for one in asked[0]["Filters"]) == vector["expect"]["names"]
    assert asked[0]["MaxResults"] == vector["expect"]["page_size"]


def order(**changes: Any) -> SweepOrder:
    """A sweep that deletes."""
    values = {
        "cluster_name": CLUSTER,
        "vpc_id": "vpc-1",
        "min_age": timedelta(minutes=5),
        "delete_count_max": 50,
        "time_s": 300.0,
    }
    return SweepOrder(**(values | {"is_dry_run": False} | changes))


def faked(clock: FakeClock, count: int) -> FakeEc2:
    """Some leaked ENIs, an hour old."""
    ec2 = FakeEc2()
    for number in range(count):
        created_at = rfc3339(clock.now() - timedelta(hours=1, seconds=number))
        tags = {INSTANCE_TAG: "i-gone", CREATED_AT_TAG: created_at, CLUSTER_TAG: CLUSTER}
        ec2.create_eni(EniRequest(SUBNET, (), "aws-K8S-i-gone", tags, f"t{number}"))
    return ec2


@pytest.mark.parametrize(
    ("refusal", "others", "deletions"),
    [
        pytest.param(
            ThrottledError("slow down"), SweepOutcome.LEFT, 1, id="throttled"
        ),  # nodes that need addresses share the bucket
        pytest.param(CloudError("in use"), SweepOutcome.DELETED, 3, id="in use"),  # attached since the look, say
    ],
)
def test_a_refusal_stops_the_others_only_if_ec2_is_busy(refusal: CloudError, others: SweepOutcome, deletions: int) -> None:
    """What is left waits for the next run."""
    clock = FakeClock()
    ec2 = faked(clock, 3)
    ec2.fail["delete_eni"] = [refusal]
    found = sweep(order(), ec2=ec2, clock=clock, sleep=clock.advance)
    assert sorted(one.verdict for one in found) == sorted([SweepOutcome.FAILED, others, others])
    assert not is_complete(found)
    assert ec2.calls["delete_eni"] == deletions


def test_the_time_is_bounded() -> None:
    """No deletion begins after the time of the run."""
    clock = FakeClock()
    ec2 = faked(clock, 2)
    found = sweep(order(time_s=SECOND_LIST_S), ec2=ec2, clock=clock, sleep=clock.advance)
    assert {one.verdict for one in found} == {SweepOutcome.LEFT}
    assert not is_complete(found)


def test_a_second_look_protects() -> None:
    """What only one of the looks showed detached is not deleted."""
    clock = FakeClock()
    ec2 = faked(clock, 2)
    first, second = sorted(eni for eni in ec2.enis if eni != "eni-primary")
    held = ec2.enis.pop(second)

    def meanwhile(seconds: float) -> None:
        clock.advance(seconds)
        ec2.attach_eni(first, instance_id=InstanceId("i-1"), device_index=1, network_card=0)
        ec2.enis[second] = held

    found = sweep(order(), ec2=ec2, clock=clock, sleep=meanwhile)
    assert [(one.eni_id, one.verdict) for one in found] == [(second, SweepOutcome.LEFT)]
    assert ec2.calls["delete_eni"] == 0


@pytest.mark.parametrize("changes", [{"cluster_name": ""}, {"vpc_id": ""}])
def test_an_order_names_cluster_and_vpc(changes: dict[str, str]) -> None:
    """Also where somebody calls the function."""
    clock = FakeClock()
    with pytest.raises(ValueError, match="others"):
        sweep(order(**changes), ec2=faked(clock, 1), clock=clock, sleep=clock.advance)


@pytest.mark.parametrize("arguments", [["--min-age", "299"], ["--max-deletions", "0"], ["--min-age", "soon"]])
def test_bad_bounds_are_refused(account: Account, arguments: list[str]) -> None:
    """An age below the longest creation is no age."""
    with pytest.raises(SystemExit, check=lambda ended: ended.code == 2):
        account.sweep(*arguments)


def test_what_a_service_manages_is_listed_and_kept(account: Account) -> None:
    """EC2 hides it by default, its tags say that it leaked, and it is not the cluster's to delete."""
    managed, leaked = account.eni(), account.eni()
    account.vpc.hands.manage(managed, "eks.amazonaws.com")
    assert account.swept("--delete") == {managed: "kept", leaked: "deleted"}
    assert account.left() == {managed}
