"""The command `vpc-ipamd-sweeper`: read what to sweep, sweep once, print one line for each ENI.

Exit statuses: 0 done, or a dry run; 1 some leaked ENI could not be deleted, or the time was over; 2 wrong usage or settings;
3 EC2 could not be looked at, and nothing was deleted. Started by hand it changes nothing without `--delete`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from enum import StrEnum

from ipamd import __version__, logs
from ipamd.model.cloud import DescribedEni
from ipamd.model.eni import CLUSTER_TAG, CREATED_AT_TAG, INSTANCE_TAG, why_kept
from ipamd.model.errors import CloudDeniedError, CloudError, SettingsError, ThrottledError, log_text
from ipamd.model.ids import EniId
from ipamd.model.record import asdict, dataclass
from ipamd.model.words import printable
from ipamd.ports import Clock, Ec2
from ipamd.settings import load

EXIT_INCOMPLETE, EXIT_USAGE, EXIT_BLIND = 1, 2, 3

MIN_AGE_S = 1800
"""Default least age. Ours: a creation takes seconds, and minutes in a brown-out of EC2; a leaked ENI may wait half an hour."""

MIN_AGE_LEAST_S = 300
"""Least that is accepted. Source: amazon-vpc-cni-k8s pkg/awsutils/awsutils.go, eniDeleteCooldownTime (5 min)."""

DELETE_COUNT_MAX = 50
"""Default cap. Ours: half of EC2's burst of mutating calls, and a mistake is noticed before it is a large one."""

TIME_S = 300


def main(argv: Sequence[str] | None = None, *, sleep: Callable[[float], None] = time.sleep) -> int:
    """Sweep once; returns the exit status."""
    logs.set_up("warning")
    parser = _parser()
    arguments = parser.parse_args(argv)
    region = arguments.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "")
    needed = {
        "--cluster or CLUSTER_NAME": arguments.cluster,
        "--vpc-id or VPC_ID": arguments.vpc_id,
        "--region or AWS_REGION": region,
    }
    if missing := [name for name, value in needed.items() if not value.strip()]:
        parser.error(f"not set: {', '.join(missing)}")
    order = SweepOrder(
        cluster_name=arguments.cluster,
        vpc_id=arguments.vpc_id,
        min_age=timedelta(seconds=arguments.min_age),
        delete_count_max=arguments.max_deletions,
        time_s=arguments.max_seconds,
        is_dry_run=not arguments.delete,
    )
    from ipamd.cloud.ec2 import BotoEc2
    from ipamd.core.deadline import SystemClock

    clock = SystemClock()
    try:
        ec2 = BotoEc2(load().cloud, region=lambda: region, vpc_id=lambda: order.vpc_id, clock=clock)
        findings = sweep(order, ec2=ec2, clock=clock, sleep=sleep)
    except SettingsError as error:
        print(f"vpc-ipamd-sweeper: {printable(str(error))}", file=sys.stderr)
        return EXIT_USAGE
    except CloudError as error:
        print(f"vpc-ipamd-sweeper: nothing was deleted: {printable(str(error))}", file=sys.stderr)
        return EXIT_BLIND
    _print(findings, order, as_json=arguments.output == "json")
    return 0 if is_complete(findings) else EXIT_INCOMPLETE


def _print(findings: Sequence[Finding], order: SweepOrder, *, as_json: bool) -> None:
    counts = Counter(one.verdict.value for one in findings)
    if as_json:
        said = {"cluster": order.cluster_name, "vpc": order.vpc_id, "dry_run": order.is_dry_run}
        print(json.dumps({**said, "counts": dict(sorted(counts.items())), "enis": [asdict(one) for one in findings]}, indent=2))
        return
    for one in findings:
        print(printable(str(one)))
    summary = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) or "no detached ENI"
    print(f"cluster {printable(order.cluster_name)} in {printable(order.vpc_id)}: {summary}")


def _parser() -> argparse.ArgumentParser:
    environ = os.environ
    parser = argparse.ArgumentParser(prog="vpc-ipamd-sweeper", description="Delete the leaked ENIs of one cluster.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("--cluster", default=environ.get("CLUSTER_NAME", ""), help="its tag is required (default: CLUSTER_NAME)")
    parser.add_argument("--vpc-id", default=environ.get("VPC_ID", ""), help="the cluster's VPC (default: VPC_ID)")
    parser.add_argument("--region", default="", help="default: AWS_REGION")
    parser.add_argument("--delete", action="store_true", help="delete; without it only say what would be deleted")
    age_help = f"least age of an ENI, at least {MIN_AGE_LEAST_S} (default: %(default)s)"
    parser.add_argument("--min-age", type=_at_least(MIN_AGE_LEAST_S), default=MIN_AGE_S, metavar="SECONDS", help=age_help)
    parser.add_argument("--max-deletions", type=_at_least(1), default=DELETE_COUNT_MAX, metavar="N", help="default: %(default)s")
    time_help = "no deletion begins later (default: %(default)s)"
    parser.add_argument("--max-seconds", type=_at_least(1), default=TIME_S, metavar="SECONDS", help=time_help)
    parser.add_argument("-o", "--output", choices=("lines", "json"), default="lines")
    return parser


def _at_least(lowest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < lowest:
            raise argparse.ArgumentTypeError(f"must be {lowest} or more")
        return value

    return parse


# One sweep over a cluster's detached ENIs: two looks, the rule of `ipamd/model/eni.py`, then at most so many deletions.
#
# Nodes may be creating ENIs at the same moment. Three things protect those: the least age, which must exceed the longest time from a
# creation to its attachment; the second look; and EC2 itself, which deletes no attached ENI. A node whose open creation loses its ENI
# all the same finds it gone, and creates another (`ipamd/eni/steps.py`). Whether the tagged instance exists is not asked:
# a detached ENI holds nothing of it, and DescribeInstances would be one more permission.


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
    leaked, findings = _look(order, ec2, clock)
    if order.is_dry_run:
        findings += [_finding(eni, Verdict.LEAKED, _why(eni)) for eni in leaked]
    elif leaked:
        seen = {eni.eni_id for eni in leaked}
        sleep(SECOND_LOOK_S)
        leaked, findings = _look(order, ec2, clock)
        findings += [_finding(eni, Verdict.LEFT, "only one look has shown it") for eni in leaked if eni.eni_id not in seen]
        leaked = [eni for eni in leaked if eni.eni_id in seen]
        findings += _delete(leaked, order, ec2, lambda: clock.monotonic() >= deadline)
    return sorted(findings, key=lambda one: one.eni_id)


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


if __name__ == "__main__":
    sys.exit(main())
