"""The adapter against a gRPC server on a Unix socket: up, slow, refusing, dead and back; and the questions of a real client to us."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from ipamd.core.deadline import SystemClock
from ipamd.core.health import Health
from ipamd.migration.backend import CniBackendServer
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import CloudError, IpamError, PolicyAgentRefusedError, PolicyAgentSilentError, cause_of
from ipamd.model.family import IPV4, IPV6, Family
from ipamd.model.ids import PodName
from ipamd.model.refusals import RefusalCode
from ipamd.pb import network_policy_pb2 as pb
from ipamd.pb import network_policy_pb2_grpc
from ipamd.policy.agent import ConfigServicer, GrpcPolicyAgent
from tests.fakes.cloud import IDENTITY
from tests.fakes.metadata import FakeMetadata
from tests.patience import PATIENCE_S
from tests.refusing import refused_with
from tests.rig import wait_until

POD = PodName("default", "web-0")


class Agent(network_policy_pb2_grpc.NPBackendServicer):
    """The other side: `asked` has the requests; `answer` makes the reply, or ends the call; it can be held until `go`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[Any] = []
        self.success = True
        self.aborts: tuple[grpc.StatusCode, str] | None = None
        self.go = threading.Event()
        self.go.set()
        self.server: grpc.Server | None = None

    def start(self) -> None:
        """Listen, as after a restart of the real one: the old socket is removed."""
        self.path.unlink(missing_ok=True)
        self.server = grpc.server(ThreadPoolExecutor(4))
        network_policy_pb2_grpc.add_NPBackendServicer_to_server(self, self.server)  # type: ignore[no-untyped-call]  # generated
        self.server.add_insecure_port(f"unix:{self.path}")
        self.server.start()

    def stop(self) -> None:
        """End; nobody listens any more."""
        if self.server is not None:
            self.server.stop(0).wait(PATIENCE_S)
            self.server = None
        self.go.set()  # after that: what was held answers nobody

    def EnforceNpToPod(self, request: pb.EnforceNpRequest, context: grpc.ServicerContext) -> pb.EnforceNpReply:
        """See the proto."""
        self._take(request, context)
        return pb.EnforceNpReply(Success=self.success)

    def DeletePodNp(self, request: pb.DeleteNpRequest, context: grpc.ServicerContext) -> pb.DeleteNpReply:
        """See the proto."""
        self._take(request, context)
        return pb.DeleteNpReply(Success=self.success)

    def _take(self, request: Any, context: grpc.ServicerContext) -> None:
        self.asked.append(request)
        self.go.wait(PATIENCE_S)
        if self.aborts is not None:
            context.abort(*self.aborts)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """One that serves."""
    made = Agent(tmp_path / "npa.sock")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def adapter(agent: Agent) -> Iterator[GrpcPolicyAgent]:
    """The adapter at its socket."""
    made = GrpcPolicyAgent(socket=str(agent.path))
    yield made
    made.close()


def call(adapter: GrpcPolicyAgent, what: str, *, timeout_s: float = PATIENCE_S, is_patient: bool = True) -> None:
    """One of both calls."""
    if what == "enforce":
        adapter.enforce(POD, mode="strict", timeout_s=timeout_s)
    else:
        adapter.forget(POD, timeout_s=timeout_s, is_patient=is_patient)


CALLS = pytest.mark.parametrize("what", ["enforce", "forget"])


def test_what_is_on_the_wire(agent: Agent, adapter: GrpcPolicyAgent) -> None:
    """The fields by their numbers, as the agent reads them: 1 name, 2 namespace, 3 mode, 4 one interface."""
    call(adapter, "enforce")
    call(adapter, "forget")
    enforce, forget = agent.asked
    assert enforce.SerializeToString() == b"\x0a\x05web-0\x12\x07default\x1a\x06strict\x20\x01"
    assert forget.SerializeToString() == b"\x0a\x05web-0\x12\x07default"


@CALLS
def test_a_slow_agent_is_waited_for_as_long_as_is_said(agent: Agent, adapter: GrpcPolicyAgent, what: str) -> None:
    """Then it is silent; what it does later is nobody's answer."""
    agent.go.clear()
    with refused_with(RefusalCode.AGENT_SILENT, socket=agent.path):
        call(adapter, what, timeout_s=0.2)
    assert len(agent.asked) == 1
    agent.go.set()
    call(adapter, what)


@CALLS
@pytest.mark.parametrize(
    ("aborts", "success", "error", "cause"),
    [
        (None, False, PolicyAgentRefusedError, "policy-agent-refused"),
        ((grpc.StatusCode.UNKNOWN, "no\x1b[2J map"), True, PolicyAgentRefusedError, "policy-agent-refused"),
        ((grpc.StatusCode.UNIMPLEMENTED, ""), True, PolicyAgentRefusedError, "policy-agent-refused"),
        ((grpc.StatusCode.UNAVAILABLE, "it ends"), True, PolicyAgentSilentError, "policy-agent-silent"),
    ],
)
def test_it_refuses(
    agent: Agent, adapter: GrpcPolicyAgent, what: str, aborts: Any, success: bool, error: type[IpamError], cause: str
) -> None:
    """Success=false, and an error of its own, are answers; each has code 11, its cause, and words that are safe to print."""
    agent.success, agent.aborts = success, aborts
    with pytest.raises(error) as refusal:
        call(adapter, what)
    assert (refusal.value.cni_code, cause_of(refusal.value)) == (11, cause)
    assert str(refusal.value).isprintable()
    agent.success, agent.aborts = True, None
    call(adapter, what)


