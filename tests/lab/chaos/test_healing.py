"""What the judge demands of a node of IPv6 at the end: a /80, or that the daemon says why nobody can have one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lab.chaos.healing import prefix_difference
from lab.chaos.node import ADDRESSES_PER_ENI

PREFIX, FULL = "2001:db8:0:0:a::/80", "eni-1 takes no /80 now"


@pytest.mark.parametrize(
    ("there", "known", "singles", "said", "is_sound"),
    [
        ([PREFIX], [PREFIX], 1, "", True),
        ([PREFIX], [], 1, "", False),
        ([], [PREFIX], 1, "", False),
        ([], [], 1, FULL, False),  # there is room for one: the daemon has to get it
        ([], [], ADDRESSES_PER_ENI, FULL, True),
        ([], [], ADDRESSES_PER_ENI, "at target", False),
    ],
)
def test_a_prefix_or_its_cause(there: list[str], known: list[str], singles: int, said: str, is_sound: bool) -> None:
    """Other hands may fill the ENI with single addresses and take its /80s: no daemon heals that."""
    eni = SimpleNamespace(eni_id="eni-1", ipv6_addresses=[None] * singles, ipv6_prefixes=there)
    lab = SimpleNamespace(vpc=SimpleNamespace(enis_of=lambda _: [eni]))
    answer = {"enis": [{"prefixes": known}]}
    daemon = SimpleNamespace(ask=lambda _: answer, status=lambda: {"pool": {"plan": said}})
    node = SimpleNamespace(daemon=daemon, lab_node=SimpleNamespace(instance_id="i-1"))
    assert (prefix_difference(cast(Any, lab), cast(Any, node)) == "") is is_sound
