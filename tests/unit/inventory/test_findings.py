"""What is wrong with ENIs: each kind in both families, and what only looks so."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any

import pytest

from ipamd.inventory.findings import EniFinding, EniProblem, LeakRule, SeenEni, find
from ipamd.model.cloud import DescribedEni
from ipamd.model.eni_tags import CLUSTER_TAG, CREATED_AT_TAG, INSTANCE_TAG
from ipamd.model.ids import EniId, InstanceId, MacAddress, SubnetId

NOW = datetime(2026, 5, 1, tzinfo=UTC)
RULE = LeakRule("blue", timedelta(minutes=30))


def seen(name: str, *, ipv6_prefixes: tuple[str, ...] = (), is_hidden: bool = False, **changes: Any) -> SeenEni:
    """One ENI on node i-1."""
    values = {
        "primary_address": None,
        "status": "in-use",
        "instance_id": InstanceId("i-1"),
        "attachment_id": "eni-attach-1",
    }
    eni = DescribedEni(EniId(name), MacAddress("02:00:00:00:00:01"), SubnetId("subnet-1"), **(values | changes))
    return SeenEni(eni, is_hidden=is_hidden, ipv6_prefixes=frozenset(map(IPv6Network, ipv6_prefixes)))


def problems(*enis: SeenEni) -> list[EniFinding]:
    """The findings of these ENIs."""
    return find(enis, rule=RULE, now=NOW)


PAIRS = [
    pytest.param(
        {"primary_address": IPv4Address("10.0.0.5")}, {"secondary_addresses": frozenset({IPv4Address("10.0.0.5")})}, "10.0.0.5",
        id="primary and secondary",
    ),
    pytest.param(
        {"secondary_addresses": frozenset({IPv4Address("10.0.0.20")})}, {"prefixes": frozenset({IPv4Network("10.0.0.16/28")})},
        "10.0.0.20", id="address within a prefix",
    ),
    pytest.param(
        {"prefixes": frozenset({IPv4Network("10.0.0.16/28")})}, {"prefixes": frozenset({IPv4Network("10.0.0.16/28")})},
        "10.0.0.16/28", id="prefix",
    ),
    pytest.param(
        {"ipv6_addresses": frozenset({IPv6Address("2001:db8::5")})}, {"ipv6_addresses": frozenset({IPv6Address("2001:db8::5")})},
        "2001:db8::5", id="IPv6 address",
    ),
    pytest.param(
        {"ipv6_addresses": frozenset({IPv6Address("2001:db8::5")})}, {"ipv6_prefixes": ("2001:db8::/80",)}, "2001:db8::5",
        id="IPv6 address within a prefix",
    ),
    pytest.param(
        {"ipv6_prefixes": ("2001:db8::/80",)}, {"ipv6_prefixes": ("2001:db8::/80",)}, "2001:db8::/80", id="IPv6 prefix"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("one_side", "other_side", "subject"), PAIRS)
def test_two_enis_claim_an_address(one_side: dict[str, Any], other_side: dict[str, Any], subject: str) -> None:
    """Both are named, with both nodes."""
    (finding,) = problems(seen("eni-b", **one_side), seen("eni-a", instance_id=InstanceId("i-2"), **other_side))
    assert (finding.problem, finding.subject) == (EniProblem.TWO_ENIS, subject)
    assert (finding.eni_ids, finding.instance_ids) == (("eni-a", "eni-b"), ("i-1", "i-2"))
    assert finding.is_confirmed is False


@pytest.mark.parametrize(("one_side", "other_side", "subject"), PAIRS)
def test_one_eni_may_have_an_address_twice(one_side: dict[str, Any], other_side: dict[str, Any], subject: str) -> None:
    """It claims it alone, however EC2 shows it."""
    merged = {**one_side, **{key: value for key, value in other_side.items() if key not in one_side}}
    assert problems(seen("eni-a", **merged), seen("eni-b", primary_address=IPv4Address("10.0.9.9"))) == []


def test_two_nodes_claim_an_eni() -> None:
    """The tag of one, the attachment of the other."""
    eni = seen("eni-a", tags={INSTANCE_TAG: "i-0"}, prefixes=frozenset({IPv4Network("10.0.0.16/28")}))
    (finding,) = problems(eni)
    assert (finding.problem, finding.instance_ids) == (EniProblem.TWO_NODES, ("i-0", "i-1"))


@pytest.mark.parametrize(
    "changes", [{"tags": {INSTANCE_TAG: "i-1"}}, {"tags": {}}, {"tags": {INSTANCE_TAG: "i-0"}, "instance_id": ""}]
)
def test_one_node_claims_its_eni(changes: dict[str, Any]) -> None:
    """Its own tag, none, or attached to nothing."""
    assert problems(seen("eni-a", **changes)) == []


def leaked() -> SeenEni:
    """An ENI of a node that is gone."""
    tags = {INSTANCE_TAG: "i-0", CLUSTER_TAG: "blue", CREATED_AT_TAG: "2026-04-30T00:00:00Z"}
    described = {"status": "available", "instance_id": InstanceId(""), "attachment_id": "", "description": "aws-K8S-i-0"}
    return seen("eni-a", tags=tags, **described)


def test_a_leaked_eni_is_named() -> None:
    """By the rule of the sweeper; what a service manages is not the cluster's to delete."""
    (finding,) = problems(leaked())
    assert (finding.problem, finding.subject, finding.instance_ids) == (EniProblem.LEAKED, "eni-a", ("i-0",))
    managed = replace(leaked(), eni=replace(leaked().eni, operator="eks.amazonaws.com"))
    assert problems(managed) == []


def test_a_hidden_eni_needs_no_second_look() -> None:
    """It is a state, and no race."""
    (finding,) = problems(seen("eni-a", is_hidden=True, operator="eks.amazonaws.com"))
    assert (finding.problem, finding.is_confirmed) == (EniProblem.HIDDEN, True)


def test_an_eni_that_cannot_be_read_claims_nothing() -> None:
    """Nothing is concluded about it."""
    assert problems(seen("eni-a", problem="no address"), seen("eni-b", problem="no address")) == []
