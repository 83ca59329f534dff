"""The rule from the address of an ENI on a further network card, beside rules that the node's image made (docs/adr/0086)."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from types import SimpleNamespace
from typing import cast

import pytest

from ipamd.kernel import answers, messages, routing
from ipamd.kernel.host_state import HostState
from ipamd.model.eni import Eni
from ipamd.model.ids import EniId, MacAddress, SubnetId

ADDRESS = IPv4Address("10.0.1.4")
OF_IMAGE, OURS = 10101, 32765
"""Priorities of the rules of amazon-ec2-net-utils and of ours."""


def eni(card: int) -> Eni:
    """The second ENI of a network card."""
    subnet = IPv4Network("10.0.1.0/24")
    return Eni(EniId("eni-1"), MacAddress("02:00:00:00:00:01"), 1, card, SubnetId("subnet-1"), subnet, ADDRESS, is_primary=False)


def repairs(card: int, rules: list[tuple[int, int]]) -> list[tuple[int, str]]:
    """Table and outcome of what is repaired. `rules`: priority and table of the present rules from the ENI's address."""
    present = [answers.read_rule(messages.add_rule(priority, table=table, source=ADDRESS).body) for priority, table in rules]
    state = cast(HostState, SimpleNamespace(rules=present))
    found = routing.rule_repairs(state, eni(card))
    return [(answers.read_rule(repair.change.body).table, str(repair.code)) for repair in found]


@pytest.mark.parametrize(
    ("rules", "is_added"),
    [
        ([], True),
        ([(OF_IMAGE, 10101)], False),
        ([(OF_IMAGE, 9), (OF_IMAGE, 10101)], False),
        ([(OURS, 10101)], False),
        ([(OF_IMAGE, 7)], True),
        ([(OURS, 7)], True),
    ],
)
def test_a_rule_to_the_enis_table_is_not_doubled_and_none_is_removed(rules: list[tuple[int, int]], is_added: bool) -> None:
    """Whoever made it, at any priority."""
    assert repairs(1, rules) == ([(10101, "added")] if is_added else [])


def test_on_card_0_our_rule_has_its_priority_and_no_other_table() -> None:
    """As before further cards were managed."""
    assert repairs(0, [(OF_IMAGE, 2), (OURS, 9)]) == [(2, "added"), (9, "removed")]
