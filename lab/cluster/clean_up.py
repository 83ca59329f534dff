"""A node goes back to amazon-vpc-cni-k8s for good: `kubectl ipamd clean-up` removes our objects, also after the last pod has gone.

The step checks which of our objects and files the commands of docs/migration.md leave. `migration.py` checks a node whose pods stay.
Its stand-in for amazon-vpc-cni-k8s is used here too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ipamd.model.kernel_numbers import OWN_TABLE, STRICT_TABLE
from ipamd.process.clean_up import EXIT_REFUSED
from lab.cluster import judge, objects
from lab.cluster.cluster import NAMESPACE, RELEASE, WORKERS, Release
from lab.cluster.debug_pods import DebugPods, said
from lab.cluster.flow import Flow
from lab.cluster.migration import LABEL, OTHER, TAKEOVER_TIMEOUT_S, other_daemon
from lab.cluster.report import Report
from lab.cluster.trial import START_TIMEOUT_S, Trial, containers_ready
from lab.node.node import Node

REMOVE_FILES = (
    "kubectl debug node/NODE -n kube-system -it --image=IMAGE --profile=sysadmin \\\n"
    "-- sh -c 'cd /host && rm -rf opt/cni/bin/vpc-cni* etc/cni/net.d/*vpc-ipamd* etc/cni/net.d/.*vpc-ipamd* \\\n"
    "run/vpc-ipamd var/lib/vpc-ipamd'"
)
KEPT_FILES = [
    "/etc/cni/net.d/.10-vpc-ipamd.conflist.ours",
    "/etc/cni/net.d/10-vpc-ipamd.conflist.vpc-ipamd-exported",
    "/opt/cni/bin/vpc-cni",
    "/run/vpc-ipamd",
    "/var/lib/vpc-ipamd",
]
"""The files that a clean-up may leave, by docs/migration.md. The runtime does not read conflists with such names."""

PLACES = ("/opt/cni/bin/vpc-cni*", "/run/vpc-ipamd*", "/var/lib/vpc-ipamd*", "/etc/cni/net.d/*vpc-ipamd*")
FOREIGN_PRIORITIES = {0, 512, 1024, 1536, 32765, 32766, 32767}
"""Priorities of the kernel's own rules, and of the rules of amazon-vpc-cni-k8s (its pkg/networkutils/network.go)."""


