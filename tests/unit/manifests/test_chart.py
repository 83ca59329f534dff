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
from tests.unit.manifests.manifest import MANIFESTS, container, environment, init_container
from tests.unit.manifests.monitoring import DASHBOARDS
from tests.unit.manifests.test_kubernetes_schemas import VERSIONS
from tests.zones import ZONE_NAMES
from tools.chart_schema import BY_VALUES

CHART = MANIFESTS / "chart"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())

AGENT = {"enabled": True, "image": {"repository": "registry.example/agent", "tag": "v1.4.2"}}
"""The value for the network policy agent in the pod."""


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
        {"clusterName": "prod", "inventory": {"enabled": True, "vpcId": "vpc-0a1b", "region": "us-west-2"}},
        {"inventory": {"subnets": ["subnet-0a1b", "subnet-0a1c"], "resources": {"limits": {"memory": 536870912}}}},
        {"inventory": {"subnets": ["all"]}},
        {"networkPolicy": "strict"},
        {"podSecurityGroups": {"mode": "strict"}},
        {"podSecurityGroups": {"mode": "strict", "guard": False}},
        {"podSecurityGroups": {"mode": "standard", "source": "kubelet"}},
        {"settings": {"ENABLE_PREFIX_DELEGATION": "true"}, "runtime": {"socket": "/run/crio/crio.sock"}},
        {"settings": {"ENABLE_IPv4": "false", "ENABLE_IPv6": "true", "ENABLE_V4_EGRESS": "true"}},
        {"network": {"zones": {"us-west-2a": {"subnet": "subnet-0a1b"}}, "primaryEniCarriesPods": False}},
        {"network": {"zones": {zone: {"subnet": "subnet-0a1b"} for zone in (*ZONE_NAMES, "default")}}},
        {"image": {"repository": "registry.example/vpc-ipamd", "digest": "sha256:" + "0" * 64, "pullPolicy": "Always"}},
        {"updateStrategy": {"type": "OnDelete"}, "imagePullSecrets": [{"name": "registry"}], "priorityClassName": "mine"},
        {"updateStrategy": {"maxUnavailable": 1}, "nameOverride": "ipam", "fullnameOverride": "ipam-gpu"},
        {"nodeSelector": {"example.com/group": "gpu"}, "affinity": {"nodeAffinity": {}}, "tolerations": [{"key": "gpu"}]},
        {"seLinuxType": "spc_t"},
        {"podLabels": {"team": "net"}, "podAnnotations": {"x/y": "any text"}, "extraEnv": [{"name": "AWS_REGION", "value": "r"}]},
        {"serviceAccount": {"create": False, "name": "mine"}, "hotReload": False, "initResources": {}},
        {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}, "rules": {"enabled": True}},
        {"settings": {"AWS_VPC_K8S_CNI_EXTERNALSNAT": "true", "ADDITIONAL_ENI_TAGS": '{"team": "blue"}'}},
        {"settings": {"VPC_IPAMD_WARM_TARGET_MODE": "Auto", "WARM_ENI_TARGET": "-1", "MAX_ENI": ""}},
        {
            "settings": {"WARM_ENI_TARGET": 1, "ENABLE_PREFIX_DELEGATION": True, "AWS_VPC_CNI_NODE_PORT_SUPPORT": True},
            "portmap": False,
        },
        {"extraEnv": [{"name": "GOMAXPROCS", "value": 2}, {"name": "AWS_USE_FIPS_ENDPOINT", "value": True}]},
        {"healthPort": 61677, "startupProbe": {"failureThreshold": 90}, "readinessProbe": {"successThreshold": 2}},
        {
            "securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "x.json"}},
            "podSecurityContext": {"runAsGroup": 0},
        },
        {
            "extraVolumes": [{"name": "ca", "secret": {"secretName": "ca"}}],
            "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
        },
        {"resources": {"limits": {"memory": "1.5e8", "ephemeral-storage": "1Ti"}}},
        {
            "commonLabels": {"team": "net"},
            "podMonitor": {"scrapeTimeout": "5s", "sampleLimit": 20000, "jobLabel": "app.kubernetes.io/name"},
        },
        {"podMonitor": {"metricRelabelings": [{"sourceLabels": ["__name__"], "regex": "process_.*", "action": "drop"}]}},
        {"network": {"pools": {"cards": {"subnets": ["subnet-0a1b"], "securityGroups": ["sg-0a1b"], "maxEnis": 2}}}},
        {"network": {"zones": {"us-west-2a": {"subnet": "subnet-0a1b"}}, "pools": {"batch": {"subnetTags": {"team": "batch"}}}}},
        {"networkPolicy": "standard", "networkPolicyAgent": AGENT},
        {"resources": {"requests": {"cpu": 0.5}, "limits": {"cpu": 2, "memory": 268435456}}},
    ],
)
def test_good_values(values: dict[str, Any]) -> None:
    """What the pages show is accepted."""
    assert refused(values) == []


