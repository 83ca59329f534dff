"""`ipamctl watch`: print each change of the verdict, the pool and the attachments on a line, until Ctrl-C."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from ipamd.ipamctl.layout import Layout
from ipamd.ipamctl.tables import CELL_MAX, LINE_MAX, filled
from ipamd.ipamctl.verb import Answer, Ask, AwayError, Verb, argument
from ipamd.ipamctl.verbs.status import address_states
from ipamd.model.time_text import rfc3339
from ipamd.model.words import counted, fitting, pool_size

INTERVAL_S = 2.0
"""Default pause between two reads of the daemon. The same as that of watch(1)."""

INTERVAL_MIN_S = 0.2
"""Shortest pause between two reads of the daemon's state. Ours: a read is two RPCs, which cost the daemon a millisecond or two, so
even with this pause they take 1 % of a core at most."""

INTERVAL_MAX_S = 3600.0
"""Longest pause. Ours: whoever asks for more has probably given milliseconds."""

_CONTAINER_ID = re.compile(r"\b[0-9a-f]{64}\b")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not INTERVAL_MIN_S <= seconds <= INTERVAL_MAX_S:
        raise argparse.ArgumentTypeError(
            f"{text[:20]!r} is not a number of seconds from {INTERVAL_MIN_S} to {INTERVAL_MAX_S:.0f}"
        )
    return seconds


def _watch(daemon: Ask, arguments: argparse.Namespace) -> Iterator[Answer]:
    before: dict[str, dict[str, str]] = {}
    read_count = 0
    while True:
        now = read_state(daemon)
        at = rfc3339(datetime.now(UTC))
        for kind, texts in now.items():
            for text in _changes(before.get(kind, {}), texts):
                yield {"at": at, "kind": kind, "text": text}
        # While the daemon is away, `now` has only the kind `daemon`. `before` keeps the last state of the other kinds, which is
        # compared once the daemon answers again.
        before |= now
        read_count += 1
        if read_count == arguments.count:
            return
        time.sleep(arguments.interval)


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Describe new, changed and removed texts. Both mappings: name -> text.

    A kind with a single text has it under an empty name; its changes are shown without + or -.
    """
    for name, text in now.items():
        if name and name not in before:
            yield f"+ {text}"
        elif before.get(name) != text:
            yield text
    for name, text in before.items():
        if name not in now:
            yield f"- {text}"


def read_state(daemon: Ask) -> dict[str, dict[str, str]]:
    """Read the current state. Returns: kind -> name -> text; only the kind `daemon` if the daemon is away."""
    try:
        status, rows = daemon("GetStatus"), daemon("ListAttachments")["attachments"]
    except AwayError as error:
        return {"daemon": {"": str(error)}}
    pool = status["pool"]
    attachments = {}
    for row in rows:
        sandbox = f"{row['container_id']}/{row['ifname']}"
        text = f"{row['address']} {fitting(row['sandbox_name'] or '-', CELL_MAX)} {sandbox}"
        if row["lost_since"]:
            text += f", lost since {row['lost_since']}"
        attachments[sandbox] = text
    return {
        "daemon": {"": f"vpc-ipamd {status['version']} answers, {status['phase']}"},
        "verdict": {"": status["verdict"]},
        "pool": {
            "": f"{pool_size(pool['total_count'])}: {address_states(pool)}; {counted(pool['eni_count'], 'ENI')}; {pool['last_cycle']}"
        },
        "attachment": attachments,
    }


def render_change(answer: Answer, layout: Layout) -> str:
    """Write a change on a line; a line that is wider than the terminal goes on indented."""
    text = _CONTAINER_ID.sub(lambda match: layout.short_id(match[0]), fitting(answer["text"], LINE_MAX))
    return filled(f"{answer['at']}  {answer['kind']:<10}  {text}", layout, indent=4)


WATCH = Verb(
    help="changes of verdict, pool and attachments, a line each, until Ctrl-C",
    about="Prints each change of the verdict, the pool and the attachments, until Ctrl-C.",
    examples=("ipamctl watch --interval 5",),
    lay_out=render_change,
    make=_watch,
    arguments=(
        argument(
            "--interval",
            type=_seconds,
            default=INTERVAL_S,
            metavar="S",
            help=f"seconds between two looks (default {INTERVAL_S:.0f})",
        ),
        argument("--count", type=int, default=0, metavar="N", help="end after N looks (default: Ctrl-C ends it)"),
    ),
)
