"""The part of the audit about sandboxes with branch ENIs: compare their records with EC2's answer about these ENIs.

One answer of EC2 may be out of date. So a record that one answer contradicts is reported as not confirmed.
"""

from __future__ import annotations

from ipamd.model.attachment import UNCONFIRMED, Attachment
from ipamd.model.legs.branch_eni import branch_eni_of
from ipamd.model.legs.branch_evidence import contradiction
from ipamd.model.legs.finding_codes import LegFindingCode
from ipamd.model.snapshot import Snapshot
from ipamd.report.finding import AuditFinding, ask_source, finding
from ipamd.report.sources import Sources


def contradicted(snapshot: Snapshot) -> list[AuditFinding]:
    """Report each branch ENI that EC2 has contradicted twice or has not confirmed. Reads only the snapshot."""
    unconfirmed, contradicted = [], []
    for attachment in snapshot.attachments.values():
        eni, sandbox = attachment.eni_id, f"{attachment.key} ({attachment.sandbox_name or '-'})"
        if attachment.objection:
            code = LegFindingCode.BRANCH_CONTRADICTED
            if attachment.must_be_cut_off:
                code = LegFindingCode.BRANCH_CUT_OFF
            objection = attachment.objection
            contradicted.append(finding(code, attachment.address, eni=eni, sandbox=sandbox, objection=objection))
        elif attachment.is_unconfirmed:
            code = LegFindingCode.BRANCH_UNCONFIRMED
            unconfirmed.append(finding(code, attachment.address, eni=eni, sandbox=sandbox, cause=UNCONFIRMED))
    return unconfirmed + contradicted


def compare_uplinked(sources: Sources, before: Snapshot, after: Snapshot, silent: list[str]) -> list[AuditFinding]:
    """Compare the branch ENIs of sandboxes with one answer of EC2.

    Branch ENIs that EC2 has contradicted twice or has not confirmed are left out, because `contradicted` reports them. If EC2 does not
    answer, the reason is added to `silent`, and the result is [].
    """
    compared = _comparable_branches(before, after)
    if not compared:
        return []
    eni_ids = [attachment.eni_id for attachment in compared]
    described = ask_source("EC2", lambda: sources.ec2.find_enis(eni_ids), silent)
    if described is None:
        return []
    eni_by_id = {eni.eni_id: eni for eni in described}
    findings = []
    for attachment in compared:
        eni = eni_by_id.get(attachment.eni_id)
        problem = "not shown"
        if eni and not eni.problem:
            problem = contradiction(branch_eni_of(attachment), eni, trunk=sources.trunk())
        if problem:
            named = {"eni": attachment.eni_id, "sandbox": attachment.key}
            findings.append(finding(LegFindingCode.BRANCH_DIFFERS, attachment.address, objection=problem, **named))
    return findings


def _comparable_branches(before: Snapshot, after: Snapshot) -> list[Attachment]:
    """Return the sandboxes with a branch ENI that are still recorded after the answer, and for which no contradiction is recorded."""
    comparable = []
    for key, attachment in before.attachments.items():
        if not attachment.is_of_pool and not attachment.contradiction and key in after.attachments:
            comparable.append(attachment)
    return comparable
