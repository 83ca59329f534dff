"""The network policy agent of the node."""

from __future__ import annotations

from typing import Protocol

from ipamd.model.ids import PodName


class PolicyAgent(Protocol):
    """aws-network-policy-agent on this node. It identifies pods by name, keeps a name until `forget`, and attaches no filter for a
    name that it has already. Both methods raise PolicyAgentSilentError, PolicyAgentRefusedError.
    """

    def enforce(self, pod: PodName, *, mode: str, timeout_s: float, interface_count: int = 1) -> None:
        """Make the agent attach filters to the host veths named after the pod's interfaces. Waits for an agent that is away."""

    def forget(self, pod: PodName, *, timeout_s: float, is_patient: bool) -> None:
        """Make the agent drop a name; an unknown name is fine. `is_patient`: wait for an agent that is away."""
