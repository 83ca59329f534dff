"""Requests of the plugin of amazon-vpc-cni-k8s, random and damaged: as `daemon_requests`, on that plugin's socket."""

from __future__ import annotations

from random import Random

import grpc

from fuzz.backend_node import ADD, DEL, BackendNode, add_request, del_request
from fuzz.mutation import mutated, noise
from fuzz.target import Target, Violation
from fuzz.targets.daemon_requests import CLEAN_REFUSALS, DaemonRequests
from ipamd.pb import cni_backend_pb2 as pb

REFUSALS = (*CLEAN_REFUSALS, grpc.StatusCode.FAILED_PRECONDITION)


class BackendRequests(DaemonRequests):
    """Cases as those of the base class."""

    def _request(self, random: Random, name: str) -> tuple[str, bytes | list[tuple[bytes, int]]]:
        kind = random.random()
        method, make = random.choice(((ADD, add_request), (ADD, add_request), (DEL, del_request)))
        if kind < 0.02:
            return random.choice((method, "/rpc.CNIBackend/Nothing")), noise(random, 500)
        if kind < 0.03:
            return method, [(b"\x3a\x80\x80\x04", 1), (b"x", random.choice((1 << 15, 1 << 16, 3 << 20)))]
        data = make(random, name)
        return method, mutated(random, data) if kind < 0.25 else data

    def _judged(self, method: str, data: bytes, answer: bytes | grpc.StatusCode) -> str:
        if isinstance(answer, grpc.StatusCode):
            if answer not in REFUSALS or (answer is grpc.StatusCode.INTERNAL):
                raise Violation("refusal", f"{method} ended with {answer}")
            return str(answer)
        if method == ADD:
            self._judge_add(pb.AddNetworkRequest.FromString(data), pb.AddNetworkReply.FromString(answer))
        return ""

    def _judge_add(self, request: pb.AddNetworkRequest, reply: pb.AddNetworkReply) -> None:
        given = [place.IPv4Addr for place in reply.IPAllocationMetadata]
        recorded = [
            str(attachment.address)
            for attachment in self._daemon.node.datastore.attachments()
            if (attachment.key.container_id, attachment.key.ifname) == (request.ContainerID, request.IfName)
        ]
        if not reply.Success or given != recorded or len(given) != 1:
            raise Violation("wrong reply", f"{given} were given, {recorded} are recorded")


def make() -> Target:
    """Make the target."""
    return BackendRequests(BackendNode())
