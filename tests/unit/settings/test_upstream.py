"""Every setting of amazon-vpc-cni-k8s has one fate, and what is said about it is what happens."""

from __future__ import annotations

import re

import pytest

from ipamd.model.errors import SettingsError
from ipamd.settings import Settings, load, without_meaning
from ipamd.settings.loading import ours
from ipamd.settings.upstream import FORMER, UPSTREAM, Fate, Row

ALL = {row.name: row for row in UPSTREAM}

MANIFEST = {
    "ADDITIONAL_ENI_TAGS": "{}",
    "ANNOTATE_POD_IP": "false",
    "AWS_VPC_CNI_NODE_PORT_SUPPORT": "true",
    "AWS_VPC_ENI_MTU": "9001",
    "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG": "false",
    "AWS_VPC_K8S_CNI_EXTERNALSNAT": "false",
    "AWS_VPC_K8S_CNI_LOGLEVEL": "DEBUG",
    "AWS_VPC_K8S_CNI_LOG_FILE": "/host/var/log/aws-routed-eni/ipamd.log",
    "AWS_VPC_K8S_CNI_RANDOMIZESNAT": "prng",
    "AWS_VPC_K8S_CNI_VETHPREFIX": "eni",
    "AWS_VPC_K8S_PLUGIN_LOG_FILE": "/var/log/aws-routed-eni/plugin.log",
    "AWS_VPC_K8S_PLUGIN_LOG_LEVEL": "DEBUG",
    "CLUSTER_ENDPOINT": "https://example.invalid",
    "CLUSTER_NAME": "blue",
    "DISABLE_INTROSPECTION": "false",
    "DISABLE_METRICS": "false",
    "DISABLE_NETWORK_RESOURCE_PROVISIONING": "false",
    "ENABLE_IMDS_ONLY_MODE": "false",
    "ENABLE_IPv4": "true",
    "ENABLE_IPv6": "false",
    "ENABLE_MULTI_NIC": "false",
    "ENABLE_POD_ENI": "false",
    "ENABLE_PREFIX_DELEGATION": "false",
    "ENABLE_SUBNET_DISCOVERY": "true",
    "MY_NODE_NAME": "ip-10-0-0-1",
    "MY_POD_NAME": "aws-node-x",
    "NETWORK_POLICY_ENFORCING_MODE": "standard",
    "VPC_CNI_VERSION": "v1.23.1",
    "VPC_ID": "vpc-0a",
    "WARM_ENI_TARGET": "1",
    "WARM_PREFIX_TARGET": "1",
}
"""What a node's DaemonSet aws-node has in its environment by default. Source: amazon-vpc-cni-k8s config/master/aws-k8s-cni.yaml."""


def test_names_stand_once() -> None:
    """No name has two fates."""
    assert len(ALL) == len(UPSTREAM)


def test_honoured_is_what_is_a_field() -> None:
    """A row says honoured exactly if there is a setting of this name."""
    assert {name for name, row in ALL.items() if row.fate is Fate.HONOURED} == set(ALL) & ours()


def test_no_name_of_theirs_is_ours_by_accident() -> None:
    """A field of `Settings` without our prefix is theirs and honoured, or one of these."""
    own = {"WARM_TARGET", "MAX_PODS", "CRI_EVENTS", "CRI_SOCKET", "ENABLE_PORTMAP_PLUGIN", "AWS_EC2_METADATA_SERVICE_ENDPOINT"}
    assert {name for name in ours() if not name.startswith("VPC_IPAMD_")} - set(ALL) == own


@pytest.mark.parametrize("row", [row for row in (*UPSTREAM, *FORMER) if row.fate is Fate.REFUSED], ids=lambda row: row.name)
def test_refused(row: Row) -> None:
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
    for row in (*UPSTREAM, *FORMER):
        assert set(re.findall(r"\bVPC_IPAMD_\w+", row.text)) <= ours(), row.name


@pytest.mark.parametrize("row", [row for row in UPSTREAM if row.fate is Fate.WITHOUT_MEANING], ids=lambda row: row.name)
def test_without_meaning(row: Row) -> None:
    """Any value is accepted, and the name is told."""
    assert load({row.name: "true"}) == Settings()
    assert f"here: {row.name} (" in without_meaning({row.name: "true"})


def test_the_manifest_of_amazon_vpc_cni_k8s_carries_over() -> None:
    """Its environment starts this daemon, once links have the names that its policy agent knows; one line names what means nothing."""
    with pytest.raises(SettingsError, match=r"1 setting.*VPC_IPAMD_POD_VETH_NAMES=true, or remove it"):
        load(MANIFEST)
    settings = load(MANIFEST | {"VPC_IPAMD_POD_VETH_NAMES": "true"})
    assert settings.policy.mode == "standard"
    assert (settings.cloud.cluster_name, settings.pool.warm_prefix_target) == ("blue", 1)
    line = without_meaning(MANIFEST)
    assert "\n" not in line
    named = line.partition("here: ")[2].partition(" (")[0].split(", ")
    assert named == sorted(name for name in MANIFEST if ALL[name].fate is Fate.WITHOUT_MEANING)
    assert without_meaning({}) == without_meaning({"WARM_IP_TARGET": "1", "AWS_VPC_K8S_CNI_LOGLEVEL": ""}) == ""
