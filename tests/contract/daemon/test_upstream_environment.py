"""The daemon under the environment of amazon-vpc-cni-k8s's own manifest: it starts, and says what it does otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.rig import rig

pytestmark = pytest.mark.privileged

ENVIRONMENTS = json.loads((Path(__file__).parents[2] / "unit" / "settings" / "upstream_environments.json").read_text())

MANIFEST = {
    **ENVIRONMENTS["manifests"]["aws-k8s-cni"]["aws-vpc-cni-init"],
    **ENVIRONMENTS["manifests"]["aws-k8s-cni"]["aws-node"],
}
"""It has NETWORK_POLICY_ENFORCING_MODE=standard, whose agent is a container of the same pod there."""


def test_without_its_agent_it_starts_and_no_pod_does() -> None:
    """Nothing differs, and an ADD is refused until the agent answers or a setting says that there is none (I21)."""
    with rig(env=MANIFEST) as made:
        reply = made.add("a")
        assert reply.code == 11
        assert "VPC_IPAMD_POLICY_AGENT=absent" in reply.body["details"]
        assert made.status()["settings"]["differences"] == []
        made.assert_sound(expected=0)


def test_a_node_without_agent_and_what_differs() -> None:
    """With the explicit value pods run; the condition stays, and each difference is in status and once in the log."""
    asked = {"VPC_IPAMD_POLICY_AGENT": "absent", "ANNOTATE_POD_IP": "True", "AWS_EXTERNAL_SERVICE_CIDRS": "10.9.0.0/16,abcd"}
    with rig(env=MANIFEST | asked) as made:
        assert made.add("a").ok
        status = made.status()
        differences = status["settings"]["differences"]
        assert [difference.partition("=")[0].partition(":")[0] for difference in differences] == [
            "AWS_EXTERNAL_SERVICE_CIDRS",
            "ANNOTATE_POD_IP",
        ]
        logged = [json.loads(line).get("difference") for line in made.log_tail(500).splitlines()]
        assert [logged.count(difference) for difference in differences] == [1, 1]
        assert "unfiltered pods" in {condition["subject"] for condition in status["conditions"]}
        made.assert_sound(expected=1)


def test_nothing_is_provisioned() -> None:
    """DISABLE_NETWORK_RESOURCE_PROVISIONING: the node has no address of its own making, and its ENI stays as it was."""
    asked = {"NETWORK_POLICY_ENFORCING_MODE": "none", "DISABLE_NETWORK_RESOURCE_PROVISIONING": "true", "WARM_IP_TARGET": "3"}
    with rig(env=MANIFEST | asked, start=False) as made:
        made.start(wait=False)
        assert not made.add("a", timeout_s=20).ok
        assert made.ec2_addresses() == {}
