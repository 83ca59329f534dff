"""amazon-vpc-cni-k8s #1644, #1374, #1375 (2020-2021): a late DEL of a pod's old sandbox takes the network of its new one away.

Host veth and VLAN link are named by the pod and by the VLAN ID. A StatefulSet's next pod has the same name, and soon the same ID; the
runtime repeats the DEL of the first sandbox when it likes, and the plugin deletes what has the name. A link that such a DEL missed
stays, and its ID cannot be wired again.

What prevents it here: DEL needs the sandbox's row, and goes by what the aliases of both links say: the veth's names the sandbox, the
VLAN link's the address (`ipamd/kernel/branches.py`). A predecessor's veth is renamed before the next one takes the name.

Bound: 0 s. With real links and packets: `tests/lab/branch/test_kills.py`, `tests/lab/branch/test_lives.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ipamd.model.attachment import Attachment
from ipamd.model.sandbox import SandboxState
from tests.fakes.node import FakeNode
from tests.fakes.pod_facts import annotation
from tests.stories.branches import add
from tests.unit.service.branches import node_with_trunk


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """Nobody is there yet."""
    made = node_with_trunk(tmp_path)
    yield made
    made.datastore.close()


def links(node: FakeNode) -> dict[str, int]:
    """Host veths of the pods that are wired, and the IDs of their links."""
    survey = node.wiring.survey()
    found = {veth.name: survey.vlan_of(veth.address) for veth in survey.uplinked if not veth.is_dying}
    return {name: link.vlan for name, link in found.items() if link is not None}


def run(node: FakeNode, sandbox: str, vlan: int) -> Attachment:
    """A sandbox of the pod web-0."""
    node.pod_facts.put(sandbox, annotation(vlan))
    return add(node, sandbox, pod="web-0")


def test_a_repeated_del_takes_nothing(node: FakeNode) -> None:
    """The first sandbox was deleted; the second one has its name and its ID."""
    run(node, "first", 2)
    assert node.delete("first")
    node.cooldown.work()
    second = run(node, "second", 2)
    node.delete("first")
    node.cooldown.work()
    assert links(node) == {second.host_veth: 2}


def test_a_late_del_takes_its_own(node: FakeNode) -> None:
    """The first sandbox died, and its DEL comes when the second one is there, with another branch ENI."""
    run(node, "first", 2)
    node.runtime.run("first", state=SandboxState.NOTREADY)
    second = run(node, "second", 3)
    assert len(links(node)) == 2
    assert node.delete("first")
    node.cooldown.work()
    assert links(node) == {second.host_veth: 3}


def test_the_second_one_loses_its_link_where_del_goes_by_names(node: FakeNode) -> None:
    """As the plugin does that deletes what is named by pod and ID."""
    first = run(node, "first", 2)
    assert node.delete("first")
    node.cooldown.work()
    second = run(node, "second", 2)
    assert (first.host_veth, first.uplink) == (second.host_veth, second.uplink)
    node.wiring.mark_for_deletion(first.wiring)
    assert links(node) == {}
