"""The reference of the fleet simulation follows amazon-vpc-cni-k8s: its own tables and tests, as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.fleet.reference_rules import (
    EniStats,
    Stats,
    Targets,
    deletable,
    is_low,
    looks_for_extra_eni,
    short_and_over,
)

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "model" / "vectors_pool.json").read_text())


def of(area: str) -> list[dict[str, Any]]:
    """The vectors of one area that are about network card 0 and no excluded ENI."""
    chosen = [one for one in VECTORS if one["area"] == area]
    return [one for one in chosen if not one["given"].get("network_card") and "primary_eni" not in one["given"]]


def targets(given: dict[str, Any]) -> Targets:
    """The settings of a vector."""
    env = given.get("env", given)
    by_prefix = given.get("mode") == "prefix_delegation"
    slots = given.get("max_prefixes_per_eni") or given.get("max_ips_per_eni") or 14
    return Targets(
        env.get("WARM_IP_TARGET", 0),
        env.get("MINIMUM_IP_TARGET", 0),
        env.get("WARM_ENI_TARGET", 1),
        env.get("WARM_PREFIX_TARGET", 0),
        by_prefix,
        slots,
        given.get("max_pods", 500),
    )


def stats(given: dict[str, Any]) -> Stats:
    """The pool of a vector."""
    prefixes, assigned = given.get("total_prefixes", 0), given["assigned_ips"]
    return Stats(given["total_ips"], assigned, prefixes, given.get("free_prefixes", prefixes if not assigned else 0))


@pytest.mark.parametrize("vector", of("warm_pool_short_over"), ids=lambda vector: json.dumps(vector["given"], sort_keys=True))
def test_short_and_over(vector: dict[str, Any]) -> None:
    """Addresses or prefixes short of the targets and above them."""
    expected = vector["expect"]
    assert short_and_over(stats(vector["given"]), targets(vector["given"])) == (expected["short"], expected["over"])


@pytest.mark.parametrize("vector", of("pool_too_low"), ids=lambda vector: json.dumps(vector["given"], sort_keys=True))
def test_too_low(vector: dict[str, Any]) -> None:
    """Whether the pool is to grow."""
    assert is_low(stats(vector["given"]), targets(vector["given"])) is vector["expect"]["low"]


@pytest.mark.parametrize(("available", "looks"), [(13, False), (14, True)])
def test_an_eni_is_looked_for_above_the_target_and_one(available: int, looks: bool) -> None:
    """Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, shouldRemoveExtraENIs: available >= (target + 1) x addresses of an ENI."""
    assert looks_for_extra_eni(Stats(available, 0), Targets(0, 0, 0, 0, False, 14, 500)) is looks


PRIMARY = EniStats("eni-1", 2, 2, is_primary=True)


@pytest.mark.parametrize(
    ("enis", "warm_ip", "minimum_ip", "expected"),
    [
        ([PRIMARY, EniStats("eni-2", 2, 0)], 0, 2, "eni-2"),
        ([PRIMARY, EniStats("eni-2", 2, 0), EniStats("eni-3", 1, 0)], 1, 5, ""),
        ([PRIMARY, EniStats("eni-2", 2, 0), EniStats("eni-3", 1, 0)], 3, 1, ""),
        ([PRIMARY, EniStats("eni-4", 1, 0, is_special=True), EniStats("eni-5", 1, 0, is_special=True)], 0, 2, ""),
        ([PRIMARY, EniStats("eni-2", 2, 0, age_s=59.0)], 0, 2, ""),
        ([PRIMARY, EniStats("eni-2", 2, 0, has_cooling=True)], 0, 2, ""),
        ([PRIMARY, EniStats("eni-2", 2, 1)], 0, 2, ""),
    ],
)
def test_the_deletable_eni(enis: list[EniStats], warm_ip: int, minimum_ip: int, expected: str) -> None:
    """Source: amazon-vpc-cni-k8s pkg/ipamd/datastore/data_store_test.go, TestWarmENIInteractions; its rules of age and cooldown."""
    assert deletable(enis, Targets(warm_ip, minimum_ip, 1, 0, False, 2, 500)) == expected
