"""Answer questions about the past while the daemon is away, from the history files on the node's disk."""

from __future__ import annotations

import argparse
from pathlib import Path

from ipamd.ipamctl.verb import Answer, Ask, AwayError


def ask_or_read(daemon: Ask, rpc: str, arguments: argparse.Namespace, *, limit: int) -> Answer:
    """Ask the daemon; if it is away, answer from the history files on the node's disk.

    Args:
        rpc: "GetHistory" or "Explain".
    Returns: the reply of the RPC; from the files always a reply of GetHistory, whose `source` is "file".
    Raises: VerbError, InvalidRequestError.
    """
    fields: dict[str, object] = {"subject": arguments.subject, "since": arguments.since or "", "at": arguments.at or ""}
    try:
        if rpc == "GetHistory":
            return daemon(rpc, **fields, limit=limit)
        return daemon(rpc, **fields, find=arguments.find)
    except AwayError as away:
        from ipamd.answers import history_reply, question_of
        from ipamd.history.reading import read
        from ipamd.ipamctl.client import plain, request_of
        from ipamd.model.history_answer import answer
        from ipamd.settings import load_valid
        from ipamd.settings.fields import HISTORY_OFF

        setting = arguments.history_dir or load_valid().daemon.history_dir
        directory = Path(setting)
        if setting == HISTORY_OFF or not directory.is_dir():
            raise AwayError(f"{away}; and there is no history in {setting}", kind=away.kind) from away
        question = question_of(request_of("GetHistory", **fields), limit=limit)  # type: ignore[arg-type]  # it makes the class that it names
        reply = history_reply(answer(question, read(directory, question.subject)), question, source="file")
        reply.notes.append(f"read from {directory}, in which the last second before the daemon ended may be missing: {away}")
        return plain(reply)
