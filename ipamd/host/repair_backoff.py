"""Notice that something else on the node undoes our repairs, count them, and repair such an object less and less often.

Two programs that each put one object right at once would change it without end: each change disturbs packets, and the log fills.
After FIGHT_REPAIRS repairs of one object within FIGHT_WINDOW_S it is left as it is for a pause that doubles, and a condition names
the object, how often it was repaired, and what to look at. Netlink does not say which process made a change; nftables does.
Rejected: giving up for good (the other program may be stopped at any time), a pause for all objects (one fight would delay all).
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping

from ipamd.core.agenda import REPAIR, Agenda
from ipamd.core.health import Health
from ipamd.model.kernel import PUT_BACK_ALWAYS, Repaired, RepairedObject, RepairKind
from ipamd.model.record import dataclass, field
from ipamd.ports import Clock

FIGHT_REPAIRS = 3
"""Repairs of one object within FIGHT_WINDOW_S that make a fight. Ours: a flush by a restarted service is one or two."""

FIGHT_WINDOW_S = 600.0
"""Ours: long against the cycle of agents that correct on a clock (10 to 60 s), short against an operator's patience."""

FIGHT, OPEN_FIGHT = "fight", "open fight"
"""Of the agenda, with the object: what is left as it is until its pause is over, and what is put back each time all the same."""

CHANGERS_KEPT = 16
"""Names of programs that changed nftables which are remembered. Ours: a node has a handful."""

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
"""Where to look, by kind of object. The full list of programs and settings is in docs/troubleshooting.md."""


@dataclass(slots=True)
class _History:
    """Repairs of one object: monotonic times within the window, and the last pause before the next one.

    `changers`: names of programs that changed nftables before each of them.
    """

    repaired_monotonic_s: deque[float] = field(default_factory=deque)
    count: int = 0
    changers: frozenset[str] = frozenset()
    pause_s: float = 0.0


class Fights:
    """Counts repairs and holds back those of objects that are fought over. Safe from any thread; in its lock the agenda's is taken."""

    def __init__(self, *, clock: Clock, health: Health, agenda: Agenda) -> None:
        self._clock = clock
        self._agenda = agenda
        self._health = health
        self._lock = threading.Lock()
        self._histories: dict[RepairedObject, _History] = {}
        self._counts: Counter[RepairKind] = Counter()
        self._changers: dict[str, tuple[float, str]] = {}

    def counts(self) -> Mapping[RepairKind, int]:
        """Repairs since start, by kind."""
        with self._lock:
            return dict(self._counts)

    def record_changer(self, process: str) -> None:
        """Remember when a process ("name (process ID)") changed nftables; of each name the last, of CHANGERS_KEPT names."""
        with self._lock:
            name = process.partition(" (process ")[0]
            self._changers.pop(name, None)
            self._changers[name] = self._clock.monotonic(), process
            if len(self._changers) > CHANGERS_KEPT:
                del self._changers[next(iter(self._changers))]

    def count_repairs(self, sentences: Iterable[str]) -> None:
        """Count the repairs among the sentences of one pass; an object repaired several times in one pass counts once."""
        made = {one.thing: one for one in sentences if isinstance(one, Repaired)}
        if not made:
            return
        now_s = self._clock.monotonic()
        with self._lock:
            said = [(thing, self._repaired(thing, str(sentence), now_s)) for thing, sentence in made.items()]
        for thing, sentence in said:
            if sentence:
                self._health.report(_subject(thing), sentence)

    def held(self) -> frozenset[RepairedObject]:
        """Objects that are not to be repaired now. Ends the conditions of objects that nobody has touched for a while."""
        now_s = self._clock.monotonic()
        with self._lock:
            over = [  # left alone by others for the window and the last pause
                thing
                for thing, history in self._histories.items()
                if now_s - history.repaired_monotonic_s[-1] > FIGHT_WINDOW_S + history.pause_s
            ]
            for thing in over:
                del self._histories[thing]
            found = frozenset(thing for thing in self._histories if not self._agenda.is_due((FIGHT, thing)))
        for thing in over:
            self._agenda.clear(_key(thing))
            self._health.report(_subject(thing), "")
        return found

    def wait_s(self) -> float | None:
        """Seconds until the first held object may be repaired again; None if none is held."""
        return self._agenda.next_s(FIGHT)

    def _repaired(self, thing: RepairedObject, sentence: str, now_s: float) -> str:
        """Record one repair; the condition's sentence if it is a fight, or "". The lock is held."""
        self._counts[thing.kind] += 1
        history = self._histories.setdefault(thing, _History())
        times = history.repaired_monotonic_s
        while times and now_s - times[0] > FIGHT_WINDOW_S:
            times.popleft()
        # Who changed nftables since the last repair, and before each earlier one too if anybody did. Of those who change it all the
        # time (kube-proxy) nothing tells that it was not them: they stay.
        since_s = times[-1] if times else now_s - FIGHT_WINDOW_S
        lately = frozenset(name for name, (at_s, _) in self._changers.items() if at_s >= since_s)
        history.changers = history.changers & lately or lately
        times.append(now_s)
        history.count += 1
        # Once it is a fight it stays one: with growing pauses fewer than FIGHT_REPAIRS repairs fall into the window.
        if history.pause_s == 0.0 and len(times) < FIGHT_REPAIRS:
            return ""
        history.pause_s = self._agenda.put_off(_key(thing), REPAIR)
        found = [process for name, (_, process) in self._changers.items() if name in history.changers]
        is_known = thing.kind is RepairKind.NFT and found
        culprit = f"; nftables was changed before, probably by {', '.join(sorted(found))}" if is_known else ""
        left = "put back each time" if thing in PUT_BACK_ALWAYS else f"left as it is for {history.pause_s:.0f} s"
        return (
            f"fight: {thing} was repaired {history.count} times, last: {sentence}; something else on this node undoes it, so it is "
            f"{left}; look at {SUSPECTS[thing.kind]}{culprit}"
        )


def _key(thing: RepairedObject) -> tuple[str, RepairedObject]:
    return (OPEN_FIGHT if thing in PUT_BACK_ALWAYS else FIGHT), thing


def _subject(thing: RepairedObject) -> str:
    return f"fight {thing.kind} {thing.subject}"
