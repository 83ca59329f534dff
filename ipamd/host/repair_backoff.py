"""Count our repairs of each object, notice if something else on the node undoes them, and repair such an object less and less often.

Two programs that each correct one object at once would change it without end: each change disturbs packets, and the log fills. After
CONFLICT_REPAIRS repairs of one object within CONFLICT_WINDOW_S a condition names the object, the number of its repairs, and programs
that may be the cause. If each repair was undone within UNDONE_SOON_S, the object is not repaired for a pause, which doubles each time.
If something undoes the repairs only every 30 s, the object is repaired each time: then it is missing only for the fraction of a second
that a repair takes, while with a pause it would be missing for the whole 30 s. Notifications of nftables contain the process that made
a change; those of rtnetlink do not.

Rejected: no repair ever again (the other program may be stopped at any time); a pause for all objects (one conflict would delay the
repair of all).
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping

from ipamd.core.backoffs import REPAIR, Backoffs
from ipamd.core.health import Health
from ipamd.model.conditions import ConditionCode, Problem, problem
from ipamd.model.record import dataclass, field
from ipamd.model.repair_messages import repair_text
from ipamd.model.repairs import PUT_BACK_ALWAYS, RepairedObject, RepairKind, RepairReport
from ipamd.ports.process import Clock

CONFLICT_REPAIRS = 3
"""This many repairs of one object within CONFLICT_WINDOW_S are a repair conflict. Ours: after a single event, such as the restart of a
service that flushes the object, one or two repairs are enough, so a third one shows that something undoes them repeatedly."""

CONFLICT_WINDOW_S = 600.0
"""Repairs of one object count together if they are at most this many seconds apart. The condition of a conflict ends this many seconds
after the last repair, or after the pause that followed it. Ours: agents that correct at regular intervals do so every 10 to 60 s, so
CONFLICT_REPAIRS of their corrections are within this time; and an operator who has stopped the other program sees the condition end
within 10 to 20 min."""

UNDONE_SOON_S = 5.0
"""If an object is repaired again within this time, its last repair was undone at once. Ours: a program that follows changes reacts
within about a second, and so does the daemon; agents that correct at regular intervals do so every 10 to 60 s."""

BACKED_OFF, ALWAYS_REPAIRED = "backed off", "always repaired"
"""First parts of keys in `Backoffs`; the second part is an object. BACKED_OFF: the object is not repaired until the key is due.
ALWAYS_REPAIRED: the object is repaired each time, but its repairs are not logged until the key is due."""

CHANGERS_MAX = 16
"""The largest number of names of programs that are remembered because they changed nftables. Ours: a node has a handful."""

SUSPECTS: Mapping[RepairKind, str] = {
    RepairKind.LINK: "systemd-networkd, NetworkManager, or udev's MACAddressPolicy: `networkctl status`, `udevadm info`",
    RepairKind.ADDRESS: "amazon-ec2-net-utils, systemd-networkd, NetworkManager, cloud-init: `networkctl status`",
    RepairKind.ROUTE: "systemd-networkd (ManageForeignRoutes=), amazon-ec2-net-utils, another CNI: `ip monitor route`",
    RepairKind.RULE: "systemd-networkd (ManageForeignRoutingPolicyRules=), amazon-ec2-net-utils, another CNI: `ip monitor rule`",
    RepairKind.SYSCTL: "systemd-sysctl, tuned, or a node agent: `grep -r <key> /etc/sysctl.d /usr/lib/sysctl.d`",
    RepairKind.NFT: "firewalld, an nftables service, another CNI: `nft monitor`",
    RepairKind.CONFLIST: "another CNI's installer, or configuration management: `lsof`, `auditctl -w <file>`",
    RepairKind.PLUGIN: "another CNI's uninstaller, or configuration management: `auditctl -w <file>`",
}
"""Kind of object -> programs that may undo its repairs, and commands that show them. docs/troubleshooting.md has the full list."""


@dataclass(slots=True)
class _RepairRecord:
    """The repairs of one object.

    `repaired_monotonic_s`: times of the repairs within CONFLICT_WINDOW_S before the last repair.
    `count`: number of all repairs since this record began.
    `soon_count`: the number of the last repairs in a row that each came within UNDONE_SOON_S after the repair before.
    `is_conflict`: there were CONFLICT_REPAIRS within the window.
    `changers`: names of programs that may undo the repairs, because they changed nftables before each of the last repairs.
    `pause_s`: the last pause, in which the object is not repaired; 0 before the first one.
    """

    repaired_monotonic_s: deque[float] = field(default_factory=deque)
    count: int = 0
    soon_count: int = 0
    is_conflict: bool = False
    changers: frozenset[str] = frozenset()
    pause_s: float = 0.0


class RepairBackoff:
    """Counts repairs, and delays the repairs of objects that are in a repair conflict.

    Concurrency: safe from any thread. While its lock is held, only the lock of `Backoffs` is taken.
    """

    def __init__(self, *, clock: Clock, health: Health, backoffs: Backoffs) -> None:
        self._clock = clock
        self._backoffs = backoffs
        self._health = health
        self._lock = threading.Lock()
        self._records: dict[RepairedObject, _RepairRecord] = {}
        self._counts: Counter[RepairKind] = Counter()
        self._changers: dict[str, tuple[float, str]] = {}

    def counts(self) -> Mapping[RepairKind, int]:
        """Return the number of repairs since the start, by kind."""
        with self._lock:
            return dict(self._counts)

    def record_changer(self, process: str) -> None:
        """Remember that a process has just changed nftables.

        Only the last process of each name is remembered, and only the CHANGERS_MAX names with the latest changes.
        `process`: the text "NAME (process ID)", or only the name.
        """
        with self._lock:
            name = process.partition(" (process ")[0]
            self._changers.pop(name, None)
            self._changers[name] = self._clock.monotonic(), process
            if len(self._changers) > CHANGERS_MAX:
                del self._changers[next(iter(self._changers))]

    def count_repairs(self, reports: Iterable[RepairReport]) -> None:
        """Count the repairs among the reports of one pass; an object repaired several times in one pass counts once."""
        repairs = {report.object: report for report in reports if report.is_repair}
        if not repairs:
            return
        now_s = self._clock.monotonic()
        with self._lock:
            conflicts = {
                repaired_object: self._record_repair(repaired_object, repair_text(report), now_s)
                for repaired_object, report in repairs.items()
            }
        for repaired_object, conflict in conflicts.items():
            if conflict:
                self._health.report(_subject(repaired_object), conflict)

    def backed_off(self) -> frozenset[RepairedObject]:
        """Return the objects that must not be repaired now. End the conditions of objects that need no repair any more."""
        now_s = self._clock.monotonic()
        ended, backed_off = [], set()
        with self._lock:
            for repaired_object, record in self._records.items():
                unrepaired_s = now_s - record.repaired_monotonic_s[-1]
                if unrepaired_s > CONFLICT_WINDOW_S + record.pause_s:
                    ended.append(repaired_object)
                elif not self._backoffs.is_due((BACKED_OFF, repaired_object)):
                    backed_off.add(repaired_object)
            for repaired_object in ended:
                del self._records[repaired_object]
        for repaired_object in ended:
            self._backoffs.clear((BACKED_OFF, repaired_object), (ALWAYS_REPAIRED, repaired_object))
            self._health.report(_subject(repaired_object), None)
        return frozenset(backed_off)

    def wait_s(self) -> float | None:
        """Return the seconds until the first backed-off object may be repaired again; None if no object is backed off."""
        return self._backoffs.next_s(BACKED_OFF)

    def _record_repair(self, repaired_object: RepairedObject, sentence: str, now_s: float) -> Problem | None:
        """Record one repair. The caller holds the lock. Returns: the problem if there is a repair conflict, else None."""
        self._counts[repaired_object.kind] += 1
        record = self._records.setdefault(repaired_object, _RepairRecord())
        times = record.repaired_monotonic_s
        while times and now_s - times[0] > CONFLICT_WINDOW_S:
            times.popleft()
        self._narrow_changers(record, since_s=times[-1] if times else now_s - CONFLICT_WINDOW_S)
        is_soon = bool(times) and now_s - times[-1] <= UNDONE_SOON_S
        record.soon_count = record.soon_count + 1 if is_soon else 0
        times.append(now_s)
        record.count += 1
        # Once there is a conflict, it lasts as long as the record: pauses may leave fewer than CONFLICT_REPAIRS repairs in the window.
        record.is_conflict = record.is_conflict or len(times) >= CONFLICT_REPAIRS
        if not record.is_conflict:
            return None
        action = self._back_off(repaired_object, record)
        culprit = ""
        if repaired_object.kind is RepairKind.NFT:
            culprit = self._suspected_processes(record)
        return problem(
            ConditionCode.REPAIR_CONFLICT,
            object=repaired_object,
            count=record.count,
            last=sentence,
            action=action,
            suspects=SUSPECTS[repaired_object.kind],
            culprit=culprit,
        )

    def _narrow_changers(self, record: _RepairRecord, *, since_s: float) -> None:
        """Keep only the programs in `record.changers` that changed nftables again since the last repair, at `since_s`.

        If none of them did, replace them by all programs that changed nftables since then. A program that changes nftables all the
        time (kube-proxy) stays, because it may be the cause.
        """
        recent = frozenset(name for name, (at_s, _) in self._changers.items() if at_s >= since_s)
        record.changers = record.changers & recent or recent

    def _suspected_processes(self, record: _RepairRecord) -> str:
        """Name the processes that probably undo the repairs of an object in nftables; "" if none is known."""
        processes = [process for name, (_, process) in self._changers.items() if name in record.changers]
        if not processes:
            return ""
        return f"; nftables was changed before, probably by {', '.join(sorted(processes))}"

    def _back_off(self, repaired_object: RepairedObject, record: _RepairRecord) -> str:
        """Delay the next repair if the last repairs were undone at once. The caller holds the lock.

        After a pause the next delay needs CONFLICT_REPAIRS repairs again, because by then the program that undoes the repairs may
        behave differently.
        Returns: a text that says how the object is treated.
        """
        if repaired_object in PUT_BACK_ALWAYS or record.soon_count < CONFLICT_REPAIRS - 1:
            # This delays only the next entry in log and ledger, not the repair.
            self._backoffs.back_off((ALWAYS_REPAIRED, repaired_object), REPAIR)
            return "put back each time"
        record.soon_count = 0
        record.pause_s = self._backoffs.back_off((BACKED_OFF, repaired_object), REPAIR)
        return f"left as it is for {record.pause_s:.0f} s"


def _subject(repaired_object: RepairedObject) -> str:
    return f"repair conflict {repaired_object.kind} {repaired_object.subject}"
