"""Which detached ENIs are leaked, against the behaviour of amazon-vpc-cni-k8s (`vectors_leaked.json`), and where ours is stricter."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.model.cloud import INTENT_TAG, DescribedEni
from ipamd.model.eni_tags import CLUSTER_TAG, CREATED_AT_TAG, INSTANCE_TAG, NO_MANAGE_TAG, EniTags
from ipamd.model.ids import EniId, InstanceId, MacAddress, SubnetId
from ipamd.model.leaked_eni import why_kept
from ipamd.model.time_text import rfc3339
from tests.fakes.cloud import IDENTITY

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MIN_AGE = timedelta(minutes=5)
VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors_leaked.json").read_text())


def vectors(area: str) -> list[dict[str, Any]]:
    """Vectors of one area."""
    return [vector for vector in VECTORS if vector["area"] == area]


def detached(*, age_s: float = 600.0, description: str = "aws-K8S-i-xxxxx", **tags: str) -> DescribedEni:
    """An available ENI with the tags of its maker."""
    held = {INSTANCE_TAG: "i-xxxxx", CREATED_AT_TAG: rfc3339(NOW - timedelta(seconds=age_s)), CLUSTER_TAG: "blue"}
    eni = DescribedEni(EniId("eni-1"), MacAddress("02:00:00:00:00:01"), SubnetId("subnet-1"), IPv4Address("10.0.0.9"))
    return replace(eni, status="available", description=description, tags=held | tags)


@pytest.mark.parametrize("vector", vectors("leaked_eni"), ids=lambda vector: str(vector["given"]))
def test_selected_as_by_vpc_cni(vector: dict[str, Any]) -> None:
    """Description and age decide as in amazon-vpc-cni-k8s."""
    eni = detached(description=vector["given"]["description"], age_s=vector["given"]["age_s"])
    assert (why_kept(eni, now=NOW, min_age=MIN_AGE) == "") == vector["expect"]["selected"]


@pytest.mark.parametrize("vector", vectors("eni_tags"), ids=lambda vector: str(vector["given"]))
def test_tagged_as_by_vpc_cni(vector: dict[str, Any]) -> None:
    """A new ENI has the tags by which it is found again, here as there; ours has a time and a token besides."""
    identity = replace(IDENTITY, instance_id=InstanceId(vector["given"]["instance"]))
    tags = EniTags(vector["given"]["cluster_name"]).of_new_eni(identity, created_at=NOW, token="t")
    assert {key: value for key, value in tags.items() if key not in (CREATED_AT_TAG, INTENT_TAG)} == vector["expect"]["tags"]
    assert tags[CREATED_AT_TAG] == "2026-01-01T00:00:00Z"


KEPT = {
    "no time": ({CREATED_AT_TAG: ""}, "its age is not known"),
    "no time at all": ({CREATED_AT_TAG: "soon"}, "its age is not known"),
    "no zone": ({CREATED_AT_TAG: "2020-01-01T00:00:00"}, "its age is not known"),
    "year 1": ({CREATED_AT_TAG: "0001-01-01T00:00:00+14:00"}, "its age is not known"),
    "the future": ({CREATED_AT_TAG: "2030-01-01T00:00:00Z"}, "old, less than"),
    "another cluster": ({CLUSTER_TAG: "green"}, "'green'"),
    "nearly this cluster": ({CLUSTER_TAG: "blue "}, "'blue '"),
    "no node": ({INSTANCE_TAG: ""}, INSTANCE_TAG),
    "not to be managed": ({NO_MANAGE_TAG: "true"}, NO_MANAGE_TAG),
}


@pytest.mark.parametrize(("tags", "why"), KEPT.values(), ids=KEPT)
def test_kept(tags: dict[str, str], why: str) -> None:
    """What is in doubt is kept, and the sentence says why. amazon-vpc-cni-k8s deletes an ENI whose time it cannot read."""
    assert why in why_kept(detached(**tags), now=NOW, min_age=MIN_AGE, cluster_name="blue")


@pytest.mark.parametrize(
    "change",
    [{"status": "in-use"}, {"status": "pending"}, {"attachment_id": "a"}, {"instance_id": "i"}, {"problem": "odd"}],
    ids=str,
)
def test_only_what_is_attached_to_nothing(change: dict[str, str]) -> None:
    """Also if EC2's filter let it through."""
    assert why_kept(replace(detached(), **change), now=NOW, min_age=MIN_AGE)


@given(text=st.text(max_size=40), age_s=st.floats(0, 1e7), cluster=st.text(max_size=10))
def test_never_younger_and_never_of_another_cluster(text: str, age_s: float, cluster: str) -> None:
    """For any tag: what is selected has this cluster's tag and a time that is old enough."""
    for eni in (detached(age_s=age_s, **{CLUSTER_TAG: cluster}), detached(**{CREATED_AT_TAG: text, CLUSTER_TAG: cluster})):
        if not why_kept(eni, now=NOW, min_age=MIN_AGE, cluster_name="blue"):
            assert eni.tags[CLUSTER_TAG] == "blue"
            assert datetime.fromisoformat(eni.tags[CREATED_AT_TAG]) <= NOW - MIN_AGE
