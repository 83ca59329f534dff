"""Which records a question is about: an address, a pod by `namespace/name` or name, a sandbox by the beginning of its container ID,
or an ENI.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import AddressValueError, IPv4Address

from ipamd.model.history import MARKS, HistoryEvent, HistoryRecord

ENI_PREFIX = "eni-"


class Subject:
    """One question's subject. Text that is a pod's name is that, even if container IDs begin with it."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            IPv4Address(text)
        except AddressValueError:
            self.is_address = False
        else:
            self.is_address = True

    def names_pod(self, pod: str) -> bool:
        """Whether this is the pod `namespace/name`, told in full or by its name alone."""
        return bool(pod) and not self.is_address and self.text in (pod, pod.partition("/")[2])

    def fits(self, record: HistoryRecord) -> bool:
        """Whether a record may be about it: what `select` decides by looking at all of them."""
        if self.is_address:
            return record.address == self.text
        return self.names_pod(record.pod) or self._names_sandbox(record) or self._names_eni(record)

    def select(self, records: Iterable[HistoryRecord]) -> list[HistoryRecord]:
        """Choose the records about it, oldest first, each once, and all marks; nothing if only marks are left."""
        # Those of one millisecond stay in the order in which they were written: an ADD and its DEL may be.
        ordered = sorted(map(_in_its_place, dict.fromkeys(records)), key=lambda record: record.at)
        if not self.text:
            return []
        pods = {record.container_id for record in ordered if self.names_pod(record.pod)}
        chosen: list[HistoryRecord] = []
        for record in ordered:
            if record.event in MARKS:
                fits = True
            elif pods:
                fits = self.names_pod(record.pod) or (record.container_id != "" and record.container_id in pods)
            else:
                fits = self.fits(record)
            if fits:
                chosen.append(record)
        return chosen if any(record.event not in MARKS for record in chosen) else []

    def _names_sandbox(self, record: HistoryRecord) -> bool:
        return bool(record.container_id) and (record.container_id.startswith(self.text) or record.sandbox == self.text)

    def _names_eni(self, record: HistoryRecord) -> bool:
        return self.text.startswith(ENI_PREFIX) and record.eni_id == self.text


def _in_its_place(record: HistoryRecord) -> HistoryRecord:
    """A boot's mark is written later than it booted, after events of that boot if the disk was away."""
    return replace(record, at=record.since) if record.event == HistoryEvent.BOOTED and record.since is not None else record
