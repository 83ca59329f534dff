"""While a plugin of the chain is missing ADD takes nothing, and all other verbs go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.attachment import Attachment
from ipamd.model.cni_request import AttachRequest
from ipamd.model.errors import ChainedPluginMissingError
from ipamd.rpc.envelope import decode_directories
from tests.fakes.node import SETTINGS, FakeNode


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    """The runtime's plugin directory, with ours."""
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "vpc-cni").write_text("")
    return directory


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """One whose conflist chains istio-cni."""
    conflist = tmp_path / "net.d" / "10-vpc-ipamd.conflist"
    conflist.parent.mkdir()
    conflist.write_text(json.dumps({"plugins": [{"type": "vpc-cni"}, {"type": "istio-cni"}]}))
    (tmp_path / "run").mkdir()
    made = FakeNode(tmp_path / "run", shipped=replace(SETTINGS, daemon=replace(SETTINGS.daemon, conflist_path=conflist)))
    made.bring_up()
    yield made
    made.datastore.close()


def request(node: FakeNode, name: str, bin_dir: Path) -> AttachRequest:
    """An ADD of a runtime that looks there."""
    return replace(node.request(name), plugin_directories=(str(bin_dir),))


def add(node: FakeNode, name: str, bin_dir: Path) -> Attachment:
    """ADD."""
    deadline = Deadline.after(node.clock, 60.0)
    return node.attacher.attach_sandbox(request(node, name, bin_dir), deadline=deadline, steps=StepTimer(node.clock))


def test_add_takes_nothing_and_is_served_once_the_plugin_is_there(node: FakeNode, bin_dir: Path) -> None:
    """No address, no link, no wake-up of the pool and no EC2 call by 40 attempts; the one after is served."""
    before = node.datastore.counts()
    calls = dict(node.ec2.calls)
    node.was_triggered()
    for attempt in range(40):
        with pytest.raises(ChainedPluginMissingError) as refused:
            add(node, f"attempt-{attempt}", bin_dir)
        assert refused.value.fields == {"plugins": "istio-cni", "directories": str(bin_dir)}
        node.clock.advance(11)
        node.pool.cycle()
    assert node.datastore.counts() == before
    assert (node.wiring.wired, dict(node.ec2.calls), node.was_triggered()) == ({}, calls, False)
    (bin_dir / "istio-cni").write_text("")
    assert add(node, "served", bin_dir).key == node.key("served")


def test_the_other_verbs_go_on(node: FakeNode, bin_dir: Path) -> None:
    """DEL, CHECK, GC and STATUS of a node whose plugin has gone."""
    (bin_dir / "istio-cni").write_text("")
    for name in ("a", "b"):
        add(node, name, bin_dir)
        node.runtime.run(name)
    (bin_dir / "istio-cni").unlink()
    deadline = Deadline.after(node.clock, 60.0)
    node.checker.check_sandbox(request(node, "a", bin_dir), deadline=deadline)
    valid = frozenset({node.key("a"), node.key("b")})
    node.collector.collect(valid, network_name="vpc-ipamd", deadline=deadline, steps=StepTimer(node.clock))
    node.health.require_status()
    assert node.delete("a")


@pytest.mark.parametrize(
    ("path", "directories"),
    [
        ("/opt/cni/bin", ("/opt/cni/bin",)),
        ("/opt/cni/bin:/usr/lib/cni:", ("/opt/cni/bin", "/usr/lib/cni")),
        ("", ()),
        ("bin", ()),
        ("/opt/cni/bin:bin", ()),
        ("/opt/\x1b", ()),
        ("/" + "p" * 5000, ()),
    ],
)
def test_the_directories_come_from_the_runtime(path: str, directories: tuple[str, ...]) -> None:
    """CNI_PATH, if all of it can be used."""
    assert decode_directories(path) == directories
