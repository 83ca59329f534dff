"""The gRPC calls between us and aws-network-policy-agent.

`GrpcPolicyAgent` implements the port `PolicyAgent` and calls the agent. `ConfigServicer` is the service that the agent calls at its
start. Each side listens on a Unix socket that only root can open. We bound the time of every call; amazon-vpc-cni-k8s dials for 2 s
and then waits for an answer without limit. Source: aws-network-policy-agent main.go, pkg/rpc/rpc_handler.go; amazon-vpc-cni-k8s
cmd/routed-eni-cni-plugin/cni.go, pkg/ipamd/rpc_handler.go (GetNetworkPolicyConfigs).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import grpc

from ipamd.core.deadline import Deadline
from ipamd.core.health import LOOK_S, Health
from ipamd.grpc_client import Peer, status
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import CloudError, IpamError, log_text
from ipamd.model.family import IPV4, Family
from ipamd.model.ids import PodName
from ipamd.model.refusals import RefusalCode, refusal
from ipamd.pb import network_policy_pb2 as pb
from ipamd.pb import network_policy_pb2_grpc
from ipamd.ports.cloud import Metadata
from ipamd.ports.policy import PolicyAgent
from ipamd.ports.process import Clock

SILENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
"""Status codes of a call that the agent did not answer."""

ANSWER_MAX_BYTES = 64 * 1024
"""Longest answer of the agent. Ours: more than enough, because an answer has only one flag."""

QUESTION_S = 25.0
"""Longest time that the agent's request waits for instance metadata; shorter if the request's deadline is near. Ours: the agent gives
up only after 30 s, so it still gets the reply."""

log = logging.getLogger("ipamd.policy")


class GrpcPolicyAgent(PolicyAgent):
    """The agent behind its socket. It is connected at the first call, and again after the agent restarts. Safe from any thread."""

    def __init__(self, *, socket: str) -> None:
        self._socket = socket
        self._peer = Peer(socket, network_policy_pb2_grpc.NPBackendStub, answer_max_bytes=ANSWER_MAX_BYTES)

    def enforce(self, pod: PodName, *, mode: str, timeout_s: float, interface_count: int = 1) -> None:
        """See `PolicyAgent.enforce`."""
        request = pb.EnforceNpRequest(
            K8S_POD_NAME=pod.pod, K8S_POD_NAMESPACE=pod.namespace, NETWORK_POLICY_MODE=mode, InterfaceCount=interface_count
        )
        self._ask("EnforceNpToPod", request, pod, timeout_s=timeout_s, is_patient=True)

    def forget(self, pod: PodName, *, timeout_s: float, is_patient: bool) -> None:
        """See `PolicyAgent.forget`."""
        request = pb.DeleteNpRequest(K8S_POD_NAME=pod.pod, K8S_POD_NAMESPACE=pod.namespace)
        self._ask("DeletePodNp", request, pod, timeout_s=timeout_s, is_patient=is_patient)

    def close(self) -> None:
        """Close the channel; a running call ends."""
        self._peer.close()

    def _ask(self, call: str, request: Any, pod: PodName, *, timeout_s: float, is_patient: bool) -> None:
        try:
            reply = self._peer.ask(call, request, timeout_s=timeout_s, is_patient=is_patient)
        except grpc.RpcError as error:
            code, message = status(error)
            if code in SILENT:
                raise refusal(RefusalCode.AGENT_SILENT, socket=self._socket, cause=message) from error
            raise self._refused(call, pod, message) from error
        if reply is None:  # grpcio returns None for a message that was cut off
            raise self._refused(call, pod, "its answer was cut off")
        if not reply.Success:
            raise self._refused(call, pod, "Success is false")

    def _refused(self, call: str, pod: PodName, message: str) -> IpamError:
        return refusal(RefusalCode.AGENT_REFUSED, call=call, pod=pod, cause=message)


class ConfigServicer(network_policy_pb2_grpc.ConfigServerBackendServicer):
    """Serves `rpc.ConfigServerBackend`, which the agent calls at its start. The agent exits if it gets no answer, so its request waits
    until instance metadata has answered, for at most QUESTION_S."""

    def __init__(
        self,
        *,
        mode: str,
        family: Family,
        identity: Callable[[], InstanceIdentity | None],
        metadata: Metadata,
        health: Health,
        clock: Clock,
        has_cards: bool = False,
    ) -> None:
        """`has_cards`: whether pods may have interfaces of several network cards."""
        self._mode = mode
        self._has_cards = has_cards
        self._family = family
        self._identity = identity
        self._metadata = metadata
        self._health = health
        self._clock = clock

    def add_to(self, server: grpc.Server) -> None:
        """Register the service at a gRPC server."""
        network_policy_pb2_grpc.add_ConfigServerBackendServicer_to_server(self, server)  # type: ignore[no-untyped-call]  # generated

    def GetNetworkPolicyConfigs(self, _: pb.NoQuestion, context: grpc.ServicerContext) -> pb.NetworkPolicyAgentConfigReply:
        """Return the enforcing mode and the identity of this node. Abort with UNAVAILABLE if instance metadata has not answered."""
        remaining_s = context.time_remaining()
        limit_s = QUESTION_S
        if remaining_s is not None:
            limit_s = min(remaining_s - LOOK_S, QUESTION_S)
        deadline = Deadline.after(self._clock, limit_s)
        identity = self._identity()
        while identity is None and deadline.remaining_s() and context.is_active():
            self._health.wait_for(lambda: self._identity() is not None, min(deadline.remaining_s(), LOOK_S))
            identity = self._identity()
        if identity is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "instance metadata has not answered; ask again")
            raise AssertionError  # never reached, because `abort` raises
        log.info("the network policy agent asked for its mode mode=%s", self._mode)
        ipv4_address, ipv6_address = str(identity.primary_address), ""
        if self._family is not IPV4:
            ipv4_address, ipv6_address = "", self._ipv6_address()
        return pb.NetworkPolicyAgentConfigReply(
            NetworkPolicyMode=self._mode,
            MultiNICEnabled=self._has_cards,
            NodeIPv4=ipv4_address,
            NodeIPv6=ipv6_address,
            InstanceID=identity.instance_id,
            Region=identity.region,
        )

    def _ipv6_address(self) -> str:
        try:
            return self._metadata.ipv6_address()
        except CloudError as error:
            # The agent can read the address itself.
            log.info("IPv6 address missing in the reply to the network policy agent error=%s", log_text(error))
            return ""
