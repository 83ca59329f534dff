"""Decode the plugin's envelope into typed requests, and encode errors: the only place where CNI's wire and our model meet.

Requests come from a root-owned socket and are not trusted all the same: sizes, types and names are checked, and an invalid one is
refused with the code that the CNI specification has for it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

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

MAX_NETNS_BYTES = 4096
"""Linux PATH_MAX."""

VALID_ATTACHMENTS = "cni.dev/valid-attachments"


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
        conf = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UndecodableConfigError("the network configuration is not JSON", details=str(error)[:200]) from error
    if not isinstance(conf, dict):
        raise InvalidConfigError("the network configuration is not a JSON object")
    name, version = conf.get("name", ""), conf.get("cniVersion", "")
    prev_result, valid = conf.get("prevResult"), conf.get(VALID_ATTACHMENTS)
    if not isinstance(name, str) or not isinstance(version, str):
        raise InvalidConfigError("name and cniVersion must be strings")
    if not name.isprintable() or len(name) > NAME_MAX:
        raise InvalidConfigError(
            f"the network's name {name[:40]!r} is not valid", details=f"at most {NAME_MAX} printable characters"
        )
    if prev_result is not None and not isinstance(prev_result, dict):
        raise InvalidConfigError("prevResult must be an object")
    require_supported(version)
    return NetworkConf(name, version, prev_result, _valid_attachments(valid))


def decode_attach(request: cni_pb2.ExecRequest) -> AttachRequest:
    """Read an ADD or CHECK. Raises: InvalidRequestError and the errors of `decode_conf`."""
    conf = decode_conf(request.config)
    key = decode_key(request)
    netns = request.netns
    if not netns.startswith("/") or "\x00" in netns or len(netns.encode()) > MAX_NETNS_BYTES:
        raise InvalidRequestError(f"CNI_NETNS {netns[:80]!r} is not an absolute path")
    return AttachRequest(
        key=key,
        netns=netns,
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
        pod_namespace=pairs.get("K8S_POD_NAMESPACE", "")[:253],
        pod_name=pairs.get("K8S_POD_NAME", "")[:253],
        pod_uid=pairs.get("K8S_POD_UID", "")[:64],
    )


def requested_version(raw: bytes) -> str:
    """Return the cniVersion of a configuration for an error reply; an empty string if it cannot be read."""
    try:
        version = json.loads(raw).get("cniVersion", "")
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


def _valid_attachments(value: object) -> frozenset[AttachmentKey] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise InvalidConfigError(f"{VALID_ATTACHMENTS} must be a list")
    keys = set()
    for entry in value:
        if not isinstance(entry, dict):
            raise InvalidConfigError(f"{VALID_ATTACHMENTS} must list objects with containerID and ifname")
        keys.add(parse_key(str(entry.get("containerID", "")), str(entry.get("ifname", ""))))
    return frozenset(keys)
