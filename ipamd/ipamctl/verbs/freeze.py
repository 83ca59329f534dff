"""`ipamctl freeze`: make no ENI and give nothing back until `ipamctl thaw` or the next boot."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.verb import EXIT_ATTENTION, Answer, Verb


def causes(answer: Answer) -> list[str]:
    """One line per cause that is in force."""
    return [f"frozen  {f['cause']}: {f['reason']} (since {f['since']})" for f in answer["freezings"]]


def render(answer: Answer) -> str:
    """Write every cause that is in force, and what did not work."""
    return "\n".join([*causes(answer), *filter(None, [answer["problem"]])])


def exit_status(answer: Answer) -> int:
    """Return 1 if something did not work."""
    return EXIT_ATTENTION if answer["problem"] else 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", default="", metavar="TEXT", help="for whoever reads `ipamctl status`")


VERB = Verb(
    help="make no ENI and give nothing back, until thaw or the next boot",
    ask=lambda daemon, arguments: daemon("Freeze", reason=arguments.reason),
    render=render,
    arguments=_arguments,
    exit_status=exit_status,
)
