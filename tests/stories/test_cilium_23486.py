"""cilium PR 23486 (2023): DEL goes into a queue while the agent is away, and the agent comes back in that very moment.

Since then cilium's plugin writes a DEL to disk when nobody answers, and the agent reads the queue once, at start. Between "nobody
answers" and "written" the agent may start, read an empty queue and go on: the entry then waits for a start that does not come,
the runtime was told success, and the address is taken. The queue therefore has a lock, and under it the plugin asks again.

What prevents it here, on both sides: `cni_plugin/spool.py: spool_or_connect` takes the lock shared and, under it, tries the
socket once more before it writes; `ipamd/datastore/spool.py: replay` takes the lock exclusively, after the socket listens, and so
waits for a plugin that is still writing (I3). Whoever comes first, the DEL is served or replayed.

Bound: the plugin's reply, or the daemon's replay right behind it; no entry is left for later.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.fakes.node import FakeNode
from tests.families import in_both
from tests.stories.concurrent import Concurrent
from tests.stories.in_process import PluginProcess, listening, replay
from tests.stories.mutations import Mutate


@pytest.fixture
def running() -> Iterator[ExitStack]:
    """Servers that end with the story."""
    with ExitStack() as stack:
        yield stack


def nothing_is_left(node: FakeNode) -> None:
    """The runtime was told success."""
    assert node.spool.pending_count() == 0, "an entry waits for a replay that was over before it came"
    assert node.datastore.attachments() == (), "the runtime was told success, and the address is still taken"
    node.cool()
    node.assert_sound()


def play_daemon_comes_first(node: FakeNode, running: ExitStack) -> None:
    """The plugin has found nobody; before it gets the lock, the daemon listens and replays."""
    node.add("a")
    node.run_dir.chmod(0o700)

    def start() -> None:
        running.enter_context(listening(node))
        assert replay(node) == 0, "nothing is there yet"

    assert PluginProcess(node.run_dir, "DEL", "a", before={"open_lock": start}).run() == (0, {})
    nothing_is_left(node)


def play_plugin_comes_first(node: FakeNode, running: ExitStack) -> None:
    """The plugin has found nobody and is writing; before its entry has its name, the daemon listens and replays."""
    node.add("a")
    node.run_dir.chmod(0o700)
    waits = threading.Event()
    node.spool._pause = lambda seconds: (waits.set(), threading.Event().wait(seconds))[0]
    starting: Concurrent[int] = Concurrent(lambda: replay(node), is_waiting=waits.is_set)

    def start() -> None:
        running.enter_context(listening(node))
        starting.begin()

    assert PluginProcess(node.run_dir, "DEL", "a", before={"rename": start}).run() == (0, {})
    starting.end()
    assert starting.error is None
    nothing_is_left(node)


@in_both("node")
@pytest.mark.parametrize("play", [play_daemon_comes_first, play_plugin_comes_first])
def test_a_del_is_served_or_replayed(node: FakeNode, running: ExitStack, play) -> None:
    """A DEL that meets the daemon's start is carried out, whoever gets the lock first (I3)."""
    play(node, running)


@in_both("node")
def test_the_entry_comes_too_late_without_the_second_look(node: FakeNode, running: ExitStack, mutate: Mutate) -> None:
    """A plugin that does not ask again under the lock writes for nobody."""
    mutate("no-second-connect")
    with pytest.raises(AssertionError, match="an entry waits"):
        play_daemon_comes_first(node, running)


@in_both("node")
def test_the_entry_is_overlooked_without_the_daemons_lock(node: FakeNode, running: ExitStack, mutate: Mutate) -> None:
    """A daemon that does not wait for writers replays too early."""
    mutate("no-spool-lock")
    with pytest.raises(AssertionError, match="an entry waits"):
        play_plugin_comes_first(node, running)
