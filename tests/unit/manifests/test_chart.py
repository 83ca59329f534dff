"""The chart's values and their schema, as far as they go without helm; tests/heavy/test_helm.py renders it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

import ipamd
from ipamd.settings import Settings, describe
from tests.unit.manifests.manifest import MANIFESTS, container, environment

CHART = MANIFESTS / "chart"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


def refused(values: dict[str, Any]) -> list[str]:
    """What the schema has against values that are laid over the defaults, as helm lays them."""
    merged = {
        key: VALUES[key] | values[key] if isinstance(values.get(key), dict) else values.get(key, VALUES[key]) for key in VALUES
    }
    return [
        error.message
        for error in Draft7Validator(SCHEMA).iter_errors(merged | {k: v for k, v in values.items() if k not in VALUES})
    ]


def test_the_defaults_are_valid() -> None:
    """And the schema is a schema."""
    Draft7Validator.check_schema(SCHEMA)
    assert refused({}) == []


@pytest.mark.parametrize(
    "values",
    [
        {"clusterName": "prod", "sweeper": {"enabled": True, "vpcId": "vpc-0a1b", "region": "us-west-2"}},
        {"networkPolicy": "strict"},
        {"podSecurityGroups": {"mode": "strict"}},
        {"podSecurityGroups": {"mode": "standard", "facts": "kubelet"}},
        {"settings": {"ENABLE_PREFIX_DELEGATION": "true"}, "runtime": {"socket": "/run/crio/crio.sock"}},
        {"settings": {"ENABLE_IPv4": "false", "ENABLE_IPv6": "true", "ENABLE_V4_EGRESS": "true"}},
        {"network": {"zones": {"us-west-2a": {"subnet": "subnet-0a1b"}}, "primaryEniCarriesPods": False}},
        {"image": {"repository": "registry.example/vpc-ipamd", "digest": "sha256:" + "0" * 64, "pullPolicy": "Always"}},
        {"updateStrategy": {"type": "OnDelete"}, "imagePullSecrets": [{"name": "registry"}], "priorityClassName": "mine"},
        {"updateStrategy": {"maxUnavailable": 1}, "nameOverride": "ipam", "fullnameOverride": "ipam-gpu"},
        {"nodeSelector": {"example.com/group": "gpu"}, "affinity": {"nodeAffinity": {}}, "tolerations": [{"key": "gpu"}]},
        {"podLabels": {"team": "net"}, "podAnnotations": {"x/y": "any text"}, "extraEnv": [{"name": "AWS_REGION", "value": "r"}]},
        {"serviceAccount": {"create": False, "name": "mine"}, "hotReload": False, "initResources": {}},
        {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}, "rules": {"enabled": True}},
        {"settings": {"AWS_VPC_K8S_CNI_EXTERNALSNAT": "true", "ADDITIONAL_ENI_TAGS": '{"team": "blue"}'}},
    ],
)
def test_good_values(values: dict[str, Any]) -> None:
    """What the pages show is accepted."""
    assert refused(values) == []


@pytest.mark.parametrize(
    "values",
    [
        {"clustername": "prod"},
        {"networkPolicy": "none"},
        {"settings": {"NETWORK_POLICY_ENFORCING_MODE": "strict"}},
        {"podSecurityGroups": "strict"},
        {"podSecurityGroups": {"mode": "true"}},
        {"podSecurityGroups": {"source": "kubelet"}},
        {"settings": {"ENABLE_POD_ENI": "true"}},
        {"extraEnv": [{"name": "VPC_IPAMD_KUBELET_PODS_SOCKET", "value": "/run/x/y.sock"}]},
        {"image": {"digest": "latest"}},
        {"settings": {"WARM_ENI_TARGET": 1}},
        {"settings": {"CRI_SOCKET": "/run/x/y.sock"}},
        {"settings": {"warm_eni_target": "1"}},
        {"settings": {"WARM_ENI_TARGET": "1\nWARM_IP_TARGET=2"}},
        {"settings": {"AWS_REGION": "us-west-2"}},
        {"settings": {"VPC_IPAMD_SETTINGS_FILE": "/x"}},
        {"extraEnv": [{"name": "CRI_SOCKET", "value": "/run/x/y.sock"}]},
        {"image": {"pullPolicy": "Sometimes"}},
        {"imagePullSecrets": ["registry"]},
        {"fullnameOverride": "VPC_ipamd"},
        {"fullnameOverride": "a" * 41},
        {"updateStrategy": {"type": "Recreate"}},
        {"updateStrategy": {"maxSurge": 1}},
        {"updateStrategy": {"maxUnavailable": "0%"}},
        {"podLabels": {"app.kubernetes.io/name": "other"}},
        {"podLabels": {"team": "a b"}},
        {"nodeSelector": {"gpu": True}},
        {"tolerations": [{"operator": "Exist"}]},
        {"hotReload": "yes"},
        {"podMonitor": {"interval": "often"}},
        {"dashboard": {"labels": {}}},
        {"priorityClassName": ""},
        {"serviceAccount": {"annotation": {}}},
        {"runtime": {"socket": "unix:///run/crio/crio.sock"}},
        {"network": {"zones": {"us-west-2a": {"subnets": "subnet-0a1b"}}}},
        {"resources": {"limits": {"memory": "lots"}}},
        {"sweeper": {"enabled": True}},
        {"sweeper": {"enabled": True, "vpcId": "vpc-0a1b", "region": "us-west-2"}},
    ],
)
def test_bad_values(values: dict[str, Any]) -> None:
    """A misspelt name, a wrong type, a variable that has a value of its own, a sweeper that does not know its cluster."""
    assert refused(values)


def test_templates_use_declared_values_only() -> None:
    """Each `.Values` of a template is in values.yaml and in the schema, and each value is used."""
    used = {name for path in CHART.rglob("templates/*") for name in re.findall(r"\.Values((?:\.\w+)+)", path.read_text())}
    tops = {name.split(".")[1] for name in used}
    assert tops == set(VALUES) == set(SCHEMA["properties"]) - {"global"}
    for name in used:
        value: Any = VALUES
        for part in name.split(".")[1:]:
            assert part in value, name
            value = value[part]


def _closed(schema: dict[str, Any], path: str = "") -> list[str]:
    """Objects with named fields that would take a field of another name in silence."""
    found = []
    if "properties" in schema and path and schema.get("additionalProperties") is not False:
        found.append(path)
    for name, each in schema.get("properties", {}).items():
        found += _closed(each, f"{path}.{name}")
    return found


def test_the_schema_takes_no_other_names() -> None:
    """At any depth: a misspelt value is an error, not a default."""
    assert _closed(SCHEMA) == []
    assert SCHEMA["additionalProperties"] is False


def test_the_charts_copies_are_those_of_kustomize() -> None:
    """Rules and dashboard; `make docs` copies them."""
    for name in ("rules.yaml", "dashboard.json"):
        assert (CHART / "files" / name).read_bytes() == (MANIFESTS / "monitoring" / name).read_bytes()


def test_defaults_are_those_of_the_base() -> None:
    """Versions, resources and the CRI socket."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == ipamd.__version__
    assert VALUES["resources"] == container()["resources"]
    assert VALUES["runtime"]["socket"] == environment()["CRI_SOCKET"]
    assert VALUES["portmap"] == environment()["ENABLE_PORTMAP_PLUGIN"]


def test_reserved_settings_exist() -> None:
    """Variables that have a value of their own are settings of the daemon, and those that the base sets are among them."""
    reserved = set(SCHEMA["properties"]["settings"]["propertyNames"]["not"]["enum"])
    assert reserved <= {line.env for line in describe(Settings(), {})}
    assert set(environment()) <= reserved
