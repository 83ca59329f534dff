"""How many addresses and ENIs a node may have, as its metrics tell it, in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.metrics.legs.families import LOCAL_RANGE_STATES
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import PoolEmptyError
from ipamd.model.family import IPV6
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.subnets import CustomNetwork, ZoneNetwork
from ipamd.settings import NetworkConfig
from tests.fakes.cloud import IDENTITY, FakeEc2
from tests.fakes.node import FakeNode
from tests.stories.stale_reads import run_sandboxes
from tests.unit.service.metric_values import closing_nodes, samples, start, value


@pytest.fixture
def made() -> Iterator[list[FakeNode]]:
    """Nodes to close."""
    with closing_nodes() as nodes:
        yield nodes


PREFIXES = PoolSettings(warm_prefix_target=1, prefix_delegation=True)
CUSTOM = CustomNetwork({IDENTITY.availability_zone: ZoneNetwork(SubnetId("subnet-pods"), ("sg-pods",))})


def foreign_eni(node: FakeNode, device_index: int) -> None:
    """Another program attaches an ENI that is not ours to use."""
    primary = next(iter(node.ec2.enis.values()))
    other = replace(
        primary,
        eni_id=EniId("eni-other"),
        mac="02:00:00:00:00:99",
        device_index=device_index,
        primary_address=IPv4Address("10.0.6.10"),
        secondary_addresses=frozenset(),
        prefixes=frozenset(),
        tags={"node.k8s.amazonaws.com/no_manage": "true"},
    )
    node.ec2.enis[other.eni_id] = other
    node.look_twice()
    node.pool.cycle()


def limits_of(node: FakeNode) -> tuple[float | None, ...]:
    """ENIs that the node has, may have, and addresses that it may have."""
    return tuple(value(node, name) for name in ("awscni_eni_allocated", "awscni_eni_max", "awscni_ip_max"))


def test_limits_with_single_addresses(made: list[FakeNode], tmp_path: Path) -> None:
    """An m5.large: three ENIs of nine slots; a foreign ENI takes one place away, and MAX_ENI too."""
    node = start(made, tmp_path)
    assert limits_of(node) == (1, 3, 27)
    foreign_eni(node, 2)
    assert limits_of(node) == (1, 2, 18)
    node.pool.set_limits(node.ec2.limits, settings=PoolSettings(max_eni=2))
    node.pool.cycle()
    assert limits_of(node) == (1, 1, 9)


def test_limits_with_prefixes(made: list[FakeNode], tmp_path: Path) -> None:
    """Sixteen addresses in each slot; a foreign ENI takes one place away; prefixes are counted."""
    node = start(made, tmp_path, settings=PREFIXES)
    run_sandboxes(node, "a")
    assert limits_of(node) == (1, 3, 3 * 9 * 16)
    assert value(node, "awscni_total_ipv4_prefixes") == sum(len(eni.prefixes) for eni in node.ec2.enis.values()) > 0
    foreign_eni(node, 2)
    assert limits_of(node)[1:] == (2, 2 * 9 * 16)


def test_a_type_without_prefixes_has_single_addresses(made: list[FakeNode], tmp_path: Path) -> None:
    """ENABLE_PREFIX_DELEGATION changes nothing on a type that is not built on Nitro."""
    node = start(made, tmp_path, settings=PREFIXES, ec2=FakeEc2(limits=InstanceLimits("m4.large", 2, 10, hypervisor="xen")))
    assert limits_of(node)[1:] == (2, 18)


def test_limits_with_both_kinds(made: list[FakeNode], tmp_path: Path) -> None:
    """Single addresses that stand in for a missing /28 take their slots: the node can have 15 less for each."""
    node = start(made, tmp_path, settings=PREFIXES)
    node.ec2.left_prefix_count = 0
    held = [f"p{number}" for number in range(int(value(node, "awscni_total_ip_addresses") or 0) + 2)]
    run_sandboxes(node, *held)
    node.pool.cycle()
    singles = sum(len(eni.secondary_addresses) for eni in node.ec2.enis.values())
    assert singles > 0
    assert value(node, "awscni_ip_max") == 3 * 9 * 16 - 15 * singles
    assert value(node, "awscni_assigned_ip_addresses") == len(held)


def test_limits_with_custom_networking(made: list[FakeNode], tmp_path: Path) -> None:
    """The primary ENI takes its place and carries no pods."""
    ec2 = FakeEc2()
    ec2.add_subnet("subnet-pods", "10.0.33.0/24", free_count=200)
    node = start(made, tmp_path, ec2=ec2, custom_network=CUSTOM, settings=PoolSettings(warm_ip_target=2))
    assert limits_of(node) == (2, 3, 18)


def test_limits_are_not_told_before_they_are_known(made: list[FakeNode], tmp_path: Path) -> None:
    """A 0 would look like a full node: there is no sample."""
    node = FakeNode(tmp_path)
    made.append(node)
    assert limits_of(node) == (0, None, None)
    assert list(samples(node, "ipamd_subnet_free_addresses")) == []


def test_a_full_node_is_full(made: list[FakeNode], tmp_path: Path) -> None:
    """Fullness is 1 when no ADD can be served any more, and the refusal has its cause."""
    node = start(made, tmp_path, ec2=FakeEc2(limits=InstanceLimits("tiny", 1, 4)))
    run_sandboxes(node, "a", "b", "c")
    assert value(node, "awscni_assigned_ip_addresses") == value(node, "awscni_ip_max") == 3
    node.pool.cycle()
    with pytest.raises(PoolEmptyError):
        node.add("d", deadline_s=1.0)
    assert value(node, "ipamd_adds_without_address_total", cause="node-full") == 1
    assert value(node, "awscni_no_available_ip_addresses") == 1


def test_a_range_for_egress_bounds_the_node_and_is_counted(made: list[FakeNode], tmp_path: Path) -> None:
    """An address of it goes with each of the pool, and cools with it; a node without egress has no sample."""
    big = FakeEc2(limits=InstanceLimits("big", 4, 30))
    node = start(made, tmp_path, ec2=big, settings=PREFIXES, network=NetworkConfig(v6_egress=True))
    assert value(node, "awscni_ip_max") == 1022

    def counted() -> list[float | None]:
        return [value(node, "ipamd_egress_addresses", state=state) for state in LOCAL_RANGE_STATES]

    assert counted() == [0, 0, 1022]
    node.hostnet.egress_family = IPV6
    node.add("a")
    assert counted() == [1, 0, 1021]
    node.delete("a")
    assert counted() == [0, 1, 1021]
    node.cool()
    assert counted() == [0, 0, 1022]
    assert value(start(made, tmp_path / "other"), "ipamd_egress_addresses", state="free") is None
