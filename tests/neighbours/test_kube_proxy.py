"""The real kube-proxy in both of its modes beside a real daemon; `make neighbours` builds and runs it.

Its services and endpoints are those of the packet tests; a server of ours lists them (`service_api.py`). IPVS is not tried: the
kernels of our tests have no `ip_vs`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.fabric import talk
from lab.node.kube_proxy import KubeProxy, Service
from lab.node.node import REPOSITORY
from lab.node.process import NodeProcess
from lab.node.route_watch import RouteWatch, routes_and_rules
from tests.lab.packets.ground import NODES, PODS, Ground, service_of
from tests.neighbours.beside import NODE, come_and_go, is_ours, subjects, two_nodes, wait_for_packets
from tests.neighbours.service_api import node_document, served, service_documents
from tests.patience import PATIENCE_S
from tests.rig import wait_until

PROGRAM = REPOSITORY / "build" / "neighbours" / "kube-proxy"

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.skipif(
        os.environ.get("VPC_IPAMD_NEIGHBOURS") != "1" or not PROGRAM.exists(),
        reason="`make neighbours` runs these: it builds kube-proxy",
    ),
]

LOG = "/var/log/kube-proxy.log"
ASK_S = 0.3


@pytest.fixture
def made() -> Iterator[Ground]:
    """Two nodes with sandboxes on both ENIs; the first has no stand-in for kube-proxy."""
    with two_nodes() as built:
        KubeProxy(built.rigs[NODE].node).stop()
        yield built


def services(made: Ground) -> list[Service]:
    """Those of the packet tests, with their endpoints."""
    shapes = [service_of(pod, is_local=is_local) for pod in PODS for is_local in (False, True)]
    endpoints = [((made.addresses[pod], talk.PORT),) for pod in PODS for _ in (False, True)]
    return [
        Service(shape.name, shape.cluster_address, shape.port, targets, shape.node_port, is_local=shape.is_local)
        for shape, targets in zip(shapes, endpoints, strict=True)
    ]


@contextmanager
def api(made: Ground) -> Iterator[str]:
    """What kube-proxy of the first node asks. Returns: its URL."""
    nodes = {made.addresses[pod]: made.node_of(pod) for pod in PODS}
    made_services, slices = service_documents(services(made), nodes=nodes)
    objects = {
        "/api/v1/services": made_services,
        "/apis/discovery.k8s.io/v1/endpointslices": slices,
        "/api/v1/nodes": [node_document(name, made.addresses[name]) for name in NODES],
    }
    with served(made.rigs[NODE].node.netns_path(), objects) as url:
        yield url


@contextmanager
def running(made: Ground, url: str, mode: str) -> Iterator[None]:
    """Run kube-proxy on the first node; at the end it is ended and its rules stay, as at a roll of its DaemonSet."""
    node = made.rigs[NODE].node
    cluster = {"name": "it", "cluster": {"server": url}}
    context = {"name": "it", "context": {"cluster": "it", "user": "it"}}
    kubeconfig = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context], "current-context": "it"}
    node.write_file("/etc/kube-proxy/kubeconfig", json.dumps(kubeconfig | {"users": [{"name": "it", "user": {}}]}).encode())
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {
            "kubeconfig": "/etc/kube-proxy/kubeconfig",
            "acceptContentTypes": "application/json",
            "contentType": "application/json",
        },
        # The table of tracked connections belongs to the whole kernel; zero leaves it alone.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "hostnameOverride": NODE,
        "mode": mode,
        "oomScoreAdj": 0,
    }
    node.write_file("/etc/kube-proxy/config.json", json.dumps(config).encode())
    argv = ["/bin/sh", "-c", f"exec {PROGRAM} --config=/etc/kube-proxy/config.json >>{LOG} 2>&1"]
    process = node.spawn(argv)
    try:
        yield
        assert process.poll() is None, node.run(["tail", "-n", "20", LOG]).stdout
    finally:
        end(process)


def end(process: NodeProcess) -> None:
    """End it, and wait."""
    process.terminate()
    process.wait(PATIENCE_S)


def serves(made: Ground, pod: str) -> bool:
    """Whether a pod's services answer from a pod of the node and from outside, and the pod sees whom kube-proxy lets it see."""
    cluster, local = service_of(pod), service_of(pod, is_local=True)
    answers = [made.ask("pod-a-too", cluster.cluster_address, port=cluster.port, timeout_s=ASK_S)]
    seen_as = [made.addresses["pod-a-too"]]
    answers.append(made.ask("host-a", NODE, port=cluster.node_port, timeout_s=ASK_S))
    seen_as.append(made.addresses[NODE])
    if made.node_of(pod) == NODE:
        answers.append(made.ask("host-a", NODE, port=local.node_port, timeout_s=ASK_S))
        seen_as.append(made.addresses["host-a"])
    return all(
        answer is not None and (answer.by, answer.seen_as) == (pod, address)
        for answer, address in zip(answers, seen_as, strict=True)
    )


def wait_for_services(made: Ground, what: str) -> None:
    """Wait until the services of all pods but the asking one answer."""
    for pod in PODS:
        if pod != "pod-a-too":
            wait_until(lambda pod=pod: serves(made, pod), what=f"services of {pod} {what}")  # type: ignore[misc]


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_beside(made: Ground, mode: str) -> None:
    """Services lead to pods of both ENIs, by ClusterIP and NodePort, over a restart of kube-proxy; nothing of ours is lost."""
    node = made.rigs[NODE].node
    ours = {line for line in routes_and_rules(node) if is_ours(line)}
    with api(made) as url, RouteWatch(node) as watch:
        for time_of_start in ("after its first start", "after a restart"):
            with running(made, url, mode):
                wait_for_services(made, time_of_start)
                wait_for_packets(made, time_of_start)
                come_and_go(made, time_of_start)
        wait_for_services(made, "while it is away")
        assert watch.losses(ours) == []
    assert "other software" not in subjects(made)
