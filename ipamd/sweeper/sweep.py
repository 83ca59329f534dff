"""One sweep over a cluster's detached ENIs: two looks, the rule of `ipamd/model/eni.py`, then at most so many deletions.

Nodes may be creating ENIs at the same moment. Three things protect those: the least age, which must exceed the longest time from a
creation to its attachment; the second look; and EC2 itself, which deletes no attached ENI. A node whose open creation loses its ENI
all the same finds it gone, and creates another (`ipamd/eni/steps.py`). Whether the tagged instance exists is not asked:
a detached ENI holds nothing of it, and DescribeInstances would be one more permission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from ipamd.model.cloud import DescribedEni
from ipamd.model.eni import CLUSTER_TAG, CREATED_AT_TAG, INSTANCE_TAG, why_kept
from ipamd.model.errors import CloudDeniedError, CloudError, ThrottledError, log_text
from ipamd.model.ids import EniId
from ipamd.ports import Clock, Ec2

SECOND_LOOK_S = 60.0
"""Between the looks. Ours: longer than an ENI is detached between DetachNetworkInterface and DeleteNetworkInterface of its node."""


class Verdict(StrEnum):
    """What became of one ENI."""

    DELETED = "deleted"
    LEAKED = "leaked, not deleted (dry run)"
    KEPT = "kept"
    FAILED = "not deleted"
    LEFT = "left for the next run"


@dataclass(frozen=True, slots=True)
class SweepOrder:
    """What to sweep. `cluster_name` and `vpc_id` are not empty; `time_s`: no deletion begins later than this after the start."""

    cluster_name: str
    vpc_id: str
    min_age: timedelta
    delete_count_max: int
    time_s: float
    is_dry_run: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """One ENI that EC2 listed, with the tags of who made it and when."""

    eni_id: EniId
    verdict: Verdict
    reason: str
    instance_id: str
    created_at: str

    def __str__(self) -> str:
        return f"{self.eni_id} {self.verdict}: {self.reason}"


def sweep(order: SweepOrder, *, ec2: Ec2, clock: Clock, sleep: Callable[[float], None]) -> list[Finding]:
    """Look, look again, and delete what both looks showed leaked, oldest first.

    Returns: one finding for each ENI that EC2 listed, by ID. Raises: CloudError if EC2 cannot be looked at; nothing is deleted then.
    """
    if not order.cluster_name or not order.vpc_id:
        raise ValueError("a sweep without a cluster and a VPC would delete the ENIs of others")
    deadline = clock.monotonic() + order.time_s
    leaked, kept = _look(order, ec2, clock)
    if order.is_dry_run:
        return _by_id([*kept, *(_finding(eni, Verdict.LEAKED, _why(eni)) for eni in leaked)])
    if leaked:
        seen = {eni.eni_id for eni in leaked}
        sleep(SECOND_LOOK_S)
        leaked, kept = _look(order, ec2, clock)
        kept += [_finding(eni, Verdict.LEFT, "only one look has shown it") for eni in leaked if eni.eni_id not in seen]
        leaked = [eni for eni in leaked if eni.eni_id in seen]
    return _by_id([*kept, *_delete(leaked, order, ec2, lambda: clock.monotonic() >= deadline)])


def _look(order: SweepOrder, ec2: Ec2, clock: Clock) -> tuple[list[DescribedEni], list[Finding]]:
    """The leaked ENIs, and why the others are kept. EC2 has filtered; nothing is believed to be filtered."""
    leaked, kept = [], []
    for eni in ec2.find_detached({CLUSTER_TAG: order.cluster_name, INSTANCE_TAG: ""}):
        why = why_kept(eni, now=clock.now(), min_age=order.min_age, cluster_name=order.cluster_name)
        if why:
            kept.append(_finding(eni, Verdict.KEPT, why))
        else:
            leaked.append(eni)
    return leaked, kept


def _delete(leaked: Sequence[DescribedEni], order: SweepOrder, ec2: Ec2, is_late: Callable[[], bool]) -> Iterator[Finding]:
    """Delete one after the other; the adapter keeps its own rate, and waits when EC2 throttles."""
    stopped = ""
    for number, eni in enumerate(sorted(leaked, key=lambda eni: (eni.tags[CREATED_AT_TAG], eni.eni_id))):
        if not stopped and number >= order.delete_count_max:
            stopped = f"{order.delete_count_max} are deleted in one run"
        if not stopped and is_late():
            stopped = OUT_OF_TIME
        if stopped:
            yield _finding(eni, Verdict.LEFT, stopped)
            continue
        try:
            ec2.delete_eni(eni.eni_id)
        except CloudError as error:
            if isinstance(error, ThrottledError | CloudDeniedError):
                stopped = f"EC2 refused the one before: {log_text(error)}"  # and would refuse every other
            yield _finding(eni, Verdict.FAILED, log_text(error))
        else:
            yield _finding(eni, Verdict.DELETED, _why(eni))


OUT_OF_TIME = "the time of this run is over"


def is_complete(findings: Sequence[Finding]) -> bool:
    """Whether nothing failed and no time was lacking; what a cap left for the next run is complete."""
    return not any(one.verdict is Verdict.FAILED or one.reason == OUT_OF_TIME for one in findings)


def _why(eni: DescribedEni) -> str:
    return f"made by {eni.tags[INSTANCE_TAG]} at {eni.tags[CREATED_AT_TAG]}, attached to nothing"


def _finding(eni: DescribedEni, verdict: Verdict, reason: str) -> Finding:
    return Finding(eni.eni_id, verdict, reason, eni.tags.get(INSTANCE_TAG, ""), eni.tags.get(CREATED_AT_TAG, ""))


def _by_id(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda one: one.eni_id)
