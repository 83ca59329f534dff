"""Rows of sandboxes that have a branch ENI, and the check that such a row shares nothing with the pool or another sandbox.

The branch ENI with its VLAN is the sandbox's *uplink* (`Attachment.uplink`).
"""

from __future__ import annotations

from collections.abc import Iterable

from ipamd.datastore.legs.uplinked_table import uplinked_attachment
from ipamd.datastore.statements import AttachmentRows, Params
from ipamd.model.address import Address
from ipamd.model.attachment import Attachment
from ipamd.model.eni import Eni
from ipamd.model.errors import InvariantError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.legs.branch_eni import Branch, branch_eni_of
from ipamd.model.legs.conflict import branch_conflict

_UPLINK_FIELDS = ("vlan", "mac", "gateway", "is_strict")

UPLINKED_ROWS = AttachmentRows.of(uplinked_attachment, **{name: f"uplink.{name}" for name in _UPLINK_FIELDS})
"""The statements for attachments that have an uplink."""


def is_uplinked(row: Params) -> bool:
    """Whether a row of an attachment belongs to the table of attachments with an uplink."""
    return "vlan" in row


def pop_uplink(row: Params) -> Params:
    """Remove the columns of the uplink from a row. Returns: the fields of `Attachment` that replace them."""
    branch = Branch(**{name: row.pop(name) for name in _UPLINK_FIELDS})
    return {"uplink": branch, "route_table": branch.route_table}


def require_unshared(attachment: Attachment, *, row: Address | None, others: Iterable[Attachment], enis: Iterable[Eni]) -> None:
    """Raise InvariantError if another sandbox or the pool has the uplink's ENI, VLAN or address (I1), if the attachment has no uplink,
    or if its route table is not the uplink's.

    Args:
        row: the pool's row of the attachment's address, None if the pool does not have the address.
        others: all attachments.
        enis: all recorded ENIs.
    """
    key, uplink = attachment.key, attachment.uplink
    if uplink is None or attachment.route_table != uplink.route_table:
        raise failure(InvariantError, FailureCode.UPLINK_TABLE_WRONG, sandbox=key)
    problem = branch_conflict(branch_eni_of(attachment), key, row=row, others=others, enis=enis)
    if problem:
        raise failure(InvariantError, FailureCode.UPLINK_TAKEN, sandbox=key, cause=problem)
