"""Serve the plugin of amazon-vpc-cni-k8s on the Unix socket of its daemon, for a node whose runtime still calls that plugin.

That plugin gets an address and wires the pod itself. Its DEL is handled like a DEL of our plugin, and removes all of the wiring.
Plugins of June 2026 and later dial /var/run/aws-node/ipamd.sock. Older plugins dial 127.0.0.1:50051, which is not served, because any
process on the node's network could connect to it. Source: amazon-vpc-cni-k8s pull request 3739; cmd/routed-eni-cni-plugin/cni.go (add,
del).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import grpc

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.core.refused_adds import RefusedAdd
from ipamd.model.attachment import Attachment
from ipamd.model.cni_request import AttachRequest, SandboxNames
from ipamd.model.errors import InvalidRequestError, IpamError, cause_of, log_text
from ipamd.model.failures import FailureCode, failure
from ipamd.model.ids import CONTAINER_ID_MAX, IFNAME_MAX, parse_key
from ipamd.model.words import printable
from ipamd.pb import cni_backend_pb2 as pb
from ipamd.pb import cni_backend_pb2_grpc
from ipamd.ports.datastore import Datastore
from ipamd.ports.process import Clock
from ipamd.rpc.cni import SandboxServices
from ipamd.rpc.envelope import POD_NAME_MAX, require_netns, require_network_name
from ipamd.rpc.unix_server import SPARE_CONNECTIONS, UnixServer

DEADLINE_S = 60.0
"""Longest time for an ADD or DEL, in seconds. It is the deadline if the caller sets none, and the plugin of amazon-vpc-cni-k8s sets
none.
Ours: the same as for our plugin's ADD."""

MAX_REQUEST_BYTES = 64 * 1024
"""Largest request in bytes. Ours: a request has some names and a path."""

MAX_RPCS = 64
"""The largest number of requests at a time. Ours: as many ADDs and DELs as a runtime makes at once on a crowded node."""

DIGEST = "amazon-vpc-cni-k8s"
"""Stands for the digest of the CNI configuration, which the plugin of amazon-vpc-cni-k8s does not send. With one digest for all
requests, two requests for the same sandbox and namespace count as repetitions of one request."""

T = TypeVar("T")

log = logging.getLogger("ipamd.rpc")


class CniBackendServicer(cni_backend_pb2_grpc.CNIBackendServicer):
    """Serves ADD and DEL of the plugin of amazon-vpc-cni-k8s, which calls its own daemon by the gRPC service `rpc.CNIBackend`."""

    def __init__(
        self,
        services: SandboxServices,
        *,
        datastore: Datastore,
        clock: Clock,
        uses_external_snat: Callable[[], bool],
        policy_mode: str = "",
        refused: Callable[[RefusedAdd], None],
    ) -> None:
        """Serve the plugin.

        Args:
            uses_external_snat: returns the setting AWS_VPC_K8S_CNI_EXTERNALSNAT that is in force.
            policy_mode: the mode of the network policy agent. If it is not empty, the plugin calls the agent after an ADD.
            refused: called for each ADD that fails with an IpamError.
        """
        self._services = services
        self._datastore = datastore
        self._clock = clock
        self._uses_external_snat = uses_external_snat
        self._policy_mode = policy_mode
        self._refused = refused

    def AddNetwork(self, request: pb.AddNetworkRequest, context: grpc.ServicerContext) -> pb.AddNetworkReply:
        """Assign an address to a sandbox that the caller wires."""

        def attach(deadline: Deadline) -> Attachment:
            wanted = _attach_request(request)
            return self._services.attach.attach_sandbox(wanted, deadline=deadline, steps=StepTimer(self._clock))

        attachment = self._carry_out("ADD", request, context, attach)
        eni = self._datastore.eni(attachment.eni_id)
        reply = pb.AddNetworkReply(Success=True, UseExternalSNAT=self._uses_external_snat(), NetworkPolicyMode=self._policy_mode)
        reply.IPAllocationMetadata.add(
            IPv4Addr=str(attachment.address),
            DeviceNumber=eni.device_index if eni else 0,
            RouteTableId=attachment.route_table,
        )
        return reply

    def DelNetwork(self, request: pb.DelNetworkRequest, context: grpc.ServicerContext) -> pb.DelNetworkReply:
        """Take an address back, and remove all wiring of the sandbox."""

        def detach(deadline: Deadline) -> None:
            key = parse_key(request.ContainerID, request.IfName)
            self._services.detach.detach_sandbox(key, deadline=deadline, steps=StepTimer(self._clock), reason="DEL")

        self._carry_out("DEL", request, context, detach)
        return pb.DelNetworkReply(Success=True)

    def _carry_out(
        self,
        verb: str,
        request: pb.AddNetworkRequest | pb.DelNetworkRequest,
        context: grpc.ServicerContext,
        work: Callable[[Deadline], T],
    ) -> T:
        """Carry out one request. An error ends the call with the text of the error, which the plugin passes on to the runtime."""
        subject = printable(f"{verb} {request.ContainerID}", most=80)
        remaining_s = context.time_remaining()
        limit_s = DEADLINE_S
        if remaining_s is not None:
            limit_s = min(remaining_s, DEADLINE_S)
        try:
            result = work(Deadline.after(self._clock, limit_s, is_cancelled=lambda: not context.is_active()))
        except IpamError as error:
            log.warning("refused the plugin of amazon-vpc-cni-k8s request=%s error=%s", subject, log_text(error))
            if isinstance(request, pb.AddNetworkRequest):
                ids = request.ContainerID[:CONTAINER_ID_MAX], request.IfName[:IFNAME_MAX]
                pod = ""
                if request.K8S_POD_NAME:
                    pod = f"{request.K8S_POD_NAMESPACE}/{request.K8S_POD_NAME}"
                self._refused(RefusedAdd(*ids, printable(pod), error.cni_code, log_text(error), cause_of(error)))
            code = grpc.StatusCode.FAILED_PRECONDITION
            if error.retryable:
                code = grpc.StatusCode.UNAVAILABLE
            context.abort(code, str(error))
            raise
        log.info("served the plugin of amazon-vpc-cni-k8s request=%s", subject)
        return result


