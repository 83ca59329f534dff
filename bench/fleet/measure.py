"""The measurements of one fleet: the waits of pods and nodes, and the average number of used addresses."""

from __future__ import annotations

from bench.fleet.traces import Pod

NO_WAIT_S = 0.1
"""An ADD that got its address sooner did not wait for the pool. Ours: each EC2 call that adds addresses takes longer."""


class Measure:
    """Counts from `begins_s` on.

    pending_count: measured pods that have no address yet.
    waits_s: the wait of each pod that waited.
    node_waits_s: the longest wait of a pod, for each node.
    unserved_count: ADDs that found no address: those that waited, and those that were refused, for each of which the kubelet makes a
        new sandbox.
    """

    def __init__(self, node_count: int, *, begins_s: float, pod_count: int) -> None:
        self.begins_s = begins_s
        self.pending_count = pod_count
        self.used_count = 0
        self.last_s = begins_s
        self.waits_s: list[float] = []
        self.unserved_count = 0
        self.node_waits_s = [0.0] * node_count
        self._used_s = 0.0
        self._since_s = 0.0

    def addressed(self, node: int, pod: Pod, *, now_s: float) -> None:
        """Record that a pod got its address."""
        self._integrate(now_s)
        self.used_count += 1
        if pod.arrives_s < self.begins_s:
            return
        self.pending_count -= 1
        self.last_s = max(self.last_s, now_s)
        wait_s = now_s - pod.arrives_s
        self.node_waits_s[node] = max(self.node_waits_s[node], wait_s)
        if wait_s > NO_WAIT_S:
            self.waits_s.append(wait_s)

    def unserved(self, pod: Pod, *, count: int = 1) -> None:
        """Record that `count` ADDs for a pod found no address."""
        if pod.arrives_s >= self.begins_s:
            self.unserved_count += count

    def left(self, *, now_s: float) -> None:
        """Record that a pod has left."""
        self._integrate(now_s)
        self.used_count -= 1

    def used_average(self, *, now_s: float) -> float:
        """Return how many addresses were in use, on average since `begins_s`."""
        self._integrate(now_s)
        return self._used_s / max(now_s - self.begins_s, 1e-9)

    def _integrate(self, now_s: float) -> None:
        since_s = max(self._since_s, self.begins_s)
        if now_s > since_s:
            self._used_s += self.used_count * (now_s - since_s)
        self._since_s = now_s


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` of the values are; 0.0 if there are none."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else 0.0
