"""The Kubernetes objects that the steps make: pods that ask and answer questions, pods that do nothing, a service, and cluster DNS."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lab.cluster.control_plane import ADDRESSES
from lab.node.pause import IMAGE as PAUSE
from lab.vpc.family import IPV4, Family

Object = dict[str, Any]

NAMESPACE = "trial"
PORT, NODE_PORT = 8080, 30080
DNS_IMAGE = "vpc-lab.local/coredns:1"
PYTHON = "/usr/bin/python3.11"
"""Path of Python in vpc-ipamd's image. Every node has this image, so the answering pods use it too."""

ANSWER = """
import http.client, json, os, socket, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        question = dict(urllib.parse.parse_qsl(urllib.parse.urlparse(self.path).query))
        said = {"pod": os.environ["POD"], "node": os.environ["NODE"], "seen": self.client_address[0]}
        if "host" in question:
            try:
                connection = http.client.HTTPConnection(question["host"], int(question["port"]), timeout=4)
                connection.request("GET", "/")
                said["heard"] = json.loads(connection.getresponse().read())
            except Exception as error:
                said["error"] = f"{type(error).__name__}: {error}"
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        return None

ThreadingHTTPServer.daemon_threads = True
ThreadingHTTPServer(("", 8080), Answer).serve_forever()
"""
"""Program of the answering pods. It answers with its pod, its node, and the client's address. For `/?host=H&port=P` it sends a request
to that address and adds the answer."""


def collection(kind: str, *, namespace: str = NAMESPACE) -> str:
    """Return the API path of a namespaced collection. `kind`: pods, services, deployments, daemonsets, events and the like."""
    group = "/apis/apps/v1" if kind in ("deployments", "daemonsets") else "/api/v1"
    return f"{group}/namespaces/{namespace}/{kind}"


def answering(name: str, *, image: str, replicas: int) -> Object:
    """Return a Deployment of pods that answer on PORT, spread over the nodes."""
    container = {
        "name": "answer",
        "image": image,
        "imagePullPolicy": "Never",
        "command": [PYTHON, "-c", ANSWER],
        "env": [
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1, "timeoutSeconds": 2},
    }
    return _deployment(name, NAMESPACE, container, replicas=replicas)


def waiting(name: str, *, replicas: int) -> Object:
    """Return a Deployment of pods that do nothing, and so need only an address."""
    return _deployment(name, NAMESPACE, {"name": "pause", "image": PAUSE, "imagePullPolicy": "Never"}, replicas=replicas)


def lone_pod(name: str, *, node: str = "", of_host: bool = False) -> Object:
    """Return a pod that does nothing, and so needs only an address.

    Args:
        node: the node on which it must run; "" lets the scheduler choose.
        of_host: whether it uses the host's network, so that it needs no address either.
    """
    spec: Object = {
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": of_host,
        "containers": [{"name": "pause", "image": PAUSE, "imagePullPolicy": "Never"}],
    }
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def service(name: str) -> Object:
    """Return a Service with a cluster address and a node port, for the pods of the Deployment of that name."""
    spec = {"type": "NodePort", "selector": {"app": name}, "ports": [{"port": 80, "targetPort": PORT, "nodePort": NODE_PORT}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def cluster_dns(*, family: Family = IPV4, public: Mapping[str, str] = MappingProxyType({})) -> list[tuple[str, Object]]:
    """Return the objects of CoreDNS as (path of the collection, object), in the order of their creation.

    Args:
        family: the cluster's.
        public: names outside of the cluster that it resolves: name -> address.
    """
    name, namespace = "coredns", "kube-system"
    meta = {"name": name, "namespace": namespace}
    zones = "cluster.local in-addr.arpa ip6.arpa"
    hosts = "".join(f"  {address} {host}\n" for host, address in public.items())
    others = f" hosts {{\n{hosts}  fallthrough\n }}\n" if public else ""
    config = f".:53 {{\n health\n ready\n errors\n cache 5\n{others} kubernetes {zones} {{ \n pods insecure\n }}\n}}\n"
    rules = [
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    container = {
        "name": name,
        "image": DNS_IMAGE,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
    }
    deployment = _deployment(name, namespace, container, replicas=2)
    spec = deployment["spec"]["template"]["spec"]
    spec |= {"serviceAccountName": name, "automountServiceAccountToken": True, "dnsPolicy": "Default"}
    spec["volumes"] = [{"name": "config", "configMap": {"name": name}}]
    ports = [{"name": protocol.lower(), "port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    access = "/apis/rbac.authorization.k8s.io/v1"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subject = {"kind": "ServiceAccount", **meta}
    return [
        (collection("serviceaccounts", namespace=namespace), {"metadata": meta}),
        (f"{access}/clusterroles", {"metadata": {"name": name}, "rules": rules}),
        (f"{access}/clusterrolebindings", {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}),
        (collection("configmaps", namespace=namespace), {"metadata": meta, "data": {"Corefile": config}}),
        (
            collection("services", namespace=namespace),
            {
                "metadata": {"name": "kube-dns", "namespace": namespace},
                "spec": {"clusterIP": ADDRESSES[family].dns, "selector": {"app": name}, "ports": ports},
            },
        ),
        (collection("deployments", namespace=namespace), deployment),
    ]


def _deployment(name: str, namespace: str, container: Object, *, replicas: int) -> Object:
    labels = {"app": name}
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "topologySpreadConstraints": [spread | {"labelSelector": {"matchLabels": labels}}],
                    "containers": [container],
                },
            },
        },
    }
