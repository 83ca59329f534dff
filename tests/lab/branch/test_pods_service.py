"""The stand-in of kubelet's pods service, and the annotations that a sandbox is made with; asked as any client would ask."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from lab.branches.ground import Branches
from lab.branches.messages import annotations_of
from lab.branches.pods import CONFIG_SOURCE, MARK, POD_ENI, REQUIRED, Pod
from lab.lab import Lab
from lab.node.errors import SandboxError
from tests.patience import PATIENCE_S
from tests.rig import wait_until

pytestmark = pytest.mark.privileged

WITNESS = """#!/bin/sh
[ "$CNI_COMMAND" = ADD ] || exit 0
tr -d '\\n' >> /run/witnessed; echo >> /run/witnessed
[ ! -e /run/refuses ] || { echo '{"cniVersion": "1.0.0", "code": 11, "msg": "not yet"}'; exit 1; }
echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "x"}], "ips": [{"address": "192.0.2.9/32", "interface": 0}]}'
"""


@pytest.fixture(scope="module")
def branches() -> Iterator[Branches]:
    """A node with a runtime, kubelet and a trunk, and no CNI plugin."""
    with Lab(nodes=["node-a"], hosts=[]) as lab, Branches(lab, nodes=["node-a"], cooldown_s=0.5) as made:
        yield made


@pytest.fixture
def pod(branches: Branches) -> Iterator[Pod]:
    """A pod of the node that must have a group, which its controller has served; all orders are undone afterwards."""
    made = branches.pods.create("web", node="node-a", groups=(branches.lab.vpc.default_group_id,))
    wait_until(lambda: POD_ENI in branches.pods.get(made).annotations, what="the annotation")
    yield branches.pods.get(made)
    service = branches.services["node-a"]
    service.lists_without_sandbox, service.is_starting, service.delay_s = True, False, 0.0
    branches.pods.delete(made)


def _ask(branches: Branches, method: str, request: bytes = b"", *, timeout_s: float = 5.0) -> bytes:
    path = branches.services["node-a"].socket_path
    with grpc.insecure_channel(f"unix:{path}", options=[("grpc.default_authority", "localhost")]) as channel:
        answer: bytes = channel.unary_unary(f"/v1alpha1.Pods/{method}", bytes, bytes)(request, timeout=timeout_s)
    return answer


def _uid(pod: Pod) -> bytes:
    return b"\x0a" + bytes([len(pod.uid)]) + pod.uid.encode()


def _decoded(message: bytes) -> str:
    """The fields of a message by number, as protoc shows them."""
    argv = [sys.executable, "-m", "grpc_tools.protoc", "--decode_raw"]
    return subprocess.run(argv, input=message, capture_output=True, check=True, timeout=PATIENCE_S).stdout.decode()


def test_root_alone_may_ask(branches: Branches, pod: Pod) -> None:
    """By the mode of the socket, as kubelet's."""
    assert stat.S_IMODE(branches.services["node-a"].socket_path.stat().st_mode) == 0o600
    assert pod.name.encode() in _ask(branches, "ListPods")


def test_a_pod_is_a_core_v1_pod(branches: Branches, pod: Pod) -> None:
    """By field numbers: metadata.annotations 12, spec.containers 2, resources 8, limits 1; protoc reads it."""
    text = "".join(_decoded(_ask(branches, "GetPod", _uid(pod))).split())
    assert f'1{{1:"{pod.name}"3:"{pod.namespace}"5:"{pod.uid}"12{{1:' in text, text
    assert f'12{{1:"{MARK}"2:"{REQUIRED}"}}' in text, text
    assert f'8{{1{{1:"{POD_ENI}"2{{1:"1"}}}}2{{1:"{POD_ENI}"2{{1:"1"}}}}}}' in text, text


def test_both_answers_about_a_pod_without_a_sandbox(branches: Branches, pod: Pod) -> None:
    """Listed or not, as the service is told."""
    branches.services["node-a"].lists_without_sandbox = False
    assert _ask(branches, "ListPods") == b""
    with pytest.raises(grpc.RpcError) as refused:
        _ask(branches, "GetPod", _uid(pod))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    branches.services["node-a"].lists_without_sandbox = True
    assert pod.uid.encode() in _ask(branches, "GetPod", _uid(pod))


