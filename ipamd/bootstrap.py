"""Bring ports and adapters together: the only module that knows who implements what.

Nothing heavy is imported or asked here that DEL does not need: boto3, pyroute2 and the metrics server come later, in their own
threads, because a restarted daemon must take DEL at once (design 6, 11).
"""

from __future__ import annotations

from dataclasses import dataclass

from ipamd import __version__, failpoints
from ipamd.clock import SystemClock
from ipamd.cloud.ec2 import BotoEc2
from ipamd.cloud.metadata import ImdsMetadata
from ipamd.config import Settings
from ipamd.datastore.open import OpenReport, current_boot_id, open_datastore
from ipamd.datastore.spool import FileSpool
from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.wiring import KernelWiring
from ipamd.metrics import Metrics
from ipamd.node_info import NodeInfo
from ipamd.ports import Datastore, Ec2, HostNetwork, Metadata, Runtime, Spool, Wiring
from ipamd.rpc.cni import CniServicer, Services
from ipamd.rpc.introspection import CloudView, IntrospectionServicer, Sources
from ipamd.rpc.server import RpcServer
from ipamd.runtime.cri import CriRuntime
from ipamd.service.cooldown import Cooldown
from ipamd.service.demand import Demand
from ipamd.service.health import Health
from ipamd.service.locks import KeyLocks
from ipamd.service.pool.enis import EniService
from ipamd.service.pool.maintainer import PoolMaintainer
from ipamd.service.pool.provisioner import EniProvisioner
from ipamd.service.reconcile.host_network import HostNetworkReconciler
from ipamd.service.reconcile.quarantine import QuarantineService
from ipamd.service.reconcile.runtime import LIST_INTERVAL_S, RuntimeReconciler
from ipamd.service.reconcile.startup import StartupReconciler
from ipamd.service.report.audit import AuditService
from ipamd.service.report.explain import ExplainService
from ipamd.service.sandbox.attach import AttachPolicy, AttachService
from ipamd.service.sandbox.check import CheckService
from ipamd.service.sandbox.detach import DetachService
from ipamd.service.sandbox.gc import GcService

STAGES = ("datastore", "rpc", "metadata", "ec2", "cri", "spool", "kernel", "host-routing", "serve", "conflist")

DEL_SHARE = 4
"""One RPC place in so many is never taken by ADD: a DEL is served while ADDs wait for addresses. Ours."""


@dataclass(frozen=True, slots=True)
class App:
    """Everything that the life of the process handles."""

    settings: Settings
    clock: SystemClock
    node_info: NodeInfo
    health: Health
    datastore: Datastore
    open_report: OpenReport
    wiring: Wiring
    hostnet: HostNetwork
    metadata: Metadata
    ec2: Ec2
    runtime: Runtime | None
    spool: Spool
    demand: Demand
    cooldown: Cooldown
    enis: EniService
    provisioner: EniProvisioner
    pool: PoolMaintainer
    restore: StartupReconciler
    runtime_reconciler: RuntimeReconciler | None
    host_reconciler: HostNetworkReconciler
    cni: CniServicer
    server: RpcServer
    metrics: Metrics


