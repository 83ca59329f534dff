"""A small store of pods: what the API server would have of them, and what admission makes of a pod that a policy selects.

Two admissions are played. The controller's webhook puts the limit `vpc.amazonaws.com/pod-eni` on container 0 of a pod that a
SecurityGroupPolicy selects; it fails open, so it can miss a pod. After it the policy of manifests/pod-eni/, if any, sets the mark.
Source: amazon-vpc-resource-controller-k8s webhooks/core/pod_webhook.go.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from lab.errors import LabError

POD_ENI = "vpc.amazonaws.com/pod-eni"
MARK, REQUIRED, NONE = "vpc-ipamd/pod-eni", "required", "none"
CONFIG_SOURCE, CONFIG_SEEN = "kubernetes.io/config.source", "kubernetes.io/config.seen"


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod at one moment.

    `node`: "" until it is bound. `groups`: of its SecurityGroupPolicy; what it must have, whatever admission made of it. `limits`: of
    container 0. `is_over`: all its containers have ended.
    """

    namespace: str
    name: str
    uid: str
    node: str = ""
    groups: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    is_static: bool = False
    is_over: bool = False
    bound_at_s: float = 0.0

    @property
    def key(self) -> str:
        """`namespace/name`: of one pod at a time."""
        return f"{self.namespace}/{self.name}"

    @property
    def wants_branch(self) -> bool:
        """Whether a container limits the resource; all that the controller and kubelet go by."""
        return POD_ENI in self.limits


@dataclass(frozen=True)
class PodEvent:
    """What became of a pod: ADDED, MODIFIED or DELETED, and the pod as it is or was."""

    kind: str
    pod: Pod


class PodGoneError(LabError):
    """There is no such pod any more, or another of its name."""


class PodStore:
    """The pods. Thread-safe. Listeners are called in the order of the changes, and must return at once."""

    def __init__(self, *, has_mark_policy: bool = True) -> None:
        """Args: has_mark_policy: whether the admission policy of manifests/pod-eni/ is in force; `has_mark_policy` changes it."""
        self.has_mark_policy = has_mark_policy
        self.webhook_misses = 0
        """How many of the next pods the controller's webhook does not see."""
        self._pods: dict[str, Pod] = {}
        self._changed = threading.Condition(threading.RLock())
        self._version = 0
        self._listeners: list[Callable[[PodEvent], None]] = []

    def create(
        self,
        name: str,
        *,
        namespace: str = "default",
        node: str = "",
        groups: tuple[str, ...] = (),
        annotations: Mapping[str, str] | None = None,
        is_static: bool = False,
    ) -> Pod:
        """Make a pod, through admission unless it is static, and bind it if a node is named. Raises: LabError if the name is taken."""
        with self._changed:
            if f"{namespace}/{name}" in self._pods:
                raise LabError(f"there is a pod {namespace}/{name}")
            pod = Pod(namespace=namespace, name=name, uid=str(uuid.uuid4()), groups=groups, annotations=dict(annotations or {}))
            pod = replace(pod, is_static=True) if is_static else self._admitted(pod)
            self._put(pod, "ADDED")
            return self.bind(pod, node) if node else pod

    def bind(self, pod: Pod, node: str) -> Pod:
        """What the scheduler does. Raises: PodGoneError."""
        return self._change(pod, lambda old: replace(old, node=node, bound_at_s=time.monotonic()))

    def annotate(self, pod: Pod, name: str, value: str) -> Pod:
        """Set an annotation. Raises: PodGoneError."""
        return self._change(pod, lambda old: replace(old, annotations={**old.annotations, name: value}))

    def end(self, pod: Pod) -> Pod:
        """Its containers have ended, as a Job's do: the controller takes its branch back. Raises: PodGoneError."""
        return self._change(pod, lambda old: replace(old, is_over=True))

    def delete(self, pod: Pod) -> None:
        """Remove it, if it is there; a younger one of its name stays."""
        with self._changed:
            if (old := self._pods.get(pod.key)) is not None and old.uid == pod.uid:
                del self._pods[pod.key]
                self._tell(PodEvent("DELETED", old))

    def get(self, pod: Pod) -> Pod:
        """The pod as it is now. Raises: PodGoneError."""
        with self._changed:
            found = self._pods.get(pod.key)
            if found is None or found.uid != pod.uid:
                raise PodGoneError(f"pod {pod.key} with UID {pod.uid} is gone")
            return found

    def pods(self, *, node: str = "") -> list[Pod]:
        """List the pods, of all nodes or those bound to one, in order of creation."""
        with self._changed:
            return [pod for pod in self._pods.values() if not node or pod.node == node]

    @property
    def version(self) -> int:
        """A number that grows with each change."""
        with self._changed:
            return self._version

    def wait(self, seen: int, *, timeout_s: float) -> int:
        """Return the version when it is no more `seen`, or after the time."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != seen, timeout_s)
            return self._version

    def wake(self) -> None:
        """End the waits, though no pod has changed."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def subscribe(self, listener: Callable[[PodEvent], None]) -> Callable[[], None]:
        """Tell a listener of each change from now on. Returns: what ends it."""
        with self._changed:
            self._listeners.append(listener)

        def end() -> None:
            with self._changed:
                self._listeners.remove(listener)

        return end

    def _admitted(self, pod: Pod) -> Pod:
        if pod.groups and self.webhook_misses == 0:
            pod = replace(pod, limits={POD_ENI: "1"})
        elif pod.groups:
            self.webhook_misses -= 1
        if self.has_mark_policy:
            pod = replace(pod, annotations={**pod.annotations, MARK: REQUIRED if pod.wants_branch else NONE})
        return pod

    def _change(self, pod: Pod, change: Callable[[Pod], Pod]) -> Pod:
        with self._changed:
            changed = change(self.get(pod))
            self._put(changed, "MODIFIED")
            return changed

    def _put(self, pod: Pod, kind: str) -> None:
        self._pods[pod.key] = pod
        self._tell(PodEvent(kind, pod))

    def _tell(self, event: PodEvent) -> None:
        self._version += 1
        for listener in tuple(self._listeners):
            listener(event)
        self._changed.notify_all()
