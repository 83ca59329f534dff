"""A node moves from a stand-in for amazon-vpc-cni-k8s to vpc-ipamd with its pods, back again, and over once more.

The step uses the commands of docs/migration.md, and its way to move a node: a node label that the affinity of both DaemonSets reads.
*The other* software is the stand-in lab/node/aws_node.py. It runs in the node's own file system, started by a pod that is named as a
pod of amazon-vpc-cni-k8s.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ipamd.ipamctl.client import DEFAULT_RUN_DIR, Client
from ipamd.ipamctl.verb import AwayError, RefusedError
from ipamd.process.clean_up import EXIT_KEPT
from lab.cluster import judge, objects
from lab.cluster.api import Object
from lab.cluster.cluster import IMAGE, NAMESPACE, RELEASE, WORKERS, Release
from lab.cluster.debug_pods import DebugPods
from lab.cluster.flow import Flow
from lab.cluster.report import Report
from lab.cluster.trial import ECHO, START_TIMEOUT_S, Trial, containers_ready
from lab.node import aws_node
from lab.node.node import Node

LABEL = "vpc-ipamd"
OTHER = "aws-node"
TAKEOVER_TIMEOUT_S = 240.0
"""Longest wait until vpc-ipamd serves. It first waits for a minute of the other's absence; the rest is for the start of pods on a busy
machine."""

OURS_ON_A_NODE = ("/etc/cni/net.d/*", "/opt/cni/bin/vpc-cni*", "/var/lib/vpc-ipamd")
WAITING = "waiting"
CONFLISTS_OURS = ["10-aws.conflist.vpc-ipamd-saved", "10-vpc-ipamd.conflist"]

STATUS, ATTACHMENTS, AUDIT = ("ipamctl", "status"), ("ipamctl", "attachments"), ("ipamctl", "audit")
EXPORT, UNDO = ("ipamctl", "export"), ("ipamctl", "export", "--undo")
COMMANDS = (STATUS, ATTACHMENTS, AUDIT, EXPORT, UNDO)
"""The commands of docs/migration.md that are run in the daemon's container, in the order of the page. `debug_pods` runs
`kubectl ipamd clean-up`."""


class Migration:
    """The step "migration" of the story. Concurrency: one thread."""

    def __init__(self, trial: Trial, report: Report, *, now: Release) -> None:
        """Make the object; nothing happens yet. `now`: the release that is installed."""
        self._trial, self._cluster, self._api = trial, trial.cluster, trial.api
        self._report = report
        self._now = now
        self._name = WORKERS[1]

    def run(self) -> None:
        """Run the step and record its verdicts. Afterwards the cluster is as before."""
        cluster = self._cluster
        cluster.kubectl("label", "node", *WORKERS, f"{LABEL}=yes")
        cluster.install(replace(self._now, values={"nodeSelector": {LABEL: "yes"}}))
        cluster.wait_rolled_out("daemonsets", RELEASE, namespace=NAMESPACE)
        try:
            self._begin_with_the_other()
            self._in()
            self._out()
            self._in_again()
        finally:
            cluster.kubectl("label", "node", *WORKERS, f"{LABEL}=yes", "--overwrite")
            cluster.kubectl("delete", "daemonset", OTHER, "--namespace", NAMESPACE, "--ignore-not-found")
            cluster.kubectl("uncordon", self._name)
            cluster.install(self._now)
            cluster.wait_rolled_out("daemonsets", RELEASE, namespace=NAMESPACE, timeout_s=TAKEOVER_TIMEOUT_S)
            cluster.kubectl("label", "node", *WORKERS, f"{LABEL}-")
        self._trial.respread()
        self._report.check("migration: all parties agree when the other is removed", True, judge.settle(cluster))

    @property
    def _node(self) -> Node:
        return self._cluster.nodes[self._name]

    def _begin_with_the_other(self) -> None:
        """Make the node one on which vpc-ipamd never ran, and start pods of the other software on it."""
        cluster, name = self._cluster, self._name
        cluster.kubectl("drain", name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
        cluster.kubectl("label", "node", name, f"{LABEL}-")
        self._api.wait(self._ours_is_here, what="without our daemon", timeout_s=START_TIMEOUT_S)
        cluster.reboot(name, forget=OURS_ON_A_NODE)
        self._api.create(
            objects.collection("daemonsets", namespace=NAMESPACE), other_daemon(cluster.towards_the_lab(), self._now)
        )
        cluster.wait_rolled_out("daemonsets", OTHER, namespace=NAMESPACE)
        cluster.wait_nodes_ready()
        cluster.kubectl("uncordon", name)
        self._trial.respread()
        self._agree_with_the_other("migration: pods of the stand-in run beside a node of ours", want_ours=0)

    def _in(self) -> None:
        """Move the node to vpc-ipamd: steps 1 to 3 of docs/migration.md."""
        name = self._name
        pods = self._trial.pods_on(name)
        rows = judge.sandboxes(self._node)
        with self._flow("migration in", pods):
            self._label_for_ours()
            self._api.create(objects.collection("pods"), objects.lone_pod(WAITING, node=name))
            waits = "amazon-vpc-cni-k8s may give addresses"
            self._api.wait(lambda: self._does_not_say(waits), what="waiting for the other's absence", timeout_s=START_TIMEOUT_S)
            status = self._run(*STATUS)
            self._report.check(
                "migration in: ours waits for the other's absence, and ipamctl status says so", waits in status, status[:300]
            )
            self._wait_ours_serves("migration_in_s")
        self._kept("migration in", rows)
        self._api.wait(self._is_not_tidy, what="rid of the other's conflist and chains", timeout_s=START_TIMEOUT_S)
        self._report.check("migration in: its conflist is renamed, its chains are removed", True, ", ".join(CONFLISTS_OURS))
        attachments = self._run(*ATTACHMENTS)
        lacking = [address for address in pods.values() if address not in attachments]
        self._report.check(
            "migration in: ipamctl attachments lists each pod", not lacking, f"lacks {lacking}" if lacking else "all"
        )
        self._api.wait(self._not_all_started, what="started", timeout_s=START_TIMEOUT_S)
        self._report.check("migration in: a pod made in between starts", True, f"{WAITING} is ready")
        self._api.delete(f"{objects.collection('pods')}/{WAITING}")
        self._api.wait(self._trial.left, what="rid of it", timeout_s=START_TIMEOUT_S)
        self._report.check("migration in: all parties agree", True, judge.settle(self._cluster))

    def _out(self) -> None:
        """Move the node back: steps 1 to 3 of docs/migration.md, with pods that we made and pods that the other made."""
        name = self._name
        self._scale(6)
        pods, rows = self._trial.pods_on(name), judge.sandboxes(self._node)
        with self._flow("migration out", pods):
            printed = self._trial.in_daemon(name, *EXPORT).strip()
            detail = printed.replace("\n", "; ")
            self._report.check("migration out: ipamctl export has no problem", "problem" not in printed, detail)
            self._cluster.kubectl("label", "node", name, f"{LABEL}-")
            self._api.wait(self._ours_is_here, what="without our daemon", timeout_s=START_TIMEOUT_S)
            self._api.wait(self._other_is_not_ready, what="the other's", timeout_s=START_TIMEOUT_S)
            done = DebugPods(self._trial, self._report, now=self._now).clean_up(name)
        left = [line for line in self._node.run(["nft", "list", "tables"]).stdout.splitlines() if "vpc-ipamd" in line]
        left += [str(path) for path in Path(f"{self._node.root}/etc/cni/net.d").glob("*vpc-ipamd.conflist")]
        printed = f"{done.stdout} {done.stderr}".strip().replace("\n", "; ")
        detail = f"status {done.returncode}; left: {', '.join(left) or 'nothing'}; {printed}"
        is_done = done.returncode in (0, EXIT_KEPT) and not left
        self._report.check("migration out: a debug pod cleans up under pods of ours", is_done, detail)
        self._kept("migration out", rows)
        self._scale(8)
        self._agree_with_the_other("migration out: new pods of the other beside those of ours", want_ours=len(pods))
        self._scale(4)
        self._agree_with_the_other("migration out: pods go again", want_ours=0)

    def _in_again(self) -> None:
        """Move the node to vpc-ipamd once more, after the export. The export blocks ADD until it is undone."""
        pods, rows = self._trial.pods_on(self._name), judge.sandboxes(self._node)
        with self._flow("migration in again", pods):
            self._label_for_ours()
            holds = "goes back to amazon-vpc-cni-k8s"
            self._api.wait(lambda: self._does_not_say(holds), what="held by the export", timeout_s=START_TIMEOUT_S)
            status = self._run(*STATUS)
            self._report.check("migration in again: the export holds", holds in status, status[:300])
            self._trial.in_daemon(self._name, *UNDO)
            self._wait_ours_serves("migration_in_again_s")
        self._kept("migration in again", rows)
        self._report.check("migration in again: all parties agree", True, judge.settle(self._cluster))

    def _scale(self, replicas: int) -> None:
        self._cluster.kubectl("scale", f"deployment/{ECHO}", f"--replicas={replicas}", "--namespace", objects.NAMESPACE)
        self._cluster.wait_rolled_out("deployments", ECHO, timeout_s=START_TIMEOUT_S)
        # Wait for pods that are still being stopped after the roll-out, because their sandboxes do not keep their addresses.
        self._api.wait(self._trial.going, what="rid of pods that are stopped", timeout_s=START_TIMEOUT_S)

    def _label_for_ours(self) -> None:
        """Do steps 1 and 2 of docs/migration.md: set the label that the affinity of both DaemonSets reads."""
        self._cluster.kubectl("label", "node", self._name, f"{LABEL}=yes", "--overwrite")
        self._api.wait(self._other_is_here, what="without the other's daemon", timeout_s=START_TIMEOUT_S)
        self._labelled_at = time.monotonic()

    def _wait_ours_serves(self, figure: str) -> None:
        self._api.wait(lambda: self._does_not_say("ready:"), what="served by ours", timeout_s=TAKEOVER_TIMEOUT_S)
        self._report.figures[figure] = round(time.monotonic() - self._labelled_at, 1)

    @contextmanager
    def _flow(self, title: str, pods: dict[str, str]) -> Iterator[None]:
        """Check during the block that all pods of the node answer, those of both software, and afterwards that they answer each
        other."""
        flow = Flow(self._trial.control, pods.values())
        try:
            yield
        finally:
            flow.close_asking()
        self._report.check(f"{title}: pods answer all the time", *flow.verdict())
        self._report.check(f"{title}: pods answer each other afterwards", *self._paired())

    def _paired(self) -> tuple[bool, str]:
        self._api.wait(self._trial.service_problem, what="served by name", timeout_s=START_TIMEOUT_S)
        wrong = self._trial.mispaired()
        return not wrong, "; ".join(wrong[:3]) or "each pair, seen with its own address, and by name"

    def _kept(self, title: str, rows: dict[str, str]) -> None:
        now = judge.sandboxes(self._node)
        lost = {sandbox: address for sandbox, address in rows.items() if now.get(sandbox) != address}
        self._report.check(f"{title}: each sandbox keeps its address", not lost, str(lost) if lost else f"{len(rows)} sandboxes")

    def _agree_with_the_other(self, name: str, *, want_ours: int) -> None:
        """Check that containerd, the API server, the stand-in's file and EC2 agree on this node, and all parties on the other node.

        `want_ours`: fewest addresses that the stand-in's file must have.
        """
        others = {self._name: self._checkpoint}
        judged = judge.disagreements
        self._api.wait(
            lambda: "; ".join(judged(self._cluster, others=others)), what="agreed on addresses", timeout_s=judge.SETTLE_TIMEOUT_S
        )
        rows = self._checkpoint()
        detail = f"{len(rows)} in the stand-in's file; containerd, API server and EC2 agree, all addresses answer"
        self._report.check(name, len(rows) >= want_ours and bool(rows), detail)
        self._report.check(f"{name}, and answer", *self._paired())

    def _checkpoint(self) -> dict[str, str]:
        text = Path(f"{self._node.root}/run/aws-node/{aws_node.CHECKPOINT.name}").read_text(encoding="utf-8")
        return {entry["containerID"]: entry["ipv4"] for entry in json.loads(text)["allocations"]}

    def _is_not_tidy(self) -> str:
        names = sorted(path.name for path in Path(f"{self._node.root}/etc/cni/net.d").iterdir() if not path.name.startswith("."))
        if names != CONFLISTS_OURS:
            return f"conflists: {', '.join(names)}"
        saved = self._node.run(["iptables-nft-save", "-t", "nat"]).stdout.splitlines()
        return "; ".join(line for line in saved if "AWS" in line)

    def _run(self, *words: str) -> str:
        """Run a command in the daemon's container. Returns: its output, with any exit status."""
        return self._trial.in_daemon(self._name, *words, check=False).strip()

    def _does_not_say(self, words: str) -> str:
        """Return "" if the daemon's verdict contains `words`, otherwise the verdict. The daemon is asked on its socket, which costs
        less than a command."""
        try:
            with Client(f"{self._node.root}{DEFAULT_RUN_DIR}/ipamd.sock") as client:
                verdict = str(client.ask("GetStatus")["verdict"])
        except (AwayError, RefusedError) as error:
            return str(error)
        return "" if words in verdict else verdict

    def _ours_is_here(self) -> str:
        return self._is_here("app.kubernetes.io%2Fname%3Dvpc-ipamd")

    def _other_is_here(self) -> str:
        return self._is_here(f"k8s-app%3D{OTHER}")

    def _other_is_not_ready(self) -> str:
        return "" if any(map(containers_ready, self._here(f"k8s-app%3D{OTHER}"))) else "its pod is not ready"

    def _is_here(self, selector: str) -> str:
        return ", ".join(str(pod["metadata"]["name"]) for pod in self._here(selector))

    def _here(self, selector: str) -> list[Object]:
        pods = self._api.items(f"{objects.collection('pods', namespace=NAMESPACE)}?labelSelector={selector}")
        return [pod for pod in pods if pod["spec"].get("nodeName") == self._name]

    def _not_all_started(self) -> str:
        pods = [pod for pod in self._cluster.pods() if pod["metadata"]["name"] == WAITING]
        return "" if pods and pods[0]["status"]["phase"] == "Running" else f"{WAITING} does not run"