@CALLS
def test_nobody_listens(agent: Agent, adapter: GrpcPolicyAgent, what: str) -> None:
    """Before its first start, after its end, and where its socket is left: silent, at once for who does not wait."""
    agent.stop()
    for is_left in (False, True):
        if is_left:
            agent.path.touch()
        with refused_with(RefusalCode.AGENT_SILENT):
            call(adapter, what, timeout_s=0.3)
    began = time.monotonic()
    with pytest.raises(PolicyAgentSilentError):
        call(adapter, "forget", is_patient=False)
    assert time.monotonic() - began < PATIENCE_S, "it ends long before its time is up"


@CALLS
def test_a_restart_is_found(agent: Agent, adapter: GrpcPolicyAgent, what: str) -> None:
    """One channel for all: a call that waits reaches the next agent, at the same path. One that was written to the connection when
    that just broke is silence, and is repeated, as an ADD or the maintenance does.
    """
    call(adapter, what)
    agent.stop()

    def repeated() -> None:
        try:
            call(adapter, what)
        except PolicyAgentSilentError:
            call(adapter, what)

    done = threading.Thread(target=repeated, daemon=True)
    done.start()
    agent.start()
    done.join(PATIENCE_S)
    assert not done.is_alive()
    assert len(agent.asked) == 2


def test_its_end_while_it_is_asked(agent: Agent, adapter: GrpcPolicyAgent) -> None:
    """A call whose agent dies is not repeated by itself: it may have been done."""
    agent.go.clear()
    errors: list[IpamError] = []

    def ask() -> None:
        try:
            call(adapter, "enforce")
        except IpamError as error:
            errors.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    wait_until(lambda: bool(agent.asked), what="the call is there")
    agent.stop()
    asking.join(PATIENCE_S)
    assert [type(error) for error in errors] == [PolicyAgentSilentError]


@contextmanager
def questions(folder: Path, identity: list[InstanceIdentity], family: Family, metadata: FakeMetadata) -> Iterator[Any]:
    """Our side, on the socket where the daemon of amazon-vpc-cni-k8s listens; yields a client of it. `identity`: empty: not known."""
    health = Health(SystemClock(), ("metadata",))
    servicer = ConfigServicer(
        mode="standard",
        family=family,
        identity=lambda: identity[0] if identity else None,
        metadata=metadata,
        health=health,
        clock=SystemClock(),
    )
    server = CniBackendServer(None, path=folder / "aws-node" / "ipamd.sock", further_services=[servicer.add_to])
    server.start()
    try:
        with grpc.insecure_channel(f"unix:{server.path}") as channel:
            yield network_policy_pb2_grpc.ConfigServerBackendStub(channel)  # type: ignore[no-untyped-call]  # generated
    finally:
        server.stop(0.0)


@pytest.mark.parametrize("family", [IPV4, IPV6], ids=lambda one: one.nft)
def test_the_agent_is_told_who_we_are(tmp_path: Path, family: Family) -> None:
    """Mode, one card, the node's address of the pods' family, instance, region; an address that metadata does not tell is left out."""
    metadata = FakeMetadata()
    metadata.own_ipv6 = "2600::17"
    with questions(tmp_path, [IDENTITY], family, metadata) as asked:
        told = asked.GetNetworkPolicyConfigs(pb.NoQuestion(), timeout=PATIENCE_S)
        assert told == pb.NetworkPolicyAgentConfigReply(
            NetworkPolicyMode="standard",
            NodeIPv4=str(IDENTITY.primary_address) if family is IPV4 else "",
            NodeIPv6="" if family is IPV4 else "2600::17",
            InstanceID=IDENTITY.instance_id,
            Region=IDENTITY.region,
        )
        metadata.fail = [CloudError("silent")]
        again = asked.GetNetworkPolicyConfigs(pb.NoQuestion(), timeout=PATIENCE_S)
    assert (again.NodeIPv6, again.NetworkPolicyMode) == ("", "standard")


def test_the_agents_question_waits_for_metadata(tmp_path: Path) -> None:
    """Without an answer the agent ends, so it gets one once there is one; who has no time left is told to ask again."""
    known: list[InstanceIdentity] = []
    with questions(tmp_path, known, IPV4, FakeMetadata()) as asked:
        with pytest.raises(grpc.RpcError) as refusal:
            asked.GetNetworkPolicyConfigs(pb.NoQuestion(), timeout=1.1)
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]  # every RpcError of a call has it
        waiting = asked.GetNetworkPolicyConfigs.future(pb.NoQuestion(), timeout=PATIENCE_S)
        known.append(IDENTITY)
        assert waiting.result(PATIENCE_S).InstanceID == IDENTITY.instance_id
