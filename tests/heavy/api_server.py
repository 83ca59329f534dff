"""A stand-in for the API server of a cluster: keeps what kubectl sends it, on loopback, and answers as far as kubectl asks.

No admission, no controllers: a DaemonSet makes no pods. Patches are applied in the three forms that kubectl sends.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

RESOURCES = {
    "/api/v1": {"pods": "Pod", "nodes": "Node", "configmaps": "ConfigMap", "serviceaccounts": "ServiceAccount"},
    "/apis/apps/v1": {"daemonsets": "DaemonSet", "controllerrevisions": "ControllerRevision"},
    "/apis/crd.k8s.amazonaws.com/v1alpha1": {"eniconfigs": "ENIConfig"},
}
NOT_NAMESPACED = {"nodes", "eniconfigs"}

ROOTS = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [
            {"name": name, "versions": [version], "preferredVersion": version}
            for name, version in (
                ("apps", {"groupVersion": "apps/v1", "version": "v1"}),
                ("crd.k8s.amazonaws.com", {"groupVersion": "crd.k8s.amazonaws.com/v1alpha1", "version": "v1alpha1"}),
            )
        ],
    },
    "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
}


@dataclass
class Cluster:
    """What is there: path -> object."""

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    port: int = 0

    def add(self, document: dict[str, Any]) -> str:
        """Take an object. Returns: its path."""
        path = f"{collection(document)}/{document['metadata']['name']}"
        made = copy.deepcopy(document)
        made["metadata"] |= {"uid": f"uid-of-{path}", "creationTimestamp": "2026-11-22T00:00:00Z", "resourceVersion": "1"}
        made["metadata"].setdefault("namespace", "default")
        self.objects[path] = made
        return path

    def get(self, kind: str, name: str, namespace: str = "kube-system") -> dict[str, Any]:
        """One object. Raises: KeyError if it is not there."""
        plural = f"{kind.lower()}s"
        return next(
            one for path, one in self.objects.items()
            if path.endswith(f"/{plural}/{name}") and one["metadata"]["namespace"] == namespace
        )  # fmt: skip

    def names(self, kind: str) -> set[str]:
        """Names of all objects of a kind."""
        return {one["metadata"]["name"] for one in self.objects.values() if one["kind"] == kind}

    def select(self, path: str, labels: str, fields: str) -> list[dict[str, Any]]:
        """The objects below a collection, of all namespaces if it names none."""
        group = next(root for root in RESOURCES if path.startswith(root))
        plural = path.rpartition("/")[2]
        found = [
            one
            for where, one in self.objects.items()
            if where.startswith(group)
            and where.split("/")[-2] == plural
            and ("/namespaces/" not in path or where.startswith(path))
        ]
        return [one for one in found if matches(one["metadata"].get("labels", {}), labels) and has_fields(one, fields)]


def collection(document: dict[str, Any]) -> str:
    """The path that an object is created at."""
    group = "/api/v1" if document["apiVersion"] == "v1" else f"/apis/{document['apiVersion']}"
    plural = next(name for name, kind in RESOURCES[group].items() if kind == document["kind"])
    namespace = "" if plural in NOT_NAMESPACED else f"/namespaces/{document['metadata'].get('namespace', 'default')}"
    return f"{group}{namespace}/{plural}"


def matches(labels: dict[str, str], selector: str) -> bool:
    """Whether labels fit `a=b,c` (c: there at all)."""
    wanted = [part.partition("=") for part in selector.split(",") if part]
    return all(name in labels and (not equals or labels[name] == value) for name, equals, value in wanted)


def has_fields(document: dict[str, Any], selector: str) -> bool:
    """Whether fields fit `spec.nodeName=x`."""
    for part in filter(None, selector.split(",")):
        path, _, value = part.partition("=")
        found: Any = document
        for key in path.split("."):
            found = found.get(key, {})
        if found != value:
            return False
    return True


def merge(into: Any, patch: Any) -> Any:
    """A strategic merge patch, as far as it is needed: lists of named things are merged by name, others are replaced."""
    if isinstance(into, dict) and isinstance(patch, dict) and patch.get("$patch") != "replace":
        merged = dict(into)
        for key, value in patch.items():
            if value is None:
                merged.pop(key, None)
            elif not key.startswith("$"):
                merged[key] = merge(into.get(key), value)
        return merged
    if isinstance(patch, dict):
        return {key: value for key, value in patch.items() if key != "$patch"}
    if isinstance(into, list) and isinstance(patch, list) and all("name" in one for one in [*into, *patch]):
        named = {one["name"]: one for one in into}
        for one in patch:
            if one.get("$patch") == "delete":
                named.pop(one["name"], None)
            else:
                named[one["name"]] = merge(named.get(one["name"]), one)
        return list(named.values())
    return patch


def add_by_json_patch(document: dict[str, Any], patch: list[dict[str, Any]]) -> None:
    """RFC 6902, `add` to the end of a list. Raises: KeyError where the path leads nowhere."""
    for step in patch:
        assert step["op"] == "add", step
        *path, last = step["path"].strip("/").split("/")
        assert last == "-", step
        found: Any = document
        for key in path:
            found = found[int(key)] if isinstance(found, list) else found[key.replace("~1", "/")]
        found.append(step["value"])


def listed(path: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer to a list: of the kind that typed clients expect."""
    group = next(root for root in RESOURCES if path.startswith(root))
    kind = f"{RESOURCES[group][path.rpartition('/')[2]]}List"
    return {"kind": kind, "apiVersion": version(group), "metadata": {"resourceVersion": "1"}, "items": found}


