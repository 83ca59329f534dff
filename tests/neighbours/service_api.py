"""As much of an API server as kube-proxy asks: lists of services, endpoint slices and nodes that never change, and silent watches."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from lab.fabric.netns import run_inside
from lab.node.kube_proxy import Service
from lab.vpc.family import family_of
from lab.vpc.model import Address

Document = dict[str, Any]
PROTOCOLS = ("UDP", "TCP")
LISTENED_PORT = 6443
NOT_FOUND: Document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
VERSION = "1"
"""The resource version of everything: nothing changes."""

KINDS = {
    "/api/v1/services": "ServiceList",
    "/api/v1/nodes": "NodeList",
    "/apis/discovery.k8s.io/v1/endpointslices": "EndpointSliceList",
    "/apis/networking.k8s.io/v1/servicecidrs": "ServiceCIDRList",
}


def service_documents(services: Sequence[Service], *, nodes: Mapping[Address, str]) -> tuple[list[Document], list[Document]]:
    """Make the Service and the EndpointSlice of each. Args: nodes: the node of each endpoint's address."""
    made, slices = [], []
    for service in services:
        metadata = {"name": service.name, "namespace": "default", "uid": f"uid-{service.name}", "resourceVersion": VERSION}
        ports = [
            {"name": protocol.lower(), "protocol": protocol, "port": service.port, "nodePort": service.node_port}
            for protocol in PROTOCOLS
        ]
        family = "IPv4" if family_of(service.cluster_address).version == 4 else "IPv6"
        spec = {
            "type": "NodePort",
            "clusterIP": str(service.cluster_address),
            "clusterIPs": [str(service.cluster_address)],
            "ipFamilies": [family],
            "ipFamilyPolicy": "SingleStack",
            "ports": ports,
            "externalTrafficPolicy": "Local" if service.is_local else "Cluster",
            "internalTrafficPolicy": "Cluster",
        }
        made.append({"metadata": metadata, "spec": spec})
        endpoints = [
            {"addresses": [str(address)], "conditions": {"ready": True, "serving": True}, "nodeName": nodes[address]}
            for address, _ in service.endpoints
        ]
        (target_port,) = {port for _, port in service.endpoints}
        slices.append(
            {
                "metadata": metadata | {"labels": {"kubernetes.io/service-name": service.name}},
                "addressType": family,
                "endpoints": endpoints,
                "ports": [{"name": protocol.lower(), "protocol": protocol, "port": target_port} for protocol in PROTOCOLS],
            }
        )
    return made, slices


def node_document(name: str, address: Address) -> Document:
    """A node with its own address."""
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": VERSION},
        "status": {"addresses": [{"type": "InternalIP", "address": str(address)}]},
    }


@contextmanager
def served(netns_path: str, objects: Mapping[str, Sequence[Document]]) -> Iterator[str]:
    """Serve objects, by the paths of KINDS, on the loopback of a network namespace. Returns: the URL."""
    listener = run_inside(netns_path, lambda: socket.create_server(("127.0.0.1", LISTENED_PORT)))
    ended = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(objects, ended), bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="service-api")
    thread.start()
    try:
        yield f"http://127.0.0.1:{LISTENED_PORT}"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(objects: Mapping[str, Sequence[Document]], ended: threading.Event) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers GET; events, which kube-proxy posts, are taken and forgotten."""

        def do_GET(self) -> None:
            """A list; or a watch, which begins with what the list has if that is asked, and stays silent until the end."""
            address = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(address.query).items()}
            if address.path not in KINDS:
                self._answer(404, NOT_FOUND)
                return
            wanted = [document for document in objects.get(address.path, ()) if _is_selected(document, query)]
            if query.get("watch") != "true":
                head = _type_of(address.path, KINDS[address.path]) | {"metadata": {"resourceVersion": VERSION}}
                self._answer(200, head | {"items": wanted})
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            if query.get("sendInitialEvents") == "true":
                self.wfile.write("".join(map(json.dumps, _initial_events(address.path, wanted))).encode())
            ended.wait()

        def do_POST(self) -> None:
            """Take an event."""
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer(201, json.loads(content))

        def _answer(self, status: int, document: Document) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    return Handler


def _is_selected(document: Document, query: Mapping[str, str]) -> bool:
    """Whether the selectors take a document. Only the one by name leaves anything out here."""
    before, is_by_name, name = query.get("fieldSelector", "").partition("metadata.name=")
    return not is_by_name or bool(before) or name == document["metadata"]["name"]


def _initial_events(path: str, documents: Sequence[Document]) -> list[Document]:
    """What a watch with sendInitialEvents begins with. Source: Kubernetes API concepts, streaming lists."""
    kind = _type_of(path, KINDS[path].removesuffix("List"))
    events = [{"type": "ADDED", "object": kind | document} for document in documents]
    metadata = {"resourceVersion": VERSION, "annotations": {"k8s.io/initial-events-end": "true"}}
    return [*events, {"type": "BOOKMARK", "object": kind | {"metadata": metadata}}]


def _type_of(path: str, kind: str) -> Document:
    """The kind and API version of what a path has: of /apis/GROUP/VERSION/PLURAL, or /api/VERSION/PLURAL."""
    _, _, *group, version, _ = path.split("/")
    return {"kind": kind, "apiVersion": "/".join([*group, version])}
