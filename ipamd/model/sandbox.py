"""What the container runtime says about sandboxes, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ipamd.model.ids import ContainerId


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


@dataclass(frozen=True, slots=True)
class RuntimeView:
    """What the daemon knows of the runtime, for `ipamctl` and metrics. `list_age_s` is negative before the first list."""

    reachable: bool
    events: bool
    sandbox_count: int
    list_age_s: float
    detail: str
    missed_events_count: int


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
