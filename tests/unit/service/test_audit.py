"""The audit sees what matters within one look, names the sandbox that suffers, and takes one odd answer of EC2 for no proof."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipamd.eni.book import FROZEN
from ipamd.model.attachment import WiringSpec
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.eni import EniState
from ipamd.model.errors import KernelDumpError, WiringError
from ipamd.model.finding_codes import FindingCode, Severity
from ipamd.model.ids import EniId
from ipamd.model.kernel import KernelSurvey
from ipamd.model.repairs import NODE, NODE_ROUTING, RepairCode, RepairReport
from ipamd.model.routing_difference import repair_difference, routing_difference
from ipamd.model.wiring_difference import WiringDifference
from ipamd.report import audit as service
from ipamd.report.audit import AuditReport
from ipamd.report.audit_ec2 import primary_addresses
from ipamd.report.finding import AuditFinding
from tests.fakes.cloud import IDENTITY, PRIMARY
from tests.fakes.node import FakeNode
from tests.stories.external_changes import detach_by_hand, settle


def audit(node: FakeNode, *, ask_ec2: bool = True) -> AuditReport:
    """One look, which changes nothing."""
    before = node.datastore.snapshot()
    report = service.audit(node.app.introspection.sources, ask_ec2=ask_ec2)
    assert node.datastore.snapshot() == before
    return report


def about(report: AuditReport, subject: object) -> list[AuditFinding]:
    """The findings about one subject."""
    return [found for found in report.findings if found.subject == str(subject)]


def secondary(node: FakeNode) -> EniId:
    """A secondary ENI with a sandbox on it."""
    number = 0
    while all(attachment.eni_id == PRIMARY for attachment in node.datastore.attachments()):
        node.add(f"s{number}")
        node.runtime.run(f"s{number}")
        node.pool.cycle()
        number += 1
    return next(each.eni_id for each in node.datastore.attachments() if each.eni_id != PRIMARY)


def test_a_sound_node_has_no_findings(node: FakeNode) -> None:
    """Nothing to say, nobody silent."""
    secondary(node)
    report = audit(node)
    assert (report.findings, report.silent) == ((), ())


def test_an_eni_detached_by_hand_is_a_violation_while_sandboxes_are_on_it(node: FakeNode) -> None:
    """Its link is gone: said in one look, with the sandboxes that have no network, and without EC2; EC2's answer adds the ENI, and not
    each of its addresses."""
    eni_id = secondary(node)
    eni = node.datastore.eni(eni_id)
    assert eni is not None
    node.hostnet.unplugged.add(eni.mac)
    (found,) = about(audit(node, ask_ec2=False), eni_id)
    assert (found.code, found.severity) == (FindingCode.ROUTING_CUT_OFF, Severity.VIOLATION)
    (name,) = (one.sandbox_name or str(one.key) for one in node.datastore.attachments() if one.eni_id == eni_id)
    assert (found.fields["sandboxes"], found.fields["count"]) == (name, "1 sandbox")
    del node.ec2.enis[eni_id]
    told = [one.subject for one in audit(node).findings]
    assert told == [eni_id, eni_id]
    for attachment in node.datastore.attachments():
        node.delete(attachment.key.container_id)
    assert [found.severity for found in about(audit(node, ask_ec2=False), eni_id)] == [Severity.DIFFERENCE]


def test_a_forgotten_eni_that_ec2_still_has_is_named(node: FakeNode) -> None:
    """Only an ENI that others detached, and while EC2 has it; a node without one asks EC2 once."""
    eni_id = secondary(node)
    before = node.ec2.calls["find_detached"]
    assert about(audit(node), eni_id) == []
    assert node.ec2.calls["find_detached"] == before
    for attachment in node.datastore.attachments():
        if attachment.eni_id == eni_id:
            node.delete(attachment.key.container_id)
    settle(node)
    detach_by_hand(node, eni_id)
    node.look_twice()
    node.cool()
    node.enis.forget_unused()
    assert node.datastore.eni(eni_id) is None
    assert [found.code for found in about(audit(node), eni_id)] == [FindingCode.ENI_LEFT_DETACHED]
    del node.ec2.enis[eni_id]
    assert about(audit(node), eni_id) == []


def test_damaged_routing_is_a_difference_that_names_what_repairs_it(node: FakeNode) -> None:
    """Of an ENI and of the node itself."""
    eni_id = secondary(node)
    node.hostnet.enis.clear()
    node.hostnet.node_differences = [
        repair_difference(RepairReport(RepairCode.ADDED, NODE_ROUTING, "rule 1024 fwmark 0x80"), NODE),
        routing_difference(DifferenceCode.NOT_COMPARED, NODE, cause="sysctl x could not be set"),
    ]
    report = audit(node)
    (found,) = about(report, eni_id)
    assert found.code is FindingCode.ROUTING_REPAIRED
    assert [found.code for found in about(report, NODE)] == [FindingCode.ROUTING_REPAIRED, FindingCode.ROUTING_DIFFERS]


def test_a_frozen_eni_is_told_with_its_reason(node: FakeNode) -> None:
    """And an ENI whose routing is not set up, which gives no address either."""
    eni_id = secondary(node)
    node.enis.routing.freeze(eni_id)
    (found,) = about(audit(node), eni_id)
    assert found.code is FindingCode.ENI_FROZEN
    assert found.fields == {"reason": FROZEN, "count": "1 sandbox"}
    node.enis.routing.thaw(eni_id)
    node.enis.routing.set_up_again(eni_id)
    assert about(audit(node), eni_id) == []
    known = node.datastore.eni(eni_id)
    assert known is not None
    with node.datastore.transaction() as uow:
        uow.put_eni(replace(known, host_ready=False))
    (found,) = about(audit(node), eni_id)
    assert found.code is FindingCode.ENI_NOT_SET_UP
    node.hostnet.enis.clear()
    assert [found.severity for found in about(audit(node), eni_id)] == [Severity.PENDING]
    node.hostnet.unplugged.add(known.mac)
    assert {found.severity for found in about(audit(node), eni_id)} == {Severity.PENDING, Severity.VIOLATION}


def test_a_lost_address_is_a_violation_of_its_sandboxs_network_and_names_the_sandbox(node: FakeNode) -> None:
    """Without asking EC2; one that nobody uses is only pending."""
    used, cooling = node.add("a"), node.add("b")
    node.runtime.run("a")
    node.delete("b")
    node.cooldown.sweep()
    with node.datastore.transaction() as uow:
        for row in (used.address, cooling.address):
            uow.lose(row, reason="EC2 does not show it")
    report = audit(node, ask_ec2=False)
    (found,) = about(report, used.address)
    assert (found.code, found.severity) == (FindingCode.LOST_ADDRESS, Severity.VIOLATION)
    assert found.fields["sandbox"] == f"{used.key} (default/a)"
    (found,) = about(report, cooling.address)
    assert (found.code, found.severity) == (FindingCode.LOST_UNUSED_ADDRESS, Severity.PENDING)


def forget_recent(node: FakeNode) -> None:
    """Our own calls are long ago."""
    node.clock.advance(3600)


def test_an_address_that_ec2_does_not_show_once_is_not_confirmed(node: FakeNode) -> None:
    """A difference, and only pending right after our own call; the sandbox's address is not called lost on one look (I11)."""
    used = node.add("a")
    node.runtime.run("a")
    eni = node.ec2.enis[PRIMARY]
    node.ec2.enis[PRIMARY] = replace(eni, secondary_addresses=eni.secondary_addresses - {used.address})
    (found,) = about(audit(node), used.address)
    assert (found.code, found.severity) == (FindingCode.ADDRESS_ELSEWHERE_RECENTLY, Severity.PENDING)
    forget_recent(node)
    (found,) = about(audit(node), used.address)
    assert (found.code, found.severity) == (FindingCode.ADDRESS_ELSEWHERE, Severity.DIFFERENCE)
    assert about(audit(node, ask_ec2=False), used.address) == []


