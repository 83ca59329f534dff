"""The plugin of amazon-vpc-cni-k8s over its socket: settings of the moment, and refusals that people can look up."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from ipamd.core.refused_adds import RefusedAdd
from ipamd.migration.backend import CniBackendServer, CniBackendServicer
from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode
from ipamd.pb import cni_backend_pb2 as pb
from ipamd.pb import cni_backend_pb2_grpc
from ipamd.rpc.unix_server import PRIVATE_NAME
from tests.errors import failed, refused_rpc
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
        self.servicer = CniBackendServicer(
            self.node.app.sandbox,
            datastore=self.node.datastore,
            clock=self.node.clock,
            uses_external_snat=lambda: self.uses_external_snat,
            policy_mode="strict",
            refused=self.refused.append,
        )
        self.server = CniBackendServer(self.servicer, path=folder / "theirs.sock")
        self.server.start()


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    """A served socket."""
    made = Backend(tmp_path)
    yield made
    made.server.stop(1.0)


def add(backend: Backend, **changed: object) -> Any:
    """One ADD of its plugin."""
    with grpc.insecure_channel(f"unix:{backend.server.path}") as channel:
        stub = cni_backend_pb2_grpc.CNIBackendStub(channel)  # type: ignore[no-untyped-call]  # generated code
        return stub.AddNetwork(pb.AddNetworkRequest(**{**REQUEST, **changed}), timeout=120)


def test_its_plugin_asks_the_policy_agent(backend: Backend) -> None:
    """The link is its to make, so the filter is its to ask for; at a DEL the agent is told by us alone, and later."""
    assert add(backend).NetworkPolicyMode == "strict"
    with grpc.insecure_channel(f"unix:{backend.server.path}") as channel:
        stub = cni_backend_pb2_grpc.CNIBackendStub(channel)  # type: ignore[no-untyped-call]  # generated code
        reply = stub.DelNetwork(pb.DelNetworkRequest(ContainerID=REQUEST["ContainerID"], IfName="eth0"), timeout=120)
    assert reply == pb.DelNetworkReply(Success=True)


def test_external_snat_is_the_setting_of_the_moment(backend: Backend) -> None:
    """It is live, so a reply after a change of the settings file says the new one."""
    assert not add(backend).UseExternalSNAT
    backend.uses_external_snat = True
    assert add(backend).UseExternalSNAT
    assert backend.refused == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("K8S_POD_NAME", "x" * 254),
        ("K8S_POD_NAMESPACE", "x" * 60_000),
        ("K8S_POD_NAME", ""),
        ("NetworkName", "x" * 256),
        ("NetworkName", "a\x1b[2J"),
        ("Netns", "run/netns/web"),
        ("Netns", "/run/netns/\x00"),
        ("Netns", "/" * 5000),
        ("IfName", ""),
        ("IfName", "x" * 16),
        ("ContainerID", ""),
        ("ContainerID", "../x"),
    ],
)
def test_what_cannot_be_recorded_is_refused_with_its_reason(backend: Backend, field: str, value: str) -> None:
    """As in a request of our plugin: an error of ours with a code, and no row that a reader of our file would refuse."""
    with pytest.raises(grpc.RpcError) as refused:
        add(backend, **{field: value})
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    (told,) = backend.refused
    assert told.code in (4, 7)
    assert backend.node.datastore.attachments() == ()
    assert backend.node.datastore.counts().cooling == 0


def test_the_others_socket_is_not_removed_at_our_end(backend: Backend) -> None:
    """Its daemon came back and took the place: gRPC would remove whatever is there."""
    path = backend.server.path
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(path))
        theirs.listen()
        inode = path.stat().st_ino
        backend.server.stop(1.0)
        assert path.stat().st_ino == inode


def test_our_socket_is_removed_at_our_end(backend: Backend) -> None:
    """A dead one would be waited for by nobody, but it says that somebody was here."""
    backend.server.stop(1.0)
    assert sorted(path.name for path in backend.server.path.parent.glob("*.sock")) == []
    assert not backend.server.path.with_name(PRIVATE_NAME).exists()


def test_a_place_that_is_taken_meanwhile_stays_the_others(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the listening its daemon came."""
    backend.server.stop(1.0)
    monkeypatch.setattr(CniBackendServer, "_make_room", lambda server: server.path.touch())
    later = CniBackendServer(backend.servicer, path=backend.server.path)
    with pytest.raises(SettingsError, check=failed(FailureCode.SOCKET_TAKEN)):
        later.start()
    later.stop(1.0)
    assert backend.server.path.is_file()
    assert not backend.server.path.with_name(PRIVATE_NAME).exists()


def test_no_other_thread_gets_a_umask_of_ours(backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the process's: a directory that the history makes at that moment could not be entered. What a kill left is no obstacle."""
    monkeypatch.delattr(os, "umask")
    (tmp_path / PRIVATE_NAME).mkdir()
    (tmp_path / PRIVATE_NAME / "s").touch()
    made = CniBackendServer(backend.servicer, path=tmp_path / "its.sock")
    made.start()
    assert made.path.stat().st_mode & 0o777 == 0o600
    made.stop(1.0)


def test_a_missing_directory_can_be_entered_afterwards(backend: Backend, tmp_path: Path) -> None:
    """The daemon has no CAP_DAC_OVERRIDE: a directory that it makes must be one that its owner may enter."""
    made = CniBackendServer(backend.servicer, path=tmp_path / "new/below/its.sock")
    made.start()
    made.stop(1.0)
    assert [path.stat().st_mode & 0o700 for path in (tmp_path / "new", tmp_path / "new/below")] == [0o700, 0o700]


def test_a_refused_add_is_told(backend: Backend) -> None:
    """As one of our own plugin: who, with which code and why."""
    with pytest.raises(grpc.RpcError, check=refused_rpc(grpc.StatusCode.FAILED_PRECONDITION)):
        add(backend, RequiresMultiNICAttachment=True)
    (told,) = backend.refused
    assert (told.container_id, told.ifname, told.pod, told.code) == ("abc123", "eth0", "default/web", 4)
    assert "nicConfig" in told.cause
