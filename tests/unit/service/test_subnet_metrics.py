"""The metrics by subnet and zone, and the facts about the node that others are joined with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ipamd.model.errors import SubnetExhaustedError
from ipamd.model.ids import SubnetId
from ipamd.model.pool_actions import CreateEni
from ipamd.model.pool_settings import PoolSettings
from ipamd.settings import NetworkConfig, SubnetsConfig
from tests.fakes.cloud import IDENTITY, SUBNET, FakeEc2
from tests.fakes.node import FakeNode
from tests.stories.stale_reads import run_sandboxes
from tests.unit.service.metric_values import closing_nodes, samples, start, value

LARGE = "subnet-large"
ZONE = str(IDENTITY.availability_zone)
OF_LARGE = {"subnet": LARGE, "zone": ZONE}
BY_SUBNET = [f"ipamd_subnet_{name}" for name in ("free_addresses", "used_addresses", "answer_age_seconds")]


@pytest.fixture
def made() -> Iterator[list[FakeNode]]:
    """Nodes to close."""
    with closing_nodes() as nodes:
        yield nodes


@pytest.fixture
def ec2() -> FakeEc2:
    """The node's subnet with few addresses, a tagged one with more, and one that new ENIs may not go to."""
    fake = FakeEc2(pool_size=40)
    fake.add_subnet(LARGE, "10.0.33.0/24", free_count=240, role="1")
    fake.add_subnet("subnet-untagged", "10.0.34.0/24", free_count=250)
    return fake


def test_each_candidate_subnet_has_its_capacity(made: list[FakeNode], tmp_path: Path, ec2: FakeEc2) -> None:
    """Free and used addresses with subnet and zone; a subnet that gets no ENI has no series."""
    node = start(made, tmp_path, ec2=ec2, settings=PoolSettings(warm_ip_target=2), subnets=SubnetsConfig())
    assert value(node, "ipamd_subnet_free_addresses", **OF_LARGE) == 240
    assert value(node, "ipamd_subnet_used_addresses", **OF_LARGE) == 256 - 5 - 240
    for name in BY_SUBNET:
        assert {dict(labels)["subnet"] for labels in samples(node, name)} == {LARGE, str(SUBNET)}
        assert {dict(labels)["zone"] for labels in samples(node, name)} == {ZONE}
    assert value(node, "ipamd_subnets", state="usable") == 2
    assert value(node, "ipamd_subnets", state="unusable") == 1


def test_the_age_grows_and_nothing_is_asked(made: list[FakeNode], tmp_path: Path, ec2: FakeEc2) -> None:
    """An idle node's answer grows old, whoever scrapes it (I13)."""
    node = start(made, tmp_path, ec2=ec2, settings=PoolSettings(warm_ip_target=2), subnets=SubnetsConfig())
    age = value(node, "ipamd_subnet_answer_age_seconds", **OF_LARGE)
    assert age is not None
    before = dict(ec2.calls)
    node.clock.advance(7200.0)
    assert value(node, "ipamd_subnet_answer_age_seconds", **OF_LARGE) == age + 7200
    assert dict(ec2.calls) == before


def test_a_refused_subnet_shows_what_ec2_counted_then(made: list[FakeNode], tmp_path: Path, ec2: FakeEc2) -> None:
    """After a refusal EC2 is asked for the subnet's room; that younger answer is the one shown."""
    ec2.fail["create_eni"] = [SubnetExhaustedError(f"subnet {LARGE} is full")]
    counts = iter([3])
    node = FakeNode(tmp_path, ec2=ec2, settings=PoolSettings(warm_ip_target=12), subnets=SubnetsConfig())
    made.append(node)
    ec2.subnet_free_count = lambda subnet_id: next(counts)  # type: ignore[method-assign]
    node.bring_up()
    assert value(node, "ipamd_subnet_free_addresses", **OF_LARGE) == 3
    assert value(node, "ipamd_subnet_used_addresses", **OF_LARGE) == 256 - 5 - 3


