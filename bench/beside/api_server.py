"""A stand-in for a Kubernetes API server, with the parts that a node's network daemon needs at its start: discovery, its own node, and
no pods.

    python -m bench.beside.api_server --node NAME --max-pods N --port PORT

It serves plain HTTP on loopback, in the node. Every other request is answered with a 404, as by a server that does not have the kind.
Lists never change, so a watch sends the existing objects and then nothing until its end. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

WATCH_S = 300.0
"""Longest duration of a watch. Ours: Kubernetes' own clients request 5 to 10 minutes, and begin again when a watch ends."""

VERSION = "1"
"""The resource version of all objects and lists, which never change."""

Object = dict[str, Any]


def node_object(name: str, max_pods: int) -> Object:
    """Return a Node object with the fields that a daemon reads: the name and the number of pods."""
    sizes = {"pods": str(max_pods), "cpu": "2", "memory": "8Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": VERSION, "labels": {}},
        "spec": {},
        "status": {"capacity": sizes, "allocatable": sizes},
    }


def discovery(path: str) -> Object | None:
    """Return the answer to a request of API discovery, by which a client learns the kinds; None for any other path."""
    known: dict[str, Object] = {
        "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0", "platform": "linux/amd64"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
        "/api/v1": {
            "kind": "APIResourceList",
            "groupVersion": "v1",
            "resources": [_kind("nodes", "Node", is_namespaced=False), _kind("pods", "Pod", is_namespaced=True)],
        },
    }
    return known.get(path)


def _kind(name: str, kind: str, *, is_namespaced: bool) -> Object:
    verbs = ["get", "list", "watch"]
    return {"name": name, "singularName": kind.lower(), "namespaced": is_namespaced, "kind": kind, "verbs": verbs}


def initial_events(kind: str, items: list[Object], *, wants_initial: bool) -> list[Object]:
    """Return the first events of a watch: the existing objects and a bookmark. None if the client did not request initial events."""
    if not wants_initial:
        return []
    mark = {"resourceVersion": VERSION, "annotations": {"k8s.io/initial-events-end": "true"}}
    bookmark = {"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": kind, "metadata": mark}}
    return [*({"type": "ADDED", "object": item} for item in items), bookmark]


class ApiServer(ThreadingHTTPServer):
    """The server, with a thread for each connection."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], node: Object) -> None:
        """Start to listen. `serve_forever` serves the connections."""
        super().__init__(address, _Handler)
        self.items = {"nodes": ("Node", [node]), "pods": ("Pod", [])}
        self.ended = threading.Event()

    def server_close(self) -> None:
        """Close the server and end all watches."""
        self.ended.set()
        super().server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ApiServer

    def do_GET(self) -> None:
        """Answer a request of discovery, for one object, for a list, or for a watch."""
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        document = discovery(parts.path)
        words = parts.path.removeprefix("/api/v1/").split("/")
        if document is not None:
            self._answer(HTTPStatus.OK, document)
        elif parts.path.startswith("/api/v1/") and words[0] in self.server.items and len(words) <= 2:
            self._items(words, query)
        else:
            self._absent()

    def do_POST(self) -> None:
        """Answer an attempt to create an object, such as an Event, with a 404."""
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self._absent()

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log."""

    def _items(self, words: list[str], query: dict[str, str]) -> None:
        kind, items = self.server.items[words[0]]
        if len(words) == 2:
            named = next((item for item in items if item["metadata"]["name"] == words[1]), None)
            if named is None:
                self._absent()
            else:
                self._answer(HTTPStatus.OK, named)
        elif query.get("watch") in ("true", "1"):
            self._watch(kind, items, query)
        else:
            self._answer(
                HTTPStatus.OK,
                {"kind": f"{kind}List", "apiVersion": "v1", "metadata": {"resourceVersion": VERSION}, "items": items},
            )

    def _watch(self, kind: str, items: list[Object], query: dict[str, str]) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in initial_events(kind, items, wants_initial=query.get("sendInitialEvents") == "true"):
            self._chunk(json.dumps(event).encode() + b"\n")
        self.server.ended.wait(min(float(query.get("timeoutSeconds", WATCH_S)), WATCH_S))
        self._chunk(b"")

    def _chunk(self, content: bytes) -> None:
        try:
            self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
            self.wfile.flush()
        except OSError:  # the client has gone
            self.close_connection = True

    def _absent(self) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
        self._answer(HTTPStatus.NOT_FOUND, status)

    def _answer(self, status: HTTPStatus, body: Object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    """Serve until the process is killed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.beside.api_server", description="A stand-in for a cluster's API server."
    )
    parser.add_argument("--node", required=True)
    parser.add_argument("--max-pods", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    ApiServer(("127.0.0.1", options.port), node_object(options.node, options.max_pods)).serve_forever()


if __name__ == "__main__":
    main()
