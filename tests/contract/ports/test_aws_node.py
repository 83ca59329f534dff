"""What every `AwsNode` promises: the fake of the service tests, and files on a disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.migration.aws_node import FileAwsNode
from ipamd.model.aws_node import Allocation, DaemonSign, render_checkpoint
from ipamd.model.ids import parse_key
from ipamd.ports.aws_node import AwsNode
from ipamd.settings import TakeoverConfig
from tests.fakes.aws_node import OURS, SAVED, THEIRS, FakeAwsNode
from tests.fakes.clock import FakeClock

ONE = Allocation(parse_key("a", "eth0"), IPv4Address("10.0.0.9"), "default", "web", 5)
TWO = Allocation(parse_key("b", "eth0"), IPv4Address("10.0.0.10"))


@dataclass(frozen=True)
class Other:
    """The other software on one node: what its daemon writes, and the conflists that are there."""

    node: AwsNode
    clock: FakeClock
    tell: Callable[..., None]
    put: Callable[[str], None]
    conflists: Callable[[], set[str]]


@pytest.fixture(params=["fake", "files"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Other:
    """Both implementations."""
    clock = FakeClock()
    if request.param == "fake":
        fake = FakeAwsNode(clock)
        return Other(fake, clock, fake.tell, lambda name: fake.conflists.add(name), lambda: set(fake.conflists))
    run, folder, path = tmp_path / "run", tmp_path / "net.d", tmp_path / "ipam.json"
    run.mkdir()
    folder.mkdir()

    def tell(*allocations: Allocation) -> None:
        scratch = tmp_path / "scratch"
        scratch.write_bytes(render_checkpoint(allocations))
        os.utime(scratch, ns=(mtime_ns := int(clock.now().timestamp() * 10**9), mtime_ns))
        scratch.replace(path)

    config = TakeoverConfig(checkpoint=path, daemon_socket=str(tmp_path / "nobody.sock"))
    node = FileAwsNode(config, run_dir=run, conflist=folder / OURS, clock=clock, boot_id="boot")
    return Other(
        node, clock, tell, lambda name: (folder / name).touch(), lambda: {one.name for one in folder.glob("*.conflist*")}
    )


def test_what_was_read_is_no_news_until_its_daemon_writes_again(other: Other) -> None:
    """News ends with `settle`, and what we write is none."""
    node = other.node
    assert (node.has_run_since(), node.allocations()) == (False, ())
    other.tell(ONE)
    assert (node.has_run_since(), node.allocations()) == (True, (ONE,))
    node.finish()
    assert not node.has_run_since()
    node.write([ONE, TWO], routed=())
    assert (node.has_run_since(), node.allocations()) == (False, (ONE, TWO))
    other.tell(TWO)
    assert node.has_run_since()


def test_its_last_sign_is_its_pod_or_its_file(other: Other) -> None:
    """None without one; the last one, and how long ago; its file only until it is read."""
    node, clock = other.node, other.clock
    assert node.last_sign() is None
    other.tell(ONE)
    clock.advance(7)
    found = node.last_sign()
    assert found is not None
    assert found.text.startswith("it wrote /")
    assert found.age_s == 7.0
    node.finish()
    assert node.last_sign(pod="kube-system/aws-node-abcde") == DaemonSign("its pod kube-system/aws-node-abcde runs")
    clock.advance(3)
    assert node.last_sign() == DaemonSign("its pod kube-system/aws-node-abcde runs", 3.0)
    other.tell(TWO)
    assert node.last_sign() == DaemonSign(found.text, 0.0)


def test_an_export_is_noted(other: Other) -> None:
    """Until it is taken back, whatever its daemon writes."""
    node = other.node
    assert not node.is_exporting
    node.begin_export()
    node.write([ONE], routed=())
    assert node.is_exporting
    node.end_export()
    assert not node.is_exporting
    node.begin_export()
    other.tell(TWO)
    node.finish()
    assert node.is_exporting


def test_conflists_change_places(other: Other) -> None:
    """Every step says what it did, and nothing when there is nothing to do."""
    node = other.node
    assert (node.has_conflist(), node.save_conflist(), node.restore_conflist(), node.remove_our_conflist()) == (False, "", "", "")
    other.put(THEIRS)
    other.put(OURS)
    assert node.has_conflist()
    assert node.save_conflist()
    assert other.conflists() == {SAVED, OURS}
    assert node.restore_conflist()
    assert not node.restore_conflist()
    assert node.remove_our_conflist()
    assert other.conflists() == {THEIRS}
