"""When the host is compared and repaired: soon after a change, rarely for nothing, and each sandbox in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.core.backoffs import REPAIR
from ipamd.host.network import RECONCILE_INTERVAL_S
from ipamd.host.repair_backoff import CONFLICT_REPAIRS, CONFLICT_WINDOW_S
from ipamd.host.triggers import CALM_S, COALESCE_S, GAP_MAX_S, PassScope, Triggers
from ipamd.model.attachment import sandbox_mac
from ipamd.model.conditions import ConditionCode
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import KernelDumpError, WiringError
from ipamd.model.finding_codes import FindingCode
from ipamd.model.kernel import ChangeKind, HostChange, HostVeth
from ipamd.model.repairs import CONFINEMENT, NODE, RepairCode, RepairReport
from ipamd.model.routing_difference import routing_difference
from ipamd.report.audit import audit
from tests.conditions import codes
from tests.fakes.clock import FakeClock
from tests.fakes.cloud import FakeEc2
from tests.fakes.node import FakeNode
from tests.unit.service.metric_values import value


@pytest.fixture
def clock() -> FakeClock:
    """A clock."""
    return FakeClock()


def test_a_burst_of_changes_makes_one_pass(clock: FakeClock) -> None:
    """The first change sets the time, the others add nothing."""
    triggers = Triggers(clock)
    assert triggers.take() == frozenset()
    for _ in range(100):
        triggers.mark(PassScope.EVERYTHING)
        clock.advance(COALESCE_S / 100)
    clock.advance(COALESCE_S / 100)
    assert triggers.take() == {PassScope.EVERYTHING}
    assert triggers.take() == frozenset()


def test_passes_for_nothing_grow_rare_and_one_that_repairs_ends_that(clock: FakeClock) -> None:
    """Changes without pause that mean nothing cost a pass in GAP_MAX_S; after a repair, or a calm while, the next is at once again."""
    triggers = Triggers(clock)

    def wait_s() -> float:
        triggers.mark(PassScope.TABLE)
        waited = 0.0
        while not triggers.take():
            clock.advance(COALESCE_S / 2)
            waited += COALESCE_S / 2
        return waited

    waits = []
    for _ in range(8):
        waits.append(wait_s())
        triggers.done(PassScope.TABLE, has_repaired=False)
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(GAP_MAX_S, abs=COALESCE_S)
    triggers.mark(PassScope.EVERYTHING)
    clock.advance(COALESCE_S)
    assert triggers.take() == {PassScope.EVERYTHING}, "the other scope is not slowed down"
    wait_s()
    triggers.done(PassScope.TABLE, has_repaired=True)
    assert wait_s() == pytest.approx(COALESCE_S, abs=COALESCE_S)
    for _ in range(8):
        triggers.done(PassScope.TABLE, has_repaired=False)
    clock.advance(CALM_S + 1)
    assert wait_s() == pytest.approx(COALESCE_S, abs=COALESCE_S)


def veth_of(node: FakeNode, name: str) -> HostVeth:
    """The host veth of a sandbox as the kernel announces it, in order."""
    made = node.datastore.attachment(node.key(name))
    assert made is not None
    mac = sandbox_mac(made.key, side="host")
    (seen,) = (veth for veth in node.wiring.survey().veths if veth.name == made.host_veth)
    return replace(seen, mac=mac, mtu=node.wiring.wired[made.host_veth].mtu)


def passes(node: FakeNode, change: HostChange) -> int:
    """How many passes a change makes due: 0 or 1."""
    node.host_reconciler.on_change(change)
    node.clock.advance(GAP_MAX_S)
    return len(node.host_reconciler._triggers.take())


def test_a_link_is_compared_with_its_record(node: FakeNode) -> None:
    """Only a veth of a recorded sandbox that differs from its record asks for a pass: not one of an ADD or DEL at work."""
    node.add("a")
    sound = veth_of(node, "a")
    assert passes(node, HostChange(ChangeKind.LINK, veth=sound)) == 0
    for damage in ({"is_up": False}, {"mtu": 1400}, {"mac": "02:00:00:00:00:77"}, {"alias": "", "key": None, "address": None}):
        assert passes(node, HostChange(ChangeKind.LINK, veth=replace(sound, **damage))) == 1, damage
        dying = replace(sound, **damage, is_dying=True)
        assert passes(node, HostChange(ChangeKind.LINK, veth=dying)) == 0
    node.delete("a")
    assert passes(node, HostChange(ChangeKind.LINK, veth=replace(sound, is_up=False))) == 0


def test_what_concerns_nobody_makes_no_pass(node: FakeNode) -> None:
    """Routes, rules and addresses of others, as Docker and other CNIs make them."""
    theirs, kinds = IPv4Address("172.17.0.1"), ChangeKind
    assert passes(node, HostChange(kinds.ADDRESS, address=theirs, length=16)) == 0
    assert passes(node, HostChange(kinds.ROUTE, address=IPv4Address("172.17.0.0"), length=16, table=254)) == 0
    assert passes(node, HostChange(kinds.RULE, address=theirs, length=32, table=77, priority=100)) == 0


def test_what_concerns_us_makes_a_pass(node: FakeNode) -> None:
    """Our addresses wherever they occur, our rules, our tables, the default route, and what was lost."""
    pod = node.add("a").address
    for number in range(9):  # the primary ENI is full then
        node.pool.cycle()
        node.add(f"pod{number}")
    eni = next(eni for eni in node.datastore.enis() if not eni.is_primary)
    ours = [
        HostChange(ChangeKind.ADDRESS, address=pod, length=32),
        HostChange(ChangeKind.ADDRESS, address=eni.primary_address, length=20),
        HostChange(ChangeKind.ROUTE, address=pod, length=32, table=254),
        HostChange(ChangeKind.ROUTE, address=IPv4Address("192.0.2.0"), length=24, table=eni.route_table),
        HostChange(ChangeKind.ROUTE, address=None, table=254),
        HostChange(ChangeKind.RULE, address=pod, length=32, table=254, priority=512),
        HostChange(ChangeKind.RULE, address=None, table=113213, priority=513),
        HostChange(ChangeKind.ROUTE, address=pod, length=32, table=113213),
        HostChange(ChangeKind.RULE, address=None, table=254, priority=1024),
        HostChange(ChangeKind.RULE, address=IPv4Address("203.0.113.0"), length=24, table=254, priority=1535),
        HostChange(ChangeKind.NFT),
        HostChange(ChangeKind.MISSED),
    ]
    for change in ours:
        assert passes(node, change) == 1, change


def test_an_nft_transaction_looks_at_the_table_only(node: FakeNode) -> None:
    """kube-proxy ends a transaction a second: each costs one listing of our table, and no survey."""
    node.host_reconciler.reconcile()
    node.hostnet.is_table_lost = True
    surveys: list[int] = []
    real = node.wiring.survey
    node.wiring.survey = lambda **named: (surveys.append(1), real(**named))[1]  # type: ignore[method-assign]
    node.host_reconciler.on_change(HostChange(ChangeKind.NFT, process="nft (process 7)"))
    node.clock.advance(COALESCE_S)
    node.host_reconciler.run_due(is_by_clock=False)
    assert not node.hostnet.is_table_lost
    assert surveys == []


def test_a_mended_filter_ends_its_condition_after_the_change(node: FakeNode) -> None:
    """While there are findings, a change of nftables has the filters read again; without findings the clock does it."""
    filters, seen = routing_difference(DifferenceCode.FILTER_POLICY_DROPS, NODE, chain="ip a b", command="x"), node.hostnet
    seen.software_findings = (filters,)
    seen.software_now = [filters]
    node.host_reconciler.reconcile()
    conditions = partial(codes, node.health, "other software")
    for expected, now in ((True, [filters]), (False, []), (False, [filters])):
        seen.software_now = now
        node.host_reconciler.on_change(HostChange(ChangeKind.NFT, process="nft (process 7)"))
        node.clock.advance(GAP_MAX_S + COALESCE_S)
        node.host_reconciler.run_due(is_by_clock=False)
        assert (ConditionCode.OTHER_SOFTWARE in conditions()) is expected


def test_tables_that_are_fought_over_are_put_back_each_time(node: FakeNode) -> None:
    """A look at our tables waits for no gap and no pause: without them pods are unconfined, or reach nobody outside (I2)."""
    for _ in range(10 * CONFLICT_REPAIRS):
        node.hostnet.is_table_lost = True
        node.hostnet.is_confined = False
        node.host_reconciler.on_change(HostChange(ChangeKind.NFT, process="kube-proxy (process 7)"))
        node.clock.advance(COALESCE_S)
        node.host_reconciler.run_due(is_by_clock=False)
        assert node.hostnet.is_confined
        assert not node.hostnet.is_table_lost


def wait_after_changes(node: FakeNode, *, count: int) -> float:
    """Seconds that the last of several transactions of nftables, one after another, waits for its pass."""
    waited = 0.0
    for _ in range(count):
        waited, before = 0.0, node.hostnet.table_count
        node.host_reconciler.on_change(HostChange(ChangeKind.NFT, process="kube-proxy (process 7)"))
        while node.hostnet.table_count == before:
            node.clock.advance(COALESCE_S / 2)
            waited += COALESCE_S / 2
            with suppress(WiringError):
                node.host_reconciler.run_due(is_by_clock=False)
    return waited


def test_a_lasting_refusal_is_no_repair(node: FakeNode) -> None:
    """A kernel without nft_fib beside a busy kube-proxy: passes grow rare, and the refusal is a condition, not a row each time."""
    refused = RepairReport(RepairCode.REFUSED, CONFINEMENT, cause="no nft_fib")
    node.hostnet.is_confined, node.hostnet.confine_refusals = False, [refused]
    rows: list[str] = []
    node.host_reconciler.record_repair = rows.append  # type: ignore[method-assign]
    assert wait_after_changes(node, count=8) == pytest.approx(GAP_MAX_S, abs=COALESCE_S)
    assert "confinement" in node.health.conditions_by_subject()
    assert rows == []


def test_a_fight_is_no_row_at_each_repair(node: FakeNode) -> None:
    """What is put back each second fills neither the history nor the log: the condition counts it. A later one is told again."""
    rows: list[str] = []
    node.host_reconciler.record_repair = rows.append  # type: ignore[method-assign]

    def repaired(count: int) -> None:
        for _ in range(count):
            node.hostnet.is_table_lost = True
            node.host_reconciler.mark(PassScope.TABLE)
            node.clock.advance(COALESCE_S * 2)
            node.host_reconciler.run_due(is_by_clock=False)
            assert not node.hostnet.is_table_lost

    repaired(40)
    assert len(rows) == CONFLICT_REPAIRS - 1
    counts = [problem.fields.get("count") for one in node.health.conditions_since().values() for problem in one.problems]
    assert "40" in counts
    node.clock.advance(CONFLICT_WINDOW_S * 3)
    node.host_reconciler.reconcile()
    repaired(1)
    assert len(rows) == CONFLICT_REPAIRS


def test_passes_that_fail_grow_rare(node: FakeNode) -> None:
    """A node without libnftables."""
    node.hostnet.fail["reconcile_table"] = [WiringError("libnftables.so.1 is missing")] * 8
    assert wait_after_changes(node, count=8) == pytest.approx(GAP_MAX_S, abs=COALESCE_S)


def test_a_held_object_is_repaired_once_its_pause_is_over(node: FakeNode) -> None:
    """No notification and no clock is needed for that."""
    made = node.add("a")
    for _ in range(CONFLICT_REPAIRS):
        del node.wiring.routes[made.address]
        node.host_reconciler.reconcile()
    del node.wiring.routes[made.address]
    node.host_reconciler.reconcile()
    assert made.address not in node.wiring.routes
    node.clock.advance(REPAIR.first_s)
    node.host_reconciler.run_due(is_by_clock=False)
    assert node.wiring.routes[made.address] == made.host_veth


def test_repairs_go_on_while_links_change_without_pause(node: FakeNode) -> None:
    """Row 9: a survey that no attempt could finish still shows what is there; each sandbox is compared by itself (I11)."""
    made = node.add("a")
    del node.wiring.routes[made.address]
    node.wiring.fail["survey"] = [KernelDumpError("torn")]
    node.host_reconciler.reconcile()
    assert node.wiring.routes[made.address] == made.host_veth


def test_an_audit_of_a_torn_survey_says_so_and_misses_nothing_by_it(node: FakeNode) -> None:
    """I11: what an interrupted survey does not show is no finding."""
    made = node.add("a")
    del node.wiring.routes[made.address]
    node.wiring.fail["survey"] = [KernelDumpError("torn")]
    sources = node.app.introspection.sources
    report = audit(sources, ask_ec2=False)
    assert any("changed without pause" in one for one in report.silent)
    wrong = FindingCode.WIRING_DIFFERS, str(made.address)
    assert wrong not in [(finding.code, finding.subject) for finding in report.findings]
    assert wrong in [(finding.code, finding.subject) for finding in audit(sources, ask_ec2=False).findings]


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with 40 sandboxes on two ENIs."""
    node = FakeNode(tmp_path, ec2=FakeEc2(limits=InstanceLimits("m5.4xlarge", 8, 30)))
    node.bring_up()
    for number in range(40):
        node.pool.cycle()
        node.add(f"pod{number}")
    yield node
    node.datastore.close()