def _attach_request(request: pb.AddNetworkRequest) -> AttachRequest:
    """Convert a request of the plugin into an `AttachRequest`. Raises: InvalidRequestError, InvalidConfigError."""
    if request.RequiresMultiNICAttachment:
        raise failure(InvalidRequestError, FailureCode.SEVERAL_CARDS)
    if not (request.K8S_POD_NAME and request.K8S_POD_NAMESPACE and request.Netns):
        raise InvalidRequestError("a request needs a pod's name and namespace, and a netns")
    if max(len(request.K8S_POD_NAME), len(request.K8S_POD_NAMESPACE)) > POD_NAME_MAX:
        # Long names cannot be cut, because the name of the link depends on them. An export would write them into a file that is too
        # large for us to read.
        raise InvalidRequestError(f"a pod's name and namespace have at most {POD_NAME_MAX} characters")
    require_netns(request.Netns)
    require_network_name(request.NetworkName)
    return AttachRequest(
        key=parse_key(request.ContainerID, request.IfName),
        netns=request.Netns,
        network_name=request.NetworkName,
        cni_version="0.4.0",
        config_digest=DIGEST,
        names=SandboxNames(request.K8S_POD_NAMESPACE, request.K8S_POD_NAME),
        is_wired_by_caller=True,
    )


class CniBackendServer(UnixServer):
    """Listens on the socket of the daemon of amazon-vpc-cni-k8s. It is started when that daemon is away."""

    def __init__(
        self, servicer: CniBackendServicer | None, *, path: Path, further_services: Iterable[Callable[[grpc.Server], object]] = ()
    ) -> None:
        """Make the server.

        Args:
            servicer: serves the plugin of amazon-vpc-cni-k8s; None if the plugin is not served.
            path: the path of the socket.
            further_services: functions that add other services to the server, such as the service for the policy agent.
        """

        def add(server: grpc.Server) -> None:
            if servicer is not None:
                cni_backend_pb2_grpc.add_CNIBackendServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]  # generated
            for add_service in further_services:
                add_service(server)

        super().__init__(
            path,
            max_rpcs=MAX_RPCS,
            max_connections=MAX_RPCS + SPARE_CONNECTIONS,
            max_request_bytes=MAX_REQUEST_BYTES,
            advice="remove the DaemonSet aws-node from this node, or change VPC_IPAMD_CNI_BACKEND_SOCKET",
            add=add,
        )
