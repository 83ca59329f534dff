"""The wire between aws-network-policy-agent and us: the adapter of the port `PolicyAgent`, and what the agent asks at its start.

Each side listens on a Unix socket of root. The agent's waits are ours to bound: amazon-vpc-cni-k8s dials for 2 s and then waits for
an answer without limit. Source: aws-network-policy-agent main.go, pkg/rpc/rpc_handler.go; amazon-vpc-cni-k8s
cmd/routed-eni-cni-plugin/cni.go, pkg/ipamd/rpc_handler.go (GetNetworkPolicyConfigs).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import grpc

from ipamd.core.deadline import Deadline
from ipamd.core.health import LOOK_S, Health
from ipamd.grpc_client import open_channel, status
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import CloudError, PolicyAgentRefusedError, PolicyAgentSilentError, log_text
from ipamd.model.family import IPV4, Family
from ipamd.model.ids import PodName
from ipamd.pb import network_policy_pb2 as pb
from ipamd.pb import network_policy_pb2_grpc
from ipamd.ports import Clock, Metadata, PolicyAgent

INTERFACE_COUNT = 1
"""Of a pod: one network card is served."""

SILENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
"""What a call ends with that the agent did not answer."""

ANSWER_MAX_BYTES = 64 * 1024
"""Ours: an answer is one flag."""

QUESTION_S = 25.0
"""How long the agent's question waits for instance metadata, if it has no deadline. Ours: it gives up after 30 s."""

log = logging.getLogger("ipamd.policy")


class GrpcPolicyAgent(PolicyAgent):
    """The agent behind one channel, which connects at the first call and again after the agent restarted. From any thread."""

    def __init__(self, *, socket: str) -> None:
        self._socket = socket
        self._channel = open_channel(socket, answer_max_bytes=ANSWER_MAX_BYTES)
        self._stub = network_policy_pb2_grpc.NPBackendStub(self._channel)  # type: ignore[no-untyped-call]  # generated code

    def enforce(self, pod: PodName, *, mode: str, timeout_s: float) -> None:
        """See the port."""
        request = pb.EnforceNpRequest(
            K8S_POD_NAME=pod.pod, K8S_POD_NAMESPACE=pod.namespace, NETWORK_POLICY_MODE=mode, InterfaceCount=INTERFACE_COUNT
        )
        self._ask("EnforceNpToPod", request, pod, timeout_s=timeout_s, is_patient=True)

    def forget(self, pod: PodName, *, timeout_s: float, is_patient: bool) -> None:
        """See the port."""
        request = pb.DeleteNpRequest(K8S_POD_NAME=pod.pod, K8S_POD_NAMESPACE=pod.namespace)
        self._ask("DeletePodNp", request, pod, timeout_s=timeout_s, is_patient=is_patient)

    def close(self) -> None:
        """Close the channel; a call that is made ends."""
        self._channel.close()

    def _ask(self, call: str, request: Any, pod: PodName, *, timeout_s: float, is_patient: bool) -> None:
        try:
            reply = getattr(self._stub, call)(request, timeout=timeout_s, wait_for_ready=is_patient)
        except grpc.RpcError as error:
            code, said = status(error)
            if code in SILENT:
                raise PolicyAgentSilentError(
                    f"the network policy agent does not answer at {self._socket}",
                    details=f"{said}; start its DaemonSet on this node, or unset NETWORK_POLICY_ENFORCING_MODE; retry",
                ) from error
            raise self._refused(call, pod, said) from error
        if reply is None or not reply.Success:  # grpcio returns None for a message that was cut off
            raise self._refused(call, pod, "Success is false" if reply is not None else "its answer was cut off")

    def _refused(self, call: str, pod: PodName, said: str) -> PolicyAgentRefusedError:
        return PolicyAgentRefusedError(
            f"the network policy agent refused {call} for pod {pod}", details=f"{said}; see its log on this node; retry"
        )


class ConfigServicer(network_policy_pb2_grpc.ConfigServerBackendServicer):
    """Serves `rpc.ConfigServerBackend`: without a mode the agent ends, so its question waits until instance metadata has answered."""

    def __init__(
        self,
        *,
        mode: str,
        family: Family,
        identity: Callable[[], InstanceIdentity | None],
        metadata: Metadata,
        health: Health,
        clock: Clock,
    ) -> None:
        self._mode = mode
        self._family = family
        self._identity = identity
        self._metadata = metadata
        self._health = health
        self._clock = clock

    def add_to(self, server: grpc.Server) -> None:
        """Serve it there."""
        network_policy_pb2_grpc.add_ConfigServerBackendServicer_to_server(self, server)  # type: ignore[no-untyped-call]  # generated

    def GetNetworkPolicyConfigs(self, _: pb.NoQuestion, context: grpc.ServicerContext) -> pb.NetworkPolicyAgentConfigReply:
        """Tell the mode, and who this node is."""
        remaining = context.time_remaining()
        deadline = Deadline.after(self._clock, QUESTION_S if remaining is None else min(remaining - LOOK_S, QUESTION_S))
        while (identity := self._identity()) is None and deadline.remaining_s() and context.is_active():
            self._health.wait_for(lambda: self._identity() is not None, min(deadline.remaining_s(), LOOK_S))
        if identity is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "instance metadata has not answered; ask again")
            raise AssertionError  # abort raises
        log.info("the network policy agent asked for its mode mode=%s", self._mode)
        return pb.NetworkPolicyAgentConfigReply(
            NetworkPolicyMode=self._mode,
            MultiNICEnabled=False,
            NodeIPv4=str(identity.primary_address) if self._family is IPV4 else "",
            NodeIPv6="" if self._family is IPV4 else self._ipv6_address(),
            InstanceID=identity.instance_id,
            Region=identity.region,
        )

    def _ipv6_address(self) -> str:
        try:
            return self._metadata.ipv6_address()
        except CloudError as error:
            log.info(
                "the node's IPv6 address is not told to the network policy agent, which reads it too error=%s", log_text(error)
            )
            return ""
