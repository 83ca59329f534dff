"""What every step of the story asks of the cluster: who answers whom, which pod is a node's daemon, what is left of a step."""

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


class Trial:
    """One cluster and its answering pods. Concurrency: one thread."""

    def __init__(self, cluster: Cluster) -> None:
        """The pods are made by the first step."""
        self.cluster = cluster
        self.api = cluster.api

    @property
    def control(self) -> str:
        """The namespace of the control plane, from which pods are asked."""
        return self.cluster.lab.node(CONTROL).netns_path()

    def ask(self, pod: Object, host: str, port: int) -> Object:
        """Have a pod ask somewhere; what it says of it, with `heard` if there was an answer."""
        address = pod["status"].get("podIP", "")
        answer = get(self.control, address, objects.PORT, f"/?host={host}&port={port}") if address else None
        said: Object = json.loads(answer) if answer is not None else {"error": f"{pod['metadata']['name']} does not answer"}
        return said

    def deaf(self) -> list[str]:
        """The pods that cannot ask the service by its name."""
        return [pod["metadata"]["name"] for pod in self.cluster.pods(ECHO) if "heard" not in self.ask(pod, NAME, 80)]

    def asked_by_name(self) -> tuple[bool, str]:
        """Whether each pod gets an answer by name, and the evidence."""
        deaf = self.deaf()
        return not deaf, f"{len(self.cluster.pods(ECHO))} pods ask by name" if not deaf else str(deaf)

    def service_problem(self) -> str:
        """Say who gets no answer by name; "" if all do."""
        return "" if self.cluster.pods(ECHO) and not self.deaf() else "a pod gets no answer"

    def mispaired(self) -> list[str]:
        """Each pair of pods that do not hear each other at their own addresses, as a sentence."""
        pods, wrong = self.cluster.pods(ECHO), []
        for asker in pods:
            for target in pods:
                said = self.ask(asker, target["status"]["podIP"], objects.PORT)
                heard = said.get("heard", {})
                if (heard.get("pod"), heard.get("seen")) != (target["metadata"]["name"], asker["status"]["podIP"]):
                    wrong.append(f"{asker['metadata']['name']} to {target['metadata']['name']}: {said}")
        return wrong

    def reached(self, host: str, port: int) -> dict[str, set[str]]:
        """Which nodes' pods each pod reaches there, in eight questions, by the asking pod's node; {"": ...} says what failed."""
        found: dict[str, set[str]] = {}
        for pod in self.cluster.pods(ECHO):
            for _ in range(8):
                said = self.ask(pod, host, port)
                node = pod["spec"]["nodeName"] if "heard" in said else ""
                found.setdefault(node, set()).add(said["heard"]["node"] if node else str(said))
        return found

    def daemon_pod(self, node: str) -> Object:
        """The pod of vpc-ipamd on a node. Raises: ClusterError if there is none."""
        for pod in self.cluster.daemon_pods():
            if pod["spec"].get("nodeName") == node and "deletionTimestamp" not in pod["metadata"]:
                return pod
        raise ClusterError(f"{node} has no pod of vpc-ipamd")

    def in_daemon(self, node: str, *words: str, check: bool = True) -> str:
        """Run a command in the daemon's container, through the kubelet; its output. Raises: NodeError with its words if it fails, and
        `check` is true."""
        name = self.daemon_pod(node)["metadata"]["name"]
        return self.cluster.kubectl("--namespace", NAMESPACE, "exec", name, "--container", "ipamd", "--", *words, check=check)

    def pods_on(self, node: str, name: str = ECHO) -> dict[str, str]:
        """UID -> address of a Deployment's pods on a node."""
        pods = self.cluster.pods(name)
        return {
            str(pod["metadata"]["uid"]): str(pod["status"].get("podIP", ""))
            for pod in pods
            if pod["spec"].get("nodeName") == node and "deletionTimestamp" not in pod["metadata"]
        }

    def respread(self) -> None:
        """Have the Deployments' pods on both nodes again."""
        for name, namespace in ((ECHO, objects.NAMESPACE), ("coredns", NAMESPACE)):
            self.cluster.kubectl("rollout", "restart", f"deployment/{name}", "--namespace", namespace)
            self.cluster.wait_rolled_out("deployments", name, namespace=namespace, timeout_s=START_TIMEOUT_S)

    def going(self) -> str:
        """Say how many pods of the Deployment are on their way out; "" if none."""
        going = [pod["metadata"]["name"] for pod in self.cluster.pods(ECHO) if "deletionTimestamp" in pod["metadata"]]
        return f"{len(going)} pods are going" if going else ""

    def left(self) -> str:
        """Say how many pods of a step are left in the trial's namespace; "" if none."""
        others = [pod["metadata"]["name"] for pod in self.cluster.pods() if pod["metadata"].get("labels", {}).get("app") != ECHO]
        return f"{len(others)} pods are left" if others else ""


def containers_ready(pod: Object) -> bool:
    """Whether all containers of a pod that is not on its way out are ready."""
    statuses = pod["status"].get("containerStatuses", [])
    return bool(statuses) and all(one["ready"] for one in statuses) and "deletionTimestamp" not in pod["metadata"]
