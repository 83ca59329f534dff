"""What changes only a record is carried out by the pass that it asks for, whatever else is due, and whatever that pass meets."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipamd.host.network import RECONCILE_INTERVAL_S
from ipamd.host.triggers import PassScope
from ipamd.model.errors import KernelDumpError
from ipamd.model.ids import AttachmentKey
from tests.fakes.node import FakeNode
from tests.unit.service.branches import attach, node_with_trunk


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    """A node in strict mode, quiet for some passes, with one sandbox that has a branch ENI."""
    made = node_with_trunk(tmp_path)
    attach(made, 5)
    made.wiring.rules.clear()  # a kernel has no rule 512 of such a sandbox, the fake has
    for _ in range(4):
        made.host_reconciler.turn()
        made.clock.advance(RECONCILE_INTERVAL_S)
    made.host_reconciler.turn()
    return made


def contradict(node: FakeNode) -> AttachmentKey:
    """EC2 contradicts it: the record says so, and a pass is asked for, as `on_cut_off` does."""
    (one,) = node.datastore.attachments()
    with node.datastore.transaction() as uow:
        uow.record_contradiction(one.key, contradiction="its MAC is another")
    node.host_reconciler.mark(PassScope.EVERYTHING)
    return one.key


@pytest.mark.parametrize("early_s", [RECONCILE_INTERVAL_S, 0.1])
def test_a_mark_beside_the_clocks_pass_is_not_lost(node: FakeNode, early_s: float) -> None:
    """I16: the pass by the clock, which looks at nothing that the kernel did not announce, is due in the same turn."""
    node.clock.advance(RECONCILE_INTERVAL_S - early_s)
    contradict(node)
    node.clock.advance(0.25)
    node.host_reconciler.turn()
    assert node.wiring.down


def test_a_pass_that_fails_is_made_anew(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dump of the kernel was interrupted; the next pass, by the clock, is for all that this one was for."""

    def torn(**_: object) -> None:
        raise KernelDumpError("interrupted")

    node.clock.advance(5)
    contradict(node)
    node.clock.advance(0.25)
    with monkeypatch.context() as broken:
        broken.setattr(node.wiring, "survey", torn)
        with pytest.raises(KernelDumpError):
            node.host_reconciler.turn()
    assert not node.wiring.down
    node.clock.advance(RECONCILE_INTERVAL_S)
    node.host_reconciler.turn()
    assert node.wiring.down
