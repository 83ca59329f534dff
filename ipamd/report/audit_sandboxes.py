"""The part of the audit about sandboxes: compare their wiring in the kernel with the records."""

from __future__ import annotations

from collections.abc import Iterable

from ipamd.core.key_locks import KeyLocks
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment, WiringSpec
from ipamd.model.cniresult import recorded_spec
from ipamd.model.finding_codes import FindingCode
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import HostVeth, KernelSurvey, duplicate_addresses
from ipamd.model.legs import first_alone, first_leg
from ipamd.model.snapshot import Snapshot
from ipamd.model.wiring_comparison import wiring_differences
from ipamd.ports.datastore import Datastore
from ipamd.report.finding import AuditFinding, finding

UNUSED_STATES = AddressState.FREE, AddressState.COOLING


def against_kernel(snapshot: Snapshot, survey: KernelSurvey, *, datastore: Datastore, locks: KeyLocks) -> list[AuditFinding]:
    """Compare the wiring of every sandbox with its record.

    Args:
        snapshot: the records, read before `survey`. `datastore` is read again, because an ADD or DEL in between may explain a
            difference.
        locks: the locks of sandboxes. A sandbox with a running operation is left out, because its wiring may change during the survey.
    """
    # The locks are read before the datastore is read again. So if an operation has ended and is not in `busy`, the records that are
    # read below have its changes.
    busy = {lock.key for lock in locks.holders()}
    findings = _duplicates(survey)
    for attachment in still_recorded(snapshot, datastore):
        if attachment.key not in busy and not attachment.must_be_cut_off:
            findings += _wiring_findings(attachment, survey)
    attachments = {*snapshot.attachments.values(), *datastore.attachments()}
    findings += _unowned_links(attachments, survey, busy, datastore)
    if not busy:
        findings += _unowned_vlans(attachments, survey)
    return findings + _routed_unused_addresses(snapshot, survey, datastore)


def still_recorded(snapshot: Snapshot, datastore: Datastore) -> list[Attachment]:
    """Return the attachments of a snapshot that no ADD or DEL has changed since. Only these can be compared with a later answer."""
    return [attachment for attachment in snapshot.attachments.values() if datastore.attachment(attachment.key) == attachment]


def _routed_unused_addresses(snapshot: Snapshot, survey: KernelSurvey, datastore: Datastore) -> list[AuditFinding]:
    """Report free and cooling addresses that still have a route or rule."""
    unused = {row.address for row in snapshot.addresses.values() if row.state in UNUSED_STATES}
    unused -= {attachment.address for attachment in snapshot.attachments.values()}
    routed = {*survey.to_rules, *survey.from_rules, *survey.routes, *survey.own_routes}
    findings = []
    for address in sorted(unused & routed):
        # The rows are older than the survey: an ADD may have wired the address since.
        row = datastore.address(address)
        if row and row.state in UNUSED_STATES:
            findings.append(finding(FindingCode.UNUSED_ADDRESS_ROUTED, address, state=row.state))
    return findings


def _unowned_links(
    attachments: Iterable[Attachment], survey: KernelSurvey, busy: set[AttachmentKey], datastore: Datastore
) -> list[AuditFinding]:
    """Report host veths that are dying, and host veths that no recorded sandbox owns.

    A veth with the alias of a recorded sandbox and another name is not reported here, but as a difference of that sandbox.
    """
    owners: set[str | AttachmentKey] = set()
    for attachment in attachments:
        owners |= {attachment.host_veth, attachment.key}
    findings = []
    for veth in survey.host_veths:
        if veth.is_dying:
            findings.append(finding(FindingCode.LINK_DYING, veth.name))
        elif veth.name not in owners and veth.key is None:
            findings.append(finding(FindingCode.LINK_WITHOUT_ALIAS, veth.name))
        elif not {veth.name, veth.key} & {*owners, *busy}:
            findings.append(_unowned_link(veth, datastore))
    return findings


def _unowned_link(veth: HostVeth, datastore: Datastore) -> AuditFinding:
    """Report a host veth whose alias names a sandbox without a row."""
    code = FindingCode.LINK_UNKNOWN
    if veth.address:
        row = datastore.address(veth.address)
        if row is not None and row.state is AddressState.QUARANTINED:
            code = FindingCode.LINK_QUARANTINED
    return finding(code, veth.name, sandbox=veth.key, address=veth.address)


def _unowned_vlans(attachments: Iterable[Attachment], survey: KernelSurvey) -> list[AuditFinding]:
    """Report VLAN links that no sandbox uses, or that have another address than the sandbox that uses them.

    No ADD may be running, because an ADD makes its VLAN link before its row.
    """
    owners = {}
    for attachment in attachments:
        for name in first_leg(attachment.wiring).links:
            owners[name] = attachment.address
    findings = []
    for link in survey.vlans:
        if link.is_dying:
            continue
        if link.name not in owners or link.address not in (None, owners[link.name]):
            eni, address = link.eni_id or "an unknown ENI", link.address or "no address"
            findings.append(finding(FindingCode.VLAN_LINK_UNKNOWN, link.name, eni=eni, address=address))
    return findings


def _duplicates(survey: KernelSurvey) -> list[AuditFinding]:
    """Report addresses that more than one host veth has."""
    findings = []
    for address, veths in duplicate_addresses(survey).items():
        names = ", ".join(f"{veth.name} of {veth.key}" for veth in veths)
        findings.append(finding(FindingCode.DUPLICATE_ADDRESS, address, count=len(veths), links=names))
    return findings


def _wiring_findings(attachment: Attachment, survey: KernelSurvey) -> list[AuditFinding]:
    """Report how a sandbox's wiring differs from its record. CHECK and the repair use the same comparison.

    A survey that was interrupted may lack an object that exists. So missing objects are reported only if the survey is whole.
    """
    subject = str(attachment.address)
    spec = recorded_spec(attachment)
    if _is_first_link_gone(spec, survey):
        if not survey.is_whole:
            return []
        return [finding(FindingCode.LINK_GONE, subject, sandbox=attachment.key, link=attachment.host_veth)]
    findings = []
    for difference in wiring_differences(spec, survey):
        if difference.is_absence and not survey.is_whole:
            continue
        code = FindingCode.WIRING_DIFFERS
        if difference.kind is None:
            code = FindingCode.WIRING_NOT_OURS
        findings.append(finding(code, subject, difference=difference.text))
    return findings


def _is_first_link_gone(spec: WiringSpec, survey: KernelSurvey) -> bool:
    """Whether the host veth of the first leg is missing."""
    differences = wiring_differences(first_alone(spec), survey)
    return any(difference.kind is None and difference.is_absence for difference in differences)
