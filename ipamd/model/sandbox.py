"""What the container runtime and the kernel say about sandboxes, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address

from ipamd.model.attachment import NetnsIdentity
from ipamd.model.ids import AttachmentKey, ContainerId


class SandboxState(StrEnum):
    """CRI PodSandboxState. Both are reasons to keep: a NOTREADY sandbox has its namespace and address until DEL."""

    READY = "ready"
    NOTREADY = "notready"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One pod sandbox of a CRI list. Names are aids to people only."""

    container_id: ContainerId
    state: SandboxState
    pod_namespace: str = ""
    pod_name: str = ""
    pod_uid: str = ""


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """Which runtime answers on which socket."""

    name: str
    version: str
    socket: str


class EventKind(StrEnum):
    """What an event says. SUBSCRIBED is our own: the stream is open, and a list that begins now is not too early."""

    SUBSCRIBED = "subscribed"
    CREATED = "created"
    STARTED = "started"
    STOPPED = "stopped"
    DELETED = "deleted"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class SandboxEvent:
    """A hint to look again. `container_id` may be a sandbox's or a container's; `sandbox_id` is empty if its sandbox is gone."""

    container_id: str
    sandbox_id: str
    kind: EventKind


@dataclass(frozen=True, slots=True)
class HostVeth:
    """One host veth of ours: named with our prefix or carrying our alias. `key`/`address` come from the alias, or are None."""

    name: str
    ifindex: int
    alias: str
    is_dying: bool
    is_up: bool
    key: AttachmentKey | None = None
    address: IPv4Address | None = None


@dataclass(frozen=True, slots=True)
class KernelSurvey:
    """One uninterrupted look at the host namespace.

    `routes`: address/32 in the main table -> name of the device. `to_rules`: addresses with a rule 512 to main.
    `from_rules`: address -> tables of its rules 1536.
    """

    veths: tuple[HostVeth, ...]
    routes: dict[IPv4Address, str]
    to_rules: frozenset[IPv4Address]
    from_rules: dict[IPv4Address, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class NetnsEvidence:
    """What stands at a recorded netns path now: None means that nothing does."""

    path: str
    identity: NetnsIdentity | None
