"""Rules that lead nowhere are removed, also those of addresses that the datastore does not know any more."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from ipamd.model.kernel import KernelSurvey, stray_rules
from ipamd.model.repairs import RepairCode
from tests.fakes.cloud import SUBNET_CIDR
from tests.fakes.node import FakeNode

OURS = IPv4Address("10.0.9.9")
OTHERS = IPv4Address("192.0.2.7")


def leave_rule(node: FakeNode, address: IPv4Address) -> None:
    """A sandbox's namespace went, and with it veth and route, before the DEL; the datastore was lost, so no row names the address."""
    node.wiring.rules[address] = 2


def test_a_start_removes_them(node: FakeNode) -> None:
    """Nobody else would: a DEL of the sandbox finds neither row nor veth, so it does not know the address."""
    kept = node.add("a").address
    for address in (OURS, OTHERS):
        leave_rule(node, address)
    node.startup.reconcile_kernel(node.wiring.survey(), node.listed())
    assert set(node.wiring.rules) == {kept, OTHERS}


def test_a_running_daemon_removes_them(node: FakeNode) -> None:
    """Only ours, and those of no sandbox."""
    kept = node.add("a").address
    for address in (OURS, OTHERS):
        leave_rule(node, address)
    assert (RepairCode.STRAY_REMOVED, str(OURS)) in [(one.code, one.target) for one in node.host_reconciler.reconcile()]
    assert set(node.wiring.rules) == {kept, OTHERS}


def test_one_survey_proves_nothing(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wiring that came between its dumps of links and of rules shows as rules alone; the next survey has the route, too."""
    node.add("a")
    leave_rule(node, OURS)
    real, made = node.wiring.survey, list[KernelSurvey]()

    def survey(*, may_be_torn: bool = False) -> KernelSurvey:
        made.append(real(may_be_torn=may_be_torn))
        node.wiring.routes[OURS] = "eni123"
        return made[-1]

    monkeypatch.setattr(node.wiring, "survey", survey)
    assert not any(one.code is RepairCode.STRAY_REMOVED for one in node.host_reconciler.reconcile())
    assert len(made) == 2
    assert OURS in node.wiring.rules


def test_rules_of_a_reserved_address_stay(node: FakeNode) -> None:
    """An ADD that is slow between rules and row keeps them through any number of passes."""
    reserved = node.datastore.reserve(node.key("slow")).address
    leave_rule(node, reserved)
    for _ in range(3):
        node.host_reconciler.reconcile()
    assert reserved in node.wiring.rules


@pytest.mark.parametrize(("route", "expected"), [({}, {OURS}), ({OURS: "eni123"}, set())])
def test_what_has_a_route_leads_somewhere(route: dict[IPv4Address, str], expected: set[IPv4Address]) -> None:
    """Other software with the same priorities routes each of its addresses; it is left alone."""
    survey = KernelSurvey((), route, frozenset({OURS, OTHERS}), {})
    assert stray_rules(survey, [SUBNET_CIDR]) == expected
