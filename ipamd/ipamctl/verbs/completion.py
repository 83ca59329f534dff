"""`ipamctl completion`: the completion script for a shell, on standard output."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.verb import Answer, Ask, Verb

SHELLS = ("bash", "zsh", "fish")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="for which shell")


def _ask(_daemon: Ask, arguments: argparse.Namespace) -> Answer:
    from ipamd.ipamctl import completion
    from ipamd.ipamctl.main import make_parser

    return {"lines": completion.SHELLS[arguments.shell](make_parser()).splitlines()}


VERB = Verb(
    help="completion script for a shell: bash, zsh or fish",
    ask=_ask,
    render=lambda answer: "\n".join(answer["lines"]),
    arguments=_arguments,
    asks_daemon=False,
)