@pytest.mark.parametrize("pass_s", [RECONCILE_INTERVAL_S, RECONCILE_INTERVAL_S + 0.7, RECONCILE_INTERVAL_S + 7])
def test_every_sandbox_has_its_turn_within_five_minutes(crowd: FakeNode, pass_s: float) -> None:
    """Each pass by the clock asks for the ways of some; within five minutes for those of all, also if passes come late."""
    node, addresses = crowd, [one.address for one in crowd.datastore.attachments()]
    asked_s = dict.fromkeys(addresses, node.clock.monotonic())
    for _ in range(120):
        node.clock.advance(pass_s)
        node.hostnet.asked = []
        node.host_reconciler.run_due(is_by_clock=True)
        assert len(node.hostnet.asked) <= 2 * len(addresses) // 5
        asked_s.update(dict.fromkeys(node.hostnet.asked, node.clock.monotonic()))
        assert node.clock.monotonic() - min(asked_s.values()) <= 300


def test_a_sandbox_that_is_cut_off_is_named_until_it_is_not(crowd: FakeNode) -> None:
    """In status and the metric, asked for again at each pass; a change that names it has it asked for at once."""
    node, addresses = crowd, [one.address for one in crowd.datastore.attachments()]
    for address in addresses[:2]:
        node.hostnet.led_astray.add(address)
        node.host_reconciler.on_change(HostChange(ChangeKind.RULE, address=address, length=32, priority=9))
        node.clock.advance(GAP_MAX_S)
        node.host_reconciler.run_due(is_by_clock=False)
    assert value(node, "ipamd_cut_off_sandboxes") == 2
    node.host_reconciler.run_due(is_by_clock=True)
    sandboxes = [one for one in node.datastore.attachments() if one.address in addresses[:2]]
    assert set(node.host_reconciler.failed_sandboxes.names) == {str(one.key) for one in sandboxes}
    node.hostnet.led_astray.clear()
    node.host_reconciler.run_due(is_by_clock=True)
    assert value(node, "ipamd_cut_off_sandboxes") == 0


def test_a_route_that_is_emptied_every_30_s_is_missing_for_no_longer_than_a_pass(node: FakeNode) -> None:
    """A pause after repairs made an outage of 0.4 s in each 30 s one of 29 s."""
    made = node.add("a")
    outages = []
    for _ in range(20):
        del node.wiring.routes[made.address]
        began_s = node.clock.monotonic()
        node.host_reconciler.on_change(HostChange(ChangeKind.ROUTE, address=made.address, length=32, is_gone=True))
        while made.address not in node.wiring.routes:
            assert node.clock.monotonic() - began_s < 30, outages
            node.clock.advance(COALESCE_S)
            node.host_reconciler.run_due(is_by_clock=False)
        outages.append(node.clock.monotonic() - began_s)
        node.clock.advance(30 - outages[-1])
    assert max(outages) <= 2 * COALESCE_S
    codes = [code for one in node.health.conditions_since().values() for code in one.codes]
    assert codes == [ConditionCode.REPAIR_CONFLICT]
