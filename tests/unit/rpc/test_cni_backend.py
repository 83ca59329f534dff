"""The plugin of amazon-vpc-cni-k8s over its socket: settings of the moment, and refusals that people can look up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from ipamd.pb import cni_backend_pb2 as pb
from ipamd.pb import cni_backend_pb2_grpc
from ipamd.rpc.cni_backend import CniBackendServer, CniBackendServicer
from ipamd.service.refused_adds import RefusedAdd
from tests.fakes.node import FakeNode

REQUEST = {
    "K8S_POD_NAME": "web",
    "K8S_POD_NAMESPACE": "default",
    "Netns": "/run/netns/web",
    "IfName": "eth0",
    "NetworkName": "aws-cni",
    "ContainerID": "abc123",
}


class Backend:
    """The socket over a node of fakes, with what it was told and asked."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o700)
        self.node = FakeNode(folder)
        self.node.bring_up()
        self.node.wiring.make_netns(REQUEST["Netns"])
        self.uses_external_snat = False
        self.refused: list[RefusedAdd] = []
        servicer = CniBackendServicer(
            self.node.app.sandbox,
            datastore=self.node.datastore,
            clock=self.node.clock,
            uses_external_snat=lambda: self.uses_external_snat,
            refused=self.refused.append,
        )
        self.server = CniBackendServer(servicer, path=folder / "theirs.sock")
        self.server.start()


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    """A served socket."""
    made = Backend(tmp_path)
    yield made
    made.server.stop()


def add(backend: Backend, **changed: object) -> Any:
    """One ADD of its plugin."""
    with grpc.insecure_channel(f"unix:{backend.server.path}") as channel:
        stub = cni_backend_pb2_grpc.CNIBackendStub(channel)  # type: ignore[no-untyped-call]  # generated code
        return stub.AddNetwork(pb.AddNetworkRequest(**{**REQUEST, **changed}), timeout=20)


def test_external_snat_is_the_setting_of_the_moment(backend: Backend) -> None:
    """It is live, so a reply after a change of the settings file says the new one."""
    assert not add(backend).UseExternalSNAT
    backend.uses_external_snat = True
    assert add(backend).UseExternalSNAT
    assert backend.refused == []


def test_a_refused_add_is_told(backend: Backend) -> None:
    """As one of our own plugin: who, with which code and why."""
    with pytest.raises(grpc.RpcError, match="several network cards"):
        add(backend, RequiresMultiNICAttachment=True)
    (told,) = backend.refused
    assert (told.container_id, told.ifname, told.pod, told.code) == ("abc123", "eth0", "default/web", 4)
    assert "nicConfig" in told.cause
