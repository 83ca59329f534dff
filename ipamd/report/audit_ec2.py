"""The part of the audit about EC2: compare the recorded ENIs and addresses with one answer of EC2.

One answer does not prove that something is absent (`ipamd/model/cloud_evidence.py`). So an object that is missing from the answer is
reported as an unconfirmed difference, and an implausible answer is not compared. Addresses that the daemon has already found to be
lost are reported without a call to EC2: a sandbox that has a lost address has no network.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set

from ipamd.model.address import Address
from ipamd.model.cloud import DescribedEni, InstanceIdentity
from ipamd.model.cloud_evidence import CloudKey, addresses_on, plausibility, recorded
from ipamd.model.eni_tags import INSTANCE_TAG
from ipamd.model.family import IpAddress, stand_in
from ipamd.model.finding_codes import FindingCode
from ipamd.model.ids import EniId
from ipamd.model.intent import IntentKind, leaving_addresses
from ipamd.model.snapshot import Snapshot
from ipamd.model.time_text import rfc3339
from ipamd.report.finding import AuditFinding, ask_source, finding
from ipamd.report.legs.uplinked import compare_uplinked
from ipamd.report.sources import Sources


def lost_addresses(snapshot: Snapshot) -> list[AuditFinding]:
    """Report each address that the daemon found to be lost, and which sandbox has it. Reads only the snapshot."""
    findings = []
    for row in snapshot.addresses.values():
        if row.lost_since is None:
            continue
        since, reason = rfc3339(row.lost_since), row.lost_reason or "EC2 does not show it"
        if not row.is_in_use:
            findings.append(finding(FindingCode.LOST_UNUSED_ADDRESS, row.address, since=since, reason=reason, state=row.state))
            continue
        sandbox = str(row.owner)
        for attachment in snapshot.attachments.values():
            if attachment.key == row.owner and attachment.sandbox_name:
                sandbox = f"{row.owner} ({attachment.sandbox_name})"
        findings.append(finding(FindingCode.LOST_ADDRESS, row.address, since=since, reason=reason, sandbox=sandbox))
    return findings


def primary_addresses(snapshot: Snapshot) -> list[AuditFinding]:
    """Report each recorded address that is the primary address of a recorded ENI."""
    primaries = {eni.primary_address for eni in snapshot.enis.values()}
    return [finding(FindingCode.PRIMARY_FOR_SANDBOXES, address) for address in snapshot.addresses if address in primaries]


def compare_with_ec2(sources: Sources, before: Snapshot, silent: list[str]) -> list[AuditFinding]:
    """Compare the records with one complete answer of EC2.

    ENIs and addresses may be recorded or removed during the call. So an address is reported as misplaced only if it was recorded on
    the same ENI before the call (`before`) and after it. If EC2 cannot be asked or does not answer, or if its answer is not plausible,
    the reason is added to `silent`, and the result is [].
    """
    identity = sources.identity()
    if identity is None:
        silent.append("EC2 cannot be asked: instance metadata has not answered, so this node is not known")
        return []
    enis = ask_source("EC2", lambda: sources.ec2.describe_enis(identity.instance_id), silent)
    if enis is None:
        return []
    after = sources.datastore.snapshot()
    recent = {*sources.recent(), *_released(before), *_released(after)}
    implausible = plausibility(enis, recorded(before, identity), recent=recent)
    if implausible:
        silent.append(f"EC2: its answer is not plausible, {implausible}: nothing is concluded from it")
        return []
    eni_of_address = {address: eni.eni_id for eni in enis if eni.is_readable for address in addresses_on(eni)}
    findings = _misplaced_addresses(before, after, enis, eni_of_address, recent)
    findings += _addresses_that_are_primary(before, enis)
    findings += _held_otherwise(eni_of_address, after)
    findings += _changed_enis(enis, after)
    findings += _unrecorded_enis(enis, after)
    findings += _missing_enis(enis, after, recent)
    findings += _left_detached(sources, identity, silent)
    return findings + compare_uplinked(sources, before, after, silent)


def _left_detached(sources: Sources, identity: InstanceIdentity, silent: list[str]) -> list[AuditFinding]:
    """Report ENIs of ours that other software detached, and that EC2 still has. EC2 is asked only if the daemon knows of any."""
    known = sources.left_detached()
    if not known:
        return []
    detached = ask_source("EC2", lambda: sources.ec2.find_detached({INSTANCE_TAG: identity.instance_id}), silent) or ()
    return [finding(FindingCode.ENI_LEFT_DETACHED, eni.eni_id) for eni in detached if eni.eni_id in known]


def _misplaced_addresses(
    before: Snapshot,
    after: Snapshot,
    enis: Collection[DescribedEni],
    eni_of_address: Mapping[IpAddress, EniId],
    recent: Set[CloudKey],
) -> list[AuditFinding]:
    """Report recorded addresses that EC2 shows on another ENI of this node, or on no ENI of this node."""
    shown_enis = {eni.eni_id: eni for eni in enis}
    findings = []
    for row in before.addresses.values():
        if row.is_lost or not _is_still_on_eni(row, after):
            continue
        other_id = eni_of_address.get(stand_in(row.address) or row.address)
        if not _is_elsewhere(row.eni_id, other_id, shown_enis):
            continue
        code = FindingCode.ADDRESS_ELSEWHERE
        if row.address in recent or row.eni_id in recent:
            code = FindingCode.ADDRESS_ELSEWHERE_RECENTLY
        other = other_id or "no ENI of this node"
        findings.append(finding(code, row.address, state=row.state, eni=row.eni_id, other_eni=other))
    return findings


def _is_still_on_eni(row: Address, after: Snapshot) -> bool:
    """Whether the records after EC2's answer still have the address on the same ENI."""
    row_after = after.addresses.get(row.address)
    return row_after is not None and row_after.eni_id == row.eni_id


