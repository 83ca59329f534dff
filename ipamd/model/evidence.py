"""Decide what happens to a wired or recorded sandbox for which no DEL came. Reaper, GC, quarantine and start use this one rule. Pure.

Each source reports present, absent or unknown. While a source that the verdict needs is silent (unknown), the sandbox is kept (I11).
Two verdicts need no answer of another source: that on a sandbox whose DEL was done, and that on the remainder of an ADD that died,
because that ADD never replied. Only our datastore names the addresses that may be freed; every other source can only add a reason to
keep (I2). The first row of this table that fits decides. The first column has the values of `Record`:

    the datastore              the other sources                                                verdict
    recorded                   runtime, namespace or veth unknown                               keep
                               the runtime lists it                                             keep
                               fewer than 2 lists without it, and no GC declared it gone        keep
                               younger than 5 min, and not proven gone                          keep
                               namespace and veth gone                                          reap
                               the runtime's own, absent from 2 lists and for 1 h               unwire-then-reap
                               otherwise: namespace or veth is there                            keep
    deleted                    -                                                                unwire-then-reap
    never-promised             the runtime lists it                                             adopt
                               otherwise                                                        unwire-then-reap
    quarantined or missing     whether it is wired is unknown                                   keep
                               nothing is wired any more                                        reap
                               the runtime lists it                                             adopt
                               absent from 2 lists and for 1 h                                  unwire-then-reap
                               otherwise                                                        quarantined: keep
                                                                                                missing: quarantine

"The runtime's own" means that the runtime made the sandbox (`is_runtimes_own`). A sandbox without a row is "never-promised" only if it
is certain that no row was lost, and otherwise "missing". The address of a sandbox with an uplink is in no pool, so it has no row that
could prove this. So `SandboxJudge` classifies such a sandbox as missing until the runtime has answered.

A sandbox is *proven gone* if the runtime made it and two of the runtime's lists lack it, nothing is at the path of its namespace in a
directory where the host's mounts appear, and all its links are gone. Such a sandbox may be reaped before it is 5 min old, because a
runtime whose chained plugin fails leaves one behind every few seconds (containerd issue 12130). That the pod has a newer sandbox is no
evidence that its earlier one is gone.

All ages are seconds on the monotonic clock. The same table with its reasons: docs/datastore.md, Sources.
"""

from __future__ import annotations

from enum import StrEnum

from ipamd.model.record import dataclass
from ipamd.model.verdict_reasons import ReasonCode, VerdictReason, verdict_reason

REAP_MIN_AGE_S = 300.0
"""A recorded sandbox whose ADD was less than this time ago is kept, unless it is proven gone. Ours: kubelet gives up RunPodSandbox
after 4 minutes, and until then the sandbox can be missing from the runtime's list.

Source of the 4 minutes: Kubernetes staging/src/k8s.io/cri-client/pkg/remote_runtime.go, RunPodSandbox (twice the timeout).
"""

LEAK_AGE_S = 3600.0
"""A sandbox that CRI has not listed for this long loses its address even if its namespace or its veth still exists. Ours: by then no
retry of a DEL is expected any more."""

REAP_MIN_ABSENT_LOOKS = 2
"""How many successive complete lists must lack a sandbox before its absence counts. Ours: a single list can lack a sandbox that is
being created."""


