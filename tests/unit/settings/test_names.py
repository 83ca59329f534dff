"""Misspelt names are refused with the nearest, and what others put into a pod's environment is left alone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES

from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode
from ipamd.settings import Settings, load
from ipamd.settings.former_names import FORMER_NAMES
from ipamd.settings.unknown_names import nearest, ours, unknown
from ipamd.settings.upstream import UPSTREAM
from tests.errors import failed

MISSPELT = {
    "WARM_ENI_TARGETT": "WARM_ENI_TARGET",
    "WARM_IP_TARGT": "WARM_IP_TARGET",
    "warm_ip_target": "WARM_IP_TARGET",
    "WARM-IP-TARGET": "WARM_IP_TARGET",
    "WARM_IP": "WARM_IP_TARGET",
    "WARM_POOL": "WARM_IP_TARGET",
    "VPC_IPAMD_LOG": "VPC_IPAMD_LOG_LEVEL",
    "MINIMUM_IP_TARGETS": "MINIMUM_IP_TARGET",
    "MINIUMM_IP_TARGET": "MINIMUM_IP_TARGET",
    "VPC_IPAMD_MAX_POD": "VPC_IPAMD_MAX_PODS",
    "MAX_ENIS": "MAX_ENI",
    "ENABLE_PREFIX_DELEGATON": "ENABLE_PREFIX_DELEGATION",
    "ENABLE_IPV6": "ENABLE_IPv6",
    "ENABLE_POD_ENIS": "ENABLE_POD_ENI",
    "AWS_VPC_K8S_CNI_EXTERNAL_SNAT": "AWS_VPC_K8S_CNI_EXTERNALSNAT",
    "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CONFIG": "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG",
    "VPC_IPAMD_LOGLEVEL": "VPC_IPAMD_LOG_LEVEL",
    "IP_COOLDOWN_PERIODS": "IP_COOLDOWN_PERIOD",
    "VPC_IPAMD_CRI_SOCKETS": "VPC_IPAMD_CRI_SOCKET",
}

OF_OTHERS = [
    "PATH",
    "HOSTNAME",
    "PYTHONUNBUFFERED",
    "SSL_CERT_FILE",
    "HTTP_PROXY",
    "NODE_NAME",
    "POD_IP",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_USE_FIPS_ENDPOINT",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_ACCESS_KEY_ID",
    "AWS_VPC_ID",
    "ENABLE_SOMETHING",
    "DISABLE_SOMETHING",
    "MINIMUM_AGE",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_PORT_443_TCP_ADDR",
    "VPC_IPAMD_SERVICE_HOST",
    "VPC_IPAMD_SERVICE_PORT",
    "VPC_IPAMD_SERVICE_PORT_METRICS",
    "VPC_IPAMD_PORT",
    "VPC_IPAMD_PORT_61678_TCP",
    "VPC_IPAMD_PORT_61678_TCP_PROTO",
    "WARM_POOL_SERVICE_HOST",
    "W" * 5000,
    "\udc80",
]


@pytest.mark.parametrize("name", MISSPELT)
def test_misspelt(name: str) -> None:
    """Refused, with the name that was meant."""
    with pytest.raises(SettingsError) as refusal:
        load({name: "1"})
    assert refusal.value.details == f"{name}: there is no such setting; did you mean {MISSPELT[name]}?"


@pytest.mark.parametrize("name", FORMER_NAMES)
def test_a_former_name(name: str, tmp_path: Path) -> None:
    """Refused with the name that the setting has now, in the environment and in the file; ignored it would be found in production."""
    file = tmp_path / "settings"
    file.write_text(f"{name}=1\n")
    for given in ({name: "1"}, {"VPC_IPAMD_SETTINGS_FILE": str(file)}):
        with pytest.raises(SettingsError) as refusal:
            load(given)
        assert refusal.value.details.startswith(f"{name}: ")
        assert FORMER_NAMES[name] in refusal.value.details.split()
    assert load({name: ""}) == Settings()


def test_former_names_lead_to_settings() -> None:
    """Each row leads to a setting that there is, and none hides one; amazon-vpc-cni-k8s has no setting of a former name."""
    known = ours() | {row.name for row in UPSTREAM}
    assert set(FORMER_NAMES.values()) <= ours()
    assert not known & set(FORMER_NAMES)


@pytest.mark.parametrize("name", ["AWS_VPC_K8S_CNI_LOG_LEVEL", "AWS_VPC_CNI_LOG_LEVEL", "aws-vpc-k8s-cni-loglevel"])
def test_one_that_means_nothing_here_says_what_does(name: str) -> None:
    """The nearest may be a name of amazon-vpc-cni-k8s that has no effect: its row says what to set instead."""
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)):
        load({name: "1"})


@pytest.mark.parametrize("name", OF_OTHERS)
def test_left_alone(name: str) -> None:
    """What no misspelt setting looks like changes nothing."""
    assert load({name: "1"}) == Settings()


def test_the_sdks_names_are_left_alone() -> None:
    """None of the variables that botocore reads looks like a misspelt setting, but for the one that is ours too."""
    names = {name for row in BOTOCORE_DEFAUT_SESSION_VARIABLES.values() if row[1] for name in [row[1]] if isinstance(name, str)}
    names |= {name for row in BOTOCORE_DEFAUT_SESSION_VARIABLES.values() if isinstance(row[1], list) for name in row[1]}
    assert len(names) > 20
    assert unknown(dict.fromkeys(names, "x"), is_settings_file=False) == []


def test_this_environment_is_left_alone() -> None:
    """Whatever this machine has, it is no setting of ours."""
    assert unknown({name: "x" for name in os.environ if name not in ours()}, is_settings_file=False) == []


def test_a_large_environment_is_read_quickly() -> None:
    """A pod's environment may have thousands of variables; measured: 30 ms for 500 that are as long as settings."""
    began = time.process_time()
    load({f"VAR_{number}_SOME_LONG_NAME": "x" for number in range(500)})
    assert time.process_time() - began < 2.0


