"""The refusals of an ADD whose pod must have a branch ENI. See `ipamd/model/refusals.py`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ipamd.model.errors import BusyError, IpamError
from ipamd.model.legs.branch_errors import BranchAnnotationError, BranchPendingError
from ipamd.model.refusals import Refusal, refusal_of


class BranchRefusalCode(StrEnum):
    """Why the ADD of a pod with a branch ENI is refused: the value of the key `refusal` in the request's log line."""

    TOO_MANY_BRANCH_WAITS = "too-many-branch-waits"
    BRANCH_UNWANTED = "branch-unwanted"
    BRANCH_PENDING = "branch-pending"
    TRUNK_PENDING = "trunk-pending"
    NO_TRUNK = "no-trunk"
    BRANCH_CLAIMED_TWICE = "branch-claimed-twice"
    BRANCH_CONFLICT = "branch-conflict"
    BRANCH_OF_PREDECESSOR = "branch-of-predecessor"
    BRANCH_OF_UNRECORDED = "branch-of-unrecorded"
    BRANCH_FURTHER_INTERFACE = "branch-further-interface"


_CLAIMED_TWICE = (
    "find out to which of both pods the controller assigned it, and delete the other one; see docs/security-groups.md"
)
_NEW_BRANCH = (
    "delete the pod, so that it is assigned another one; if this recurs, another program than the controller writes annotations"
)

REFUSALS: Mapping[BranchRefusalCode, Refusal] = {
    BranchRefusalCode.TOO_MANY_BRANCH_WAITS: Refusal(
        BusyError,
        "{limit} ADDs wait for their branch ENIs already",
        "retry: pods without security groups are served meanwhile",
    ),
    BranchRefusalCode.BRANCH_UNWANTED: Refusal(BranchAnnotationError, "{pod} gets no address (I19): {cause}", "{step}"),
    BranchRefusalCode.BRANCH_PENDING: Refusal(BranchPendingError, "{pod} must have a branch ENI, and {cause}", "{step}"),
    BranchRefusalCode.TRUNK_PENDING: Refusal(BranchPendingError, "{cause}", "retry"),
    BranchRefusalCode.NO_TRUNK: Refusal(
        BranchPendingError, "this node has no trunk ENI", "the control plane attaches it; {step}"
    ),
    BranchRefusalCode.BRANCH_CLAIMED_TWICE: Refusal(
        BranchAnnotationError,
        "{pod} is annotated with {eni}, which {holder} {has}: of two claims to one branch ENI the later is refused",
        _CLAIMED_TWICE,
    ),
    BranchRefusalCode.BRANCH_CONFLICT: Refusal(BranchAnnotationError, "{pod} is annotated with {eni}, and {cause}", _NEW_BRANCH),
    BranchRefusalCode.BRANCH_OF_PREDECESSOR: Refusal(
        BranchPendingError,
        "{eni} of {pod} is still that of the pod's earlier sandbox {holder}",
        "retry: it passes to the new one once that sandbox is deleted; a live sandbox keeps its branch ENI",
    ),
    BranchRefusalCode.BRANCH_OF_UNRECORDED: Refusal(
        BranchPendingError,
        "VLAN {vlan} or {address} of {pod} is that of sandbox {holder}, which is not recorded",
        "retry: it is adopted or removed by itself once the runtime lists its sandboxes",
    ),
    BranchRefusalCode.BRANCH_FURTHER_INTERFACE: Refusal(
        BranchAnnotationError,
        "{pod} gets no interface {ifname} (I19): it has security groups of its own",
        "take {ifname} out of the pod's networks, or the pod out of its security group policy",
    ),
}
"""By code: what failed, on which object, and what to do (I14)."""


def branch_refusal(code: BranchRefusalCode, **fields: object) -> IpamError:
    """Make the error of a refusal, for the caller to raise. The fields become text."""
    return refusal_of(code, REFUSALS[code], fields)


def no_trunk(step: str) -> IpamError:
    """Make the error for a node without a trunk ENI, for the caller to raise. `step`: what an operator can do."""
    return branch_refusal(BranchRefusalCode.NO_TRUNK, step=step)
