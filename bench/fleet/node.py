"""One node of the fleet: the daemon's pool and EC2 adapter on the model of EC2, with pods that come and go.

The pool is composed by `ipamd.process.bootstrap` as in the daemon. So planner, executor, intents, call budget and retries are the
daemon's own. Of ADD and DEL only the changes in the datastore are made, because wiring takes a millisecond and growth takes seconds.
The search for external changes is left out. An ADD that finds no address waits until there is one, as in the daemon, but without a
deadline; it counts once for each deadline within its wait."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

from bench.fleet.ec2 import Ec2Model, Refused
from bench.fleet.measure import NO_WAIT_S, Measure
from bench.fleet.outside import VirtualHost, empty_datastore
from bench.fleet.traces import NodeTrace, Pod
from bench.fleet.world import VirtualDemand, World
from ipamd.cloud import errors
from ipamd.cloud.client import Ec2Client
from ipamd.cloud.ec2 import BotoEc2
from ipamd.core.backoffs import NODE, Backoffs
from ipamd.core.context import ServiceContext
from ipamd.core.freeze import Freeze
from ipamd.core.health import Health
from ipamd.core.key_locks import KeyLocks
from ipamd.datastore.open import OpenedDatastore, OpenOutcome, OpenReport
from ipamd.model.address import Address
from ipamd.model.attachment import Attachment
from ipamd.model.cni_request import NetnsIdentity
from ipamd.model.errors import IpamError, PoolEmptyError
from ipamd.model.family import IpAddress
from ipamd.model.ids import AttachmentKey, ContainerId, IfName
from ipamd.model.network_file import NetworkFile
from ipamd.model.pod_pools import NO_POOLS, PodPools
from ipamd.node_info import NodeInfo
from ipamd.ports.aws_node import AwsNode
from ipamd.ports.cloud import Metadata
from ipamd.ports.datastore import Spool
from ipamd.ports.kernel import HostNetwork, Wiring
from ipamd.ports.leg_adoption import LegAdoption
from ipamd.ports.packet_path import PacketPaths
from ipamd.ports.process import NoConnections
from ipamd.process.adapters import Adapters
from ipamd.process.bootstrap import compose_pool
from ipamd.rpc.cni import DEFAULT_DEADLINE_S
from ipamd.sandbox.cooldown import SWEEP_QUIET_S, Cooldown
from ipamd.settings import CloudConfig, CurrentSettings, Settings

IFNAME = IfName("eth0")
NETNS = NetnsIdentity(4, 1)
INTACT = OpenReport(OpenOutcome.INTACT, "", was_restored=True)


class ModelClient(Ec2Client):
    """The adapter's EC2 client, whose calls the model answers."""

    def __init__(self, model: Ec2Model, instance: int) -> None:
        super().__init__(CloudConfig(), region=lambda: "us-west-2")
        self._model = model
        self._instance = instance

    def call(self, api: str, subject: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the base class."""
        try:
            return self._model.call(api, params, instance=self._instance)
        except Refused as refused:
            raise errors.refused(api, subject, code=refused.code, message=refused.message, status=refused.status) from refused


class VirtualEc2(BotoEc2):
    """The daemon's EC2 adapter with its budget and retries, with the model as EC2 and in virtual time."""

    def __init__(self, model: Ec2Model, instance: int) -> None:
        world = model.world
        super().__init__(
            CloudConfig(),
            region=lambda: "us-west-2",
            clock=world,
            sleep=world.sleep,
            vpc_id=lambda: "vpc-1",
            client=ModelClient(model, instance),
        )


class FleetNode:
    """One node. `spawn` schedules its start and its pods; everything else follows from the events."""

    def __init__(
        self,
        model: Ec2Model,
        trace: NodeTrace,
        index: int,
        *,
        settings: Settings,
        measure: Measure,
        pools: PodPools = NO_POOLS,
    ) -> None:
        """`pools`: the pools of the node's pods. The pods use them in turn, beginning with the node's own pool."""
        self._world: World = model.world
        self._trace = trace
        self._index = index
        self._settings = settings
        self._measure = measure
        self._pools = pools.names
        self._waiting: dict[str, deque[tuple[int, Pod]]] = {pool: deque() for pool in self._pools}
        self._is_serving = False
        self._sweep_s = math.inf
        host = VirtualHost(model, index, trace.limits)
        self._datastore = empty_datastore(self._world)
        self.demand = VirtualDemand(self._world, on_supply=self._on_supply)
        health = Health(self._world, ("pool",))
        self._context = ServiceContext(
            datastore=self._datastore,
            wiring=cast("Wiring", host),
            clock=self._world,
            health=health,
            locks=KeyLocks(self._world),
            demand=self.demand,
            freeze=Freeze(clock=self._world, health=health, demand=self.demand),
            backoffs=Backoffs(self._world, is_urgent=lambda: self.demand.waiting()[0] > 0),
        )
        self._cooldown = Cooldown(self._context, connections=NoConnections(), period_s=lambda: float(settings.pool.cooldown_s))
        adapters = self._make_adapters(model, host, health, pools)
        self.pool = compose_pool(self._context, self._cooldown, adapters, CurrentSettings(settings))

    def _make_adapters(self, model: Ec2Model, host: VirtualHost, health: Health, pools: PodPools) -> Adapters:
        metadata = cast("Metadata", host)
        self._node_info = NodeInfo(metadata, datastore=self._datastore, clock=self._world)
        self._ec2 = VirtualEc2(model, self._index)
        return Adapters(
            clock=self._world,
            health=health,
            opened=OpenedDatastore(self._datastore, INTACT),
            wiring=cast("Wiring", host),
            adoption=cast("LegAdoption", None),
            hostnet=cast("HostNetwork", host),
            paths=cast("PacketPaths", host),
            metadata=metadata,
            node_info=self._node_info,
            ec2=self._ec2,
            runtime=None,
            spool=cast("Spool", None),
            aws_node=cast("AwsNode", None),
            network_file=NetworkFile(pools=pools),
        )

    def spawn(self) -> None:
        """Schedule the start of the node, and the arrival of its pods, at the times of the trace."""
        self._world.spawn(self._trace.starts_s, self._run)
        for number, pod in enumerate(self._trace.pods):
            self._world.at(pod.arrives_s, lambda number=number, pod=pod: self._arrive(number, pod))  # type: ignore[misc]

    def _run(self) -> None:
        """Do the work of the pool's thread, from the daemon's start (`ipamd/process/cloud_loop.py`, `ipamd/process/lifecycle.py`)."""
        while True:
            try:
                identity = self._node_info.learn_identity()
                self.pool.enis.sync_with_ec2(identity)
                limits = self._ec2.instance_limits(identity.instance_type)
                break
            except IpamError:
                self._world.sleep(self._context.backoffs.back_off(("first questions",), NODE))
        self.pool.enis.routing.set_up_all()
        self.pool.maintainer.set_limits(limits, settings=self._settings.pool_settings(max_pods=self._trace.limits.max_pods))
        while True:
            self.demand.wait_triggered(self.pool.maintainer.turn())

    def _arrive(self, number: int, pod: Pod) -> None:
        """Do the ADD of a pod. If there is no free address, it waits."""
        if not self._add(number, pod):
            pool = self._pool_of(number)
            self._waiting[pool].append((number, pod))
            self.demand.join(pool=pool)

    def _pool_of(self, number: int) -> str:
        """Return the pool of a pod."""
        return self._pools[number % len(self._pools)]

    def _add(self, number: int, pod: Pod) -> bool:
        """Assign an address to a pod. Returns: False if there is none."""
        key = AttachmentKey(ContainerId(f"{self._index}-{number}"), IFNAME)
        try:
            reserved = self._datastore.reserve(key, pool=self._pool_of(number))
        except PoolEmptyError:
            return False
        with self._datastore.transaction() as uow:
            uow.confirm(self._attachment(key, reserved))
        self.demand.take(pool=self._pool_of(number))
        self._measure.addressed(self._index, pod, now_s=self._world.now_s)
        if pod.leaves_s < math.inf:
            self._world.at(max(pod.leaves_s, self._world.now_s + 1.0), lambda: self._leave(key, reserved.address))
        return True

    def _attachment(self, key: AttachmentKey, reserved: Address) -> Attachment:
        return Attachment(
            key=key,
            address=reserved.address,
            eni_id=reserved.eni_id,
            route_table=254,
            host_veth=f"eni{key.container_id}",
            netns="/run/netns/x",
            netns_identity=NETNS,
            fingerprint="",
            result=b"{}",
            created_at=self._world.now(),
        )

    def _leave(self, key: AttachmentKey, address: IpAddress) -> None:
        """Do the DEL of a pod. The address then cools; the pod's link is deleted before the end of that."""
        with self._datastore.transaction() as uow:
            uow.unassign(key, cooldown=self._cooldown.period, reason="DEL")
        self._cooldown.start(address, dying_veth=None)
        self._measure.left(now_s=self._world.now_s)
        self._world.at(self._world.now_s + SWEEP_QUIET_S, self.demand.trigger)
        self._sweep_when_due()

    def _sweep_when_due(self) -> None:
        due_s = self._cooldown.next_due_s()
        if due_s is not None and self._sweep_s == math.inf:
            self._sweep_s = self._world.now_s + due_s
            self._world.at(self._sweep_s, self._sweep)

    def _sweep(self) -> None:
        self._sweep_s = math.inf
        self._cooldown.free_cooled()
        self._sweep_when_due()

    def _on_supply(self) -> None:
        if any(self._waiting.values()):
            self._world.at(self._world.now_s, self._serve)

    def _serve(self) -> None:
        for pool, waiting in self._waiting.items():
            while waiting and self._add(*waiting[0]):
                _, pod = waiting.popleft()
                self.demand.leave(pool=pool)
                waited_s = self._world.now_s - pod.arrives_s
                self._measure.unserved(pod, count=math.ceil(max(waited_s - NO_WAIT_S, 0.0) / DEFAULT_DEADLINE_S))
