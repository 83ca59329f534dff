"""Whole ENIs of WARM_ENI_TARGET are released as soon as they are surplus and a minute old, by the pool's own timer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ipamd.model.pool import RELEASE_HOLD_S, PoolSettings
from ipamd.model.release import ENI_MIN_AGE_S
from tests.fakes.node import FakeNode
from tests.unit.service.test_release import fill_and_empty


def let_time_pass(node: FakeNode, seconds: float) -> None:
    """Wake the pool when it asks to be woken, and at no other moment."""
    ends_s = node.clock.monotonic() + seconds
    for _ in range(100):
        pause_s = node.pool._pause_s()
        if pause_s is None or node.clock.monotonic() + pause_s > ends_s:
            return
        node.clock.advance(pause_s + 0.001)
        node.pool.run_once()


@pytest.fixture
def by_eni(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with the default target, one whole ENI, and 14 addresses on each; two pods have come and made it attach a spare one."""
    made = FakeNode(tmp_path, settings=PoolSettings())
    made.bring_up()
    yield made
    made.datastore.close()


def test_an_eni_goes_after_its_window_though_nothing_happens(by_eni: FakeNode) -> None:
    """A burst is over: the ENI that it asked for is held for the window, and goes then, though nothing else happens on the node."""
    let_time_pass(by_eni, 600)  # what is due after a start is over
    began_s = by_eni.clock.monotonic()
    fill_and_empty(by_eni, 3)
    by_eni.pool.run_once()
    assert len(by_eni.datastore.enis()) == 2
    let_time_pass(by_eni, began_s + RELEASE_HOLD_S - 60 - by_eni.clock.monotonic())
    assert len(by_eni.datastore.enis()) == 2
    let_time_pass(by_eni, began_s + RELEASE_HOLD_S + 200 - by_eni.clock.monotonic())
    assert len(by_eni.datastore.enis()) == 1
    assert len(by_eni.ec2.enis) == 1


def test_the_window_of_an_eni_begins_while_the_last_addresses_cool(by_eni: FakeNode) -> None:
    """Three quarters of the target may be cooling: the spare ENI is in excess when the sandboxes go, and not asked for again."""
    for number in range(3):
        by_eni.add(f"pod-{number}")
        by_eni.pool.run_once()
    by_eni.clock.advance(ENI_MIN_AGE_S + 5)
    by_eni.pool.run_once()
    assert len(by_eni.datastore.enis()) == 2
    for number in range(3):
        by_eni.delete(f"pod-{number}")
    by_eni.was_triggered()
    by_eni.cooldown.work()
    assert by_eni.was_triggered(), "what cools is no load any more: the pool looks at once"
    made, gone_s = by_eni.ec2.calls["create_eni"], by_eni.clock.monotonic()
    by_eni.pool.run_once()
    let_time_pass(by_eni, 10)
    assert by_eni.datastore.counts().cooling == 3
    by_eni.cool()
    let_time_pass(by_eni, gone_s + RELEASE_HOLD_S + 2 - by_eni.clock.monotonic())
    assert len(by_eni.datastore.enis()) == 1
    assert by_eni.ec2.calls["create_eni"] == made
    by_eni.assert_sound()