def version(group: str) -> str:
    """Give `v1` or `apps/v1` for the path of a group."""
    return group.removeprefix("/apis/").removeprefix("/api/")


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    cluster: Cluster

    def log_message(self, *_: object) -> None:
        """Say nothing on standard error."""

    def _answer(self, body: Any, status: int = 200, kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _not_found(self) -> None:
        self._answer({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}, 404)

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")

    def do_GET(self) -> None:
        """Discovery, an object, a list, a log."""
        url = urlsplit(self.path)
        path, query = url.path, {name: values[0] for name, values in parse_qs(url.query).items()}
        if path in ROOTS:
            self._answer(ROOTS[path])
        elif path == "/openapi/v2":
            self._answer(
                b"", kind="application/octet-stream"
            )  # no schema: tests/unit/manifests/test_kubernetes_schemas.py has them
        elif path in RESOURCES:
            self._answer(discovery(path))
        elif path in self.cluster.objects:
            self._answer(self.cluster.objects[path])
        elif path.endswith("/log") and path.removesuffix("/log") in self.cluster.objects:
            self._answer(b'{"level": "info", "message": "ready"}\n', kind="text/plain")
        elif any(path.endswith(f"/{plural}") for names in RESOURCES.values() for plural in names):
            found = self.cluster.select(path, query.get("labelSelector", ""), query.get("fieldSelector", ""))
            self._answer(listed(path, found))
        else:
            self._not_found()

    def do_POST(self) -> None:
        """Create."""
        document, path = self._body(), urlsplit(self.path).path
        if "/namespaces/" in path:
            document["metadata"].setdefault("namespace", path.split("/")[-2])
        assert path == collection(document), self.path
        self._answer(self.cluster.objects[self.cluster.add(document)], 201)

    def do_PATCH(self) -> None:
        """Change, in the form that the content type names."""
        path, patch = urlsplit(self.path).path, self._body()
        if path not in self.cluster.objects:
            self._not_found()
            return
        if self.headers["Content-Type"] == "application/json-patch+json":
            add_by_json_patch(self.cluster.objects[path], patch)
        else:
            self.cluster.objects[path] = merge(self.cluster.objects[path], patch)
        self._answer(self.cluster.objects[path])

    def do_DELETE(self) -> None:
        """Remove at once."""
        self._body()
        found = self.cluster.objects.pop(urlsplit(self.path).path, None)
        self._answer(found) if found else self._not_found()


def discovery(path: str) -> dict[str, Any]:
    """What a group has."""
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    resources = [
        {"name": name, "singularName": "", "namespaced": name not in NOT_NAMESPACED, "kind": kind, "verbs": verbs}
        for name, kind in RESOURCES[path].items()
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version(path), "resources": resources}


@contextmanager
def serving() -> Iterator[Cluster]:
    """An empty cluster on a port of loopback, while the block runs."""
    cluster = Cluster()
    handler = type("Handler", (_Handler,), {"cluster": cluster})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        cluster.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield cluster
        finally:
            server.shutdown()
            thread.join(10)
