"""The adapter on real files and sockets: who listens, who wrote last, whose conflist is where."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path

import grpc
import pytest

from ipamd.aws_node import node as module
from ipamd.aws_node import peer
from ipamd.aws_node.node import FileAwsNode
from ipamd.model.aws_node import Allocation, render_checkpoint
from ipamd.model.errors import ForeignStateError, TakeoverError
from ipamd.model.ids import parse_key
from ipamd.settings import TakeoverConfig
from tests.patience import PATIENCE_S

ONE = Allocation(parse_key("a", "eth0"), IPv4Address("10.0.0.9"), "default", "web", 5)
CONFLIST = "10-aws.conflist"
SAVED = f"{CONFLIST}.vpc-ipamd-saved"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directories as a node has them; no port of this machine is asked."""
    for name in ("run", "net.d", "aws-node"):
        (tmp_path / name).mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(module, "TCP_ADDRESS", free.getsockname())
    return tmp_path


def made(place: Path, **changes: str) -> FileAwsNode:
    """The adapter as the daemon makes it."""
    values = {"daemon_socket": str(place / "aws-node/ipamd.sock")} | changes
    config = TakeoverConfig(checkpoint=place / "aws-node/ipam.json", **values)
    return FileAwsNode(config, run_dir=place / "run", conflist=place / "net.d/10-vpc-ipamd.conflist")


def write_theirs(place: Path, *allocations: Allocation, mtime_ns: int | None = None) -> None:
    """Its daemon writes its file."""
    scratch = place / "aws-node/ipam.json.tmp"
    scratch.write_bytes(render_checkpoint(allocations))
    if mtime_ns is not None:
        os.utime(scratch, ns=(mtime_ns, mtime_ns))
    scratch.replace(place / "aws-node/ipam.json")


@contextmanager
def listening(family: socket.AddressFamily, address: str | tuple[str, int]) -> Iterator[None]:
    """Somebody accepts connections."""
    with socket.socket(family) as sock:
        sock.bind(address)
        sock.listen()
        yield


def test_its_socket_is_seen(place: Path) -> None:
    """The socket of new releases; a dead socket is nobody, ours is not its, and one at the same place later is."""
    node, path = made(place), str(place / "aws-node/ipamd.sock")
    assert node.listener() == ""
    with listening(socket.AF_UNIX, path):
        assert node.listener() == path
        assert made(place, daemon_socket="off").listener() == ""
        node.own_socket(path)
        assert node.listener() == "", "it is ours"
    assert node.listener() == ""
    Path(path).unlink()
    with listening(socket.AF_UNIX, path):
        assert node.listener() == path, "another one at the same place is not ours"


class Health(grpc.GenericRpcHandler):
    """A gRPC server's health service that knows one name."""

    def __init__(self, name: bytes) -> None:
        self._name = name

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        def check(request: bytes, context: grpc.ServicerContext) -> bytes:
            if request[2:] != self._name:
                context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
            return b"\x08\x01"

        is_asked = handler_call_details.method == peer.HEALTH_METHOD  # type: ignore[attr-defined]
        return grpc.unary_unary_rpc_method_handler(check) if is_asked else None


