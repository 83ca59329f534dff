"""The part of the audit about sandboxes: their wiring in the kernel, and the runtime's list, against the records."""

from __future__ import annotations

from ipamd.core.locks import KeyLocks
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment, sandbox_mac
from ipamd.model.cniresult import others_mac
from ipamd.model.eni import MAIN_TABLE
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import FROM_SANDBOX_PRIORITY, TO_SANDBOX_PRIORITY, HostVeth, KernelSurvey, duplicate_addresses
from ipamd.model.snapshot import Snapshot
from ipamd.ports import Datastore
from ipamd.report.finding import Finding, Severity


def against_kernel(snapshot: Snapshot, survey: KernelSurvey, *, datastore: Datastore, locks: KeyLocks) -> list[Finding]:
    """Compare the wiring of every sandbox with its record.

    Args:
        snapshot: older than `survey`; where an ADD or DEL between them may explain a difference, `datastore` is asked again.
        locks: an ADD or DEL at work changes the kernel while we read: its sandbox is left out.
    """
    attachments, rows = tuple(snapshot.attachments.values()), tuple(snapshot.addresses.values())
    busy = {held.key for held in locks.held()}
    findings = _duplicates(survey)
    veths = {veth.name: veth for veth in survey.veths if not veth.is_dying}
    for attachment in attachments:
        if attachment.key not in busy:
            findings += _wiring_differences(attachment, survey, veths.get(attachment.host_veth))
    findings += _unowned_links(attachments, survey, busy, datastore)
    assigned = {attachment.address for attachment in attachments}
    cold = {row.address for row in rows if row.state in (AddressState.FREE, AddressState.COOLING)} - assigned
    for address in sorted(cold & (set(survey.to_rules) | set(survey.from_rules) | set(survey.routes))):
        # The rows are older than the survey: an ADD may have wired the address since.
        now = datastore.address(address)
        if now is not None and now.state in (AddressState.FREE, AddressState.COOLING):
            findings.append(
                Finding(Severity.VIOLATION, str(address), f"{now.state}, yet it has a route or rule (I4)", "restart vpc-ipamd")
            )
    return findings


def _unowned_links(
    attachments: tuple[Attachment, ...], survey: KernelSurvey, busy: set[AttachmentKey], datastore: Datastore
) -> list[Finding]:
    owners = {attachment.host_veth for attachment in attachments}
    findings = []
    for veth in survey.veths:
        if veth.is_dying:
            findings.append(Finding(Severity.PENDING, veth.name, "marked for deletion", "the cooldown deletes it at once"))
        elif veth.name not in owners and veth.key is None:
            findings.append(Finding(Severity.DIFFERENCE, veth.name, "carries no identity of ours", "left alone"))
        elif veth.name not in owners and veth.key not in busy:
            row = datastore.address(veth.address) if veth.address else None
            is_quarantined = row is not None and row.state is AddressState.QUARANTINED
            findings.append(
                Finding(
                    Severity.DIFFERENCE,
                    veth.name,
                    f"wired for {veth.key} with {veth.address}, which the datastore does not know",
                    "quarantined until runtime and kernel agree" if is_quarantined else "the next start resolves it",
                )
            )
    return findings


def against_runtime(snapshot: Snapshot, listed: set[str]) -> list[Finding]:
    """Compare the records with the runtime's complete list of container IDs."""
    return [
        Finding(
            Severity.PENDING,
            str(attachment.address),
            f"sandbox {attachment.key} is recorded and the runtime does not list it",
            "freed by its DEL, or reaped once every source says that it is gone",
        )
        for attachment in snapshot.attachments.values()
        if attachment.key.container_id not in listed
    ]


def _duplicates(survey: KernelSurvey) -> list[Finding]:
    return [
        Finding(
            Severity.VIOLATION,
            str(address),
            f"{len(veths)} host veths carry it: {', '.join(f'{veth.name} of {veth.key}' for veth in veths)} (I1)",
            "delete the sandbox that should not have it",
        )
        for address, veths in duplicate_addresses(survey).items()
    ]


def _wiring_differences(attachment: Attachment, survey: KernelSurvey, veth: HostVeth | None) -> list[Finding]:
    subject, repair = str(attachment.address), "the host network reconciler repairs it"
    if veth is None:
        gone = f"sandbox {attachment.key} is recorded and its host veth {attachment.host_veth} is gone"
        return [Finding(Severity.PENDING, subject, gone, "freed by its DEL, or reaped within minutes")] if survey.is_whole else []
    findings = _identity_differences(attachment, veth)
    device = survey.routes.get(attachment.address)
    if device != attachment.host_veth and (device is not None or survey.is_whole):
        findings.append(Finding(Severity.DIFFERENCE, subject, f"its route leads to {device or 'nothing'}", repair))
    if attachment.address not in survey.to_rules:
        findings.append(Finding(Severity.DIFFERENCE, subject, f"rule {TO_SANDBOX_PRIORITY} is missing", repair))
    tables = survey.from_rules.get(attachment.address, ())
    if attachment.route_table != MAIN_TABLE and attachment.route_table not in tables:
        findings.append(
            Finding(
                Severity.DIFFERENCE, subject, f"rule {FROM_SANDBOX_PRIORITY} to table {attachment.route_table} is missing", repair
            )
        )
    return findings


def _identity_differences(attachment: Attachment, veth: HostVeth) -> list[Finding]:
    """Compare alias and MAC of a host veth with the record: each is proof enough to put the other back."""
    subject, repair = str(attachment.address), "the host network reconciler repairs it"
    others = others_mac(attachment)
    mac = sandbox_mac(attachment.key, side="host") if others is None else others or veth.mac
    is_mac_known = veth.mac in (mac, "")
    if veth.key is not None and (veth.key, veth.address) != (attachment.key, attachment.address):
        return [
            Finding(Severity.VIOLATION, subject, f"{veth.name} says {veth.key} with {veth.address} (I1)", "delete the sandbox")
        ]
    if veth.key is None and not is_mac_known:
        what = f"{veth.name} has neither alias nor MAC of {attachment.key} (I1)"
        return [Finding(Severity.VIOLATION, subject, what, "delete the sandbox")]
    findings = []
    if veth.key is None:
        findings.append(Finding(Severity.DIFFERENCE, subject, f"{veth.name} has lost its alias", repair))
    if not is_mac_known:
        findings.append(Finding(Severity.DIFFERENCE, subject, f"{veth.name} has MAC {veth.mac}, not {mac}", repair))
    return findings
