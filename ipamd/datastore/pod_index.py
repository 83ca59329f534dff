"""The recorded sandboxes of each pod, so that an ADD need not search all attachments. Used under the lock of `MemoryState`."""

from __future__ import annotations

from collections import Counter

from ipamd.model.attachment import Attachment
from ipamd.model.repeats import PodId, pod_of


class PodIndex:
    """Container IDs by pod. Several interfaces of one sandbox count once."""

    def __init__(self) -> None:
        self._interfaces: dict[PodId, Counter[str]] = {}
        """The number of recorded interfaces, by pod and container ID."""
        self._repeated: set[PodId] = set()
        """Pods with more than one recorded sandbox: few, as a rule none."""

    def replace(self, old: Attachment | None, new: Attachment | None) -> None:
        """Note that a row was changed. `old`: None if the row is new. `new`: None if it was removed."""
        if old is not None:
            self._count(old, -1)
        if new is not None:
            self._count(new, 1)

    def sandboxes_of(self, pod: PodId) -> frozenset[str]:
        """Container IDs of the pod's recorded sandboxes."""
        return frozenset(self._interfaces.get(pod, ()))

    def repeated(self) -> Counter[PodId]:
        """Number of recorded sandboxes of each pod that has more than one."""
        return Counter({pod: len(self._interfaces[pod]) for pod in self._repeated})

    def _count(self, attachment: Attachment, change: int) -> None:
        pod = pod_of(attachment)
        if pod is None:
            return
        interfaces = self._interfaces.setdefault(pod, Counter())
        container_id = attachment.key.container_id
        interfaces[container_id] += change
        if not interfaces[container_id]:
            del interfaces[container_id]
        if len(interfaces) > 1:
            self._repeated.add(pod)
        else:
            self._repeated.discard(pod)
        if not interfaces:
            del self._interfaces[pod]
