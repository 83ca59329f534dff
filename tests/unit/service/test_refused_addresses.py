"""How many EC2 calls pods cost that ask again and again for addresses that EC2 refuses (I13)."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.eni.refused_addresses import REFUSED_ADDRESS, REMEMBERED_S
from ipamd.model.errors import CloudDeniedError, PinnedAddressError
from ipamd.model.ids import EniId
from ipamd.model.pinned_refusals import PinnedRefusalCode
from tests.refusing import refused_with
from tests.unit.service.test_pinned_addresses import OTHER_NODE, RANGE, WANTED, Node

CALLS_A_MINUTE_MAX = 60
"""EC2 calls in a minute for all refused addresses together: 20 questions of at most three calls."""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node whose pods may ask for addresses of a range."""
    return Node(tmp_path)


def hold(node: Node, case: str) -> None:
    """Let EC2 refuse every address of the range."""
    if case == "held by a running instance":
        node.put(secondary_addresses=frozenset(RANGE))
        node.ec2.states[OTHER_NODE] = "running"
    elif case == "in a prefix":
        node.put(secondary_addresses=frozenset(), prefixes=frozenset({RANGE}))
    else:
        node.ec2.fail["find_holder"] = [CloudDeniedError("not allowed") for _ in range(2000)]


CASES = ["held by a running instance", "in a prefix", "denied"]


def ask_for_a_minute(node: Node, addresses: list[str], *, every_s: float) -> list[PinnedAddressError]:
    """Let one pod for each address ask again and again. Returns: the refusals."""
    refusals = []
    for turn in range(int(60 / every_s)):
        for address in addresses:
            with pytest.raises(PinnedAddressError) as caught:
                node.ask(f"s{turn}-{address}", address, pod=address)
            refusals.append(caught.value)
        node.clock.advance(every_s)
    return refusals


@pytest.mark.parametrize("case", CASES)
def test_one_pod_costs_few_calls(node: Node, case: str) -> None:
    """One that asks every second is answered from the last refusal, which has the same code; 1, 3, 7, 15, 31 s later EC2 is asked."""
    hold(node, case)
    before = node.calls()
    refusals = ask_for_a_minute(node, [str(WANTED)], every_s=1.0)
    assert len({refusal.refusal for refusal in refusals}) == 1
    assert node.calls() - before <= 6 * 3
    before = node.calls()
    ask_for_a_minute(node, [str(WANTED)], every_s=1.0)
    assert node.calls() - before <= 2 * 3


@pytest.mark.parametrize("case", CASES)
def test_many_pods_share_one_pace(node: Node, case: str) -> None:
    """Fourteen pods that each ask every five seconds."""
    hold(node, case)
    addresses = [str(address) for address in RANGE.hosts()]
    ask_for_a_minute(node, addresses, every_s=5.0)
    before = node.calls()
    ask_for_a_minute(node, addresses, every_s=5.0)
    assert 0 < node.calls() - before <= CALLS_A_MINUTE_MAX


def test_the_refusal_is_repeated_with_its_fields(node: Node) -> None:
    """The second ADD learns who has the address without a call, and when EC2 is asked again."""
    hold(node, CASES[0])
    with refused_with(PinnedRefusalCode.HELD, eni="eni-other", instance=OTHER_NODE) as first:
        node.ask("a")
    before = node.calls()
    with refused_with(PinnedRefusalCode.HELD, eni="eni-other", instance=OTHER_NODE) as second:
        node.ask("b")
    assert node.calls() == before
    assert str(second.value).startswith(str(first.value))
    assert str(second.value) != str(first.value)


@pytest.mark.parametrize("held_s", [3, 20, 300])
def test_a_released_address_is_noticed_soon(node: Node, held_s: int) -> None:
    """After at most as long as it was refused, and never after more than the longest pause."""
    hold(node, CASES[0])
    for second in range(held_s):
        with refused_with(PinnedRefusalCode.HELD):
            node.ask(f"held{second}")
        node.clock.advance(1.0)
    node.ec2.enis[EniId("eni-other")] = replace(node.ec2.enis[EniId("eni-other")], secondary_addresses=frozenset())
    waited_s = 0
    while True:
        try:
            made = node.ask(f"free{waited_s}")
            break
        except PinnedAddressError:
            node.clock.advance(1.0)
            waited_s += 1
    assert made.address == WANTED
    assert waited_s <= min(held_s, REFUSED_ADDRESS.longest_s)


def test_an_obtained_address_ends_the_pauses(node: Node) -> None:
    """When a node is gone, all its addresses may be had: the others do not wait for the pace."""
    hold(node, CASES[0])
    addresses = [str(address) for address in RANGE.hosts()]
    ask_for_a_minute(node, addresses, every_s=5.0)
    node.ec2.states[OTHER_NODE] = "terminated"
    node.clock.advance(REFUSED_ADDRESS.longest_s)
    assert {str(node.ask(address, address, pod=address).address) for address in addresses[:4]} == set(addresses[:4])


def test_refusals_are_forgotten(node: Node) -> None:
    """What no pod asks for any more takes no memory."""
    hold(node, CASES[0])
    ask_for_a_minute(node, [str(address) for address in RANGE.hosts()], every_s=20.0)
    node.clock.advance(REMEMBERED_S + 1)
    with refused_with(PinnedRefusalCode.HELD):
        node.ask("a")
    assert node.app.pool.pinned is not None
    assert set(node.app.pool.pinned._refused._refused) == {IPv4Address(WANTED)}
    assert [key[1] for key in node.app.context.backoffs.keys("refused address")] == [WANTED]
