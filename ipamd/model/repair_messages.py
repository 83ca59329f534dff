"""The sentences of repairs. Only this module makes text of a `RepairReport`. Pure.

Each sentence says what was wrong with which object, and after a colon what was done. An audit, which changes nothing, shows only the
part before the colon.
"""

from __future__ import annotations

from collections.abc import Iterable

from ipamd.model.repairs import RepairCode, RepairReport

DIFFERENCES = {
    RepairCode.ADDED: "{target} was missing",
    RepairCode.REMOVED: "{target} is not needed",
    RepairCode.FOREIGN_REMOVED: "{target} is not ours",
    RepairCode.MISLEADING_REMOVED: "{target} leads elsewhere",
    RepairCode.ROUTE_REPLACED: "{target} led through {before}, not {after}",
    RepairCode.VALUE_SET: "{target} was {before}",
    RepairCode.LINK_SET: "{before}",
    RepairCode.LINK_RENAMED: "host link {target} was named {before}",
    RepairCode.TABLE_RENEWED: "{target} was of an earlier start",
    RepairCode.TABLE_RESTORED: "{target} had been changed",
    RepairCode.FILE_WRITTEN: "{target} {before}",
    RepairCode.TABLE_FOLLOWED: "{target} did not follow a change of {cause} yet",
    RepairCode.FILE_UPDATED: "{target} was of an earlier image",
    RepairCode.STRAY_REMOVED: "rules of {target} led nowhere",
    RepairCode.CUT_OFF: "sandbox {owner} with {target} is cut off",
    RepairCode.LINK_TAKEN_DOWN: "VLAN link {target} of {owner} waits for its host veth",
    RepairCode.DISCOVERY_OPENED: "{target} is not needed: its sandboxes need neighbour discovery",
    RepairCode.ENTRY_REMOVED: "{target} has entries of plugins that have been missing for 10 minutes ({before})",
    RepairCode.STEP_FAILED: "{target} failed",
    RepairCode.LINK_GOING: "{cause}; sandbox {owner}",
    RepairCode.ENI_LINK_MISSING: "the link of {owner} with MAC {target} is missing",
    RepairCode.ROUTE_OF_ANOTHER: "{target} of {owner} is routed through {before}",
    RepairCode.NOT_WIRED_AGAIN: "host link {target} of {owner} was missing",
    RepairCode.REFUSED: "could not be repaired",
    RepairCode.ENI_REFUSED: "routing of {owner} could not be repaired",
    RepairCode.LINK_NOT_OURS: "{cause}; sandbox {owner}",
    RepairCode.VLAN_LINK_MISSING: "VLAN link {target} of {owner} is missing",
    RepairCode.VLAN_LINK_NOT_OURS: "link {target} is not the VLAN link of {owner}: it {cause}",
}
"""By code: what was wrong."""

RESULTS = {
    RepairCode.ADDED: "added",
    RepairCode.REMOVED: "removed",
    RepairCode.FOREIGN_REMOVED: "removed",
    RepairCode.MISLEADING_REMOVED: "removed",
    RepairCode.ROUTE_REPLACED: "replaced",
    RepairCode.VALUE_SET: "set to {after}",
    RepairCode.LINK_SET: "set",
    RepairCode.LINK_RENAMED: "renamed",
    RepairCode.TABLE_RENEWED: "replaced",
    RepairCode.TABLE_RESTORED: "replaced",
    RepairCode.FILE_WRITTEN: "written again",
    RepairCode.TABLE_FOLLOWED: "replaced",
    RepairCode.FILE_UPDATED: "replaced",
    RepairCode.STRAY_REMOVED: "removed",
    RepairCode.CUT_OFF: "{after} taken down",
    RepairCode.LINK_TAKEN_DOWN: "taken down until it is right",
    RepairCode.DISCOVERY_OPENED: "removed",
    RepairCode.ENTRY_REMOVED: "removed",
    RepairCode.STEP_FAILED: "{cause}",
    RepairCode.LINK_GOING: "not repaired",
    RepairCode.ENI_LINK_MISSING: "not repaired",
    RepairCode.ROUTE_OF_ANOTHER: "not repaired",
    RepairCode.NOT_WIRED_AGAIN: "not repaired: {cause}",
    RepairCode.REFUSED: "{cause}",
    RepairCode.ENI_REFUSED: "{cause}",
    RepairCode.LINK_NOT_OURS: "not repaired",
    RepairCode.VLAN_LINK_MISSING: "not repaired: {cause}",
    RepairCode.VLAN_LINK_NOT_OURS: "not repaired, the sandbox is cut off; delete it: ip link del {target}",
}
"""By code: what was done, or why nothing was done."""


def difference_text(report: RepairReport) -> str:
    """Return what is wrong, for a repair that was not made."""
    return _filled(DIFFERENCES[report.code], report)


def repair_text(report: RepairReport) -> str:
    """Return a sentence with what was wrong and what was done."""
    return _filled(f"{DIFFERENCES[report.code]}: {RESULTS[report.code]}", report)


def _filled(template: str, report: RepairReport) -> str:
    return template.format(target=report.target, before=report.before, after=report.after, owner=report.owner, cause=report.cause)


def repair_texts(reports: Iterable[RepairReport]) -> str:
    """Return the sentences of reports in one line."""
    return "; ".join(map(repair_text, reports))
