"""Read the figures of all nodes in parallel, within limits of time. A node that does not answer is no error: its reading says why."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum

from kubectl_ipamd.api import Api, ApiError, quoted
from kubectl_ipamd.cluster import ClusterNode, DaemonPod
from kubectl_ipamd.figures import NodeFigures, read_figures

PAGE_BYTES_MAX = 4 << 20
"""Largest size of a page of metrics. Ours: a daemon's page has about 60 kB, so a page of 4 MiB cannot be right."""


TOO_MANY_REQUESTS = 429
"""The HTTP status by which the API server refuses a request while it has too many. Source: Kubernetes' API priority and fairness."""

RETRY_S = 1.0
"""Pause before a request is sent again. The API server demands 1 s by its header Retry-After."""


class Silence(StrEnum):
    """Why there are no figures of a node.

    NO_POD: the node has no pod of the daemon. NOT_RUNNING: the pod's container does not run. NO_ANSWER: the container runs, but the
    API server or the daemon gave no usable answer. FORBIDDEN: the operator may not use `pods/proxy`. OFF: the daemon's metrics are
    turned off. NOT_ASKED: the time for all nodes was up before it was this node's turn.
    """

    NO_POD = "no-pod"
    NOT_RUNNING = "not-running"
    NO_ANSWER = "no-answer"
    FORBIDDEN = "forbidden"
    OFF = "off"
    NOT_ASKED = "not-asked"


@dataclass(frozen=True)
class Limits:
    """Limits for reading all nodes.

    Args:
        parallel: requests at once.
        timeout_s: longest time for one node.
        total_s: longest time for all nodes.
    """

    parallel: int
    timeout_s: float
    total_s: float


@dataclass(frozen=True)
class NodeReading:
    """A node with its figures or, if there are none, with the cause `silence` and a sentence `problem` for people."""

    node: ClusterNode
    figures: NodeFigures | None = None
    silence: Silence | None = None
    problem: str = ""


def read_fleet(api: Api, nodes: Iterable[ClusterNode], limits: Limits) -> list[NodeReading]:
    """Read all nodes within `limits.total_s`. Returns: the readings, in the order of `nodes`."""
    deadline = time.monotonic() + limits.total_s

    def read(node: ClusterNode) -> NodeReading:
        return _read_node(api, node, min(limits.timeout_s, deadline - time.monotonic()))

    with ThreadPoolExecutor(limits.parallel, thread_name_prefix="node") as executor:
        return list(executor.map(read, nodes))


def _read_node(api: Api, node: ClusterNode, timeout_s: float) -> NodeReading:
    reading = NodeReading(node)
    pod = node.pod
    if pod is None:
        return replace(reading, silence=Silence.NO_POD, problem="no pod of the daemon is on this node")
    if not pod.is_running:
        return replace(reading, silence=Silence.NOT_RUNNING, problem=pod.problem)
    if not pod.metrics_port:
        return replace(reading, silence=Silence.OFF, problem="VPC_IPAMD_METRICS_ADDRESS is off")
    if timeout_s <= 0:
        return replace(reading, silence=Silence.NOT_ASKED, problem="the time for all nodes was up")
    try:
        page = _page(api, pod, time.monotonic() + timeout_s)
        return replace(reading, figures=read_figures(page.decode("utf-8", "replace")))
    except ApiError as error:
        if error.is_forbidden:
            return replace(reading, silence=Silence.FORBIDDEN, problem=str(error))
        return replace(reading, silence=Silence.NO_ANSWER, problem=str(error))
    except ValueError as error:
        return replace(reading, silence=Silence.NO_ANSWER, problem=str(error))


def _page(api: Api, pod: DaemonPod, deadline: float) -> bytes:
    """Read a page of metrics. If the API server has too many requests, ask again while there is time. Raises: ApiError."""
    while True:
        try:
            timeout_s = max(deadline - time.monotonic(), 0.001)
            return api.get(_metrics_target(pod), timeout_s=timeout_s, bytes_max=PAGE_BYTES_MAX)
        except ApiError as error:
            if error.status != TOO_MANY_REQUESTS or deadline - time.monotonic() <= RETRY_S:
                raise
        time.sleep(RETRY_S)


def _metrics_target(pod: DaemonPod) -> str:
    port_name = quoted(f"{pod.name}:{pod.metrics_port}")
    return f"/api/v1/namespaces/{quoted(pod.namespace)}/pods/{port_name}/proxy/metrics"
