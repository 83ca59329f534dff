"""Decide from the facts about a pod whether its ADD attaches a branch ENI, takes an address of the pool, waits or is refused. Pure."""

from __future__ import annotations

from enum import StrEnum

from ipamd.model.pod_annotations import POD_ENI
from ipamd.model.pod_facts import GroupRequirement, PodFacts
from ipamd.model.record import dataclass


class AttachMode(StrEnum):
    """What an ADD does.

    BRANCH: attach the branch ENI.
    POOL: take an address of the pool.
    WAIT: wait until the control plane has named the branch ENI.
    REFUSE: fail.
    """

    BRANCH = "branch"
    POOL = "pool"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about an ADD.

    `reason`: why, for reports and refusals.
    `advice`: the next step for the reader of a refusal; "" without a refusal.
    `condition`: a fault of the node, as a sentence for a condition; "" if there is none.
    """

    mode: AttachMode
    reason: str
    advice: str = ""
    condition: str = ""


NOBODY_MARKS = (
    "pod admission policy: pods have no marks, so it is not known in time which pods must have security groups of their own, and such "
    "a pod may get an address of the pool; apply manifests/pod-eni, or set "
    "VPC_IPAMD_POD_SECURITY_GROUP_SOURCE=kubelet (docs/security-groups.md)"
)
"""The sentence of the condition of a node on which a pod without a mark got an address of the pool."""


def choose_attach_mode(facts: PodFacts) -> Decision:
    """Decide from the facts about a pod what its ADD does (I19).

    An annotation that names a branch ENI is followed if the pod needs one, and also if the need is not known because the pod lacks the
    mark of the admission policy. If the pod needs no branch ENI, the annotation leads to a refusal, because the controller does not
    write it on such a pod.
    """
    if facts.requirement is GroupRequirement.UNKNOWN:
        advice = "retry; a pod gets no address before it is known whether it has security groups of its own"
        return Decision(AttachMode.REFUSE, facts.reason, advice)
    if facts.requirement is GroupRequirement.NO:
        if not facts.annotation:
            return Decision(AttachMode.POOL, facts.reason)
        advice = f"annotation {POD_ENI} was not written by the controller: delete the pod, and create it without"
        return Decision(AttachMode.REFUSE, f"{facts.reason}, but the pod's annotation names a branch ENI", advice)
    if facts.annotation:
        return Decision(AttachMode.BRANCH, facts.reason)
    if facts.requirement is GroupRequirement.YES:
        return Decision(AttachMode.WAIT, f"{facts.reason}, and the pod has no annotation {POD_ENI} yet")
    if facts.requirement is GroupRequirement.OLDER:
        return Decision(
            AttachMode.REFUSE,
            f"{facts.reason}: it is older than the admission policy",
            "delete the pod once; its successor is marked",
        )
    return Decision(AttachMode.POOL, facts.reason, condition=NOBODY_MARKS)
