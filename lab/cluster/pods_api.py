"""Check whether the kubelet's local pods API (KEP-4188) lists a pod while its first sandbox is being made.

Sources of the names: k8s.io/kubelet pkg/apis/pods/v1alpha1 and kubernetes pkg/kubelet/apis/pods/constants.go. The KEP has another
path. A kubelet of 1.37 serves the service Pods of the protobuf package `v1alpha1` (without a prefix) at SOCKET, to root only.
"""

from __future__ import annotations

import signal
import stat
from pathlib import Path

import grpc

from lab.cluster import objects
from lab.cluster.cluster import NAMESPACE, Cluster

SOCKET = "/var/lib/kubelet/pods-api/pods-api.sock"
METHOD = "/v1alpha1.Pods/ListPods"
NAME = "first-sandbox"
TIMEOUT_S = 30.0


def look(cluster: Cluster, node: str) -> dict[str, object]:
    """Stop a node's daemon by SIGSTOP, so that an ADD waits, and ask the API for a pod that has no sandbox yet. Returns: the facts for
    the report."""
    pod = next(candidate for candidate in cluster.daemon_pods() if candidate["spec"].get("nodeName") == node)
    worker = cluster.workers[node]
    container = pod["status"]["containerStatuses"][0]["containerID"].partition("//")[2]
    path = Path(worker.node.root + SOCKET)
    netns = Path(worker.node.root + "/run/netns")
    before = {entry.name for entry in netns.iterdir()}
    pod_path = f"{objects.collection('pods')}/{NAME}"
    worker.kill_container(container, signal.SIGSTOP)
    try:
        cluster.api.create(objects.collection("pods"), objects.lone_pod(NAME, node=node))
        spent = cluster.api.wait(lambda: "" if _is_listed(path) else "not listed", what="listed", timeout_s=TIMEOUT_S)
        # The runtime makes the namespace just before it calls the plugin, which then waits for the stopped daemon.
        wait = cluster.api.wait
        wait(
            lambda: "" if {entry.name for entry in netns.iterdir()} - before else "no namespace",
            what="in ADD",
            timeout_s=TIMEOUT_S,
        )
        lists = _is_listed(path) and not any(sandbox.name == NAME for sandbox in worker.node.cri.list())
    finally:
        worker.kill_container(container, signal.SIGCONT)
        cluster.wait_rolled_out("daemonsets", "vpc-ipamd", namespace=NAMESPACE)
        cluster.api.delete(pod_path)
    cluster.api.wait(lambda: _gone(cluster), what="rid of the pod", timeout_s=TIMEOUT_S)
    return {
        "socket": SOCKET,
        "method": METHOD,
        "mode": stat.filemode(path.stat().st_mode),
        "lists_during_add": lists,
        "after_s": round(spent, 2),
    }


def _gone(cluster: Cluster) -> str:
    return f"{NAME} is there" if any(pod["metadata"]["name"] == NAME for pod in cluster.pods()) else ""


def _is_listed(path: Path) -> bool:
    return NAME.encode() in _list(path)


def _list(path: Path) -> bytes:
    """Return the undecoded answer. Its pods are protobuf messages, in which their names are readable text."""
    with grpc.insecure_channel(f"unix:{path}", options=[("grpc.default_authority", "localhost")]) as channel:
        call = channel.unary_unary(METHOD, bytes, bytes)
        try:
            answer: bytes = call(b"", timeout=5.0)
        except grpc.RpcError as error:
            return type(error).__name__.encode()
    return answer
