"""A release that is open when amazon-vpc-cni-k8s comes back takes nothing from under its pods (I2, I20)."""

from __future__ import annotations

import pytest

from lab.vpc.model import Address
from tests.lab.migration.conftest import Migrated, migrated
from tests.rig import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.slow]

UNASSIGN = "UnassignPrivateIpAddresses"
ENV = {"MINIMUM_IP_TARGET": "2", "WARM_IP_TARGET": "1", "VPC_IPAMD_RELEASE_HOLD_SECONDS": "2"}
SETTLED_S = 310.0
"""Longer than Describe may lag."""


def unassign_count(node: Migrated) -> int:
    """How often EC2 was asked to take addresses back."""
    return node.rig.lab.vpc.call_counts()[UNASSIGN]


def at_ec2(node: Migrated) -> set[Address]:
    """The secondary addresses of the node's ENIs."""
    enis = node.rig.lab.vpc.enis_of(node.rig.node.instance_id)
    return {address for eni in enis for address in eni.secondary_addresses}


def test_a_release_that_ec2_did_not_answer_is_undone_beside_the_other_daemon() -> None:
    """Addresses were in excess and EC2 failed; the other daemon comes, and EC2 recovers: no further call, and none is lost."""
    with migrated(1, start=True, env=ENV) as node:
        rig = node.rig
        names = [f"burst-{number}" for number in range(5)]
        for name in names:
            assert rig.add(name).ok
        rig.lab.vpc.faults.apply({"apis": {UNASSIGN: {"error": {"code": "InternalError", "status": 500}}}})
        for name in names:
            assert rig.cni("DEL", name).ok
        wait_until(lambda: unassign_count(node) > 0, what="a release that fails", timeout_s=60)
        before = at_ec2(node)
        node.agent.start()
        rig.driver.wait_status(lambda s: any("it serves" in line for line in s["degraded"]), what="it is seen", timeout_s=60)
        rig.lab.vpc.faults.apply({"apis": {UNASSIGN: {}}})
        asked_count = unassign_count(node)
        rig.driver.ipamctl("retry")  # the recovery learns of the freeze
        rig.driver.wait_status(lambda s: "frozen" in s["pool"]["last_cycle"], what="a plan", timeout_s=60)
        node.pass_time(SETTLED_S)
        rig.driver.ipamctl("retry")
        total_count = rig.pool()["total_count"]
        wait_until(lambda: rig.pool()["assignable_count"] == total_count - 1, what="the release is undone", timeout_s=60)
        assert unassign_count(node) == asked_count
        assert at_ec2(node) == before
