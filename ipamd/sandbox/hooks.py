"""The Protocol by which ADD and DEL use the network policy agent, which only some nodes have.

The package `policy` implements it. Only the composition imports that package, where a setting requires it.
"""

from __future__ import annotations

from typing import Protocol

from ipamd.core.deadline import Deadline
from ipamd.model.attachment import Attachment
from ipamd.model.cni_request import AttachRequest
from ipamd.ports.datastore import UnitOfWork


class PolicyEnforcement(Protocol):
    """Informs the network policy agent before a sandbox gets its network, and after it is gone."""

    def enforce(self, request: AttachRequest, deadline: Deadline, *, interface_count: int = 1) -> None:
        """Tell the agent to apply network policies to a sandbox that is wired. Raises: IpamError if the agent refuses; the ADD
        fails.

        `interface_count`: the pod's interfaces, of which the agent finds the further ones by their names.
        """

    def record_pod(self, uow: UnitOfWork, attachment: Attachment) -> None:
        """Record that the agent must be told to forget a pod once the pod's sandboxes are gone."""
