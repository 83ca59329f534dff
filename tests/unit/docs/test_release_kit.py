"""What a release needs besides code: claims of what was run are those of the tools and tests, queries name metrics that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ipamd.kernel import confinement_ruleset
from ipamd.model.cni_versions import SUPPORTED_VERSIONS
from ipamd.settings import NetworkConfig
from tests.task_pages import ROOT
from tests.unit.manifests.monitoring import metrics_of
from tests.unit.manifests.test_kubernetes_schemas import VERSIONS
from tests.unit.manifests.test_monitoring import KNOWN

RELEASE = (ROOT / "docs" / "release.md").read_text()
SETUP = (ROOT / "tools" / "setup.sh").read_text()
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def _section(title: str) -> str:
    return RELEASE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_matrix_says_what_was_run() -> None:
    """Kubernetes' schemas, kustomize, helm and CNI are of the versions that the tests take."""
    matrix = _section("Support matrix")
    *first, last = VERSIONS
    assert f"validated for {', '.join(first)} and {last}" in matrix
    for tool in ("kustomize", "helm"):
        (version,) = re.findall(rf"{tool}_version=v(\d+\.\d+)", SETUP)
        assert f"{tool} {version}" in matrix
    (cni,) = re.findall(r"^\| CNI \| ([\d., ]+) \|", matrix, re.M)
    assert tuple(cni.split(", ")) == tuple(version for version in SUPPORTED_VERSIONS if version in cni)
    assert len(cni.split(", ")) == len(SUPPORTED_VERSIONS)


def test_each_feature_of_the_kernel_is_used() -> None:
    """What the table names stands in our rules; and what fib or a link's kind asks for is in the table."""
    rules = [
        confinement_ruleset.ipv4_table(NetworkConfig(), other_veths=()),
        confinement_ruleset.ipv6_table(NetworkConfig(), other_veths=(), is_served=True),
    ]
    rules.append(confinement_ruleset.arp_table(NetworkConfig(), other_veths=()))
    text = "\n".join(rules)
    table = _section("Support matrix").partition("| Feature |")[2]
    for word, named in {
        "meta iifkind": "`meta iifkind`",
        "fib ": "`fib`",
        "exthdr frag exists": "`exthdr ... exists`",
        "limit rate over": "`limit rate over`",
        "counter name": "named counters",
    }.items():
        assert word in text
        assert named in table


def test_the_objectives_can_be_measured() -> None:
    """Each query of the pilot names metrics that the daemon has."""
    page = (ROOT / "docs" / "release.md").read_text().partition("| Objective |")[2].partition("\n\n")[0]
    queries = [query for query in re.findall(r"`([^`]+)`", page) if "(" in query or "_" in query]
    assert len(queries) >= 7
    for query in queries:
        names = {re.sub(r"_(sum|bucket)$", "", name) for name in metrics_of(query)}
        assert names
        assert names <= KNOWN, query


def test_the_threat_model_names_who_attacks() -> None:
    """A pod, one with NET_ADMIN, a node, an account; and what is not stopped is said."""
    text = (ROOT / "SECURITY.md").read_text().partition("## Threat model")[2].partition("\n## ")[0]
    attackers = {row.strip() for row in re.findall(r"^\| ([^|]+) \|", text, re.M)}
    assert {"a pod", "a pod with NET_ADMIN", "root on a node", "a role with EC2's rights in the account"} <= attackers
    assert "| Not stopped |" in text


def test_the_workflow_calls_what_everybody_calls() -> None:
    """`.ci/run` and nothing beside it, with no right to write."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert sum(".ci/run" in command for command in commands) == 1
    assert not [command for command in commands if "pytest" in command or "make test" in command]
    assert (ROOT / ".ci" / "run").exists()


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_issue_templates_are_forms(path: Path) -> None:
    """As far as a form needs: a name, a description, and a body of known kinds with unique IDs."""
    form = yaml.safe_load(path.read_text())
    if path.name == "config.yml":
        assert set(form) == {"blank_issues_enabled"}
        return
    assert {"name", "description", "body"} <= set(form)
    fields = [one for one in form["body"] if one["type"] != "markdown"]
    assert {one["type"] for one in fields} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert len({one["id"] for one in fields}) == len(fields)
    assert all(one["attributes"]["label"] for one in fields)
