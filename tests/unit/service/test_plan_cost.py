"""What a plan costs: it is made beside the ADDs of a burst, and competes with them for the interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.eni import InstanceLimits
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.cloud import FakeEc2
from tests.fakes.node import FakeNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node that has just been given 130 addresses, on five ENIs."""
    limits, settings = InstanceLimits("m5.4xlarge", 8, 30), PoolSettings(minimum_ip_target=130, warm_ip_target=1)
    made = FakeNode(tmp_path, ec2=FakeEc2(limits=limits), settings=settings)
    made.bring_up()
    assert made.datastore.counts().total >= 130
    yield made
    made.datastore.close()


def call_count(function: Callable[[], object]) -> int:
    """How many functions it calls."""
    count = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_a_plan_costs_no_more_while_our_own_changes_are_recent(node: FakeNode) -> None:
    """For 300 s after a warm pool was filled each plan looked at each of its addresses once for each ENI: 37 % of a burst's CPU."""
    lately = call_count(node.pool.cycle)
    node.clock.advance(RECENT_S)
    assert lately <= call_count(node.pool.cycle) * 1.2
