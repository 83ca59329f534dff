"""Decode the plugin's envelope into typed requests, and encode errors. Results are made in `ipamd/model/cniresult.py`.

Requests come from a socket that only root can open, but they are not trusted. This module checks sizes, types and names, and refuses
an invalid request with the code that the CNI specification has for it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ipamd.model.cni_request import AttachRequest, SandboxNames
from ipamd.model.cni_versions import require_supported
from ipamd.model.errors import (
    IncompatibleVersionError,
    InvalidConfigError,
    InvalidRequestError,
    IpamError,
    UndecodableConfigError,
    log_text,
)
from ipamd.model.failures import FailureCode, failure
from ipamd.model.ids import AttachmentKey, parse_key
from ipamd.model.pod_annotations import ANNOTATIONS_READ, POD_ANNOTATIONS
from ipamd.model.prev_result import require_valid
from ipamd.model.record import dataclass
from ipamd.model.words import printable
from ipamd.pb import cni_pb2

PROTOCOL_MIN = 1
"""Oldest envelope version that this daemon supports."""

PROTOCOL_MAX = 1
"""Newest envelope version that this daemon supports."""

VERSION_MAX = 40
"""The largest number of characters of a plugin's version that are quoted. Ours: a version such as 0.1.0 is much shorter."""

MAX_CONFIG_BYTES = 7 * 256 * 1024
"""Largest network configuration in bytes. Kubernetes allows 256 KiB of annotations for a pod (apimachinery
pkg/api/validation/objectmeta.go, TotalAnnotationSizeLimitB), and the escapes of Go's JSON make them at most six times as long. The
remaining 256 KiB are ours: everything else in a configuration has a few KiB."""

NAME_MAX = 255
"""The largest number of characters of a network's name. Ours: the name is a part of file names in CNI's own plugins, and Linux's
NAME_MAX bounds the length of a file name."""

POD_NAME_MAX = 253
"""The largest number of characters that are kept of a pod's name, and of its namespace. Source: Kubernetes, "Object Names and IDs": a
pod's name is a DNS subdomain name of at most 253 characters, and a namespace's name a label of at most 63."""

MAX_NETNS_BYTES = 4096
"""The largest number of bytes of the path of a network namespace: Linux PATH_MAX."""

PLUGIN_PATH_MAX = 4096
"""The largest number of characters of CNI_PATH. A longer text is ignored. Ours: one or two directories are usual."""

VALID_ATTACHMENTS = "cni.dev/valid-attachments"
"""Key of the list of valid attachments in the configuration of a GC."""

OLD_VALID_ATTACHMENTS = "cni.dev/attachments"
"""Name of the key VALID_ATTACHMENTS in earlier texts of the specification. libcni sends both keys. An older runtime sends only this
key.

Source: containernetworking/cni issue 1101; libcni/api.go, GCNetworkList.
"""


@dataclass(frozen=True, slots=True)
class NetworkConf:
    """The parts of a network configuration that the daemon uses.

    `prev_result`: the result of the plugin before ours, or of an earlier ADD; None if there is none.
    `valid_attachments`: the list of a GC; None if the configuration has none.
    `annotations`: see `_annotations`.
    """

    name: str
    cni_version: str
    prev_result: dict[str, Any] | None
    valid_attachments: frozenset[AttachmentKey] | None
    annotations: Mapping[str, str] | None


def _name(verb: str, request: cni_pb2.ExecRequest) -> str:
    """Return the name of a request, as it stands in the last error of `ipamctl status`: the verb and the beginning of the container
    ID.
    """
    return f"{verb} {request.container_id[:13]}"


