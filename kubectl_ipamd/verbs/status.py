"""`kubectl ipamd status`: every node, the worst first, with a summary line."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

from kubectl_ipamd.errors import EXIT_ATTENTION, NoAnswerError, RightMissingError
from kubectl_ipamd.fleet import NodeReading, Silence
from kubectl_ipamd.judgement import CAUSE_STEPS, SEVERITY, UNREMARKABLE, Judgement, NodeState, judge, next_step
from kubectl_ipamd.session import Session
from kubectl_ipamd.text import counted, printable, table
from kubectl_ipamd.verbs.printing import Answer, columns_of, print_answer

MANY = 1_000_000
"""From this number on, a count of addresses comes from an IPv6 /80 prefix. A table then says "many". Source: docs/metrics.md."""

COLUMNS = {
    "NODE": "node",
    "STATE": "state",
    "CAN GIVE": "assignable",
    "ASSIGNED": "assigned",
    "MOST": "most",
    "ZONE": "zone",
    "TYPE": "instance_type",
    "RESTARTS": "restarts",
    "VERSION": "version",
    "POD": "pod",
    "WHY": "reason",
}

WIDE_ONLY = ("TYPE", "RESTARTS", "VERSION", "POD")


def run(session: Session, arguments: argparse.Namespace) -> int:
    """Print all nodes. Returns: 0, or 1 if a node needs attention. Raises: RightMissingError if no figures may be read."""
    readings, notes = session.fleet()
    if not readings:
        raise NoAnswerError("; ".join(notes))
    answer = status_answer(readings, notes, short_below=arguments.short)

    def as_text(answer: Answer) -> str:
        return _text(answer, session, is_troubled_only=arguments.troubled)

    print_answer(answer, output=session.output, as_text=as_text)
    require_figures(readings)
    if answer["summary"]["attention"]:
        return EXIT_ATTENTION
    return 0


def require_figures(readings: Iterable[NodeReading]) -> None:
    """Check that the operator may read figures.

    Raises: RightMissingError if the API server refused the figures of every node that has any.
    """
    silences = {reading.silence for reading in readings if reading.silence not in (Silence.NO_POD, Silence.NOT_RUNNING)}
    if silences == {Silence.FORBIDDEN}:
        raise RightMissingError("no node's figures may be read: docs/kubectl.md names the rights (get pods/proxy)")


def status_answer(readings: Iterable[NodeReading], notes: Iterable[str], *, short_below: int) -> Answer:
    """Judge all readings. Returns: rows, the worst first, and a summary."""
    rows = [_row(reading, judge(reading, short_below=short_below)) for reading in readings]
    rows.sort(key=_by_severity)
    counts = Counter(NodeState(row["state"]) for row in rows)
    by_state = {str(state): counts[state] for state in NodeState if counts[state]}
    attention_count = sum(count for state, count in counts.items() if state not in UNREMARKABLE)
    summary = {"nodes": len(rows), "attention": attention_count, "by_state": by_state}
    return {"summary": summary, "nodes": rows, "notes": list(notes)}


def _by_severity(row: Answer) -> tuple[int, int, str]:
    """Return the sort key of a row: the state's rank, then the addresses that can still be given, then the name."""
    assignable = row["assignable"]
    if assignable is None:
        assignable = -1
    return SEVERITY[NodeState(row["state"])], assignable, row["node"]


def _row(reading: NodeReading, judgement: Judgement) -> Answer:
    node, pod, figures = reading.node, reading.node.pod, reading.figures
    row: Answer = {
        "node": node.name,
        "state": str(judgement.state),
        "reason": judgement.reason,
        "zone": node.zone,
        "instance_type": node.instance_type,
        "node_ready": node.is_ready,
        "pod": "",
        "restarts": None,
        "last_end": "",
        "version": "",
        "assignable": None,
        "assigned": None,
        "total": None,
        "most": None,
        "cut_off": None,
        "blocked": "",
        "conditions": [],
        "figures": "none" if figures is None else "read",
    }
    if pod is not None:
        row |= {"pod": pod.name, "restarts": pod.restart_count, "last_end": pod.last_end}
    if figures is not None:
        row |= {
            "zone": node.zone or figures.zone,
            "instance_type": node.instance_type or figures.instance_type,
            "version": figures.version,
            "assignable": figures.assignable,
            "assigned": figures.assigned,
            "total": figures.total,
            "most": figures.most,
            "cut_off": figures.cut_off_sandboxes,
            "blocked": figures.blocked,
            "conditions": list(figures.conditions),
        }
    return row


def _text(answer: Answer, session: Session, *, is_troubled_only: bool) -> str:
    rows: Sequence[Answer] = answer["nodes"]
    if is_troubled_only:
        rows = [row for row in rows if NodeState(row["state"]) not in UNREMARKABLE]
    parts = [printable(_summary(answer["summary"]))]
    if rows:
        shown = [{**row, **_shown_counts(row)} for row in rows]
        parts.append(table(shown, columns_of(COLUMNS, wide_only=WIDE_ONLY, output=session.output)))
    steps = _next_steps(answer["nodes"], session)
    if steps:
        parts.append(steps)
    return "\n\n".join(parts)


def _summary(summary: Answer) -> str:
    nodes = counted(summary["nodes"], "node")
    states = ", ".join(f"{count} {state}" for state, count in summary["by_state"].items())
    if not summary["attention"]:
        return f"{nodes}, none needs attention: {states}"
    if summary["attention"] == 1:
        return f"{nodes}, 1 of which needs attention: {states}"
    return f"{nodes}, {summary['attention']} of which need attention: {states}"


def _shown_counts(row: Answer) -> dict[str, object]:
    """Return "many" for each count of a row that is MANY or more, by the count's key."""
    shown: dict[str, object] = {}
    for key in ("assignable", "most"):
        if row[key] is not None and row[key] >= MANY:
            shown[key] = "many"
    return shown


def _next_steps(rows: Iterable[Answer], session: Session) -> str:
    """Return the next step for each state and cause, with the names of its first row, so that the operator can run it as it stands."""
    words = {"kubectl": shlex.join(session.kubectl_words), "plugin": shlex.join(session.plugin_words)}
    lines: dict[tuple[NodeState, str], str] = {}
    for row in rows:
        state = NodeState(row["state"])
        step = next_step(state, row["blocked"])
        if step and (state, step) not in lines:
            names = {"node": shlex.quote(row["node"]), "pod": shlex.quote(row["pod"])}
            cause = f" ({row['blocked']})" if step in CAUSE_STEPS.values() else ""
            lines[state, step] = printable(f"{state}{cause}: {step.format(namespace=session.namespace, **names, **words)}")
    return "\n".join(lines.values())
