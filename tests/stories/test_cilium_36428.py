"""cilium issue 36428 (2024): EC2 gave addresses, and its next answer did not show them.

The operator assigned addresses to an interface and then read all interfaces anew; the answer was older than the assignment. It
took the interface for full or the addresses for gone, and created interfaces that nobody needed. AWS promises only that a change is
seen eventually (https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html).

Here: what a call of ours changed is not missed in an answer for five minutes (`ipamd/eni/book.py`); the call's own
answer is believed (I7). Bound: from the call's answer on, 0 s (fake), through 270 s of answers that lag.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ipamd.model.pool_settings import PoolSettings
from tests.fakes.cloud import IDENTITY
from tests.fakes.node import FakeNode
from tests.stories.mutations import Mutate
from tests.stories.stale_reads import ec2_tells, run_sandboxes

LOOK_EVERY_S = 30.0


def play(run_dir: Path) -> None:
    """Three addresses are given; nine answers in four and a half minutes are older than that."""
    node = FakeNode(run_dir, settings=PoolSettings(warm_ip_target=3))
    before = tuple(node.ec2.enis.values())
    node.bring_up()
    given = {row.address for row in node.datastore.addresses()}
    assert len(given) >= 3
    with ec2_tells(node.ec2, before):
        for _ in range(9):
            node.clock.advance(LOOK_EVERY_S)
            node.enis.sync_with_ec2(IDENTITY)
            node.pool.cycle()
    assert {row.address for row in node.datastore.addresses()} == given, "addresses that EC2 gave are gone"
    assert node.ec2.calls["create_eni"] == 0
    assert set(run_sandboxes(node, "s0", "s1").values()) <= given
    node.assert_sound()
    node.datastore.close()


def test_what_ec2_gave_is_kept_while_its_answers_lag(tmp_path: Path) -> None:
    """Our own call's answer is the evidence; nothing is asked for twice (I7, I13)."""
    play(tmp_path)


def test_addresses_are_lost_to_lag_without_the_memory_of_our_calls(tmp_path: Path, mutate: Mutate) -> None:
    """If every answer counted alike, the second one would end what EC2 has just given."""
    mutate("own-changes-forgotten")
    with pytest.raises(AssertionError, match="are gone"):
        play(tmp_path)
