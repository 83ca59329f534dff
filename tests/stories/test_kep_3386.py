"""KEP-3386, Evented PLEG (kubernetes #121003, #123087, and others): an event that is older than the list it comes after.

kubelet put what events said into the same cache as what its lists said. Events came late, doubled and out of order; a stale one
overwrote a newer list, and pods got a second set of containers or hung in termination. The proposal was rewritten in 2026 so
that an event only asks for a list.

What prevents it here: it was never anything else. `sandbox/runtime.py` turns an event into "look again" and notes it
for one statistic (`sandbox/runtime.py`); only `sandbox/runtime.py: _list` says who exists (I11). And
because events may cause lists in any number, two lists count as successive evidence only with `LIST_INTERVAL_S` between them.

Bound: a sandbox that is listed is kept through two hours of stale events; one that vanished without any event is freed within
6 minutes and one list interval (fake).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from ipamd.model.sandbox import EventKind, SandboxEvent
from ipamd.sandbox.runtime import RELIST_WITH_EVENTS_S
from tests.fakes.node import FakeNode
from tests.families import in_both
from tests.stories.mutations import Mutate

SUBSCRIBED = SandboxEvent("", "", EventKind.SUBSCRIBED)
FREED_WITHIN_S = 360 + RELIST_WITH_EVENTS_S


def deliver(node: FakeNode, events: Sequence[SandboxEvent]) -> None:
    """A stretch of the event stream, in this thread."""

    def stream() -> Iterator[SandboxEvent]:
        yield from events

    node.runtime.events = stream  # type: ignore[method-assign]
    node.runtime_reconciler._stream.turn()


def event(name: str, kind: EventKind) -> SandboxEvent:
    """What the runtime says of a sandbox."""
    return SandboxEvent(name, name, kind)


def play(node: FakeNode) -> None:
    """Two hours in which the stream says the opposite of what is."""
    alive, dead = node.add("alive"), node.add("dead")
    node.runtime.run("alive")
    node.runtime.run("dead")
    node.runtime_reconciler.reconcile_once()
    deliver(node, [SUBSCRIBED])
    node.vanish(dead)
    stale = [event("alive", EventKind.DELETED), event("dead", EventKind.STARTED), event("alive", EventKind.DELETED)]
    spent = 0.0
    while spent < 7200:
        deliver(node, stale)
        node.runtime_reconciler.reconcile_once()
        assert node.datastore.attachment(alive.key) == alive, f"after {spent:.0f} s a living sandbox was freed on an event's word"
        assert node.datastore.attachment(dead.key) is None or spent <= FREED_WITHIN_S
        node.clock.advance(RELIST_WITH_EVENTS_S)
        spent += RELIST_WITH_EVENTS_S
    assert alive.host_veth in node.wiring.wired
    node.cool()
    node.assert_sound()


def play_storm(node: FakeNode) -> None:
    """A sandbox is missing in the lists of one moment, which a storm of events makes many."""
    made = node.add("a")
    node.runtime.run("a")
    node.clock.advance(3600)
    node.runtime.listed.clear()  # the runtime is just starting again and has not found it yet
    for _ in range(20):
        deliver(node, [event("other", EventKind.STARTED)])
        node.runtime_reconciler.reconcile_once()
        node.clock.advance(0.1)
    evidence, _ = node.judge.judge_attachment(made, listed={}, survey=node.wiring.survey())
    assert evidence.absent_look_count == 1, "one moment counts as many lists"
    node.runtime.run("a")
    node.runtime_reconciler.reconcile_once()
    node.assert_sound()


@in_both("node")
def test_events_say_nothing_but_look_again(node: FakeNode) -> None:
    """Stale, doubled and wrong events neither free the living nor keep the dead (I2, I11)."""
    play(node)


@in_both("node")
def test_a_living_sandbox_is_torn_down_when_events_are_believed(node: FakeNode, mutate: Mutate) -> None:
    """With the stream put above the list the story ends with a pod without network."""
    mutate("events-believed")
    with pytest.raises(AssertionError, match="on an event's word"):
        play(node)


@in_both("node")
def test_a_storm_of_events_counts_as_one_list(node: FakeNode) -> None:
    """Twenty lists within two seconds count as one list (docs/datastore.md, Sources)."""
    play_storm(node)


@in_both("node")
def test_one_moment_counts_often_without_the_interval(node: FakeNode, mutate: Mutate) -> None:
    """Without a least time between them, every event makes the absence more certain."""
    mutate("no-list-interval")
    with pytest.raises(AssertionError, match="counts as many"):
        play_storm(node)