def test_an_address_that_is_a_primary_one_for_ec2_is_a_difference(node: FakeNode) -> None:
    """One answer breaks no invariant; a record that contradicts another does (I6)."""
    address = node.datastore.addresses()[-1].address
    eni = node.ec2.enis[PRIMARY]
    other = EniId("eni-other")
    node.ec2.enis[PRIMARY] = replace(eni, secondary_addresses=eni.secondary_addresses - {address})
    node.ec2.enis[other] = replace(eni, eni_id=other, primary_address=address, secondary_addresses=frozenset(), device_index=3)
    forget_recent(node)
    report = audit(node)
    assert {found.severity for found in about(report, address)} == {Severity.DIFFERENCE}
    assert FindingCode.ADDRESS_IS_PRIMARY in [found.code for found in about(report, address)]
    (found,) = about(report, other)
    assert found.code is FindingCode.ENI_UNKNOWN


def test_an_eni_whose_primary_address_a_sandbox_has_lost_takes_a_place(node: FakeNode) -> None:
    """EC2 gave a lost address to a new ENI of ours while its sandbox lives: the ENI waits, and is not lost sight of (I6, I9)."""
    address = node.add("a").address
    with node.datastore.transaction() as uow:
        uow.lose(address, reason="EC2 no longer shows it")
    eni, other = node.ec2.enis[PRIMARY], EniId("eni-other")
    node.ec2.enis[PRIMARY] = replace(eni, secondary_addresses=eni.secondary_addresses - {address})
    node.ec2.enis[other] = replace(eni, eni_id=other, primary_address=address, secondary_addresses=frozenset(), device_index=3)
    forget_recent(node)
    (found,) = about(audit(node), other)
    assert (found.code, found.fields["holder"]) == (FindingCode.ENI_PLACE_TAKEN, "a sandbox")


