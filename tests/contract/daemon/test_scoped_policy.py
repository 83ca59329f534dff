"""The daemon under the conditions on tags of manifests/iam-policy-scoped.json, as the lab's EC2 plays them: what each scope costs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ipamd.cloud.operations import OPERATIONS
from ipamd.model.eni_tags import CLUSTER_TAG
from lab.lab import missing_requirements
from tests.rig import Rig, rig, wait_until
from tests.unit.manifests.manifest import MANIFESTS

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.skipif(bool(missing_requirements(containerd=False)), reason=missing_requirements(containerd=False) or "-"),
]

POLICY: dict[str, Any] = json.loads((MANIFESTS / "iam-policy-scoped.json").read_text().replace("CLUSTER", "prod"))


def _actions(statement: dict[str, Any]) -> list[str]:
    actions = statement["Action"]
    return [actions] if isinstance(actions, str) else list(actions)


def _denials() -> list[dict[str, Any]]:
    """The policy's conditions on the tags of ENIs, in the lab's words. Conditions on instances and VPCs the lab does not play."""
    found = []
    for statement in POLICY["Statement"]:
        conditions = statement.get("Condition", {}).get("StringEquals", {})
        tags = {name: value for name, value in conditions.items() if CLUSTER_TAG in name}
        if tags:
            found += [{"action": action, "unless": tags} for action in _actions(statement)]
    return found


def test_it_allows_exactly_the_calls_we_make() -> None:
    """As the wide policy does; each action that a tag is asked for is one that changes."""
    allowed = {action for statement in POLICY["Statement"] for action in _actions(statement)}
    assert allowed == {f"ec2:{api}" for api in OPERATIONS} | {"ec2:CreateTags"}
    changing = {f"ec2:{api}" for api in OPERATIONS if not api.startswith(("Describe", "Get"))}
    assert {denial["action"] for denial in _denials()} == changing
    for statement in POLICY["Statement"]:
        assert "Condition" in statement or statement["Resource"] == "*"


def _enis_of_addresses(made: Rig, addresses: set[str]) -> set[str]:
    return {eni for address, eni in made.ec2_addresses().items() if str(address) in addresses}


def test_with_the_tag_pods_get_addresses_of_new_enis() -> None:
    """Growth works with CLUSTER_NAME; the cost is the primary ENI, which has no tag: it gets no addresses."""
    with rig(start=False, env={"CLUSTER_NAME": "prod"}) as made:
        made.lab.faults.apply({"iam": _denials()})
        made.start()
        reply = made.add("one")
        assert reply.ok, reply.body
        primary = made.lab.vpc.enis_of(made.node.instance_id)[0].eni_id
        assert primary not in made.ec2_addresses().values()
        assert _enis_of_addresses(made, {str(reply.address)}) - {primary}
        assert made.delete("one").ok


def test_without_cluster_name_no_eni_is_made() -> None:
    """The scope's other cost: ENIs without the tag are denied, the refusal names IAM."""
    with rig(start=False) as made:
        made.lab.faults.apply({"iam": _denials()})
        made.start(wait=False)
        wait_until(lambda: "UnauthorizedOperation" in json.dumps(made.status() or {}), what="status names the denial")
        assert made.ec2_addresses() == {}
