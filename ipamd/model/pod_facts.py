"""What a node learns of a pod before its ADD: whether the pod has security groups, and so an ENI, of its own. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ipamd.model.pod_annotations import CONFIG_SOURCE, FROM_API, MARK, POD_ENI
from ipamd.model.record import dataclass
from ipamd.model.words import printable

REQUIRED, NONE = "required", "none"
"""The values of the mark. Every pod that was created under the admission policy has one of them."""


class GroupRequirement(StrEnum):
    """Whether a pod must have an ENI of its own.

    UNMARKED: not known, because the pod lacks the mark of the admission policy, which may not be installed.
    OLDER: not known, because the pod lacks the mark although other pods have it: it is older than the policy.
    UNKNOWN: not known, because no source answers.
    """

    YES = "yes"
    NO = "no"
    UNMARKED = "unmarked"
    OLDER = "older"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PodFacts:
    """The facts about a pod.

    `reason`: the source of the facts, or why there are none, for reports.
    `annotation`: that of its own ENI, "" if the pod has none.
    `is_marked`: the admission policy marked this pod, so it marks every later pod too.
    `is_of_pod`: only this pod's facts are missing; for other pods the source has an answer.
    """

    requirement: GroupRequirement
    reason: str
    annotation: str = ""
    is_marked: bool = False
    is_of_pod: bool = False


def read_annotations(annotations: Mapping[str, str] | None, *, is_policy_known: bool) -> PodFacts:
    """Read the annotations that the runtime handed over with this sandbox; they do not change any more.

    `is_policy_known`: the admission policy is installed, so every pod that was made since has its mark.

    The annotation with the pod's source can be trusted: kubelet overwrites the value of the pod's author (kubernetes
    pkg/kubelet/config/config.go).
    """
    if annotations is None:
        return PodFacts(GroupRequirement.UNKNOWN, "the runtime hands over no annotations of the pod")
    annotation, mark = annotations.get(POD_ENI, ""), annotations.get(MARK)
    source = annotations.get(CONFIG_SOURCE, FROM_API)
    if source != FROM_API:
        return PodFacts(
            GroupRequirement.NO, f"kubelet has the pod from {printable(source, most=40)}, and not from the API", annotation
        )
    if mark is None:
        return PodFacts(
            GroupRequirement.OLDER if is_policy_known else GroupRequirement.UNMARKED,
            f"the pod has no annotation {MARK}",
            annotation,
        )
    requirement = {REQUIRED: GroupRequirement.YES, NONE: GroupRequirement.NO}.get(mark, GroupRequirement.UNKNOWN)
    reason = f"annotation {MARK} is {printable(mark, most=40)!r}"
    if requirement is GroupRequirement.UNKNOWN:
        return PodFacts(requirement, f"{reason}, neither {REQUIRED!r} nor {NONE!r}", is_of_pod=True)
    return PodFacts(requirement, reason, annotation, is_marked=True)
