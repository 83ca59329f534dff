"""The verbs about the past, history and explain: asked of the daemon, or read from the files that it left on the node's disk."""

from __future__ import annotations

import argparse
from pathlib import Path

from ipamd.ipamctl.verb import SUBJECT, Answer, Ask, AwayError, Columns, RefusedError, Verb, argument, table

HISTORY_LIMIT = 100


def render_history(answer: Answer) -> str:
    """Write who had it, if that was asked, then one row per entry, oldest first, then what is not told."""
    told = [one["sentence"] for one in answer["tenures"]] if answer["at"] else []
    parts = ["\n".join(told), entries(answer["entries"]), "\n".join(answer["notes"])]
    return "\n\n".join(part for part in parts if part)


def entries(rows: list[Answer]) -> str:
    """Write the entries as a table; nothing if there is none."""
    columns: Columns = {
        "AT": "{at}",
        "EVENT": "{event}",
        "ADDRESS": "{address}",
        "POD": "{pod}",
        "SANDBOX": lambda row: f"{row['container_id']}/{row['ifname']}" if row["container_id"] else "",
        "ENI": "{eni_id}",
        "DETAIL": _detail,
    }
    return table(rows, columns, empty="-") if rows else ""


def _detail(row: Answer) -> str:
    if row["event"] == "refused":
        times = f"{row['count']} times since {row['since']}, " if row["count"] != 1 else ""
        return f"{times}code {row['code']}: {row['detail']}"
    if row["event"] == "missed":
        return f"{row['count']} entries are missing: {row['detail']}"
    if row["event"] in ("booted", "held"):
        return f"{'at' if row['event'] == 'booted' else 'since'} {row['since']}"
    return str(row["detail"])


HISTORY = Verb(
    help="what happened to an address, a pod or a sandbox; who had it when; exit 1 if nothing is recorded",
    render=render_history,
    rpc="GetHistory",
    # To the daemon a limit of 0 means its default; here less than one entry means one.
    make=lambda daemon, arguments: ask_or_read(daemon, "GetHistory", arguments, limit=max(arguments.limit, 1)),
    arguments=(
        *SUBJECT,
        argument("-n", "--limit", type=int, default=HISTORY_LIMIT, help=f"latest entries (default {HISTORY_LIMIT})"),
    ),
    needs_attention=lambda answer: not (answer["entries"] or answer["tenures"]),
)


# `ipamctl explain`: why an address, a pod or a sandbox is as it is, or who had an address at an instant.


EXPLAIN_LIMIT = 50


def render_explain(answer: Answer) -> str:
    """Write the sentences, then the history, then what is not told."""
    parts = ["\n".join(answer["sentences"]), entries(answer["history"]), "\n".join(answer["notes"])]
    return "\n\n".join(part for part in parts if part)


def _explain(daemon: Ask, arguments: argparse.Namespace) -> Answer:
    """Ask, or make an explanation of what was read from the file. Raises: VerbError if that is nothing, as the daemon refuses it."""
    answer = ask_or_read(daemon, "Explain", arguments, limit=EXPLAIN_LIMIT)
    if "sentences" in answer:
        return answer
    if not answer["entries"] and not answer["tenures"]:
        raise RefusedError(f"{arguments.subject} is not known: {'; '.join(answer['notes'])}")
    refusals = [
        f"ADD of {row['pod'] or row['container_id']} was refused, {row['count']} in all, last at {row['at']}: code {row['code']}: "
        f"{row['detail']}"
        for row in answer["entries"]
        if row["event"] == "refused"
    ]
    return {
        "subject": arguments.subject,
        "sentences": [*(one["sentence"] for one in answer["tenures"]), *refusals],
        "history": answer["entries"],
        "notes": answer["notes"],
        "source": answer["source"],
    }


EXPLAIN = Verb(
    help="why an address, a pod or a sandbox is as it is; who had it when",
    render=render_explain,
    rpc="Explain",
    make=_explain,
    arguments=(
        *SUBJECT,
        argument("--find", action="store_true", help="ask EC2 which ENI and instance have an address that this node has not"),
    ),
    needs_attention=lambda answer: not (answer["sentences"] or answer["history"]),
)


# Answer a question about the past without the daemon, from the files that it left on the node's disk.


def ask_or_read(daemon: Ask, rpc: str, arguments: argparse.Namespace, *, limit: int) -> Answer:
    """Ask the daemon; if it is away, read the files.

    Returns: the RPC's reply, or GetHistory's with `source` file. Raises: VerbError, InvalidRequestError.
    """
    fields: dict[str, object] = {"subject": arguments.subject, "since": arguments.since or "", "at": arguments.at or ""}
    try:
        return daemon(rpc, **fields, **({"limit": limit} if rpc == "GetHistory" else {"find": arguments.find}))
    except AwayError as away:
        from ipamd.answers import history_reply, question_of
        from ipamd.history import read
        from ipamd.ipamctl.client import plain, request_of
        from ipamd.model.history import answer
        from ipamd.settings import load_what_is_right
        from ipamd.settings.fields import HISTORY_OFF

        named = arguments.history_dir or load_what_is_right().daemon.history_dir
        directory = Path(named)
        if named == HISTORY_OFF or not directory.is_dir():
            raise AwayError(f"{away}; and there is no history in {named}") from away
        question = question_of(request_of("GetHistory", **fields), limit=limit)  # type: ignore[arg-type]  # it makes the class that it names
        found = history_reply(answer(question, read(directory, question.subject)), question, source="file")
        found.notes.append(f"read from {directory}, which lacks the daemon's last second at most: {away}")
        return plain(found)
