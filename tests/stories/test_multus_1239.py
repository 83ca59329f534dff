"""multus-cni #1239 (2024): an error of DEL was logged and swallowed, and the runtime believed in success.

The shim ended with success whatever the plugins behind it said. containerd noted that the network was torn down, forgot the
sandbox, and nobody came again for what was still there.

What prevents it here: every DEL is done, spooled or an error (I3). `sandbox/detach.py: detach_sandbox` changes the row
only after the kernel has let go, lets every refusal through as a typed error, and `rpc/cni.py` hands it to the runtime, which
repeats the DEL. A repeated DEL finds everything that the first one left.

Bound: the first DEL that the kernel and the disk allow (0 fake seconds later), however many failed before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from ipamd.model.errors import DatastoreError, WiringError
from ipamd.ports.datastore import UnitOfWork
from tests.fakes.node import FakeNode
from tests.families import in_both
from tests.stories.in_process import ask
from tests.stories.mutations import Mutate


def refusing_once(
    transaction: Callable[[], AbstractContextManager[UnitOfWork]],
) -> Callable[[], AbstractContextManager[UnitOfWork]]:
    """A disk that is full at the first write."""
    refusals = [DatastoreError("disk full")]

    def first_refuse() -> AbstractContextManager[UnitOfWork]:
        if refusals:
            raise refusals.pop()
        return transaction()

    return first_refuse


def play(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses the first DEL, the disk the second; the runtime goes on only when it is told success."""
    made = node.add("a")
    node.wiring.fail["mark_for_deletion"] = [WiringError("refused")]
    monkeypatch.setattr(node.datastore, "transaction", refusing_once(node.datastore.transaction))
    codes = []
    while True:
        reply = ask(node, "DEL", "a")
        if not reply.HasField("error"):
            break
        codes.append(reply.error.code)
        assert reply.error.message, "I14: it says what failed"
        assert node.datastore.attachment(made.key) == made, "the retry must find the row"
    del node.wiring.netns[made.netns]  # the runtime believes it, and will not come again
    assert node.datastore.attachment(made.key) is None, "the runtime was told success, and the address is still taken"
    assert made.host_veth not in node.wiring.wired
    assert codes == [WiringError.cni_code, DatastoreError.cni_code]
    node.cool()
    node.assert_sound()


@in_both("node")
def test_a_del_that_failed_says_so_until_it_is_done(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel and disk refuse in turn: two errors, then success, and nothing is left (I3)."""
    play(node, monkeypatch)


@in_both("node")
def test_the_address_leaks_when_errors_are_swallowed(node: FakeNode, monkeypatch: pytest.MonkeyPatch, mutate: Mutate) -> None:
    """A DEL that ends with success whatever happened leaves the address with a sandbox that is gone."""
    mutate("del-always-succeeds")
    with pytest.raises(AssertionError, match="told success"):
        play(node, monkeypatch)
