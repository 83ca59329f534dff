"""`ipamctl explain`: why an address, a pod or a sandbox is as it is, or who had an address at an instant."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.verb import EXIT_ATTENTION, EXIT_REFUSED, Answer, Ask, Verb, VerbError, subject_argument
from ipamd.ipamctl.verbs import history

LIMIT = 50


def render(answer: Answer) -> str:
    """Write the sentences, then the history, then what is not told."""
    parts = ["\n".join(answer["sentences"]), history.entries(answer["history"]), "\n".join(answer["notes"])]
    return "\n\n".join(part for part in parts if part)


def _ask(daemon: Ask, arguments: argparse.Namespace) -> Answer:
    from ipamd.ipamctl.from_file import ask_or_read

    answer = ask_or_read(daemon, "Explain", arguments, limit=LIMIT)
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


def _exit_status(answer: Answer) -> int:
    return 0 if answer["sentences"] or answer["history"] else EXIT_ATTENTION


VERB = Verb(
    help="why an address, a pod or a sandbox is as it is; who had it when",
    ask=_ask,
    render=render,
    arguments=subject_argument,
    exit_status=_exit_status,
    position=6,
)
