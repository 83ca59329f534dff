"""Decide whether an attachment without a DEL may be freed, from four sources: datastore, runtime, namespace and veth. Pure.

Every source says present, absent or unknown. Unknown is silence, and silence keeps the attachment (I11); a source other than our
datastore can only add a reason to keep (I2). The reasons are written to the ledger for the operator.
Which source is believed for what: docs/architecture.md, Sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

REAP_MIN_AGE = timedelta(minutes=5)
"""Ours: longer than the 4 minutes after which kubelet gives up RunPodSandbox; until then the runtime may not list a sandbox.

Source of the 4 minutes: Kubernetes staging/src/k8s.io/cri-client/pkg/remote_runtime.go, RunPodSandbox (twice the timeout).
"""

REAP_LEAKED_NETNS_AGE = timedelta(hours=1)
"""Absence from CRI after which a leaked network namespace no longer keeps its address. Ours: long after any retry of DEL."""

REAP_MIN_ABSENT_LISTS = 2
"""Successive complete lists without the sandbox. Ours: a single list can miss a sandbox that is being created."""


class Presence(StrEnum):
    """What one source says."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the sources say about one attachment.

    `absent_list_count`: successive complete CRI lists, at least one interval apart, without the sandbox, none of which was
    taken before the attachment was made; `absent_since`: when the first of them was taken (aware UTC), None if none.
    """

    attached_at: datetime
    runtime: Presence
    absent_list_count: int
    absent_since: datetime | None
    netns: Presence
    host_veth: Presence


class Verdict(StrEnum):
    """What to do. `unwire-then-reap`: the namespace is leaked; the veth is removed first, then the address is freed."""

    KEEP = "keep"
    REAP = "reap"
    UNWIRE_THEN_REAP = "unwire-then-reap"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reasons, one sentence each."""

    verdict: Verdict
    reasons: tuple[str, ...]


def judge(evidence: Evidence, *, now: datetime) -> Judgement:
    """Decide whether an attachment may be freed without a DEL.

    Args:
        evidence: one answer per source.
        now: aware UTC.
    Returns: KEEP with every reason to keep, or one of the two ways to reap with its reasons.
    Concurrency: pure. Guards: I2, I11.
    """
    keep = _reasons_to_keep(evidence, now)
    if not keep:
        return Judgement(
            Verdict.REAP,
            (
                f"absent from {evidence.absent_list_count} complete lists",
                "its network namespace is gone",
                "its host veth is gone",
            ),
        )
    if _is_leaked_netns(evidence, now):
        return Judgement(
            Verdict.UNWIRE_THEN_REAP,
            (f"absent from the runtime for over {REAP_LEAKED_NETNS_AGE}", "only its network namespace or veth is left"),
        )
    return Judgement(Verdict.KEEP, tuple(keep))


def _reasons_to_keep(evidence: Evidence, now: datetime) -> list[str]:
    keep = []
    if evidence.runtime is Presence.PRESENT:
        keep.append("the runtime lists its sandbox")
    elif evidence.runtime is Presence.UNKNOWN:
        keep.append("the runtime has not given a complete list")
    elif evidence.absent_list_count < REAP_MIN_ABSENT_LISTS:
        keep.append(f"absent from {evidence.absent_list_count} complete list(s), {REAP_MIN_ABSENT_LISTS} are needed")
    age = now - evidence.attached_at
    if age < REAP_MIN_AGE:
        keep.append(f"attached {age.total_seconds():.0f} s ago, {REAP_MIN_AGE.total_seconds():.0f} s are needed")
    for name, presence in (("network namespace", evidence.netns), ("host veth", evidence.host_veth)):
        if presence is Presence.PRESENT:
            keep.append(f"its {name} is there")
        elif presence is Presence.UNKNOWN:
            keep.append(f"whether its {name} is there is not known")
    return keep


def _is_leaked_netns(evidence: Evidence, now: datetime) -> bool:
    """Whether CRI has not listed it for an hour and every other source answered: what is left is a leak."""
    return (
        evidence.runtime is Presence.ABSENT
        and evidence.absent_list_count >= REAP_MIN_ABSENT_LISTS
        and evidence.absent_since is not None
        and now - evidence.absent_since >= REAP_LEAKED_NETNS_AGE
        and now - evidence.attached_at >= REAP_MIN_AGE
        and Presence.UNKNOWN not in (evidence.netns, evidence.host_veth)
    )
