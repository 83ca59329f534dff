"""A node loses its power under churn and boots again: its pods come back by themselves, and nobody gets an address too early."""

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
"""IP_COOLDOWN_PERIOD's default, which the chart leaves."""

SHORT_LIVED = 3
LOOK_S = 0.25


class Given:
    """Notes when a node's containerd first has a sandbox with each address, from its making until `close`."""

    def __init__(self, node: Node) -> None:
        """It begins at once; a node without a runtime has no sandbox."""
        self.first_at: dict[str, float] = {}
        """Address -> monotonic."""
        self._node = node
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="given")
        self._thread.start()

    def close(self) -> None:
        """End it; idempotent."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            with suppress(LabError):
                for address in judge.sandboxes(self._node).values():
                    self.first_at.setdefault(address, time.monotonic())


def too_early(freed_at: Mapping[str, float], first_at: Mapping[str, float]) -> list[str]:
    """The addresses that somebody had again within COOLDOWN_S, each with how soon. Both: address -> monotonic."""
    soon = ((one, first_at[one] - at) for one, at in sorted(freed_at.items()) if one in first_at)
    return [f"{address} after {spent:.1f} s" for address, spent in soon if spent < COOLDOWN_S]


class Reboot:
    """The step. Concurrency: one thread."""

    def __init__(self, trial: Trial, report: Report) -> None:
        """Nothing happens yet."""
        self._trial, self._cluster, self._api = trial, trial.cluster, trial.api
        self._report = report
        self._name = WORKERS[1]

    def run(self) -> None:
        """Make the verdicts."""
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
        told = trial.in_daemon(name, "ipamctl", "history", address)
        ok = named[address] in told and "booted" in told
        self._report.check(
            "its reboot: the history tells who had an address before it", ok, f"{address}: {named[address]}, booted"
        )

    def _cut_and_boot(self, freed_at: dict[str, float]) -> Given:
        """Cut the power, and return when the node's pods are ready again; `freed_at` gets what its sandboxes had."""
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
        """Make some pods there and delete them. Returns: address -> when it was freed at the earliest."""
        names = [f"short-lived-{number}" for number in range(SHORT_LIVED)]
        for name in names:
            self._api.create(objects.collection("pods"), objects.lone_pod(name, node=self._name))

        def addresses() -> dict[str, str]:
            pods = {pod["metadata"]["name"]: pod["status"].get("podIP", "") for pod in self._cluster.pods()}
            return {name: pods[name] for name in names if pods.get(name)}

        wait = self._api.wait
        wait(lambda: "" if len(addresses()) == SHORT_LIVED else "not all have one", what="given", timeout_s=START_TIMEOUT_S)
        found = dict.fromkeys(addresses().values(), time.monotonic())
        for name in names:
            self._api.delete(f"{objects.collection('pods')}/{name}")
        wait(self._trial.left, what="rid of them", timeout_s=START_TIMEOUT_S)
        return found

    def _boot_id(self) -> str:
        return str(self._api.get(f"/api/v1/nodes/{self._name}")["status"]["nodeInfo"]["bootID"])
