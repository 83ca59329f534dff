"""Errors about branch ENIs. Both have CNI code 11, after which the runtime tries again."""

from __future__ import annotations

from ipamd.model.errors import TryAgainError, UplinkPendingError


class BranchPendingError(UplinkPendingError):
    """The pod must have a branch ENI, and the control plane has not named the ENI, the node has no trunk ENI yet, or another sandbox
    still has the branch ENI.
    """


class BranchAnnotationError(TryAgainError):
    """The pod's annotation about its branch ENI is malformed or not allowed, or contradicts another sandbox or the pool. Also used for
    a further interface, which a pod with a branch ENI cannot have.
    """
