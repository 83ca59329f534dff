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
        {"settings": {"ENABLE_PREFIX_DELEGATION": "true"}, "runtime": {"socket": "/run/crio/crio.sock"}},
        {"settings": {"ENABLE_IPv4": "false", "ENABLE_IPv6": "true", "ENABLE_V4_EGRESS": "true"}},
        {"network": {"zones": {"us-west-2a": {"subnet": "subnet-0a1b"}}, "primaryEniCarriesPods": False}},
        {"image": {"repository": "registry.example/vpc-ipamd", "digest": "sha256:" + "0" * 64}, "maxUnavailable": 1},
    ],
)
def test_good_values(values: dict[str, Any]) -> None:
    """What the pages show is accepted."""
    assert refused(values) == []


@pytest.mark.parametrize(
    "values",
    [
        {"clustername": "prod"},
        {"image": {"digest": "latest"}},
        {"settings": {"WARM_ENI_TARGET": 1}},
        {"settings": {"CRI_SOCKET": "/run/x/y.sock"}},
        {"settings": {"warm_eni_target": "1"}},
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
