"""What status, plan, capacity, metrics and the export say of pools; and that a node without pools says nothing of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ipamd.ipamctl.client import plain
from ipamd.ipamctl.layout import Layout
from ipamd.ipamctl.verbs.capacity import render_capacity
from ipamd.ipamctl.verbs.enis import render_enis
from ipamd.ipamctl.verbs.plan import render_plan
from ipamd.ipamctl.verbs.status import render_status
from ipamd.model.blocked import Blocked
from ipamd.model.errors import InvalidRequestError
from ipamd.model.failures import FailureCode
from ipamd.model.pod_pools import NO_POOLS, PodPool, PodPools
from ipamd.model.pool_settings import PoolSettings
from ipamd.pb import introspection_pb2 as pb
from ipamd.settings import SubnetsConfig
from tests.errors import failed
from tests.fakes.cloud import SUBNET, FakeEc2
from tests.fakes.node import FakeNode
from tests.unit.service.metric_values import value

POOLS = PodPools({"cards": PodPool("cards", (SUBNET,), warm_ip_target=2, max_enis=1), "batch": PodPool("batch", (SUBNET,))})
MakeNode = Callable[[PodPools], FakeNode]
LAYOUT = Layout(width=200)


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[MakeNode]:
    """Nodes that serve; pods of the namespace of `FakeNode.request` are of no pool beside the node's own."""
    nodes: list[FakeNode] = []

    def make(pools: PodPools) -> FakeNode:
        subnets = SubnetsConfig(pod_pools=("pay=cards",)) if pools else SubnetsConfig()
        settings = PoolSettings(warm_ip_target=3)
        node = FakeNode(tmp_path, ec2=FakeEc2(pool_size=100), subnets=subnets, pod_pools=pools, settings=settings)
        nodes.append(node)
        node.bring_up()
        return node

    yield make
    for node in nodes:
        node.datastore.close()


def test_status_and_capacity_have_a_row_for_each_pool(make_node: MakeNode) -> None:
    """With its own counts, its share and its plan."""
    node = make_node(POOLS)
    service = node.app.introspection
    status = service.GetStatus(pb.GetStatusRequest())
    rows = {pool.name: (pool.eni_count, pool.eni_limit, pool.assigned_count, pool.free_count) for pool in status.pod_pools}
    assert rows == {"default": (1, 1, 0, 3), "cards": (1, 1, 0, 2), "batch": (0, 1, 0, 0)}
    assert {pool.name: bool(pool.share) for pool in status.pod_pools} == {"default": True, "cards": True, "batch": False}
    capacity = service.Capacity(pb.CapacityRequest())
    assert {pool.name: pool.address_limit for pool in capacity.pools} == {"default": 9, "cards": 9, "batch": 9}
    for pool in POOLS.by_name:
        assert pool in render_status(plain(status), LAYOUT)
        assert pool in render_capacity(plain(capacity), LAYOUT)
    enis = service.ListEnis(pb.ListEnisRequest())
    assert [eni.pool for eni in enis.enis] == ["", "cards"]
    assert "POOL" in render_enis(plain(enis), LAYOUT)


def test_a_pool_is_planned_by_its_name(make_node: MakeNode) -> None:
    """Under its own targets; `default` is the node's own, and an unknown name is refused."""
    node = make_node(POOLS)
    service = node.app.introspection
    plan = service.Plan(pb.PlanRequest(pool="cards"))
    assert (plan.pool, plan.total_count, plan.free_count) == ("cards", 2, 2)
    assert {target.name: target.value for target in plan.targets if target.defined}["WARM_IP_TARGET"] == 2
    assert "cards" in render_plan(plain(plan), LAYOUT)
    own = service.Plan(pb.PlanRequest(pool="default", settings=["WARM_IP_TARGET=5"]))
    assert (own.pool, own.deficit_count) == ("", 2)
    with pytest.raises(InvalidRequestError, check=failed(FailureCode.POOL_UNKNOWN)):
        service.Plan(pb.PlanRequest(pool="gone"))


def test_metrics_by_pool(make_node: MakeNode) -> None:
    """Addresses by state, ENIs, what waits and what keeps it from growing."""
    node = make_node(POOLS)
    assert value(node, "ipamd_pod_pool_addresses", pool="cards", state="free") == 2
    assert value(node, "ipamd_pod_pool_enis", pool="cards") == 1
    assert value(node, "ipamd_pod_pool_address_limit", pool="batch") == 9
    assert value(node, "ipamd_pod_pool_waiting_adds", pool="default") == 0
    assert value(node, "ipamd_pod_pool_blocked", pool="batch", cause=Blocked.GROWING) == 1


def test_a_node_without_pools_says_nothing_of_them(make_node: MakeNode) -> None:
    """No family of metrics, no row, no column, no tag."""
    node = make_node(NO_POOLS)
    node.add("own")
    families = {family.name for family in node.app.metrics.registry.collect()}
    assert not [name for name in families if "pod_pool" in name]
    status = node.app.introspection.GetStatus(pb.GetStatusRequest())
    assert list(status.pod_pools) == []
    assert "\nof default" not in render_status(plain(status), LAYOUT)
    assert "POOL" not in render_enis(plain(node.app.introspection.ListEnis(pb.ListEnisRequest())), LAYOUT)
