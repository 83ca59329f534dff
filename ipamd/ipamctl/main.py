"""The command `ipamctl`: parse, ask, print. Exit statuses are listed in `verb.py`."""

from __future__ import annotations

import argparse
import json
import os
import sys

from ipamd import __version__
from ipamd.command_line import Parser
from ipamd.grpc_environment import prepare_grpc
from ipamd.ipamctl.layout import layout_of
from ipamd.ipamctl.tables import filled, safe
from ipamd.ipamctl.verb import EXIT_ATTENTION, EXIT_REFUSED, EXIT_USAGE, Answer, Verb, VerbError
from ipamd.ipamctl.verbs import (
    attachments,
    audit,
    bundle,
    capacity,
    completion,
    config,
    convert_eniconfig,
    convert_values,
    enis,
    explain,
    export,
    freeze,
    history,
    page,
    path,
    plan,
    probe,
    retry,
    status,
    watch,
)
from ipamd.model.words import printable

VERBS: dict[str, Verb] = {
    "status": status.STATUS,
    "enis": enis.ENIS,
    "attachments": attachments.ATTACHMENTS,
    "history": history.HISTORY,
    "audit": audit.AUDIT,
    "explain": explain.EXPLAIN,
    "path": path.PATH,
    "capacity": capacity.CAPACITY,
    "config": config.CONFIG,
    "plan": plan.PLAN,
    "retry": retry.RETRY,
    "probe": probe.PROBE,
    "bundle": bundle.BUNDLE,
    "page": page.PAGE,
    "watch": watch.WATCH,
    "completion": completion.COMPLETION,
    "convert-eniconfig": convert_eniconfig.CONVERT_ENICONFIG,
    "convert-values": convert_values.CONVERT_VALUES,
    "export": export.EXPORT,
    "freeze": freeze.FREEZE,
    "thaw": freeze.THAW,
}
"""Name of each verb -> the verb, in the order of the help: verbs that an operator needs first come first."""

EXIT_INTERRUPTED = 130
"""The status that shells report for a program that SIGINT ended."""


def main(argv: list[str] | None = None) -> int:
    """Run the verb that the command line names. `argv`: the arguments; by default those of the process. Returns: the exit status."""
    prepare_grpc()
    arguments = make_parser().parse_args(argv)
    verb: Verb = arguments.verb
    is_stream = False

    def daemon(rpc: str, **fields: object) -> Answer:
        return _ask_daemon(arguments.socket, rpc, fields)

    try:
        answers = verb.ask(daemon, arguments)
        is_stream = not isinstance(answers, dict)
        attention: object = False
        if isinstance(answers, dict):
            answers = iter([answers])
        for answer in answers:
            text = _written(verb, answer, arguments.output, is_line=is_stream)
            if text:  # empty for an archive on standard output
                print(text, flush=True)
            attention = not is_stream and verb.needs_attention(answer)
        if attention:
            return EXIT_ATTENTION
        return 0
    except KeyboardInterrupt:
        if is_stream:  # Ctrl-C is its normal end
            return 0
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our pipe (`head`, for example) has exited. That is not an error, and Python must not report it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001  # `_exit_status` raises defects again
        exit_status = _exit_status(error)
        print(filled(f"ipamctl: {printable(str(error))}", layout_of("table", sys.stderr), indent=9), file=sys.stderr)
        return exit_status


def _exit_status(error: Exception) -> int:
    """Return the exit status for an error that an operator can understand. Raises: any other error itself, because it is a defect."""
    from ipamd.model.errors import CloudError, InvalidRequestError, SettingsError  # imported late: it costs time

    if isinstance(error, VerbError):
        return error.exit_status
    if isinstance(error, SettingsError | InvalidRequestError):
        return EXIT_USAGE
    if isinstance(error, CloudError):
        return EXIT_REFUSED
    raise error


def _written(verb: Verb, answer: Answer, output: str, *, is_line: bool) -> str:
    """Write an answer in the requested format. JSON and YAML are ASCII, so they contain no control characters of a terminal."""
    if output == "json" and is_line:
        return json.dumps(answer)
    if output == "json":
        return json.dumps(answer, indent=2)
    if output == "yaml":
        import yaml  # 30 ms

        text: str = yaml.safe_dump(answer, sort_keys=False, width=1 << 20, explicit_start=is_line)
        return text.rstrip("\n")
    return verb.render(safe(answer), layout_of(output, sys.stdout))


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the whole command line. Completion is generated from it too."""
    parser = Parser(
        prog="ipamctl",
        description="Inspect vpc-ipamd on this node. Begin with `ipamctl status`.",
        epilog="`ipamctl COMMAND --help` has a sentence and an example.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    _common_options(parser, output="table", socket="")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, verb in VERBS.items():
        example_lines = "".join(f"\n  {example}" for example in verb.examples)
        command = commands.add_parser(
            name,
            help=verb.help,
            description=verb.about,
            epilog=f"example:{example_lines}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        # SUPPRESS keeps the value of an option that was given before the verb.
        _common_options(command, output=argparse.SUPPRESS, socket=argparse.SUPPRESS)
        for argument in verb.arguments:
            command.add_argument(*argument.names, **argument.options)
        command.set_defaults(verb=verb, parser=parser)
    return parser


def _common_options(parser: argparse.ArgumentParser, *, output: str, socket: str) -> None:
    """Add the options that may be given before the verb or after it."""
    help_ = "table for people, wide with all columns and whole IDs, json or yaml for programs"
    parser.add_argument("-o", "--output", choices=("table", "wide", "json", "yaml"), default=output, help=help_)
    parser.add_argument("--socket", default=socket, help="path of ipamd.sock (default: below VPC_IPAMD_RUN_DIR)")


def _ask_daemon(socket: str, rpc: str, fields: dict[str, object]) -> Answer:
    from ipamd.ipamctl.client import Client  # imports grpc

    with Client(socket) as client:
        return client.ask(rpc, **fields)


if __name__ == "__main__":
    sys.exit(main())
