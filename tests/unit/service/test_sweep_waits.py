"""The deletion of links keeps out of the way of requests, and is never put off for longer than I4 allows."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.fakes.node import FakeNode


class ScriptedPauses(threading.Event):
    """Does not sleep; in the n-th pause it does what the n-th entry of `during` says."""

    def __init__(self, during: list[Callable[[], object]]) -> None:
        super().__init__()
        self.during = during
        self.pauses_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Note the pause and let the other threads' part happen."""
        self.pauses_s.append(timeout or 0.0)
        if self.during:
            self.during.pop(0)()
        return self.is_set()


def _pauses(node: FakeNode, during: list[Callable[[], object]]) -> list[float]:
    """Pauses between a DEL and the sweep that follows it, in s."""
    pauses = ScriptedPauses(during)
    node.cooldown._stopped = pauses
    node.add("gone")
    node.delete("gone")
    assert node.cooldown._sleep(0.0) is True
    return pauses.pauses_s


def test_a_quiet_node_sweeps_after_one_pause(node: FakeNode) -> None:
    """Nobody asks: one pause."""
    assert len(_pauses(node, [])) == 1


def test_a_sweep_waits_for_requests_to_pass(node: FakeNode) -> None:
    """A request in a pause costs another pause, because a sweep holds the kernel's lock of links for 20 ms."""
    assert len(_pauses(node, [lambda: node.add("late")])) == 2


def test_requests_without_end_do_not_put_a_sweep_off(node: FakeNode) -> None:
    """I4: a dying link is gone within a second of its DEL, however busy the node is."""
    names = iter(f"more-{number}" for number in range(100))
    pauses_s = _pauses(node, [lambda: node.add(next(names))] * 20)
    assert sum(pauses_s) < 1.0
    assert len(pauses_s) > 1


def test_an_add_that_waits_for_an_address_does_not_wait_for_quiet(node: FakeNode) -> None:
    """It waits for this thread, which frees cooled addresses."""
    pauses_s = _pauses(node, [node.demand.join, lambda: pytest.fail("a second pause")])
    assert len(pauses_s) == 1
