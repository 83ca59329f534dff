"""The CNI servicer: one method, five verbs, and one log line per request with the time of each step.

The line and the counters come after the reply: a tenth of an ADD's CPU that nobody waits for. gRPC runs them when the call has ended,
one call after the other, and its server stops only after them, so that none is lost in a shutdown.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import grpc

from ipamd.core.deadline import Deadline, Steps
from ipamd.core.health import Health, Phase
from ipamd.core.refused_adds import RefusedAdd
from ipamd.metrics import Metrics
from ipamd.model.attachment import AttachRequest, SandboxNames
from ipamd.model.branch import ANNOTATIONS_READ, POD_ANNOTATIONS
from ipamd.model.cniresult import convert_result, require_supported, require_valid, require_verb
from ipamd.model.errors import (
    DatastoreError,
    IncompatibleVersionError,
    InvalidConfigError,
    InvalidRequestError,
    IpamError,
    NotServingError,
    UndecodableConfigError,
    cause_of,
    log_text,
)
from ipamd.model.ids import CONTAINER_ID_MAX, IFNAME_MAX, AttachmentKey, parse_key
from ipamd.model.record import dataclass
from ipamd.model.words import printable
from ipamd.pb import cni_pb2, cni_pb2_grpc
from ipamd.ports import Clock
from ipamd.sandbox.attach import AttachService, CheckService
from ipamd.sandbox.detach import DetachService, GcService

log = logging.getLogger("ipamd.rpc")


VERB_MAX = 20
"""Characters of an unknown verb that are quoted and logged. Ours."""

DEFAULT_DEADLINE_S = 60.0
"""For a caller without a deadline. Ours: the plugin's own ADD deadline."""


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
        """`refused` is told every ADD that the runtime gets an error for."""
        self._services = services
        self._health = health
        self._clock = clock
        self._observer = observer
        self._refused = refused
        self._status_code = 0

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
            protocol = negotiate(request)
            result = self._carry_out(request, deadline, steps)
            reply = cni_pb2.ExecReply(
                protocol=protocol, result=result, is_starting=request.verb == "STATUS" and self._health.is_starting
            )
            self._health.resolve(request.verb)
            if request.verb == "DEL":
                self._health.resolve_deleted(_name("ADD", request))
        except Exception as error:  # top of an RPC: everything becomes a CNI error
            reply = cni_pb2.ExecReply(
                protocol=PROTOCOL_MAX,
                error=encode_error(error, cni_version=requested_version(request.config)),
            )
            verb_text, cause = request.verb[:VERB_MAX], cause_of(error)
            if type(error) is DatastoreError:  # not a defect of ours: those are kinds of it
                self._health.report_refused_change(error)
            self._health.record_error(_name(verb_text, request), error)
            if not isinstance(error, IpamError):
                container_id = request.container_id[:CONTAINER_ID_MAX]
                log.error("an unexpected error verb=%s container=%s", verb_text, container_id, exc_info=error)
        return reply, partial(self._log_request, request, reply, (self._clock.monotonic() - started) * 1000, steps, cause)

    def _carry_out(self, request: cni_pb2.ExecRequest, deadline: Deadline, steps: Steps) -> bytes:
        """Returns: the result, which only ADD has."""
        services = self._services
        match request.verb:
            case "ADD":
                with steps.step("decode"):
                    wanted = decode_attach(request)
                attachment = services.attach.attach_sandbox(wanted, deadline=deadline, steps=steps)
                steps.pod, steps.address = attachment.sandbox_name, str(attachment.address)
                steps.branch = attachment.eni_id if attachment.branch else ""
                return convert_result(attachment.result, version=wanted.cni_version)
            case "DEL":
                # Only the identity is needed: a DEL whose configuration is damaged must still free its address (I3).
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
        """Whether the plugin takes this for no answer, and asks the next daemon (I17)."""
        return code == NotServingError.cni_code and self._health.phase is Phase.DRAINING

    def _log_request(
        self, request: cni_pb2.ExecRequest, reply: cni_pb2.ExecReply, total_ms: float, steps: Steps, cause: str
    ) -> None:
        code = reply.error.code if reply.HasField("error") else 0
        durations = {name: round(ms, 3) for name, ms in steps.durations_ms.items()}
        self._observer.request_done(request.verb, code=code, total_ms=total_ms, steps_ms=durations, cause=cause)
        if request.verb == "STATUS":  # kubelet asks 12 times a minute, a node that waits far more: only news are logged
            before, self._status_code = self._status_code, code
            if code == before:
                return
        pod = steps.pod or decode_names(request.args).pod
        line = {
            "verb": printable(request.verb, most=VERB_MAX),
            "container_id": printable(request.container_id, most=CONTAINER_ID_MAX),
            "ifname": printable(request.ifname, most=IFNAME_MAX),
            **({"pod": printable(pod)} if pod else {}),
            **({"address": steps.address} if steps.address else {}),
            **({"branch": steps.branch} if steps.branch else {}),
            "outcome": "error" if code else "ok",
            "code": code,
            "ms": round(total_ms, 3),
            "steps_ms": durations,
        }
        if code:
            error = log_text(IpamError(reply.error.message, details=reply.error.details))
            line["error"] = error
            if request.verb == "ADD" and not self._is_left_to_successor(code):
                self._refused(
                    RefusedAdd(request.container_id[:CONTAINER_ID_MAX], request.ifname[:IFNAME_MAX], pod, code, error, cause)
                )
        log.log(logging.WARNING if code else logging.INFO, "request", line)


