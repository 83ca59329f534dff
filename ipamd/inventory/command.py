"""The command `vpc-ipamd-inventory`: take an inventory once (`run`) or once an hour with metrics (`serve`), or print the last report
(`show`).

Exit statuses: 0 for success; 1 if the report has gaps, the state file could not be written, or it has no report to show; 2 for wrong
usage or settings, or an unreadable state file of `show`; 3 if EC2 gave no list of subnets. Nothing is changed in EC2.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from ipamd import __version__, logs
from ipamd.cloud.calls import Ec2Calls
from ipamd.cloud.inventory_client import InventoryClient
from ipamd.command_line import EXIT_USAGE, Parser
from ipamd.core.deadline import SystemClock
from ipamd.http.listening import listen
from ipamd.inventory import state_file
from ipamd.inventory.document import report_document
from ipamd.inventory.memory import InventoryMemory
from ipamd.inventory.report import InventoryReport
from ipamd.inventory.serve import InventoryJob, interruptible_wait
from ipamd.inventory.take import CALLS_LEAST, InventoryOrder, take_inventory
from ipamd.inventory.text import maps, table
from ipamd.model.errors import CloudError, SettingsError, log_text
from ipamd.model.words import printable
from ipamd.settings import load

EXIT_PARTIAL, EXIT_BLIND = 1, 3

CALLS_MAX = 20
"""Default bound of the EC2 attempts in a run. Ours: enough for 10,000 ENIs and the reservations of 9 subnets. EC2 refills the
account's bucket for such calls with 20 a second, so a run delays the calls of other programs by a second at most."""

LEAK_AGE_S = 1800
"""Default least age of a leaked ENI. Ours: the same as the sweeper's, which may delete the ENI from this age on."""

LEAK_AGE_LEAST_S = 300
"""Lowest accepted age of a leaked ENI. Source: amazon-vpc-cni-k8s pkg/awsutils/awsutils.go, eniDeleteCooldownTime (5 min)."""

SECOND_LOOK_S = 60
"""Default pause before ENIs with a problem are listed a second time. Ours: longer than the time from a node's DetachNetworkInterface
to its DeleteNetworkInterface."""

LISTEN = ":61680"
"""Default port of `serve`. Ours: next to the daemon's ports, so that one rule of a firewall covers all."""