def _is_elsewhere(eni_id: EniId, other_id: EniId | None, shown_enis: Mapping[EniId, DescribedEni]) -> bool:
    """Whether EC2's answer shows that an address is not on `eni_id`, the ENI for which it is recorded.

    If the answer has that ENI, but its description cannot be read, nothing is concluded.

    Args:
        eni_id: the ENI for which the address is recorded.
        other_id: the ENI on which EC2 shows the address; None if it is on no ENI of this node.
        shown_enis: the ENIs in EC2's answer, by ID.
    """
    if other_id == eni_id:
        return False
    eni = shown_enis.get(eni_id)
    if eni is None:
        # `_missing_enis` reports that EC2's answer lacks the recorded ENI. The address is elsewhere only if another ENI has it.
        return other_id is not None
    return eni.is_readable


def _addresses_that_are_primary(before: Snapshot, enis: Collection[DescribedEni]) -> list[AuditFinding]:
    """Report recorded addresses that EC2 shows as the primary address of an ENI."""
    primaries: dict[IpAddress, EniId] = {eni.primary_address: eni.eni_id for eni in enis if eni.primary_address is not None}
    findings = []
    for address in before.addresses.keys() & primaries.keys():
        findings.append(finding(FindingCode.ADDRESS_IS_PRIMARY, address, eni=primaries[address]))
    return findings


def _held_otherwise(eni_of_address: Mapping[IpAddress, EniId], after: Snapshot) -> list[AuditFinding]:
    """Report addresses that EC2 shows as secondary addresses of an ENI, but that are recorded as the primary address of an ENI, or as
    the address of a sandbox with a branch ENI.
    """
    holders: dict[IpAddress, str] = {eni.primary_address: f"the primary address of {eni.eni_id}" for eni in after.enis.values()}
    for attachment in after.attachments.values():
        if not attachment.is_of_pool:
            holders[attachment.address] = f"that of sandbox {attachment.key}"
    findings = []
    for address in sorted(holders.keys() & eni_of_address.keys(), key=str):
        code = FindingCode.ADDRESS_HELD_OTHERWISE
        findings.append(finding(code, address, holder=holders[address], eni=eni_of_address[address]))
    return findings


def _changed_enis(enis: Collection[DescribedEni], after: Snapshot) -> list[AuditFinding]:
    """Report recorded ENIs whose description by EC2 cannot be read, or has another primary address, MAC, card or device index."""
    findings = []
    for eni in enis:
        row = after.enis.get(eni.eni_id)
        if row is None or eni.attachment_status != "attached":
            continue
        if eni.problem:
            findings.append(finding(FindingCode.ENI_UNREADABLE, eni.eni_id, problem=eni.problem))
        if not eni.is_readable:
            continue
        place = eni.primary_address, eni.mac, eni.network_card, eni.device_index
        recorded_place = row.primary_address, row.mac, row.network_card, row.device_index
        if place != recorded_place:
            recorded_text, shown_text = " ".join(map(str, recorded_place)), " ".join(map(str, place))
            findings.append(finding(FindingCode.ENI_CHANGED, eni.eni_id, recorded=recorded_text, shown=shown_text))
    return findings


def _released(snapshot: Snapshot) -> set[CloudKey]:
    """Return the addresses and ENIs that our open intents release or delete at EC2. No sandbox uses them."""
    intents = snapshot.intents.values()
    enis = {EniId(intent.payload.get("eni_id", "")) for intent in intents if intent.kind is IntentKind.DELETE_ENI}
    return {*leaving_addresses(intents), *enis}


def _unrecorded_enis(enis: Collection[DescribedEni], after: Snapshot) -> list[AuditFinding]:
    """Report attached ENIs without a row, except ENIs that an open intent is about."""
    covered = {intent.payload.get("eni_id") for intent in after.intents.values()}
    unknown = [eni for eni in enis if eni.eni_id not in after.enis and eni.eni_id not in covered]
    # An address is recorded only once, for an ENI or for sandboxes. If an ENI was detached while sandboxes used it, its row stays
    # until these sandboxes are gone. So an ENI whose primary address is that of such a row, or is a lost address of a sandbox, cannot
    # be recorded yet.
    holders: dict[IpAddress | None, str] = {row.primary_address: row.eni_id for row in after.enis.values()}
    holders |= {row.address: "a sandbox" for row in after.addresses.values() if row.is_lost}
    return [_unrecorded_eni(eni, holders.get(eni.primary_address)) for eni in sorted(unknown, key=lambda eni: eni.eni_id)]


def _unrecorded_eni(eni: DescribedEni, holder: str | None) -> AuditFinding:
    """Make the finding about an attached ENI without a row.

    `holder`: the ENI or sandbox for which the ENI's primary address is recorded; None if it is not recorded.
    """
    if holder:
        return finding(FindingCode.ENI_PLACE_TAKEN, eni.eni_id, address=eni.primary_address, holder=holder)
    if eni.is_readable:
        return finding(FindingCode.ENI_UNKNOWN, eni.eni_id)
    problem = eni.problem or f"no IPv4 address ({eni.interface_type})"
    return finding(FindingCode.ENI_UNUSABLE, eni.eni_id, problem=problem)


def _missing_enis(enis: Collection[DescribedEni], after: Snapshot, recent: Set[CloudKey]) -> list[AuditFinding]:
    """Report recorded ENIs that EC2 does not show on this instance."""
    findings = []
    for eni_id in sorted(after.enis.keys() - {eni.eni_id for eni in enis}):
        code = FindingCode.ENI_MISSING
        if eni_id in recent:
            code = FindingCode.ENI_MISSING_RECENTLY
        findings.append(finding(code, eni_id))
    return findings
