"""A peer that says farewell to a connection and keeps it open, as one that ends does for the calls it still serves: the next call goes
over another connection."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ipamd.model.cni_request import AttachRequest, SandboxNames
from ipamd.model.errors import IpamError
from ipamd.model.ids import PodName, parse_key
from ipamd.model.pod_facts import GroupRequirement
from ipamd.pb import cri_pb2, network_policy_pb2, pods_pb2
from ipamd.policy.agent import GrpcPolicyAgent
from ipamd.runtime.cri import CriRuntime
from ipamd.sandbox.legs.pod_facts import KubeletFacts
from tests.contract.peers.hostile_grpc import DATA, STATUS_HEAD, Behaviour, Send, frame, goaway, headers, hostile_peer
from tests.patience import PATIENCE_S

UID = "4f6c0a7e-0000-4000-8000-000000000001"
TRIES = 2


def leaving_once(answer: bytes, connections: list[int]) -> Behaviour:
    """GOAWAY on the first connection; the answer on each later one."""
    own = threading.local()

    def behave(send: Send, stream: int) -> None:
        if not stream:
            connections.append(1)
            own.number = len(connections)
            if own.number == 1:
                send(goaway())
        elif own.number > 1:
            message = b"\0" + struct.pack("!I", len(answer)) + answer
            trailers = headers(stream, ((b"grpc-status", b"0"),), ends=True)
            send(headers(stream, STATUS_HEAD) + frame(DATA, 0, stream, message) + trailers)

    return behave


def asking_agent(path: str) -> bool:
    """Ask the network policy agent."""
    with closing(GrpcPolicyAgent(socket=path)) as agent:
        return answered(lambda: agent.enforce(PodName("default", "web-0"), mode="strict", timeout_s=PATIENCE_S))


def asking_runtime(path: str) -> bool:
    """Ask for the list of sandboxes."""
    with closing(CriRuntime(socket=path, call_timeout_s=PATIENCE_S)) as runtime:
        return answered(runtime.sandboxes)


def asking_kubelet(path: str) -> bool:
    """Ask for a pod, which is repeated within its time."""
    request = AttachRequest(
        parse_key("c" * 64, "eth0"), "/run/netns/x", "vpc-ipamd", "1.0.0", "digest", SandboxNames("default", "web-0", UID)
    )
    with closing(KubeletFacts(socket=path)) as kubelet:
        return kubelet.facts(request, timeout_s=PATIENCE_S).requirement is GroupRequirement.NO


def answered(ask: Callable[[], object]) -> bool:
    """Whether one of a few questions in a row is answered."""
    for _ in range(TRIES):
        try:
            ask()
        except IpamError:
            continue
        return True
    return False


POD = pods_pb2.Pod(metadata=pods_pb2.ObjectMeta(name="web-0", namespace="default", uid=UID)).SerializeToString()


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (asking_agent, network_policy_pb2.EnforceNpReply(Success=True).SerializeToString()),
        (asking_runtime, cri_pb2.ListPodSandboxResponse().SerializeToString()),
        (asking_kubelet, pods_pb2.GetPodResponse(pod=POD).SerializeToString()),
    ],
    ids=["policy agent", "runtime", "kubelet"],
)
def test_a_connection_that_was_left_is_not_used_again(tmp_path: Path, ask: Callable[[str], bool], answer: bytes) -> None:
    """grpcio by itself goes on with it as long as the other side keeps it open, and each call fails."""
    connections: list[int] = []
    with hostile_peer(str(tmp_path / "peer.sock"), leaving_once(answer, connections)):
        assert ask(str(tmp_path / "peer.sock"))
    assert len(connections) == 2
