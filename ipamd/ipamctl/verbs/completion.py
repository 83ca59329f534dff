"""`ipamctl completion`: print a shell's completion script, which shtab generates from the parser.

The script neither calls the daemon nor starts Python. Rejected: argcomplete, which starts Python at every Tab.
"""

from __future__ import annotations

import argparse

from ipamd.ipamctl.verb import Answer, Ask, Verb, argument


def _completion(_daemon: Ask, arguments: argparse.Namespace) -> Answer:
    import shtab

    return {"lines": shtab.complete(arguments.parser, shell=arguments.shell).splitlines()}


COMPLETION = Verb(
    help="completion script for a shell: bash, zsh or fish",
    about="Prints a script that completes verbs, options and choices.",
    examples=('eval "$(ipamctl completion bash)"',),
    lay_out=lambda answer, _: "\n".join(answer["lines"]),
    make=_completion,
    arguments=(argument("shell", choices=("bash", "zsh", "fish"), help="for which shell"),),
)
