"""A made cluster behind HTTP: nodes, a DaemonSet, the daemon's pods with their pages of metrics, and pods with addresses."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.recordings.series import SERIES, read

SILENT_S = 3.0
"""For so long a daemon that does not answer keeps its connection."""

ZONE_LABEL = "topology.kubernetes.io/zone"
LABELS = {
    "kubernetes.io/os": "linux",
    ZONE_LABEL: "us-west-2a",
    "node.kubernetes.io/instance-type": "m5.large",
}


def page(recording: str) -> str:
    """The last page of metrics of a real daemon on a lab node, by its recording."""
    made = read(SERIES / f"{recording}.json.gz")
    last = max(index for index in range(made.count) if made.up[index])
    rows = [(name, values[last]) for name, values in made.series.items()]
    return "".join(f"{name} {value}\n" for name, value in rows if value is not None)


@dataclass
class MadeCluster:
    """What the API server has.

    Args:
        pages: node -> its page of metrics; None: it accepts the connection and says nothing.
        daemonsets: others than the daemon's.
        node_selector: of the daemon's DaemonSet.
        forbidden: beginnings of paths, and `proxy`, that are refused with 403.
    """

    nodes: list[dict[str, Any]] = field(default_factory=list)
    daemons: list[dict[str, Any]] = field(default_factory=list)
    pods: list[dict[str, Any]] = field(default_factory=list)
    pages: dict[str, str | None] = field(default_factory=dict)
    daemonsets: list[dict[str, Any]] = field(default_factory=list)
    node_selector: dict[str, str] = field(default_factory=lambda: {"kubernetes.io/os": "linux"})
    forbidden: set[str] = field(default_factory=set)
    paths: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        metrics: str | None,
        *,
        state: dict[str, Any] | None = None,
        restarts: int = 0,
        exit_code: int = 0,
        zone: str = LABELS[ZONE_LABEL],
        image: str = "0.1.0",
        is_ready: bool = True,
        pod: str = "",
        last_log: str = "",
    ) -> None:
        """Add a node with a daemon.

        Args:
            state: of its container; running by default.
            exit_code: with which the container ended before each restart.
            image: its tag.
            is_ready: the node's condition.
            pod: the name of the daemon's pod; one with the node's by default.
            last_log: the end of the container's log at its last end, as kubelet shows it.
        """
        pod = pod or f"vpc-ipamd-{name}"
        self.add_node(name, zone=zone, is_ready=is_ready)
        status: dict[str, Any] = {"name": "ipamd", "state": state or {"running": {}}, "restartCount": restarts}
        if restarts:
            end = {"exitCode": exit_code, "reason": "Error", "finishedAt": "2026-11-22T01:00:00Z", "message": last_log}
            status["lastState"] = {"terminated": end}
        container = {"name": "ipamd", "image": f"vpc-ipamd:{image}", "env": []}
        self.daemons.append(
            {
                "metadata": {
                    "name": pod,
                    "namespace": "kube-system",
                    "creationTimestamp": "2026-11-22T00:00:00Z",
                },
                "spec": {"nodeName": name, "containers": [container]},
                "status": {"phase": "Running", "containerStatuses": [status]},
            }
        )
        self.pages[f"{pod}:61678"] = metrics

    def add_node(self, name: str, *, zone: str = LABELS[ZONE_LABEL], is_ready: bool = True) -> None:
        """Add a node without a daemon."""
        condition = {"type": "Ready", "status": str(is_ready)}
        labels = LABELS | {ZONE_LABEL: zone}
        self.nodes.append({"metadata": {"name": name, "labels": labels}, "status": {"conditions": [condition]}})

    def answer(self, path: str, query: dict[str, list[str]]) -> tuple[int, bytes]:
        """Status and body of an answer."""
        self.paths.append(path)
        if any(word in path for word in self.forbidden):
            return 403, json.dumps({"kind": "Status", "message": "pods is forbidden", "code": 403}).encode()
        if path.endswith("/proxy/metrics"):
            return self._metrics(unquote(path.split("/")[6]))
        if path == "/api/v1/nodes":
            return 200, listed(self.nodes, query)
        if path.startswith("/apis/apps/v1/namespaces/"):
            template = {"spec": {"nodeSelector": self.node_selector, "containers": [{"name": "ipamd"}]}}
            ours = {"metadata": {"name": "vpc-ipamd"}, "spec": {"template": template}}
            return 200, listed([ours] if "labelSelector" in query else [ours, *self.daemonsets], query)
        if "labelSelector" in query:
            return 200, listed(self.daemons, query)
        field_name, _, value = query["fieldSelector"][0].partition("=")
        section, _, key = field_name.partition(".")
        return 200, listed([pod for pod in self.pods if pod[section].get(key) == value], query)

    def _metrics(self, name: str) -> tuple[int, bytes]:
        text = self.pages[name]
        if text is None:
            time.sleep(SILENT_S)
            return 503, b""
        return 200, text.encode()


def listed(objects: list[dict[str, Any]], query: dict[str, list[str]]) -> bytes:
    """One page of a list, as the API server cuts it."""
    first, limit = int(query.get("continue", ["0"])[0]), int(query["limit"][0])
    metadata = {"continue": str(first + limit)} if first + limit < len(objects) else {}
    return json.dumps({"items": objects[first : first + limit], "metadata": metadata}).encode()


@contextmanager
def serving(cluster: MadeCluster) -> Iterator[str]:
    """Serve on loopback; yields host:port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            status, body = cluster.answer(parts.path, parse_qs(parts.query))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is logged."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that left is no error."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
