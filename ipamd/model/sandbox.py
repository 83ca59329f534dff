"""Values from the container runtime about sandboxes. Pure."""

from __future__ import annotations

from enum import StrEnum

from ipamd.model.ids import ContainerId
from ipamd.model.record import dataclass


class SandboxState(StrEnum):
    """CRI's PodSandboxState. A sandbox in either state is kept: a NOTREADY sandbox has its namespace and address until its DEL."""

    READY = "ready"
    NOTREADY = "notready"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One pod sandbox of a CRI list, with the names of its pod, which may be cut.

    `eni_annotation`: the annotation `pod_annotations.POD_ENI` at the moment when the sandbox was begun; "" if there was none.
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
    """The state of the connection to the runtime, for `ipamctl` and metrics.

    `reachable`: whether the last list was complete.
    `events`: whether the event stream is open.
    `sandbox_count`: the number of sandboxes in the last list.
    `list_age_s`: seconds since the last list; negative before the first list.
    `detail`: further information in words; "" if there is none.
    `missed_events_count`: how many changes a list showed that no event had announced.
    """

    reachable: bool
    events: bool
    sandbox_count: int
    list_age_s: float
    detail: str
    missed_events_count: int


class EventKind(StrEnum):
    """Kind of an event. SUBSCRIBED is not an event of CRI: with it our adapter reports that the stream is open, as far as that can be
    known.
    """

    SUBSCRIBED = "subscribed"
    CREATED = "created"
    STARTED = "started"
    STOPPED = "stopped"
    DELETED = "deleted"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class SandboxEvent:
    """An event of the runtime, after which the sandboxes are listed again. With SUBSCRIBED both IDs are "".

    `container_id`: the ID of a sandbox or of a container.
    `sandbox_id`: the ID of the sandbox itself, or of the sandbox that has the container; "" if the sandbox is gone.
    """

    container_id: str
    sandbox_id: str
    kind: EventKind
