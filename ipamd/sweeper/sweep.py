"""Sweep a cluster's detached ENIs once: list them twice, apply the rule of `ipamd/model/leaked_eni.py`, and delete a bounded number.

Nodes may be creating ENIs at the same time. Three things protect these new ENIs: the minimum age, which must exceed the longest time
from a creation to the attachment; the second list; and EC2 itself, which does not delete an attached ENI. If the sweep nevertheless
deletes a new ENI, its node notices that and creates another (`ipamd/eni/steps.py`). The sweep does not check whether the instance in
an ENI's tag still exists: the ENI is detached from it in any case, and DescribeInstances would be one more permission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from enum import StrEnum

from ipamd.model.cloud import DescribedEni
from ipamd.model.eni_tags import CLUSTER_TAG, CREATED_AT_TAG, INSTANCE_TAG
from ipamd.model.errors import CloudCredentialsError, CloudDeniedError, CloudError, ThrottledError, log_text
from ipamd.model.ids import EniId
from ipamd.model.leaked_eni import why_kept
from ipamd.model.record import dataclass
from ipamd.ports.cloud import Ec2
from ipamd.ports.process import Clock

SECOND_LIST_S = 60.0
"""Pause between the two lists. Ours: longer than the time from a node's DetachNetworkInterface to its DeleteNetworkInterface."""

OUT_OF_TIME = "the time of this run is over"


class SweepOutcome(StrEnum):
    """The outcome for one ENI."""

    DELETED = "deleted"
    LEAKED = "leaked, not deleted (dry run)"
    KEPT = "kept"
    FAILED = "not deleted"
    LEFT = "left for the next run"


@dataclass(frozen=True, slots=True)
class SweepOrder:
    """Scope and bounds of a sweep.

    `cluster_name`, `vpc_id`: must not be empty.
    `min_age`: least age of an ENI that counts as leaked.
    `delete_count_max`: the largest number of ENIs that are deleted.
    `time_s`: seconds from the start of the sweep, after which no deletion begins.
    """

    cluster_name: str
    vpc_id: str
    min_age: timedelta
    delete_count_max: int
    time_s: float
    is_dry_run: bool


@dataclass(frozen=True, slots=True)
class SweptEni:
    """One ENI that EC2 listed, and its outcome.

    `instance_id`, `created_at`: the instance that created the ENI, and the time of the creation, both by the tags of the ENI.
    """

    eni_id: EniId
    verdict: SweepOutcome
    reason: str
    instance_id: str
    created_at: str

    def __str__(self) -> str:
        return f"{self.eni_id} {self.verdict}: {self.reason}"


def sweep(order: SweepOrder, *, ec2: Ec2, clock: Clock, sleep: Callable[[float], None]) -> list[SweptEni]:
    """List the detached ENIs twice, and delete the ENIs that count as leaked in both lists, oldest first.

    In a dry run, or if the first list has no leaked ENI, there is no second list.
    Returns: one finding for each ENI of the last list, sorted by ID.
    Raises: CloudError if a list fails; nothing is deleted then. ValueError if the order names no cluster or no VPC.
    """
    if not order.cluster_name or not order.vpc_id:
        raise ValueError("a sweep without a cluster and a VPC would delete the ENIs of others")
    deadline = clock.monotonic() + order.time_s
    leaked, findings = _classify(order, ec2, clock)
    if order.is_dry_run:
        findings += [_finding(eni, SweepOutcome.LEAKED, _leak_reason(eni)) for eni in leaked]
    elif leaked:
        seen = {eni.eni_id for eni in leaked}
        sleep(SECOND_LIST_S)
        leaked, findings = _classify(order, ec2, clock)
        seen_twice = []
        for eni in leaked:
            if eni.eni_id in seen:
                seen_twice.append(eni)
            else:
                findings.append(_finding(eni, SweepOutcome.LEFT, "only the second list has it"))
        findings += _delete(seen_twice, order, ec2, lambda: clock.monotonic() >= deadline)
    return sorted(findings, key=lambda finding: finding.eni_id)


def is_complete(findings: Sequence[SweptEni]) -> bool:
    """Whether nothing failed and the time sufficed. A run that left ENIs because of the cap on deletions is complete."""
    return not any(finding.verdict is SweepOutcome.FAILED or finding.reason == OUT_OF_TIME for finding in findings)


def _classify(order: SweepOrder, ec2: Ec2, clock: Clock) -> tuple[list[DescribedEni], list[SweptEni]]:
    """List the detached ENIs. Returns: the leaked ENIs, and a finding for each other ENI.

    The rule (`why_kept`) repeats the checks of EC2's filter, so that a wrong answer of EC2 deletes nothing.
    """
    leaked = []
    findings = []
    for eni in ec2.find_detached({CLUSTER_TAG: order.cluster_name, INSTANCE_TAG: ""}):
        reason = why_kept(eni, now=clock.now(), min_age=order.min_age, cluster_name=order.cluster_name)
        if reason:
            findings.append(_finding(eni, SweepOutcome.KEPT, reason))
        else:
            leaked.append(eni)
    return leaked, findings


def _delete(leaked: Sequence[DescribedEni], order: SweepOrder, ec2: Ec2, is_late: Callable[[], bool]) -> Iterator[SweptEni]:
    """Delete one ENI after the other. The adapter limits the rate, and waits when EC2 throttles."""
    stop_reason = ""
    for number, eni in enumerate(sorted(leaked, key=lambda eni: (eni.tags[CREATED_AT_TAG], eni.eni_id))):
        if not stop_reason and number >= order.delete_count_max:
            stop_reason = f"{order.delete_count_max} are deleted in one run"
        if not stop_reason and is_late():
            stop_reason = OUT_OF_TIME
        if stop_reason:
            yield _finding(eni, SweepOutcome.LEFT, stop_reason)
            continue
        try:
            ec2.delete_eni(eni.eni_id)
        except CloudError as error:
            if isinstance(error, ThrottledError | CloudDeniedError | CloudCredentialsError):
                stop_reason = f"EC2 refused an earlier deletion: {log_text(error)}"  # EC2 would refuse all further deletions too
            yield _finding(eni, SweepOutcome.FAILED, log_text(error))
        else:
            yield _finding(eni, SweepOutcome.DELETED, _leak_reason(eni))


def _leak_reason(eni: DescribedEni) -> str:
    return f"made by {eni.tags[INSTANCE_TAG]} at {eni.tags[CREATED_AT_TAG]}, attached to nothing"


def _finding(eni: DescribedEni, verdict: SweepOutcome, reason: str) -> SweptEni:
    return SweptEni(eni.eni_id, verdict, reason, eni.tags.get(INSTANCE_TAG, ""), eni.tags.get(CREATED_AT_TAG, ""))
