"""On a node to which nothing happens most passes by the clock leave the survey of the sandboxes out, and nothing is missed by it."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address

import pytest

from ipamd.host import network
from ipamd.host.network import SURVEY_TURNS
from ipamd.model.attachment import WiringSpec
from ipamd.model.errors import KernelDumpError, WiringError
from ipamd.model.kernel import ChangeKind, HostChange, KernelSurvey, LinkEvent, LinkEventKind
from ipamd.model.wiring_comparison import wiring_differences
from ipamd.model.wiring_difference import WiringDifference
from tests.fakes.node import FakeNode


@pytest.fixture
def surveys(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> list[KernelSurvey]:
    """The surveys that were made since a first pass found everything in order."""
    node.add("a")
    real, made = node.wiring.survey, list[KernelSurvey]()

    def survey(*, may_be_torn: bool = False) -> KernelSurvey:
        made.append(real(may_be_torn=may_be_torn))
        return made[-1]

    monkeypatch.setattr(node.wiring, "survey", survey)
    node.host_reconciler.reconcile()
    assert len(made) == 1
    made.clear()
    return made


def turns(node: FakeNode, count: int) -> None:
    """Passes by the clock."""
    for _ in range(count):
        node.host_reconciler.run_due(is_by_clock=True)


def test_a_silent_node_is_surveyed_rarely(node: FakeNode, surveys: list[KernelSurvey]) -> None:
    """One of SURVEY_TURNS passes, as a net; nftables and sysctls, which a survey does not show, change nothing of that."""
    for turn in range(1, 3 * SURVEY_TURNS + 1):
        node.host_reconciler.on_change(HostChange(ChangeKind.NFT, process="kube-proxy (process 7)"))
        turns(node, 1)
        assert len(surveys) == turn // SURVEY_TURNS


@pytest.mark.parametrize(
    "change",
    [
        HostChange(ChangeKind.LINK),
        HostChange(ChangeKind.VETH_GONE),
        HostChange(ChangeKind.ROUTE, address=IPv4Address("192.0.2.1"), length=32, table=77),
        HostChange(ChangeKind.RULE, address=IPv4Address("192.0.2.1"), length=32, table=77, priority=100),
        HostChange(ChangeKind.MISSED),
    ],
)
def test_what_a_survey_could_show_makes_one(node: FakeNode, surveys: list[KernelSurvey], change: HostChange) -> None:
    """Also what concerns nobody whom we know: that is no reason for a pass, but for a look at the next one."""
    node.host_reconciler.on_change(change)
    turns(node, 1)
    assert len(surveys) == 1
    turns(node, 1)
    assert len(surveys) == 1, "all was in order, and it is silent again"


def test_a_damage_is_looked_at_until_it_is_gone(node: FakeNode, surveys: list[KernelSurvey]) -> None:
    """A veth that somebody deleted cannot be put back: it is surveyed at each pass, as long as it lasts."""
    attachment = node.datastore.attachment(node.key("a"))
    assert attachment is not None
    del node.wiring.wired[attachment.host_veth], node.wiring.routes[attachment.address]
    node.host_reconciler.on_change(HostChange(ChangeKind.VETH_GONE))
    turns(node, 3)
    assert len(surveys) == 3
    node.delete("a")
    turns(node, 1)
    surveys.clear()
    turns(node, SURVEY_TURNS - 1)
    assert surveys == []


def test_a_survey_that_shows_nothing_new_is_not_compared_again(
    node: FakeNode, surveys: list[KernelSurvey], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sandbox is compared when the survey or the records differ from the last ones in order, also where nothing was announced."""
    compared = list[WiringSpec]()

    def differences(spec: WiringSpec, survey: KernelSurvey) -> list[WiringDifference]:
        compared.append(spec)
        return wiring_differences(spec, survey)

    monkeypatch.setattr(network, "wiring_differences", differences)
    turns(node, SURVEY_TURNS)
    assert (len(surveys), compared) == (1, [])
    node.add("b")
    turns(node, SURVEY_TURNS)
    assert {spec.key for spec in compared} == {node.key("a"), node.key("b")}
    compared.clear()
    turns(node, SURVEY_TURNS)
    assert compared == []
    node.wiring.rules[IPv4Address("192.0.2.1")] = 9
    turns(node, SURVEY_TURNS)
    assert {spec.key for spec in compared} == {node.key("a"), node.key("b")}


def test_a_survey_that_was_not_whole_is_made_again(node: FakeNode, surveys: list[KernelSurvey]) -> None:
    """Silence says nothing about what was announced before the last whole survey."""
    node.host_reconciler.on_change(HostChange(ChangeKind.LINK))
    node.wiring.fail["survey"] = [KernelDumpError("interrupted")]
    turns(node, 3)
    assert [one.is_whole for one in surveys] == [False, True]


def test_a_sandbox_in_another_table_than_its_eni_is_moved_at_the_next_pass(node: FakeNode, surveys: list[KernelSurvey]) -> None:
    """An ENI that came back at another place is a change of the records, which no kernel announces."""
    made = node.datastore.attachment(node.key("a"))
    assert made is not None
    with node.datastore.transaction() as uow:
        uow.move_table(made.key, route_table=made.route_table + 7)
    turns(node, 1)
    assert node.datastore.attachment(made.key) == made
    assert len(surveys) == 1


def test_what_was_not_heard_while_the_subscription_was_broken_is_looked_at(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once when it breaks, and once when it is open again: what happened in between nobody announces."""
    watch = node.cloud_reconciler.links
    monkeypatch.setattr(watch.loop, "pause", lambda seconds: False)
    told: list[str] = []
    breaks = [WiringError("no socket")]

    def events() -> Iterator[LinkEvent | HostChange]:
        if breaks:
            raise breaks.pop()
        told.append("open")
        yield LinkEvent(LinkEventKind.OPENED)
        yield LinkEvent(LinkEventKind.OPENED)
        watch.loop.stop()

    monkeypatch.setattr(node.hostnet, "host_events", events)
    monkeypatch.setattr(watch, "_on_change", lambda change: told.append(str(change.kind)))
    watch.loop.run()
    assert told == ["missed", "open", "missed"]
