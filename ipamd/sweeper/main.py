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
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta

from ipamd import __version__, logs
from ipamd.model.errors import CloudError, SettingsError
from ipamd.model.words import printable
from ipamd.settings import CloudConfig, load
from ipamd.sweeper.sweep import Finding, SweepOrder, is_complete, sweep

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
    try:
        findings = _sweep(order, load().cloud, region, sleep)
    except SettingsError as error:
        print(f"vpc-ipamd-sweeper: {printable(str(error))}", file=sys.stderr)
        return EXIT_USAGE
    except CloudError as error:
        print(f"vpc-ipamd-sweeper: nothing was deleted: {printable(str(error))}", file=sys.stderr)
        return EXIT_BLIND
    _print(findings, order, as_json=arguments.output == "json")
    return 0 if is_complete(findings) else EXIT_INCOMPLETE


def _sweep(order: SweepOrder, config: CloudConfig, region: str, sleep: Callable[[float], None]) -> list[Finding]:
    from ipamd.cloud.ec2 import BotoEc2
    from ipamd.core.clock import SystemClock

    clock = SystemClock()
    ec2 = BotoEc2(config, region=lambda: region, vpc_id=lambda: order.vpc_id, clock=clock)
    return sweep(order, ec2=ec2, clock=clock, sleep=sleep)


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


if __name__ == "__main__":
    sys.exit(main())
