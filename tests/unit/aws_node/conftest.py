"""The adapter on a place of files, as the daemon makes it."""

from __future__ import annotations

import os
import socket
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.migration import aws_node as module
from ipamd.migration.aws_node import FileAwsNode
from ipamd.model.aws_node import Allocation, render_checkpoint
from ipamd.model.ids import parse_key
from ipamd.ports.process import Clock
from ipamd.settings import TakeoverConfig
from tests.fakes.clock import FakeClock

ONE = Allocation(parse_key("a", "eth0"), IPv4Address("10.0.0.9"), "default", "web", 5)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directories as a node has them; no port of this machine is asked."""
    for name in ("run", "net.d", "aws-node"):
        (tmp_path / name).mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(module, "TCP_ADDRESS", free.getsockname())
    return tmp_path


def made(place: Path, *, clock: Clock | None = None, boot_id: str = "boot", **changes: str) -> FileAwsNode:
    """The adapter as the daemon makes it."""
    values = {"daemon_socket": str(place / "aws-node/ipamd.sock")} | changes
    config = TakeoverConfig(checkpoint=place / "aws-node/ipam.json", egress_state=place / "cni", **values)
    conflist = place / "net.d/10-vpc-ipamd.conflist"
    return FileAwsNode(config, run_dir=place / "run", conflist=conflist, clock=clock or FakeClock(), boot_id=boot_id)


def write_theirs(place: Path, *allocations: Allocation, mtime_ns: int | None = None) -> None:
    """Its daemon writes its file."""
    scratch = place / "aws-node/ipam.json.tmp"
    scratch.write_bytes(render_checkpoint(allocations))
    if mtime_ns is not None:
        os.utime(scratch, ns=(mtime_ns, mtime_ns))
    scratch.replace(place / "aws-node/ipam.json")
