"""What a chaos run expects of addresses and ENIs over time: given twice, given too early, moved by other hands, left loose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.chaos.book import NOTICE_S, Takes
from lab.chaos.expected_state import ExpectedState, Violation
from lab.chaos.tolerances import LEAKED_S, LOOSE_S
from tests.lab.chaos.checker_rounds import POD, A, B, E, lasting, round_


def expected_state() -> tuple[ExpectedState, list[Violation], list[float]]:
    """An expected state with a clock that the test sets, and what it reports."""
    now, found = [0.0], []
    return ExpectedState(clock=lambda: now[0], cooldown_s=5.0, report=found.append), found, now


def test_expected_state_see_an_address_given_twice() -> None:
    """Two sandboxes that live, on whatever nodes (I1)."""
    kept, found, _ = expected_state()
    kept.on_created(POD)
    kept.on_created(replace(POD, node="node-b", sandbox_id="c2", pod="p2"))
    assert [violation.invariant for violation in found] == ["I1"]


@pytest.mark.parametrize(("after_s", "expected"), [(4.9, ["I8"]), (5.0, [])])
def test_expected_state_see_an_address_given_before_it_has_cooled(after_s: float, expected: list[str]) -> None:
    """From the removal's question to the next promise at least a cooldown must pass (I8)."""
    kept, found, now = expected_state()
    kept.on_created(POD)
    now[0] = 10.0
    kept.on_removing("c1")
    kept.on_removed("c1")
    kept.on_created(replace(POD, sandbox_id="c2", pod="p2", created_at_s=10.0 + after_s))
    assert [violation.invariant for violation in found] == expected


@pytest.mark.parametrize(("node", "after_s", "expected"), [("node-a", 4.9, ["I8"]), ("node-a", 5.0, []), ("node-b", 1.0, [])])
def test_expected_state_see_an_address_for_egress_given_too_early(node: str, after_s: float, expected: list[str]) -> None:
    """It cools with the other one (I8), on its own node; while its sandbox lives no other of the node has it (I1)."""
    kept, found, now = expected_state()
    kept.on_created(replace(POD, egress=E))
    now[0] = 10.0
    kept.on_removing("c1")
    kept.on_removed("c1")
    next_one = replace(POD, node=node, sandbox_id="c2", pod="p2", address=B, egress=E, created_at_s=10.0 + after_s)
    kept.on_created(next_one)
    assert [violation.invariant for violation in found] == expected
    kept.on_created(replace(next_one, sandbox_id="c3", pod="p3", address="10.0.0.12"))
    assert [violation.invariant for violation in found][-1] == "I1"


def test_expected_state_do_not_ask_for_cooling_across_a_lost_datastore() -> None:
    """What was destroyed on purpose cannot be remembered."""
    kept, found, now = expected_state()
    kept.on_created(POD)
    kept.on_removing("c1")
    now[0] = 1.0
    kept.on_datastore_lost("node-a")
    kept.on_created(replace(POD, sandbox_id="c2", pod="p2", created_at_s=2.0))
    assert found == []


def test_expected_state_excuses_what_other_hands_moved_to_the_other_node() -> None:
    """It lives on node-a, hands took it, EC2 gave it to node-b: told apart from violations. On the same node it is one."""
    kept, found, _ = expected_state()
    kept.on_created(POD)
    kept.book.took("node-a", [A], at_s=2.0, cuts_link=False)
    kept.on_created(replace(POD, node="node-b", sandbox_id="c2", pod="p2", created_at_s=3.0))
    assert found == []
    assert len(kept.doubled) == 1
    kept.on_created(replace(POD, sandbox_id="c3", pod="p3", created_at_s=4.0))
    assert {violation.invariant for violation in found} == {"I1"}


