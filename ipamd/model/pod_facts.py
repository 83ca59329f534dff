"""Whether a pod needs security groups of its own, and so an ENI of its own, according to the pod's annotations. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ipamd.model.pod_annotations import CONFIG_SOURCE, FROM_API, MARK, POD_ENI
from ipamd.model.record import dataclass
from ipamd.model.words import printable

REQUIRED, NONE = "required", "none"
"""The values of the annotation MARK. Every pod that was created through the API while the admission policy was installed has one of
them."""


class GroupRequirement(StrEnum):
    """Whether a pod must have an ENI of its own.

    YES, NO: a source reports it.
    UNMARKED: not known, because the pod lacks the mark of the admission policy, which is perhaps not installed.
    OLDER: not known, because the pod lacks the mark although the admission policy is installed: the pod is older than the policy.
    UNKNOWN: not known, because no source answers, or its answer is malformed.
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
    `annotation`: the annotation `POD_ENI`, which names the pod's own ENI; "" if the pod has none.
    `is_marked`: whether the admission policy marked this pod. Then it marks every later pod too.
    `is_of_pod`: whether only this pod's facts are missing, so that the source may answer about other pods.
    """

    requirement: GroupRequirement
    reason: str
    annotation: str = ""
    is_marked: bool = False
    is_of_pod: bool = False


def read_annotations(annotations: Mapping[str, str] | None, *, is_policy_known: bool) -> PodFacts:
    """Read the facts from the annotations that the runtime handed over with a sandbox. These annotations never change.

    The annotation CONFIG_SOURCE can be trusted: kubelet overwrites a value that the pod's author wrote (kubernetes
    pkg/kubelet/config/config.go).

    Args:
        annotations: None if the runtime does not hand them over.
        is_policy_known: whether a pod with a mark of the admission policy was seen, so that every pod created since then has a mark.
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
