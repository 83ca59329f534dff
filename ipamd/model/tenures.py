"""Derive from history records the *tenures*: which sandbox had which address, and from when until when. Pure.

The history has gaps: sandboxes may be older than its first record, a reboot ends all sandboxes and writes no record of each end, and
a crash may lose the record of an end. So a tenure ends at the earliest time at which a record shows that it had ended, and `ended_by`
names this record.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from ipamd.model.history import HistoryEvent, HistoryRecord, LedgerEvent
from ipamd.model.record import dataclass, replace
from ipamd.model.time_text import rfc3339

BEGINS = frozenset({LedgerEvent.ASSIGNED, LedgerEvent.ADOPTED, HistoryEvent.HELD})

ENDS = frozenset({LedgerEvent.UNASSIGNED, LedgerEvent.REAPED})


@dataclass(frozen=True, slots=True)
class Tenure:
    """The time for which one sandbox had one address.

    `pod`: `namespace/name`; "" if it is not known.
    `until`: None if no record shows an end.
    `ended_by`: what ended it, in words; "" without an end.
    """

    address: str
    container_id: str
    ifname: str
    pod: str
    since: datetime
    until: datetime | None = None
    ended_by: str = ""

    def covers(self, at: datetime) -> bool:
        """Whether the sandbox had the address at this time."""
        return self.since <= at and (self.until is None or at < self.until)

    def overlaps(self, since: datetime) -> bool:
        """Whether the tenure lasted until this time or longer."""
        return self.until is None or self.until >= since

    @property
    def sentence(self) -> str:
        """The tenure as a sentence."""
        return str(self)

    def __str__(self) -> str:
        sandbox = f"sandbox {self.container_id}/{self.ifname}"
        name = f"{self.pod} ({sandbox})" if self.pod else sandbox
        end = f"until {rfc3339(self.until)}, ended by {self.ended_by}" if self.until else "and no end is recorded"
        return f"{self.address} was with {name} from {rfc3339(self.since)} {end}"


def tenures(records: Iterable[HistoryRecord]) -> list[Tenure]:
    """Derive the tenures from records that are in order of time. Returns: the tenures in the order of their beginning."""
    running: dict[str, Tenure] = {}
    ended: list[Tenure] = []
    # The beginnings of ended tenures. After the clock was set back, the record of a beginning may follow the record of the end.
    ended_since: dict[tuple[str, str, str], datetime] = {}
    boot_id = ""
    for record in records:
        holder = (record.address, record.container_id, record.ifname)
        if record.event in BEGINS:
            if holder not in ended_since or _beginning(record) > ended_since[holder]:
                _begin(record, running, ended)
        elif record.event in ENDS:
            ended += _end(record, running)
            if record.since is not None:
                ended_since[holder] = record.since
        elif record.event == HistoryEvent.BOOTED and record.detail != boot_id:
            # A second `booted` record of the same boot ends nothing: every file of the history begins with such a record.
            boot_id = record.detail
            ended += _end_by_boot(record, running)
            running = {}
    return sorted([*ended, *running.values()], key=lambda tenure: tenure.since)


def _beginning(record: HistoryRecord) -> datetime:
    """Return the time that decides whether a record in BEGINS begins a new tenure: it does if the ended tenure began before this time.

    For `adopted` and `held` it is the time of the record, because the sandbox may have had its address long before.
    """
    if record.event == LedgerEvent.ASSIGNED:
        return record.since or record.at
    return record.at


def _end_by_boot(record: HistoryRecord, running: dict[str, Tenure]) -> list[Tenure]:
    booted_at = record.since or record.at
    return [replace(tenure, until=max(booted_at, tenure.since), ended_by="the node's boot") for tenure in running.values()]


def _begin(record: HistoryRecord, running: dict[str, Tenure], ended: list[Tenure]) -> None:
    since = record.since or record.at
    new = Tenure(record.address, record.container_id, record.ifname, record.pod, since)
    tenure = running.get(record.address)
    if tenure is not None and _is_same(tenure, record):
        running[record.address] = replace(tenure, since=min(tenure.since, since), pod=tenure.pod or record.pod)
        return
    if tenure is not None:
        ended.append(replace(tenure, until=since, ended_by="another sandbox, which had the address then"))
    running[record.address] = new


def _end(record: HistoryRecord, running: dict[str, Tenure]) -> list[Tenure]:
    tenure = running.get(record.address)
    cause = f"{record.event} ({record.detail})" if record.detail else record.event
    if tenure is not None and _is_same(tenure, record):
        del running[record.address]
        return [replace(tenure, until=record.at, ended_by=cause, pod=tenure.pod or record.pod)]
    if record.since is None:
        return []  # the tenure began before the first record of the history
    until = max(record.at, record.since)
    return [Tenure(record.address, record.container_id, record.ifname, record.pod, record.since, until, cause)]


def _is_same(tenure: Tenure, record: HistoryRecord) -> bool:
    return (tenure.container_id, tenure.ifname) == (record.container_id, record.ifname)