@pytest.mark.parametrize(
    ("is_taken", "is_lost", "lives", "expected"),
    [
        (True, True, False, []),
        (False, True, False, ["I8"]),
        (True, False, False, ["I8"]),
        (True, True, True, ["I1"]),
    ],
)
def test_expected_state_excuses_the_node_that_was_given_it_anew(
    *, is_taken: bool, is_lost: bool, lives: bool, expected: list[str]
) -> None:
    """Hands took it from a sandbox, the datastore was lost, the sandbox ended, and EC2 gave it again: each of them is needed."""
    kept, found, now = expected_state()
    kept.on_created(POD)
    if is_taken:
        kept.book.took("node-a", [A], at_s=2.0, cuts_link=False)
    now[0] = 4.0
    if is_lost:
        kept.on_datastore_lost("node-a")
    now[0] = 10.0
    if not lives:
        kept.on_removing("c1")
        kept.on_removed("c1")
    kept.on_created(replace(POD, sandbox_id="c2", pod="p2", created_at_s=12.0))
    assert [violation.invariant for violation in found] == expected


@pytest.mark.parametrize(("after_s", "expected"), [(5.0, []), (NOTICE_S + 1, ["I1"])])
def test_expected_state_excuses_the_node_that_cannot_know_yet(after_s: float, expected: list[str]) -> None:
    """Node-b has the address rightly; node-a, from which hands took it, gives it away before it could notice, or after."""
    kept, found, _ = expected_state()
    kept.book.took("node-a", [A], at_s=2.0, cuts_link=False)
    kept.on_created(replace(POD, node="node-b", sandbox_id="c2", pod="p2", created_at_s=3.0))
    kept.on_created(replace(POD, sandbox_id="c3", pod="p3", created_at_s=2.0 + after_s))
    assert [violation.invariant for violation in found] == expected


def test_what_a_person_detached_may_stay_detached() -> None:
    """The daemon did not make it loose, and does not delete what a person holds in the hand."""
    by_hand = Takes(detached=frozenset({"eni-1"}))
    assert lasting(lambda at: round_(at, loose_enis=frozenset({"eni-1"}), takes=by_hand), LOOSE_S) == []
    assert lasting(lambda at: round_(at, loose_enis=frozenset({"eni-1", "eni-2"}), takes=by_hand), LOOSE_S) == ["I9"]


def test_what_died_with_a_datastore_is_deleted_after_a_start() -> None:
    """I9: an ENI whose intent is gone may be loose for as long as both looks take, and no longer."""
    forgotten = Takes(forgotten=frozenset({"eni-1"}))
    assert lasting(lambda at: round_(at, loose_enis=frozenset({"eni-1"}), takes=forgotten), LEAKED_S - 2) == []
    assert lasting(lambda at: round_(at, loose_enis=frozenset({"eni-1"}), takes=forgotten), LEAKED_S + 2) == ["I9"]
    stepped = replace(forgotten, stepped_s=60.0)  # its age is reckoned by a clock that was stepped
    assert lasting(lambda at: round_(at, loose_enis=frozenset({"eni-1"}), takes=stepped), LEAKED_S + 2) == []
    assert lasting(lambda at: round_(at, loose_enis=frozenset({"eni-1"}), takes=stepped), LEAKED_S + 62) == ["I9"]


def test_a_pod_that_asks_for_its_address_gets_it_again_at_once() -> None:
    """The cooldown ends early for it (docs/adr/0083), on whatever node; never while the sandbox before lives (I1)."""
    kept, found, _ = expected_state()
    first = replace(POD, is_pinned=True)
    again = replace(first, node="node-b", sandbox_id="c2")
    kept.on_created(first)
    kept.on_removing("c1")
    kept.on_created(again)
    assert found == []
    kept.on_created(replace(first, sandbox_id="c3"))
    assert [violation.invariant for violation in found] == ["I1"]


def test_a_pod_that_comes_back_has_not_left() -> None:
    """From then on its sandbox is demanded again."""
    kept, _, _ = expected_state()
    kept.on_left(POD.node, POD.address)
    assert kept.snapshot().left == {(POD.node, POD.address)}
    kept.on_created(POD)
    assert kept.snapshot().left == frozenset()


def test_a_fenced_sandbox_is_not_living() -> None:
    """Its pod was made again elsewhere while its node could not know: nobody demands that it has the address."""
    kept, found, _ = expected_state()
    kept.on_created(replace(POD, is_pinned=True))
    kept.on_fenced("c1")
    assert kept.wanted("node-a") == []
    kept.on_created(replace(POD, is_pinned=True, node="node-b", sandbox_id="c2"))
    assert found == []