class CleanUp:
    """The step "clean-up" of the story. Concurrency: one thread."""

    def __init__(self, trial: Trial, report: Report, *, now: Release) -> None:
        """Make the object; nothing happens yet. `now`: the release that is installed."""
        self._trial, self._cluster, self._api = trial, trial.cluster, trial.api
        self._report = report
        self._now = now
        self._name = WORKERS[1]

    @property
    def _node(self) -> Node:
        return self._cluster.nodes[self._name]

    def run(self) -> None:
        """Run the step and record its verdicts. Afterwards the cluster is as before."""
        cluster = self._cluster
        self._debug_pods = DebugPods(self._trial, self._report, now=self._now)
        cluster.kubectl("label", "node", *WORKERS, f"{LABEL}=yes")
        cluster.install(replace(self._now, values={"nodeSelector": {LABEL: "yes"}}))
        cluster.wait_rolled_out("daemonsets", RELEASE, namespace=NAMESPACE)
        other = other_daemon(cluster.towards_the_lab(), self._now)
        self._api.create(objects.collection("daemonsets", namespace=NAMESPACE), other)
        try:
            self._refused()
            self._under_pods()
            self._without_pods()
        finally:
            self._bring_back()
        self._trial.respread()
        pods = self._trial.pods_on(self._name)
        detail = f"{len(pods)} pods on {self._name}; {judge.settle(cluster)}"
        self._report.check("clean-up: the node comes over again, and pods start on it", bool(pods), detail)

    def _refused(self) -> None:
        had = sorted(self._in_kernel())
        done = self._debug_pods.clean_up(self._name)
        ok = done.returncode == EXIT_REFUSED and bool(had) and sorted(self._in_kernel()) == had
        self._report.check("clean-up: is refused while our daemon runs", ok, f"status {done.returncode}; {said(done)}")

    def _under_pods(self) -> None:
        """Do steps 1 to 3 of docs/migration.md for a node that goes back, while its pods run."""
        flow = Flow(self._trial.control, self._trial.pods_on(self._name).values())
        try:
            self._trial.in_daemon(self._name, "ipamctl", "export")
            self._cluster.kubectl("label", "node", self._name, f"{LABEL}-")
            self._api.wait(self._not_theirs, what="the other's", timeout_s=START_TIMEOUT_S)
            done = self._debug_pods.clean_up(self._name)
        finally:
            flow.close_asking()
        self._report.check("clean-up: pods of ours answer all the time", *flow.verdict())
        self._report.check("clean-up: ends with status 0", done.returncode == 0, f"status {done.returncode}; {said(done)}")
        self._debug_pods.gone("clean-up: its debug pods are gone")

    def _without_pods(self) -> None:
        """Do step 4 of docs/migration.md: after the last pod has gone, check what is left, and remove our files."""
        self._cluster.kubectl("drain", self._name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
        left = [*self._in_kernel()]
        self._report.check("clean-up: no table, rule and route of ours is left", not left, "; ".join(left) or "none")
        files = self._files()
        self._report.check("clean-up: of our files only those of the page stay", set(files) <= set(KEPT_FILES), ", ".join(files))
        done = self._debug_pods.run_by_hand(REMOVE_FILES, self._name)
        files = self._files()
        self._report.check("clean-up: plugin and datastore go by the page's command", not files, f"{files}; {said(done)}")
        self._debug_pods.gone("clean-up: the debug pod made by hand is gone")

    def _bring_back(self) -> None:
        cluster = self._cluster
        cluster.kubectl("label", "node", *WORKERS, f"{LABEL}=yes", "--overwrite")
        cluster.kubectl("delete", "daemonset", OTHER, "--namespace", NAMESPACE, "--ignore-not-found")
        cluster.kubectl("uncordon", self._name)
        cluster.install(self._now)
        cluster.wait_rolled_out("daemonsets", RELEASE, namespace=NAMESPACE, timeout_s=TAKEOVER_TIMEOUT_S)
        cluster.kubectl("label", "node", *WORKERS, f"{LABEL}-")

    def _not_theirs(self) -> str:
        ours = [pod for pod in self._cluster.daemon_pods() if pod["spec"].get("nodeName") == self._name]
        pods = self._api.items(f"{objects.collection('pods', namespace=NAMESPACE)}?labelSelector=k8s-app%3D{OTHER}")
        theirs = [pod for pod in pods if pod["spec"].get("nodeName") == self._name and containers_ready(pod)]
        return "" if theirs and not ours else f"{len(ours)} pods of ours, {len(theirs)} of the other ready"

    def _in_kernel(self) -> Iterator[str]:
        """Yield the nftables tables, rules and routes on the node that only vpc-ipamd makes."""
        yield from (line for line in self._node.run(["nft", "list", "tables"]).stdout.splitlines() if "vpc-ipamd" in line)
        own_table = re.compile(rf"\btable ({OWN_TABLE}|{STRICT_TABLE})\b")
        for family in ("-4", "-6"):
            rules = json.loads(self._node.run(["ip", "-j", family, "rule"]).stdout)
            yield from (f"ip {family} rule {rule}" for rule in rules if rule["priority"] not in FOREIGN_PRIORITIES)
            routes = self._node.run(["ip", family, "route", "show", "table", "all"]).stdout.splitlines()
            yield from (f"ip {family} route {route}" for route in routes if own_table.search(route))

    def _files(self) -> list[str]:
        root = Path(self._node.root)
        return sorted(f"/{path.relative_to(root)}" for place in PLACES for path in root.glob(place.lstrip("/")))
