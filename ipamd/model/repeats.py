"""Count the addresses of earlier sandboxes of pods for which the runtime creates one sandbox after the other. Pure.

A pod has one sandbox at a time. The addresses of its earlier sandboxes do not count as demand: they become free by themselves, after
the sandboxes were deleted or reaped and the addresses have cooled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ipamd.model.attachment import Attachment
from ipamd.model.record import dataclass

PodId = tuple[str, str, str]
"""Namespace, name and UID as the runtime gave them (CNI_ARGS). Two pods of one name have different UIDs."""


UNDELETED_STEP = (
    "find out which plugin of the chain fails: the runtime's log says `Failed to destroy network`; once DEL works, or the runtime has "
    "removed the sandboxes, their addresses come back by themselves (`ipamctl explain POD`)"
)
"""The next step for an operator if earlier sandboxes of pods hold addresses."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """The numbers of addresses of earlier sandboxes, whose pods have a newer sandbox.

    recorded_count: addresses of sandboxes that are still recorded.
    cooling_count: addresses that are cooling.
    """

    recorded_count: int = 0
    cooling_count: int = 0

    @property
    def count(self) -> int:
        """The number of all addresses of earlier sandboxes."""
        return self.recorded_count + self.cooling_count


NO_REPEATS = Repeats()


def pod_of(attachment: Attachment) -> PodId | None:
    """Return the pod of a sandbox; None if the runtime named no pod, or the sandbox has no address of the pool."""
    if not attachment.pod_name or not attachment.is_of_pool:
        return None
    return attachment.pod_namespace, attachment.pod_name, attachment.pod_uid


def recorded_by_pod(attachments: Iterable[Attachment]) -> Counter[PodId]:
    """Count the recorded sandboxes of each pod; several interfaces of one sandbox count once."""
    sandboxes = {(pod_of(attachment), attachment.key.container_id) for attachment in attachments}
    return Counter(pod for pod, _ in sandboxes if pod is not None)


def repeats(recorded: Counter[PodId], cooling: Counter[PodId]) -> Repeats:
    """Add up the addresses of earlier sandboxes over all pods.

    One sandbox of each pod is its present one and is not counted: a recorded sandbox if there is any, else one whose address is
    cooling.

    Args:
        recorded: pod -> the number of its recorded sandboxes.
        cooling: pod -> the number of cooling addresses that its sandboxes had.
    """
    recorded_count = sum(max(count - 1, 0) for count in recorded.values())
    cooling_count = sum(count if recorded[pod] else max(count - 1, 0) for pod, count in cooling.items())
    return Repeats(recorded_count, cooling_count)
