"""The command `vpc-ipamd-sweeper`: read the arguments, sweep once, and print one line for each ENI.

Exit statuses: 0 for success and for a dry run; 1 if a leaked ENI could not be deleted, or was left because the time limit
(`--max-seconds`) was reached; 2 for wrong usage or settings; 3 if EC2 did not answer or refused a list, so that nothing was deleted.
Without `--delete` it is a dry run, which changes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta

from ipamd import __version__, logs
from ipamd.command_line import EXIT_USAGE, Parser
from ipamd.model.errors import CloudError, SettingsError
from ipamd.model.record import asdict
from ipamd.model.words import printable
from ipamd.settings import load
from ipamd.sweeper.sweep import SweepOrder, SweptEni, is_complete, sweep

EXIT_INCOMPLETE, EXIT_BLIND = 1, 3

MIN_AGE_S = 1800
"""Default minimum age. Ours: a creation takes seconds, or minutes while EC2 is impaired, and a leaked ENI can wait half an hour."""

MIN_AGE_LEAST_S = 300
"""Lowest accepted minimum age. Source: amazon-vpc-cni-k8s pkg/awsutils/awsutils.go, eniDeleteCooldownTime (5 min)."""

DELETE_COUNT_MAX = 50
"""Default cap on deletions in a run. Ours: half of EC2's burst of mutating calls. It also limits the damage of wrong arguments."""

TIME_S = 300
"""Default time after which no deletion begins. Ours: half of the CronJob's deadline (manifests/sweeper/sweeper.yaml), so the last
deletion ends before it. The next run goes on with the rest."""


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
    missing = [name for name, value in needed.items() if not value.strip()]
    if missing:
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
    if is_complete(findings):
        return 0
    return EXIT_INCOMPLETE


def _print(findings: Sequence[SweptEni], order: SweepOrder, *, as_json: bool) -> None:
    counts = Counter(finding.verdict.value for finding in findings)
    if as_json:
        report = {
            "cluster": order.cluster_name,
            "vpc": order.vpc_id,
            "dry_run": order.is_dry_run,
            "counts": dict(sorted(counts.items())),
            "enis": [asdict(finding) for finding in findings],
        }
        print(json.dumps(report, indent=2))
        return
    for finding in findings:
        print(printable(str(finding)))
    summary = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) or "no detached ENI"
    print(f"cluster {printable(order.cluster_name)} in {printable(order.vpc_id)}: {summary}")


def _parser() -> Parser:
    environ = os.environ
    parser = Parser(
        prog="vpc-ipamd-sweeper",
        description="Delete the leaked ENIs of one cluster.",
        epilog="Example: vpc-ipamd-sweeper --cluster blue --vpc-id vpc-0a1b --region us-west-2",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument(
        "--cluster", default=environ.get("CLUSTER_NAME", ""), help="only ENIs with this cluster's tag (default: CLUSTER_NAME)"
    )
    parser.add_argument("--vpc-id", default=environ.get("VPC_ID", ""), help="the cluster's VPC (default: VPC_ID)")
    parser.add_argument("--region", default="", help="default: AWS_REGION")
    parser.add_argument("--delete", action="store_true", help="delete; without it only list what would be deleted")
    age_help = f"least age of an ENI, at least {MIN_AGE_LEAST_S} (default: %(default)s)"
    parser.add_argument("--min-age", type=_at_least(MIN_AGE_LEAST_S), default=MIN_AGE_S, metavar="SECONDS", help=age_help)
    parser.add_argument("--max-deletions", type=_at_least(1), default=DELETE_COUNT_MAX, metavar="N", help="default: %(default)s")
    time_help = "begin no deletion after this time (default: %(default)s)"
    parser.add_argument("--max-seconds", type=_at_least(1), default=TIME_S, metavar="SECONDS", help=time_help)
    parser.add_argument("-o", "--output", choices=("lines", "json"), default="lines")
    return parser


def _at_least(lowest: int) -> Callable[[str], int]:
    """Make a parser of whole numbers for argparse; the parser raises what argparse reports as wrong usage."""

    def parse(text: str) -> int:
        value = int(text)
        if value < lowest:
            raise argparse.ArgumentTypeError(f"must be {lowest} or more")
        return value

    return parse


if __name__ == "__main__":
    sys.exit(main())
