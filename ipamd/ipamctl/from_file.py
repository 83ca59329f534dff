"""Answer a question about the past without the daemon, from the files that it left on the node's disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipamd.ipamctl.verb import EXIT_AWAY, EXIT_USAGE, Answer, Ask, VerbError

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from ipamd.model.history import HistoryAnswer


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
