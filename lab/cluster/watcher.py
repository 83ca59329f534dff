"""Watches as an operator does: conditions and taints of nodes, warnings, how long pods take, when daemons were away."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from ipamd.ipamctl.client import DEFAULT_RUN_DIR, Client
from ipamd.ipamctl.verb import AwayError, RefusedError
from lab.cluster import objects
from lab.cluster.api import Api, Object
from lab.cluster.cluster import conditions, is_ready
from lab.node.node import Node

LOOK_S = 0.1  # ours, because: absences take seconds, and a question costs a daemon a fraction of a millisecond


@dataclass
class PodTime:
    """When a pod was first seen and when it was ready, monotonic; `ready_at` 0: not yet."""

    name: str
    node: str = ""
    seen_at: float = 0.0
    ready_at: float = 0.0

    @property
    def start_s(self) -> float:
        """From creation to ready."""
        return self.ready_at - self.seen_at


@dataclass
class Seen:
    """What was seen since the last `Watcher.begin`."""

    changes: list[str] = field(default_factory=list)
    """Of node conditions and taints, one sentence each."""

    warnings: list[str] = field(default_factory=list)
    pods: dict[str, PodTime] = field(default_factory=dict)
    """By UID, those that were made since."""

    absences: list[tuple[str, float, float]] = field(default_factory=list)
    """Node, beginning and end (monotonic), of times in which its daemon did not say that it is ready."""

    def started(self) -> list[PodTime]:
        """The pods that became ready, by name."""
        return sorted((pod for pod in self.pods.values() if pod.ready_at), key=lambda pod: pod.name)

    def absent_s(self, pod: PodTime) -> float:
        """How much of a pod's start its node's daemon was away."""
        spans = ((max(a, pod.seen_at), min(b, pod.ready_at)) for node, a, b in self.absences if node == pod.node)
        return sum(end - begin for begin, end in spans if end > begin)


class Watcher:
    """Watches from its making until `close`. Concurrency: any thread."""

    def __init__(self, api: Api, nodes: Mapping[str, Node]) -> None:
        """Args: nodes: the workers, whose daemons are asked."""
        self._lock = threading.Lock()  # a leaf: guards what was seen
        self._seen = Seen()
        self._states: dict[str, dict[str, str]] = {}
        self._known: set[str] = set()
        self._closed = threading.Event()
        self._watches = [
            api.watch("/api/v1/nodes", self._node),
            api.watch("/api/v1/events", self._event),
            api.watch(objects.collection("pods"), self._pod),
        ]
        self._threads = [threading.Thread(target=self._look, args=(node,), name=f"look-{name}") for name, node in nodes.items()]
        for thread in self._threads:
            thread.start()

    def begin(self) -> None:
        """Forget what was seen; what is there now is no news."""
        with self._lock:
            self._seen = Seen()

    @property
    def seen(self) -> Seen:
        """What was seen since `begin`; a copy of the lists, not of the pods."""
        with self._lock:
            return Seen([*self._seen.changes], [*self._seen.warnings], dict(self._seen.pods), [*self._seen.absences])

    def close(self) -> None:
        """End all watches; idempotent."""
        self._closed.set()
        for watch in self._watches:
            watch.close()
        for thread in self._threads:
            thread.join()

    def _node(self, kind: str, node: Object) -> None:
        name = node["metadata"]["name"]
        state = {f"condition {key}": status for key, (status, _) in conditions(node).items()}
        state |= {f"taint {one['key']}": one["effect"] for one in node["spec"].get("taints", [])}
        with self._lock:
            old = self._states.get(name)
            self._states[name] = state
            if old is None or kind == "DELETED":
                return
            for key in sorted(old.keys() | state.keys()):
                if old.get(key) != state.get(key):
                    self._seen.changes.append(f"{name}: {key} from {old.get(key, 'none')} to {state.get(key, 'none')}")

    def _event(self, kind: str, event: Object) -> None:
        version = f"{event['metadata']['uid']} {event.get('count')} {event.get('series')}"
        with self._lock:
            is_new = version not in self._known
            self._known.add(version)
            if is_new and kind != "DELETED" and event.get("type") == "Warning":
                about = event["involvedObject"]
                self._seen.warnings.append(
                    f"{event['reason']} {about.get('namespace', '')}/{about['name']}: {event.get('message', '')}"
                )

    def _pod(self, kind: str, pod: Object) -> None:
        uid, now = pod["metadata"]["uid"], time.monotonic()
        with self._lock:
            if kind == "ADDED" and uid not in self._known:
                self._known.add(uid)
                self._seen.pods[uid] = PodTime(pod["metadata"]["name"], seen_at=now)
            found = self._seen.pods.get(uid)
            if found is None:
                return
            found.node = pod["spec"].get("nodeName", "")
            if not found.ready_at and is_ready(pod):
                found.ready_at = now

    def _look(self, node: Node) -> None:
        began = 0.0
        while not self._closed.wait(LOOK_S):
            now, status = time.monotonic(), None
            with suppress(AwayError, RefusedError), Client(f"{node.root}{DEFAULT_RUN_DIR}/ipamd.sock") as client:
                status = client.ask("GetStatus")
            if status is not None and status["ready"]:
                if began:
                    with self._lock:
                        self._seen.absences.append((node.name, began, now))
                began = 0.0
            elif not began:
                began = now - LOOK_S
