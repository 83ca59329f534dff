"""A node whose ENIs other hands change, for the tests beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ipamd.model.ids import EniId
from tests.fakes.cloud import PRIMARY
from tests.fakes.node import FakeNode
from tests.stories.external_changes import settle
from tests.stories.stale_reads import run_sandboxes

SECOND = EniId("eni-2")


@contextmanager
def settled_node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with two ENIs and two sandboxes, long after its start."""
    made = FakeNode(tmp_path)
    made.bring_up()
    run_sandboxes(made, "a", "b")
    assert set(made.ec2.enis) == {PRIMARY, SECOND}
    settle(made)
    yield made
    made.datastore.close()


def conditions(node: FakeNode) -> str:
    """What `ipamctl status` says is amiss."""
    return "\n".join(node.health.conditions())
