"""Values that only the code of amazon-vpc-cni-k8s accepts mean the same here, and what differs is reported."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode
from ipamd.settings import Settings, describe, differences, load
from ipamd.settings.upstream_values import LOWEST, adapt
from tests.errors import failed


@pytest.mark.parametrize("name", LOWEST)
def test_a_negative_number_is_not_set(name: str) -> None:
    """Its documentation: a value that is not positive is the same as none."""
    assert load({name: "-1"}) == load({name: "-100"}) == Settings()
    assert differences({name: "-1"}) == ()


def test_pods_of_ipv6_need_one_setting() -> None:
    """Its manifest for IPv6 may leave ENABLE_IPv4 out."""
    network = load({"ENABLE_IPv6": "true"}).network
    assert (network.ipv4, network.ipv6) == (False, True)
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)):
        load({"ENABLE_IPv6": "true", "ENABLE_IPv4": "true"})


def test_metrics_are_turned_off_by_either_name() -> None:
    """DISABLE_METRICS is ours by another name; an address that is given wins, and is reported."""
    assert load({"DISABLE_METRICS": "True"}).daemon.metrics_address == "off"
    given = {"DISABLE_METRICS": "true", "VPC_IPAMD_METRICS_ADDRESS": ":9100"}
    assert load(given).daemon.metrics_address == ":9100"
    assert len(differences(given)) == 2


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("10.0.0.9", "https://10.0.0.9"),
        ("10.0.0.9:8443", "https://10.0.0.9:8443"),
        ("ec2.example.com/path", "https://ec2.example.com/path"),
        ("http://10.0.0.9", "http://10.0.0.9"),
    ],
)
def test_an_endpoint_without_a_scheme(given: str, url: str) -> None:
    """A bare address is reached by https."""
    assert load({"AWS_EC2_ENDPOINT": given}).cloud.ec2_endpoint == url


@pytest.mark.parametrize("given", ["a b", "10.0.0.9:99999"])
def test_an_endpoint_that_is_none(given: str) -> None:
    """It is refused as it was given."""
    with pytest.raises(SettingsError) as refusal:
        load({"AWS_EC2_ENDPOINT": given})
    assert f"AWS_EC2_ENDPOINT={given!r}" in refusal.value.details


def test_what_is_no_cidr_is_skipped() -> None:
    """As its documentation says; the rest of the list holds."""
    given = {"AWS_EXTERNAL_SERVICE_CIDRS": "10.0.0.0/8, abcd,10.1.0.0/33, 192.0.2.0/24"}
    assert load(given).network.external_service_cidrs == (IPv4Network("10.0.0.0/8"), IPv4Network("192.0.2.0/24"))
    (difference,) = differences(given)
    assert "abcd, 10.1.0.0/33" in difference


def test_a_reserved_tag_is_skipped() -> None:
    """As its documentation says; EC2's own reservation (aws:) is refused."""
    given = {"ADDITIONAL_ENI_TAGS": '{"k8s.amazonaws.com/x": "1", "team": "blue"}'}
    assert load(given).cloud.additional_tags == (("team", "blue"),)
    assert len(differences(given)) == 1
    with pytest.raises(SettingsError):
        load({"ADDITIONAL_ENI_TAGS": '{"k8s.amazonaws.com/x": "1", "aws:x": "blue"}'})


@pytest.mark.parametrize("mode", ["standard", "strict"])
def test_what_an_agent_cannot_filter_is_reported(mode: str) -> None:
    """The agent refuses such pods itself, as it does beside amazon-vpc-cni-k8s (I21)."""
    given = {"NETWORK_POLICY_ENFORCING_MODE": mode, "AWS_VPC_K8S_CNI_VETHPREFIX": "cni", "ENABLE_BANDWIDTH_PLUGIN": "true"}
    settings = load(given)
    assert (settings.policy.is_on, settings.network.pod_veth_names, settings.daemon.bandwidth) == (True, True, True)
    assert len(differences(given)) == 2
    assert differences(given | {"VPC_IPAMD_POLICY_AGENT": "absent"}) == ()


def test_without_an_agent_by_an_explicit_value() -> None:
    """Pods are unfiltered only where a setting says so, and never in strict mode (I21)."""
    policy = load({"NETWORK_POLICY_ENFORCING_MODE": "standard", "VPC_IPAMD_POLICY_AGENT": "absent"}).policy
    assert (policy.is_on, policy.is_unfiltered) == (False, True)
    assert not load({"VPC_IPAMD_POLICY_AGENT": "absent"}).policy.is_unfiltered
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)):
        load({"NETWORK_POLICY_ENFORCING_MODE": "strict", "VPC_IPAMD_POLICY_AGENT": "absent"})


def test_nothing_is_provisioned() -> None:
    """The planner learns it."""
    settings = load({"DISABLE_NETWORK_RESOURCE_PROVISIONING": "true"})
    assert settings.pool_settings(max_pods=29).is_provisioning_disabled


def test_an_adapted_value_comes_from_where_it_was_given() -> None:
    """`ipamctl config` shows the value in force, with its origin."""
    given = {"NETWORK_POLICY_ENFORCING_MODE": "standard", "DISABLE_METRICS": "true", "AWS_EC2_ENDPOINT": "10.0.0.9"}
    lines = {line.env: line for line in describe(load(given), given)}
    for name, value in (
        ("VPC_IPAMD_POD_VETH_NAMES", "true"),
        ("VPC_IPAMD_METRICS_ADDRESS", "off"),
        ("AWS_EC2_ENDPOINT", "https://10.0.0.9"),
    ):
        assert (lines[name].value, lines[name].origin) == (value, "environment")


def test_what_nobody_can_mean_is_left_for_its_parser() -> None:
    """A translation never fails and never grows a value."""
    given = {name: text for name in (*LOWEST, "AWS_EC2_ENDPOINT", "ADDITIONAL_ENI_TAGS") for text in ("x" * 100_000,)}
    assert adapt(given).given == given
