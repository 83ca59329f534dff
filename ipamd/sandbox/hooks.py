"""The Protocol by which ADD and DEL use the network policy agent, which only some nodes have.

The package `ipamd.policy` implements it. Only `ipamd/process/bootstrap.py` imports that package, if a setting requires it.
"""

from __future__ import annotations

from typing import Protocol

from ipamd.core.deadline import Deadline
from ipamd.model.attachment import Attachment
from ipamd.model.cni_request import AttachRequest
from ipamd.ports.datastore import UnitOfWork


class PolicyEnforcement(Protocol):
    """Makes the network policy agent filter a sandbox before its ADD succeeds, and forget the pod after its sandboxes are gone."""

    def enforce(self, request: AttachRequest, deadline: Deadline, *, interface_count: int = 1) -> None:
        """Make the agent apply network policies to a wired sandbox.

        If the caller of the ADD wires the sandbox after our reply (`is_wired_by_caller`), the caller makes the agent do that.
        `interface_count`: the number of the pod's interfaces. The agent finds the interfaces after the first by their names.
        Raises: IpamError if the agent refuses or is silent. The ADD fails then.
        """

    def record_pod(self, uow: UnitOfWork, attachment: Attachment) -> None:
        """Record that the agent must forget a pod after all of its sandboxes are gone."""
