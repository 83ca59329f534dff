"""Plays as much of a Kubernetes API server as a node's network daemon asks for at its start: discovery, its own node, no pods.

    python -m bench.beside.api_server --node NAME --max-pods N --port PORT

Plain HTTP on loopback, in the node. Whatever else is asked is answered with a 404, as by a server that does not have that kind.
A list is never changed, so a watch says what is there and is then silent until its time is over. Standard library only.
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
"""The longest watch. Kubernetes's own clients ask for 5 to 10 minutes and begin anew when one ends."""

VERSION = "1"
"""The resource version of everything."""

Object = dict[str, Any]


def node_object(name: str, max_pods: int) -> Object:
    """A Node as far as a daemon reads it: its name and how many pods it may have."""
    sizes = {"pods": str(max_pods), "cpu": "2", "memory": "8Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": VERSION, "labels": {}},
        "spec": {},
        "status": {"capacity": sizes, "allocatable": sizes},
    }


def discovery(path: str) -> Object | None:
    """What a client asks to learn which kinds there are; None for a path that is none of these."""
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
    """The first events of a watch: what is there and a bookmark at its end, for a client that asked for these; else none."""
    if not wants_initial:
        return []
    mark = {"resourceVersion": VERSION, "annotations": {"k8s.io/initial-events-end": "true"}}
    bookmark = {"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": kind, "metadata": mark}}
    return [*({"type": "ADDED", "object": item} for item in items), bookmark]


class ApiServer(ThreadingHTTPServer):
    """The server; a thread for each connection."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], node: Object) -> None:
        """Listen; `serve_forever` serves."""
        super().__init__(address, _Handler)
        self.items = {"nodes": ("Node", [node]), "pods": ("Pod", [])}
        self.ended = threading.Event()

    def server_close(self) -> None:
        """End the watches too."""
        self.ended.set()
        super().server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ApiServer

    def do_GET(self) -> None:
        """Discovery, one object, a list or a watch."""
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        found = discovery(parts.path)
        words = parts.path.removeprefix("/api/v1/").split("/")
        if found is not None:
            self._answer(HTTPStatus.OK, found)
        elif parts.path.startswith("/api/v1/") and words[0] in self.server.items and len(words) <= 2:
            self._items(words, query)
        else:
            self._absent()

    def do_POST(self) -> None:
        """Events and the like: nobody keeps them."""
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self._absent()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _items(self, words: list[str], query: dict[str, str]) -> None:
        kind, items = self.server.items[words[0]]
        if len(words) == 2:
            one = next((item for item in items if item["metadata"]["name"] == words[1]), None)
            if one is None:
                self._absent()
            else:
                self._answer(HTTPStatus.OK, one)
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
    """Serve until the process is ended."""
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
