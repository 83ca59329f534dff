"""The introspection servicer: one method per RPC, each turning what `Sources` knows into a reply.

`Freeze` and `Thaw` change whether the pool is frozen, `Retry` when EC2 is asked, `Export` gives the node back.
`GetHistory` reads the ledger and the history on disk, `Explain` these and the kernel (or EC2), `Audit` the kernel, the runtime
and EC2; all other answers come from memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from ipamd.answers import UNKNOWN, answer, capacity_reply, history_limit, history_reply, question_of
from ipamd.model.address import Address
from ipamd.model.eni import EniState
from ipamd.model.errors import CloudError, InvalidRequestError, NotServingError, log_text
from ipamd.model.history import HistoryAnswer, HistoryQuestion
from ipamd.model.kernel import DROP_REASONS
from ipamd.model.placement import eni_limit
from ipamd.model.pool import Action, Allocate, PoolSettings, Refusal
from ipamd.model.record import dataclass
from ipamd.model.redaction import without_secrets
from ipamd.model.sandbox import RuntimeInfo, RuntimeView
from ipamd.model.snapshot import eni_place
from ipamd.pb import introspection_pb2 as pb
from ipamd.report.audit import audit
from ipamd.report.explain import explain
from ipamd.report.past import ask, latest
from ipamd.report.sources import Sources
from ipamd.report.verdict import facts, told, verdict
from ipamd.report.what_if import WhatIf, capacity, what_if
from ipamd.settings import ConfigLine, describe
from ipamd.settings.current import INVALID_SETTINGS

EXPLAIN_LIMIT = 50
"""Entries behind an explanation. Ours: a screen."""

IN_FORCE = "settings in force in the daemon"
FROM_DAEMON = "daemon"
CRI_OFF = RuntimeView(False, False, 0, -1.0, "CRI is off: nothing is reaped", 0)
NO_RUNTIME = RuntimeInfo("", "", "")
COUNTED = ("free", "reserved", "assigned", "cooling", "quarantined")
"""States of addresses, each a field of its own with the ending `_count`."""


def handler(servicer: object) -> grpc.GenericRpcHandler[Any, Any]:
    """Serve the methods of `servicer` as `vpc_ipamd.v1.Introspection`; what they raise is the refusal."""
    service = pb.DESCRIPTOR.services_by_name["Introspection"]
    return grpc.method_handlers_generic_handler(
        service.full_name,
        {
            method.name: grpc.unary_unary_rpc_method_handler(
                partial(_serve, servicer, method.name),
                request_deserializer=GetMessageClass(method.input_type).FromString,
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
            for method in service.methods
        },
    )


def _serve(servicer: object, name: str, request: Any, context: grpc.ServicerContext) -> Any:
    try:
        return getattr(servicer, name)(request)
    except CloudError as error:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, log_text(error))
    except InvalidRequestError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except NotServingError as error:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


@dataclass(slots=True)
class IntrospectionServicer:
    """Serves `vpc_ipamd.v1.Introspection`. Every method raises: InvalidRequestError, NotServingError.

    `freeze` and `thaw` say what went wrong, "" if nothing did. `export` gives the node back to amazon-vpc-cni-k8s, `keep` keeps it
    after all; each returns what `ExportReply` holds. `retry` has EC2 asked now for what it refused; returns what was put off, and why.
    """

    sources: Sources
    freeze: Callable[[str], str]
    thaw: Callable[[], str]
    export: Callable[[], object]
    keep: Callable[[], object]
    retry: Callable[[], Sequence[tuple[str, Refusal]]]

    def GetStatus(self, _: pb.GetStatusRequest) -> pb.GetStatusReply:
        """Report phase, start-up stages, pool, runtime, EC2, last error."""
        sources, health, generation = self.sources, self.sources.health, self.sources.settings.generation
        known, identity, dropped = facts(sources), sources.identity(), sources.hostnet.dropped_packets()
        return answer(
            pb.GetStatusReply,
            known,
            sources,
            instance_id=identity.instance_id if identity else "",
            alive=True,
            ready=known.is_ready,
            uptime_s=health.uptime_s(),
            pool=self._pool(known.assignable_count),
            runtime=answer(pb.Runtime, sources.runtime_view() or CRI_OFF, sources.runtime() or NO_RUNTIME),
            lacks=sorted(known.conditions.values()),
            conditions=told(known),
            spooled_count=sources.spool.pending_count(),
            dying_count=sources.dying_count(),
            verdict=verdict(known),
            freezings=self._freezings(),
            settings=answer(
                pb.SettingsState,
                generation,
                generation=generation.number,
                file=generation.settings.daemon.settings_file,
                valid=INVALID_SETTINGS not in known.conditions,
            ),
            busy=[answer(pb.Busy, held, held.key) for held in sources.locks.held()],
            confinement=pb.Confinement(
                source_checked=sources.hostnet.is_source_checked(),
                dropped=[pb.Dropped(reason=reason, count=dropped[reason]) for reason in DROP_REASONS if reason in dropped],
                foreign_links=map(str, sources.hostnet.foreign_links()),
            ),
            subnets=sources.subnets(),
            policy_mode=generation.settings.policy.mode,
            owed_count=len(sources.owed()),
            branches=self._branches(),
            cloud=sources.cloud(),
            last_error=health.last_error,
        )

    def _branches(self) -> pb.Branches:
        sources = self.sources
        found, limits, mode = sources.branches(), sources.pool.limits, sources.settings.now.network.branch_mode
        return pb.Branches(
            mode=mode or "",
            trunk=sources.trunk() or "",
            count=len(found),
            branch_count=UNKNOWN if limits is None or limits.branch_count is None else limits.branch_count,
            waiting_count=sources.waiting_branches(),
            contradicted_count=sum(bool(one.contradiction) for one in found),
        )

    def ListEnis(self, _: pb.ListEnisRequest) -> pb.ListEnisReply:
        """List ENIs with their addresses counted by state."""
        limits, snapshot, frozen = self.sources.pool.limits, self.sources.datastore.snapshot(), self.sources.frozen()
        rows: dict[str, list[Address]] = {}
        for row in snapshot.addresses.values():
            rows.setdefault(row.eni_id, []).append(row)
        reply = pb.ListEnisReply()
        for eni in sorted(snapshot.enis.values(), key=eni_place):
            own = rows.get(eni.eni_id, [])
            states = Counter[str]()
            for row in own:
                states[row.state.value] += 0 if row.is_lost else row.count
            told = answer(
                pb.Eni,
                eni,
                **{f"{state}_count": states[state] for state in COUNTED},
                lost_count=sum(row.is_lost for row in own),
                primary=eni.is_primary,
                state=eni.state if eni.managed else "unmanaged",
                slot_count=limits.slots_per_eni if limits else 0,
                frozen=frozen.get(eni.eni_id, ""),
                prefixes=[str(prefix) for prefix in sorted({row.prefix for row in own if row.prefix is not None})],
            )
            reply.enis.append(told)
        return reply

    def ListAttachments(self, _: pb.ListAttachmentsRequest) -> pb.ListAttachmentsReply:
        """List attachments, oldest first."""
        datastore = self.sources.datastore
        lost = {row.address: row.lost_since for row in datastore.addresses()}
        rows = datastore.attachments()
        vlans = {row.key: row.branch.vlan for row in rows if row.branch}
        told = [answer(pb.Attachment, row, row.key, lost_since=lost.get(row.address), vlan=vlans.get(row.key)) for row in rows]
        return pb.ListAttachmentsReply(attachments=told)

    def GetHistory(self, request: pb.GetHistoryRequest) -> pb.GetHistoryReply:
        """List what happened to a subject, oldest first, and who had which address when; without a subject the newest events."""
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
        """Cross-check datastore, kernel, CRI and EC2."""
        return answer(pb.AuditReply, audit(self.sources, ask_ec2=not request.skip_ec2))

    def Explain(self, request: pb.ExplainRequest) -> pb.ExplainReply:
        """Explain why an address or a sandbox is as it is."""
        explained = explain(self.sources, question_of(request, limit=EXPLAIN_LIMIT), find=request.find)
        return answer(pb.ExplainReply, explained, explained.past, history=explained.past.records, source=FROM_DAEMON)

    def Freeze(self, request: pb.FreezeRequest) -> pb.FreezeReply:
        """Freeze the pool until `Thaw` or the next boot."""
        problem = self.freeze(request.reason)
        return pb.FreezeReply(freezings=self._freezings(), problem=problem)

    def Thaw(self, _: pb.ThawRequest) -> pb.ThawReply:
        """End what `Freeze` began."""
        problem = self.thaw()
        return pb.ThawReply(freezings=self._freezings(), problem=problem)

    def Export(self, request: pb.ExportRequest) -> pb.ExportReply:
        """Give the node back to amazon-vpc-cni-k8s, or keep it after all."""
        return answer(pb.ExportReply, self.keep() if request.undo else self.export())

    def Retry(self, _: pb.RetryRequest) -> pb.RetryReply:
        """Have EC2 asked now for what it refused."""
        return pb.RetryReply(ended=[answer(pb.Obstacle, why, subject=what, next=why.next_step) for what, why in self.retry()])

    def Plan(self, request: pb.PlanRequest) -> pb.PlanReply:
        """Tell what the pool would do now, also under other settings or on another type. Nothing is changed."""
        what = what_if(self.sources, tuple(request.settings), instance_type=request.instance_type)
        return plan_reply(what, changed=(*request.settings, *filter(None, [request.instance_type])))

    def Capacity(self, _: pb.CapacityRequest) -> pb.CapacityReply:
        """Tell how many pods this node can hold in each mode."""
        limits, bounds, modes = capacity(self.sources)
        return capacity_reply(limits, modes, vcpu_count=bounds.vcpu_count)

    def _freezings(self) -> list[pb.Freezing]:
        return [answer(pb.Freezing, one, since=one.since_at) for one in self.sources.freezings()]

    def _pool(self, assignable_count: int) -> pb.Pool:
        sources = self.sources
        counts, limits, status = sources.datastore.counts(), sources.pool.limits, sources.demand.status
        return answer(
            pb.Pool,
            status,
            **{f"{state}_count": getattr(counts, state) for state in (*COUNTED, "total", "lost")},
            assignable_count=assignable_count,
            # Not what has gone, whose row its sandboxes keep.
            eni_count=sum(eni.state is not EniState.DETACHING for eni in sources.datastore.enis()),
            eni_limit=eni_limit(limits, sources.pool.settings) if limits else 0,
            slots_per_eni=limits.slots_per_eni if limits else 0,
            last_cycle=status.sentence,
            targets=targets(sources.pool.settings),
            auto=str(sources.pool.auto or ""),
        )


def setting(line: ConfigLine) -> pb.Setting:
    """Spell one setting, without the credentials that a URL may hold."""
    return answer(pb.Setting, line, value=without_secrets(line.value))


# The pool's plan.


def plan_reply(what: WhatIf, *, changed: tuple[str, ...] = ()) -> pb.PlanReply:
    """Write a plan with everything it was made from."""
    snapshot, counts = what.snapshot, what.snapshot.counts
    return answer(
        pb.PlanReply,
        what.decided,
        snapshot.limits,
        snapshot,
        actions=[_action(action) for action in what.decided.actions],
        obstacles=[answer(pb.Obstacle, why, subject=subject, next=why.next_step) for subject, why in what.obstacles],
        targets=targets(what.settings),
        auto=what.auto
        and answer(
            pb.AutoTarget,
            what.auto,
            snapshot.growth.demand,
            in_force=what.settings.warm_target_auto,
            sentence=str(what.auto),
        ),
        changed=changed,
        eni_limit=eni_limit(snapshot.limits, what.settings),
        eni_count=snapshot.known_eni_count + len(snapshot.refused_device_indexes),
        **{f"{name}_count": getattr(counts, name) for name in ("total", "free", "in_use", "cooling")},
        under_way=snapshot.growth.pending,
    )


def targets(settings: PoolSettings) -> list[pb.Target]:
    """List the targets and caps; `defined`: whether it has an effect."""
    counts, is_fixed = not settings.family.is_sparse, not settings.warm_target_auto
    in_effect = {
        "warm_eni_target": not settings.ip_targets_defined,
        "warm_ip_target": is_fixed and settings.warm_ip_target > 0,
        "minimum_ip_target": settings.minimum_ip_target > 0,
        "warm_prefix_target": is_fixed and settings.warm_prefix_target > 0,
        "max_eni": settings.max_eni > 0,
        "max_pods": settings.max_pods > 0,
    }
    return [pb.Target(name=name.upper(), value=getattr(settings, name), defined=on and counts) for name, on in in_effect.items()]


def _action(action: Action) -> pb.PlannedAction:
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(action).__name__).lower()
    if isinstance(action, Allocate):
        kind = "allocate-prefixes" if action.prefix_count else "allocate-addresses"
    addresses, prefixes = len(getattr(action, "addresses", ())), len(getattr(action, "prefixes", ()))
    return pb.PlannedAction(
        kind=kind,
        eni_id=getattr(action, "eni_id", ""),
        address_count=getattr(action, "address_count", addresses),
        prefix_count=getattr(action, "prefix_count", prefixes),
        text=str(action),
    )
