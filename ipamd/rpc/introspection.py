"""The introspection servicer: one method per RPC, each turning what `Sources` knows into a reply.

`Freeze` and `Thaw` change whether the pool is frozen; everything else changes nothing. `GetHistory` reads the ledger and
the history on disk, `Explain` these and the kernel, `Audit` the kernel, the runtime and EC2; all other answers come from memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from ipaddress import IPv4Network

import grpc

from ipamd.core.freeze import FreezeControl
from ipamd.migration.export import ExportService
from ipamd.model.address import Address, AddressState
from ipamd.model.eni import Eni
from ipamd.model.errors import InvalidRequestError, NotServingError
from ipamd.model.kernel import DROP_REASONS
from ipamd.model.placement import eni_limit
from ipamd.model.redaction import without_secrets
from ipamd.model.snapshot import eni_place
from ipamd.model.stock import PoolCounts
from ipamd.model.words import rfc3339
from ipamd.pb import introspection_pb2 as pb
from ipamd.pb import introspection_pb2_grpc
from ipamd.report.sources import Sources
from ipamd.report.verdict import facts, verdict
from ipamd.rpc.past import FROM_DAEMON, entry, history_reply, question_of
from ipamd.rpc.planning import capacity_reply, plan_reply, targets
from ipamd.settings import ConfigLine
from ipamd.settings.current import INVALID_SETTINGS

EXPLAIN_LIMIT = 50
"""Entries behind an explanation. Ours: a screen."""

IN_FORCE = "settings in force in the daemon"


class IntrospectionServicer(introspection_pb2_grpc.IntrospectionServicer):
    """Serves `vpc_ipamd.v1.Introspection`."""

    def __init__(self, sources: Sources, control: FreezeControl, export: ExportService) -> None:
        self._sources = sources
        self._control = control
        self._export = export

    def GetStatus(self, request: pb.GetStatusRequest, context: grpc.ServicerContext) -> pb.GetStatusReply:  # noqa: ARG002  # gRPC's signature
        """Report phase, start-up stages, pool, runtime, EC2, last error."""
        sources, health = self._sources, self._sources.health
        known = facts(sources)
        reply = pb.GetStatusReply(
            version=sources.version,
            instance_id=sources.instance_id(),
            alive=True,
            ready=known.is_ready,
            phase=known.phase,
            uptime_s=health.uptime_s(),
            stages=[pb.Stage(name=s.name, state=s.state, elapsed_ms=s.elapsed_ms, detail=s.detail) for s in known.stages],
            pool=self._pool(known.assignable_count),
            runtime=self._runtime(),
            lacks=sorted(known.conditions.values()),
            spooled_count=sources.spool.pending_count(),
            dying_count=sources.dying_count(),
            verdict=verdict(known),
            freezings=self._freezings(),
            settings=self._settings(known.conditions),
            busy=[
                pb.Busy(
                    container_id=held.key.container_id,
                    ifname=held.key.ifname,
                    operation=held.operation,
                    age_s=held.age_s,
                    waiting_count=held.waiting_count,
                    caller_left=held.caller_left,
                )
                for held in sources.locks.held()
            ],
        )
        dropped = sources.dropped_packets()
        confinement = pb.Confinement(
            source_checked=sources.is_source_checked(),
            dropped=[pb.Dropped(reason=reason, count=dropped[reason]) for reason in DROP_REASONS if reason in dropped],
        )
        reply.confinement.CopyFrom(confinement)
        reply.subnets.extend(
            pb.Subnet(subnet_id=one.subnet_id, free_count=one.free_count, why_not=one.why_not) for one in sources.subnets()
        )
        cloud = sources.cloud()
        reply.cloud.CopyFrom(pb.Cloud(reachable=cloud.reachable, call_count=cloud.call_count, detail=cloud.detail))
        last = health.last_error()
        if last is not None:
            reply.last_error.CopyFrom(pb.LastError(at=rfc3339(last.at), what=last.what, message=last.message))
        return reply

    def ListEnis(self, request: pb.ListEnisRequest, context: grpc.ServicerContext) -> pb.ListEnisReply:  # noqa: ARG002  # gRPC's signature
        """List ENIs with their addresses counted by state."""
        limits = self._sources.pool.limits
        rows: dict[str, list[Address]] = {}
        snapshot, frozen = self._sources.datastore.snapshot(), self._sources.frozen()
        for row in snapshot.addresses.values():
            rows.setdefault(row.eni_id, []).append(row)
        return pb.ListEnisReply(
            enis=[
                _eni(eni, rows.get(eni.eni_id, []), limits.slots_per_eni if limits else 0, frozen.get(eni.eni_id, ""))
                for eni in sorted(snapshot.enis.values(), key=eni_place)
            ]
        )

    def ListAttachments(self, request: pb.ListAttachmentsRequest, context: grpc.ServicerContext) -> pb.ListAttachmentsReply:  # noqa: ARG002  # gRPC's signature
        """List attachments, oldest first."""
        datastore = self._sources.datastore
        return pb.ListAttachmentsReply(
            attachments=[
                pb.Attachment(
                    container_id=row.key.container_id,
                    ifname=row.key.ifname,
                    address=str(row.address),
                    eni_id=row.eni_id,
                    host_veth=row.host_veth,
                    netns=row.netns,
                    sandbox_name=row.sandbox_name,
                    created_at=rfc3339(row.created_at),
                    origin=row.origin,
                    lost_since=_lost_since(datastore.address(row.address)),
                )
                for row in datastore.attachments()
            ]
        )

    def GetHistory(self, request: pb.GetHistoryRequest, context: grpc.ServicerContext) -> pb.GetHistoryReply:
        """List what happened to an address, a pod or a sandbox, oldest first, and who had which address when."""
        try:
            question = question_of(request, limit=request.limit)
            return history_reply(self._sources.past.ask(question), question, source=FROM_DAEMON)
        except InvalidRequestError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise

    def GetConfig(self, request: pb.GetConfigRequest, context: grpc.ServicerContext) -> pb.GetConfigReply:  # noqa: ARG002  # gRPC's signature
        """List the settings that are in force."""
        return pb.GetConfigReply(settings=[setting(line) for line in self._sources.config()], origin_note=IN_FORCE)

    def latest_entries(self, limit: int) -> list[pb.LedgerEntry]:
        """The last `limit` entries of the ledger, oldest first; for the page, no RPC. Raises: DatastoreError."""
        return [entry(record) for record in self._sources.past.latest(limit)]

    def Audit(self, request: pb.AuditRequest, context: grpc.ServicerContext) -> pb.AuditReply:  # noqa: ARG002  # gRPC's signature
        """Cross-check datastore, kernel, CRI and EC2."""
        report = self._sources.audit.audit(ask_ec2=not request.skip_ec2)
        return pb.AuditReply(
            findings=[
                pb.Finding(severity=found.severity, subject=found.subject, what=found.what, next=found.next)
                for found in report.findings
            ],
            silent=report.silent,
            address_count=report.address_count,
        )

    def Explain(self, request: pb.ExplainRequest, context: grpc.ServicerContext) -> pb.ExplainReply:
        """Explain why an address or a sandbox is as it is."""
        try:
            explanation = self._sources.explain.explain(question_of(request, limit=EXPLAIN_LIMIT))
        except InvalidRequestError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        return pb.ExplainReply(
            subject=explanation.subject,
            sentences=explanation.sentences,
            history=[entry(record) for record in explanation.past.records],
            notes=explanation.past.notes,
            source=FROM_DAEMON,
        )

    def Freeze(self, request: pb.FreezeRequest, context: grpc.ServicerContext) -> pb.FreezeReply:  # noqa: ARG002  # gRPC's signature
        """Freeze the pool until `Thaw` or the next boot."""
        problem = self._control.freeze(request.reason)
        return pb.FreezeReply(freezings=self._freezings(), problem=problem)

    def Thaw(self, request: pb.ThawRequest, context: grpc.ServicerContext) -> pb.ThawReply:  # noqa: ARG002  # gRPC's signature
        """End what `Freeze` began."""
        problem = self._control.thaw()
        return pb.ThawReply(freezings=self._freezings(), problem=problem)

    def Export(self, request: pb.ExportRequest, context: grpc.ServicerContext) -> pb.ExportReply:  # noqa: ARG002  # gRPC's signature
        """Give the node back to amazon-vpc-cni-k8s, or keep it after all."""
        done = self._export.undo() if request.undo else self._export.export()
        return pb.ExportReply(steps=done.steps, problems=done.problems, exported_count=done.exported_count)

    def _freezings(self) -> list[pb.Freezing]:
        return [pb.Freezing(cause=one.cause, reason=one.reason, since=rfc3339(one.since_at)) for one in self._sources.freezings()]

    def Plan(self, request: pb.PlanRequest, context: grpc.ServicerContext) -> pb.PlanReply:
        """Tell what the pool would do now, also under other settings or on another type. Nothing is changed."""
        try:
            what = self._sources.what_if.plan(tuple(request.settings), instance_type=request.instance_type)
        except InvalidRequestError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        except NotServingError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise
        return plan_reply(what, changed=[*request.settings, *([request.instance_type] if request.instance_type else [])])

    def Capacity(self, request: pb.CapacityRequest, context: grpc.ServicerContext) -> pb.CapacityReply:  # noqa: ARG002  # gRPC's signature
        """Tell how many pods this node can hold in each mode."""
        try:
            limits, bounds, modes = self._sources.what_if.capacity()
        except NotServingError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise
        return capacity_reply(limits, modes, vcpu_count=bounds.vcpu_count)

    def _settings(self, conditions: Mapping[str, str]) -> pb.SettingsState:
        generation = self._sources.settings.generation
        return pb.SettingsState(
            generation=generation.number,
            file=generation.settings.daemon.settings_file,
            needs_restart=generation.needs_restart,
            valid=INVALID_SETTINGS not in conditions,
        )

    def _pool(self, assignable_count: int) -> pb.Pool:
        sources = self._sources
        counts: PoolCounts = sources.datastore.counts()
        limits, settings, status = sources.pool.limits, sources.pool.settings, sources.demand.status()
        auto = sources.pool.auto
        return pb.Pool(
            total_count=counts.total,
            lost_count=counts.lost,
            assignable_count=assignable_count,
            free_count=counts.free,
            reserved_count=counts.reserved,
            assigned_count=counts.assigned,
            cooling_count=counts.cooling,
            quarantined_count=counts.quarantined,
            eni_count=len(sources.datastore.enis()),
            eni_limit=eni_limit(limits, settings) if limits else 0,
            slots_per_eni=limits.slots_per_eni if limits else 0,
            last_cycle=status.sentence,
            excess_count=status.excess_count,
            kept=status.kept,
            targets=targets(settings),
            auto=str(auto) if auto is not None else "",
        )

    def _runtime(self) -> pb.Runtime:
        view, info = self._sources.runtime_view(), self._sources.runtime()
        reply = pb.Runtime(list_age_s=-1.0, detail="CRI is off: nothing is reaped" if view is None else view.detail)
        if info is not None:
            reply.MergeFrom(pb.Runtime(socket=info.socket, name=info.name, version=info.version))
        if view is not None:
            reply.reachable, reply.events = view.reachable, view.events
            reply.sandbox_count, reply.list_age_s = view.sandbox_count, view.list_age_s
        return reply


def setting(line: ConfigLine) -> pb.Setting:
    """Spell one setting, without the credentials that a URL may hold."""
    return pb.Setting(env=line.env, value=without_secrets(line.value), default=line.default, origin=line.origin, text=line.text)


def _lost_since(row: Address | None) -> str:
    return rfc3339(row.lost_since) if row is not None and row.lost_since is not None else ""


def _eni(eni: Eni, rows: list[Address], slot_count: int, frozen: str) -> pb.Eni:
    states = Counter(row.state for row in rows if not row.is_lost)
    prefixes: set[IPv4Network] = {row.prefix for row in rows if row.prefix is not None}
    return pb.Eni(
        eni_id=eni.eni_id,
        mac=eni.mac,
        device_index=eni.device_index,
        network_card=eni.network_card,
        primary=eni.is_primary,
        state=eni.state if eni.managed else "unmanaged",
        subnet_id=eni.subnet_id,
        subnet_cidr=str(eni.subnet_cidr),
        primary_address=str(eni.primary_address),
        slot_count=slot_count,
        free_count=states[AddressState.FREE],
        reserved_count=states[AddressState.RESERVED],
        assigned_count=states[AddressState.ASSIGNED],
        cooling_count=states[AddressState.COOLING],
        quarantined_count=states[AddressState.QUARANTINED],
        lost_count=sum(row.is_lost for row in rows),
        frozen=frozen,
        excluded=eni.excluded,
        route_table=eni.route_table,
        host_ready=eni.host_ready,
        prefixes=[str(prefix) for prefix in sorted(prefixes)],
    )
