"""The CNI servicer: one method, five verbs, and one log line per request with the time of each step.

The line and the counters come after the reply: a tenth of an ADD's CPU that nobody waits for. gRPC runs them when the call has ended,
one call after the other, and its server stops only after them, so that none is lost in a shutdown.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import grpc

from ipamd.core.deadline import Deadline, Steps
from ipamd.core.health import Health, Phase
from ipamd.core.refused_adds import RefusedAdd
from ipamd.model.cniresult import convert_result
from ipamd.model.cniversion import require_verb
from ipamd.model.errors import InvalidConfigError, InvalidRequestError, IpamError, NotServingError, cause_of, log_text
from ipamd.model.ids import CONTAINER_ID_MAX, IFNAME_MAX
from ipamd.model.words import printable
from ipamd.pb import cni_pb2, cni_pb2_grpc
from ipamd.ports import Clock
from ipamd.rpc import codec
from ipamd.sandbox.attach import AttachService
from ipamd.sandbox.check import CheckService
from ipamd.sandbox.detach import DetachService
from ipamd.sandbox.gc import GcService

VERB_MAX = 20
"""Characters of an unknown verb that are quoted and logged. Ours."""

DEFAULT_DEADLINE_S = 60.0
"""For a caller without a deadline. Ours: the plugin's own ADD deadline."""

log = logging.getLogger("ipamd.rpc")


@dataclass(frozen=True, slots=True)
class SandboxServices:
    """The use cases behind the verbs."""

    attach: AttachService
    detach: DetachService
    check: CheckService
    gc: GcService


class RequestObserver(Protocol):
    """Counts requests (metrics)."""

    def request_done(self, verb: str, *, code: int, total_ms: float, steps_ms: dict[str, float], cause: str = "") -> None:
        """Record one answered request; code 0 is success. `cause`: why it was refused, by `cause_of`."""
        ...

    def request_orphaned(self, verb: str) -> None:
        """Record a request whose caller cancelled before the answer."""
        ...


