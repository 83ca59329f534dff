"""Select the history records of one subject: an address, a pod by `namespace/name` or name, a sandbox by the beginning of its
container ID, or an ENI.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from ipamd.model.family import read_spelling
from ipamd.model.history import MARKS, HistoryEvent, HistoryRecord
from ipamd.model.record import replace

ENI_PREFIX = "eni-"


class HistorySubject:
    """The subject of a question, given as text. A text that is a pod's name means the pod, even if container IDs begin with it."""

    def __init__(self, text: str) -> None:
        self.text, self.is_address = text, False
        with suppress(ValueError):  # an address may be spelt in several ways; records have one spelling
            self.text, self.is_address = str(read_spelling(text)), True

    def names_pod(self, pod: str) -> bool:
        """Whether the subject is the pod `pod` (`namespace/name`): the text is this name, or the part without the namespace."""
        return bool(pod) and not self.is_address and self.text in (pod, pod.partition("/")[2])

    def fits(self, record: HistoryRecord) -> bool:
        """Whether a record may be about the subject.

        One record does not show whether the text is a pod's name, or the beginning of a container ID. `select` has all records, and so
        decides this.
        """
        if self.is_address:
            return record.address == self.text
        if self.names_pod(record.pod) or (self.text.startswith(ENI_PREFIX) and record.eni_id == self.text):
            return True
        return bool(record.container_id) and (record.container_id.startswith(self.text) or record.sandbox == self.text)

    def select(self, records: Iterable[HistoryRecord]) -> list[HistoryRecord]:
        """Return the records about the subject, oldest first, each once, and all marks (MARKS); nothing if only marks remain."""
        ordered = _in_order(records)
        if not self.text:
            return []
        pod_sandboxes = {record.container_id for record in ordered if self.names_pod(record.pod)}
        chosen = [record for record in ordered if record.event in MARKS or self._is_about(record, pod_sandboxes)]
        has_more_than_marks = any(record.event not in MARKS for record in chosen)
        if has_more_than_marks:
            return chosen
        return []

    def _is_about(self, record: HistoryRecord, pod_sandboxes: set[str]) -> bool:
        """Whether a record is about the subject; `pod_sandboxes`: the container IDs of the pod, if the subject names one."""
        if not pod_sandboxes:
            return self.fits(record)
        return self.names_pod(record.pod) or (record.container_id != "" and record.container_id in pod_sandboxes)


def _in_order(records: Iterable[HistoryRecord]) -> list[HistoryRecord]:
    """Return each record once, in order of time.

    A `booted` record is written after the boot, and even after other events of this boot if the disk was not available. In the
    result it stands at the time of the boot. Records of one millisecond stay in the order in which they were written: they may be an
    ADD and its DEL.
    """
    placed = []
    for record in dict.fromkeys(records):
        if record.event == HistoryEvent.BOOTED and record.since:
            placed.append(replace(record, at=record.since))
        else:
            placed.append(record)
    return sorted(placed, key=lambda record: record.at)