@pytest.mark.parametrize(
    "values",
    [
        {"clustername": "prod"},
        {"network": {"pools": {"default": {"subnets": ["subnet-0a1b"]}}}},
        {"network": {"pools": {"cards": {"subnets": ["subnet-0a1b"], "subnetTags": {"a": "b"}}}}},
        {"network": {"pools": {"cards": {"subnets": ["subnet-0a1b"], "warmEniTarget": 1}}}},
        {"networkPolicy": "none"},
        {"settings": {"NETWORK_POLICY_ENFORCING_MODE": "strict"}},
        {"podSecurityGroups": "strict"},
        {"podSecurityGroups": {"mode": "true"}},
        {"podSecurityGroups": {"facts": "kubelet"}},
        {"podSecurityGroups": {"guard": "yes"}},
        {"settings": {"ENABLE_POD_ENI": "true"}},
        {"extraEnv": [{"name": "VPC_IPAMD_KUBELET_PODS_SOCKET", "value": "/run/x/y.sock"}]},
        {"image": {"digest": "latest"}},
        {"settings": {"WARM_ENI_TARGET": 1.5}},
        {"settings": {"WARM_ENI_TARGET": True}},
        {"settings": {"ENABLE_PREFIX_DELEGATION": 2}},
        {"healthPort": 0},
        {"healthPort": 65536},
        {"livenessProbe": {"httpGet": {"port": 1}}},
        {"livenessProbe": {"periodSeconds": 0}},
        {"securityContext": {"runAsUsr": 1}},
        {"securityContext": {"seLinuxOptions": {"typ": "spc_t"}}},
        {"securityContext": {"seccompProfile": {"tpye": "RuntimeDefault"}}},
        {"podSecurityContext": {"sysctls": [{"name": "net.core.somaxconn", "vlaue": "1"}]}},
        {"extraEnv": [{"name": "AWS_REGION", "valueFrom": {"feildRef": {"fieldPath": "metadata.name"}}}]},
        {"podSecurityContext": {"privileged": True}},
        {"extraVolumes": [{"secret": {"secretName": "ca"}}]},
        {"extraVolumeMounts": [{"name": "ca", "mountPath": "ca"}]},
        {"commonLabels": {"app.kubernetes.io/managed-by": "me"}},
        {"podMonitor": {"metricRelabelings": [{"source_labels": ["x"]}]}},
        {"networkPolicyAgent": AGENT},
        {"networkPolicy": "standard", "networkPolicyAgent": {"enabled": True}},
        {"networkPolicy": "standard", "networkPolicyAgent": {"enabled": True, "image": {"repository": "r/agent"}}},
        {"networkPolicy": "standard", "networkPolicyAgent": AGENT, "serviceAccount": {"create": False}},
        {"settings": {"VPC_IPAMD_CRI_SOCKET": "/run/x/y.sock"}},
        {"settings": {"warm_eni_target": "1"}},
        {"settings": {"WARM_ENI_TARGET": "1\nWARM_IP_TARGET=2"}},
        {"settings": {"AWS_REGION": "us-west-2"}},
        {"settings": {"VPC_IPAMD_SETTINGS_FILE": "/x"}},
        {"settings": {"WARM_ENI_TARGTE": "1"}},
        {"settings": {"WARM_ENI_TARGET": "one"}},
        {"settings": {"ENABLE_PREFIX_DELEGATION": "yes"}},
        {"settings": {"VPC_IPAMD_WARM_TARGET_MODE": "automatic"}},
        {"extraEnv": [{"name": "VPC_IPAMD_LOG_LEVLE", "value": "DEBUG"}]},
        {"resources": {"requests": {"cpu": -1}}},
        {"extraEnv": [{"name": "VPC_IPAMD_CRI_SOCKET", "value": "/run/x/y.sock"}]},
        {"image": {"pullPolicy": "Sometimes"}},
        {"imagePullSecrets": ["registry"]},
        {"fullnameOverride": "VPC_ipamd"},
        {"fullnameOverride": "a" * 41},
        {"updateStrategy": {"type": "Recreate"}},
        {"updateStrategy": {"maxSurge": 1}},
        {"updateStrategy": {"maxUnavailable": "0%"}},
        {"podLabels": {"app.kubernetes.io/name": "other"}},
        {"podLabels": {"team": "a b"}},
        {"seLinuxType": "system_u:system_r:spc_t:s0"},
        {"nodeSelector": {"gpu": True}},
        {"tolerations": [{"operator": "Exist"}]},
        {"hotReload": "yes"},
        {"podMonitor": {"interval": "often"}},
        {"dashboard": {"labels": {}}},
        {"rules": {"runbookBaseUrl": "docs"}},
        {"rules": {"runbookPath": "/docs/metrics.md"}},
        {"rules": {"runbookPath": "docs/metrics.md#top"}},
        {"priorityClassName": ""},
        {"serviceAccount": {"annotation": {}}},
        {"runtime": {"socket": "unix:///run/crio/crio.sock"}},
        {"network": {"zones": {"us-west-2a": {"subnets": "subnet-0a1b"}}}},
        {"network": {"zones": {"US-WEST-2A": {"subnet": "subnet-0a1b"}}}},
        {"resources": {"limits": {"memory": "lots"}}},
        {"sweeper": {"enabled": True}},
        {"sweeper": {"enabled": True, "vpcId": "vpc-0a1b", "region": "us-west-2"}},
        {"inventory": {"enabled": True}},
        {"inventory": {"enabled": True, "vpcId": "vpc-0a1b", "region": "us-west-2"}},
        {"clusterName": "prod", "inventory": {"enabled": True, "vpcId": "vpc-0a1b"}},
        {"inventory": {"subnets": ["sg-0a1b"]}},
        {"inventory": {"subnets": "subnet-0a1b"}},
    ],
)
def test_bad_values(values: dict[str, Any]) -> None:
    """A misspelt name, a wrong type, a variable that has a value of its own, a job that does not know its cluster."""
    assert refused(values)


