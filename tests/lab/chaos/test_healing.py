"""What the judge demands of a node of IPv6 at the end: a /80, or that the daemon says why nobody can have one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lab.chaos.expected_state import ExpectedState, PodRecord
from lab.chaos.healing import HEAL_S, Healing, prefix_difference
from lab.chaos.history import History
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


@pytest.mark.parametrize(
    ("node", "age_s", "wanted_s"), [("node-a", 15.0, 350.0), ("node-a", 400.0, HEAL_S), ("node-b", 15.0, HEAL_S)]
)
def test_a_node_may_agree_as_late_as_its_book_says(node: str, age_s: float, wanted_s: float) -> None:
    """What was taken 55 s ago, 15 s after the daemon had made it, is missed 285 s later at the earliest, and noticed after that."""
    history, now_s = History(), 100.0
    expected = ExpectedState(clock=lambda: now_s, cooldown_s=5.0, report=history.violate)
    expected.book.took(node, ["10.0.0.9"], at_s=now_s - 55.0, cuts_link=False, age_s=age_s)
    lab = SimpleNamespace(vpc=SimpleNamespace(enis_of=lambda _: []))
    daemon = SimpleNamespace(ask=lambda _: {"enis": []}, rows=dict, family=None)
    one = SimpleNamespace(name="node-a", daemon=daemon, lab_node=SimpleNamespace(instance_id="i-1"))
    history.now = lambda: now_s  # type: ignore[method-assign]
    healing = Healing(cast(Any, lab), nodes=[cast(Any, one)], host="h", expected=expected, history=history)
    assert healing.patience_s(cast(Any, one)) == pytest.approx(wanted_s)


def test_a_sandbox_that_nothing_places_need_not_answer() -> None:
    """Others that do not answer are told."""
    history = History()
    expected = ExpectedState(clock=lambda: 100.0, cooldown_s=5.0, report=history.violate)
    for number in (1, 2):
        expected.on_created(PodRecord("node-s", f"pod-{number}", f"c{number}", f"10.0.0.{number}", "", 90.0))
    lab = SimpleNamespace(ping=lambda *, targets, **_: dict.fromkeys(targets, False))
    node = SimpleNamespace(name="node-s")
    unplaced: set[str] = set()
    healing = Healing(cast(Any, lab), nodes=[cast(Any, node)], host="h", expected=expected, history=history, unplaced=unplaced)
    assert healing.silent() == ["node-s/pod-1 10.0.0.1", "node-s/pod-2 10.0.0.2"]
    unplaced.add("c1")
    assert healing.silent() == ["node-s/pod-2 10.0.0.2"]
