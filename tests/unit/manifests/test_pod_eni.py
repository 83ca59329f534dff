"""The admission policies of manifests/pod-eni: their words are the daemon's. What an API server makes of them is tried by
`make cluster` (lab/cluster/pod_marks.py): nothing here evaluates CEL.
"""

from __future__ import annotations

from typing import Any

import yaml

from ipamd.model.pod_annotations import MARK, POD_ENI
from ipamd.model.pod_facts import NONE, REQUIRED
from tests.unit.manifests.manifest import MANIFESTS

FOLDER = MANIFESTS / "pod-eni"
POLICIES = {
    one["kind"]: one for path in sorted(FOLDER.glob("[gm]*.yaml")) for one in yaml.safe_load_all(path.read_text())
}  # kind -> object
MARKING, GUARDING = POLICIES["MutatingAdmissionPolicy"], POLICIES["ValidatingAdmissionPolicy"]


def _variables(policy: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["expression"] for one in policy["spec"]["variables"]}


def test_each_policy_is_bound_everywhere() -> None:
    """A policy without binding does nothing; one with a selector would leave pods unmarked, which are then refused on nodes."""
    for policy in (MARKING, GUARDING):
        binding = POLICIES[policy["kind"] + "Binding"]
        assert set(binding["spec"]) <= {"policyName", "validationActions"}
        assert binding["spec"]["policyName"] == policy["metadata"]["name"]
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert not {"matchConditions", "paramKind"} & set(policy["spec"])
        assert set(policy["spec"]["matchConstraints"]) == {"resourceRules"}
    assert POLICIES["ValidatingAdmissionPolicyBinding"]["spec"]["validationActions"] == ["Deny"]


def test_the_mark() -> None:
    """Each new pod gets it, whatever its author wrote, and again after webhooks; the words are those that the daemon reads."""
    (rule,) = MARKING["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])
    assert MARKING["spec"]["reinvocationPolicy"] == "IfNeeded"
    (mutation,) = MARKING["spec"]["mutations"]
    assert mutation["jsonPatch"]["expression"].count(f"'{MARK}'") == 2
    assert "op: 'add'" in mutation["jsonPatch"]["expression"]
    told = _variables(MARKING)["mark"]
    assert told.endswith(f"? '{REQUIRED}' : '{NONE}'")
    assert f"exists(c, '{POD_ENI}' in c.?resources.?limits.orValue({{}}))" in told
    assert "!object.spec.?hostNetwork.orValue(false)" in told


def test_the_guard() -> None:
    """It judges a new pod's mark by the same expression, and no part of a pod by which annotations come is left out."""
    variables = _variables(GUARDING)
    assert variables["truth"].endswith(_variables(MARKING)["mark"])
    assert variables["mark"].endswith(f"[?'{MARK}']")
    (rule,) = GUARDING["spec"]["matchConstraints"]["resourceRules"]
    assert set(rule["operations"]) == {"CREATE", "UPDATE"}
    assert {"pods", "pods/status", "pods/ephemeralcontainers", "pods/resize", "pods/binding", "bindings"} == set(
        rule["resources"]
    )
    assert [POD_ENI in one["expression"] for one in GUARDING["spec"]["validations"]] == [False, True]
    for used in ("oldObject", "request.userInfo.username", "request.kind.kind == 'Pod'"):
        assert any(used in expression for expression in variables.values())