def test_every_setting_is_known_to_the_schema() -> None:
    """By its name, unless the chart sets it by a value of its own; each default is a value that the schema takes."""
    properties = SCHEMA["properties"]["settings"]["properties"]
    lines = describe(Settings(), {})
    assert {line.env for line in lines} - set(BY_VALUES) <= set(properties)
    assert not set(properties) & set(BY_VALUES)
    defaults = {line.env: line.default for line in lines if line.env in properties}
    assert refused({"settings": defaults}) == []


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
    """Rules, dashboards and the guard; `make docs` copies them."""
    monitoring_files = [("monitoring", name) for name in ("rules.yaml", *DASHBOARDS)]
    for folder, name in (*monitoring_files, ("pod-eni", "guard.yaml")):
        assert (CHART / "files" / name).read_bytes() == (MANIFESTS / folder / name).read_bytes()


def test_the_guard_is_on_where_pods_have_security_groups() -> None:
    """The template asks for the mode and the value, which is true, and renames every object of the copy."""
    assert VALUES["podSecurityGroups"]["guard"] is True
    template = (CHART / "templates" / "guard.yaml").read_text()
    assert "if and .Values.podSecurityGroups.mode .Values.podSecurityGroups.guard" in template
    guard = list(yaml.safe_load_all((CHART / "files" / "guard.yaml").read_text()))
    assert {one["metadata"]["name"] for one in guard} == {"vpc-ipamd-pod-eni-guard"}
    assert 'replace "vpc-ipamd-pod-eni-guard"' in template


def test_defaults_are_those_of_the_base() -> None:
    """Versions, resources, security contexts, probes and the CRI socket."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == ipamd.__version__
    assert chart["kubeVersion"] == f">={VERSIONS[0]}.0-0"
    assert [chart["home"]] == chart["sources"]
    assert VALUES["resources"] == container()["resources"]
    assert VALUES["securityContext"] == container()["securityContext"]
    assert VALUES["initSecurityContext"] == init_container()["securityContext"]
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert VALUES[name] | {"httpGet": container()[name]["httpGet"]} == container()[name]
        assert VALUES["healthPort"] == container()[name]["httpGet"]["port"]
    assert VALUES["runtime"]["socket"] == environment()["VPC_IPAMD_CRI_SOCKET"]
    assert VALUES["portmap"] == environment()["VPC_IPAMD_ENABLE_PORTMAP_PLUGIN"]


def test_reserved_settings_exist() -> None:
    """Variables that have a value of their own are settings of the daemon, and those that the base sets are among them."""
    reserved = set(SCHEMA["properties"]["extraEnv"]["items"]["properties"]["name"]["not"]["enum"])
    assert reserved <= {line.env for line in describe(Settings(), {})}
    assert set(environment()) <= reserved
