"""The state that the kubelets expect: which sandbox has which address, since when, and which creations are under way.

Two invariants are checked here and at once, because the kubelets' knowledge suffices and no tolerance is needed: the address of a
living sandbox was given again (I1), or an address was given again before its cooldown can have ended (I8). An address that other
hands took from one node, and that EC2 then gave to the other, is no violation: `doubled` lists these. Times are conservative:
a removal is dated before the call and a creation after it, so that the daemon never gets less time than it has.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lab.chaos.book import HandsBook


@dataclass(frozen=True)
class PodRecord:
    """One sandbox that the runtime created. Seconds of the run; `removing_at_s`: its removal was asked, `removed_at_s`: answered.

    `egress`: its address of the other family, which means something on its node alone; "" for none. `vlan`: the ID of its branch ENI,
    0 for one with a pool address; `is_mistold`: the control plane told another, so that nobody demands that it answers. `is_pinned`:
    it asked for its address. `is_fenced`: its pod is made again elsewhere while its node cannot know, so that it is no living sandbox
    any more; EC2 drops what it goes on sending. `is_guarded`: its pool's group names one host only.
    """

    node: str
    pod: str
    sandbox_id: str
    address: str
    netns_path: str
    created_at_s: float
    removing_at_s: float | None = None
    removed_at_s: float | None = None
    egress: str = ""
    vlan: int = 0
    is_mistold: bool = False
    is_pinned: bool = False
    is_fenced: bool = False
    is_guarded: bool = False

    @property
    def is_wanted(self) -> bool:
        """Whether its removal was not asked yet."""
        return self.removing_at_s is None


@dataclass(frozen=True)
class Violation:
    """A violated invariant: which, when (seconds of the run), about what, and one sentence of evidence."""

    invariant: str
    at_s: float
    subject: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant} at {self.at_s:.1f} s: {self.subject}: {self.what}"


@dataclass(frozen=True)
class ExpectedSnapshot:
    """The expected state at one time.

    `creating`: when each creation under way began, by node.
    `lost_at`: when a node's datastore was last destroyed on purpose.
    `left`: nodes that pods with named addresses have left, each with the address. A sandbox of such a pod may be there although its
        creation failed, because the runtime died in it. Its address may then be elsewhere, as that of a fenced sandbox may.
    """

    pods: dict[str, PodRecord]
    creating: dict[str, tuple[float, ...]]
    lost_at: dict[str, float] = field(default_factory=dict)
    left: frozenset[tuple[str, str]] = frozenset()


def _same_egress(one: PodRecord, other: PodRecord) -> bool:
    """Whether two sandboxes have the same address for egress, of which every node has all."""
    return (one.node, one.egress) == (other.node, other.egress)


class ExpectedState:
    """The expected state of all nodes. Thread-safe; its lock is a leaf, and `report` is called outside it."""

    def __init__(self, *, clock: Callable[[], float], cooldown_s: float, report: Callable[[Violation], None]) -> None:
        self.book = HandsBook()
        self.doubled: list[str] = []
        self._clock = clock
        self._cooldown_s = cooldown_s
        self._report = report
        self._lock = threading.Lock()
        self._records: dict[str, PodRecord] = {}
        self._creating: dict[int, tuple[str, float]] = {}
        self._ids = itertools.count()
        self._lost_at: dict[str, float] = {}
        self._left: set[tuple[str, str]] = set()

    def on_creating(self, node: str) -> int:
        """Note that a creation is about to be asked. Returns: a ticket for `on_answered`."""
        with self._lock:
            ticket = next(self._ids)
            self._creating[ticket] = (node, self._clock())
            return ticket

    def on_answered(self, ticket: int) -> None:
        """Note that the creation was answered, with success or failure."""
        with self._lock:
            del self._creating[ticket]

    def on_created(self, record: PodRecord) -> None:
        """Note that a sandbox was created with an address, and check it at once (I1, I8)."""
        with self._lock:
            others = [other for other in self._records.values() if other.address == record.address]
            beside = [other for other in self._records.values() if record.egress and _same_egress(other, record)]
            self._records[record.sandbox_id] = record
            if not record.is_fenced:
                self._left.discard((record.node, record.address))
            lost_at = self._lost_at.get(record.node, -1.0)
        takes = self.book.takes()
        for other in others:
            # Other hands took it from one node, and EC2 gave it to the other: neither daemon could know yet. Or EC2 gave it to the
            # same one, which knows nothing of a sandbox that ended after its datastore was lost: what EC2 just gave has no past.
            is_forgotten = other.removing_at_s is not None and other.created_at_s < lost_at
            may_be = other.node != record.node or is_forgotten
            if may_be and any(takes.hit(one.node, one.address, one.created_at_s) for one in (other, record)):
                self.doubled.append(f"{record.address}: {other.node}/{other.pod} had it, given to {record.node}/{record.pod}")
                continue
            self._judge(record.address, record, other, lost_at)
        for other in beside:
            self._judge(record.egress, record, other, lost_at)

    def _judge(self, address: str, record: PodRecord, other: PodRecord, lost_at: float) -> None:
        """Whether an address may be given that another one had."""
        subject = f"{address} of {record.node}/{record.pod}"
        if record.is_fenced:
            return
        if other.removing_at_s is None:
            self._report(Violation("I1", record.created_at_s, subject, f"{other.node}/{other.pod} has it and lives"))
        elif record.is_pinned and other.is_pinned:
            return  # the cooldown of a named address ends early for its own pod (docs/adr/0083)
        elif lost_at < other.removing_at_s and record.created_at_s - other.removing_at_s < self._cooldown_s:
            after_s = record.created_at_s - other.removing_at_s
            what = f"given {after_s:.2f} s after the removal of {other.node}/{other.pod}, before it can have cooled"
            self._report(Violation("I8", record.created_at_s, subject, what))

    def on_removing(self, sandbox_id: str) -> None:
        """Note that its removal is about to be asked."""
        self._change(sandbox_id, lambda record: replace(record, removing_at_s=record.removing_at_s or self._clock()))

    def on_fenced(self, sandbox_id: str) -> None:
        """Note that its pod may be made again elsewhere with its address from now on."""
        self._change(
            sandbox_id,
            lambda record: replace(record, removing_at_s=record.removing_at_s or self._clock(), is_fenced=True),
        )

    def on_left(self, node: str, address: str) -> None:
        """Note that a pod with a named address may be made again elsewhere from now on, whatever became of its sandboxes here."""
        with self._lock:
            self._left.add((node, address))

    def on_removed(self, sandbox_id: str) -> None:
        """Note that its removal was answered with success."""
        self._change(sandbox_id, lambda record: replace(record, removed_at_s=self._clock()))

    def on_datastore_lost(self, node: str) -> None:
        """Note that the node's cooldowns were destroyed on purpose: I8 is not checked for addresses that cooled then."""
        with self._lock:
            self._lost_at[node] = self._clock()

    def wanted(self, node: str) -> list[PodRecord]:
        """List the sandboxes of a node whose removal was not asked, oldest first."""
        with self._lock:
            return [record for record in self._records.values() if record.node == node and record.is_wanted]

    def snapshot(self) -> ExpectedSnapshot:
        """Copy the expected state."""
        with self._lock:
            creating: dict[str, tuple[float, ...]] = {}
            for node, at in self._creating.values():
                creating[node] = (*creating.get(node, ()), at)
            return ExpectedSnapshot(dict(self._records), creating, dict(self._lost_at), frozenset(self._left))

    def _change(self, sandbox_id: str, change: Callable[[PodRecord], PodRecord]) -> None:
        with self._lock:
            record = self._records.get(sandbox_id)
            if record is not None:
                self._records[sandbox_id] = change(record)
