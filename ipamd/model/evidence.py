"""Decide what happens to a wired or recorded sandbox that no DEL came for. One rule for reaper, GC, quarantine and start. Pure.

A witness says present, absent or unknown. Unknown is silence, and silence keeps (I11). Only our datastore names candidates; every
other witness can only add a reason to keep (I2). The first row that fits decides:

    what the datastore says    what the others say                                              verdict
    recorded                   runtime, namespace or veth unknown                               keep
                               the runtime lists it                                             keep
                               fewer than 2 lists without it, and no GC declared it gone        keep
                               younger than 5 min                                               keep
                               namespace and veth gone                                          reap
                               the runtime's own, absent from 2 lists and for 1 h               unwire-then-reap
                               otherwise: namespace or veth is there                            keep
    its DEL was done           -                                                                unwire-then-reap
    no row, nor can it lack    the runtime lists it                                             adopt
    one (an ADD died)          otherwise                                                        unwire-then-reap
    quarantined, or no row     whether it is wired is unknown                                   keep
    and it may lack one        nothing is wired any more                                        reap
                               the runtime lists it                                             adopt
                               absent from 2 lists and for 1 h                                  unwire-then-reap
                               otherwise                                                        keep; quarantine without a row

All ages are seconds on the monotonic clock. The same table with its reasons: docs/datastore.md, Sources.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from ipamd.model.record import dataclass, field, replace

REAP_MIN_AGE_S = 300.0
"""Ours: longer than the 4 minutes after which kubelet gives up RunPodSandbox; until then the runtime may not list a sandbox.

Source of the 4 minutes: Kubernetes staging/src/k8s.io/cri-client/pkg/remote_runtime.go, RunPodSandbox (twice the timeout).
"""

LEAK_AGE_S = 3600.0
"""Absence from CRI after which namespace or veth no longer keep the address. Ours: long after any retry of DEL."""

REAP_MIN_ABSENT_LOOKS = 2
"""Successive complete lists without the sandbox. Ours: a single list can miss a sandbox that is being created."""


class Presence(StrEnum):
    """What one witness says."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Record(StrEnum):
    """What the datastore says of a sandbox and its address.

    `never-promised`: no row of the sandbox, in a datastore that lacks none, and its address has a row that nobody has: an ADD died
    between wiring and commit. `missing`: no row, and the datastore may lack it. `deleted`: a tombstone.
    """

    RECORDED = "recorded"
    QUARANTINED = "quarantined"
    MISSING = "missing"
    NEVER_PROMISED = "never-promised"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the witnesses say of one sandbox with its address; ages in seconds on the monotonic clock.

    `netns` of a veth that carries no path is that of the veth: a pair dies with its namespace. `absent_look_count`: successive
    believed CRI lists without it, at least one interval apart, none taken before it was made; `absent_age_s`: since the first of
    them. `age_s`: since its ADD, never more than it is. `is_declared_gone`: the runtime's list of valid attachments (GC) lacks it.
    `is_runtimes_own`: CRI listed it once, or its ADD named a pod; not so: somebody else's, which CRI never lists (docs/adr/0001).
    Asked of recorded sandboxes only: the kernel's alias does not tell.
    """

    record: Record
    runtime: Presence
    netns: Presence
    host_veth: Presence
    absent_look_count: int = 0
    absent_age_s: float = 0.0
    age_s: float = 0.0
    is_declared_gone: bool = False
    is_runtimes_own: bool = True


class Verdict(StrEnum):
    """What to do.

    `reap`: free the address (it cools). `unwire-then-reap`: remove what is left of the wiring first, then free the address if
    nobody has it. `adopt`: record the sandbox. `quarantine`: keep the wiring, and give the address to nobody.
    """

    KEEP = "keep"
    REAP = "reap"
    UNWIRE_THEN_REAP = "unwire-then-reap"
    ADOPT = "adopt"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reasons, one sentence each, at least one."""

    verdict: Verdict
    reasons: tuple[str, ...]


def judge(evidence: Evidence) -> Judgement:
    """Decide by the table of this module.

    Returns: the verdict with its reasons; KEEP of a recorded sandbox with every reason to keep.
    Concurrency: pure. Guards: I2, I11.
    """
    if evidence.record is Record.RECORDED:
        return _judge_recorded(evidence)
    if evidence.record is Record.DELETED:
        return Judgement(Verdict.UNWIRE_THEN_REAP, ("its DEL was done",))
    if evidence.record is Record.NEVER_PROMISED and evidence.runtime is not Presence.PRESENT:
        # An ADD replies after its row is stored, and no row is lost: this one never replied.
        return Judgement(Verdict.UNWIRE_THEN_REAP, ("no ADD was promised for it",))
    return _judge_unrecorded(evidence)


def _judge_recorded(evidence: Evidence) -> Judgement:
    keep = _reasons_to_keep(evidence)
    if not keep:
        gone = "its network namespace is gone", "its host veth is gone"
        return Judgement(Verdict.REAP, (_absence(evidence), *gone))
    if _is_leak(evidence) and evidence.age_s >= REAP_MIN_AGE_S and evidence.is_runtimes_own:
        return Judgement(Verdict.UNWIRE_THEN_REAP, (_long_absence(), "only its network namespace or veth is left"))
    return Judgement(Verdict.KEEP, tuple(keep))


