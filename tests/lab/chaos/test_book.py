"""The book of other hands: who is excused for what, and for how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lab.chaos.book import LINK_S, MASS_LOSS_S, NOTICE_S, HandsBook, is_most
from lab.chaos.checker import Checker
from lab.chaos.expected_state import ExpectedState
from lab.chaos.history import History
from lab.chaos.observer import FORGOTTEN_S, OURS, Observer
from lab.vpc.addresses import AddressRequest
from lab.vpc.state import Vpc

A = "10.0.0.10"


def taken(*, cuts_link: bool) -> HandsBook:
    """A book in which node-a lost A at 100 s."""
    book = HandsBook()
    book.look(100.0, away=(), blind=False)
    book.took("node-a", [A], at_s=100.0, cuts_link=cuts_link)
    return book


@pytest.mark.parametrize(("cuts_link", "bound_s"), [(True, LINK_S), (False, NOTICE_S)])
def test_who_had_it_is_hit_and_who_gets_it_late_is_not(cuts_link: bool, bound_s: float) -> None:
    """A link that goes is noticed at once, what only EC2 knows later."""
    takes = taken(cuts_link=cuts_link).takes()
    assert takes.hit("node-a", A, 5.0)
    assert takes.hit("node-a", A, 100.0 + bound_s)
    assert not takes.hit("node-a", A, 100.1 + bound_s)
    assert not takes.hit("node-b", A, 5.0)
    assert not takes.hit("node-a", "10.0.0.11", 5.0)


@pytest.mark.parametrize(("cuts_link", "blind_counts"), [(True, False), (False, True)])
def test_time_in_which_nothing_could_be_known_does_not_count(cuts_link: bool, blind_counts: bool) -> None:
    """Away for 10 s moves each bound by 10 s; a lying cloud moves only that of what the cloud must tell."""
    book = taken(cuts_link=cuts_link)
    before = book.takes().until_s["node-a", A]
    book.look(110.0, away=["node-a"], blind=True)
    assert book.takes().until_s["node-a", A] == before + 10
    book.look(140.0, away=["node-b"], blind=True)
    assert book.takes().until_s["node-a", A] == before + (40 if blind_counts else 10)
    book.look(200.0, away=(), blind=False)
    assert book.takes().until_s["node-a", A] == before + (40 if blind_counts else 10)


def test_an_answer_that_lacks_most_is_doubted_for_ten_minutes() -> None:
    """What only the cloud can tell is excused meanwhile, of that node, and no longer than ADR 0017 says."""
    book = taken(cuts_link=False)
    before = book.takes().until_s["node-a", A]
    book.look(110.0, away=(), blind=False, doubted=["node-b"])
    assert book.takes().until_s["node-a", A] == before
    for turn in range(1, 200):
        book.look(110.0 + 10 * turn, away=(), blind=False, doubted=["node-a"])
    assert book.takes().until_s["node-a", A] == before + MASS_LOSS_S
    assert [is_most(range(gone), range(of)) for gone, of in ((1, 1), (2, 4), (2, 3), (3, 5))] == [False, False, True, True]


def test_what_was_lost_before_it_was_taken_does_not_count() -> None:
    """The bound begins with the deed."""
    book = HandsBook()
    book.look(50.0, away=["node-a"], blind=True)
    book.took("node-a", [A], at_s=50.0, cuts_link=False)
    assert book.takes().until_s["node-a", A] == 50.0 + NOTICE_S


def test_a_refused_deed_is_taken_back() -> None:
    """EC2 said no: nobody is excused."""
    book = taken(cuts_link=True)
    book.gave_back("node-a", [A])
    assert not book.takes().hit("node-a", A, 5.0)


def test_foreign_enis_are_remembered() -> None:
    """The daemon must let them hang."""
    book = HandsBook()
    book.brought("eni-1", "node-a")
    assert book.foreign() == {"eni-1": "node-a"}


@pytest.mark.parametrize(("looked_after_s", "is_excused"), [(1.0, True), (FORGOTTEN_S + 1, False)])
def test_an_eni_that_was_being_made_when_the_datastore_was_destroyed_may_stay_loose_for_long(
    looked_after_s: float, is_excused: bool
) -> None:
    """Its intent went with the datastore: the look after a start finds it; one that is loose much later is the daemon's fault."""
    with Vpc() as vpc:
        subnet = vpc.add_subnet("10.0.0.0/24")
        instance = vpc.add_instance(name="node-a", subnet_id=subnet.subnet_id)
        made = vpc.interfaces.create(subnet.subnet_id, AddressRequest(), groups=(), description=f"{OURS}{instance.instance_id}")
        history = History()
        expected = ExpectedState(clock=lambda: 100.0, cooldown_s=5.0, report=history.violate)
        expected.on_datastore_lost("node-a")
        node: Any = SimpleNamespace(name="node-a", lab_node=instance)
        observer = Observer(
            SimpleNamespace(vpc=vpc),  # type: ignore[arg-type]
            nodes=[node],
            host="host",
            expected=expected,
            history=history,
            checker=Checker(cooldown_s=5.0),
        )
        observer._forgive_forgotten(expected.snapshot(), 100.0 + looked_after_s)
        assert (made.eni_id in expected.book.takes().forgotten) == is_excused