def build(settings: Settings, *, has_run_before: bool = False) -> App:
    """Open the datastore and make every part; nothing runs yet.

    Args:
        has_run_before: a daemon has served this run directory since the machine booted.

    Raises: DatastoreError, SettingsError.
    """
    clock, node_info = SystemClock(), NodeInfo()
    failpoint = failpoints.from_environment(settings.daemon.run_dir)
    health = Health(clock, STAGES)
    with health.stage("datastore") as stage:
        opened = open_datastore(settings.daemon.run_dir / "state.db", boot_id=current_boot_id(), clock=clock, failpoint=failpoint)
        stage.detail = opened.report.detail
    datastore = opened.datastore
    host = HostNetns()

    def kernel_failpoint(step: str) -> bool:
        failpoint("kernel." + "-".join(step.split()[:2]))
        return False

    network, cooldown_s = settings.network, float(settings.pool.cooldown_s)
    wiring = KernelWiring(host, veth_prefix=network.veth_prefix, failpoint=kernel_failpoint)
    hostnet = KernelHostNetwork(host, config=network, nft=Nftables(host))
    metadata = ImdsMetadata(settings.cloud, clock=clock)
    ec2 = BotoEc2(settings.cloud, region=node_info.region, clock=clock)
    runtime = None if settings.runtime.cri_socket == "off" else CriRuntime(socket=settings.runtime.cri_socket)
    spool = FileSpool(settings.daemon.run_dir, clock=clock)
    demand, locks = Demand(), KeyLocks(clock)
    cooldown = Cooldown(
        datastore=datastore,
        wiring=wiring,
        demand=demand,
        health=health,
        clock=clock,
        period_s=cooldown_s,
        failpoint=failpoint,
    )
    detach = DetachService(
        datastore=datastore,
        wiring=wiring,
        cooldown=cooldown,
        locks=locks,
        clock=clock,
        veth_prefix=network.veth_prefix,
        failpoint=failpoint,
    )
    attach = AttachService(
        datastore=datastore,
        wiring=wiring,
        cooldown=cooldown,
        demand=demand,
        health=health,
        locks=locks,
        clock=clock,
        policy=AttachPolicy(
            veth_prefix=network.veth_prefix,
            mtu=network.sandbox_mtu,
            waiting_limit=max(settings.daemon.max_concurrent_rpcs * (DEL_SHARE - 1) // DEL_SHARE, 1),
            prefix_delegation=settings.pool.prefix_delegation,
        ),
        failpoint=failpoint,
    )
    quarantine = QuarantineService(
        datastore=datastore,
        wiring=wiring,
        cooldown=cooldown,
        locks=locks,
        clock=clock,
        mtu=network.sandbox_mtu,
        list_interval_s=LIST_INTERVAL_S,
        failpoint=failpoint,
    )
    enis = EniService(
        datastore=datastore,
        ec2=ec2,
        hostnet=hostnet,
        wiring=wiring,
        cooldown=cooldown,
        is_datastore_lost=has_run_before and not opened.report.is_intact,
        demand=demand,
        health=health,
        clock=clock,
    )
    provisioner = EniProvisioner(
        datastore=datastore,
        ec2=ec2,
        enis=enis,
        clock=clock,
        cluster_name=settings.cloud.cluster_name,
        additional_tags=settings.cloud.additional_tags,
        failpoint=failpoint,
    )
    pool = PoolMaintainer(
        datastore=datastore,
        provisioner=provisioner,
        demand=demand,
        health=health,
        clock=clock,
        settings=settings.pool_settings(max_pods=0),
    )
    restore = StartupReconciler(
        datastore=datastore,
        wiring=wiring,
        cooldown=cooldown,
        spool=spool,
        runtime=runtime,
        detach=detach,
        quarantine=quarantine,
        clock=clock,
        is_datastore_intact=opened.report.is_intact,
        failpoint=failpoint,
    )
    runtime_reconciler = None
    if runtime is not None:
        runtime_reconciler = RuntimeReconciler(
            runtime=runtime,
            datastore=datastore,
            wiring=wiring,
            detach=detach,
            quarantine=quarantine,
            health=health,
            clock=clock,
            failpoint=failpoint,
        )
    host_reconciler = HostNetworkReconciler(
        datastore=datastore,
        hostnet=hostnet,
        metadata=metadata,
        wiring=wiring,
        quarantine=quarantine,
        enis=enis,
        locks=locks,
        health=health,
        clock=clock,
    )
    services = Services(
        attach=attach,
        detach=detach,
        check=CheckService(datastore=datastore, wiring=wiring, locks=locks),
        gc=GcService(datastore=datastore, runtime=runtime, detach=detach, clock=clock),
    )
    metrics = Metrics()
    cni = CniServicer(services=services, health=health, clock=clock, observer=metrics)

    def cloud_view() -> CloudView:
        reachable, detail = node_info.cloud()
        return CloudView(reachable=reachable, call_count=sum(ec2.call_counts().values()), detail=detail)

    sources = Sources(
        health=health,
        datastore=datastore,
        spool=spool,
        cooldown=cooldown,
        locks=locks,
        demand=demand,
        pool=pool,
        runtime_reconciler=lambda: runtime_reconciler.view() if runtime_reconciler is not None else None,
        runtime=lambda: node_info.runtime,
        cloud=cloud_view,
        audit=AuditService(
            datastore=datastore, wiring=wiring, ec2=ec2, runtime=runtime, locks=locks, identity=lambda: node_info.identity
        ),
        explain=ExplainService(
            datastore=datastore,
            wiring=wiring,
            runtime_reconciler=runtime_reconciler,
            locks=locks,
            clock=clock,
        ),
        instance_id=lambda: node_info.identity.instance_id if node_info.identity is not None else "",
        version=__version__,
    )
    metrics.watch(sources, ec2=ec2, replayed=lambda: attach.replayed_count, pool_empty=lambda: attach.pool_empty_count)
    server = RpcServer(
        run_dir=settings.daemon.run_dir,
        cni=cni,
        introspection=IntrospectionServicer(sources),
        max_concurrent_rpcs=settings.daemon.max_concurrent_rpcs,
    )
    return App(
        settings=settings,
        clock=clock,
        node_info=node_info,
        health=health,
        datastore=datastore,
        open_report=opened.report,
        wiring=wiring,
        hostnet=hostnet,
        metadata=metadata,
        ec2=ec2,
        runtime=runtime,
        spool=spool,
        demand=demand,
        cooldown=cooldown,
        enis=enis,
        provisioner=provisioner,
        pool=pool,
        restore=restore,
        runtime_reconciler=runtime_reconciler,
        host_reconciler=host_reconciler,
        cni=cni,
        server=server,
        metrics=metrics,
    )
