"""A sandbox that its runtime gave up without a DEL is reaped early, and only with every proof that it is gone (I2, I11).

A chained plugin that fails makes the runtime give up a sandbox after our ADD, and keeps its DEL from us (containerd #12130).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ipamd.model.attachment import Attachment
from ipamd.model.cni_request import NetnsIdentity
from ipamd.model.cniresult import recorded_spec
from ipamd.model.errors import KernelDumpError, WiringError
from ipamd.model.evidence import REAP_MIN_AGE_S
from ipamd.model.history import LedgerEvent
from ipamd.sandbox.judge import LIST_INTERVAL_S
from tests.fakes.node import FakeNode
from tests.families import in_both

EARLY_S = 2 * LIST_INTERVAL_S + 1
"""Within which a sandbox with every proof is reaped. Ours: two lists, and the time to the first of them."""


def leave_behind(node: FakeNode, name: str = "left", pod: str | None = None) -> Attachment:
    """ADD, and the runtime gives the sandbox up: it removes the namespace, with which the links go."""
    made = node.add(name, pod=pod)
    del node.wiring.netns[made.netns]
    node.wiring.wired.pop(made.host_veth)
    return made


def look_for(node: FakeNode, seconds: float, *, before: Callable[[], None] = lambda: None) -> None:
    """List every ten seconds; `before` runs before each list."""
    until_s = node.clock.monotonic() + seconds
    while node.clock.monotonic() <= until_s:
        before()
        node.runtime_reconciler.reconcile_once()
        node.clock.advance(LIST_INTERVAL_S)


@in_both("node")
def test_it_is_reaped_after_two_lists_and_cools(node: FakeNode) -> None:
    """Absent twice, namespace and all links proven gone: freed without a DEL, long before five minutes, by way of cooling (I8)."""
    made = leave_behind(node)
    look_for(node, EARLY_S)
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state == "cooling"
    assert [entry.event for entry in node.datastore.history("left", limit=10)][-2:] == [
        LedgerEvent.REAPED,
        LedgerEvent.TOMBSTONED,
    ]
    node.cool()
    node.assert_sound()


def listed(node: FakeNode, made: Attachment) -> None:
    """The runtime lists it."""
    node.runtime.run(made.key.container_id)


def silent(node: FakeNode, made: Attachment) -> None:
    """The runtime gives no list."""
    node.runtime.is_down = True


def namespace_there(node: FakeNode, made: Attachment) -> None:
    """The namespace is there still: a plugin behind ours is slow."""
    node.wiring.netns[made.netns] = made.netns_identity


def another_namespace(node: FakeNode, made: Attachment) -> None:
    """Another namespace is at its path: its own may live on without one."""
    node.wiring.netns[made.netns] = NetnsIdentity(4, 9999)


def mounts_unseen(node: FakeNode, made: Attachment) -> None:
    """The path is absent in the daemon's own mounts, where the host's do not appear."""
    node.wiring.are_mounts_seen = False


def namespace_unknown(node: FakeNode, made: Attachment) -> None:
    """The namespace cannot be looked at."""
    node.wiring.fail["identify_netns"] = [WiringError("no descriptor left")] * 50


def dump_torn(node: FakeNode, made: Attachment) -> None:
    """No dump of the kernel is whole."""
    node.wiring.fail["survey"] = [KernelDumpError("torn")] * 50


def veth_dying(node: FakeNode, made: Attachment) -> None:
    """Its host veth is being deleted, and not gone yet."""
    node.wiring.dying[made.host_veth] = made.address


def veth_renamed(node: FakeNode, made: Attachment) -> None:
    """Its host veth is there under another name, which only the alias tells."""
    node.wiring.wired["eni-other"] = recorded_spec(made)


MISSING_PROOFS = [
    listed,
    silent,
    namespace_there,
    another_namespace,
    mounts_unseen,
    namespace_unknown,
    dump_torn,
    veth_dying,
    veth_renamed,
]


@pytest.mark.parametrize("spoil", MISSING_PROOFS, ids=lambda spoil: spoil.__name__)
def test_without_any_one_proof_it_is_kept(node: FakeNode, spoil: Callable[[FakeNode, Attachment], None]) -> None:
    """Each proof alone is missing once, and a newer sandbox of the pod is there all the time: no reap before five minutes."""
    made = leave_behind(node)
    newer = node.add("newer", pod="left")
    node.runtime.run("newer")
    look_for(node, REAP_MIN_AGE_S - LIST_INTERVAL_S - 5, before=lambda: spoil(node, made))
    assert node.datastore.attachment(made.key) == made
    assert node.datastore.attachment(newer.key) == newer


def test_one_list_is_not_enough(node: FakeNode) -> None:
    """Lists that follow one another at once count as one."""
    made = leave_behind(node)
    for _ in range(20):
        node.runtime_reconciler.reconcile_once()
    assert node.datastore.attachment(made.key) == made


def test_a_list_from_before_the_add_is_no_evidence(node: FakeNode) -> None:
    """The list that is under way when the ADD comes counts for nothing."""
    node.runtime.before_list = lambda: leave_behind(node) and None
    node.runtime_reconciler.reconcile_once()
    node.runtime.before_list = lambda: None
    node.clock.advance(LIST_INTERVAL_S)
    node.runtime_reconciler.reconcile_once()
    assert node.datastore.attachment(node.key("left")) is not None


def test_a_sandbox_that_another_program_made_is_kept(node: FakeNode) -> None:
    """CRI never lists what it did not make: two lists without it prove nothing."""
    made = leave_behind(node, pod="")
    look_for(node, REAP_MIN_AGE_S - LIST_INTERVAL_S - 5)
    assert node.datastore.attachment(made.key) == made
