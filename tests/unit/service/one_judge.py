"""What the sources of the verdict are made to say, for the tests beside it."""

from __future__ import annotations

from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment
from tests.fakes.node import FakeNode


def collect(node: FakeNode, *valid: str) -> tuple[list[str], list[str]]:
    """GC with a list of valid sandboxes; returns the container IDs that were freed and kept."""
    outcome = node.collect(*valid)
    return [key.container_id for key in outcome.freed], [key.container_id for key in outcome.kept]


def vanish(node: FakeNode, made: Attachment) -> None:
    """A sandbox ends without a DEL: its namespace goes, and its veth with it."""
    del node.wiring.netns[made.netns]
    node.wiring.wired.pop(made.host_veth, None)
    node.wiring.routes.pop(made.address, None)


def list_for(node: FakeNode, seconds: float, *, every_s: float = 60.0) -> int:
    """List as the reconciler does while time passes; returns how many were reaped."""
    reaped = 0
    for _ in range(int(seconds / every_s)):
        node.clock.advance(every_s)
        reaped += len(node.runtime_reconciler.reconcile_once())
    return reaped


def quarantine_one(node: FakeNode, name: str) -> Attachment:
    """The datastore is lost and the runtime does not list a wired sandbox: its address is quarantined."""
    made = node.add(name)
    node.add("pod")
    node.runtime.run("pod")
    node.crash(keep_datastore=False)
    node.bring_up()
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.QUARANTINED
    return made
