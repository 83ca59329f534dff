"""Questions that several steps ask the cluster: which pods answer each other, which pod is a node's daemon, which pods are left."""

from __future__ import annotations

import json

from lab.cluster import objects
from lab.cluster.api import Object
from lab.cluster.cluster import CONTROL, NAMESPACE, Cluster
from lab.cluster.errors import ClusterError
from lab.cluster.http import get

ECHO = "echo"
REPLICAS = 4
NAME = f"{ECHO}.{objects.NAMESPACE}.svc.cluster.local"
START_TIMEOUT_S = 120.0

RESPREADS_MAX = 5
"""How often pods are restarted until both nodes have some. Ours: the second restart comes seconds after the first one."""


class Trial:
    """One cluster and its answering pods, the Deployment ECHO. Concurrency: one thread."""

    def __init__(self, cluster: Cluster) -> None:
        """Make the object. The first step of the story creates the pods."""
        self.cluster = cluster
        self.api = cluster.api

    @property
    def control(self) -> str:
        """The path of the control plane's network namespace, from which pods are asked."""
        return self.cluster.lab.node(CONTROL).netns_path()

    def ask(self, pod: Object, host: str, port: int) -> Object:
        """Let a pod send a request to a host and port. Returns: the pod's report, with the answer in `heard` if one came."""
        address = pod["status"].get("podIP", "")
        answer = get(self.control, address, objects.PORT, f"/?host={host}&port={port}") if address else None
        report: Object = json.loads(answer) if answer is not None else {"error": f"{pod['metadata']['name']} does not answer"}
        return report

    def deaf(self) -> list[str]:
        """List the pods that get no answer from the service by its DNS name."""
        return [pod["metadata"]["name"] for pod in self.cluster.pods(ECHO) if "heard" not in self.ask(pod, NAME, 80)]

    def asked_by_name(self) -> tuple[bool, str]:
        """Return whether each pod gets an answer from the service by its DNS name, and the evidence."""
        deaf = self.deaf()
        return not deaf, f"{len(self.cluster.pods(ECHO))} pods ask by name" if not deaf else str(deaf)

    def service_problem(self) -> str:
        """Return a problem if a pod gets no answer from the service by its DNS name, or if there are no pods; otherwise ""."""
        return "" if self.cluster.pods(ECHO) and not self.deaf() else "a pod gets no answer"

    def mispaired(self) -> list[str]:
        """List, as sentences, the pairs of pods in which one does not answer the other, or sees it with another address than its
        own."""
        pods, wrong = self.cluster.pods(ECHO), []
        for asker in pods:
            for target in pods:
                report = self.ask(asker, target["status"]["podIP"], objects.PORT)
                heard = report.get("heard", {})
                if (heard.get("pod"), heard.get("seen")) != (target["metadata"]["name"], asker["status"]["podIP"]):
                    wrong.append(f"{asker['metadata']['name']} to {target['metadata']['name']}: {report}")
        return wrong

    def reached(self, host: str, port: int) -> dict[str, set[str]]:
        """Let each pod send eight requests to a host and port.

        Returns: node of the asking pods -> nodes of the pods that answered; under "" the reports of requests that failed.
        """
        reached: dict[str, set[str]] = {}
        for pod in self.cluster.pods(ECHO):
            for _ in range(8):
                report = self.ask(pod, host, port)
                node = pod["spec"]["nodeName"] if "heard" in report else ""
                reached.setdefault(node, set()).add(report["heard"]["node"] if node else str(report))
        return reached

    def daemon_pod(self, node: str) -> Object:
        """Return the pod of vpc-ipamd on a node. Raises: ClusterError if there is none."""
        for pod in self.cluster.daemon_pods():
            if pod["spec"].get("nodeName") == node and "deletionTimestamp" not in pod["metadata"]:
                return pod
        raise ClusterError(f"{node} has no pod of vpc-ipamd")

    def in_daemon(self, node: str, *words: str, check: bool = True) -> str:
        """Run a command in the daemon's container, by `kubectl exec`.

        Returns: its output. Raises: NodeError with its message, if it fails and `check` is true.
        """
        name = self.daemon_pod(node)["metadata"]["name"]
        return self.cluster.kubectl("--namespace", NAMESPACE, "exec", name, "--container", "ipamd", "--", *words, check=check)

    def pods_on(self, node: str, name: str = ECHO) -> dict[str, str]:
        """Return UID -> address of a Deployment's pods on a node, without pods that are being deleted."""
        pods = self.cluster.pods(name)
        return {
            str(pod["metadata"]["uid"]): str(pod["status"].get("podIP", ""))
            for pod in pods
            if pod["spec"].get("nodeName") == node and "deletionTimestamp" not in pod["metadata"]
        }

    def respread(self) -> None:
        """Restart the Deployments, so that their pods are spread over both nodes again.

        On a busy machine the scheduler may not know yet that a node takes pods again, so the restart is repeated if a node got none.
        Raises: ClusterError if a node gets no pod of ECHO in any restart.
        """
        self._restart("coredns", NAMESPACE)
        for _ in range(RESPREADS_MAX):
            self._restart(ECHO, objects.NAMESPACE)
            empty = [node for node in self.cluster.workers if not self.pods_on(node)]
            if not empty:
                return
        raise ClusterError(f"{', '.join(empty)} got no pod of {ECHO} in {RESPREADS_MAX} restarts")

    def _restart(self, name: str, namespace: str) -> None:
        """Restart a Deployment, and wait until all its pods are ready."""
        self.cluster.kubectl("rollout", "restart", f"deployment/{name}", "--namespace", namespace)
        self.cluster.wait_rolled_out("deployments", name, namespace=namespace, timeout_s=START_TIMEOUT_S)

    def going(self) -> str:
        """Return how many pods of the Deployment ECHO are being deleted, as a sentence; "" if none."""
        going = [pod["metadata"]["name"] for pod in self.cluster.pods(ECHO) if "deletionTimestamp" in pod["metadata"]]
        return f"{len(going)} pods are going" if going else ""

    def left(self) -> str:
        """Return how many pods besides those of ECHO are left in the steps' namespace, as a sentence; "" if none."""
        others = [pod["metadata"]["name"] for pod in self.cluster.pods() if pod["metadata"].get("labels", {}).get("app") != ECHO]
        return f"{len(others)} pods are left" if others else ""


def containers_ready(pod: Object) -> bool:
    """Whether all containers of a pod are ready, and the pod is not being deleted."""
    statuses = pod["status"].get("containerStatuses", [])
    return bool(statuses) and all(status["ready"] for status in statuses) and "deletionTimestamp" not in pod["metadata"]
