"""Errors about branch ENIs. Each leads to CNI code 11: the runtime tries again."""

from __future__ import annotations

from ipamd.model.errors import TryAgainError, UplinkPendingError


class BranchPendingError(UplinkPendingError):
    """The pod must have a branch ENI, and the control plane has not named it, or it is still another sandbox's."""


class BranchAnnotationError(TryAgainError):
    """The pod's annotation about its branch ENI cannot be right, or contradicts another sandbox or the pool."""
