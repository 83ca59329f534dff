"""How few EC2 calls a node makes: what an ENI costs, counted in EC2's own call log."""

from __future__ import annotations

import pytest

from tests.rig import rig, wait_until

pytestmark = pytest.mark.privileged


def test_an_eni_costs_four_calls() -> None:
    """Create with its addresses, attach, mark, verify: one call each, though the attachment takes its time (I13)."""
    with rig(attach_delay_s=0.5) as made:
        wait_until(lambda: made.pool()["free_count"] == 9, what="the primary ENI is full")
        before = dict(made.lab.vpc.call_counts())
        assert made.add("a").ok
        wait_until(lambda: made.pool()["total_count"] == 18, what="a second ENI", timeout_s=15)
        after = made.lab.vpc.call_counts()
        spent = {api: count - before.get(api, 0) for api, count in after.items() if count != before.get(api, 0)}
        assert spent == {
            "CreateNetworkInterface": 1,
            "AttachNetworkInterface": 1,
            "ModifyNetworkInterfaceAttribute": 1,
            "DescribeNetworkInterfaces": 1,
        }
        made.assert_sound(expected=1)
