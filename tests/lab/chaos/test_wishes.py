"""What pods of a chaos run ask for, by their names, and how what they were given is judged."""

from __future__ import annotations

import pytest

from ipamd.model.pod_annotations import ADDRESS, POOL
from lab.chaos.wishes import KEEPING, POOLS, RANGES, TAKING, wish_of


def test_each_pod_has_an_address_of_its_own() -> None:
    """In the range of its namespace."""
    addresses = {}
    for pod in ("keep-0", "keep-1", "take-0", "take-1"):
        wish = wish_of(pod)
        addresses[pod] = wish.address
        assert wish.annotations[ADDRESS] == wish.address
        assert wish.namespace == pod.partition("-")[0]
        assert wish.problem(wish.address) == ""
        assert wish.problem(str(RANGES[KEEPING][9]))
    assert len(set(addresses.values())) == len(addresses)
    assert {wish_of("keep-0").namespace, wish_of("take-0").namespace} == {KEEPING, TAKING}


@pytest.mark.parametrize(
    ("pod", "address", "is_good"),
    [
        ("cards-1", str(POOLS["cards"][20]), True),
        ("cards-1", str(POOLS["batch"][20]), False),
        ("cards-1", "10.0.0.9", False),
        ("own-1", "10.0.0.9", True),
        ("own-1", str(POOLS["batch"][20]), False),
        ("own-1", str(RANGES[KEEPING][3]), False),
    ],
)
def test_a_pod_has_an_address_of_its_pool(pod: str, address: str, is_good: bool) -> None:
    """And one that asks for nothing has neither one of a pool nor one of a range."""
    wish = wish_of(pod)
    assert wish.annotations.get(POOL, "own") == pod.partition("-")[0]
    assert (wish.problem(address) == "") is is_good


def test_without_reserved_ranges_any_pod_may_have_their_addresses() -> None:
    """A run with pools and without moves reserves none."""
    assert wish_of("own-1").problem(str(RANGES[KEEPING][3]), are_ranges_reserved=False) == ""
