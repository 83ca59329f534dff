"""Decode the plugin's envelope into typed requests, and encode errors: the only place where CNI's wire and our model meet.

Requests come from a root-owned socket and are not trusted all the same: sizes, types and names are checked, and an invalid one is
refused with the code that the CNI specification has for it.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

from ipamd.model.cniresult import require_valid
from ipamd.model.cniversion import require_supported
from ipamd.model.errors import (
    IncompatibleVersionError,
    InvalidConfigError,
    InvalidRequestError,
    IpamError,
    UndecodableConfigError,
    log_text,
)
from ipamd.model.ids import AttachmentKey, parse_key
from ipamd.model.request import AttachRequest, SandboxNames
from ipamd.model.words import printable
from ipamd.pb import cni_pb2

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
"""Oldest and newest envelope version that this daemon speaks."""

VERSION_MAX = 40
"""Characters of a plugin's version that are quoted. Ours."""

MAX_CONFIG_BYTES = 1024 * 1024
"""Largest network configuration. Ours: a conflist entry with prevResult and runtimeConfig is a few KiB."""

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
    return NetworkConf(name, version, prev_result, _valid_attachments(conf))


def decode_attach(request: cni_pb2.ExecRequest) -> AttachRequest:
    """Read an ADD or CHECK. Raises: InvalidRequestError and the errors of `decode_conf`."""
    conf = decode_conf(request.config)
    key = decode_key(request)
    require_netns(request.netns)
    return AttachRequest(
        key=key,
        netns=request.netns,
        network_name=conf.name,
        cni_version=conf.cni_version,
        config_digest=hashlib.sha256(request.config).hexdigest(),
        names=decode_names(request.args),
        prev_result=conf.prev_result,
    )


def decode_key(request: cni_pb2.ExecRequest) -> AttachmentKey:
    """Read the identity of any request about one sandbox. Raises: InvalidRequestError."""
    return parse_key(request.container_id, request.ifname)


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
    value = json.loads(raw.decode(), parse_constant=_refuse_constant, parse_float=_finite)
    if b"\\u" in raw:  # only an escape makes a lone surrogate out of valid UTF-8
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} does not fit into a number")
    return number


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
