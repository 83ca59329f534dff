"""Commands and exit statuses of `ipamctl`.

0  answered            2  wrong usage or settings        3  the daemon is away
1  status: not ready   4  the daemon refused the question
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ipamd import __version__
from ipamd.ipamctl import render

if TYPE_CHECKING:
    from ipamd.ipamctl.client import Client

ORIGIN_NOTE = "settings of this process's environment, not asked of the daemon"
EXIT_NOT_READY = 1
EXIT_FINDING = 1
EXIT_USAGE = 2
EXIT_AWAY = 3
EXIT_REFUSED = 4


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except BrokenPipeError:
        # The reader of our pipe (head, say) has left: not an error, and Python must not complain at exit.
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ipamctl", description="Look into vpc-ipamd on this node.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="table for people, json for programs")
    parser.add_argument("--socket", default="", help="path of ipamd.sock (default: below VPC_IPAMD_RUN_DIR)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("status", help="phase, stages with timings, pool, runtime, last error").set_defaults(run=_status)
    commands.add_parser("enis", help="network interfaces and their addresses").set_defaults(run=_enis)
    commands.add_parser("attachments", help="which sandbox has which address").set_defaults(run=_attachments)
    history = commands.add_parser("history", help="what happened to an address or a sandbox")
    history.add_argument("subject", metavar="ADDRESS|CONTAINER_ID", help="an address, or a container ID or its beginning")
    history.add_argument("-n", "--limit", type=int, default=100, help="latest entries (default 100)")
    history.set_defaults(run=_history)
    audit = commands.add_parser("audit", help="compare datastore, kernel, EC2 and runtime; exit 1 on a violation")
    audit.add_argument("--skip-ec2", action="store_true", help="make no EC2 call")
    audit.set_defaults(run=_audit)
    explain = commands.add_parser("explain", help="why an address or a sandbox is as it is")
    explain.add_argument("subject", metavar="ADDRESS|CONTAINER_ID", help="an address, or a container ID or its beginning")
    explain.set_defaults(run=_explain)
    commands.add_parser("config", help="settings: value, default, origin, meaning").set_defaults(run=_config)
    return parser


def _status(arguments: argparse.Namespace) -> int:
    return _ask(
        arguments,
        lambda client: client.status(),
        render.status,
        exit_status=lambda answer: 0 if answer["ready"] else EXIT_NOT_READY,
    )


def _enis(arguments: argparse.Namespace) -> int:
    return _ask(arguments, lambda client: client.enis(), render.enis)


def _attachments(arguments: argparse.Namespace) -> int:
    return _ask(arguments, lambda client: client.attachments(), render.attachments)


def _history(arguments: argparse.Namespace) -> int:
    return _ask(arguments, lambda client: client.history(arguments.subject, limit=arguments.limit), render.history)


def _audit(arguments: argparse.Namespace) -> int:
    return _ask(
        arguments,
        lambda client: client.audit(skip_ec2=arguments.skip_ec2),
        render.audit,
        exit_status=lambda answer: EXIT_FINDING if any(f["severity"] == "violation" for f in answer["findings"]) else 0,
    )


def _explain(arguments: argparse.Namespace) -> int:
    return _ask(arguments, lambda client: client.explain(arguments.subject), render.explain)


def _config(arguments: argparse.Namespace) -> int:
    """Settings of this process's environment; the daemon need not run."""
    from dataclasses import asdict

    from ipamd.config import describe, load
    from ipamd.model.errors import SettingsError

    try:
        lines = [asdict(line) for line in describe(load())]
    except SettingsError as error:
        print(f"ipamctl: {error}", file=sys.stderr)
        return EXIT_USAGE
    _print(arguments, {"origin_note": ORIGIN_NOTE, "settings": lines}, render.config)
    return 0


def _ask(
    arguments: argparse.Namespace,
    question: Callable[[Client], dict[str, Any]],
    table: Callable[[dict[str, Any]], str],
    *,
    exit_status: Callable[[dict[str, Any]], int] = lambda _: 0,
) -> int:
    from ipamd.ipamctl.client import AwayError, Client, RefusedError

    try:
        with Client(arguments.socket) as client:
            answer = question(client)
    except AwayError as error:
        print(f"ipamctl: {error}", file=sys.stderr)
        return EXIT_AWAY
    except RefusedError as error:
        print(f"ipamctl: {error}", file=sys.stderr)
        return EXIT_REFUSED
    _print(arguments, answer, table)
    return exit_status(answer)


def _print(arguments: argparse.Namespace, answer: dict[str, Any], table: Callable[[dict[str, Any]], str]) -> None:
    print(json.dumps(answer, indent=2) if arguments.output == "json" else table(answer))


if __name__ == "__main__":
    sys.exit(main())
