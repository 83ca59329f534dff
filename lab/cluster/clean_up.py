"""A node that goes back for good: what `kubectl ipamd clean-up` and docs/migration.md leave of ours on it when its last pod is gone.

`migration.py` tries the same under pods that stay. The other software is that file's stand-in.
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
"""What a clean-up may leave, by the page. The runtime takes no file with such a name as a conflist."""

PLACES = ("/opt/cni/bin/vpc-cni*", "/run/vpc-ipamd*", "/var/lib/vpc-ipamd*", "/etc/cni/net.d/*vpc-ipamd*")
FOREIGN_PRIORITIES = {0, 512, 1024, 1536, 32765, 32766, 32767}
"""Of the kernel's own rules and of amazon-vpc-cni-k8s's. Source of the latter: pkg/networkutils/network.go."""


class CleanUp:
    """The step. Concurrency: one thread."""

    def __init__(self, trial: Trial, report: Report, *, now: Release) -> None:
        """Nothing happens yet. Args: now: what is installed."""
        self._trial, self._cluster, self._api = trial, trial.cluster, trial.api
        self._report = report
        self._now = now
        self._name = WORKERS[1]

    @property
    def _node(self) -> Node:
        return self._cluster.nodes[self._name]

    def run(self) -> None:
        """Make the verdicts; the cluster is as it was afterwards."""
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
        """The page's steps 1 to 3."""
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
        """Step 4."""
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
        """What nobody else would have made, by nft and ip."""
        yield from (one for one in self._node.run(["nft", "list", "tables"]).stdout.splitlines() if "vpc-ipamd" in one)
        own_table = re.compile(rf"\btable ({OWN_TABLE}|{STRICT_TABLE})\b")
        for family in ("-4", "-6"):
            rules = json.loads(self._node.run(["ip", "-j", family, "rule"]).stdout)
            yield from (f"ip {family} rule {one}" for one in rules if one["priority"] not in FOREIGN_PRIORITIES)
            routes = self._node.run(["ip", family, "route", "show", "table", "all"]).stdout.splitlines()
            yield from (f"ip {family} route {one}" for one in routes if own_table.search(one))

    def _files(self) -> list[str]:
        root = Path(self._node.root)
        return sorted(f"/{path.relative_to(root)}" for place in PLACES for path in root.glob(place.lstrip("/")))
