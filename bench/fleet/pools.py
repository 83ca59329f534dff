"""Nodes of the fleet with two pools of pods beside their own (docs/adr/0084), in subnets of all nodes together."""

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
"""Numbers of the pools' subnets. Ours: above those of the nodes of the largest fleet."""


def with_pools(model: Ec2Model, trace: NodeTrace, index: int, settings: Settings, measure: Measure) -> Callable[[], None]:
    """Make a node whose pods take turns between its own pool and two others. See `bench.fleet.run.shipped`."""
    pools = {}
    for name, number in SUBNETS.items():
        pools[name] = PodPool(name, subnet_ids=(SubnetId(model.subnet(number).subnet_id),))
    return FleetNode(model, trace, index, settings=settings, measure=measure, pools=PodPools(pools)).spawn
