"""What is measured of one fleet: who waited for how long, how many addresses were held and used on average."""

from __future__ import annotations

from bench.fleet.traces import Pod

NO_WAIT_S = 0.1
"""An ADD that got its address sooner did not wait for the pool. Ours."""


class Measure:
    """Counts from `begins_s` on. `pending_count`: measured pods without an address. `waits_s`: of pods. `unserved_count`: ADDs that
    found no address: refused ones, each a sandbox of its own for the kubelet, and those that waited."""

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
        """A pod has its address."""
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
        """So many ADDs for a pod found no address."""
        if pod.arrives_s >= self.begins_s:
            self.unserved_count += count

    def left(self, *, now_s: float) -> None:
        """A pod has gone."""
        self._integrate(now_s)
        self.used_count -= 1

    def used_average(self, *, now_s: float) -> float:
        """Addresses in use on average since the begin."""
        self._integrate(now_s)
        return self._used_s / max(now_s - self.begins_s, 1e-9)

    def _integrate(self, now_s: float) -> None:
        since_s = max(self._since_s, self.begins_s)
        if now_s > since_s:
            self._used_s += self.used_count * (now_s - since_s)
        self._since_s = now_s


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of them are; 0.0 of none."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else 0.0
