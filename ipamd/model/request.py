"""Decoded CNI requests: values, no wire format."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ipamd.model.attachment import NetnsIdentity
from ipamd.model.ids import AttachmentKey

JsonObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SandboxNames:
    """Pod names from the runtime, for display only; no decision uses them (docs/adr/0001)."""

    pod_namespace: str = ""
    pod_name: str = ""
    pod_uid: str = ""

    @property
    def pod(self) -> str:
        """`namespace/name`, or an empty string."""
        return f"{self.pod_namespace}/{self.pod_name}" if self.pod_name else ""


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """One ADD (or CHECK). `config_digest` identifies the network configuration, byte for byte.

    `is_wired_by_caller`: by the plugin of amazon-vpc-cni-k8s, which wires the sandbox after the reply.
    """

    key: AttachmentKey
    netns: str
    network_name: str
    cni_version: str
    config_digest: str
    names: SandboxNames = field(default_factory=SandboxNames)
    prev_result: JsonObject | None = None
    is_wired_by_caller: bool = False


def fingerprint(request: AttachRequest, identity: NetnsIdentity) -> str:
    """Identify a request: the same sandbox namespace, interface and configuration give the same text.

    A repeated ADD is recognised by it (docs/life.md, The life of an ADD).
    """
    material = f"{identity.device}:{identity.inode}\n{request.key.ifname}\n{request.config_digest}"
    return hashlib.sha256(material.encode()).hexdigest()