def test_empty_is_not_set() -> None:
    """A misspelt name without a value is nothing in the environment; in the file it is a line too many."""
    assert load({"WARM_ENI_TARGETT": ""}) == Settings()
    assert unknown({"WARM_ENI_TARGETT": ""}, is_settings_file=True) != []


def test_every_known_name_is_accepted() -> None:
    """None of the known names is taken for a misspelt other."""
    assert (
        unknown(dict.fromkeys([*ours(), *(row.name for row in UPSTREAM), "VPC_IPAMD_FAILPOINT"], "x"), is_settings_file=True)
        == []
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [("MAX_ENI", "MAX_EIN"), ("MAX_ENI", "MAX_ENII"), ("MAX_ENI", "MAX_EN"), ("MAX_ENI", "MAX_END"), ("MAX_ENI", "max-eni")],
)
def test_one_mistake(one: str, other: str) -> None:
    """A swap, a character too many, too few or another, and the case are one mistake at most."""
    assert nearest(other, [one]) == one
    assert nearest(other + "XX", [one]) == ""


def test_all_kinds_at_once() -> None:
    """Types, bounds, contradictions, names, refused modes, the SDK's variables: one error names them all."""
    with pytest.raises(SettingsError) as refusal:
        load(
            {
                "WARM_IP_TARGET": "lots",
                "MAX_ENI": "1x",
                "POD_MTU": "9001",
                "AWS_VPC_ENI_MTU": "1500",
                "WARM_ENI_TARGETT": "1",
                "ENABLE_IMDS_ONLY_MODE": "true",
                "AWS_REGION": "us west",
                "AWS_ENDPOINT_URL_EC2": "nowhere",
                "AWS_STS_REGIONAL_ENDPOINTS": "global",
                "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "ipv9",
                "AWS_DEFAULTS_MODE": "fast",
                "VPC_IPAMD_SETTINGS_FILE": "/there/is/none",
            }
        )
    named = [problem.replace("=", ": ").split(": ")[0] for problem in refusal.value.details.split("; ")]
    for name in (
        "WARM_IP_TARGET",
        "MAX_ENI",
        "POD_MTU",
        "WARM_ENI_TARGETT",
        "ENABLE_IMDS_ONLY_MODE",
        "AWS_REGION",
        "AWS_ENDPOINT_URL_EC2",
        "AWS_STS_REGIONAL_ENDPOINTS",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
        "AWS_DEFAULTS_MODE",
    ):
        assert named.count(name) == 1, refusal.value.details
    assert "/there/is/none cannot be read: No such file or directory" in refusal.value.details
    assert refusal.value.message == "wrong settings (11)"
