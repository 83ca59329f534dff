"""Find out whether a branch ENI's address, MAC, VLAN or ID belongs to another sandbox or ENI.

A branch ENI is named by an annotation, which another program than the controller may have written. So it must be checked that the
branch ENI takes nothing from another sandbox (I1, I6).
"""

from __future__ import annotations

from collections.abc import Iterable

from ipamd.model.address import Address
from ipamd.model.attachment import Attachment
from ipamd.model.eni import Eni
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel_numbers import TABLE_BASE
from ipamd.model.legs.branch_eni import Branch, BranchEni, branch_eni_of
from ipamd.model.snapshot import Snapshot


def branch_conflict(
    wanted: BranchEni, key: AttachmentKey, *, row: Address | None, others: Iterable[Attachment], enis: Iterable[Eni]
) -> str:
    """Return which part of a branch ENI belongs to the pool, another sandbox or another ENI; "" if none does.

    Args:
        wanted: the branch ENI.
        key: the sandbox that is to have it.
        row: the pool's row of the branch ENI's address; None if the address is in no pool.
        others: the attachments with which the branch ENI is compared; the attachment of `key` itself is ignored.
        enis: all recorded ENIs of the node.
    """
    if row is not None:
        return f"address {wanted.address} is of the pool, on {row.eni_id}"
    return _conflict_with_enis(wanted, enis) or _conflict_with_sandboxes(wanted, key, others)


def recorded_conflict(attachment: Attachment, snapshot: Snapshot) -> str:
    """Return the conflict of the branch ENI that a recorded attachment has, as the end of a sentence; "" if there is none."""
    others = [other for other in snapshot.attachments.values() if not other.is_of_pool]
    row, enis = snapshot.addresses.get(attachment.address), snapshot.enis.values()
    problem = branch_conflict(branch_eni_of(attachment), attachment.key, row=row, others=others, enis=enis)
    return f": {problem}" if problem else ""


def _conflict_with_enis(wanted: BranchEni, enis: Iterable[Eni]) -> str:
    """Return what a branch ENI shares with an ENI of this node; "" if nothing."""
    for eni in enis:
        if eni.eni_id == wanted.eni_id:
            return f"{eni.eni_id} is attached to this node: it is no branch ENI"
        if wanted.address == eni.primary_address or wanted.mac == eni.mac:
            return f"{wanted.address} or {wanted.mac} is that of {eni.eni_id}"
        if eni.route_table == TABLE_BASE + wanted.vlan:
            return f"VLAN {wanted.vlan} means route table {eni.route_table}, which is that of {eni.eni_id}"
    return ""


def _conflict_with_sandboxes(wanted: BranchEni, key: AttachmentKey, others: Iterable[Attachment]) -> str:
    """Return what a branch ENI shares with a sandbox other than `key`; "" if nothing."""
    for other in others:
        if other.key == key:
            continue
        uplink = other.uplink
        if uplink and uplink.vlan == wanted.vlan:
            return f"VLAN {wanted.vlan} is that of {_sandbox(other)}"
        if wanted.address == other.address or wanted.eni_id == other.eni_id:
            return f"{wanted.eni_id} with {wanted.address} is that of {_sandbox(other)}"
        if isinstance(uplink, Branch) and uplink.mac == wanted.mac:
            return f"MAC {wanted.mac} is that of {_sandbox(other)}"
    return ""


def _sandbox(row: Attachment) -> str:
    return f"sandbox {row.key} of pod {row.sandbox_name}" if row.sandbox_name else f"sandbox {row.key}"