def test_an_eni_whose_primary_address_a_kept_eni_has_takes_a_place(node: FakeNode) -> None:
    """An ENI stays on record for its sandboxes after it was deleted by hand, and EC2 gives its primary address to another one: that is
    not adopted at the next comparison, and the audit does not say so."""
    kept, other = secondary(node), EniId("eni-other")
    node.ec2.enis[other] = replace(node.ec2.enis.pop(kept), eni_id=other, secondary_addresses=frozenset())
    (found,) = about(audit(node), other)
    assert (found.code, found.fields["holder"]) == (FindingCode.ENI_PLACE_TAKEN, kept)


def test_an_implausible_answer_is_silence(node: FakeNode) -> None:
    """Without the primary ENI, or empty: no finding about any address, and the report says why."""
    node.add("a")
    node.runtime.run("a")
    node.ec2.enis.clear()
    report = audit(node)
    assert report.findings == ()
    assert report.silent == ("EC2: its answer is not plausible, it is empty: nothing is concluded from it",)


def test_an_eni_that_only_takes_a_place_is_no_difference(node: FakeNode) -> None:
    """EFA-only, or IPv6-only: it has no IPv4 address, is attached, and is left alone."""
    efa = EniId("eni-efa")
    shape = replace(node.ec2.enis[PRIMARY], eni_id=efa, primary_address=None, secondary_addresses=frozenset(), device_index=4)
    node.ec2.enis[efa] = replace(shape, interface_type="efa-only")
    (found,) = about(audit(node), efa)
    assert (found.code, found.severity) == (FindingCode.ENI_UNUSABLE, Severity.PENDING)


def test_an_eni_that_ec2_does_not_show_is_not_forgotten_by_a_look(node: FakeNode) -> None:
    """One of three: plausible, not confirmed."""
    eni_id = secondary(node)
    forget_recent(node)
    del node.ec2.enis[eni_id]
    assert FindingCode.ENI_MISSING in [each.code for each in about(audit(node), eni_id)]
    known = node.datastore.eni(eni_id)
    assert known is not None
    assert known.state is EniState.ATTACHED


def test_silent_sources_are_named_and_do_not_hide_the_others(node: FakeNode) -> None:
    """A dump that was interrupted concludes nothing; what EC2 and the records tell is told (I11)."""
    node.hostnet.fail["differences"] = [KernelDumpError("interrupted")]
    node.wiring.fail["survey"] = [KernelDumpError("interrupted too")]
    node.ec2.enis.pop(PRIMARY)
    report = audit(node)
    assert [sentence.partition(":")[0] for sentence in report.silent] == ["kernel", "host routing", "EC2"]