def test_a_refused_prefix_shows_as_fragments(made: list[FakeNode], tmp_path: Path) -> None:
    """All of a subnet's free addresses are fragments while EC2 refuses a /28 there; without prefixes nobody knows."""
    prefixes = PoolSettings(warm_prefix_target=1, prefix_delegation=True)
    ec2 = FakeEc2()
    ec2.add_subnet(LARGE, "10.0.33.0/24", free_count=240, role="1")
    node = start(made, tmp_path / "prefixes", ec2=ec2, settings=prefixes, subnets=SubnetsConfig())
    assert value(node, "ipamd_subnet_fragmented_addresses", subnet=str(SUBNET), zone=ZONE) == 0
    ec2.left_prefix_count = 0
    held_count = int(value(node, "awscni_total_ip_addresses") or 0)
    run_sandboxes(node, *(f"pod-{number}" for number in range(held_count)))
    node.pool.cycle()
    free_count = value(node, "ipamd_subnet_free_addresses", subnet=str(SUBNET), zone=ZONE)
    assert free_count
    assert value(node, "ipamd_subnet_fragmented_addresses", subnet=str(SUBNET), zone=ZONE) == free_count
    assert value(node, "ipamd_subnet_fragmented_addresses", **OF_LARGE) == 0
    node.app.pool.subnets.record_refusal(SubnetId(LARGE), CreateEni(2, prefix_count=1), SubnetExhaustedError("no /28"))
    assert value(node, "ipamd_subnet_fragmented_addresses", **OF_LARGE) == 240
    singles = start(made, tmp_path / "singles", ec2=FakeEc2(), settings=PoolSettings(warm_ip_target=2))
    assert samples(singles, "ipamd_subnet_fragmented_addresses") == {}


def test_what_the_node_holds_of_a_subnet(made: list[FakeNode], tmp_path: Path) -> None:
    """The states sum up to all addresses of its ENIs there."""
    node = start(made, tmp_path, settings=PoolSettings(warm_ip_target=2))
    run_sandboxes(node, "a", "b")
    node.delete("b")
    here = {"subnet": str(SUBNET), "zone": ZONE}
    states = {state: value(node, "ipamd_subnet_held_addresses", state=state, **here) for state in ("assigned", "free", "other")}
    assert states["assigned"] == 1
    assert states["other"] == 1  # it cools
    assert sum(count or 0 for count in states.values()) == value(node, "awscni_total_ip_addresses")


def test_ipv6_has_no_figures_of_ec2_by_subnet(made: list[FakeNode], tmp_path: Path) -> None:
    """A /80 does not come out of the room that EC2 counts."""
    node = start(made, tmp_path, network=NetworkConfig(ipv4=False, ipv6=True))
    assert [name for name in (*BY_SUBNET, "ipamd_subnet_held_addresses") if samples(node, name)] == []


def test_the_nodes_facts(made: list[FakeNode], tmp_path: Path) -> None:
    """One sample at all times, so that a join loses no node: facts that are not known are empty."""
    node = FakeNode(tmp_path / "single", settings=PoolSettings(warm_ip_target=2))
    made.append(node)
    ((labels, one),) = samples(node, "ipamd_node_info").items()
    assert (dict(labels)["zone"], one) == ("", 1)
    node.bring_up()
    ((labels, _),) = samples(node, "ipamd_node_info").items()
    facts = dict(labels)
    version = facts.pop("version")
    assert facts == {"zone": ZONE, "instance_type": IDENTITY.instance_type, "mode": "ipv4-address"}
    assert value(node, "ipamd_build_info", version=version) == 1
    in_prefixes = start(
        made, tmp_path / "prefixes", ec2=FakeEc2(), settings=PoolSettings(warm_prefix_target=1, prefix_delegation=True)
    )
    ((labels, _),) = samples(in_prefixes, "ipamd_node_info").items()
    assert dict(labels)["mode"] == "ipv4-prefix"