class Presence(StrEnum):
    """The report of one source about one object."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Record(StrEnum):
    """The datastore's report about a sandbox and its address.

    RECORDED: the sandbox has a row.
    QUARANTINED: the sandbox has no row, and its address is quarantined.
    MISSING: the sandbox has no row, but its row may have been lost.
    NEVER_PROMISED: the sandbox has no row, no row was lost, and its address has a row without an owner, or is not of the pool: an ADD
        died between wiring and commit.
    DELETED: the sandbox has a tombstone, because its DEL was done.
    """

    RECORDED = "recorded"
    QUARANTINED = "quarantined"
    MISSING = "missing"
    NEVER_PROMISED = "never-promised"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The reports of all sources about one sandbox with its address; ages in seconds on the monotonic clock.

    record: the datastore's report.
    runtime: whether CRI lists the sandbox.
    netns: whether the sandbox's network namespace exists. If its path is not known, the presence of the veth, because a veth pair is
        deleted with its namespace.
    host_veth: whether the first leg's host veth exists.
    absent_look_count: how many successive plausible CRI lists lacked the sandbox. The lists are at least one interval apart, and none
        is older than the sandbox.
    absent_age_s: seconds since the first of these lists.
    age_s: seconds since the sandbox's ADD, never overestimated.
    is_declared_gone: whether the runtime's list of valid attachments (GC) lacks the sandbox.
    is_runtimes_own: whether CRI listed the sandbox once, its ADD named a pod, or it was adopted. Otherwise another program made the
        sandbox, and CRI never lists it (docs/adr/0001). Used for recorded sandboxes only, because the kernel's alias does not contain
        this fact.
    is_netns_proven_gone: whether nothing is at the namespace's path, although the host's mounts would be visible there. Otherwise an
        absent path may be missing only from the daemon's own mounts.
    links: whether any link of the sandbox exists on the host, even one that is being deleted: a host veth of any leg, or the uplink.
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
    is_netns_proven_gone: bool = False
    links: Presence = Presence.UNKNOWN


class SandboxVerdict(StrEnum):
    """The action to take.

    KEEP: change nothing.
    REAP: free the address (it cools).
    UNWIRE_THEN_REAP: remove what is left of the wiring first, then free the address if no sandbox has it.
    ADOPT: record the sandbox.
    QUARANTINE: keep the wiring, and do not assign the address.
    """

    KEEP = "keep"
    REAP = "reap"
    UNWIRE_THEN_REAP = "unwire-then-reap"
    ADOPT = "adopt"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with at least one reason."""

    verdict: SandboxVerdict
    reasons: tuple[VerdictReason, ...]

    @property
    def main_reason(self) -> str:
        """The first reason, in a sentence."""
        return str(self.reasons[0])

    @property
    def text(self) -> str:
        """All reasons, in one line."""
        return "; ".join(map(str, self.reasons))


def judge(evidence: Evidence) -> Judgement:
    """Decide by the table of this module.

    Returns: the verdict with its reasons. If a recorded sandbox is kept, these are all the reasons to keep it.
    Concurrency: pure. Guards: I2, I11.
    """
    if evidence.record is Record.RECORDED:
        return _judge_recorded(evidence)
    if evidence.record is Record.DELETED:
        return Judgement(SandboxVerdict.UNWIRE_THEN_REAP, (VerdictReason(ReasonCode.DELETED),))
    if evidence.record is Record.NEVER_PROMISED and evidence.runtime is not Presence.PRESENT:
        # An ADD replies after its row is stored, and no row was lost. So the ADD of this sandbox never replied.
        return Judgement(SandboxVerdict.UNWIRE_THEN_REAP, (VerdictReason(ReasonCode.NEVER_PROMISED),))
    return _judge_unrecorded(evidence)


def _judge_recorded(evidence: Evidence) -> Judgement:
    keep = _reasons_to_keep(evidence)
    if not keep:
        gone = VerdictReason(ReasonCode.NETNS_GONE), VerdictReason(ReasonCode.VETH_GONE)
        return Judgement(SandboxVerdict.REAP, (_absence(evidence), *gone))
    if _is_leak(evidence) and evidence.age_s >= REAP_MIN_AGE_S and evidence.is_runtimes_own:
        return Judgement(SandboxVerdict.UNWIRE_THEN_REAP, (_long_absence(), VerdictReason(ReasonCode.ONLY_REMAINS_LEFT)))
    return Judgement(SandboxVerdict.KEEP, tuple(keep))


