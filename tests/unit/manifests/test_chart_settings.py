"""The schema of settings beside the daemon: the chart takes what the daemon takes, and refuses what it refuses by its form.

A wrong value that the chart lets through is the worst case of an upgrade: running daemons keep their settings, and the next process to
start ends with status 2.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft7Validator

from ipamd.model.errors import SettingsError
from ipamd.settings import load
from tests.unit.manifests.manifest import MANIFESTS

SCHEMA: dict[str, Any] = json.loads((MANIFESTS / "chart" / "values.schema.json").read_text())
OF_SETTINGS: dict[str, Any] = SCHEMA["properties"]["settings"]["properties"]

VALUES: tuple[Any, ...] = (
    "", "true", "False", "T", True, False, "yes", "on", "off", "none", "0", "1", 0, 1, 5, -1, "-1", "+5", 100_000, 10**14, 1.5,
    "1.5", "0x80", "0xffff", 128, "00", "010", "30s", "x", "/x", "/x/y.conflist", "/", "/x/", "//x", "x/y", "10.0.0.0/16",
    "10.0.0.1/16,10.1.0.0/16", " 10.0.0.0/16 , 10.1.0.0/255.255.0.0 ", "10.0.0.0/33", "10.0.0.0", "2001:db8::/32", "{}",
    '{"a": "b"}', "{", "[]", '[{"type": "tuning"}]', "eni", "eth", "toolong", "http://x:1", "https://x", "http://x?y", "x y",
    "127.0.0.1:61678", ":61678", "[::1]:1", "127.0.0.1", "web", "web,db", " web , db,", ",", "w" * 63, "w" * 64, "web-", "Web",
    "web=cards", "web=cards,db=x", "web=10.0.0.0/24", "web=10.0.0.1", "web,10.0.0.0/8", "web:cards", "prng", "PRNG", "strict",
    "debug", "DEBUG", "info", "required", "auto", "a\nb",
)  # fmt: skip

LEFT_TO_THE_DAEMON = {
    "ENABLE_IPv4": "false needs ENABLE_IPv6",
    "AWS_VPC_K8S_CNI_CONNMARK": "bits of other software",
    "AWS_VPC_K8S_CNI_VETHPREFIX": "names of other links",
    "AWS_EC2_ENDPOINT": "names of hosts",
    "VPC_IPAMD_METRICS_ADDRESS": "names of hosts",
    "VPC_IPAMD_PINNED_ADDRESS_LIST": "true needs a range in VPC_IPAMD_PINNED_ADDRESSES",
    "VPC_IPAMD_PINNED_ADDRESS_TAKE_NAMESPACES": "namespaces that VPC_IPAMD_PINNED_ADDRESSES must have too",
}
"""Settings of which a value may have the right form and be refused, and why a pattern does not say it. Bounds of numbers that stand as
text are left to the daemon for every setting."""


def _text(value: Any) -> str:
    """A value as the chart's templates write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _daemon_takes(name: str, value: Any) -> bool:
    try:
        load({name: _text(value)})
    except SettingsError:
        return False
    return True


def _chart_takes(name: str, value: Any) -> bool:
    return Draft7Validator(OF_SETTINGS[name]).is_valid(value)


def _is_number_as_text(value: Any) -> bool:
    return isinstance(value, str) and value.lstrip("+-").removeprefix("0x").isalnum() and any(map(str.isdecimal, value))


@pytest.mark.parametrize("name", OF_SETTINGS)
def test_the_chart_takes_what_the_daemon_takes(name: str) -> None:
    """As text in one line."""
    texts = [value for value in VALUES if isinstance(value, str) and "\n" not in value]
    assert [value for value in texts if _daemon_takes(name, value) and not _chart_takes(name, value)] == []


@pytest.mark.parametrize("name", sorted(set(OF_SETTINGS) - set(LEFT_TO_THE_DAEMON)))
def test_the_chart_refuses_what_the_daemon_refuses(name: str) -> None:
    """Wrong words, lists, paths and addresses, and numbers out of bounds."""
    values = [value for value in VALUES if not _is_number_as_text(value)]
    assert [value for value in values if _chart_takes(name, value) and not _daemon_takes(name, value)] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ENABLE_IMDS_ONLY_MODE", True),
        ("ENABLE_IMDS_ONLY_MODE", "true"),
        ("MANAGE_UNTAGGED_ENI", False),
        ("ANNOTATE_POD_IP", "yes"),
        ("VPC_IPAMD_POD_POOLS", "web:cards"),
        ("VPC_IPAMD_SNAT_EXEMPT_PODS", "10.0.0.0/33"),
        ("VPC_IPAMD_HISTORY_DIR", "var/lib"),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "169.254.169.254"),
        ("ADDITIONAL_ENI_TAGS", "team=blue"),
        ("MAX_ENI", 100_000),
        ("POD_MTU", 100),
    ],
)
def test_a_value_with_which_no_daemon_starts_is_refused(name: str, value: Any) -> None:
    """Each would end the next process with status 2."""
    assert not _daemon_takes(name, value)
    assert not _chart_takes(name, value)


@pytest.mark.parametrize("name", LEFT_TO_THE_DAEMON)
def test_what_is_left_to_the_daemon_has_a_reason(name: str) -> None:
    """An exception that is none any more is removed."""
    values = [value for value in VALUES if not _is_number_as_text(value)]
    assert [value for value in values if _chart_takes(name, value) and not _daemon_takes(name, value)]
