"""The command `ipamctl`: parse, ask, print. Exit statuses are listed in `verb.py`."""

from __future__ import annotations

import argparse
import json
import os
import sys

from ipamd import __version__
from ipamd.ipamctl.verb import EXIT_ATTENTION, EXIT_REFUSED, EXIT_USAGE, Answer, Verb, VerbError, safe
from ipamd.ipamctl.verbs import around, past, pool, present
from ipamd.model.words import printable

VERBS: dict[str, Verb] = {
    "status": present.STATUS,
    "enis": present.ENIS,
    "attachments": present.ATTACHMENTS,
    "history": past.HISTORY,
    "audit": present.AUDIT,
    "explain": past.EXPLAIN,
    "capacity": pool.CAPACITY,
    "config": around.CONFIG,
    "plan": pool.PLAN,
    "retry": pool.RETRY,
    "probe": around.PROBE,
    "bundle": around.BUNDLE,
    "page": around.PAGE,
    "watch": present.WATCH,
    "completion": around.COMPLETION,
    "convert-eniconfig": around.CONVERT_ENICONFIG,
    "export": around.EXPORT,
    "freeze": pool.FREEZE,
    "thaw": pool.THAW,
}
"""In the order of the help: what an operator needs first is first."""

EXIT_INTERRUPTED = 130
"""As shells have it for a program that SIGINT ended."""


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    arguments = make_parser().parse_args(argv)
    verb: Verb = arguments.verb
    is_stream = False

    def daemon(rpc: str, **fields: object) -> Answer:
        return _ask_daemon(arguments.socket, rpc, fields)

    try:
        found = verb.ask(daemon, arguments)
        is_stream = not isinstance(found, dict)
        attention: object = False
        for answer in [found] if isinstance(found, dict) else found:
            text = _written(verb, answer, arguments.output, is_line=is_stream)
            if text:  # none for an archive on standard output
                print(text, flush=True)
            attention = not is_stream and verb.needs_attention(answer)
        return EXIT_ATTENTION if attention else 0
    except KeyboardInterrupt:
        return 0 if is_stream else EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our pipe (head, say) has left: not an error, and Python must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001  # what is no refusal is raised again
        status = _exit_status(error)
        print(f"ipamctl: {printable(str(error))}", file=sys.stderr)
        return status


def _exit_status(error: Exception) -> int:
    """The status of a refusal. Raises: the error itself if it is a defect."""
    from ipamd.model.errors import CloudError, InvalidRequestError, SettingsError  # here, because it costs every other verb time

    if isinstance(error, VerbError):
        return error.exit_status
    if isinstance(error, SettingsError | InvalidRequestError):
        return EXIT_USAGE
    if isinstance(error, CloudError):
        return EXIT_REFUSED
    raise error


def _written(verb: Verb, answer: Answer, output: str, *, is_line: bool) -> str:
    """Write an answer in the format that was asked for. JSON and YAML are ASCII: both escape what a terminal would obey."""
    if output == "json":
        return json.dumps(answer, indent=None if is_line else 2)
    if output == "yaml":
        import yaml  # 30 ms

        text: str = yaml.safe_dump(answer, sort_keys=False, width=1 << 20, explicit_start=is_line)
        return text.rstrip("\n")
    return verb.render(safe(answer))


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the whole command line; completion is generated from it too."""
    parser = argparse.ArgumentParser(prog="ipamctl", description="Inspect vpc-ipamd on this node.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    _common_options(parser, output="table", socket="")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, verb in VERBS.items():
        command = commands.add_parser(name, help=verb.help)
        _common_options(command, output=argparse.SUPPRESS, socket=argparse.SUPPRESS)  # what stands before the verb stays
        for argument in verb.arguments:
            command.add_argument(*argument.names, **argument.options)
        command.set_defaults(verb=verb)
    return parser


def _common_options(parser: argparse.ArgumentParser, *, output: str, socket: str) -> None:
    """Add what may stand before the verb or after it."""
    help_ = "table for people, json or yaml for programs"
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default=output, help=help_)
    parser.add_argument("--socket", default=socket, help="path of ipamd.sock (default: below VPC_IPAMD_RUN_DIR)")


def _ask_daemon(socket: str, rpc: str, fields: dict[str, object]) -> Answer:
    from ipamd.ipamctl.client import Client  # imports grpc

    with Client(socket) as client:
        return client.ask(rpc, **fields)


if __name__ == "__main__":
    sys.exit(main())
