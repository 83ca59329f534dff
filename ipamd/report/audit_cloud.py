"""The part of the audit about EC2: which addresses are on which ENI, by the records and by one answer of EC2.

One answer proves no absence (`ipamd/model/cloud_evidence.py`): what it lacks is a difference that is not confirmed, and an answer
that is not plausible is not compared. What the daemon itself has found to be lost is told without EC2: a sandbox that has a lost
address has no network.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ipamd.model.address import Address
from ipamd.model.cloud import DescribedEni, InstanceIdentity
from ipamd.model.cloud_evidence import addresses_on, plausibility
from ipamd.model.ids import EniId
from ipamd.model.intent import IntentKind, leaving_addresses
from ipamd.model.metadata_evidence import CloudKey, recorded
from ipamd.model.snapshot import Snapshot
from ipamd.model.words import rfc3339
from ipamd.report.finding import Finding, Severity

NOT_CONFIRMED = "not confirmed: one answer may lag; an address is lost after a second one"


@dataclass(frozen=True, slots=True)
class CloudComparison:
    """What one answer shows. `implausible`: why it is not compared, "" if it is; then there are no findings."""

    findings: tuple[Finding, ...] = ()
    implausible: str = ""


def lost_addresses(snapshot: Snapshot) -> list[Finding]:
    """Tell each address that the daemon found to be lost, and which sandbox has it. Asks nobody."""
    found = []
    for row in snapshot.addresses.values():
        if row.lost_since is None:
            continue
        since = f"lost since {rfc3339(row.lost_since)}: {row.lost_reason or 'EC2 does not show it'}"
        if not row.is_in_use:
            what = f"{since}; it is {row.state}"
            found.append(
                Finding(Severity.PENDING, str(row.address), what, "given to nobody, and removed when it would become free")
            )
            continue
        name = next((a.sandbox_name for a in snapshot.attachments.values() if a.key == row.owner), "")
        what = f"{since}; sandbox {row.owner}{f' ({name})' if name else ''} has it and no network (I7)"
        found.append(Finding(Severity.VIOLATION, str(row.address), what, "delete the pod: its successor gets another address"))
    return found


def primary_addresses(snapshot: Snapshot) -> list[Finding]:
    """Tell each recorded address that is the primary address of a recorded ENI."""
    primaries = {eni.primary_address for eni in snapshot.enis.values()}
    return [
        Finding(Severity.VIOLATION, str(address), "a primary address among those for sandboxes (I6)", "report it")
        for address in snapshot.addresses
        if address in primaries
    ]


def against_ec2(
    before: Snapshot,
    described: Iterable[DescribedEni],
    *,
    after: Snapshot,
    identity: InstanceIdentity,
    recent: Collection[CloudKey] = (),
) -> CloudComparison:
    """Compare the records with one complete answer.

    Args:
        before, after: what was recorded before EC2 was asked and after it answered: only what both say is told.
        identity: names the primary ENI, without which no answer is believed.
        recent: what our own calls changed so lately that EC2 may not show it yet.
    Concurrency: pure.
    """
    enis = tuple(described)
    recent = {*recent, *_given_back(before), *_given_back(after)}
    implausible = plausibility(enis, recorded(before, identity), recent=recent)
    if implausible:
        return CloudComparison(implausible=implausible)
    on_eni = {address: eni.eni_id for eni in enis if eni.is_readable for address in addresses_on(eni)}
    unreadable = {eni.eni_id for eni in enis if not eni.is_readable}
    found = [
        _of_address(row, on_eni.get(row.address, ""), is_recent=row.address in recent or row.eni_id in recent)
        for row in before.addresses.values()
        if not row.is_lost
        and on_eni.get(row.address) != row.eni_id
        and row.eni_id not in unreadable
        and _is_unchanged(row, after)
    ]
    primaries = {eni.primary_address: eni.eni_id for eni in enis if eni.primary_address is not None}
    found += [
        Finding(Severity.DIFFERENCE, str(address), f"EC2 has it as the primary address of {primaries[address]}", NOT_CONFIRMED)
        for address in before.addresses.keys() & primaries.keys()
    ]
    return CloudComparison((*found, *_of_enis(enis, after, recent)))


def _given_back(snapshot: Snapshot) -> set[CloudKey]:
    """What open intents of ours take away at EC2; nobody can have it meanwhile."""
    enis = {EniId(i.payload.get("eni_id", "")) for i in snapshot.intents.values() if i.kind is IntentKind.DELETE_ENI}
    return {*leaving_addresses(snapshot.intents.values()), *enis}


def _is_unchanged(row: Address, after: Snapshot) -> bool:
    now = after.addresses.get(row.address)
    return now is not None and now.eni_id == row.eni_id


def _of_address(row: Address, other_id: str, *, is_recent: bool) -> Finding:
    what = f"{row.state} on {row.eni_id}; EC2's answer has it on {other_id or 'no ENI of this node'}"
    if is_recent:
        return Finding(Severity.PENDING, str(row.address), what, "our own call changed it minutes ago: EC2's answer lags")
    return Finding(Severity.DIFFERENCE, str(row.address), what, NOT_CONFIRMED)


def _of_enis(enis: Collection[DescribedEni], after: Snapshot, recent: Collection[CloudKey]) -> list[Finding]:
    """ENIs that only one side knows. One that was recorded while EC2 was asked, or is covered by an intent, is known."""
    covered = {intent.payload.get("eni_id") for intent in after.intents.values()}
    attached = {eni.eni_id for eni in enis}
    unknown = [eni for eni in enis if eni.eni_id not in after.enis and eni.eni_id not in covered]
    found = []
    for eni in sorted(unknown, key=lambda eni: eni.eni_id):
        row = after.addresses.get(eni.primary_address) if eni.primary_address is not None else None
        is_contradiction = row is not None and row.is_lost
        if is_contradiction:
            what = f"attached, and takes a place only: its primary address {eni.primary_address} is still that of a sandbox"
            next_step = "recorded once that sandbox is gone: EC2 has taken the address from the ENI where the sandbox got it"
        elif eni.is_readable:
            what, next_step = "attached, and unknown to the datastore", "adopted at the next comparison with EC2"
        else:
            what = f"attached, and takes a place only: {eni.problem or f'no IPv4 address ({eni.interface_type})'}"
            next_step = "left alone"
        severity = Severity.DIFFERENCE if eni.is_readable and not is_contradiction else Severity.PENDING
        found.append(Finding(severity, eni.eni_id, what, next_step))
    for eni_id in sorted(after.enis.keys() - attached):
        severity = Severity.PENDING if eni_id in recent else Severity.DIFFERENCE
        found.append(Finding(severity, eni_id, "known, and not attached by EC2's answer", "forgotten when confirmed and unused"))
    return found
