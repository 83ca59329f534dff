"""The source of the facts about a pod that a CNI request does not contain: whether the pod has security groups of its own."""

from __future__ import annotations

from typing import Protocol

from ipamd.model.cni_request import AttachRequest
from ipamd.model.pod_facts import PodFacts


class PodFactsSource(Protocol):
    """Returns whether a pod needs an ENI of its own, and the annotation that describes this ENI. There are two implementations: one
    reads the annotations that the runtime hands over, the other asks kubelet.
    """

    def facts(self, request: AttachRequest, *, timeout_s: float) -> PodFacts:
        """Return the present facts about the pod of a request. It raises no error.

        Returns: facts with the requirement UNKNOWN if the source does not answer within `timeout_s` seconds, or does not know the
            requirement.
        """

    def wait(self, *, timeout_s: float) -> bool:
        """Wait until the facts may have changed, at most `timeout_s` seconds, and return True.

        If the facts of a pod never change, return False at once.
        """

    def close(self) -> None:
        """Close the connections of the source."""
