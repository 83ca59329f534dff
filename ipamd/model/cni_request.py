"""CNI requests as values, independent of the wire format."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ipamd.model.ids import AttachmentKey
from ipamd.model.record import dataclass, field


@dataclass(frozen=True, slots=True)
class NetnsIdentity:
    """The identity of the network namespace at a path: device and inode of its nsfs file.

    Both are 0 if the identity is not known, which is so for an adopted sandbox.
    """

    device: int
    inode: int


JsonObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SandboxNames:
    """Pod names from the runtime. They select settings and name host veths, for example, but are never evidence against a live sandbox
    (docs/adr/0001).
    """

    pod_namespace: str = ""
    pod_name: str = ""
    pod_uid: str = ""

    @property
    def pod(self) -> str:
        """`namespace/name`, or an empty string."""
        if self.pod_name:
            return f"{self.pod_namespace}/{self.pod_name}"
        return ""


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """One ADD or CHECK.

    `netns`: the path of the sandbox's network namespace.
    `network_name`: `name` of the network configuration.
    `config_digest`: a hash of the network configuration: equal only if the configurations are equal byte for byte.
    `names`: the pod's names, from CNI_ARGS.
    `prev_result`: the result of the plugins before ours in the chain; None if there is none.
    `is_wired_by_caller`: whether the caller is the plugin of amazon-vpc-cni-k8s, which wires the sandbox after the reply.
    `annotations`: the pod's annotations at the moment when the sandbox was begun; None if the runtime does not hand them over.
    `plugin_directories`: the directories in which the caller looks for the plugins of a chain, in its order (CNI_PATH); () if the
        request does not contain them.
    """

    key: AttachmentKey
    netns: str
    network_name: str
    cni_version: str
    config_digest: str
    names: SandboxNames = field(default_factory=SandboxNames)
    prev_result: JsonObject | None = None
    is_wired_by_caller: bool = False
    annotations: Mapping[str, str] | None = None
    plugin_directories: tuple[str, ...] = ()


def fingerprint(request: AttachRequest, identity: NetnsIdentity) -> str:
    """Return a text that identifies a request: the same sandbox namespace, interface and configuration give the same text.

    By this text an ADD is recognised as the repetition of an earlier one (docs/life.md, The life of an ADD).
    """
    material = f"{identity.device}:{identity.inode}\n{request.key.ifname}\n{request.config_digest}"
    return hashlib.sha256(material.encode()).hexdigest()
