"""A node that was full and is empty again: EC2 gets back what it had, and the host's routing of it is gone."""

from __future__ import annotations

import pytest

from tests.rig import Rig, rig, wait_until

pytestmark = pytest.mark.privileged

ENV = {"WARM_IP_TARGET": "5", "MINIMUM_IP_TARGET": "10", "VPC_IPAMD_RELEASE_HOLD_SECONDS": "3"}


def tables(made: Rig) -> set[str]:
    """Route tables of secondary ENIs that rules name or that have routes."""
    rules = made.node.run(["ip", "rule"]).stdout
    routes = made.node.run(["ip", "route", "show", "table", "all"]).stdout
    return {table for table in ("2", "3") if f"lookup {table}\n" in rules.replace(" \n", "\n") or f" table {table} " in routes}


def test_0_to_27_to_0_pods_ends_at_the_target() -> None:
    """27 pods on an m5.large, then none: 10 addresses on two ENIs are left, the third is deleted at EC2, and so is its routing."""
    with rig(env=ENV) as made:
        names = [f"pod-{number}" for number in range(27)]
        for name in names:
            assert made.add(name).ok
        wait_until(lambda: made.pool()["eni_count"] == 3, what="three ENIs")
        assert "3" in tables(made)
        calls_before = len(made.lab.vpc.enis())
        assert calls_before >= 3
        for name in names:
            assert made.cni("DEL", name).ok
        wait_until(lambda: made.pool()["total_count"] == 10, what="at the target", timeout_s=120)
        wait_until(lambda: made.pool()["eni_count"] == 2, what="an ENI released", timeout_s=120)
        ours = [eni for eni in made.lab.vpc.enis() if eni.description == f"aws-K8S-{made.node.instance_id}"]
        assert len(ours) == 1, "the primary ENI and one other are left at EC2"
        assert "3" not in tables(made)
        assert len(made.ec2_addresses()) == 10
        assert made.add("again").ok
        made.assert_sound(expected=1)