# Decode the plugin's envelope into typed requests, and encode errors: the only place where CNI's wire and our model meet.
#
# Requests come from a root-owned socket and are not trusted all the same: sizes, types and names are checked, and an invalid one
# is refused with the code that the CNI specification has for it.


PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
"""Oldest and newest envelope version that this daemon speaks."""

VERSION_MAX = 40
"""Characters of a plugin's version that are quoted. Ours."""

MAX_CONFIG_BYTES = 7 * 256 * 1024
"""Largest network configuration. Kubernetes lets a pod have 256 KiB of annotations (apimachinery pkg/api/validation/objectmeta.go,
TotalAnnotationSizeLimitB), which Go's JSON makes six times as large at most; the rest is ours: it has a few KiB."""

NAME_MAX = 255
"""Characters of a network's name. Ours: it is part of file names in CNI's own plugins, and Linux' NAME_MAX bounds those."""

POD_NAME_MAX = 253
"""Characters of a pod's name or namespace. Source: Kubernetes, "Object Names and IDs", DNS subdomain names."""

MAX_NETNS_BYTES = 4096
"""Linux PATH_MAX."""

VALID_ATTACHMENTS = "cni.dev/valid-attachments"
OLD_VALID_ATTACHMENTS = "cni.dev/attachments"
"""The key's name in earlier texts of the specification. libcni sends both; an older runtime sends this one only.

Source: containernetworking/cni issue 1101; libcni/api.go, GCNetworkList.
"""


@dataclass(frozen=True, slots=True)
class NetworkConf:
    """The parts of a network configuration that we use."""

    name: str
    cni_version: str
    prev_result: dict[str, Any] | None
    valid_attachments: frozenset[AttachmentKey] | None
    annotations: Mapping[str, str] | None


def _name(verb: str, request: cni_pb2.ExecRequest) -> str:
    """Of a request, in the last error."""
    return f"{verb} {request.container_id[:13]}"


def negotiate(request: cni_pb2.ExecRequest) -> int:
    """Choose the highest envelope version that both sides speak.

    Raises: IncompatibleVersionError if there is none.
    """
    lowest, highest = max(request.protocol_min, PROTOCOL_MIN), min(request.protocol_max, PROTOCOL_MAX)
    if lowest > highest:
        raise IncompatibleVersionError(
            f"vpc-cni {request.plugin_version[:VERSION_MAX] or '(unknown)'} speaks envelope "
            f"{request.protocol_min}-{request.protocol_max}",
            details=f"this daemon speaks {PROTOCOL_MIN}-{PROTOCOL_MAX}; install plugin and daemon of neighbouring releases",
        )
    return highest


def decode_conf(raw: bytes) -> NetworkConf:
    """Read a network configuration.

    Raises: UndecodableConfigError, InvalidConfigError, IncompatibleVersionError.
    """
    if len(raw) > MAX_CONFIG_BYTES:
        raise InvalidConfigError(f"the network configuration has {len(raw)} bytes", details=f"at most {MAX_CONFIG_BYTES}")
    try:
        conf = _parse(raw)
    except (ValueError, RecursionError) as error:
        raise UndecodableConfigError("the network configuration is not JSON", details=str(error)[:200]) from error
    if not isinstance(conf, dict):
        raise InvalidConfigError("the network configuration is not a JSON object")
    name, version = conf.get("name", ""), conf.get("cniVersion", "")
    prev_result = conf.get("prevResult")
    if not isinstance(name, str) or not isinstance(version, str):
        raise InvalidConfigError("name and cniVersion must be strings")
    require_network_name(name)
    if prev_result is not None and not isinstance(prev_result, dict):
        raise InvalidConfigError("prevResult must be an object")
    if prev_result is not None:
        require_valid(prev_result)
    require_supported(version)
    return NetworkConf(name, version, prev_result, _valid_attachments(conf), _annotations(conf))


