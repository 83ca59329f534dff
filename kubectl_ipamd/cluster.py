"""Ask the API server for the nodes, for the daemon's pods on them, and for which nodes should have a pod of the daemon."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kubectl_ipamd.api import Api, quoted
from kubectl_ipamd.errors import PluginError
from kubectl_ipamd.placement import is_for_node

CONTAINER = "ipamd"
"""The name of the daemon's container in its pod. Source: manifests/base/daemonset.yaml."""

METRICS_PORT = 61678
"""The port in the default of VPC_IPAMD_METRICS_ADDRESS. Source: docs/settings.md."""

ZONE_LABEL = "topology.kubernetes.io/zone"

TYPE_LABEL = "node.kubernetes.io/instance-type"


@dataclass(frozen=True)
class DaemonPod:
    """The daemon's pod on a node.

    Args:
        namespace: the pod's namespace.
        image: the image of the daemon's container.
        is_running: whether the container runs now.
        is_looping: whether kubelet waits before it starts the container again, because the container ended several times
            (CrashLoopBackOff).
        problem: why the container does not run; "" if it runs.
        last_end: how and when the container ended last; "" if it never did.
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
    last_end: str
    metrics_port: int


@dataclass(frozen=True)
class ClusterNode:
    """A node. If the operator may not list nodes, only `name` and `pod`, the daemon's pod, are known."""

    name: str
    zone: str = ""
    instance_type: str = ""
    is_ready: bool | None = None
    pod: DaemonPod | None = None


@dataclass(frozen=True)
class ClusterView:
    """The nodes that have a daemon or should have one, by name. `notes`: sentences for people about what could not be read."""

    nodes: Mapping[str, ClusterNode]
    notes: tuple[str, ...] = ()


def read_cluster(api: Api, *, namespace: str, selector: str, metrics_port: int = 0) -> ClusterView:
    """List the daemon's pods and, as far as the operator may, nodes and DaemonSets.

    Args:
        selector: the label selector of the daemon's pods.
        metrics_port: the daemons' port of metrics; 0: the port that the environment of each pod says.
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
    """Return the pod specs of those DaemonSets that run the daemon, because the operator's selector may fit others too."""
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
    """Return the daemon's pod of each node, by the node's name.

    While the DaemonSet is rolled out a node may have two pods. Then the pod that runs is preferred, else the pod that is not being
    deleted, else the newer one.
    """
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
        last_end=_end((status.get("lastState") or {}).get("terminated")),
        metrics_port=metrics_port or _metrics_port(container),
    )


def _problem(state: Mapping[str, Any], last_state: Mapping[str, Any], pod_status: Mapping[str, Any]) -> str:
    """Return why the container does not run, with the exit status of its last end; "" if it runs."""
    if "running" in state:
        return ""
    waiting = state.get("waiting") or {}
    reason = waiting.get("reason") or pod_status.get("reason") or pod_status.get("phase", "no container yet")
    end = _end(state.get("terminated") or last_state.get("terminated"))
    return f"{reason}, last end: {end}" if end else str(reason)


def _end(terminated: Mapping[str, Any] | None) -> str:
    """Describe a container's end: its exit status, the reason, the time, and the last line of its log; "" if there was none."""
    if not terminated:
        return ""
    parts = [f"status {terminated.get('exitCode', '?')}", terminated.get("reason"), terminated.get("finishedAt")]
    end = " ".join(filter(None, parts))
    last_line = _last_line(terminated.get("message") or "")
    return f"{end}: {last_line}" if last_line else end


def _last_line(log: str) -> str:
    """Return the last line of a daemon's log, which has the cause of a failed end; of a JSON line only the error or the message.

    The manifests have kubelet put the end of the log into the container's status (`terminationMessagePolicy`).
    """
    lines = log.strip().splitlines()
    if not lines:
        return ""
    try:
        fields = json.loads(lines[-1])
    except ValueError:
        return lines[-1]
    if not isinstance(fields, dict):
        return lines[-1]
    return str(fields.get("error") or fields.get("message") or "")


def _metrics_port(container: Mapping[str, Any]) -> int:
    """Return the port of metrics that the container's environment says, or the default; 0 if the metrics are off.

    The daemon's settings file may set another port. It cannot be seen from here, so the operator must name it by `--metrics-port`.
    """
    for variable in container.get("env") or []:
        if variable.get("name") == "VPC_IPAMD_METRICS_ADDRESS" and variable.get("value"):
            if variable["value"] == "off":
                return 0
            port = variable["value"].rpartition(":")[2]
            if port.isdecimal():
                return int(port)
    return METRICS_PORT
