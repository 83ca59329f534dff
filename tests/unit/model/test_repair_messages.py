"""One table of the sentences of repairs: every code has one, and each names the object and what was done. Nobody else quotes them."""

from __future__ import annotations

import pytest

from ipamd.model.repair_messages import DIFFERENCES, RESULTS, difference_text, repair_text, repair_texts
from ipamd.model.repairs import OUTCOMES, RepairCode, RepairedObject, RepairKind, RepairOutcome, RepairReport, refusals_of

RULE = RepairedObject(RepairKind.RULE, "10.0.0.5")

SENTENCES = {
    RepairCode.ADDED: "TARGET was missing: added",
    RepairCode.REMOVED: "TARGET is not needed: removed",
    RepairCode.FOREIGN_REMOVED: "TARGET is not ours: removed",
    RepairCode.MISLEADING_REMOVED: "TARGET leads elsewhere: removed",
    RepairCode.ROUTE_REPLACED: "TARGET led through BEFORE, not AFTER: replaced",
    RepairCode.VALUE_SET: "TARGET was BEFORE: set to AFTER",
    RepairCode.LINK_SET: "BEFORE: set",
    RepairCode.LINK_RENAMED: "host link TARGET was named BEFORE: renamed",
    RepairCode.TABLE_RENEWED: "TARGET was of an earlier start: replaced",
    RepairCode.TABLE_RESTORED: "TARGET had been changed: replaced",
    RepairCode.FILE_WRITTEN: "TARGET BEFORE: written again",
    RepairCode.TABLE_FOLLOWED: "TARGET did not follow a change of CAUSE yet: replaced",
    RepairCode.FILE_UPDATED: "TARGET was of an earlier image: replaced",
    RepairCode.STRAY_REMOVED: "rules of TARGET led nowhere: removed",
    RepairCode.CUT_OFF: "sandbox OWNER with TARGET is cut off: AFTER taken down",
    RepairCode.LINK_TAKEN_DOWN: "VLAN link TARGET of OWNER waits for its host veth: taken down until it is right",
    RepairCode.DISCOVERY_OPENED: "TARGET is not needed: its sandboxes need neighbour discovery: removed",
    RepairCode.ENTRY_REMOVED: "TARGET has entries of plugins that have been missing for 10 minutes (BEFORE): removed",
    RepairCode.STEP_FAILED: "TARGET failed: CAUSE",
    RepairCode.LINK_GOING: "CAUSE; sandbox OWNER: not repaired",
    RepairCode.ENI_LINK_MISSING: "the link of OWNER with MAC TARGET is missing: not repaired",
    RepairCode.ROUTE_OF_ANOTHER: "TARGET of OWNER is routed through BEFORE: not repaired",
    RepairCode.NOT_WIRED_AGAIN: "host link TARGET of OWNER was missing: not repaired: CAUSE",
    RepairCode.REFUSED: "could not be repaired: CAUSE",
    RepairCode.ENI_REFUSED: "routing of OWNER could not be repaired: CAUSE",
    RepairCode.LINK_NOT_OURS: "CAUSE; sandbox OWNER: not repaired",
    RepairCode.VLAN_LINK_MISSING: "VLAN link TARGET of OWNER is missing: not repaired: CAUSE",
    RepairCode.VLAN_LINK_NOT_OURS: (
        "link TARGET is not the VLAN link of OWNER: it CAUSE: not repaired, the sandbox is cut off; delete it: ip link del TARGET"
    ),
}


def report(code: RepairCode) -> RepairReport:
    """A report with every field."""
    return RepairReport(code, RULE, "TARGET", before="BEFORE", after="AFTER", owner="OWNER", cause="CAUSE")


@pytest.mark.parametrize("code", RepairCode)
def test_each_code_has_its_sentence(code: RepairCode) -> None:
    """The sentence that people read, and its first half, which an audit shows."""
    assert repair_text(report(code)) == SENTENCES[code]
    assert SENTENCES[code].startswith(difference_text(report(code)))


def test_every_code_is_in_every_table() -> None:
    """A new code cannot be forgotten."""
    assert set(DIFFERENCES) == set(RESULTS) == set(OUTCOMES) == set(SENTENCES) == set(RepairCode)


def test_braces_of_others_are_only_text() -> None:
    """What the kernel or another program wrote is never taken for a field."""
    refused = RepairReport(RepairCode.REFUSED, RULE, cause="{target} {0}")
    assert repair_text(refused) == "could not be repaired: {target} {0}"


def test_only_an_undone_change_is_a_repair() -> None:
    """The outcome decides what is counted and what is a condition."""
    reports = [report(code) for code in RepairCode]
    assert {one.code for one in reports if one.is_repair} == {
        code for code, outcome in OUTCOMES.items() if outcome is RepairOutcome.REPAIRED
    }
    assert [one.code for one in refusals_of(reports)] == [RepairCode.REFUSED, RepairCode.ENI_REFUSED]
    assert all(one.outcome is RepairOutcome.NEEDS_OPERATOR for one in reports if one.needs_operator)


def test_several_are_one_line() -> None:
    """As in the log, the ledger and the condition."""
    assert repair_texts([]) == ""
    assert (
        repair_texts([report(RepairCode.ADDED), report(RepairCode.REMOVED)])
        == "TARGET was missing: added; TARGET is not needed: removed"
    )
