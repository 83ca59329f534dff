"""The port `PolicyAgent`: requests to the network policy agent of the node, which filters the packets of pods."""

from __future__ import annotations

from typing import Protocol

from ipamd.model.ids import PodName


class PolicyAgent(Protocol):
    """aws-network-policy-agent on this node.

    The agent identifies pods by name. It keeps a name until `forget`, and attaches no filter for a name that it has already. Both
    methods may raise PolicyAgentSilentError and PolicyAgentRefusedError.
    """

    def enforce(self, pod: PodName, *, mode: str, timeout_s: float, interface_count: int = 1) -> None:
        """Ask the agent to attach filters to the host veths that are named after the pod's interfaces.

        If the agent does not listen yet, the call waits for it.

        Args:
            mode: the value of NETWORK_POLICY_ENFORCING_MODE.
            timeout_s: the seconds after which the call ends with an error.
            interface_count: the number of the pod's interfaces.
        """

    def forget(self, pod: PodName, *, timeout_s: float, is_patient: bool) -> None:
        """Ask the agent to drop a pod's name. An unknown name is not an error.

        `is_patient`: whether the call waits for an agent that does not listen.
        """
