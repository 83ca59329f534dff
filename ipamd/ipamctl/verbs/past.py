"""The verbs about the past, history and explain: asked of the daemon, or read from the files that it left on the node's disk."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ipamd.ipamctl.verb import (
    EXIT_ATTENTION,
    EXIT_AWAY,
    EXIT_REFUSED,
    EXIT_USAGE,
    Answer,
    Ask,
    Verb,
    VerbError,
    subject_argument,
    table,
)

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from ipamd.model.history import HistoryAnswer

HISTORY_LIMIT = 100


def render_history(answer: Answer) -> str:
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


def _history_arguments(parser: argparse.ArgumentParser) -> None:
    subject_argument(parser)
    parser.add_argument("-n", "--limit", type=int, default=HISTORY_LIMIT, help=f"latest entries (default {HISTORY_LIMIT})")


def _ask_history(daemon: Ask, arguments: argparse.Namespace) -> Answer:

    # To the daemon a limit of 0 means its default; here less than one entry means one.
    return ask_or_read(daemon, "GetHistory", arguments, limit=max(arguments.limit, 1))


def _history_exit_status(answer: Answer) -> int:
    return 0 if answer["entries"] or answer["tenures"] else EXIT_ATTENTION


HISTORY = Verb(
    help="what happened to an address, a pod or a sandbox; who had it when; exit 1 if nothing is recorded",
    ask=_ask_history,
    render=render_history,
    arguments=_history_arguments,
    exit_status=_history_exit_status,
    position=4,
)


# `ipamctl explain`: why an address, a pod or a sandbox is as it is, or who had an address at an instant.


EXPLAIN_LIMIT = 50


def render_explain(answer: Answer) -> str:
    """Write the sentences, then the history, then what is not told."""
    parts = ["\n".join(answer["sentences"]), entries(answer["history"]), "\n".join(answer["notes"])]
    return "\n\n".join(part for part in parts if part)


def _ask_explain(daemon: Ask, arguments: argparse.Namespace) -> Answer:

    answer = ask_or_read(daemon, "Explain", arguments, limit=EXPLAIN_LIMIT)
    return answer if "sentences" in answer else _from_history(answer, arguments.subject)


def _from_history(answer: Answer, subject: str) -> Answer:
    """Make an explanation of what was read from the file. Raises: VerbError if that is nothing, as the daemon refuses it."""
    if not answer["entries"] and not answer["tenures"]:
        raise VerbError(f"{subject} is not known: {'; '.join(answer['notes'])}", exit_status=EXIT_REFUSED)
    refusals = [
        f"ADD of {row['pod'] or row['container_id']} was refused, {row['count']} in all, last at {row['at']}: code {row['code']}: "
        f"{row['detail']}"
        for row in answer["entries"]
        if row["event"] == "refused"
    ]
    return {
        "subject": subject,
        "sentences": [*(one["sentence"] for one in answer["tenures"]), *refusals],
        "history": answer["entries"],
        "notes": answer["notes"],
        "source": answer["source"],
    }


def _explain_exit_status(answer: Answer) -> int:
    return 0 if answer["sentences"] or answer["history"] else EXIT_ATTENTION


EXPLAIN = Verb(
    help="why an address, a pod or a sandbox is as it is; who had it when",
    ask=_ask_explain,
    render=render_explain,
    arguments=subject_argument,
    exit_status=_explain_exit_status,
    position=6,
)


# Answer a question about the past without the daemon, from the files that it left on the node's disk.


def ask_or_read(daemon: Ask, rpc: str, arguments: Namespace, *, limit: int) -> Answer:
    """Ask the daemon; if it is away, read the files.

    Returns: the RPC's reply, or GetHistory's with `source` file. Raises: VerbError.
    """
    fields: dict[str, object] = {"subject": arguments.subject, "since": arguments.since or "", "at": arguments.at or ""}
    try:
        return daemon(rpc, **fields, **({"limit": limit} if rpc == "GetHistory" else {}))
    except VerbError as error:
        if error.exit_status != EXIT_AWAY:
            raise
        return _read(arguments, fields, limit=limit, why=str(error))


def _read(arguments: Namespace, fields: dict[str, object], *, limit: int, why: str) -> Answer:
    from ipamd.answers import history_reply, question_of
    from ipamd.history.reader import read
    from ipamd.ipamctl.client import plain, request_of
    from ipamd.model.errors import InvalidRequestError
    from ipamd.model.history import answer

    directory = history_directory(arguments.history_dir, why=why)
    try:
        question = question_of(request_of("GetHistory", **fields), limit=limit)  # type: ignore[arg-type]  # it makes the class that it names
    except InvalidRequestError as error:
        raise VerbError(str(error), exit_status=EXIT_USAGE) from error
    found: HistoryAnswer = answer(question, read(directory, question.subject))
    reply = plain(history_reply(found, question, source="file"))
    reply["notes"].append(f"read from {directory}, which lacks the daemon's last second at most: {why}")
    return reply


def history_directory(named: str, *, why: str) -> Path:
    """Where the history lies: as named, or by the setting. Raises: VerbError with `why` the daemon did not answer if there is none."""
    from pathlib import Path

    from ipamd.settings import load_what_is_right
    from ipamd.settings.fields import HISTORY_OFF

    directory = named or load_what_is_right().daemon.history_dir
    if directory == HISTORY_OFF or not Path(directory).is_dir():
        raise VerbError(f"{why}; and there is no history in {directory}", exit_status=EXIT_AWAY)
    return Path(directory)


VERBS = {"history": HISTORY, "explain": EXPLAIN}
