"""Facts about a pod that its request does not contain: whether it has security groups of its own."""

from __future__ import annotations

from typing import Protocol

from ipamd.model.cni_request import AttachRequest
from ipamd.model.pod_facts import PodFacts


class PodFactsSource(Protocol):
    """Whether a pod needs an ENI of its own, and which one, from the annotations that the runtime passes, or from kubelet."""

    def facts(self, request: AttachRequest, *, timeout_s: float) -> PodFacts:
        """The present facts of the pod; UNKNOWN if the source does not answer within `timeout_s`. It never raises."""

    def wait(self, *, timeout_s: float) -> bool:
        """Wait until the facts may have changed, at most `timeout_s`. Returns: False, at once, if they can never change."""

    def close(self) -> None:
        """Release connections."""