def decode_attach(request: cni_pb2.ExecRequest) -> AttachRequest:
    """Read an ADD or CHECK. Raises: InvalidRequestError and the errors of `decode_conf`."""
    conf = decode_conf(request.config)
    require_netns(request.netns)
    return AttachRequest(
        key=parse_key(request.container_id, request.ifname),
        netns=request.netns,
        network_name=conf.name,
        cni_version=conf.cni_version,
        config_digest=hashlib.sha256(request.config).hexdigest(),
        names=decode_names(request.args),
        prev_result=conf.prev_result,
        annotations=conf.annotations,
    )


def decode_names(args: str) -> SandboxNames:
    """Read pod names from CNI_ARGS ("K=V;K=V"). They are aids to people only: a malformed one is left out, not refused."""
    pairs = dict(part.split("=", 1) for part in args.split(";") if "=" in part)
    return SandboxNames(
        pod_namespace=pairs.get("K8S_POD_NAMESPACE", "")[:POD_NAME_MAX],
        pod_name=pairs.get("K8S_POD_NAME", "")[:POD_NAME_MAX],
        pod_uid=pairs.get("K8S_POD_UID", "")[:64],
    )


def require_netns(netns: str) -> None:
    """Check that the path of a network namespace may be one. Raises: InvalidRequestError."""
    if not netns.startswith("/") or "\x00" in netns or len(netns.encode()) > MAX_NETNS_BYTES:
        raise InvalidRequestError(f"CNI_NETNS {netns[:80]!r} is not an absolute path")


def require_network_name(name: str) -> None:
    """Check a network's name. Raises: InvalidConfigError."""
    if not name.isprintable() or len(name) > NAME_MAX:
        raise InvalidConfigError(
            f"the network's name {name[:40]!r} is not valid", details=f"at most {NAME_MAX} printable characters"
        )


def requested_version(raw: bytes) -> str:
    """Return the cniVersion of a configuration for an error reply; an empty string if it cannot be read."""
    try:
        version = _parse(raw).get("cniVersion", "")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return version if isinstance(version, str) and len(version) <= 16 and version.isprintable() else ""


def encode_error(error: BaseException, *, cni_version: str) -> cni_pb2.CniError:
    """Encode any error as a CNI error. Ours carry their code; any other is a defect and gets the general code 100.

    The text is bounded and safe to print: it may quote EC2 or the request, and kubelet puts it into events and logs.
    """
    code, message, details = IpamError.cni_code, "vpc-ipamd met an unexpected error", f"{log_text(error)}; see the daemon's log"
    if isinstance(error, IpamError):
        code, message, details = error.cni_code, error.message, error.details
    return cni_pb2.CniError(code=code, message=printable(message), details=printable(details), cni_version=cni_version)


def _parse(raw: bytes) -> Any:
    """Read JSON as RFC 8259 has it: Python's parser also takes UTF-16, NaN, numbers beyond a double and lone surrogates, and what
    it takes would come out in results that no other parser reads, or break strings that must be UTF-8.

    Raises: ValueError, RecursionError.
    """
    value = json.loads(raw.decode(), parse_constant=_finite, parse_float=_finite)
    if b"\\u" in raw:  # only an escape makes a lone surrogate out of valid UTF-8
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} does not fit into a number")
    return number


def _annotations(conf: dict[str, Any]) -> Mapping[str, str] | None:
    """The pod's annotations that we read, of a map that has 256 KiB and was written by anybody; None if the runtime hands over none.

    null is what Go writes of a map that nothing was put into.
    """
    found = conf.get("runtimeConfig")
    if found is not None and not isinstance(found, dict):
        raise InvalidConfigError("runtimeConfig must be an object")
    annotations = (found or {}).get(POD_ANNOTATIONS)
    if annotations is None:
        return None
    if not isinstance(annotations, dict):
        raise InvalidConfigError(f"{POD_ANNOTATIONS} must be an object")
    read = {name: annotations[name] for name in ANNOTATIONS_READ if name in annotations}
    if not all(isinstance(value, str) for value in read.values()):
        raise InvalidConfigError(f"{POD_ANNOTATIONS}: {', '.join(sorted(read))} must be strings")
    return read


def _valid_attachments(conf: dict[str, Any]) -> frozenset[AttachmentKey] | None:
    """What the list of either key names; None if there is neither. Where they differ, each may only add reasons to keep (I2).

    null is an empty list: Go writes a list that nothing was put into so, and CRI-O calls GC with it on an empty node.
    """
    lists = {
        name: [] if conf[name] is None else conf[name] for name in (VALID_ATTACHMENTS, OLD_VALID_ATTACHMENTS) if name in conf
    }
    if not lists:
        return None
    keys = set()
    for name, entries in lists.items():
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise InvalidConfigError(f"{name} must be a list of objects with containerID and ifname")
        keys |= {parse_key(str(entry.get("containerID", "")), str(entry.get("ifname", ""))) for entry in entries}
    return frozenset(keys)
