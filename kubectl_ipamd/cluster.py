"""What the API server knows: nodes, the daemon's pods on them, and which nodes should have one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kubectl_ipamd.api import Api, quoted
from kubectl_ipamd.errors import PluginError
from kubectl_ipamd.placement import is_for_node

CONTAINER = "ipamd"
"""The daemon's container. Source: manifests/base/daemonset.yaml."""

METRICS_PORT = 61678
"""The default of VPC_IPAMD_METRICS_ADDRESS. Source: docs/settings.md."""

ZONE_LABEL = "topology.kubernetes.io/zone"

TYPE_LABEL = "node.kubernetes.io/instance-type"


@dataclass(frozen=True)
class DaemonPod:
    """The daemon's pod on a node.

    Args:
        namespace: of the pod.
        image: of its container.
        is_running: whether the container runs now.
        is_looping: whether kubelet waits before it starts the container again.
        problem: why the container does not run; "" if it does.
        metrics_port: 0 if the pod's environment turns the metrics off.
    """

    name: str
    namespace: str
    node: str
    image: str
    is_running: bool
    is_looping: bool
    restart_count: int
    problem: str
    metrics_port: int


@dataclass(frozen=True)
class ClusterNode:
    """A node, by its own object or, without the right to list nodes, by its daemon's pod."""

    name: str
    zone: str = ""
    instance_type: str = ""
    is_ready: bool | None = None
    pod: DaemonPod | None = None


@dataclass(frozen=True)
class ClusterView:
    """Nodes by name, of those that have a daemon or should have one. `notes`: what could not be read, for people."""

    nodes: Mapping[str, ClusterNode]
    notes: tuple[str, ...] = ()


def read_cluster(api: Api, *, namespace: str, selector: str, metrics_port: int = 0) -> ClusterView:
    """List the daemon's pods and, as far as the operator may, nodes and DaemonSets.

    Args:
        selector: of the daemon's pods, by labels.
        metrics_port: overrides what the pods' environments say.
    Raises: PluginError if the pods cannot be listed.
    """
    in_namespace = f"namespaces/{quoted(namespace)}"
    pods = _pods_by_node(api.list(f"/api/v1/{in_namespace}/pods", labelSelector=selector), metrics_port)
    notes = []
    try:
        node_objects = api.list("/api/v1/nodes")
    except PluginError as error:
        node_objects = []
        notes.append(f"nodes without a daemon are not shown: {error}")
    templates: list[dict[str, Any]] = []
    try:
        templates = _templates(api.list(f"/apis/apps/v1/{in_namespace}/daemonsets", labelSelector=selector))
    except PluginError as error:
        notes.append(f"it is not known which nodes should have a daemon: {error}")
    nodes = {}
    for node_object in node_objects:
        node = _node(node_object, pods)
        if node.pod is not None or _should_have_daemon(node_object, templates):
            nodes[node.name] = node
    for name, pod in pods.items():
        nodes.setdefault(name, ClusterNode(name, pod=pod))
    if not nodes:
        notes.append(f"no pod in namespace {namespace} has the labels {selector}: see --namespace and --selector")
    return ClusterView(nodes, tuple(notes))


def _templates(daemonsets: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The pod specs of the DaemonSets that run the daemon."""
    specs = [daemonset["spec"]["template"]["spec"] for daemonset in daemonsets]
    return [spec for spec in specs if _container(spec) is not None]


def _should_have_daemon(node_object: Mapping[str, Any], templates: Iterable[Mapping[str, Any]]) -> bool:
    metadata = node_object["metadata"]
    return any(is_for_node(spec, name=metadata["name"], labels=metadata.get("labels") or {}) for spec in templates)


def _node(node_object: Mapping[str, Any], pods: Mapping[str, DaemonPod]) -> ClusterNode:
    name = node_object["metadata"]["name"]
    labels = node_object["metadata"].get("labels") or {}
    conditions = (node_object.get("status") or {}).get("conditions") or []
    statuses = [condition.get("status") for condition in conditions if condition.get("type") == "Ready"]
    is_ready = None
    if statuses:
        is_ready = statuses[0] == "True"
    return ClusterNode(name, labels.get(ZONE_LABEL, ""), labels.get(TYPE_LABEL, ""), is_ready, pods.get(name))


def _pods_by_node(pod_objects: Iterable[dict[str, Any]], metrics_port: int) -> dict[str, DaemonPod]:
    """The daemon's pods. During a roll the pod that runs is preferred, then one that is not being deleted, then the newest."""
    ordered = sorted(pod_objects, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
    ranked: dict[str, tuple[int, DaemonPod]] = {}
    for pod_object in ordered:
        container = _container(pod_object["spec"])
        node = pod_object["spec"].get("nodeName", "")
        if container is None or not node:
            continue
        pod = _daemon_pod(pod_object, container, node, metrics_port)
        rank = 2 * pod.is_running + ("deletionTimestamp" not in pod_object["metadata"])
        if node not in ranked or rank >= ranked[node][0]:
            ranked[node] = rank, pod
    return {node: pod for node, (_, pod) in ranked.items()}


def _container(pod_spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
    containers: list[Mapping[str, Any]] = pod_spec.get("containers") or []
    return next((container for container in containers if container["name"] == CONTAINER), None)


def _daemon_pod(pod_object: Mapping[str, Any], container: Mapping[str, Any], node: str, metrics_port: int) -> DaemonPod:
    pod_status = pod_object.get("status") or {}
    statuses = [status for status in pod_status.get("containerStatuses") or [] if status["name"] == CONTAINER]
    status: Mapping[str, Any] = {}
    if statuses:
        status = statuses[0]
    state = status.get("state") or {}
    return DaemonPod(
        name=pod_object["metadata"]["name"],
        namespace=pod_object["metadata"]["namespace"],
        node=node,
        image=container.get("image", ""),
        is_running="running" in state,
        is_looping=(state.get("waiting") or {}).get("reason") == "CrashLoopBackOff",
        restart_count=status.get("restartCount", 0),
        problem=_problem(state, status.get("lastState") or {}, pod_status),
        metrics_port=metrics_port or _metrics_port(container),
    )


def _problem(state: Mapping[str, Any], last_state: Mapping[str, Any], pod_status: Mapping[str, Any]) -> str:
    """Why the container does not run, with the status of its last end."""
    if "running" in state:
        return ""
    waiting = state.get("waiting") or {}
    reason = waiting.get("reason") or pod_status.get("reason") or pod_status.get("phase", "no container yet")
    end = state.get("terminated") or last_state.get("terminated")
    if end:
        return f"{reason}, last end: status {end.get('exitCode', '?')} {end.get('reason', '')}".rstrip()
    return str(reason)


def _metrics_port(container: Mapping[str, Any]) -> int:
    """The port in the container's environment. A settings file may have another one, which the operator must name."""
    for variable in container.get("env") or []:
        if variable.get("name") == "VPC_IPAMD_METRICS_ADDRESS" and variable.get("value"):
            if variable["value"] == "off":
                return 0
            port = variable["value"].rpartition(":")[2]
            if port.isdecimal():
                return int(port)
    return METRICS_PORT
