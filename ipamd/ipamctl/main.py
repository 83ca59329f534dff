"""The command `ipamctl`: find the verbs, parse, ask, print. Exit statuses are listed in `verb.py`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib import import_module
from typing import Any

from ipamd import __version__
from ipamd.ipamctl import verbs
from ipamd.ipamctl.verb import EXIT_AWAY, EXIT_REFUSED, Answer, Verb, VerbError
from ipamd.model.words import printable

OUTPUTS = ("table", "json", "yaml")

EXIT_INTERRUPTED = 130
"""As shells have it for a program that SIGINT ended."""


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    arguments = make_parser().parse_args(argv)
    verb: Verb = arguments.verb

    def daemon(rpc: str, **fields: object) -> Answer:
        return _ask_daemon(arguments.socket, rpc, fields)

    try:
        if verb.stream is not None:
            for answer in verb.stream(daemon, arguments):
                print(_written(verb, answer, arguments.output, is_line=True), flush=True)
            return 0
        answer = verb.ask(daemon, arguments)
        text = _written(verb, answer, arguments.output)
        if text:  # none for an archive on standard output
            print(text)
        sys.stdout.flush()
        return verb.exit_status(answer)
    except VerbError as error:
        print(f"ipamctl: {printable(str(error))}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED if verb.stream is None else 0
    except BrokenPipeError:
        # The reader of our pipe (head, say) has left: not an error, and Python must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _written(verb: Verb, answer: Answer, output: str, *, is_line: bool = False) -> str:
    """Write an answer in the format that was asked for. JSON and YAML are ASCII: both escape what a terminal would obey."""
    if output == "json":
        return json.dumps(answer, indent=None if is_line else 2)
    if output == "yaml":
        import yaml  # 30 ms

        text: str = yaml.safe_dump(answer, sort_keys=False, width=1 << 20, explicit_start=is_line)
        return text.rstrip("\n")
    return verb.render(_safe(answer))


def find_verbs() -> dict[str, Verb]:
    """The verbs of every module of `ipamd.ipamctl.verbs`, in the order of the help."""
    # A listing of the directory: pkgutil.iter_modules does the same and costs another 15 ms, for `inspect`.
    names = (file.removesuffix(".py") for file in os.listdir(verbs.__path__[0]) if file.endswith(".py"))  # noqa: PTH208  # pathlib costs 10 ms
    found: dict[str, Verb] = {}
    for name in names:
        if name != "__init__":
            found |= import_module(f"{verbs.__name__}.{name}").VERBS
    return dict(sorted(found.items(), key=lambda item: (item[1].position, item[0])))


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the whole command line; completion is generated from it too."""
    parser = argparse.ArgumentParser(prog="ipamctl", description="Inspect vpc-ipamd on this node.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    _common_options(parser, output="table", socket="")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, verb in find_verbs().items():
        command = commands.add_parser(name, help=verb.help)
        _common_options(command, output=argparse.SUPPRESS, socket=argparse.SUPPRESS)  # what stands before the verb stays
        verb.arguments(command)
        command.set_defaults(verb=verb)
    return parser


def _common_options(parser: argparse.ArgumentParser, *, output: str, socket: str) -> None:
    """Add what may stand before the verb or after it."""
    parser.add_argument("-o", "--output", choices=OUTPUTS, default=output, help="table for people, json or yaml for programs")
    parser.add_argument("--socket", default=socket, help="path of ipamd.sock (default: below VPC_IPAMD_RUN_DIR)")


def _safe(answer: Any) -> Any:
    """Make every text of an answer safe for a terminal: names of pods, and what EC2 and the runtime said, are in it."""
    if isinstance(answer, dict):
        return {key: _safe(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [_safe(value) for value in answer]
    return printable(answer) if isinstance(answer, str) else answer


def _ask_daemon(socket: str, rpc: str, fields: dict[str, object]) -> Answer:
    from ipamd.ipamctl.client import AwayError, Client, RefusedError  # imports grpc

    try:
        with Client(socket) as client:
            return client.ask(rpc, **fields)
    except AwayError as error:
        raise VerbError(str(error), exit_status=EXIT_AWAY) from error
    except RefusedError as error:
        raise VerbError(str(error), exit_status=EXIT_REFUSED) from error


if __name__ == "__main__":
    sys.exit(main())
