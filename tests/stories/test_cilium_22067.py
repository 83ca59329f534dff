"""cilium #22067 (2022): the agent is away, so no pod of the node can be deleted, so the agent finds no place to come back.

The plugin needed the agent for DEL. Somebody removed the agent's pod; another pod took its place, the node was at its limit, and
every deletion failed for want of the agent. Nothing on that node could end, and nothing could begin.

What prevents it here: when the daemon does not answer, `cni_plugin/spool.py` keeps the DEL on disk, synced, and succeeds; the
runtime removes the sandbox at once. `startup.py: _replay_spool` carries every entry out before the first ADD is served (I3, I12).

Bound (real): each DEL answers within 10 s with no daemon at all; after the restart the addresses are back when the daemon is
ready.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.rig import RUN_DIR, Rig, rig

pytestmark = pytest.mark.privileged

DEL_BOUND_S = 10.0


@pytest.fixture(scope="module")
def made() -> Iterator[Rig]:
    """One node for both tellings; no CRI, so that no reaping helps out."""
    with rig() as node:
        yield node


def play(made: Rig, prefix: str, *, is_spool_lost: bool = False) -> None:
    """The daemon is killed; two of three pods are deleted meanwhile, and their namespaces with them."""
    names = [f"{prefix}{number}" for number in range(3)]
    for name in names:
        assert made.add(name).ok
    made.kill()
    for name in names[:2]:
        began = time.monotonic()
        reply = made.delete(name)
        assert reply.ok, f"no pod can be deleted without the daemon: {reply.body}"
        assert time.monotonic() - began < DEL_BOUND_S
    assert made.cni("CHECK", names[2]).code == 11, "CHECK needs the daemon, and says so"
    if is_spool_lost:
        made.node.run(["rm", "-r", f"{RUN_DIR}/spool"])
    made.start()
    assert set(made.attachments()) == {names[2]}, "the deleted pods still hold their addresses"
    made.assert_sound(expected=1)


def test_pods_are_deleted_while_the_daemon_is_away(made: Rig) -> None:
    """DEL succeeds without the daemon, and is carried out before its successor is ready (I3)."""
    play(made, "a")
    assert made.delete("a2").ok
    made.assert_sound(expected=0)


def test_the_addresses_leak_without_the_spool(made: Rig) -> None:
    """When what was kept for the daemon is gone, nobody tells it: the deleted pods stay attached."""
    with pytest.raises(AssertionError, match="still hold their addresses"):
        play(made, "b", is_spool_lost=True)