_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None, *, sleep: Callable[[float], None] = time.sleep) -> int:
    """Run the command; returns the exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    logs.set_up("info" if arguments.verb == "serve" else "warning")
    try:
        if arguments.verb == "show":
            return _show(parser, arguments)
        order = _order(parser, arguments)
        if arguments.verb == "serve":
            return _serve(arguments, order, sleep)
        return _run(arguments, order, sleep)
    except SettingsError as error:
        print(f"vpc-ipamd-inventory: {printable(str(error))}", file=sys.stderr)
        return EXIT_USAGE
    except CloudError as error:
        print(f"vpc-ipamd-inventory: {printable(str(error))}", file=sys.stderr)
        return EXIT_BLIND


def _run(arguments: argparse.Namespace, order: InventoryOrder, sleep: Callable[[float], None]) -> int:
    memory = InventoryMemory()
    if arguments.state:
        memory = _loaded(arguments.state, order)
    report = take_inventory(order, memory, calls=_calls(order, sleep), clock=SystemClock(), sleep=sleep)
    print(_formatted(report, arguments.output))
    if arguments.state:
        try:
            state_file.save(arguments.state, memory)
        except OSError as error:
            print(f"vpc-ipamd-inventory: the state file was not written: {log_text(error)}", file=sys.stderr)
            return EXIT_PARTIAL
    if report.gaps:
        return EXIT_PARTIAL
    return 0


def _serve(arguments: argparse.Namespace, order: InventoryOrder, sleep: Callable[[float], None]) -> int:
    """Take an inventory once an hour until SIGTERM, save the state after each, and serve the metrics of the last report."""
    signal.signal(signal.SIGTERM, _end)
    memory = InventoryMemory()
    if arguments.state:
        memory = _loaded(arguments.state, order)
    calls, clock = _calls(order, sleep), SystemClock()

    def save() -> None:
        if arguments.state:
            state_file.save(arguments.state, memory)

    job = InventoryJob(
        lambda: take_inventory(order, memory, calls=calls, clock=clock, sleep=sleep),
        memory,
        call_count=lambda: sum(report.count for report in calls.call_reports().values()),
        save=save,
        clock=clock,
    )
    port = listen(arguments.listen, variable="--listen", pages=job.page, refused=lambda _: None)
    if port is not None:
        _log.info("inventory listens port=%d", port.port)
    job.run(interruptible_wait)
    return 0


def _show(parser: Parser, arguments: argparse.Namespace) -> int:
    """Print the last report of the state file."""
    if not arguments.state:
        parser.error("show needs --state or INVENTORY_STATE")
    report = state_file.load(arguments.state).report
    if report is None:
        print(f"vpc-ipamd-inventory: {arguments.state} has no report yet", file=sys.stderr)
        return EXIT_PARTIAL
    print(_formatted(report, arguments.output))
    return 0


def _end(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(0)


def _calls(order: InventoryOrder, sleep: Callable[[float], None]) -> Ec2Calls:
    client = InventoryClient(load().cloud, region=lambda: order.region)
    return Ec2Calls(client, clock=SystemClock(), sleep=sleep)


def _loaded(path: Path, order: InventoryOrder) -> InventoryMemory:
    """Read the state file. Returns: an empty memory if the file is unreadable, or of another cluster or VPC."""
    try:
        memory = state_file.load(path)
    except SettingsError as error:
        _log.warning("state file not used error=%s", log_text(error))
        return InventoryMemory()
    report = memory.report
    if report is not None and (report.cluster_name, report.vpc_id) != (order.cluster_name, order.vpc_id):
        _log.warning("state file of another cluster not used cluster=%s vpc=%s", report.cluster_name, report.vpc_id)
        return InventoryMemory()
    return memory


def _formatted(report: InventoryReport, output: str) -> str:
    if output == "json":
        return json.dumps(report_document(report), indent=2)
    if output == "map":
        return maps(report)
    return table(report)


def _order(parser: Parser, arguments: argparse.Namespace) -> InventoryOrder:
    region = arguments.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "")
    needed = {
        "--cluster or CLUSTER_NAME": arguments.cluster,
        "--vpc-id or VPC_ID": arguments.vpc_id,
        "--region or AWS_REGION": region,
    }
    missing = [name for name, value in needed.items() if not value.strip()]
    if missing:
        parser.error(f"not set: {', '.join(missing)}")
    return InventoryOrder(
        cluster_name=arguments.cluster,
        vpc_id=arguments.vpc_id,
        region=region,
        subnet_names=tuple(name.strip() for name in arguments.subnets.split(",") if name.strip()),
        calls_max=arguments.max_calls,
        leak_age=timedelta(seconds=arguments.leak_age),
        second_look_s=arguments.second_look,
    )


def _parser() -> Parser:
    environ = os.environ
    parser = Parser(
        prog="vpc-ipamd-inventory",
        description="Report the free /28s of a cluster's subnets, when they run out, and ENIs that are leaked, doubled or hidden.",
        epilog="Example: vpc-ipamd-inventory run --cluster blue --vpc-id vpc-0a1b --region us-west-2 -o map",
    )
    parser.add_argument("verb", nargs="?", choices=("run", "serve", "show"), default="run", help="default: %(default)s")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("--cluster", default=environ.get("CLUSTER_NAME", ""), help="its name in tags (default: CLUSTER_NAME)")
    parser.add_argument("--vpc-id", default=environ.get("VPC_ID", ""), help="the cluster's VPC (default: VPC_ID)")
    parser.add_argument("--region", default="", help="default: AWS_REGION")
    subnets_help = "IDs with commas, or `all` of the VPC (default: INVENTORY_SUBNETS, else those that tags assign to the cluster)"
    parser.add_argument("--subnets", default=environ.get("INVENTORY_SUBNETS", ""), metavar="IDS", help=subnets_help)
    calls_help = f"EC2 attempts in a run, at least {CALLS_LEAST} (default: %(default)s)"
    parser.add_argument("--max-calls", type=_at_least(CALLS_LEAST), default=CALLS_MAX, metavar="N", help=calls_help)
    age_help = f"least age of a leaked ENI, at least {LEAK_AGE_LEAST_S} (default: %(default)s)"
    parser.add_argument("--leak-age", type=_at_least(LEAK_AGE_LEAST_S), default=LEAK_AGE_S, metavar="SECONDS", help=age_help)
    look_help = "pause before whatever looks wrong is looked at again; 0: never (default: %(default)s)"
    parser.add_argument("--second-look", type=_at_least(0), default=SECOND_LOOK_S, metavar="SECONDS", help=look_help)
    state_help = "file for samples, reservations and the last report (default: INVENTORY_STATE, else none)"
    state = environ.get("INVENTORY_STATE")
    parser.add_argument("--state", type=Path, default=Path(state) if state else None, metavar="FILE", help=state_help)
    listen_help = "of `serve`, for /metrics and /healthz (default: %(default)s)"
    parser.add_argument("--listen", default=LISTEN, metavar="HOST:PORT", help=listen_help)
    parser.add_argument("-o", "--output", choices=("table", "map", "json"), default="table", help="default: %(default)s")
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
