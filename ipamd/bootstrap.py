"""Compose the use cases over the ports, room by room.

Tests compose the same graph over fakes, so the graph under test is the graph that ships. Nothing heavy is imported or asked here that
DEL does not need: boto3 and the metrics server come later, in their own threads, because a restarted daemon must take DEL
at once (docs/life.md, Start).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ipamd import __version__
from ipamd.adapters import Adapters, connect
from ipamd.cloud.limits import from_table
from ipamd.core.agenda import Agenda
from ipamd.core.context import ServiceContext
from ipamd.core.demand import Demand
from ipamd.core.freeze import Freeze
from ipamd.core.locks import KeyLocks
from ipamd.core.refused_adds import RefusedAdds
from ipamd.eni.book import EniBook, remember_given_back
from ipamd.eni.enis import EniService
from ipamd.eni.external_changes import CloudReconciler
from ipamd.eni.limits import Limits
from ipamd.eni.links import LinkWatch
from ipamd.eni.metadata import MetadataWatch
from ipamd.eni.provisioner import EniProvisioner, NewEnis
from ipamd.eni.resync import ResyncScheduler
from ipamd.eni.security_groups import SecurityGroups
from ipamd.eni.subnets import Subnets
from ipamd.eni.tags import EniTags
from ipamd.host.freeze_files import OperatorFreeze
from ipamd.host.network import HostNetworkReconciler
from ipamd.metric_families import Counts
from ipamd.metrics import Metrics
from ipamd.migration.backend import CniBackendServer, CniBackendServicer
from ipamd.migration.export import ExportService
from ipamd.migration.importing import ImportService
from ipamd.migration.other_daemon import OtherDaemon
from ipamd.model.aws_node import GivenTwice
from ipamd.model.kernel import HostChange
from ipamd.model.subnets import SubnetPolicy
from ipamd.model.words import counted
from ipamd.pool.maintainer import PoolMaintainer
from ipamd.report.audit import AuditService, AuditSources
from ipamd.report.explain import ExplainService, Present
from ipamd.report.past import PastService
from ipamd.report.sources import CloudView, Sources
from ipamd.report.what_if import WhatIfService
from ipamd.rpc.cni import CniServicer, SandboxServices
from ipamd.rpc.introspection import IntrospectionServicer
from ipamd.sandbox.attach import AttachPolicy, AttachService, CheckService, VethNames
from ipamd.sandbox.cooldown import Cooldown
from ipamd.sandbox.detach import DetachService, GcService
from ipamd.sandbox.judge import SandboxJudge
from ipamd.sandbox.quarantine import QuarantineService
from ipamd.sandbox.runtime import RuntimeReconciler
from ipamd.sandbox.startup import SpooledDeletes, StartupReconciler
from ipamd.settings import CurrentSettings, Settings, describe

DEL_SHARE = 4
"""One RPC place in so many is never taken by ADD: a DEL is served while ADDs wait for addresses. Ours."""


@dataclass(frozen=True, slots=True)
class PoolServices:
    """The room `pool`."""

    enis: EniService
    provisioner: EniProvisioner
    resyncs: ResyncScheduler
    maintainer: PoolMaintainer
    subnets: Subnets


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """Who looks after wired sandboxes that are not recorded; `runtime` is None if CRI is off."""

    quarantine: QuarantineService
    imported: ImportService
    runtime: RuntimeReconciler | None


@dataclass(frozen=True, slots=True)
class Reconcilers:
    """The room `reconcile`; `runtime` is None if CRI is off."""

    spooled_deletes: SpooledDeletes
    startup: StartupReconciler
    runtime: RuntimeReconciler | None
    host_network: HostNetworkReconciler
    cloud: CloudReconciler
    quarantine: QuarantineService
    other: OtherDaemon
    export: ExportService


@dataclass(frozen=True, slots=True)
class App:
    """Everything that the life of the process handles, room by room."""

    current: CurrentSettings
    adapters: Adapters
    context: ServiceContext
    cooldown: Cooldown
    sandbox: SandboxServices
    pool: PoolServices
    reconcile: Reconcilers
    cni: CniServicer
    introspection: IntrospectionServicer
    operator: OperatorFreeze
    refused: RefusedAdds
    metrics: Metrics
    cni_backend: CniBackendServer | None = None

    @property
    def settings(self) -> Settings:
        """The settings in force now."""
        return self.current.now


def build(current: CurrentSettings, *, has_run_before: bool = False) -> App:
    """Open the datastore and make every part; nothing runs yet. Raises: DatastoreError, SettingsError."""
    return compose(connect(current, has_run_before=has_run_before), current)


def compose(adapters: Adapters, current: CurrentSettings) -> App:
    """Make every use case over the adapters, room by room. Does no I/O and starts no thread."""
    demand = Demand()
    context = ServiceContext(
        datastore=adapters.opened.datastore,
        wiring=adapters.wiring,
        clock=adapters.clock,
        health=adapters.health,
        locks=KeyLocks(adapters.clock),
        demand=demand,
        freeze=Freeze(clock=adapters.clock, health=adapters.health, demand=demand),
        agenda=Agenda(adapters.clock, is_urgent=demand.is_waited_for),
        failpoint=adapters.failpoint,
    )
    adapters.opened.datastore.keep_history(adapters.history)
    refused = RefusedAdds(history=adapters.history, clock=adapters.clock)
    cooldown = Cooldown(context, period_s=lambda: float(current.now.pool.cooldown_s))
    judge = SandboxJudge(context)
    sandbox = _sandbox(context, cooldown, adapters, current, judge=judge)
    other = OtherDaemon(context, aws_node=adapters.aws_node)
    unrecorded = _unrecorded(context, cooldown, adapters, current, judge=judge, detach=sandbox.detach, other=other)
    pool = compose_pool(context, cooldown, adapters, current, unrecorded=unrecorded)
    reconcile = _reconcile(
        context, cooldown, adapters, current, unrecorded=unrecorded, detach=sandbox.detach, pool=pool, other=other
    )
    current.follow(lambda now: now.network, lambda _: reconcile.host_network.renew())
    operator = OperatorFreeze(context.freeze, run_dir=current.now.daemon.run_dir, boot_id=adapters.boot_id, clock=adapters.clock)
    past = PastService(datastore=context.datastore, history=adapters.history, refused=refused, clock=adapters.clock)
    sources = _sources(context, cooldown, adapters, current, past=past, pool=pool, reconcile=reconcile)
    metrics = Metrics()
    metrics.watch(sources, _counts(adapters, sandbox=sandbox, pool=pool, reconcile=reconcile))
    return App(
        current=current,
        adapters=adapters,
        context=context,
        cooldown=cooldown,
        sandbox=sandbox,
        pool=pool,
        reconcile=reconcile,
        cni=CniServicer(services=sandbox, health=context.health, clock=context.clock, observer=metrics, refused=refused.note),
        introspection=IntrospectionServicer(sources, operator, reconcile.export),
        operator=operator,
        refused=refused,
        metrics=metrics,
        cni_backend=_cni_backend(context, sandbox, current, refused=refused),
    )


def _cni_backend(
    context: ServiceContext, services: SandboxServices, current: CurrentSettings, *, refused: RefusedAdds
) -> CniBackendServer | None:
    path = current.now.takeover.cni_backend_socket
    if not path:
        return None
    servicer = CniBackendServicer(
        services,
        datastore=context.datastore,
        clock=context.clock,
        uses_external_snat=lambda: current.now.network.external_snat,
        refused=refused.note,
    )
    return CniBackendServer(servicer, path=Path(path))


def _counts(adapters: Adapters, *, sandbox: SandboxServices, pool: PoolServices, reconcile: Reconcilers) -> Counts:
    return Counts(
        ec2=adapters.ec2,
        replayed=lambda: sandbox.attach.replayed_count,
        pool_empty=sandbox.attach.pool_empty_counts,
        looks=pool.resyncs.counts,
        found=pool.resyncs.found,
        repairs=reconcile.host_network.fights.counts,
        released=pool.provisioner.released_counts,
        metadata=reconcile.cloud.metadata.difference,
        metadata_requests=adapters.metadata.request_count,
    )


def _sandbox(
    context: ServiceContext, cooldown: Cooldown, adapters: Adapters, current: CurrentSettings, *, judge: SandboxJudge
) -> SandboxServices:
    network = current.now.network
    policy = AttachPolicy(
        mtu=lambda: current.now.network.sandbox_mtu,
        waiting_limit=max(current.now.daemon.max_concurrent_rpcs * (DEL_SHARE - 1) // DEL_SHARE, 1),
    )
    prefix, is_by_pod = network.veth_prefix, network.pod_veth_names
    veth_names = VethNames(context, cooldown=cooldown, runtime=adapters.runtime, prefix=prefix, is_by_pod=is_by_pod)
    detach = DetachService(
        context,
        cooldown=cooldown,
        veth_prefix=prefix,
        is_source_checked=adapters.hostnet.is_source_checked,
        is_named_by_pod=is_by_pod,
    )
    return SandboxServices(
        attach=AttachService(
            context,
            cooldown=cooldown,
            policy=policy,
            veth_names=veth_names,
            pod_names=VethNames(context, cooldown=cooldown, runtime=adapters.runtime, prefix=prefix, is_by_pod=True),
        ),
        detach=detach,
        check=CheckService(context, hostnet=adapters.hostnet, identity=adapters.node_info.identity),
        gc=GcService(context, runtime=adapters.runtime, judge=judge, detach=detach),
    )


def compose_pool(
    context: ServiceContext,
    cooldown: Cooldown,
    adapters: Adapters,
    current: CurrentSettings,
    *,
    unrecorded: Unrecorded | None = None,
) -> PoolServices:
    """Make the rooms `eni` and `pool`; the fleet simulation makes these alone, for each of its nodes."""
    node_info, settings = adapters.node_info, current.now
    book = EniBook(context)
    policy = SubnetPolicy(settings.subnets.discovery, settings.cloud.cluster_name, adapters.custom_network)
    limits = Limits(context, ec2=adapters.ec2)
    subnets = Subnets(
        context,
        ec2=adapters.ec2,
        policy=policy,
        limits=limits,
        identity=node_info.identity,
        groups_of=lambda eni_id: book.of(eni_id).security_groups,
    )
    security_groups = SecurityGroups(context, ec2=adapters.ec2, book=book, follows_primary=subnets.follows_primary)
    resyncs = ResyncScheduler(context, unplaced=unrecorded.quarantine.unplaced if unrecorded else frozenset)
    list_soon = unrecorded.runtime.list_soon if unrecorded and unrecorded.runtime else lambda: None
    enis = _enis(context, cooldown, adapters, book=book, resyncs=resyncs, subnets=subnets, on_quarantined=list_soon)
    provisioner = EniProvisioner(
        context,
        ec2=adapters.ec2,
        enis=enis,
        new_enis=NewEnis(subnets, lambda: EniTags(settings.cloud.cluster_name, current.now.cloud.additional_tags)),
        identity=node_info.identity,
        refresh_identity=node_info.refresh_identity,
    )
    if settings.cloud.leaked_eni_cleanup_disabled:
        provisioner.leaked_enis.disable()
    maintainer = PoolMaintainer(
        context,
        provisioner=provisioner,
        resync_due=enis.resync_due,
        security_groups=security_groups,
        limits=limits,
        identity=node_info.identity,
        settings=settings.pool_settings(max_pods=0),
    )
    return PoolServices(enis, provisioner, resyncs, maintainer, subnets)


def _enis(
    context: ServiceContext,
    cooldown: Cooldown,
    adapters: Adapters,
    *,
    book: EniBook,
    resyncs: ResyncScheduler,
    subnets: Subnets,
    on_quarantined: Callable[[], None],
) -> EniService:
    is_intact = adapters.opened.report.is_intact
    if not is_intact:
        remember_given_back(book, adapters.history, adapters.clock)
    return EniService(
        context,
        book=book,
        ec2=adapters.ec2,
        hostnet=adapters.hostnet,
        cooldown=cooldown,
        resyncs=resyncs,
        identity=adapters.node_info.identity,
        exclusion=subnets.exclusion,
        on_quarantined=on_quarantined,
        is_datastore_lost=adapters.has_run_before and not is_intact,
    )


def _unrecorded(
    context: ServiceContext,
    cooldown: Cooldown,
    adapters: Adapters,
    current: CurrentSettings,
    *,
    judge: SandboxJudge,
    detach: DetachService,
    other: OtherDaemon,
) -> Unrecorded:
    quarantine = QuarantineService(context, cooldown=cooldown, judge=judge, mtu=lambda: current.now.network.sandbox_mtu)
    imported = ImportService(context, aws_node=adapters.aws_node, other=other, prefix=current.now.network.veth_prefix)
    runtime = adapters.runtime
    listing = (
        RuntimeReconciler(
            context,
            runtime=runtime,
            detach=detach,
            quarantine=quarantine,
            imported=imported,
            learned=adapters.node_info.set_runtime,
        )
        if runtime
        else None
    )
    return Unrecorded(quarantine, imported, listing)


def _reconcile(
    context: ServiceContext,
    cooldown: Cooldown,
    adapters: Adapters,
    current: CurrentSettings,
    *,
    unrecorded: Unrecorded,
    detach: DetachService,
    pool: PoolServices,
    other: OtherDaemon,
) -> Reconcilers:
    node_info, quarantine = adapters.node_info, unrecorded.quarantine
    startup = StartupReconciler(
        context,
        cooldown=cooldown,
        runtime=adapters.runtime,
        quarantine=quarantine,
        imported=unrecorded.imported,
        is_datastore_intact=adapters.opened.report.is_intact,
    )
    host_network = HostNetworkReconciler(
        context,
        hostnet=adapters.hostnet,
        quarantine=quarantine,
        enis=pool.enis,
        identity=node_info.identity,
    )
    return Reconcilers(
        spooled_deletes=SpooledDeletes(context, spool=adapters.spool, detach=detach),
        startup=startup,
        runtime=unrecorded.runtime,
        host_network=host_network,
        cloud=_cloud(context, adapters, pool, on_change=host_network.on_change),
        quarantine=quarantine,
        other=other,
        export=ExportService(context, cooldown=cooldown, aws_node=adapters.aws_node, prefix=current.now.network.veth_prefix),
    )


def _cloud(
    context: ServiceContext, adapters: Adapters, pool: PoolServices, *, on_change: Callable[[HostChange], None]
) -> CloudReconciler:
    node_info = adapters.node_info
    metadata = MetadataWatch(
        context,
        metadata=adapters.metadata,
        learn_identity=node_info.learn_identity,
        identity=node_info.identity,
        book=pool.enis.book,
        resyncs=pool.resyncs,
    )
    links = LinkWatch(
        context,
        hostnet=adapters.hostnet,
        book=pool.enis.book,
        routing=pool.enis.routing,
        resyncs=pool.resyncs,
        on_change=on_change,
    )
    return CloudReconciler(context, links=links, metadata=metadata, resyncs=pool.resyncs)


def _sources(
    context: ServiceContext,
    cooldown: Cooldown,
    adapters: Adapters,
    current: CurrentSettings,
    *,
    past: PastService,
    pool: PoolServices,
    reconcile: Reconcilers,
) -> Sources:
    node_info, runtime, given_twice = adapters.node_info, reconcile.runtime, reconcile.other.given_twice

    def instance_id() -> str:
        identity = node_info.identity()
        return identity.instance_id if identity is not None else ""

    return Sources(
        health=context.health,
        datastore=context.datastore,
        spool=adapters.spool,
        dying_count=cooldown.dying_count,
        dropped_packets=adapters.hostnet.dropped_packets,
        is_source_checked=adapters.hostnet.is_source_checked,
        locks=context.locks,
        demand=context.demand,
        pool=pool.maintainer,
        runtime_view=lambda: runtime.view() if runtime is not None else None,
        runtime=node_info.runtime,
        cloud=lambda: _cloud_view(adapters),
        calls_under_way=adapters.ec2.calls_under_way,
        audit=_audit(context, adapters, enis=pool.enis, given_twice=given_twice),
        given_twice=given_twice,
        frozen=pool.enis.routing.frozen,
        freezings=context.freeze.in_force,
        subnets=lambda: pool.subnets.views(node_info.identity()),
        explain=ExplainService(
            datastore=context.datastore,
            wiring=context.wiring,
            judgement=runtime.present_judgement if runtime is not None else None,
            quarantined=runtime.present_verdicts if runtime is not None else None,
            present=Present(context.locks, context.clock, given_twice),
            past=past,
        ),
        what_if=_what_if(context, adapters, current, pool=pool),
        settings=current,
        config=lambda: describe(current.now),
        past=past,
        instance_id=instance_id,
        version=__version__,
    )


def _what_if(context: ServiceContext, adapters: Adapters, current: CurrentSettings, *, pool: PoolServices) -> WhatIfService:
    custom = adapters.custom_network
    return WhatIfService(
        pool.maintainer,
        settings=lambda: current.now,
        limits_of=from_table,
        clock=context.clock,
        primary_carries_pods=custom is None or custom.primary_carries_pods,
    )


def _cloud_view(adapters: Adapters) -> CloudView:
    """What EC2 last said, and what it is being asked now: a call with its retries lasts up to a minute."""
    reachable, detail = adapters.node_info.cloud()
    for call in adapters.ec2.calls_under_way():
        detail += f"; {call.api} for {call.subject} is at work for {call.age_s:.0f} s"
        detail += f", refused {counted(call.refusal_count, 'time')}, last: {call.last_refusal}" if call.refusal_count else ""
    call_count = sum(report.count for report in adapters.ec2.call_reports().values())
    return CloudView(reachable=reachable, call_count=call_count, detail=detail)


def _audit(
    context: ServiceContext, adapters: Adapters, *, enis: EniService, given_twice: Callable[[], tuple[GivenTwice, ...]]
) -> AuditService:
    return AuditService(
        AuditSources(
            datastore=context.datastore,
            wiring=context.wiring,
            hostnet=adapters.hostnet,
            ec2=adapters.ec2,
            runtime=adapters.runtime,
            locks=context.locks,
            identity=adapters.node_info.identity,
            frozen=enis.routing.frozen,
            recent=lambda: enis.book.added().keys(),
            given_twice=given_twice,
        )
    )
