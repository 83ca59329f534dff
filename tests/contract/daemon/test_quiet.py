"""How few EC2 calls a node makes: what an ENI costs, counted in EC2's own call log."""

from __future__ import annotations

import time

import pytest

from ipamd.service.reconcile.cloud import TURN_S
from ipamd.service.reconcile.metadata import REQUESTS_PER_TURN
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


@pytest.mark.slow
def test_an_idle_daemon_asks_ec2_nothing_and_metadata_little() -> None:
    """I13: eight ENIs, and metadata is looked at: no EC2 call, at most ten requests to metadata in the minute.

    Real time is bounded by one turn; tests/unit/service/test_other_hands.py plays a day, with one ENI and with eight.
    """
    with rig(instance_type="m5.4xlarge", env={"MINIMUM_IP_TARGET": str(8 * 29), "WARM_IP_TARGET": "0"}) as made:
        wait_until(lambda: made.pool()["total_count"] == 8 * 29, what="eight full ENIs", timeout_s=TURN_S)
        imds = made.lab.imds["node-a"]
        calls, requests = dict(made.lab.vpc.call_counts()), imds.request_count
        wait_until(lambda: imds.request_count > requests, what="a turn of metadata", timeout_s=2 * TURN_S)
        seen = -1
        while seen != imds.request_count:  # until the turn is over
            seen = imds.request_count
            time.sleep(0.5)
        assert 3 <= seen - requests <= REQUESTS_PER_TURN
        assert dict(made.lab.vpc.call_counts()) == calls
        made.assert_sound(expected=0)
