"""Nodes of the fleet with two pools of pods (docs/adr/0084) besides their own pool. All nodes share the subnets of these pools."""

from __future__ import annotations

from collections.abc import Callable

from bench.fleet.ec2 import Ec2Model
from bench.fleet.measure import Measure
from bench.fleet.node import FleetNode
from bench.fleet.traces import NodeTrace
from ipamd.model.ids import SubnetId
from ipamd.model.pod_pools import PodPool, PodPools
from ipamd.settings import Settings

SUBNETS = {"cards": 1001, "batch": 1002}
"""Pool -> number of its subnet. Ours: higher than the subnet numbers of the nodes in the largest fleet."""


def with_pools(model: Ec2Model, trace: NodeTrace, index: int, settings: Settings, measure: Measure) -> Callable[[], None]:
    """Make a node whose pods use its own pool and the two others in turn. See `bench.fleet.run.shipped`."""
    pools = {}
    for name, number in SUBNETS.items():
        pools[name] = PodPool(name, subnet_ids=(SubnetId(model.subnet(number).subnet_id),))
    return FleetNode(model, trace, index, settings=settings, measure=measure, pools=PodPools(pools)).spawn