def _judge_unrecorded(evidence: Evidence) -> Judgement:
    """Judge a veth, or a quarantined address, without an attachment: if nothing is wired, no sandbox can use the address."""
    if evidence.host_veth is Presence.UNKNOWN:
        return Judgement(SandboxVerdict.KEEP, (VerdictReason(ReasonCode.WIRING_UNKNOWN),))
    if evidence.host_veth is Presence.ABSENT:
        return Judgement(SandboxVerdict.REAP, (VerdictReason(ReasonCode.WIRING_GONE),))
    if evidence.runtime is Presence.PRESENT:
        return Judgement(SandboxVerdict.ADOPT, (VerdictReason(ReasonCode.WIRED_AND_LISTED),))
    if _is_leak(evidence):
        return Judgement(SandboxVerdict.UNWIRE_THEN_REAP, (_long_absence(),))
    stays = SandboxVerdict.QUARANTINE if evidence.record is Record.MISSING else SandboxVerdict.KEEP
    if evidence.runtime is Presence.UNKNOWN:
        return Judgement(stays, (VerdictReason(ReasonCode.WIRED_AND_SILENT),))
    return Judgement(stays, (VerdictReason(ReasonCode.WIRED_NOT_LISTED),))


NETNS_REASONS = {Presence.PRESENT: ReasonCode.NETNS_THERE, Presence.UNKNOWN: ReasonCode.NETNS_UNKNOWN}

VETH_REASONS = {Presence.PRESENT: ReasonCode.VETH_THERE, Presence.UNKNOWN: ReasonCode.VETH_UNKNOWN}


def _reasons_to_keep(evidence: Evidence) -> list[VerdictReason]:
    keep = list[VerdictReason]()
    if evidence.runtime is Presence.PRESENT:
        keep.append(VerdictReason(ReasonCode.LISTED))
    elif evidence.runtime is Presence.UNKNOWN:
        keep.append(VerdictReason(ReasonCode.RUNTIME_SILENT))
    elif evidence.absent_look_count < REAP_MIN_ABSENT_LOOKS and not evidence.is_declared_gone:
        fields = {"count": evidence.absent_look_count, "needed": REAP_MIN_ABSENT_LOOKS}
        keep.append(verdict_reason(ReasonCode.LISTS_TOO_FEW, **fields))
    if evidence.age_s < REAP_MIN_AGE_S and not _is_proven_gone(evidence):
        ages = {"age_s": f"{evidence.age_s:.0f}", "needed_s": f"{REAP_MIN_AGE_S:.0f}"}
        keep.append(verdict_reason(ReasonCode.TOO_YOUNG, **ages))
    if evidence.netns in NETNS_REASONS:
        keep.append(VerdictReason(NETNS_REASONS[evidence.netns]))
    if evidence.host_veth in VETH_REASONS:
        keep.append(VerdictReason(VETH_REASONS[evidence.host_veth]))
    return keep


def _is_proven_gone(evidence: Evidence) -> bool:
    """Whether the sandbox is gone for certain, so that it cannot be one that is still being created."""
    return (
        evidence.runtime is Presence.ABSENT
        and evidence.absent_look_count >= REAP_MIN_ABSENT_LOOKS
        and evidence.is_runtimes_own
        and evidence.netns is Presence.ABSENT
        and evidence.is_netns_proven_gone
        and evidence.links is Presence.ABSENT
    )


def _is_leak(evidence: Evidence) -> bool:
    """Whether the sandbox's wiring is a leak: CRI has not listed the sandbox for LEAK_AGE_S, and every other source answered."""
    return (
        evidence.runtime is Presence.ABSENT
        and evidence.absent_look_count >= REAP_MIN_ABSENT_LOOKS
        and evidence.absent_age_s >= LEAK_AGE_S
        and Presence.UNKNOWN not in (evidence.netns, evidence.host_veth)
    )


def _absence(evidence: Evidence) -> VerdictReason:
    if evidence.absent_look_count >= REAP_MIN_ABSENT_LOOKS:
        return verdict_reason(ReasonCode.ABSENT_FROM_LISTS, count=evidence.absent_look_count)
    return VerdictReason(ReasonCode.NOT_VALID)


def _long_absence() -> VerdictReason:
    return verdict_reason(ReasonCode.ABSENT_FOR_LONG, minutes=f"{LEAK_AGE_S / 60:.0f}")
