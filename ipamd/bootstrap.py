"""Compose the use cases over the ports, room by room.

Tests compose the same graph over fakes, so the graph under test is the graph that ships. Nothing heavy is imported or asked here that
DEL does not need: boto3 and the metrics server come later, in their own threads, because a restarted daemon must take DEL
at once (docs/life.md, Start).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ipamd import __version__
from ipamd.adapters import Adapters
from ipamd.cloud.limits import from_table
from ipamd.core.agenda import Agenda
from ipamd.core.context import ServiceContext
from ipamd.core.deadline import KeyLocks
from ipamd.core.demand import Demand, delay
from ipamd.core.freeze import Freeze
from ipamd.core.refused_adds import RefusedAdds
from ipamd.eni.book import EniBook, remember_released
from ipamd.eni.enis import EniService
from ipamd.eni.external_changes import CloudReconciler
from ipamd.eni.limits import Limits
from ipamd.eni.links import LinkWatch
from ipamd.eni.provisioner import EniProvisioner
from ipamd.eni.resync import ResyncScheduler
from ipamd.eni.security_groups import SecurityGroups
from ipamd.eni.subnets import Subnets
from ipamd.host.freeze_files import OperatorFreeze
from ipamd.host.network import HostNetworkReconciler, Scope
from ipamd.metric_families import Counts
from ipamd.metrics import Metrics
from ipamd.migration.backend import CniBackendServer, CniBackendServicer
from ipamd.migration.export import ExportService
from ipamd.migration.handover import OtherDaemon
from ipamd.migration.importing import ImportService
from ipamd.model.branch import STRICT_VETH_PREFIX, EnforcingMode
from ipamd.model.eni import EniTags
from ipamd.model.errors import SUPPLY
from ipamd.model.family import IPV4, IPV6
from ipamd.model.pool import Refusal, assignable_count
from ipamd.model.record import dataclass
from ipamd.model.subnets import SubnetPolicy
from ipamd.model.words import counted, printable
from ipamd.pool.maintainer import PoolMaintainer
from ipamd.report.sources import CloudView, Sources
from ipamd.rpc.cni import CniServicer, SandboxServices
from ipamd.rpc.introspection import IntrospectionServicer
from ipamd.sandbox.attach import AttachService, CheckService, VethNames
from ipamd.sandbox.cooldown import Cooldown
from ipamd.sandbox.detach import DetachService, GcService
from ipamd.sandbox.judge import SandboxJudge
from ipamd.sandbox.quarantine import QuarantineService
from ipamd.sandbox.runtime import RuntimeReconciler
from ipamd.sandbox.startup import SpooledDeletes, StartupReconciler
from ipamd.settings import CurrentSettings, Settings

if TYPE_CHECKING:
    from ipamd.branch.hook import BranchHook
    from ipamd.eni.branches import BranchComparison
    from ipamd.policy.hook import PolicyHook
    from ipamd.ports import Ec2

DEL_SHARE = 4
"""One RPC place in so many is never taken by ADD: a DEL is served while ADDs wait for addresses. Ours."""


@dataclass(frozen=True, slots=True)
class PoolServices:
    """The rooms `eni` and `pool`."""

    enis: EniService
    provisioner: EniProvisioner
    resyncs: ResyncScheduler
    maintainer: PoolMaintainer
    subnets: Subnets


class App:
    """Everything that the life of the process handles, made over the adapters room by room. Makes no I/O and starts no thread.

    `runtime` is None if CRI is off, `cni_backend` if neither the plugin of amazon-vpc-cni-k8s nor its policy agent is served, `policy`
    if that agent is not asked, `branches` if no pod gets a branch ENI.
    """

    def __init__(self, adapters: Adapters, current: CurrentSettings) -> None:
        self.adapters, self.current = adapters, current
        stock = adapters.opened.datastore.stock
        demand = Demand(on_supply=partial(adapters.health.resolve, SUPPLY, is_over=lambda: assignable_count(stock()) > 0))
        self.context = context = ServiceContext(
            datastore=adapters.opened.datastore,
            wiring=adapters.wiring,
            clock=adapters.clock,
            health=adapters.health,
            locks=KeyLocks(adapters.clock),
            demand=demand,
            freeze=Freeze(clock=adapters.clock, health=adapters.health, demand=demand),
            agenda=Agenda(adapters.clock, is_urgent=lambda: demand.waiting()[0] > 0),
            failpoint=adapters.failpoint,
        )
        adapters.opened.datastore.keep_history(adapters.history)
        self.refused = RefusedAdds(history=adapters.history, clock=adapters.clock)
        self.metrics = Metrics()
        self.cooldown = Cooldown(context, period_s=lambda: float(current.now.pool.cooldown_s))
        self.policy = self._policy()
        self._serve_sandboxes()
        self.pool = compose_pool(
            context,
            self.cooldown,
            adapters,
            current,
            unplaced=partial(self.quarantine.unplaced, is_branch=False),  # a branch ENI is not on the instance
            list_soon=self.runtime.list_soon if self.runtime else lambda: None,
            on_cut_off=lambda: self.host_network.mark(Scope.EVERYTHING),
        )
        self._follow_others()
        self._report()

    @property
    def settings(self) -> Settings:
        """The settings in force now."""
        return self.current.now

    @property
    def rpc_limit(self) -> int:
        """Requests at once: what the setting says, and those that wait for the control plane to name a branch ENI."""
        return self.settings.daemon.max_concurrent_rpcs + (self.branches.waiting_limit if self.branches else 0)

    def _policy(self) -> PolicyHook | None:
        """Who asks the network policy agent; nothing of it is imported unless a setting wants it."""
        agent, settings = self.adapters.policy_agent, self.current.now
        if agent is None:
            return None
        from ipamd.policy.hook import PolicyHook

        is_unsure, prefix = self.adapters.is_datastore_lost, settings.network.veth_prefix
        return PolicyHook(self.context, agent=agent, mode=settings.policy.mode, prefix=prefix, is_unsure=is_unsure)

    def _branches(self, names: Callable[..., VethNames]) -> BranchHook | None:
        """Who tells which sandboxes get branch ENIs; nothing of it is imported unless a setting wants it."""
        network, source = self.current.now.network, self.adapters.pod_facts
        if source is None or network.branch_mode is None:
            return None
        from ipamd.branch.hook import BranchHook

        is_strict = network.branch_mode is EnforcingMode.STRICT
        return BranchHook(
            self.context,
            source=source,
            mode=network.branch_mode,
            family=network.family,
            names=names(is_by_pod=True, own_prefix=STRICT_VETH_PREFIX if is_strict else ""),
            cooldown=self.cooldown,
            trunk_mac=lambda: self.pool.enis.trunk_mac(),
            unplaced=lambda: self.quarantine.unplaced(is_branch=True),
        )

    def _serve_sandboxes(self) -> None:
        """The verbs, and who looks after sandboxes for which no verb comes."""
        context, cooldown, adapters, current = self.context, self.cooldown, self.adapters, self.current
        runtime, judge, prefix = adapters.runtime, SandboxJudge(context), current.now.network.veth_prefix
        self.sandbox = self._verbs(judge)
        self.spooled_deletes = SpooledDeletes(context, spool=adapters.spool, detach=self.sandbox.detach)
        self.other_daemon = OtherDaemon(context, aws_node=adapters.aws_node)
        egress = IPV4 if current.now.network.family is IPV6 else IPV6
        self.imported = ImportService(
            context,
            aws_node=adapters.aws_node,
            other=self.other_daemon,
            prefix=prefix,
            egress=egress,
            has_branches=current.now.network.pod_eni,
            pod_facts=adapters.pod_facts,
        )
        self.quarantine = QuarantineService(context, cooldown=cooldown, judge=judge, mtu=lambda: current.now.network.sandbox_mtu)
        self.runtime: RuntimeReconciler | None = None
        if runtime is not None:
            self.runtime = RuntimeReconciler(
                context,
                runtime=runtime,
                detach=self.sandbox.detach,
                quarantine=self.quarantine,
                imported=self.imported,
                learned=adapters.node_info.set_runtime,
            )
        self.startup = StartupReconciler(
            context,
            cooldown=cooldown,
            runtime=runtime,
            quarantine=self.quarantine,
            imported=self.imported,
            is_datastore_intact=adapters.opened.report.is_intact,
            is_datastore_lost=adapters.is_datastore_lost,
        )

    def _verbs(self, judge: SandboxJudge) -> SandboxServices:
        context, cooldown, adapters, current = self.context, self.cooldown, self.adapters, self.current
        runtime, prefix, is_by_pod = adapters.runtime, current.now.network.veth_prefix, current.now.network.pod_veth_names
        names = partial(VethNames, context, cooldown=cooldown, runtime=runtime, prefix=prefix)
        self.branches = self._branches(names)
        detach = DetachService(
            context,
            cooldown=cooldown,
            veth_prefix=prefix,
            is_source_checked=adapters.hostnet.is_source_checked,
            is_named_by_pod=is_by_pod or self.branches is not None,
            policy=self.policy,
        )
        attach = AttachService(
            context,
            cooldown=cooldown,
            mtu=lambda: current.now.network.sandbox_mtu,
            egress=lambda: adapters.hostnet.egress()[0],
            delay=lambda: delay(adapters.ec2, context.clock),
            waiting_limit=max(current.now.daemon.max_concurrent_rpcs * (DEL_SHARE - 1) // DEL_SHARE, 1),
            veth_names=names(is_by_pod=is_by_pod),
            pod_names=names(is_by_pod=True),
            policy=self.policy,
            branches=self.branches,
        )
        check = CheckService(context, hostnet=adapters.hostnet, identity=adapters.node_info.identity)
        return SandboxServices(attach, detach, check, GcService(context, runtime=runtime, judge=judge, detach=detach))

    def _follow_others(self) -> None:
        """What others change on the node and at EC2, and the node's way from and to amazon-vpc-cni-k8s."""
        context, adapters, enis, resyncs = self.context, self.adapters, self.pool.enis, self.pool.resyncs
        node_info, hostnet, settings = adapters.node_info, adapters.hostnet, self.current.now
        self.host_network = HostNetworkReconciler(
            context, hostnet=hostnet, quarantine=self.quarantine, enis=enis, identity=node_info.identity
        )
        self.current.follow(lambda now: now.network, lambda _: self.host_network.mark(Scope.EVERYTHING))
        links = LinkWatch(
            context,
            hostnet=hostnet,
            book=enis.book,
            routing=enis.routing,
            resyncs=resyncs,
            on_change=self.host_network.on_change,
        )
        self.cloud = CloudReconciler(
            context,
            metadata=adapters.metadata,
            learn_identity=node_info.learn_identity,
            identity=node_info.identity,
            book=enis.book,
            resyncs=resyncs,
            links=links,
        )
        self.export = ExportService(
            context, cooldown=self.cooldown, aws_node=adapters.aws_node, prefix=settings.network.veth_prefix
        )
        self.operator = OperatorFreeze(
            context.freeze, run_dir=settings.daemon.run_dir, boot_id=adapters.boot_id, clock=adapters.clock
        )
        self.cni_backend = self._serve_others()

    def _serve_others(self) -> CniBackendServer | None:
        """What the plugin and the policy agent of amazon-vpc-cni-k8s ask its daemon, on one socket; None if neither is wanted."""
        takeover, policy = self.current.now.takeover, self.current.now.policy
        if not (takeover.cni_backend_socket or self.policy):
            return None
        servicer, others = None, []
        if takeover.cni_backend_socket:
            servicer = CniBackendServicer(
                self.sandbox,
                datastore=self.context.datastore,
                clock=self.context.clock,
                uses_external_snat=lambda: self.current.now.network.external_snat,
                policy_mode=policy.mode if self.policy else "",
                refused=self.refused.record_refusal,
            )
        if self.policy:
            from ipamd.policy.agent import ConfigServicer

            questions = ConfigServicer(
                mode=policy.mode,
                family=self.current.now.network.family,
                identity=self.adapters.node_info.identity,
                metadata=self.adapters.metadata,
                health=self.context.health,
                clock=self.context.clock,
            )
            others = [questions.add_to]
        return CniBackendServer(servicer, path=Path(takeover.questions_socket), others=others)

    def _report(self) -> None:
        """What reads: the services on the socket, and the metrics."""
        context, adapters = self.context, self.adapters
        sources = self._sources()
        counts = Counts(
            ec2=adapters.ec2,
            replayed=lambda: self.sandbox.attach.replayed_count,
            pool_empty=self.sandbox.attach.pool_empty,
            looks=self.pool.resyncs.counts,
            repairs=self.host_network.fights.counts,
            released=self.pool.provisioner.steps.counts,
            metadata=self.cloud.difference,
            metadata_requests=adapters.metadata.request_count,
        )
        self.metrics.watch(sources, counts)
        self.cni = CniServicer(
            services=self.sandbox,
            health=context.health,
            clock=context.clock,
            observer=self.metrics,
            refused=self.refused.record_refusal,
        )
        self.introspection = IntrospectionServicer(
            sources,
            freeze=self.operator.freeze,
            thaw=self.operator.thaw,
            export=self.export.export,
            keep=self.export.undo,
            retry=self._retry,
        )

    def _retry(self) -> list[tuple[str, Refusal]]:
        """Have EC2 asked now for what it refused. From any thread."""
        ended = self.pool.subnets.limits.retry()
        self.context.demand.trigger()
        self.pool.resyncs.changed.set()
        return ended

    def _sources(self) -> Sources:
        context, adapters, pool, runtime = self.context, self.adapters, self.pool, self.runtime
        node_info, custom = adapters.node_info, adapters.custom_network
        return Sources(
            clock=context.clock,
            health=context.health,
            datastore=context.datastore,
            history=adapters.history,
            spool=adapters.spool,
            wiring=context.wiring,
            hostnet=adapters.hostnet,
            ec2=adapters.ec2,
            cri=adapters.runtime,
            locks=context.locks,
            demand=context.demand,
            refused=self.refused,
            pool=pool.maintainer,
            settings=self.current,
            identity=node_info.identity,
            dying_count=self.cooldown.dying_count,
            runtime_view=runtime.view if runtime else lambda: None,
            runtime=node_info.runtime,
            judgement=runtime.present_judgement if runtime else None,
            quarantined=runtime.present_verdicts if runtime else None,
            cloud=self._cloud_view,
            recent=lambda: pool.enis.book.added().keys(),
            frozen=pool.enis.routing.frozen,
            freezings=context.freeze.in_force,
            subnets=lambda: pool.subnets.views(node_info.identity()),
            given_twice=self.other_daemon.given_twice,
            owed=self.policy.due if self.policy else dict,
            cut_off=self.host_network.cut_off,
            unplaced=self.quarantine.cut_off,
            trunk=lambda: (pool.enis.book.trunk() or [None])[0],
            waiting_branches=lambda: len(self.branches.waiting_keys()) if self.branches else 0,
            limits_of=from_table,
            primary_carries_pods=custom is None or custom.primary_carries_pods,
            version=__version__,
        )

    def _cloud_view(self) -> CloudView:
        """What EC2 last said, and what it is being asked now: a call with its retries lasts up to a minute."""
        reachable, detail = self.adapters.node_info.cloud
        for call in self.adapters.ec2.calls_under_way():
            detail += f"; {call.api} for {call.subject} is at work for {call.age_s:.0f} s"
            detail += f", refused {counted(call.refusal_count, 'time')}, last: {call.last_refusal}" if call.refusal_count else ""
        return CloudView(
            reachable=reachable,
            call_count=sum(report.count for report in self.adapters.ec2.call_reports().values()),
            detail=printable(detail),
        )