def negotiate(request: cni_pb2.ExecRequest) -> int:
    """Choose the highest envelope version that both plugin and daemon support.

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
    """Read the request of an ADD or CHECK. Raises: InvalidRequestError, and the errors of `decode_conf`."""
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
        plugin_directories=decode_directories(request.path),
    )


def decode_directories(path: str) -> tuple[str, ...]:
    """Read CNI_PATH: the directories in which the runtime looks for plugins, in its order.

    Returns: () if the runtime's directories are not known, because CNI_PATH is empty, or one of its parts cannot be a directory.
    """
    if len(path) > PLUGIN_PATH_MAX:
        return ()
    return _directories(path)


@lru_cache(maxsize=8)  # a runtime passes the same path each time
def _directories(path: str) -> tuple[str, ...]:
    directories = tuple(part for part in path.split(":") if part)
    if not all(directory.startswith("/") and directory.isprintable() for directory in directories):
        return ()
    return directories


def decode_names(args: str) -> SandboxNames:
    """Read namespace, name and UID of the pod from CNI_ARGS ("K=V;K=V"). A missing or malformed part is "".

    Values that are longer than Kubernetes allows are cut.
    """
    pairs = dict(part.split("=", 1) for part in args.split(";") if "=" in part)
    return SandboxNames(
        pod_namespace=pairs.get("K8S_POD_NAMESPACE", "")[:POD_NAME_MAX],
        pod_name=pairs.get("K8S_POD_NAME", "")[:POD_NAME_MAX],
        pod_uid=pairs.get("K8S_POD_UID", "")[:64],
    )


def require_netns(netns: str) -> None:
    """Check the path of a network namespace. Raises: InvalidRequestError if it cannot be a path."""
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
    if not isinstance(version, str) or len(version) > 16 or not version.isprintable():
        return ""
    return version


def encode_error(error: BaseException, *, cni_version: str) -> cni_pb2.CniError:
    """Encode any error as a CNI error. An IpamError has a code of its own. Any other error is a defect and gets the general code 100.

    The text is bounded and made safe to print, because it may quote EC2 or the request, and kubelet writes it into events and logs.
    """
    code, message, details = IpamError.cni_code, "vpc-ipamd met an unexpected error", f"{log_text(error)}; see the daemon's log"
    if isinstance(error, IpamError):
        code, message, details = error.cni_code, error.message, error.details
    return cni_pb2.CniError(code=code, message=printable(message), details=printable(details), cni_version=cni_version)


def _parse(raw: bytes) -> Any:
    """Read JSON by RFC 8259.

    Python's parser also accepts UTF-16, NaN, numbers beyond a double and lone surrogates. These are refused, because no other parser
    could read a result with them, or because the result would not be UTF-8. Raises: ValueError, RecursionError.
    """
    value = json.loads(raw.decode(), parse_constant=_finite, parse_float=_finite)
    if b"\\u" in raw:  # in valid UTF-8 only an escape can be a lone surrogate
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} does not fit into a number")
    return number


def _annotations(conf: dict[str, Any]) -> Mapping[str, str] | None:
    """Return the pod's annotations in ANNOTATIONS_READ; None if the runtime passes no annotations.

    All other annotations are dropped, because the whole map may have 256 KiB, and anybody may write it. null counts as no annotations,
    because Go writes it for a map that was never filled. Raises: InvalidConfigError.
    """
    runtime_config = conf.get("runtimeConfig")
    if runtime_config is not None and not isinstance(runtime_config, dict):
        raise failure(InvalidConfigError, FailureCode.ANNOTATIONS_FORM, key="runtimeConfig")
    annotations = (runtime_config or {}).get(POD_ANNOTATIONS)
    if annotations is None:
        return None
    if not isinstance(annotations, dict):
        raise failure(InvalidConfigError, FailureCode.ANNOTATIONS_FORM, key=POD_ANNOTATIONS)
    ours = {name: annotations[name] for name in ANNOTATIONS_READ if name in annotations}
    if not all(isinstance(value, str) for value in ours.values()):
        names = ", ".join(sorted(ours))
        raise failure(InvalidConfigError, FailureCode.ANNOTATION_VALUES, key=POD_ANNOTATIONS, names=names)
    return ours


def _valid_attachments(conf: dict[str, Any]) -> frozenset[AttachmentKey] | None:
    """Return the attachments in the lists under both keys together (I2); None if both keys are absent.

    null counts as an empty list, because Go writes it for a list that was never filled, and CRI-O calls GC with it on an empty node.
    Raises: InvalidConfigError.
    """
    names = [name for name in (VALID_ATTACHMENTS, OLD_VALID_ATTACHMENTS) if name in conf]
    if not names:
        return None
    keys = set()
    for name in names:
        attachments = conf[name]
        if attachments is None:
            attachments = []
        if not isinstance(attachments, list) or not all(isinstance(attachment, dict) for attachment in attachments):
            raise InvalidConfigError(f"{name} must be a list of objects with containerID and ifname")
        for attachment in attachments:
            keys.add(parse_key(str(attachment.get("containerID", "")), str(attachment.get("ifname", ""))))
    return frozenset(keys)
