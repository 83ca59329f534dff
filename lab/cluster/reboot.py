"""A node loses its power while pods come and go, and boots again. Its pods must come back by themselves, and no address may be
assigned again before its cooldown is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from lab.cluster import judge, objects
from lab.cluster.churn import Churn
from lab.cluster.cluster import NAMESPACE, RELEASE, WORKERS
from lab.cluster.flow import Flow
from lab.cluster.report import Report
from lab.cluster.trial import ECHO, START_TIMEOUT_S, Trial
from lab.errors import LabError
from lab.node.node import Node

COOLDOWN_S = 30.0
"""The default of IP_COOLDOWN_PERIOD, which the chart does not change."""

SHORT_LIVED = 3
LOOK_S = 0.25


class Given:
    """Records when the containerd of a node first has a sandbox with an address, until `close`.

    first_at: address -> monotonic time in seconds.
    """

    def __init__(self, node: Node) -> None:
        """Start the thread. While the node has no runtime, it has no sandboxes."""
        self.first_at: dict[str, float] = {}
        self._node = node
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="given")
        self._thread.start()

    def close(self) -> None:
        """End the thread; idempotent."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            with suppress(LabError):
                for address in judge.sandboxes(self._node).values():
                    self.first_at.setdefault(address, time.monotonic())


def too_early(freed_at: Mapping[str, float], first_at: Mapping[str, float]) -> list[str]:
    """List the addresses that were assigned again within COOLDOWN_S, each with the time that had passed.

    `freed_at`, `first_at`: address -> monotonic time in seconds when it was freed, and when a sandbox first had it afterwards.
    """
    spans = ((address, first_at[address] - at) for address, at in sorted(freed_at.items()) if address in first_at)
    return [f"{address} after {spent:.1f} s" for address, spent in spans if spent < COOLDOWN_S]


class Reboot:
    """The step "reboot" of the story. Concurrency: one thread."""

    def __init__(self, trial: Trial, report: Report) -> None:
        """Make the object; nothing happens yet."""
        self._trial, self._cluster, self._api = trial, trial.cluster, trial.api
        self._report = report
        self._name = WORKERS[1]

    def run(self) -> None:
        """Run the step and record its verdicts."""
        trial, cluster, name = self._trial, self._cluster, self._name
        pods = trial.pods_on(name)
        named = {pod["status"]["podIP"]: pod["metadata"]["name"] for pod in cluster.pods(ECHO)}
        freed_at = self._short_lived()
        flow = Flow(trial.control, trial.pods_on(WORKERS[0]).values())
        churn = Churn(self._api)
        try:
            given = self._cut_and_boot(freed_at)
        finally:
            churn.close()
            flow.close_asking()
        self._report.check("its reboot: pods of the other node answer meanwhile", *flow.verdict())
        after = trial.pods_on(name)
        ok = after.keys() == pods.keys()
        self._report.check(
            "its reboot: the same pods come back", ok, f"{len(after)} pods" if ok else f"before {pods}, after {after}"
        )
        early, again = too_early(freed_at, given.first_at), len(freed_at.keys() & given.first_at.keys())
        detail = "; ".join(early) or f"{len(freed_at)} addresses freed within the cooldown, {again} of them given again since"
        self._report.check("its reboot: no address is given again before it has cooled", not early, detail)
        self._api.wait(trial.left, what="rid of the churn's pods", timeout_s=START_TIMEOUT_S)
        self._report.check("its reboot: all parties agree afterwards", True, judge.settle(cluster))
        self._api.wait(trial.service_problem, what="served again", timeout_s=START_TIMEOUT_S)
        address = next(iter(pods.values()))
        history = trial.in_daemon(name, "ipamctl", "history", address)
        ok = named[address] in history and "booted" in history
        self._report.check(
            "its reboot: the history tells who had an address before it", ok, f"{address}: {named[address]}, booted"
        )

    def _cut_and_boot(self, freed_at: dict[str, float]) -> Given:
        """Cut the power, and return when the node's pods are ready again. The addresses of its sandboxes are added to `freed_at`.

        Returns: the record of the addresses that sandboxes had since the boot.
        """
        cluster, boot_id = self._cluster, self._boot_id()
        had, cut_at = judge.sandboxes(cluster.nodes[self._name]), time.monotonic()
        freed_at |= dict.fromkeys(had.values(), cut_at)
        cluster.reboot(self._name)
        given = Given(cluster.nodes[self._name])
        try:
            self._api.wait(
                lambda: "" if self._boot_id() != boot_id else "the boot ID of before", what="booted", timeout_s=START_TIMEOUT_S
            )
            cluster.wait_nodes_ready()
            ready_s = time.monotonic() - cut_at
            cluster.wait_rolled_out("daemonsets", RELEASE, namespace=NAMESPACE)
            cluster.wait_rolled_out("deployments", ECHO, timeout_s=START_TIMEOUT_S)
            back_s = time.monotonic() - cut_at
        finally:
            given.close()
        self._report.figures["reboot_s"] = {"node_ready": round(ready_s, 1), "pods_ready": round(back_s, 1)}
        detail = f"{ready_s:.1f} s after its power was cut, its pods after {back_s:.1f} s"
        self._report.check("a rebooted node is ready again, with another boot ID", True, detail)
        return given

    def _short_lived(self) -> dict[str, float]:
        """Create some pods on the node and delete them. Returns: address -> earliest monotonic time at which it may have been
        freed."""
        names = [f"short-lived-{number}" for number in range(SHORT_LIVED)]
        for name in names:
            self._api.create(objects.collection("pods"), objects.lone_pod(name, node=self._name))

        def addresses() -> dict[str, str]:
            pods = {pod["metadata"]["name"]: pod["status"].get("podIP", "") for pod in self._cluster.pods()}
            return {name: pods[name] for name in names if pods.get(name)}

        wait = self._api.wait
        wait(lambda: "" if len(addresses()) == SHORT_LIVED else "not all have one", what="given", timeout_s=START_TIMEOUT_S)
        freed_at = dict.fromkeys(addresses().values(), time.monotonic())
        for name in names:
            self._api.delete(f"{objects.collection('pods')}/{name}")
        wait(self._trial.left, what="rid of them", timeout_s=START_TIMEOUT_S)
        return freed_at

    def _boot_id(self) -> str:
        return str(self._api.get(f"/api/v1/nodes/{self._name}")["status"]["nodeInfo"]["bootID"])
