"""The CNI servicer: one method, five verbs, and one log line per request with the time of each step. A STATUS is logged only if its
code has changed.

The log line and the counters are written after the reply, because they take a tenth of an ADD's CPU time and the caller need not wait
for them. gRPC writes them in callbacks when the call has ended. Its server stops only after these callbacks, so a shutdown loses none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.core.health import Health, Phase
from ipamd.core.refused_adds import RefusedAdd
from ipamd.metrics.page import Metrics
from ipamd.model.attachment import Attachment
from ipamd.model.cni_versions import require_verb
from ipamd.model.cniresult import convert_result
from ipamd.model.errors import (
    DatastoreError,
    InvalidConfigError,
    InvalidRequestError,
    IpamError,
    NotServingError,
    cause_of,
    log_text,
)
from ipamd.model.ids import CONTAINER_ID_MAX, IFNAME_MAX, parse_key
from ipamd.model.record import dataclass
from ipamd.model.words import printable
from ipamd.pb import cni_pb2, cni_pb2_grpc
from ipamd.ports.process import Clock
from ipamd.rpc.envelope import (
    PROTOCOL_MAX,
    VALID_ATTACHMENTS,
    _name,
    decode_attach,
    decode_conf,
    decode_names,
    encode_error,
    negotiate,
    requested_version,
)
from ipamd.sandbox.attach import AttachService
from ipamd.sandbox.check import CheckService
from ipamd.sandbox.detach import DetachService
from ipamd.sandbox.gc import GcService

log = logging.getLogger("ipamd.rpc")

VERB_MAX = 20
"""The largest number of characters of an unknown verb that are quoted and logged. Ours: no verb of CNI has more than seven."""

DEFAULT_DEADLINE_S = 60.0
"""Deadline, in seconds, of a request whose caller sets none. Ours: the deadline of the plugin's own ADD."""

DEADLINE_MAX_S = 3600.0
"""The longest deadline of a request, in seconds. Ours: far above every deadline of the plugin."""


@dataclass(frozen=True, slots=True)
class SandboxServices:
    """The use cases behind the verbs."""

    attach: AttachService
    detach: DetachService
    check: CheckService
    gc: GcService


