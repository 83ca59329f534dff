"""`kubectl ipamd versions`: which releases run, on how many nodes, and which settings wait for a restart."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from kubectl_ipamd.errors import EXIT_ATTENTION, NoAnswerError
from kubectl_ipamd.fleet import NodeReading
from kubectl_ipamd.session import Session
from kubectl_ipamd.text import counted, table
from kubectl_ipamd.verbs.printing import Answer, columns_of, print_answer

NAMES_MAX = 3
"""Most nodes that a row of the table names. Ours: some examples are enough, because the outputs wide and json name all nodes."""

COLUMNS = {
    "VERSION": "version",
    "COUNT": "count",
    "MODE": "mode",
    "IMAGE": "image",
    "AWAITING RESTART": "awaiting",
    "NODES": "names",
}


def run(session: Session, _: argparse.Namespace) -> int:
    """Print one row for each release, image and mode.

    Returns: 0, or 1 if nodes have different releases. An unknown release counts as a release of its own.
    """
    readings, notes = session.fleet()
    if not readings:
        raise NoAnswerError("; ".join(notes))
    answer = versions_answer(readings, notes)

    def as_text(answer: Answer) -> str:
        return _text(answer, output=session.output)

    print_answer(answer, output=session.output, as_text=as_text)
    if len({row["version"] for row in answer["versions"]}) > 1:
        return EXIT_ATTENTION
    return 0


def versions_answer(readings: Iterable[NodeReading], notes: Iterable[str]) -> Answer:
    """Group the nodes by release, image and mode; the largest group comes first. The release of a node without figures is ""."""
    groups: dict[tuple[str, str, str], Answer] = {}
    for reading in readings:
        version = mode = image = ""
        awaiting = 0
        if reading.node.pod is not None:
            image = reading.node.pod.image
        if reading.figures is not None:
            version, mode = reading.figures.version, reading.figures.mode
            awaiting = int(reading.figures.settings_awaiting_restart > 0)
        empty = {"version": version, "image": image, "mode": mode, "count": 0, "awaiting": 0, "nodes": []}
        group = groups.setdefault((version, image, mode), empty)
        group["count"] += 1
        group["awaiting"] += awaiting
        group["nodes"].append(reading.node.name)
    rows = sorted(groups.values(), key=lambda group: (-group["count"], group["version"], group["image"]))
    return {"versions": rows, "notes": list(notes)}


def _text(answer: Answer, *, output: str) -> str:
    shown = []
    for row in answer["versions"]:
        names = row["nodes"]
        if output != "wide" and len(names) > NAMES_MAX:
            names = [*names[:NAMES_MAX], f"and {counted(len(names) - NAMES_MAX, 'other')}"]
        shown.append({**row, "names": names})
    return table(shown, columns_of(COLUMNS, wide_only=(), output=output))
