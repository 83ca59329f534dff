"""`ipamctl explain`: why an address, a pod or a sandbox is as it is, or who had an address at an instant."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.layout import Layout
from ipamd.ipamctl.tables import filled
from ipamd.ipamctl.verb import SUBJECT, Answer, Ask, RefusedError, Verb, argument
from ipamd.ipamctl.verbs.history import entries
from ipamd.ipamctl.verbs.offline import ask_or_read

EXPLAIN_LIMIT = 50
"""The largest number of history records below an explanation. As many as the daemon returns (`ipamd/rpc/introspection.py`)."""


def render_explain(answer: Answer, layout: Layout) -> str:
    """Write the sentences, then the history, then the notes."""
    sentences, notes = ("\n".join(filled(line, layout) for line in answer[key]) for key in ("sentences", "notes"))
    parts = [sentences, entries(answer["history"], layout), notes]
    return "\n\n".join(part for part in parts if part)


def _explain(daemon: Ask, arguments: argparse.Namespace) -> Answer:
    """Ask the daemon; if it is away, make an explanation from the history files. Raises: VerbError if the files have no record."""
    answer = ask_or_read(daemon, "Explain", arguments, limit=EXPLAIN_LIMIT)
    if "sentences" in answer:
        return answer
    if not answer["entries"] and not answer["tenures"]:
        raise RefusedError(f"{arguments.subject} is not known: {'; '.join(answer['notes'])}")
    tenures = [tenure["sentence"] for tenure in answer["tenures"]]
    refusals = []
    for row in answer["entries"]:
        if row["event"] == "refused":
            times = f"{row['count']} in all, last at {row['at']}"
            refusals.append(
                f"ADD of {row['pod'] or row['container_id']} was refused, {times}: code {row['code']}: {row['detail']}"
            )
    return {
        "subject": arguments.subject,
        "sentences": [*tenures, *refusals],
        "history": answer["entries"],
        "notes": answer["notes"],
        "source": answer["source"],
    }


EXPLAIN = Verb(
    help="why an address, a pod or a sandbox is as it is; who had it when",
    about="Explains in sentences why an address, a pod or a sandbox is in its state, and shows its history.",
    examples=("ipamctl explain 10.0.3.7",),
    lay_out=render_explain,
    rpc="Explain",
    make=_explain,
    arguments=(
        *SUBJECT,
        argument("--find", action="store_true", help="ask EC2 which ENI and instance have an address that is not this node's"),
    ),
    needs_attention=lambda answer: not (answer["sentences"] or answer["history"]),
)