@pytest.mark.parametrize(("name", "is_it"), [(peer.HEALTH_SERVICE, True), (b"another", False)])
def test_the_port_of_old_releases_counts_only_if_it_is_its(
    place: Path, name: bytes, is_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Port 50051 is everybody's: without traces of the other it is not asked, and it must have its daemon's name."""
    monkeypatch.setattr(peer, "is_its_daemon", partial(peer.is_its_daemon, timeout_s=PATIENCE_S))  # silence counts as it
    node = made(place)
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([Health(name)])
    assert server.add_insecure_port(f"127.0.0.1:{module.TCP_ADDRESS[1]}")
    server.start()
    try:
        assert node.listener() == ""
        write_theirs(place, ONE)
        assert node.listener() == (f"127.0.0.1:{module.TCP_ADDRESS[1]}" if is_it else "")
    finally:
        server.stop(None).wait()
    assert node.listener() == ""


def test_a_port_that_says_nothing_may_be_its(place: Path) -> None:
    """Silence is no proof that it is away (I11)."""
    with listening(socket.AF_INET, module.TCP_ADDRESS):
        assert peer.is_its_daemon(module.TCP_ADDRESS, timeout_s=0.2)


def test_its_file_is_read_or_refused(place: Path) -> None:
    """No file is no allocation; a directory, a link to nowhere, and damage are told apart."""
    node, path = made(place), place / "aws-node/ipam.json"
    assert node.allocations() == ()
    write_theirs(place, ONE)
    assert node.allocations() == (ONE,)
    path.write_text("{}")
    with pytest.raises(ForeignStateError, match=r"ipam\.json cannot be used: its version"):
        node.allocations()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ForeignStateError, match="cannot be read: it is no regular file"):
        node.allocations()


def test_who_wrote_last_is_noticed(place: Path) -> None:
    """Never noted: only rows that are younger than its file are believed. Noted: any new file is news, ours is none."""
    node = made(place)
    assert not node.has_run_since(), "there is no file"
    write_theirs(place, ONE, mtime_ns=10**18)
    assert node.has_run_since(), "there are no rows"
    (place / "run/state.db").write_text("rows")
    assert not node.has_run_since(), "an old file beside younger rows"
    write_theirs(place, ONE)
    os.utime(place / "run/state.db", ns=(10**18, 10**18))
    assert node.has_run_since(), "a file that is younger than the rows"
    node.settle()
    assert not node.has_run_since()
    write_theirs(place, ONE)
    assert made(place).has_run_since(), "it wrote again, the same content"
    node.write([ONE])
    assert not made(place).has_run_since(), "what we wrote is no news"
    (place / "aws-node/ipam.json").unlink()
    assert not node.has_run_since()


def test_a_node_that_had_no_file_notices_the_first_one_whatever_the_clock_says(place: Path) -> None:
    """A clock that is set back makes the other's file older than our rows, which it is not."""
    node = made(place)
    (place / "run/state.db").write_text("rows")
    node.settle()
    assert not node.has_run_since()
    write_theirs(place, ONE, mtime_ns=10**18)
    assert made(place).has_run_since()


@pytest.mark.parametrize("step", ["before the rename", "after the rename"])
def test_a_kill_while_its_file_is_written_is_no_news(place: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The next process still knows that the node is to be the other's, whichever of both files is in place (I1)."""
    write_theirs(place, ONE)
    node = made(place)
    node.settle()
    node.begin_export()
    real = Path.replace

    def die(source: Path, target: Path) -> Path:
        if Path(target).name != "ipam.json":
            return real(source, target)
        if step == "after the rename":
            real(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        node.write([ONE])
    monkeypatch.undo()
    successor = made(place)
    assert (successor.has_run_since(), successor.is_exporting) == (False, True)
    successor.write([ONE])
    assert not made(place).has_run_since()
    write_theirs(place, ONE)
    assert made(place).has_run_since(), "its daemon came"


def test_an_export_is_noted_until_it_is_taken_back_or_overtaken(place: Path) -> None:
    """The note outlives the process; a damaged one is none."""
    node = made(place)
    assert not node.is_exporting
    node.begin_export()
    node.write([ONE])
    assert made(place).is_exporting
    node.end_export()
    assert not made(place).is_exporting
    assert not node.has_run_since()
    node.begin_export()
    write_theirs(place, ONE)
    node.settle()
    assert not node.is_exporting
    (place / "run/aws-node.json").write_text("[")
    assert not node.is_exporting


@pytest.mark.parametrize(
    ("conflist", "name"),
    [
        (None, "aws-cni"),
        ('{"name": "our-chain", "plugins": []}', "our-chain"),
        ("{", "aws-cni"),
        ("[]", "aws-cni"),
        ('{"name": 7}', "aws-cni"),
    ],
)
def test_entries_have_the_network_of_its_conflist(place: Path, conflist: str | None, name: str) -> None:
    """Its plugin's DEL names the network of the node's conflist, and would find no entry of another."""
    for file_name in (SAVED, CONFLIST):
        if conflist is not None:
            (place / "net.d" / file_name).write_text(conflist)
        made(place).write([ONE])
        (written,) = json.loads((place / "aws-node/ipam.json").read_bytes())["allocations"]
        assert written["networkName"] == name
        (place / "net.d" / file_name).unlink(missing_ok=True)
    (place / "net.d" / SAVED).mkdir()
    made(place).write([ONE])


def test_its_conflist_is_renamed_and_comes_back(place: Path) -> None:
    """Both ways may be repeated; a newer one of its replaces the saved one; what is in place is not overwritten."""
    node, folder = made(place), place / "net.d"
    assert node.save_conflist() == node.restore_conflist() == node.remove_our_conflist() == ""
    (folder / CONFLIST).write_text("old")
    assert SAVED in node.save_conflist()
    assert not node.has_conflist()
    (folder / CONFLIST).write_text("new")
    node.save_conflist()
    assert (folder / SAVED).read_text() == "new"
    assert CONFLIST in node.restore_conflist()
    assert (folder / CONFLIST).read_text() == "new"
    (folder / SAVED).write_text("stale")
    assert node.restore_conflist() == ""
    assert (folder / CONFLIST).read_text() == "new"
    (folder / "10-vpc-ipamd.conflist").write_text("ours")
    assert "10-vpc-ipamd.conflist was removed" in node.remove_our_conflist()
    assert sorted(path.name for path in folder.iterdir()) == [CONFLIST, SAVED]


def test_a_directory_is_nobodys_conflist(place: Path) -> None:
    """A setting that names the folder instead of the file does not have all of it renamed."""
    node = made(place, conflist=str(place / "net.d"))
    assert not node.has_conflist()
    (place / "net.d" / CONFLIST).write_text("theirs")
    assert made(place, conflist=str(place / "net.d" / CONFLIST)).has_conflist()


def test_refusals_of_the_disk_are_typed(place: Path) -> None:
    """A directory that is missing or in the way: the operator learns which."""
    (place / "aws-node").rmdir()
    (place / "aws-node").write_text("a file")
    with pytest.raises(TakeoverError, match=r"ipam\.json cannot be written"):
        made(place).write([ONE])
    (place / "run").rmdir()
    with pytest.raises(TakeoverError, match=r"aws-node\.json cannot be written"):
        made(place).begin_export()