class CniServicer(cni_pb2_grpc.CniServicer):
    """Serves `vpc_ipamd.v1.Cni`."""

    def __init__(
        self,
        *,
        services: SandboxServices,
        health: Health,
        clock: Clock,
        observer: RequestObserver,
        refused: Callable[[RefusedAdd], None],
    ) -> None:
        """`refused` is told every ADD that the runtime gets an error for."""
        self._services = services
        self._health = health
        self._clock = clock
        self._observer = observer
        self._refused = refused
        self._status_code = 0
        self._verbs: dict[str, Callable[[cni_pb2.ExecRequest, Deadline, Steps], bytes]] = {
            "ADD": self._add,
            "DEL": self._del,
            "CHECK": self._check,
            "GC": self._gc,
            "STATUS": self._status,
        }

    def Exec(self, request: cni_pb2.ExecRequest, context: grpc.ServicerContext) -> cni_pb2.ExecReply:
        """Carry out one CNI invocation; every error is returned in the reply as a CNI error."""
        remaining = context.time_remaining()
        deadline = Deadline.after(
            self._clock,
            min(remaining, 3600.0) if remaining is not None else DEFAULT_DEADLINE_S,
            is_cancelled=lambda: not context.is_active(),
        )
        reply, report = self._answer(request, deadline)
        if not context.is_active():
            self._observer.request_orphaned(request.verb)
        if not context.add_callback(report):
            report()  # the call has ended: the caller cancelled it
        if request.verb == "ADD" and self._is_left_to_successor(reply.error.code):
            # Not an answer to the runtime, which would come back much later: the plugin waits for our successor (I17).
            context.abort(grpc.StatusCode.UNAVAILABLE, f"{reply.error.message}: {reply.error.details}")
        return reply

    def execute(self, request: cni_pb2.ExecRequest, deadline: Deadline) -> cni_pb2.ExecReply:
        """Carry out one CNI invocation, independent of gRPC; any exception becomes an error in the reply."""
        reply, report = self._answer(request, deadline)
        report()
        return reply

    def _answer(self, request: cni_pb2.ExecRequest, deadline: Deadline) -> tuple[cni_pb2.ExecReply, Callable[[], None]]:
        """Make the reply, and what is to be called once it was sent: it logs and counts the request."""
        started, steps, cause = self._clock.monotonic(), Steps(self._clock), ""
        try:
            protocol = codec.negotiate(request)
            verb = self._verbs.get(request.verb)
            if verb is None:
                raise InvalidRequestError(f"unknown CNI_COMMAND {request.verb[:VERB_MAX]!r}")
            result = verb(request, deadline, steps)
            is_starting = request.verb == "STATUS" and self._health.is_starting
            reply = cni_pb2.ExecReply(protocol=protocol, result=result, is_starting=is_starting)
        except Exception as error:  # noqa: BLE001  # top of an RPC: everything becomes a CNI error
            reply = cni_pb2.ExecReply(
                protocol=codec.PROTOCOL_MAX,
                error=codec.encode_error(error, cni_version=codec.requested_version(request.config)),
            )
            self._log_error(request, error)
            cause = cause_of(error)
        return reply, partial(self._log_request, request, reply, (self._clock.monotonic() - started) * 1000, steps, cause)

    def _add(self, request: cni_pb2.ExecRequest, deadline: Deadline, steps: Steps) -> bytes:
        with steps.step("decode"):
            wanted = codec.decode_attach(request)
        attachment = self._services.attach.attach_sandbox(wanted, deadline=deadline, steps=steps)
        steps.about(pod=attachment.sandbox_name, address=str(attachment.address))
        return convert_result(attachment.result, version=wanted.cni_version)

    def _del(self, request: cni_pb2.ExecRequest, deadline: Deadline, steps: Steps) -> bytes:
        # Only the identity is needed: a DEL whose configuration is damaged must still free its address (I3).
        self._services.detach.detach_sandbox(codec.decode_key(request), deadline=deadline, steps=steps, reason="DEL")
        return b""

    def _check(self, request: cni_pb2.ExecRequest, deadline: Deadline, steps: Steps) -> bytes:
        wanted = codec.decode_attach(request)
        require_verb("CHECK", wanted.cni_version)
        with steps.step("check"):
            self._services.check.check_sandbox(wanted, deadline=deadline)
        return b""

    def _gc(self, request: cni_pb2.ExecRequest, deadline: Deadline, steps: Steps) -> bytes:
        conf = codec.decode_conf(request.config)
        require_verb("GC", conf.cni_version)
        if conf.valid_attachments is None:
            raise InvalidConfigError(f"GC without {codec.VALID_ATTACHMENTS}", details="an absent list is not an empty one")
        outcome = self._services.gc.collect(conf.valid_attachments, network_name=conf.name, deadline=deadline, steps=steps)
        log.info("GC freed %d attachments and kept %d against the list", len(outcome.freed), len(outcome.kept))
        return b""

    def _status(self, request: cni_pb2.ExecRequest, _deadline: Deadline, _steps: Steps) -> bytes:
        require_verb("STATUS", codec.decode_conf(request.config).cni_version)
        self._health.require_status()
        return b""

    def _is_left_to_successor(self, code: int) -> bool:
        """Whether the plugin takes this for no answer, and asks the next daemon (I17)."""
        return code == NotServingError.cni_code and self._health.phase is Phase.DRAINING

    def _is_news(self, code: int) -> bool:
        """Whether STATUS says something else than the last time: kubelet asks 12 times a minute, a node that waits far more."""
        before, self._status_code = self._status_code, code
        return code != before

    def _log_error(self, request: cni_pb2.ExecRequest, error: BaseException) -> None:
        self._health.record_error(f"{request.verb[:VERB_MAX]} {request.container_id[:13]}", error)
        if not isinstance(error, IpamError):
            log.error(
                "%s of %s met an unexpected error",
                request.verb[:VERB_MAX],
                request.container_id[:CONTAINER_ID_MAX],
                exc_info=error,
            )

    def _log_request(
        self, request: cni_pb2.ExecRequest, reply: cni_pb2.ExecReply, total_ms: float, steps: Steps, cause: str
    ) -> None:
        code = reply.error.code if reply.HasField("error") else 0
        durations = {name: round(ms, 3) for name, ms in steps.durations_ms.items()}
        self._observer.request_done(request.verb, code=code, total_ms=total_ms, steps_ms=durations, cause=cause)
        if request.verb == "STATUS" and not self._is_news(code):
            return
        pod = steps.pod or codec.decode_names(request.args).pod
        line = {
            "verb": printable(request.verb, most=VERB_MAX),
            "container_id": printable(request.container_id, most=CONTAINER_ID_MAX),
            "ifname": printable(request.ifname, most=IFNAME_MAX),
            **({"pod": printable(pod)} if pod else {}),
            **({"address": steps.address} if steps.address else {}),
            "outcome": "error" if code else "ok",
            "code": code,
            "ms": round(total_ms, 3),
            "steps_ms": durations,
        }
        if code:
            error = log_text(IpamError(reply.error.message, details=reply.error.details))
            line["error"] = error
            if request.verb == "ADD" and not self._is_left_to_successor(code):
                self._refused(RefusedAdd(request.container_id[:CONTAINER_ID_MAX], request.ifname[:IFNAME_MAX], pod, code, error))
        log.log(logging.WARNING if code else logging.INFO, "%s", json.dumps(line, separators=(",", ":")))
