"""The deletion of links keeps out of the way of requests, and is never put off for longer than I4 allows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fakes.node import FakeNode

Play = Callable[[list[Callable[[], object]]], list[float]]


@pytest.fixture
def play(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Pauses between a DEL and the sweep that follows it, in s; in the n-th happens what the n-th entry says."""
    return lambda during: _pauses(node, during, monkeypatch)


def _pauses(node: FakeNode, during: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses_s: list[float] = []

    def pause(seconds: float) -> bool:
        pauses_s.append(seconds)
        if during:
            during.pop(0)()
        return False

    monkeypatch.setattr(node.cooldown.loop, "pause", pause)
    node.add("gone")
    node.delete("gone")
    node.cooldown.turn()
    assert node.cooldown.dying_count() == 0
    return pauses_s


def test_a_quiet_node_sweeps_after_one_pause(play: Play) -> None:
    """Nobody asks: one pause."""
    assert len(play([])) == 1


def test_a_sweep_waits_for_requests_to_pass(node: FakeNode, play: Play) -> None:
    """A request in a pause costs another pause, because a sweep holds the kernel's lock of links for 20 ms."""
    assert len(play([lambda: node.add("late")])) == 2


def test_requests_without_end_do_not_put_a_sweep_off(node: FakeNode, play: Play) -> None:
    """I4: a dying link is gone within a second of its DEL, however busy the node is."""
    names = iter(f"more-{number}" for number in range(100))
    pauses_s = play([lambda: node.add(next(names))] * 20)
    assert sum(pauses_s) < 1.0
    assert len(pauses_s) > 1


def test_an_add_that_waits_for_an_address_does_not_wait_for_quiet(node: FakeNode, play: Play) -> None:
    """It waits for this thread, which frees cooled addresses."""
    pauses_s = play([node.demand.join, lambda: pytest.fail("a second pause")])
    assert len(pauses_s) == 1
