"""`ipamctl history`: what happened to an address or a sandbox."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.table import table
from ipamd.ipamctl.verb import Answer, Ask, Verb, subject_argument


def render(answer: Answer) -> str:
    """Write one row per entry of the ledger, oldest first."""
    return table(
        ("AT", "EVENT", "ADDRESS", "SANDBOX", "ENI", "DETAIL"),
        [
            (
                row["at"],
                row["event"],
                row["address"] or "-",
                f"{row['container_id']}/{row['ifname']}" if row["container_id"] else "-",
                row["eni_id"] or "-",
                row["detail"],
            )
            for row in answer["entries"]
        ],
    )


def _arguments(parser: argparse.ArgumentParser) -> None:
    subject_argument(parser)
    parser.add_argument("-n", "--limit", type=int, default=100, help="latest entries (default 100)")


def _ask(daemon: Ask, arguments: argparse.Namespace) -> Answer:
    # To the daemon a limit of 0 means its default; here less than one entry means one.
    return daemon("GetHistory", subject=arguments.subject, limit=max(arguments.limit, 1))


VERB = Verb(
    help="what happened to an address or a sandbox",
    ask=_ask,
    render=render,
    arguments=_arguments,
    position=4,
)