class CniServicer(cni_pb2_grpc.CniServicer):
    """Serves `vpc_ipamd.v1.Cni`."""

    def __init__(
        self,
        *,
        services: SandboxServices,
        health: Health,
        clock: Clock,
        observer: Metrics,
        refused: Callable[[RefusedAdd], None],
    ) -> None:
        """`refused`: called for every ADD for which the runtime gets an error. `observer`: counts the requests."""
        self._services = services
        self._health = health
        self._clock = clock
        self._observer = observer
        self._refused = refused
        self._status_code = 0

    def Exec(self, request: cni_pb2.ExecRequest, context: grpc.ServicerContext) -> cni_pb2.ExecReply:
        """Carry out one CNI invocation. An error is returned in the reply as a CNI error.

        If an ADD is refused because this daemon drains, the call ends with UNAVAILABLE instead.
        """
        remaining_s: float | None = context.time_remaining()  # None without a deadline, although the stubs declare a float
        if remaining_s is None:
            remaining_s = DEFAULT_DEADLINE_S
        deadline = Deadline.after(self._clock, min(remaining_s, DEADLINE_MAX_S), is_cancelled=lambda: not context.is_active())
        reply, report = self._answer(request, deadline)
        if not context.is_active():
            self._observer.request_orphaned(request.verb)
        if not context.add_callback(report):
            report()  # there is no callback for a call that has ended already, because the caller cancelled it
        if request.verb == "ADD" and self._is_left_to_successor(reply.error.code):
            # After an error the runtime would retry much later. After UNAVAILABLE the plugin waits for the next daemon (I17).
            context.abort(grpc.StatusCode.UNAVAILABLE, f"{reply.error.message}: {reply.error.details}")
        return reply

    def execute(self, request: cni_pb2.ExecRequest, deadline: Deadline) -> cni_pb2.ExecReply:
        """Carry out one CNI invocation without gRPC. Any exception is returned in the reply as a CNI error."""
        reply, report = self._answer(request, deadline)
        report()
        return reply

    def _answer(self, request: cni_pb2.ExecRequest, deadline: Deadline) -> tuple[cni_pb2.ExecReply, Callable[[], None]]:
        """Carry out a request. Returns: the reply, and a function that logs and counts the request after the reply was sent."""
        started, steps, cause, refusal = self._clock.monotonic(), StepTimer(self._clock), "", ""
        try:
            protocol = negotiate(request)
            result = self._carry_out(request, deadline, steps)
            is_starting = request.verb == "STATUS" and self._health.is_starting
            reply = cni_pb2.ExecReply(protocol=protocol, result=result, is_starting=is_starting)
            self._health.resolve(request.verb)
            if request.verb == "DEL":
                self._health.resolve_deleted(_name("ADD", request))
        except Exception as error:  # top of an RPC: every exception becomes a CNI error
            reply = cni_pb2.ExecReply(
                protocol=PROTOCOL_MAX,
                error=encode_error(error, cni_version=requested_version(request.config)),
            )
            verb_text, cause = request.verb[:VERB_MAX], cause_of(error)
            if type(error) is DatastoreError:  # a subclass is a defect of ours, and no failure of the disk
                self._health.report_refused_change(error)
            self._health.record_error(_name(verb_text, request), error)
            if isinstance(error, IpamError):
                refusal = error.refusal
            else:
                container_id = request.container_id[:CONTAINER_ID_MAX]
                log.error("an unexpected error verb=%s container=%s", verb_text, container_id, exc_info=error)
        took_ms = (self._clock.monotonic() - started) * 1000
        return reply, partial(self._log_request, request, reply, took_ms, steps, cause, refusal)

    def _carry_out(self, request: cni_pb2.ExecRequest, deadline: Deadline, steps: StepTimer) -> bytes:
        """Call the service of the verb. Returns: the CNI result of an ADD, b"" for the other verbs."""
        services = self._services
        match request.verb:
            case "ADD":
                with steps.step("decode"):
                    wanted = decode_attach(request)
                attachment = services.attach.attach_sandbox(wanted, deadline=deadline, steps=steps)
                steps.attachment = attachment
                return convert_result(attachment.result, version=wanted.cni_version)
            case "DEL":
                # The configuration is not decoded, because a DEL with a damaged configuration must free its address too (I3).
                key = parse_key(request.container_id, request.ifname)
                services.detach.detach_sandbox(key, deadline=deadline, steps=steps, reason="DEL")
            case "CHECK":
                wanted = decode_attach(request)
                require_verb("CHECK", wanted.cni_version)
                with steps.step("check"):
                    services.check.check_sandbox(wanted, deadline=deadline)
            case "GC":
                conf = decode_conf(request.config)
                require_verb("GC", conf.cni_version)
                if conf.valid_attachments is None:
                    raise InvalidConfigError(f"GC without {VALID_ATTACHMENTS}", details="an absent list is not an empty one")
                outcome = services.gc.collect(conf.valid_attachments, network_name=conf.name, deadline=deadline, steps=steps)
                log.info("GC against the list freed=%d kept=%d", len(outcome.freed), len(outcome.kept))
            case "STATUS":
                require_verb("STATUS", decode_conf(request.config).cni_version)
                self._health.require_status()
            case unknown:
                raise InvalidRequestError(f"unknown CNI_COMMAND {unknown[:VERB_MAX]!r}")
        return b""

    def _is_left_to_successor(self, code: int) -> bool:
        """Whether the plugin must ask the next daemon again, because this one drains (I17).

        `code`: the CNI error code of the answer.
        """
        return code == NotServingError.cni_code and self._health.phase is Phase.DRAINING

    def _log_request(
        self,
        request: cni_pb2.ExecRequest,
        reply: cni_pb2.ExecReply,
        total_ms: float,
        steps: StepTimer,
        cause: str,
        refusal: str,
    ) -> None:
        """Count the request, and write its log line unless it is a STATUS with the same code as the last STATUS.

        A failed ADD is also passed to `refused`, unless the plugin asks the next daemon again.
        """
        code = reply.error.code  # 0 if there is no error
        durations = {name: round(ms, 3) for name, ms in steps.durations_ms.items()}
        self._observer.request_done(request.verb, code=code, total_ms=total_ms, steps_ms=durations, cause=cause)
        if request.verb == "STATUS" and not self._has_status_changed(code):
            return
        attachment = steps.attachment
        pod = (attachment and attachment.sandbox_name) or decode_names(request.args).pod
        line = _line_about(request, pod, attachment)
        line |= {"outcome": "ok", "code": code, "ms": round(total_ms, 3), "steps_ms": durations}
        if code == 0:
            log.info("request", line)
            return
        line["outcome"] = "error"
        error = log_text(IpamError(reply.error.message, details=reply.error.details))
        line["error"] = error
        if refusal:
            line["refusal"] = refusal
        if request.verb == "ADD" and not self._is_left_to_successor(code):
            container_id, ifname = request.container_id[:CONTAINER_ID_MAX], request.ifname[:IFNAME_MAX]
            self._refused(RefusedAdd(container_id, ifname, pod, code, error, cause))
        log.warning("request", line)

    def _has_status_changed(self, code: int) -> bool:
        """Whether this STATUS has another code than the last STATUS.

        Only a change is logged, because the runtime calls STATUS 12 times a minute for kubelet.
        """
        last_code, self._status_code = self._status_code, code
        return code != last_code


def _line_about(request: cni_pb2.ExecRequest, pod: str, attachment: Attachment | None) -> dict[str, Any]:
    """Return the fields of the log line that identify a request: its sandbox, its pod, its address, and its branch ENI."""
    line: dict[str, Any] = {
        "verb": printable(request.verb, most=VERB_MAX),
        "container_id": printable(request.container_id, most=CONTAINER_ID_MAX),
        "ifname": printable(request.ifname, most=IFNAME_MAX),
    }
    if pod:
        line["pod"] = printable(pod)
    if attachment is not None:
        line["address"] = str(attachment.address)
        if not attachment.is_of_pool:
            line["eni"] = attachment.eni_id
    return line
