"""Every setting of amazon-vpc-cni-k8s has one fate, and what is said about it is what happens."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode
from ipamd.settings import Settings, differences, load, without_meaning
from ipamd.settings.unknown_names import ours
from ipamd.settings.upstream import UPSTREAM, Fate, UpstreamSetting
from tests.errors import failed

ALL = {row.name: row for row in UPSTREAM}

ENVIRONMENTS = json.loads((Path(__file__).parent / "upstream_environments.json").read_text())
"""What its four manifests and its chart's default values put into the environment of both containers."""

MANIFEST = {**ENVIRONMENTS["manifests"]["aws-k8s-cni"]["aws-node"], "CLUSTER_NAME": "blue", "VPC_ID": "vpc-0a"}
"""What a node's DaemonSet aws-node has by default, with what EKS adds."""


def test_names_stand_once() -> None:
    """No name has two fates."""
    assert len(ALL) == len(UPSTREAM)


def test_honoured_is_what_is_a_field() -> None:
    """A row says honoured exactly if there is a setting of this name."""
    assert {name for name, row in ALL.items() if row.fate is Fate.HONOURED} == set(ALL) & ours()


def test_no_name_of_theirs_is_ours_by_accident() -> None:
    """A field of `Settings` without our prefix is theirs and honoured, or the AWS SDK's."""
    of_the_sdk = {"AWS_EC2_METADATA_SERVICE_ENDPOINT"}
    assert {name for name in ours() if not name.startswith("VPC_IPAMD_")} - set(ALL) == of_the_sdk


@pytest.mark.parametrize("row", [row for row in UPSTREAM if row.fate is Fate.REFUSED], ids=lambda row: row.name)
def test_refused(row: UpstreamSetting) -> None:
    """What asks for something is refused with what to do instead; what asks for nothing is accepted in silence."""
    asking = "false" if "true" in row.harmless else "true"
    for value in (asking, "junk"):
        with pytest.raises(SettingsError) as refusal:
            load({row.name: value})
        assert refusal.value.details == f"{row.name}={value}: {row.text}"
    for value in row.harmless:
        assert load({row.name: value}) == load({row.name: value.upper()}) == Settings()
        assert without_meaning({row.name: value}) == ""


def test_settings_that_a_refusal_names_exist() -> None:
    """What to do instead names settings that there are."""
    for row in UPSTREAM:
        assert set(re.findall(r"\bVPC_IPAMD_\w+", row.text)) <= ours(), row.name


@pytest.mark.parametrize("row", [row for row in UPSTREAM if row.fate is Fate.WITHOUT_MEANING], ids=lambda row: row.name)
def test_without_meaning(row: UpstreamSetting) -> None:
    """Any value is accepted, and the name is told."""
    assert load({row.name: "true"}) == Settings()
    assert f"here: {row.name} (" in without_meaning({row.name: "true"})


def test_the_manifest_of_amazon_vpc_cni_k8s_carries_over() -> None:
    """Its environment starts this daemon, with links by the names that its policy agent knows; one line names what means nothing."""
    settings = load(MANIFEST)
    assert (settings.policy.mode, settings.policy.is_on, settings.network.pod_veth_names) == ("standard", True, True)
    assert (settings.cloud.cluster_name, settings.pool.warm_prefix_target) == ("blue", 1)
    assert differences(MANIFEST) == ()
    line = without_meaning(MANIFEST)
    assert "\n" not in line
    named = line.partition("here: ")[2].partition(" (")[0].split(", ")
    assert named == sorted(name for name in MANIFEST if ALL[name].fate is Fate.WITHOUT_MEANING)
    assert without_meaning({}) == without_meaning({"WARM_IP_TARGET": "1", "AWS_VPC_K8S_CNI_LOGLEVEL": ""}) == ""


EACH_ENVIRONMENT = [
    pytest.param({**containers["aws-vpc-cni-init"], **containers["aws-node"]}, id=name)
    for name, containers in ENVIRONMENTS["manifests"].items()
] + [pytest.param({**ENVIRONMENTS["chart"]["init"], **ENVIRONMENTS["chart"]["aws-node"]}, id="chart")]

TRUE, FALSE = ("true", "TRUE", "True", "t", "T", "1"), ("false", "FALSE", "False", "f", "F", "0")

