"""What the kubelet's local pods API says of a pod whose first sandbox is being made (KEP-4188).

Source of names: k8s.io/kubelet pkg/apis/pods/v1alpha1 and kubernetes pkg/kubelet/apis/pods/constants.go. The KEP has another
path; a kubelet of 1.37 serves package v1alpha1 (nothing before it in the name), service Pods, at the path below, to root only.
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
    """Freeze a node's daemon, so that an ADD waits, and ask for a pod that has no sandbox yet. Returns: what was found."""
    pod = next(one for one in cluster.daemon_pods() if one["spec"].get("nodeName") == node)
    worker = cluster.workers[node]
    container = pod["status"]["containerStatuses"][0]["containerID"].partition("//")[2]
    path = Path(worker.node.root + SOCKET)
    netns = Path(worker.node.root + "/run/netns")
    there = {one.name for one in netns.iterdir()}
    made = f"{objects.collection('pods')}/{NAME}"
    worker.kill_container(container, signal.SIGSTOP)
    try:
        cluster.api.create(objects.collection("pods"), objects.lone_pod(NAME, node=node))
        spent = cluster.api.wait(lambda: "" if _is_listed(path) else "not listed", what="listed", timeout_s=TIMEOUT_S)
        # The namespace is made just before the plugin is called; the daemon, which would answer it, is frozen.
        wait = cluster.api.wait
        wait(lambda: "" if {one.name for one in netns.iterdir()} - there else "no namespace", what="in ADD", timeout_s=TIMEOUT_S)
        lists = _is_listed(path) and not any(one.name == NAME for one in worker.node.cri.list())
    finally:
        worker.kill_container(container, signal.SIGCONT)
        cluster.wait_rolled_out("daemonsets", "vpc-ipamd", namespace=NAMESPACE)
        cluster.api.delete(made)
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
    """The answer as it is: pods in protobuf, whose names stand in it as they are."""
    with grpc.insecure_channel(f"unix:{path}", options=[("grpc.default_authority", "localhost")]) as channel:
        call = channel.unary_unary(METHOD, bytes, bytes)
        try:
            answer: bytes = call(b"", timeout=5.0)
        except grpc.RpcError as error:
            return type(error).__name__.encode()
    return answer
