"""The daemon on fakes behind the socket for the plugin of amazon-vpc-cni-k8s, and what that plugin asks."""

from __future__ import annotations

from itertools import count
from random import Random

import grpc

from fuzz.daemon_node import NAMESPACES, DaemonNode
from fuzz.target import Violation
from ipamd.migration.backend import MAX_RPCS, CniBackendServer, CniBackendServicer
from ipamd.pb import cni_backend_pb2 as pb
from ipamd.rpc.unix_server import SPARE_CONNECTIONS, UnixServer

ADD, DEL = "/rpc.CNIBackend/AddNetwork", "/rpc.CNIBackend/DelNetwork"
TEXTS = ("", "x", "x" * 200, "x" * 254, "-", "a/b", "../x", "a b", "\x1b[2J", "\u00e4", "\u2028", "%s", "a\n", "a\x00b", "\ufeff")
NETNS = (*NAMESPACES, "/run/netns/none", "", "relative", "/" + "n" * 5000, "/a\x00b", "/\x1b[1m")


class BackendNode(DaemonNode):
    """A node that serves the other's plugin."""

    def __init__(self) -> None:
        super().__init__()
        self._names = (f"good{number}" for number in count())

    def _made(self) -> tuple[UnixServer, int]:
        servicer = CniBackendServicer(
            self.node.app.sandbox,
            datastore=self.node.datastore,
            clock=self.node.clock,
            uses_external_snat=bool,
            refused=lambda _: None,
        )
        return CniBackendServer(servicer, path=self.directory / "theirs.sock"), MAX_RPCS + SPARE_CONNECTIONS

    def _ask_good(self) -> None:
        name = next(self._names)  # an ADD after its DEL is refused
        add = pb.AddNetworkRequest(
            K8S_POD_NAME=name, K8S_POD_NAMESPACE="ns", Netns=NAMESPACES[0], NetworkName="aws-cni", ContainerID=name, IfName="eth0"
        )
        delete = pb.DelNetworkRequest(Reason="PodDeleted", ContainerID=name, IfName="eth0")
        for method, request in ((ADD, add.SerializeToString()), (DEL, delete.SerializeToString())):
            answer = self.ask(method, request)
            if isinstance(answer, grpc.StatusCode):
                raise Violation("unanswered", f"{method} ended with {answer}")


def add_request(random: Random, name: str) -> bytes:
    """Make an ADD as its plugin does, sometimes with unusual values."""
    fields = {"K8S_POD_NAME": name, "K8S_POD_NAMESPACE": "ns", "IfName": "eth0", "NetworkName": "aws-cni", "ContainerID": name}
    if random.random() < 0.4:
        for field in random.sample(sorted(fields), random.choice((1, 1, 2))):
            fields[field] = random.choice(TEXTS)
    netns = random.choice(NETNS) if random.random() < 0.2 else random.choice(NAMESPACES)
    is_multiple = random.random() < 0.05
    return pb.AddNetworkRequest(Netns=netns, RequiresMultiNICAttachment=is_multiple, **fields).SerializeToString()


def del_request(random: Random, name: str) -> bytes:
    """Make a DEL, sometimes with unusual values."""
    unusual = random.random() < 0.3
    return pb.DelNetworkRequest(
        Reason=random.choice(("PodDeleted", "", "\x1b[1m", "r" * 3000)),
        IfName=random.choice(TEXTS) if unusual else "eth0",
        ContainerID=random.choice(TEXTS) if unusual else name,
    ).SerializeToString()