DOCUMENTED = {
    **dict.fromkeys(
        (
            "AWS_MANAGE_ENIS_NON_SCHEDULABLE",
            "AWS_VPC_CNI_NODE_PORT_SUPPORT",
            "AWS_VPC_K8S_CNI_EXTERNALSNAT",
            "AWS_VPC_K8S_CNI_CONFIGURE_RPFILTER",
            "DISABLE_INTROSPECTION",
            "DISABLE_METRICS",
            "ENABLE_POD_ENI",
            "DISABLE_TCP_EARLY_DEMUX",
            "ENABLE_SUBNET_DISCOVERY",
            "ENABLE_PREFIX_DELEGATION",
            "DISABLE_NETWORK_RESOURCE_PROVISIONING",
            "ENABLE_BANDWIDTH_PLUGIN",
            "ANNOTATE_POD_IP",
            "ENABLE_NFTABLES",
            "DISABLE_LEAKED_ENI_CLEANUP",
            "ENABLE_V6_EGRESS",
            "ENABLE_V4_EGRESS",
            "DISABLE_POD_V6",
            "ENABLE_MULTI_NIC",
            "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG",
        ),
        ("", *TRUE, *FALSE),
    ),
    "ENABLE_IPv4": ("", *TRUE),
    "ENABLE_IPv6": ("", *FALSE),
    "ENABLE_IMDS_ONLY_MODE": ("", *FALSE),
    "ENI_CONFIG_ANNOTATION_DEF": ("", "k8s.amazonaws.com/eniConfig"),
    "ENI_CONFIG_LABEL_DEF": ("", "topology.kubernetes.io/zone"),
    "HOST_CNI_BIN_PATH": ("", "/host/opt/cni/bin"),
    "HOST_CNI_CONFDIR_PATH": ("", "/host/etc/cni/net.d"),
    "AWS_VPC_ENI_MTU": ("", "576", "9001", "+1500", "01500"),
    "POD_MTU": ("", "576", "9001"),
    "AWS_VPC_K8S_CNI_RANDOMIZESNAT": ("", "prng", "hashrandom", "none", "PRNG"),
    "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS": ("", "10.0.0.0/8", "10.0.0.0/8, 10.1.0.0/16 ", "10.0.0.0/8,2001:db8::/32,junk", ","),
    "AWS_EXTERNAL_SERVICE_CIDRS": ("", "10.0.0.0/32,abcd", "2000::1/128"),
    **dict.fromkeys(
        ("WARM_ENI_TARGET", "WARM_IP_TARGET", "MINIMUM_IP_TARGET", "WARM_PREFIX_TARGET", "MAX_ENI"), ("", "-1", "0", "3", "+3")
    ),
    "IP_COOLDOWN_PERIOD": ("", "0", "30", "600"),
    **dict.fromkeys(
        ("AWS_VPC_K8S_CNI_LOGLEVEL", "AWS_VPC_K8S_PLUGIN_LOG_LEVEL"), ("", "DEBUG", "info", "WARN", "ERROR", "FATAL", "junk")
    ),
    **dict.fromkeys(("AWS_VPC_K8S_CNI_LOG_FILE", "AWS_VPC_K8S_PLUGIN_LOG_FILE"), ("", "stdout", "stderr", "/var/log/x.log")),
    "INTROSPECTION_BIND_ADDRESS": ("", "127.0.0.1:61679", "unix:/run/x.sock"),
    "AWS_VPC_K8S_CNI_VETHPREFIX": ("", "eni", "cni", "Pod1"),
    "ADDITIONAL_ENI_TAGS": ("", "{}", '{"tag_key": "tag_val"}', '{"k8s.amazonaws.com/x": "1", "a": ""}'),
    "CLUSTER_NAME": ("", "blue"),
    "CLUSTER_ENDPOINT": ("", "https://example.invalid"),
    "POD_SECURITY_GROUP_ENFORCING_MODE": ("", "strict", "standard"),
    "AWS_EC2_ENDPOINT": (
        "",
        "https://localhost:8080",
        "http://ec2.us-west-2.customaws.com",
        "10.0.0.9",
        "10.0.0.9:8080",
        "ec2.example.com",
    ),
    "NETWORK_POLICY_ENFORCING_MODE": ("", "none", "standard", "strict", "STANDARD"),
}
"""Each variable of its README with values that this documents, or that its code reads without complaint."""


@pytest.mark.parametrize("environment", EACH_ENVIRONMENT)
def test_each_environment_starts(environment: dict[str, str]) -> None:
    """The four manifests and the chart's default values are read, and nothing in them does something else here."""
    assert load(environment).policy.mode == "standard"
    assert differences(environment) == ()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_each_documented_value_starts(name: str) -> None:
    """In the manifest's environment, and alone."""
    for value in DOCUMENTED[name]:
        load(MANIFEST | {name: value})
        load({name: value})


def test_every_documented_name_is_listed() -> None:
    """What its README documents is what has a row here, but for what its code alone reads."""
    undocumented = {
        "AWS_VPC_K8S_CNI_BACKING_STORE",
        "AWS_VPC_K8S_CNI_CONNMARK",
        "HTTP_TIMEOUT",
        "MANAGE_UNTAGGED_ENI",
        "VPC_CNI_VERSION",
        "VPC_ID",
        "MY_NODE_NAME",
        "MY_POD_NAME",
        "AWS_VPC_K8S_EGRESS_V4_PLUGIN_LOG_FILE",
        "AWS_VPC_K8S_EGRESS_V6_PLUGIN_LOG_FILE",
        "USE_CLOUDWATCH",
        "USE_PROMETHEUS",
        "METRIC_UPDATE_INTERVAL",
        "AWS_CLUSTER_ID",
    }
    assert set(DOCUMENTED) == set(ALL) - undocumented


@pytest.mark.parametrize("row", [row for row in UPSTREAM if row.fate is Fate.DIFFERENT], ids=lambda row: row.name)
def test_different(row: UpstreamSetting) -> None:
    """What asks for something starts the daemon and is reported once; what asks for nothing is silent; the rest is refused."""
    for value in TRUE:
        load({row.name: value})
        assert differences({row.name: value}) == (f"{row.name}={value}: {row.text}",)
    for value in ("", *FALSE):
        assert load({row.name: value}) == Settings()
        assert differences({row.name: value}) == ()
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)):
        load({row.name: "junk"})


def test_advice_for_metadata_only_works() -> None:
    """Whoever does what the refusal says has a daemon that makes nothing at EC2 (I7)."""
    asked = MANIFEST | {"ENABLE_IMDS_ONLY_MODE": "true"}
    with pytest.raises(SettingsError) as refusal:
        load(asked)
    assert "remove ENABLE_IMDS_ONLY_MODE, set DISABLE_NETWORK_RESOURCE_PROVISIONING=true" in refusal.value.details
    del asked["ENABLE_IMDS_ONLY_MODE"]
    assert load(asked | {"DISABLE_NETWORK_RESOURCE_PROVISIONING": "true"}).pool.provisioning_disabled