def other_daemon(environment: Mapping[str, str], release: Release) -> Object:
    """Return the stand-in's DaemonSet. As that of amazon-vpc-cni-k8s, it does not run on nodes with our label, and uses the host's
    network.

    Args:
        environment: the variables that point an AWS client to the lab.
        release: the release whose image the container has. Only the image's Python is used, to enter the node's file system.
    """
    labels = {"k8s-app": OTHER}
    enter = "import os, sys; os.chroot('/host'); os.execv(sys.argv[1], sys.argv[1:])"
    program = [sys.executable, "-I", "-S", str(Path(aws_node.__file__).resolve()), "agent"]
    kept_off = {"matchExpressions": [{"key": LABEL, "operator": "DoesNotExist"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [kept_off]}}
    container = {
        "name": OTHER,
        "image": f"{IMAGE}:{release.tag}",
        "imagePullPolicy": "Never",
        "command": [objects.PYTHON, "-c", enter, *program],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "securityContext": {"privileged": True},
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
        "readinessProbe": {
            "exec": {"command": ["/usr/bin/test", "-e", f"/host{aws_node.CONFLIST}"]},
            "periodSeconds": 1,
        },
    }
    spec = {
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": required},
        "containers": [container],
        "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": OTHER, "namespace": NAMESPACE},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
