"""Who had which address from when until when, read from records. Pure.

A history has holes: it begins somewhere, a reboot ends every sandbox without a word, and a crash may swallow an end. So an end is the
earliest instant that the records give for it, and says which record that was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from ipamd.model.history import HistoryEvent, HistoryRecord
from ipamd.model.ledger import LedgerEvent
from ipamd.model.times import rfc3339

BEGINS = frozenset({LedgerEvent.ASSIGNED, LedgerEvent.ADOPTED, HistoryEvent.HELD})
ENDS = frozenset({LedgerEvent.UNASSIGNED, LedgerEvent.REAPED})


@dataclass(frozen=True, slots=True)
class Tenure:
    """One sandbox's time with one address. `until` None: it has it still, as far as the records tell."""

    address: str
    container_id: str
    ifname: str
    pod: str
    since: datetime
    until: datetime | None = None
    ended_by: str = ""

    def covers(self, at: datetime) -> bool:
        """Whether it held at this instant."""
        return self.since <= at and (self.until is None or at < self.until)

    def overlaps(self, since: datetime) -> bool:
        """Whether any of it was at or after this instant."""
        return self.until is None or self.until >= since

    def __str__(self) -> str:
        """One sentence."""
        name = (
            f"{self.pod} (sandbox {self.container_id}/{self.ifname})"
            if self.pod
            else f"sandbox {self.container_id}/{self.ifname}"
        )
        end = f"until {rfc3339(self.until)}, ended by {self.ended_by}" if self.until else "and no end is recorded"
        return f"{self.address} was with {name} from {rfc3339(self.since)} {end}"


def tenures(records: Iterable[HistoryRecord]) -> list[Tenure]:
    """Read the tenures from records in order of time.

    Returns: in the order of their beginning.
    """
    running: dict[str, Tenure] = {}
    ended: list[Tenure] = []
    over: dict[tuple[str, str, str], datetime] = {}  # the beginning of what has ended: a clock that was set back tells it later
    boot_id = ""
    for record in records:
        who = record.address, record.container_id, record.ifname
        if record.event in BEGINS:
            # What is adopted or held may be known since long ago, and begin anew all the same.
            began = (record.since or record.at) if record.event == LedgerEvent.ASSIGNED else record.at
            if who not in over or began > over[who]:
                _begin(record, running, ended)
        elif record.event in ENDS:
            ended += _end(record, running)
            if record.since is not None:
                over[who] = record.since
        elif record.event == HistoryEvent.BOOTED and record.detail != boot_id:  # each segment repeats the mark of its boot
            boot_id, at = record.detail, record.since or record.at
            ended += [replace(one, until=max(at, one.since), ended_by="the node's boot") for one in running.values()]
            running = {}
    return sorted([*ended, *running.values()], key=lambda one: one.since)


def _begin(record: HistoryRecord, running: dict[str, Tenure], ended: list[Tenure]) -> None:
    since = record.since or record.at
    new = Tenure(record.address, record.container_id, record.ifname, record.pod, since)
    known = running.get(record.address)
    if known is not None and _is_same(known, record):
        running[record.address] = replace(known, since=min(known.since, since), pod=known.pod or record.pod)
        return
    if known is not None:
        ended.append(replace(known, until=since, ended_by="another sandbox, which had the address then"))
    running[record.address] = new


def _end(record: HistoryRecord, running: dict[str, Tenure]) -> list[Tenure]:
    known = running.get(record.address)
    cause = f"{record.event} ({record.detail})" if record.detail else record.event
    if known is not None and _is_same(known, record):
        del running[record.address]
        return [replace(known, until=record.at, ended_by=cause, pod=known.pod or record.pod)]
    if record.since is None:
        return []  # its beginning is before the history's own
    until = max(record.at, record.since)
    return [Tenure(record.address, record.container_id, record.ifname, record.pod, record.since, until, cause)]


def _is_same(known: Tenure, record: HistoryRecord) -> bool:
    return (known.container_id, known.ifname) == (record.container_id, record.ifname)
