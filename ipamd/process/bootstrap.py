"""Make the services of the daemon and connect them with the adapters, package by package.

Tests make the same services over fake adapters, so they test the composition that ships. A restarted daemon must serve DEL at once. So
this module imports nothing that takes long to import and that DEL does not need. botocore is imported only in the child process that
calls EC2, and the HTTP ports are imported when DEL is served already (docs/life.md, Start).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property, partial
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

from ipamd import __version__
from ipamd.cloud.limits import from_table
from ipamd.core.backoffs import Backoffs
from ipamd.core.context import ServiceContext
from ipamd.core.deadline import Deadline
from ipamd.core.demand import Demand, delay
from ipamd.core.freeze import Freeze
from ipamd.core.key_locks import KeyLocks
from ipamd.core.refused_adds import RefusedAdds
from ipamd.eni.book import EniBook
from ipamd.eni.earlier_changes import remember_released
from ipamd.eni.enis import EniService
from ipamd.eni.external_changes import CloudReconciler
from ipamd.eni.limits import Limits
from ipamd.eni.links import LinkWatch
from ipamd.eni.provisioner import PAUSE, EniProvisioner
from ipamd.eni.resync import ResyncScheduler
from ipamd.eni.security_groups import SecurityGroups
from ipamd.eni.subnets import Subnets
from ipamd.host.first_conflist import followed_chain
from ipamd.host.freeze_files import OperatorFreeze
from ipamd.host.network import HostNetworkReconciler
from ipamd.host.plugin_chain import PluginChain
from ipamd.host.triggers import PassScope
from ipamd.metrics.counts import Counts
from ipamd.metrics.page import Metrics
from ipamd.migration.backend import CniBackendServer, CniBackendServicer
from ipamd.migration.export import ExportService
from ipamd.migration.handover import OtherDaemon
from ipamd.migration.importing import ImportService
from ipamd.migration.legs.branch import BranchImport
from ipamd.migration.legs.egress import EgressImport
from ipamd.migration.legs.pool import PoolImport
from ipamd.model.companions import Companions
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.enforcing_mode import EnforcingMode
from ipamd.model.eni_tags import EniTags
from ipamd.model.errors import SUPPLY, UNFILTERED, log_text
from ipamd.model.family import IPV4, IPV6, IpAddress
from ipamd.model.freeze import FreezeCause
from ipamd.model.growth_state import GrowthRefusal
from ipamd.model.ids import EniId, PodName
from ipamd.model.kernel_numbers import STRICT_VETH_PREFIX
from ipamd.model.pinned_address import PinnedWish
from ipamd.model.pod_snat_choice import PodSnatChoice
from ipamd.model.pool_counts import assignable_count
from ipamd.model.record import dataclass
from ipamd.model.repeats import NO_REPEATS, Repeats
from ipamd.model.sandbox import RuntimeView
from ipamd.model.subnets import SubnetPolicy
from ipamd.model.words import counted, printable
from ipamd.pool.maintainer import PoolMaintainer
from ipamd.process.adapters import Adapters
from ipamd.report.sources import CloudView, Sources
from ipamd.rpc.cni import CniServicer, SandboxServices
from ipamd.sandbox.attach import AttachService
from ipamd.sandbox.check import CheckService
from ipamd.sandbox.cooldown import Cooldown
from ipamd.sandbox.detach import DetachService
from ipamd.sandbox.gc import GcService
from ipamd.sandbox.judge import SandboxJudge
from ipamd.sandbox.legs.pool import PoolSource
from ipamd.sandbox.multi_nic_choice import MultiNicChoice
from ipamd.sandbox.pinned_address_choice import PinnedAddressChoice
from ipamd.sandbox.pod_pool_choice import PodPoolChoice
from ipamd.sandbox.quarantine import QuarantineService
from ipamd.sandbox.repeated_adds import RepeatedAdds
from ipamd.sandbox.runtime import RuntimeReconciler
from ipamd.sandbox.spooled_deletes import SpooledDeletes
from ipamd.sandbox.startup import StartupReconciler
from ipamd.sandbox.veth_names import VethNames
from ipamd.settings import CurrentSettings, NetworkConfig, Settings

if TYPE_CHECKING:
    from ipamd.eni.legs.branches import BranchComparison
    from ipamd.eni.pinned import PinnedAddresses
    from ipamd.policy.hook import PolicyHook
    from ipamd.ports.cloud import Ec2
    from ipamd.rpc.introspection import IntrospectionServicer
    from ipamd.sandbox.legs.branch import BranchSource
    from ipamd.sandbox.legs.pinned import PinnedSource
    from ipamd.sandbox.legs.source import LegSource

DEL_SHARE = 4
"""ADDs may occupy all places for requests except one in this many, so that DEL is served while ADDs wait for addresses. Ours: an ADD
may wait for a minute, but a DEL waits for no address, so a quarter of the places is enough for DELs."""


@dataclass(frozen=True, slots=True)
class PoolServices:
    """The services of the packages `eni` and `pool`. `pinned`: None if no pod may ask for addresses."""

    enis: EniService
    provisioner: EniProvisioner
    resyncs: ResyncScheduler
    maintainer: PoolMaintainer
    subnets: Subnets
    pinned: PinnedAddresses | None = None


class App:
    """All services of the daemon, composed over the adapters.

    Composing them starts no thread. Some services read records: the addresses that were released lately, the recorded sandboxes, and,
    if the datastore was lost, the survey of the kernel.

    These are None if the settings turn them off: `runtime` (the container runtime over CRI), `cni_backend` (the socket for the plugin
    and the policy agent of amazon-vpc-cni-k8s), `policy` (calls to the policy agent), `branches` (branch ENIs for pods), `pinned`
    (addresses that pods ask for).
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
            backoffs=Backoffs(adapters.clock, is_urgent=lambda: demand.waiting()[0] > 0),
            failpoint=adapters.failpoint,
        )
        adapters.opened.datastore.keep_history(adapters.history)
        adapters.opened.datastore.pin(pinned_cidrs(current.now.network))
        self.refused = RefusedAdds(history=adapters.history, clock=adapters.clock)
        self.metrics = Metrics()
        self.companions = Companions()
        self.cooldown = Cooldown(context, connections=adapters.connections, period_s=lambda: float(current.now.pool.cooldown_s))
        self.policy = self._policy()
        self._serve_sandboxes()
        self.pool = compose_pool(
            context,
            self.cooldown,
            adapters,
            current,
            # Only sandboxes with addresses of the pool: a Describe of the instance never shows branch ENIs, so a resync would not help
            # sandboxes with branch ENIs.
            unplaced=partial(self.quarantine.unplaced, is_of_pool=True),
            list_soon=self._list_soon,
            on_cut_off=lambda: self.host_network.mark(PassScope.EVERYTHING),
            look_for_other_daemon=self.other_daemon.check,
            repeats=self.repeated_adds.repeats,
        )
        self._follow_others()
        self._apply_restrictions()
        self._serve_questions()

    def _list_soon(self) -> None:
        """Request a list of the runtime's sandboxes soon, if CRI is on."""
        if self.runtime is not None:
            self.runtime.list_soon()

    def _apply_restrictions(self) -> None:
        """Freeze the pool if DISABLE_NETWORK_RESOURCE_PROVISIONING is set. Report it as a condition if the settings leave pods without
        network policy. These settings take effect only at a start, so this is done once.
        """
        settings, context = self.current.now, self.context
        if settings.pool.provisioning_disabled:
            context.freeze.set(FreezeCause.SETTING, "DISABLE_NETWORK_RESOURCE_PROVISIONING=true")
        if settings.policy.is_unfiltered:
            cause = f"NETWORK_POLICY_ENFORCING_MODE={settings.policy.mode}, VPC_IPAMD_POLICY_AGENT=absent"
            context.health.report(UNFILTERED, problem(ConditionCode.PODS_UNFILTERED, settings=cause))

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.current.now

    @property
    def rpc_limit(self) -> int:
        """The largest number of requests at once.

        It is the value of the setting `max_concurrent_rpcs`, plus the numbers of ADDs that may wait for a branch ENI or for an address
        that their pod asks for.
        """
        limit = self.settings.daemon.max_concurrent_rpcs
        if self.branches is not None:
            limit += self.branches.waiting_limit
        if self.pinned is not None:
            limit += self.pinned.waiting_limit
        return limit

    def _policy(self) -> PolicyHook | None:
        """Make the hook that calls the network policy agent; None, without importing its code, if no setting needs it."""
        agent, settings = self.adapters.policy_agent, self.current.now
        if agent is None:
            return None
        from ipamd.policy.hook import PolicyHook

        is_unsure, prefix = self.adapters.is_datastore_lost, settings.network.veth_prefix
        return PolicyHook(self.context, agent=agent, mode=settings.policy.mode, prefix=prefix, is_unsure=is_unsure)

    def _branches(self, names: Callable[..., VethNames]) -> BranchSource | None:
        """Make the source that decides which sandboxes get branch ENIs; None, without importing its code, if no setting needs it."""
        network, source = self.current.now.network, self.adapters.pod_facts
        if source is None or network.enforcing_mode is None:
            return None
        from ipamd.sandbox.legs.branch import BranchSource

        own_prefix = ""
        if network.enforcing_mode is EnforcingMode.STRICT:
            own_prefix = STRICT_VETH_PREFIX
        return BranchSource(
            self.context,
            source=source,
            mode=network.enforcing_mode,
            family=network.family,
            mtu=lambda: self.current.now.network.sandbox_mtu,
            names=names(is_by_pod=True, own_prefix=own_prefix),
            cooldown=self.cooldown,
            trunk_mac=lambda: self.pool.enis.trunk_mac(),
            unplaced=lambda: self.quarantine.unplaced(is_of_pool=False),
            snat=self._snat_choice(),
            pinned=self._pinned_choice(),
            pools=self._pool_choice(),
            cards=self._multi_nic_choice(),
        )

    def _pinned_choice(self) -> PinnedAddressChoice:
        network = self.current.now.network
        return PinnedAddressChoice(
            network.pinned_ranges,
            network.pinned_take_namespaces,
            network.pinned_kept_max_s,
            network.family,
            self.adapters.network_file.addresses,
        )

    def _pinned_source(self, pool: PoolSource) -> PinnedSource | None:
        """Make the source that gives pods the addresses that they ask for.

        Returns: None, without importing its code, if no setting lets pods ask for addresses.
        """
        if not self.current.now.network.pinned_ranges:
            return None
        from ipamd.sandbox.legs.pinned import PinnedSource

        return PinnedSource(
            self.context,
            choice=self._pinned_choice(),
            pools=self._pool_choice(),
            pool=pool,
            cooldown=self.cooldown,
            obtain=lambda wish, address, deadline: self._obtain(wish, address, deadline),
            is_certain=lambda wish, address: self.pool.pinned is None or self.pool.pinned.is_certain(wish, address),
        )

    def _obtain(self, wish: PinnedWish, address: IpAddress, deadline: Deadline) -> None:
        """Wait until the pool's thread has obtained an address from EC2."""
        if self.pool.pinned is not None:  # it is None with IPv6, but then this pod has been refused already
            self.pool.pinned.obtain(wish, address, deadline)

    def _pool_choice(self) -> PodPoolChoice:
        subnets = self.current.now.subnets
        return PodPoolChoice(subnets.pod_pools, subnets.pool_annotations)

    def _multi_nic_choice(self) -> MultiNicChoice:
        network = self.current.now.network
        return MultiNicChoice(
            is_on=network.multi_nic,
            namespaces=network.multi_nic_namespaces,
            cards=lambda: self.pool.maintainer.managed_cards(),
        )

    def _snat_choice(self) -> PodSnatChoice:
        network = self.current.now.network
        return PodSnatChoice(
            network.snat_annotation_namespaces, network.snat_exempt_pods, network.snat_forced_pods, network.family
        )

    def _serve_sandboxes(self) -> None:
        """Make the services of the CNI verbs, and the services that maintain sandboxes without a request."""
        context, cooldown, adapters, current = self.context, self.cooldown, self.adapters, self.current
        runtime, judge, prefix = adapters.runtime, SandboxJudge(context), current.now.network.veth_prefix
        self.sandbox = self._verbs(judge)
        self.spooled_deletes = SpooledDeletes(context, spool=adapters.spool, detach=self.sandbox.detach)
        self.other_daemon = OtherDaemon(context, aws_node=adapters.aws_node)
        self.imported = self._import(prefix)
        self.quarantine = QuarantineService(context, cooldown=cooldown, judge=judge, mtu=lambda: current.now.network.sandbox_mtu)
        self.runtime: RuntimeReconciler | None = None
        if runtime is not None:
            self.runtime = RuntimeReconciler(
                context,
                runtime=runtime,
                detach=self.sandbox.detach,
                quarantine=self.quarantine,
                imported=self.imported,
                on_info=adapters.node_info.set_runtime,
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

    def _import(self, prefix: str) -> ImportService:
        """Make the service that imports sandboxes of amazon-vpc-cni-k8s, for every kind of leg that they may have."""
        context, adapters, network = self.context, self.adapters, self.current.now.network
        adoption, failpoint = adapters.adoption, context.failpoint
        other_family = IPV6
        if network.family is IPV6:
            other_family = IPV4
        extra = (EgressImport(adoption, adapters.aws_node, family=other_family, failpoint=failpoint),)
        branch = BranchImport(adoption, is_on=network.pod_eni, pod_facts=adapters.pod_facts, prefix=prefix, failpoint=failpoint)
        pool = PoolImport(adoption, context.datastore, extra=extra, prefix=prefix, failpoint=failpoint)
        return ImportService(
            context,
            aws_node=adapters.aws_node,
            kinds=(branch, pool),
            extra=extra,
            other=self.other_daemon,
            prefix=prefix,
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
        self.repeated_adds = RepeatedAdds(context.datastore, has_reaper=runtime is not None)
        pool = PoolSource(
            context,
            cooldown=cooldown,
            mtu=lambda: current.now.network.sandbox_mtu,
            egress=lambda: adapters.hostnet.extra_family()[0],
            delay=lambda: delay(adapters.ec2, context.clock),
            names=names(is_by_pod=is_by_pod),
            pod_names=names(is_by_pod=True),
            repeated=self.repeated_adds,
            snat=self._snat_choice(),
            pools=self._pool_choice(),
            has_source_tree=adapters.hostnet.has_source_tree,
            request_list=self._list_soon,
        )
        conflist_directory = current.now.daemon.conflist_path.parent
        chain = PluginChain(conflist_directory, followed=lambda: followed_chain(current.now))
        self.pinned = self._pinned_source(pool)
        sources: list[LegSource] = [source for source in (self.branches, self.pinned) if source is not None]
        self.pool_empty = pool.pool_empty
        attach = AttachService(
            context,
            cooldown=cooldown,
            pool=pool,
            sources=sources,
            waiting_limit=max(current.now.daemon.max_concurrent_rpcs * (DEL_SHARE - 1) // DEL_SHARE, 1),
            require_chain=lambda request: chain.require_plugins(request.plugin_directories),
            policy=self.policy,
            cards=self._multi_nic_choice(),
        )
        check = CheckService(context, hostnet=adapters.hostnet, identity=adapters.node_info.identity)
        return SandboxServices(attach, detach, check, GcService(context, runtime=runtime, judge=judge, detach=detach))

    def _follow_others(self) -> None:
        """Make the services that follow changes on the node and at EC2, and the services of the migration."""
        context, adapters, enis, resyncs = self.context, self.adapters, self.pool.enis, self.pool.resyncs
        node_info, hostnet, settings = adapters.node_info, adapters.hostnet, self.current.now
        self.host_network = HostNetworkReconciler(
            context, hostnet=hostnet, quarantine=self.quarantine, enis=enis, identity=node_info.identity
        )
        self.current.follow(lambda now: now.network, lambda _: self.host_network.mark(PassScope.EVERYTHING))
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
        """Make the server for the plugin and the policy agent of amazon-vpc-cni-k8s, on one socket, in place of its daemon.

        Returns: None if the settings require neither the socket for that plugin nor a policy agent.
        """
        takeover, policy = self.current.now.takeover, self.current.now.policy
        if not (takeover.cni_backend_socket or self.policy):
            return None
        servicer, further_services = None, []
        policy_mode = ""
        if self.policy:
            policy_mode = policy.mode
        if takeover.cni_backend_socket:
            servicer = CniBackendServicer(
                self.sandbox,
                datastore=self.context.datastore,
                clock=self.context.clock,
                uses_external_snat=lambda: self.current.now.network.external_snat,
                policy_mode=policy_mode,
                refused=self.refused.record_refusal,
            )
        if self.policy:
            from ipamd.policy.agent import ConfigServicer

            config_servicer = ConfigServicer(
                mode=policy.mode,
                family=self.current.now.network.family,
                identity=self.adapters.node_info.identity,
                metadata=self.adapters.metadata,
                health=self.context.health,
                clock=self.context.clock,
                has_cards=self.current.now.network.multi_nic,
            )
            further_services.append(config_servicer.add_to)
        return CniBackendServer(servicer, path=Path(takeover.questions_socket), further_services=further_services)

    def _serve_questions(self) -> None:
        """Make the services for other programs: the CNI service for the plugin, the sources of reports, and the metrics."""
        context, adapters = self.context, self.adapters
        sources = self._make_sources()
        counts = Counts(
            ec2=adapters.ec2,
            replayed=lambda: self.sandbox.attach.replayed_count,
            pool_empty=self.pool_empty,
            looks=self.pool.resyncs.counts,
            repairs=self.host_network.repair_backoff.counts,
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
        self._sources = sources

    @cached_property
    def introspection(self) -> IntrospectionServicer:
        """The service that `ipamctl` calls. Its code is imported at the first call."""
        from ipamd.rpc.introspection import IntrospectionServicer

        return IntrospectionServicer(
            self._sources,
            freeze=self.operator.freeze,
            thaw=self.operator.thaw,
            export=self.export.export,
            undo_export=self.export.undo,
            retry=self._retry,
            retry_outcomes=self.pool.subnets.limits.retry_outcomes,
            compared=self.pool.enis.end_unseen,
        )

    def _retry(self) -> list[tuple[str, GrowthRefusal]]:
        """End the pauses after refusals of EC2, so that the refused calls are repeated now, and have the subnets described again.

        Safe from any thread.

        Returns: for each pause that was ended, its subject and the refusal.
        """
        failures = {(PAUSE, intent_id): log_text(error) for intent_id, error in self.pool.provisioner.failures().items()}
        self.pool.subnets.describe_again()
        ended = self.pool.subnets.limits.retry(failures | self.pool.maintainer.security_groups.refusals())
        self.context.demand.trigger()
        self.pool.resyncs.changed.set()
        return ended

    def _make_sources(self) -> Sources:
        context, adapters, pool, runtime = self.context, self.adapters, self.pool, self.runtime
        return Sources(
            clock=context.clock,
            health=context.health,
            datastore=context.datastore,
            history=adapters.history,
            spool=adapters.spool,
            wiring=context.wiring,
            hostnet=adapters.hostnet,
            paths=adapters.paths,
            ec2=adapters.ec2,
            cri=adapters.runtime,
            locks=context.locks,
            demand=context.demand,
            refused=self.refused,
            pool=pool.maintainer,
            settings=self.current,
            identity=adapters.node_info.identity,
            dying_count=self.cooldown.dying_count,
            runtime_view=self._runtime_view,
            runtime=adapters.node_info.runtime,
            judgement=None if runtime is None else runtime.present_judgement,
            quarantined=None if runtime is None else runtime.present_verdicts,
            missing_count=None if runtime is None else self.quarantine.judge.missing_count,
            cloud=self._cloud_view,
            recent=lambda: pool.enis.book.added().keys(),
            frozen=pool.enis.routing.frozen,
            left_detached=lambda: tuple(pool.enis.left_detached),
            freezings=context.freeze.in_force,
            subnets=lambda: pool.subnets.views(adapters.node_info.identity()),
            given_twice=self.other_daemon.given_twice,
            pending_policy_cleanups=self._pending_policy_cleanups,
            cut_off=self.host_network.cut_off,
            unplaced=self.quarantine.without_network,
            trunk=self._trunk_eni,
            waiting_for_uplink=self._waiting_branch_count,
            limits_of=from_table,
            refusal_ages=pool.subnets.limits.refusal_ages,
            companions=lambda: self.companions.seen,
            groups_of=lambda eni_id: pool.enis.book.facts_of(eni_id).security_groups,
            tracking_of=lambda eni_id: pool.enis.book.facts_of(eni_id).connection_tracking,
            primary_carries_pods=self._primary_carries_pods(),
            snat_choice=self._snat_choice(),
            network_file=adapters.network_file,
            network_judge=pool.subnets,
            version=__version__,
        )

    def _primary_carries_pods(self) -> bool:
        custom = self.adapters.network_file.custom
        return custom is None or custom.primary_carries_pods

    def _runtime_view(self) -> RuntimeView | None:
        if self.runtime is None:
            return None
        return self.runtime.view()

    def _pending_policy_cleanups(self) -> Mapping[PodName, datetime]:
        if self.policy is None:
            return {}
        return self.policy.pending_cleanups()

    def _trunk_eni(self) -> EniId | None:
        trunk = self.pool.enis.book.trunk()
        if trunk is None:
            return None
        eni_id, _ = trunk
        return eni_id

    def _waiting_branch_count(self) -> int:
        if self.branches is None:
            return 0
        return len(self.branches.waiting_keys())

    def _cloud_view(self) -> CloudView:
        """Describe the last answer of EC2, and the calls that are running, because with its retries a call takes up to a minute."""
        reachable, detail = self.adapters.node_info.cloud
        if reachable and self.pool.enis.last_comparison is not None:
            at, result = self.pool.enis.last_comparison
            detail = f"last compared {(self.context.clock.now() - at).total_seconds():.0f} s ago: {result}"
        for call in self.adapters.ec2.calls_under_way():
            detail += f"; {call.api} for {call.subject} is at work for {call.age_s:.0f} s"
            if call.refusal_count:
                detail += f", refused {counted(call.refusal_count, 'time')}, last: {call.last_refusal}"
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
    look_for_other_daemon: Callable[[], object] = lambda: None,
    repeats: Callable[[], Repeats] = lambda: NO_REPEATS,
) -> PoolServices:
    """Make the services of `eni` and `pool`. The fleet simulation makes only these services, for each of its nodes."""
    settings, identity, ec2 = current.now, adapters.node_info.identity, adapters.ec2
    book = _book(context, adapters)
    branches = None
    if settings.network.pod_eni:
        branches = _branches(context, ec2, book, on_cut_off)
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
        has_cards=settings.network.multi_nic,
    )
    provisioner = _provisioner(context, adapters, current, enis=enis, subnets=subnets, check_other_daemon=look_for_other_daemon)
    pinned = _pinned(context, adapters, settings, provisioner=provisioner, resyncs=resyncs, cooldown=cooldown)
    maintainer = PoolMaintainer(
        context,
        provisioner=provisioner,
        leg_comparison=branches,
        security_groups=SecurityGroups(context, ec2=ec2, book=book, follows_primary=subnets.follows_primary),
        identity=identity,
        settings=settings.pool_settings(max_pods=0),
        repeats=repeats,
        pinned=pinned,
        pools=adapters.network_file.pools,
        has_cards=settings.network.multi_nic,
    )
    return PoolServices(enis, provisioner, resyncs, maintainer, subnets, pinned)


def _book(context: ServiceContext, adapters: Adapters) -> EniBook:
    """Make the book of ENIs.

    It gets the addresses that were released lately from the ledger, or from the history if the ledger was lost.
    """
    book = EniBook(context)
    if adapters.opened.report.is_intact:
        remember_released(book, adapters.opened.datastore.read_since, adapters.clock)
    else:
        remember_released(book, adapters.history.read_since, adapters.clock)
    return book


def _pinned(
    context: ServiceContext,
    adapters: Adapters,
    settings: Settings,
    *,
    provisioner: EniProvisioner,
    resyncs: ResyncScheduler,
    cooldown: Cooldown,
) -> PinnedAddresses | None:
    """Make the service that requests from EC2 the addresses that pods ask for; None, without importing its code, if not needed."""
    network, datastore = settings.network, context.datastore
    # Even if the setting is off, the service is needed for addresses that are still kept for pods, or that a later DEL will keep.
    has_marks = bool(datastore.pinned()) or any(attachment.kept_s is not None for attachment in datastore.attachments())
    if not (network.has_pinned_addresses or has_marks):
        return None
    from ipamd.eni.pinned import PinnedAddresses

    return PinnedAddresses(
        context,
        ec2=adapters.ec2,
        enis=provisioner.enis,
        resyncs=resyncs,
        ranges=network.pinned_ranges if network.has_pinned_addresses else (),
        identity=adapters.node_info.identity,
        release=provisioner.release,
        cooldown_s=lambda: cooldown.period.total_seconds(),
    )


def pinned_cidrs(network: NetworkConfig) -> tuple[IPv4Network, ...]:
    """Return the CIDRs of VPC_IPAMD_PINNED_ADDRESSES, of all namespaces; () for a pool of IPv6, whose pods cannot ask for an address.

    An address in one of them that is not of a delegated prefix is assigned only to a pod that asks for this very address.
    """
    if not network.has_pinned_addresses:
        return ()
    return tuple(item.cidr for item in network.pinned_ranges if item.cidr is not None)


def _provisioner(
    context: ServiceContext,
    adapters: Adapters,
    current: CurrentSettings,
    *,
    enis: EniService,
    subnets: Subnets,
    check_other_daemon: Callable[[], object],
) -> EniProvisioner:
    settings = current.now
    provisioner = EniProvisioner(
        context,
        ec2=adapters.ec2,
        enis=enis,
        subnets=subnets,
        tags=lambda: EniTags(settings.cloud.cluster_name, current.now.cloud.additional_tags),
        identity=adapters.node_info.identity,
        refresh_identity=adapters.node_info.refresh_identity,
        look_for_other_daemon=check_other_daemon,
    )
    if settings.cloud.leaked_eni_cleanup_disabled:
        provisioner.leaked_enis.disable()
    return provisioner


def _branches(context: ServiceContext, ec2: Ec2, book: EniBook, on_cut_off: Callable[[], None]) -> BranchComparison:
    """Make the service that compares branch ENIs with EC2. Its code is imported only if pods may have branch ENIs."""
    from ipamd.eni.legs.branches import BranchComparison

    return BranchComparison(context, ec2=ec2, book=book, on_change=on_cut_off)


def _subnets(context: ServiceContext, adapters: Adapters, settings: Settings, *, book: EniBook, limits: Limits) -> Subnets:
    return Subnets(
        context,
        ec2=adapters.ec2,
        policy=SubnetPolicy(
            settings.subnets.discovery, settings.cloud.cluster_name, adapters.network_file.custom, settings.network.ipv6
        ),
        answer_valid_s=settings.subnets.answer_valid_s,
        limits=limits,
        identity=adapters.node_info.identity,
        groups_of=lambda eni_id: book.facts_of(eni_id).security_groups,
        pools=adapters.network_file.pools,
    )