def _judge_unrecorded(evidence: Evidence) -> Judgement:
    """Judge a veth, or a quarantined address, without an attachment: its wiring decides whether anybody can use the address."""
    if evidence.host_veth is Presence.UNKNOWN:
        return Judgement(Verdict.KEEP, ("whether it is wired is not known",))
    if evidence.host_veth is Presence.ABSENT:
        return Judgement(Verdict.REAP, ("its wiring is gone",))
    if evidence.runtime is Presence.PRESENT:
        return Judgement(Verdict.ADOPT, ("wired, and the runtime lists its sandbox",))
    if _is_leak(evidence):
        return Judgement(Verdict.UNWIRE_THEN_REAP, (_long_absence(),))
    stays = Verdict.QUARANTINE if evidence.record is Record.MISSING else Verdict.KEEP
    if evidence.runtime is Presence.UNKNOWN:
        return Judgement(stays, ("wired, and the runtime is silent",))
    return Judgement(stays, ("wired, but the runtime does not list its sandbox",))


def _reasons_to_keep(evidence: Evidence) -> list[str]:
    keep = []
    if evidence.runtime is Presence.PRESENT:
        keep.append("the runtime lists its sandbox")
    elif evidence.runtime is Presence.UNKNOWN:
        keep.append("the runtime has not given a complete list")
    elif evidence.absent_look_count < REAP_MIN_ABSENT_LOOKS and not evidence.is_declared_gone:
        keep.append(f"absent from {evidence.absent_look_count} complete list(s), {REAP_MIN_ABSENT_LOOKS} are needed")
    if evidence.age_s < REAP_MIN_AGE_S:
        keep.append(f"attached {evidence.age_s:.0f} s ago, {REAP_MIN_AGE_S:.0f} s are needed")
    for name, presence in (("network namespace", evidence.netns), ("host veth", evidence.host_veth)):
        if presence is Presence.PRESENT:
            keep.append(f"its {name} is there")
        elif presence is Presence.UNKNOWN:
            keep.append(f"whether its {name} is there is not known")
    return keep


def _is_leak(evidence: Evidence) -> bool:
    """Whether CRI has not listed it for an hour and every other witness answered: what is left is a leak."""
    return (
        evidence.runtime is Presence.ABSENT
        and evidence.absent_look_count >= REAP_MIN_ABSENT_LOOKS
        and evidence.absent_age_s >= LEAK_AGE_S
        and Presence.UNKNOWN not in (evidence.netns, evidence.host_veth)
    )


def _absence(evidence: Evidence) -> str:
    if evidence.absent_look_count >= REAP_MIN_ABSENT_LOOKS:
        return f"absent from {evidence.absent_look_count} complete lists"
    return "not among the runtime's valid attachments (GC)"


def _long_absence() -> str:
    return f"absent from the runtime for over {LEAK_AGE_S / 60:.0f} min"


# Count successive looks at a source that lack an object, and how long it has been absent.
#
# One look without an object proves nothing: the list may be older than the object, partial, or lag. Whoever concludes absence asks
# here for the number of looks and their age.


K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Absence:
    """How often and since when one object was not seen, in successive looks."""

    began_monotonic_s: float
    counted_monotonic_s: float
    look_count: int


@dataclass(frozen=True, slots=True)
class Doubts:
    """What EC2 did not show lately, by ENI or address as text: in successive plausible answers, and in any successive answers."""

    plausible: Mapping[str, Absence] = field(default_factory=dict)
    any: Mapping[str, Absence] = field(default_factory=dict)


class Absences(Generic[K]):
    """Absences of objects `K` from one source. Used by one thread at a time.

    `gap_s`: the least time between two looks that count as successive; looks that follow sooner count as one. `known`: what an
    earlier process counted on the same clock. `absent`: what the last look lacked, replaced with each.
    """

    def __init__(self, *, gap_s: float, known: Mapping[K, Absence] | None = None) -> None:
        self._gap_s = gap_s
        self.absent: Mapping[K, Absence] = dict(known or {})

    def look(self, absent: Iterable[K], *, now_s: float) -> None:
        """Record a complete look that lacked `absent`; every other object is present and starts over. `now_s` is monotonic."""
        counted = {}
        for key in absent:
            known = self.absent.get(key)
            if known is None:
                counted[key] = Absence(now_s, now_s, 1)
            elif now_s - known.counted_monotonic_s < self._gap_s:
                counted[key] = known
            else:
                counted[key] = replace(known, counted_monotonic_s=now_s, look_count=known.look_count + 1)
        self.absent = counted

    def count(self, key: K) -> int:
        """Successive looks without it; 0 if the last one had it."""
        found = self.absent.get(key)
        return 0 if found is None else found.look_count

    def age_s(self, key: K, *, now_s: float) -> float:
        """Seconds since the first of the successive looks without it; 0.0 if the last one had it."""
        found = self.absent.get(key)
        return 0.0 if found is None else now_s - found.began_monotonic_s
