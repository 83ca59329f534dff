"""The introspection servicer, which `ipamctl` calls: one method per RPC.

Five methods change something: `Freeze` and `Thaw` freeze and thaw the pool, `Retry` repeats refused EC2 calls, `Export` exports the
node to amazon-vpc-cni-k8s, and `Audit`, which reads the kernel, the runtime and EC2, ends conditions about differences that are gone.

All other methods only read `Sources`. `GetHistory` reads the ledger and the history on disk. `Explain` reads both too, and the kernel
or EC2. `Path` reads the kernel. `Plan` may call EC2 to check a subnet. `GetStatus` lists the spool, and asks the kernel whether our
nftables tables are unchanged. The answers of the remaining methods come from memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from ipamd.answers import SUBJECT_MAX, UNKNOWN, answer, capacity_reply, history_limit, history_reply, question_of
from ipamd.model.address import Address
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import EniState
from ipamd.model.errors import CloudError, DatastoreError, InvalidRequestError, NotServingError, log_text
from ipamd.model.growth_state import GrowthRefusal, RetryOutcome
from ipamd.model.history_answer import HistoryAnswer, HistoryQuestion
from ipamd.model.instance_facts import instance_facts
from ipamd.model.kernel import DROP_REASONS
from ipamd.model.placement import eni_limit
from ipamd.model.record import dataclass
from ipamd.model.redaction import without_secrets
from ipamd.model.sandbox import RuntimeInfo, RuntimeView
from ipamd.model.snapshot import eni_place
from ipamd.pb import introspection_pb2 as pb
from ipamd.report.audit import audit
from ipamd.report.explain import explain
from ipamd.report.network_plan import plan_network
from ipamd.report.past import ask, latest
from ipamd.report.path import trace_path
from ipamd.report.pod_pools import pod_pool_reports
from ipamd.report.sources import Sources
from ipamd.report.verdict import condition_reports, facts, verdict
from ipamd.report.what_if import capacity, what_if
from ipamd.rpc.path_reply import path_reply
from ipamd.rpc.plan_reply import has_prefix_mode, obstacle, plan_reply, retried, targets
from ipamd.settings import ConfigLine, describe, differences
from ipamd.settings.current import INVALID_SETTINGS
from ipamd.settings.fields import POLICY_OFF

EXPLAIN_LIMIT = 50
"""The largest number of history records below an explanation. Ours: 50 records fit on a screen."""

IN_FORCE = "settings in force in the daemon"

FROM_DAEMON = "daemon"

CRI_OFF = RuntimeView(False, False, 0, -1.0, "CRI is off: nothing is reaped", 0)

NO_RUNTIME = RuntimeInfo("", "", "")

COUNTED = ("free", "reserved", "assigned", "cooling", "quarantined")
"""States of addresses that are counted. For each state the messages have a field, which is named after the state and ends in
`_count`."""


def method_handlers(servicer: object) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """Return a handler for each method of `vpc_ipamd.v1.Introspection`.

    `servicer`: an object with a method for each RPC. A CloudError, DatastoreError, InvalidRequestError or NotServingError that it
    raises becomes the status of the call. grpcio ends a call with UNKNOWN after any other error.
    """
    service = pb.DESCRIPTOR.services_by_name["Introspection"]
    handlers = {}
    for method in service.methods:
        handlers[method.name] = grpc.unary_unary_rpc_method_handler(
            partial(_serve, servicer, method.name),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
    return handlers


def _serve(servicer: object, name: str, request: Any, context: grpc.ServicerContext) -> Any:
    try:
        return getattr(servicer, name)(request)
    except (CloudError, DatastoreError) as error:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, log_text(error))
    except InvalidRequestError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except NotServingError as error:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


@dataclass(slots=True)
class IntrospectionServicer:
    """Serves `vpc_ipamd.v1.Introspection`. Every method may raise InvalidRequestError and NotServingError. `Explain` may also raise
    CloudError, and `Explain` and `GetHistory` may raise DatastoreError.

    Args:
        sources: the sources of all reports.
        freeze, thaw: freeze and thaw the pool for an operator. They return the problem, "" if there is none.
        export, undo_export: export the node to amazon-vpc-cni-k8s, and undo that. Both return an object with the fields of
            `ExportReply`.
        retry: repeats now the EC2 calls that EC2 refused. It returns their subjects and refusals.
        retry_outcomes: returns what came of the calls that the last `retry` let be made.
        compared: called with the subjects of all findings after an audit that compared EC2's answer completely, so that conditions
            about subjects without a finding end.
    """

    sources: Sources
    freeze: Callable[[str], str]
    thaw: Callable[[], str]
    export: Callable[[], object]
    undo_export: Callable[[], object]
    retry: Callable[[], Sequence[tuple[str, GrowthRefusal]]]
    retry_outcomes: Callable[[], Sequence[RetryOutcome]]
    compared: Callable[[Collection[str]], None]

    def GetStatus(self, _: pb.GetStatusRequest) -> pb.GetStatusReply:
        """Report the phase, the start-up stages, the pool, the runtime, EC2 and the last error."""
        sources, health, generation = self.sources, self.sources.health, self.sources.settings.generation
        node, identity = facts(sources), sources.identity()
        policy_mode = POLICY_OFF
        if generation.settings.policy.is_on:
            policy_mode = generation.settings.policy.mode
        return answer(
            pb.GetStatusReply,
            node,
            sources,
            instance_id=identity.instance_id if identity else "",
            alive=True,
            ready=node.is_ready,
            uptime_s=health.uptime_s(),
            pool=self._pool(node.assignable_count),
            runtime=answer(pb.Runtime, sources.runtime_view() or CRI_OFF, sources.runtime() or NO_RUNTIME),
            stages=[answer(pb.Stage, stage, elapsed_s=stage.elapsed_ms / 1000) for stage in node.stages],
            degraded=sorted(node.conditions.values()),
            conditions=condition_reports(node),
            spooled_delete_count=sources.spool.pending_count(),
            veths_pending_deletion_count=sources.dying_count(),
            verdict=verdict(node),
            freezes=self._freezes(),
            settings=self._settings(is_valid=INVALID_SETTINGS not in node.conditions),
            busy=[answer(pb.Busy, lock, lock.key) for lock in sources.locks.holders()],
            confinement=self._confinement(),
            subnets=[answer(pb.Subnet, subnet, unusable_reason=subnet.why_not) for subnet in sources.subnets()],
            policy_mode=policy_mode,
            pending_policy_cleanup_count=len(sources.pending_policy_cleanups()),
            branches=self._branches(),
            companions=sources.companions(),
            facts=self._facts(identity),
            pod_pools=pod_pool_reports(sources),
            cloud=sources.cloud(),
            last_error=health.last_error and answer(pb.LastError, health.last_error, subject=health.last_error.subject),
        )

    def _facts(self, identity: InstanceIdentity | None) -> list[pb.Fact]:
        tracking = self.sources.tracking_of(identity.primary_eni_id) if identity else ()
        return [answer(pb.Fact, fact) for fact in instance_facts(self.sources.pool.limits, tracking)]

    def _branches(self) -> pb.Branches:
        sources = self.sources
        branches, limits, mode = sources.uplinked(), sources.pool.limits, sources.settings.now.network.enforcing_mode
        branch_limit = UNKNOWN
        if limits is not None and limits.trunk_capacity is not None:
            branch_limit = limits.trunk_capacity
        return pb.Branches(
            mode=mode or "",
            trunk=sources.trunk() or "",
            count=len(branches),
            branch_limit=branch_limit,
            waiting_count=sources.waiting_for_uplink(),
            mismatched_count=sum(bool(attachment.objection) for attachment in branches),
            unconfirmed_count=sum(attachment.is_unconfirmed for attachment in branches),
        )

    def ListEnis(self, _: pb.ListEnisRequest) -> pb.ListEnisReply:
        """List ENIs with their addresses counted by state."""
        limits, snapshot, frozen = self.sources.pool.limits, self.sources.datastore.snapshot(), self.sources.frozen()
        rows: dict[str, list[Address]] = {}
        for row in snapshot.addresses.values():
            rows.setdefault(row.eni_id, []).append(row)
        slot_count = 0
        if limits:
            slot_count = limits.slots_per_eni
        reply = pb.ListEnisReply()
        for eni in sorted(snapshot.enis.values(), key=eni_place):
            rows_of_eni = rows.get(eni.eni_id, [])
            prefixes = {row.prefix for row in rows_of_eni if row.prefix is not None}
            state = str(eni.state)
            if not eni.managed:
                state = "unmanaged"
            message = answer(
                pb.Eni,
                eni,
                **_counts_by_state(rows_of_eni),
                lost_count=sum(row.is_lost for row in rows_of_eni),
                primary=eni.is_primary,
                state=state,
                slot_count=slot_count,
                frozen_reason=frozen.get(eni.eni_id, ""),
                excluded_reason=eni.excluded,
                prefixes=list(map(str, sorted(prefixes))),
            )
            reply.enis.append(message)
        return reply

    def ListAttachments(self, _: pb.ListAttachmentsRequest) -> pb.ListAttachmentsReply:
        """List attachments, oldest first."""
        datastore = self.sources.datastore
        lost = {row.address: row.lost_since for row in datastore.addresses()}
        rows = datastore.attachments()
        vlans = {row.key: row.uplink.vlan for row in rows if row.uplink}
        messages = []
        for row in rows:
            message = answer(
                pb.Attachment,
                row,
                row.key,
                lost_since=lost.get(row.address),
                vlan=vlans.get(row.key),
                branch_problem=row.contradiction,
            )
            messages.append(message)
        return pb.ListAttachmentsReply(attachments=messages)

    def GetHistory(self, request: pb.GetHistoryRequest) -> pb.GetHistoryReply:
        """List the events about a subject, oldest first, and which sandbox had which address when.

        Without a subject, list the newest events of this boot.
        """
        if request.subject:
            question = question_of(request, limit=request.limit)
            return history_reply(ask(self.sources, question), question, source=FROM_DAEMON)
        question = HistoryQuestion("", history_limit(request.limit))
        newest = HistoryAnswer(tuple(latest(self.sources, question.limit)), (), ())
        return history_reply(newest, question, source=FROM_DAEMON)

    def GetConfig(self, _: pb.GetConfigRequest) -> pb.GetConfigReply:
        """List the settings that are in force."""
        return pb.GetConfigReply(settings=[setting(line) for line in describe(self.sources.settings.now)], origin_note=IN_FORCE)

    def Audit(self, request: pb.AuditRequest) -> pb.AuditReply:
        """Compare datastore, kernel, runtime and EC2 with each other."""
        report = audit(self.sources, ask_ec2=not request.skip_ec2)
        if report.is_ec2_compared:
            self.compared({finding.subject for finding in report.findings})
        findings = [answer(pb.Finding, finding, text=finding.text) for finding in report.findings]
        return answer(pb.AuditReply, report, findings=findings, unavailable_sources=report.silent)

    def Explain(self, request: pb.ExplainRequest) -> pb.ExplainReply:
        """Explain the state of an address, a pod, a sandbox or an ENI."""
        explanation = explain(self.sources, question_of(request, limit=EXPLAIN_LIMIT), find=request.find)
        return answer(pb.ExplainReply, explanation, explanation.past, history=explanation.past.records, source=FROM_DAEMON)

    def Path(self, request: pb.PathRequest) -> pb.PathReply:
        """Explain why a pod does or does not reach a destination."""
        if not 0 < len(request.subject) <= SUBJECT_MAX:
            raise InvalidRequestError(f"a subject of {len(request.subject)} characters", details=f"1 to {SUBJECT_MAX}")
        return path_reply(trace_path(self.sources, request.subject, request.destination))

    def Freeze(self, request: pb.FreezeRequest) -> pb.FreezeReply:
        """Freeze the pool until `Thaw` or the next boot."""
        problem = self.freeze(request.reason)
        return pb.FreezeReply(freezes=self._freezes(), problem=problem)

    def Thaw(self, _: pb.ThawRequest) -> pb.ThawReply:
        """End the freeze that `Freeze` began. Other causes of a freeze stay in force."""
        problem = self.thaw()
        return pb.ThawReply(freezes=self._freezes(), problem=problem)

    def Export(self, request: pb.ExportRequest) -> pb.ExportReply:
        """Export the node to amazon-vpc-cni-k8s, or undo an export if the field `undo` is set."""
        if request.undo:
            return answer(pb.ExportReply, self.undo_export())
        return answer(pb.ExportReply, self.export())

    def Retry(self, request: pb.RetryRequest) -> pb.RetryReply:
        """Repeat now the EC2 calls that EC2 refused; or report what came of the last such request, if `outcome_only` is set."""
        if request.outcome_only:
            return pb.RetryReply(outcomes=[retried(outcome) for outcome in self.retry_outcomes()])
        return pb.RetryReply(retried=[obstacle(subject, refusal) for subject, refusal in self.retry()])

    def Plan(self, request: pb.PlanRequest) -> pb.PlanReply:
        """Compute the plan of the pool, also with other settings or for another instance type. Nothing is changed.

        With a network file in the request, also report what a start with that file would do.
        """
        settings, instance_type = tuple(request.settings), request.instance_type
        plan = what_if(self.sources, settings, instance_type=instance_type, pool=request.pool)
        network = None
        if request.network_source:
            network = answer(pb.NetworkPlan, plan_network(self.sources, request.network_file, source=request.network_source))
        if instance_type:
            return plan_reply(plan, changed=(*settings, instance_type), network=network)
        return plan_reply(plan, changed=settings, network=network)

    def Capacity(self, _: pb.CapacityRequest) -> pb.CapacityReply:
        """Compute how many pods this node can hold in each mode."""
        limits, bounds, modes = capacity(self.sources)
        return capacity_reply(limits, modes, vcpu_count=bounds.vcpu_count, pools=pod_pool_reports(self.sources))

    def _settings(self, *, is_valid: bool) -> pb.SettingsState:
        generation = self.sources.settings.generation
        return answer(
            pb.SettingsState,
            generation,
            generation=generation.number,
            file=generation.settings.daemon.settings_file,
            awaiting_restart=generation.needs_restart,
            valid=is_valid,
            differences=differences(),
        )

    def _confinement(self) -> pb.Confinement:
        hostnet = self.sources.hostnet
        dropped = hostnet.dropped_packets()
        return pb.Confinement(
            source_check_enforced=hostnet.is_source_checked(),
            dropped=[pb.Dropped(reason=reason, count=dropped[reason]) for reason in DROP_REASONS if reason in dropped],
            foreign_links=map(str, hostnet.foreign_links()),
        )

    def _freezes(self) -> list[pb.Freezing]:
        return [answer(pb.Freezing, freezing, since=freezing.since_at) for freezing in self.sources.freezings()]

    def _pool(self, assignable_count: int) -> pb.Pool:
        sources = self.sources
        counts, limits, status = sources.datastore.counts(), sources.pool.limits, sources.demand.status
        node_eni_limit, slots_per_eni, in_prefix_mode = 0, 0, False
        if limits:
            in_prefix_mode = has_prefix_mode(limits, sources.pool.settings)
            node_eni_limit, slots_per_eni = eni_limit(limits, sources.pool.settings), limits.slots_per_eni
        return answer(
            pb.Pool,
            status,
            **{f"{state}_count": getattr(counts, state) for state in (*COUNTED, "total", "lost")},
            assignable_count=assignable_count,
            # An ENI that was detached while sandboxes used it is not counted. Its row stays until these sandboxes are gone.
            eni_count=sum(eni.state is not EniState.DETACHING for eni in sources.datastore.enis()),
            eni_limit=node_eni_limit,
            slots_per_eni=slots_per_eni,
            last_cycle=status.sentence,
            excess_kept_reason=status.retention_reason,
            targets=targets(sources.pool.settings, in_prefix_mode=in_prefix_mode),
            prefix_mode=in_prefix_mode,
            auto=str(sources.pool.auto or ""),
        )


def _counts_by_state(rows: Iterable[Address]) -> dict[str, int]:
    """Return the fields that count an ENI's addresses by state, without lost addresses, which have a field of their own."""
    counts = Counter[str]()
    for row in rows:
        if not row.is_lost:
            counts[row.state.value] += row.count
    return {f"{state}_count": counts[state] for state in COUNTED}


def setting(line: ConfigLine) -> pb.Setting:
    """Make the message of a setting, without the credentials that a URL may hold."""
    return answer(pb.Setting, line, name=line.env, value=without_secrets(line.value))