def compose_pool(
    context: ServiceContext,
    cooldown: Cooldown,
    adapters: Adapters,
    current: CurrentSettings,
    *,
    unplaced: Callable[[], frozenset[str]] = frozenset,
    list_soon: Callable[[], None] = lambda: None,
    on_cut_off: Callable[[], None] = lambda: None,
) -> PoolServices:
    """Make the rooms `eni` and `pool`; the fleet simulation makes these alone, for each of its nodes."""
    node_info, settings, is_intact = adapters.node_info, current.now, adapters.opened.report.is_intact
    identity, ec2, book = node_info.identity, adapters.ec2, EniBook(context)
    remember_released(book, (adapters.opened.datastore if is_intact else adapters.history).read_since, adapters.clock)
    subnets = _subnets(context, adapters, settings, book=book, limits=Limits(context, ec2=ec2))
    resyncs = ResyncScheduler(context, unplaced=unplaced)
    enis = EniService(
        context,
        book=book,
        ec2=ec2,
        hostnet=adapters.hostnet,
        cooldown=cooldown,
        resyncs=resyncs,
        identity=identity,
        exclusion=subnets.exclusion,
        on_quarantined=list_soon,
        is_datastore_lost=adapters.is_datastore_lost,
        family=settings.network.family,
    )
    provisioner = EniProvisioner(
        context,
        ec2=ec2,
        enis=enis,
        subnets=subnets,
        tags=lambda: EniTags(settings.cloud.cluster_name, current.now.cloud.additional_tags),
        identity=identity,
        refresh_identity=node_info.refresh_identity,
    )
    if settings.cloud.leaked_eni_cleanup_disabled:
        provisioner.leaked_enis.disable()
    maintainer = PoolMaintainer(
        context,
        provisioner=provisioner,
        branches=_branches(context, ec2, book, on_cut_off) if settings.network.pod_eni else None,
        security_groups=SecurityGroups(context, ec2=ec2, book=book, follows_primary=subnets.follows_primary),
        identity=identity,
        settings=settings.pool_settings(max_pods=0),
    )
    return PoolServices(enis, provisioner, resyncs, maintainer, subnets)


def _branches(context: ServiceContext, ec2: Ec2, book: EniBook, on_cut_off: Callable[[], None]) -> BranchComparison:
    """Who compares branch ENIs with EC2; it is imported only where there may be some."""
    from ipamd.eni.branches import BranchComparison

    return BranchComparison(context, ec2=ec2, book=book, on_change=on_cut_off)


def _subnets(context: ServiceContext, adapters: Adapters, settings: Settings, *, book: EniBook, limits: Limits) -> Subnets:
    return Subnets(
        context,
        ec2=adapters.ec2,
        policy=SubnetPolicy(
            settings.subnets.discovery, settings.cloud.cluster_name, adapters.custom_network, settings.network.ipv6
        ),
        limits=limits,
        identity=adapters.node_info.identity,
        groups_of=lambda eni_id: book.of(eni_id).security_groups,
    )