def test_what_a_sandbox_did_inside_is_told_and_left(node: FakeNode) -> None:
    """I14: the finding says what differs and what to do, at each audit, and nothing else looks inside."""
    first, second = node.add("a"), node.add("b")
    node.runtime.run("a")
    node.runtime.run("b")
    node.wiring.lost_inside = {second.key}
    for _ in range(2):
        node.host_reconciler.run_due(is_by_clock=True)
        (found,) = about(audit(node), second.address)
        assert (found.code, found.severity) == (FindingCode.INSIDE_DIFFERS, Severity.DIFFERENCE)
        assert about(audit(node), first.address) == []


def test_a_sandbox_that_cannot_be_entered_is_silent_and_hides_no_other(node: FakeNode) -> None:
    """I11: whoever fails to be looked at is named, and the next one is looked at."""
    first, second = node.add("a"), node.add("b")
    node.wiring.fail["check_inside"] = [WiringError("no descriptor is left")]
    node.wiring.lost_inside = {first.key, second.key}
    report = audit(node)
    assert [one for one in report.silent if "no descriptor is left" in one] == [f"sandbox {first.key}: no descriptor is left"]
    assert FindingCode.INSIDE_DIFFERS in [found.code for found in about(report, second.address)]


def test_a_sandbox_that_goes_while_it_is_looked_at_is_no_finding(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a DEL took away while the audit read is no difference of the sandbox."""
    made = node.add("a")

    def look(_: WiringSpec) -> list[WiringDifference]:
        assert node.delete("a")
        return ["interface eth0 is missing"]

    monkeypatch.setattr(node.wiring, "check_inside", look)
    report = service.audit(node.app.introspection.sources)
    assert FindingCode.INSIDE_DIFFERS not in [found.code for found in about(report, made.address)]


def test_sandboxes_deleted_before_the_runtimes_list_are_no_finding(node: FakeNode) -> None:
    """The list is newer than the records that were read first."""
    for name in ("a", "b", "c"):
        node.add(name)
        node.runtime.run(name)
    node.clock.advance(100_000)

    def delete_all() -> None:
        for name in ("a", "b", "c"):
            assert node.delete(name)
            del node.runtime.listed[name]

    node.runtime.before_list = delete_all
    report = service.audit(node.app.introspection.sources, ask_ec2=False)
    assert FindingCode.NOT_LISTED not in [finding.code for finding in report.findings]
    assert report.silent == ()


def test_sandboxes_of_calls_during_the_survey_are_no_finding(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ADD and a DEL ended after the records were read and before the kernel was."""
    gone = node.add("gone")
    node.runtime.run("gone")
    survey = node.wiring.survey

    def survey_later(*, may_be_torn: bool = False) -> KernelSurvey:
        monkeypatch.undo()
        assert node.delete("gone")
        del node.runtime.listed["gone"]
        node.cool()
        node.add("new")
        node.runtime.run("new")
        return survey(may_be_torn=may_be_torn)

    monkeypatch.setattr(node.wiring, "survey", survey_later)
    report = service.audit(node.app.introspection.sources, ask_ec2=False)
    new = node.datastore.attachment(node.key("new"))
    assert new is not None
    assert (about(report, gone.address), about(report, new.host_veth)) == ([], [])


@pytest.mark.parametrize("ask_ec2", [True, False])
def test_ec2_is_asked_once_or_not_at_all(node: FakeNode, ask_ec2: bool) -> None:
    """`--skip-ec2` costs no call."""
    before = node.ec2.calls.copy()
    audit(node, ask_ec2=ask_ec2)
    assert node.ec2.calls - before == ({"describe_enis": 1} if ask_ec2 else {})


def test_a_primary_address_among_the_recorded_ones_is_a_violation(node: FakeNode) -> None:
    """The datastore's own constraints refuse it; if they ever did not, the audit would say so (I6)."""
    snapshot = node.datastore.snapshot()
    row = node.datastore.addresses()[0]
    wrong = replace(snapshot, addresses={IDENTITY.primary_address: replace(row, address=IDENTITY.primary_address)})
    (found,) = primary_addresses(wrong)
    assert (found.code, found.subject) == (FindingCode.PRIMARY_FOR_SANDBOXES, str(IDENTITY.primary_address))
    assert primary_addresses(snapshot) == []