def test_starting_late_and_dead(branches: Branches, pod: Pod) -> None:
    """FAILED_PRECONDITION while kubelet starts; late by the delay; UNAVAILABLE when nobody listens, with the socket there."""
    service = branches.services["node-a"]
    service.is_starting = True
    with pytest.raises(grpc.RpcError) as refused:
        _ask(branches, "GetPod", _uid(pod))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    service.is_starting, service.delay_s = False, 0.4
    began = time.monotonic()
    _ask(branches, "GetPod", _uid(pod))
    assert time.monotonic() - began >= 0.4
    service.delay_s = 0.0
    service.stop()
    assert service.socket_path.exists()
    with pytest.raises(grpc.RpcError) as refused:
        _ask(branches, "GetPod", _uid(pod))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    service.start()
    assert pod.uid.encode() in _ask(branches, "GetPod", _uid(pod))


def test_a_watch_begins_with_what_is_there_and_goes_on(branches: Branches, pod: Pod) -> None:
    """ADDED, which is 0 and left out, then MODIFIED 1 and DELETED 2."""
    path = branches.services["node-a"].socket_path
    with grpc.insecure_channel(f"unix:{path}", options=[("grpc.default_authority", "localhost")]) as channel:
        events = channel.unary_stream("/v1alpha1.Pods/WatchPods", bytes, bytes)(b"", timeout=120)
        first = next(events)
        branches.pods.annotate(pod, "seen", "yes")
        second = next(events)
        branches.pods.delete(pod)
        third = next(events)
        events.cancel()
    assert first[:1] == b"\x12"
    assert (second[:2], b"seen" in second) == (b"\x08\x01", True)
    assert third[:2] == b"\x08\x02"


@pytest.fixture
def witness(branches: Branches) -> Iterator[None]:
    """A plugin that writes down what it is given, and answers with an address."""
    node = branches.lab.node("node-a")
    node.write_file("/opt/cni/bin/witness", WITNESS.encode(), 0o755)
    plugin = {"type": "witness", "capabilities": {"io.kubernetes.cri.pod-annotations": True}}
    conflist = {"cniVersion": "1.0.0", "name": "witnessed", "plugins": [plugin]}
    node.write_file("/etc/cni/net.d/10-witness.conflist", json.dumps(conflist).encode())
    wait_until(lambda: node.cri.network_problem() == "", what="a network that the runtime has loaded")
    yield
    node.run(["rm", "-f", "/run/refuses", "/run/witnessed"])


def _witnessed(branches: Branches) -> dict[str, str]:
    """The annotations of the newest ADD."""
    lines = branches.lab.node("node-a").run(["cat", "/run/witnessed"]).stdout.splitlines()
    found: dict[str, str] = json.loads(lines[-1])["runtimeConfig"]["io.kubernetes.cri.pod-annotations"]
    return found


@pytest.mark.usefixtures("witness")
def test_a_plugin_has_the_annotations_of_its_sandbox(branches: Branches, pod: Pod) -> None:
    """Those of the pod when kubelet asked for the sandbox, with kubelet's own."""
    kubelet = branches.kubelets["node-a"]
    kubelet.run(pod)
    try:
        assert _witnessed(branches) == annotations_of(pod)
        assert (kubelet.has_sandbox(pod), annotations_of(pod)[CONFIG_SOURCE]) == (True, "api")
    finally:
        kubelet.end_sandbox(pod)
    assert not kubelet.has_sandbox(pod)


@pytest.mark.usefixtures("witness")
def test_kubelet_tries_again_when_the_pod_changes(branches: Branches) -> None:
    """With the pod's annotations of that time; what the runtime refused is kept."""
    kubelet, node = branches.kubelets["node-a"], branches.lab.node("node-a")
    plain = branches.pods.create("plain", node="node-a")
    node.run(["touch", "/run/refuses"])
    try:
        with pytest.raises(SandboxError, match="not yet"):
            kubelet.run(plain, timeout_s=0.0)
        before = len(kubelet.refusals)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(kubelet.run, plain)
            wait_until(lambda: len(kubelet.refusals) > before, what="a refusal")
            node.run(["rm", "/run/refuses"])
            branches.pods.annotate(plain, "later", "yes")
            running.result(PATIENCE_S)
        assert _witnessed(branches)["later"] == "yes"
        assert {name for name, _ in kubelet.refusals} == {plain.key}
    finally:
        kubelet.end(plain)
