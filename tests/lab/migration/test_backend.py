"""The plugin of amazon-vpc-cni-k8s is served on its socket: it wires, we record, judge and clean up; never over a live listener."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import grpc
import pytest

from ipamd.pb import cni_backend_pb2 as pb
from ipamd.pb import cni_backend_pb2_grpc
from lab.chaos import skewed_daemon
from tests import aws_node
from tests.aws_node import Pod
from tests.errors import refused_rpc
from tests.rig import Rig, rig, wait_until

pytestmark = pytest.mark.privileged

SOCKET = aws_node.SOCKET
ENV = {"VPC_IPAMD_CNI_BACKEND_SOCKET": SOCKET, "VPC_IPAMD_AWS_NODE_SOCKET": SOCKET}


@contextmanager
def its_plugin(made: Rig) -> Iterator[Any]:
    """A client with the numbers of its protocol."""
    with grpc.insecure_channel(f"unix:{made.node.root}{SOCKET}") as channel:
        yield cni_backend_pb2_grpc.CNIBackendStub(channel)  # type: ignore[no-untyped-call]  # generated code


def add_request(name: str) -> pb.AddNetworkRequest:
    """What its plugin sends for a pod."""
    pod = Pod(name, IPv4Address("0.0.0.0"), 0)
    return pb.AddNetworkRequest(
        K8S_POD_NAME=name,
        K8S_POD_NAMESPACE="default",
        Netns=pod.netns,
        IfName="eth0",
        NetworkName="aws-cni",
        ContainerID=pod.container_id,
    )


def test_its_plugin_adds_and_deletes() -> None:
    """The address is recorded before the pod is wired, repeats get the same one, and DEL leaves nothing."""
    with rig(env=ENV) as made, its_plugin(made) as plugin:
        assert made.node.run(["stat", "-c", "%a %U", SOCKET]).stdout.strip() == "600 root"
        made.node.run(["/bin/sh", "-c", f"mkdir -p /run/netns; touch {Pod('web', IPv4Address(0), 0).netns}"])
        with pytest.raises(grpc.RpcError, check=refused_rpc(grpc.StatusCode.FAILED_PRECONDITION)):  # a file is no namespace
            plugin.AddNetwork(add_request("web"))
        assert made.attachments() == {}
        made.node.run(["/bin/sh", "-c", f"unshare --net={Pod('web', IPv4Address(0), 0).netns} true"])
        reply = plugin.AddNetwork(add_request("web"))
        (place,) = reply.IPAllocationMetadata
        assert plugin.AddNetwork(add_request("web")) == reply
        table = place.RouteTableId
        assert (reply.Success, reply.UseExternalSNAT, table) == (
            True,
            False,
            254 if not place.DeviceNumber else place.DeviceNumber + 1,
        )
        pod = Pod("web", IPv4Address(place.IPv4Addr), table)
        assert made.attachments() == {pod.container_id: pod.address}
        made.node.run(["umount", pod.netns])
        aws_node.wire(made.node, [pod])
        wait_until(lambda: made.kernel().veths != (), what="the link has our alias", timeout_s=120)
        made.assert_sound(expected=1)
        assert made.lab.ping(source="host-a", targets=[pod.address]) == {pod.address: True}
        made.restart()
        with its_plugin(made) as again:
            made.assert_sound(expected=1)
            for _ in range(2):  # a repeated one, and one of nobody, succeed
                assert again.DelNetwork(
                    pb.DelNetworkRequest(ContainerID=pod.container_id, IfName="eth0", Reason="PodDeleted")
                ).Success
        made.assert_sound(expected=0)
        multi = add_request("web")
        multi.RequiresMultiNICAttachment = True
        with its_plugin(made) as again, pytest.raises(grpc.RpcError, check=refused_rpc(grpc.StatusCode.FAILED_PRECONDITION)):
            again.AddNetwork(multi)


def test_its_daemon_keeps_us_from_starting_until_it_is_away() -> None:
    """Two daemons would give one address twice: while it listens we serve DEL only, and its socket and its port stay its own."""
    with rig(env=ENV | {"VPC_IPAMD_METRICS_ADDRESS": ":61678"}, start=False, module=skewed_daemon.__name__) as made:
        path = Path(f"{made.node.root}{SOCKET}")
        scraped = made.node.netns.listener("", 61678)
        agent = aws_node.Agent(made.node)
        with scraped:
            agent.start()
            inode = path.stat().st_ino
            made.start(wait=False)
            why = f"NOT READY: aws-node: amazon-vpc-cni-k8s may give addresses of this node: it serves {SOCKET}"
            status = made.driver.wait_status(lambda s: s["verdict"].startswith(why), what="it waits", timeout_s=120)
            assert status["phase"] == "restoring"
            assert any("aws-node" in one for one in status["degraded"])
            assert any("metrics port: cannot serve on :61678" in one for one in status["degraded"])
            assert made.cni("DEL", "nobody").ok
            agent.kill()
        made.node.write_file(str(skewed_daemon.PASSED_PATH), b"70")  # seconds
        assert path.stat().st_ino == inode
        made.wait_ready()
        assert path.stat().st_ino != inode
        made.driver.wait_status(
            lambda s: not any("metrics port" in one for one in s["degraded"]), what="a free port", timeout_s=120
        )
