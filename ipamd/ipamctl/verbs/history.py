"""`ipamctl history`: what happened to an address, a pod or a sandbox, and who had it at an instant."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.verb import EXIT_ATTENTION, Answer, Ask, Verb, subject_argument, table

LIMIT = 100


def render(answer: Answer) -> str:
    """Write who had it, if that was asked, then one row per entry, oldest first, then what is not told."""
    told = [one["sentence"] for one in answer["tenures"]] if answer["at"] else []
    parts = ["\n".join(told), entries(answer["entries"]), "\n".join(answer["notes"])]
    return "\n\n".join(part for part in parts if part)


def entries(rows: list[Answer]) -> str:
    """Write the entries as a table; nothing if there is none."""
    if not rows:
        return ""
    return table(
        ("AT", "EVENT", "ADDRESS", "POD", "SANDBOX", "ENI", "DETAIL"),
        [
            (
                row["at"],
                row["event"],
                row["address"] or "-",
                row["pod"] or "-",
                f"{row['container_id']}/{row['ifname']}" if row["container_id"] else "-",
                row["eni_id"] or "-",
                _detail(row),
            )
            for row in rows
        ],
    )


def _detail(row: Answer) -> str:
    if row["event"] == "refused":
        times = f"{row['count']} times since {row['since']}, " if row["count"] != 1 else ""
        return f"{times}code {row['code']}: {row['detail']}"
    if row["event"] == "missed":
        return f"{row['count']} entries are missing: {row['detail']}"
    if row["event"] in ("booted", "held"):
        return f"{'at' if row['event'] == 'booted' else 'since'} {row['since']}"
    return str(row["detail"])


def _arguments(parser: argparse.ArgumentParser) -> None:
    subject_argument(parser)
    parser.add_argument("-n", "--limit", type=int, default=LIMIT, help=f"latest entries (default {LIMIT})")


def _ask(daemon: Ask, arguments: argparse.Namespace) -> Answer:
    from ipamd.ipamctl.from_file import ask_or_read

    # To the daemon a limit of 0 means its default; here less than one entry means one.
    return ask_or_read(daemon, "GetHistory", arguments, limit=max(arguments.limit, 1))


def _exit_status(answer: Answer) -> int:
    return 0 if answer["entries"] or answer["tenures"] else EXIT_ATTENTION


VERB = Verb(
    help="what happened to an address, a pod or a sandbox; who had it when; exit 1 if nothing is recorded",
    ask=_ask,
    render=render,
    arguments=_arguments,
    exit_status=_exit_status,
    position=4,
)
