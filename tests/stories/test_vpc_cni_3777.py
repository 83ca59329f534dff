"""amazon-vpc-cni-k8s #3777 (2026): the DEL of a pod that is gone fails, and a full node refuses pods for two minutes.

DEL needs what the pod's annotation or the previous result says. When neither is there any more the plugin answers with an error, the
sandbox stays, and with it the branch ENI, which counts against the node's capacity.

What prevents it here: DEL needs the row and nothing else: neither pod, annotation, EC2 nor the one who tells them
(`ipamd/sandbox/detach.py`).

Bound: 0 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from ipamd.model.errors import PodFactsError
from tests.fakes.node import FakeNode
from tests.fakes.pod_facts import annotation
from tests.stories.branches import add
from tests.unit.service.branches import node_with_trunk


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A pod with a branch ENI lives, and then nobody tells anything of pods any more."""
    made = node_with_trunk(tmp_path)
    made.pod_facts.put("a", annotation(2))
    add(made, "a", pod="web-0")

    def away(*_: object, **__: object) -> NoReturn:
        raise PodFactsError("nobody tells of pods", details="a test")

    made.pod_facts.facts = away  # type: ignore[method-assign]  # kubelet is away
    made.ec2.enis.clear()
    yield made
    made.datastore.close()


def test_its_del_succeeds(node: FakeNode) -> None:
    """And nothing of it is left, also after a restart in between."""
    node.crash()
    node.bring_up()
    assert node.delete("a")
    node.cooldown.work()
    assert not node.wiring.survey().vlans
    assert not node.datastore.attachments()


def test_a_verb_that_asks_fails(node: FakeNode) -> None:
    """An ADD must know, and is refused: that is what a DEL that asks would meet."""
    with pytest.raises(PodFactsError):
        add(node, "b", pod="web-1")
