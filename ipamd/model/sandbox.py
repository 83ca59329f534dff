"""Values from the container runtime about sandboxes. Pure."""

from __future__ import annotations

from enum import StrEnum

from ipamd.model.ids import ContainerId
from ipamd.model.record import dataclass


class SandboxState(StrEnum):
    """CRI PodSandboxState. Both are reasons to keep: a NOTREADY sandbox has its namespace and address until DEL."""

    READY = "ready"
    NOTREADY = "notready"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One pod sandbox of a CRI list. Pod names are for display only. `eni_annotation`: that of the pod's own ENI, as it was when
    the sandbox was begun; "" if there was none.
    """

    container_id: ContainerId
    state: SandboxState
    pod_namespace: str = ""
    pod_name: str = ""
    pod_uid: str = ""
    eni_annotation: str = ""


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """The runtime that answers, and its socket."""

    name: str
    version: str
    socket: str


@dataclass(frozen=True, slots=True)
class RuntimeView:
    """The state of the connection to the runtime, for `ipamctl` and metrics. `list_age_s` is negative before the first list."""

    reachable: bool
    events: bool
    sandbox_count: int
    list_age_s: float
    detail: str
    missed_events_count: int


class EventKind(StrEnum):
    """Kind of an event. SUBSCRIBED is ours: the stream is open, so a list that starts now misses no later change."""

    SUBSCRIBED = "subscribed"
    CREATED = "created"
    STARTED = "started"
    STOPPED = "stopped"
    DELETED = "deleted"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class SandboxEvent:
    """A hint to list again. `container_id` is a sandbox's or a container's; `sandbox_id` is empty if its sandbox is gone."""

    container_id: str
    sandbox_id: str
    kind: EventKind
