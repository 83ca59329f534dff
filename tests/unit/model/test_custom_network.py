"""Custom networking's file: what is read of it, and that everything wrong with it is said at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ipamd.model.errors import SettingsError
from ipamd.model.ids import SubnetId
from ipamd.model.subnets import CustomNetwork, ZoneNetwork, render
from tests.network_files import custom_of
from tests.zones import ZONE_NAMES

GOOD = {
    "zones": {
        "us-west-2a": {"subnet": "subnet-0a", "securityGroups": ["sg-0b", "sg-0a"]},
        "us-west-2-lax-1a": {"subnet": "subnet-0b"},
    },
    "primaryEniCarriesPods": True,
}
ZONES: dict[str, Any] = GOOD["zones"]  # type: ignore[assignment]


def problems_of(document: object) -> list[str]:
    """What the error of a wrong file says, one sentence each."""
    text = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(SettingsError) as refusal:
        custom_of(text, source="network.json")
    assert refusal.value.message.startswith("network.json has ")
    return refusal.value.details.split("; ")


def test_a_good_file_is_read_and_written_back() -> None:
    """Zones, subnets, groups in order; what is written is read as the same."""
    network = custom_of(json.dumps(GOOD), source="x")
    assert network.primary_carries_pods
    assert network.of_zone("us-west-2a") == ZoneNetwork(SubnetId("subnet-0a"), ("sg-0a", "sg-0b"))
    assert network.of_zone("us-west-2-lax-1a") == ZoneNetwork(SubnetId("subnet-0b"))
    assert custom_of(render(network), source="x") == network


@pytest.mark.parametrize("zone", ZONE_NAMES)
def test_every_form_of_a_zone_is_taken(zone: str) -> None:
    """In each partition, local and Wavelength zones, and of a form that nobody has seen yet."""
    network = custom_of(json.dumps({"zones": {zone: {"subnet": "subnet-0a"}}}), source="x")
    assert network.of_zone(zone) == ZoneNetwork(SubnetId("subnet-0a"))


def test_the_primary_eni_carries_no_pods_unless_it_is_said() -> None:
    """The default is that of amazon-vpc-cni-k8s."""
    assert not custom_of(json.dumps({"zones": ZONES}), source="x").primary_carries_pods


@pytest.mark.parametrize(
    ("names", "zone", "expected"),
    [
        (["us-west-2a"], "us-west-2a", "us-west-2a"),
        (["us-west-2a"], "us-west-2b", None),
        (["default"], "us-west-2b", "default"),
        (["default", "us-west-2a"], "us-west-2a", "us-west-2a"),
    ],
)
def test_which_entry_a_zone_gets(names: list[str], zone: str, expected: str | None) -> None:
    """Its own, else `default`, else none: as amazon-vpc-cni-k8s chooses an ENIConfig by name (pkg/eniconfig/eniconfig_test.go)."""
    zones = {name: ZoneNetwork(SubnetId(f"subnet-{number}")) for number, name in enumerate(names)}
    assert CustomNetwork(zones).of_zone(zone) == (zones[expected] if expected else None)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("{", "it is no JSON"),
        ("[1]", "must be an object"),
        ("null", "must be an object"),
        ("[" * 100000, "it is no JSON"),
        ({}, "zones is missing"),
        ({"zones": {}}, "at least one"),
        ({"zones": []}, "zones must be an object"),
        ({"zones": ZONES, "zonez": 1}, '"zonez" is not known'),
        ({"zones": ZONES, "primaryEniCarriesPods": "true"}, "must be true or false"),
        ({"zones": ZONES, "primaryEniCarriesPods": 0}, "must be true or false"),
        ({"zones": {"US-WEST-2A": ZONES["us-west-2a"]}}, "no availability zone"),
        ({"zones": {"": ZONES["us-west-2a"]}}, "no availability zone"),
        ({"zones": {"2a": ZONES["us-west-2a"]}}, "no availability zone"),
        ({"zones": {"us-west-2a\n": ZONES["us-west-2a"]}}, "no availability zone"),
        ({"zones": {"us_west_2a": ZONES["us-west-2a"]}}, "no availability zone"),
        ({"zones": {"a" * 65: ZONES["us-west-2a"]}}, "no availability zone"),
        ({"zones": {"us-west-2a": "subnet-0a"}}, "must be an object"),
        ({"zones": {"us-west-2a": {}}}, "subnet is missing"),
        ({"zones": {"us-west-2a": {"subnet": 1}}}, "subnet must be a string"),
        ({"zones": {"us-west-2a": {"subnet": "10.0.0.0/24"}}}, "is no subnet ID"),
        ({"zones": {"us-west-2a": {"subnet": "subnet-0a", "securityGroup": []}}}, '"securityGroup" is not known'),
        ({"zones": {"us-west-2a": {"subnet": "subnet-0a", "securityGroups": "sg-0a"}}}, "securityGroups must be a list"),
        ({"zones": {"us-west-2a": {"subnet": "subnet-0a", "securityGroups": [None]}}}, "is no security group ID"),
        ({"zones": {"us-west-2a": {"subnet": "subnet-0a", "securityGroups": ["sg-x"]}}}, "is no security group ID"),
        ({"zones": {"us-west-2a": {"subnet": "subnet-0a", "securityGroups": [f"sg-{n:x}" for n in range(17)]}}}, "16 at most"),
        ('{"zones": {}, "zones": {}}', '"zones" is there twice'),
        ('{"zones": {"us-west-2a": {"subnet": "subnet-0a"}, "us-west-2a": {"subnet": "subnet-0b"}}}', "is there twice"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_wrong_is_said(document: object, said: str) -> None:
    """Nothing is ignored: unknown keys, wrong types, doubled keys and malformed IDs are errors (I15)."""
    assert any(said in problem for problem in problems_of(document))


def test_all_problems_are_said_at_once() -> None:
    """So that an operator corrects the file in one go."""
    document = {"zones": {"some where": {"subnet": 1}, "us-west-2a": {"subnet": "x", "securityGroups": ["y"]}}, "extra": 1}
    assert len(problems_of(document)) == 5
