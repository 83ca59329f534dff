"""`ipamctl audit`: compare datastore, kernel, runtime and EC2."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.verb import EXIT_ATTENTION, Answer, Verb, table
from ipamd.model.words import counted


def render(answer: Answer) -> str:
    """Write silent sources first, then one row per finding, worst first."""
    lines = [f"silent: {sentence}" for sentence in answer["silent"]]
    if not answer["findings"]:
        return "\n".join([*lines, f"{counted(answer['address_count'], 'address')} compared: the sources agree"])
    rows = [(f["severity"], f["subject"], f["what"], f["next"]) for f in answer["findings"]]
    return "\n".join([*lines, table(("SEVERITY", "SUBJECT", "WHAT DIFFERS", "NEXT"), rows)])


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--skip-ec2", action="store_true", help="make no EC2 call")


def _exit_status(answer: Answer) -> int:
    return EXIT_ATTENTION if any(finding["severity"] == "violation" for finding in answer["findings"]) else 0


VERB = Verb(
    help="compare datastore, kernel, EC2 and runtime; exit 1 on a violation",
    ask=lambda daemon, arguments: daemon("Audit", skip_ec2=arguments.skip_ec2),
    render=render,
    arguments=_arguments,
    exit_status=_exit_status,
    position=5,
)
