"""Record what an operator would notice: changes of node conditions and taints, warnings, start times of pods, absences of daemons."""

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

LOOK_S = 0.1  # ours: absences take seconds, so 0.1 s is exact enough, and a request costs a daemon less than a millisecond


@dataclass
class PodTime:
    """The start of one pod. `seen_at`, `ready_at`: monotonic times in seconds when it was first seen, and when it was first ready; 0
    if it was not ready yet."""

    name: str
    node: str = ""
    seen_at: float = 0.0
    ready_at: float = 0.0

    @property
    def start_s(self) -> float:
        """Seconds from the pod's creation until it was ready."""
        return self.ready_at - self.seen_at


@dataclass
class Seen:
    """The observations since the last `Watcher.begin`.

    changes: a sentence for each change of a node's condition or taint.
    warnings: warning events.
    pods: UID -> start of each pod that was created since.
    absences: node, begin and end of each time in which its daemon did not report that it is ready (monotonic, in seconds).
    """

    changes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    pods: dict[str, PodTime] = field(default_factory=dict)
    absences: list[tuple[str, float, float]] = field(default_factory=list)

    def started(self) -> list[PodTime]:
        """List the pods that became ready, sorted by name."""
        return sorted((pod for pod in self.pods.values() if pod.ready_at), key=lambda pod: pod.name)

    def absent_s(self, pod: PodTime) -> float:
        """Return the seconds of a pod's start in which its node's daemon was away."""
        spans = ((max(a, pod.seen_at), min(b, pod.ready_at)) for node, a, b in self.absences if node == pod.node)
        return sum(end - begin for begin, end in spans if end > begin)


class Watcher:
    """Records the observations until `close`. Concurrency: any thread."""

    def __init__(self, api: Api, nodes: Mapping[str, Node]) -> None:
        """Start to watch. `nodes`: the workers, whose daemons are polled."""
        self._lock = threading.Lock()  # guards the observations; no other lock is taken under it
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
        """Drop all observations. Objects that exist now are not reported again."""
        with self._lock:
            self._seen = Seen()

    @property
    def seen(self) -> Seen:
        """The observations since `begin`. The lists are copies; the `PodTime` objects are not, and may still change."""
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
        state |= {f"taint {taint['key']}": taint["effect"] for taint in node["spec"].get("taints", [])}
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
            pod_time = self._seen.pods.get(uid)
            if pod_time is None:
                return
            pod_time.node = pod["spec"].get("nodeName", "")
            if not pod_time.ready_at and is_ready(pod):
                pod_time.ready_at = now

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
