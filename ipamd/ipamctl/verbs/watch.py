"""`ipamctl watch`: changes of the verdict, the pool and the attachments, a line each, until Ctrl-C."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ipamd.ipamctl.verb import EXIT_AWAY, STATE_COLUMNS, Answer, Ask, Verb, VerbError

if TYPE_CHECKING:
    from collections.abc import Iterator

INTERVAL_S = 2.0
INTERVAL_MIN_S = 0.2
"""Ours: two questions cost the daemon a millisecond or two."""

INTERVAL_MAX_S = 3600.0


def render(answer: Answer) -> str:
    """Write one line."""
    return f"{answer['at']}  {answer['what']:<10}  {answer['text']}"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not INTERVAL_MIN_S <= seconds <= INTERVAL_MAX_S:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is no number of seconds from {INTERVAL_MIN_S} to {INTERVAL_MAX_S:.0f}")
    return seconds


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval", type=_seconds, default=INTERVAL_S, metavar="S", help=f"seconds between two looks (default {INTERVAL_S:.0f})"
    )
    parser.add_argument("--count", type=int, default=0, metavar="N", help="end after N looks (default: Ctrl-C ends it)")


def _stream(daemon: Ask, arguments: argparse.Namespace) -> Iterator[Answer]:
    import time
    from datetime import UTC, datetime

    from ipamd.model.words import rfc3339

    before: dict[str, dict[str, str]] = {}
    looks = 0
    while True:
        now = _look(daemon)
        at = rfc3339(datetime.now(UTC))
        for what, text in _changes(before, now):
            yield {"at": at, "what": what, "text": text}
        # While the daemon is away nothing is known of the rest: what was there before is compared once it is back.
        before |= now
        looks += 1
        if looks == arguments.count:
            return
        time.sleep(arguments.interval)


def _look(daemon: Ask) -> dict[str, dict[str, str]]:
    """What there is now, by kind: name -> text."""
    try:
        status, rows = daemon("GetStatus"), daemon("ListAttachments")["attachments"]
    except VerbError as error:
        if error.exit_status != EXIT_AWAY:
            raise
        return {"daemon": {"": str(error)}}
    pool = status.get("pool", {})
    counts = ", ".join(f"{pool.get(f'{state}_count', 0)} {state}" for state in STATE_COLUMNS)
    return {
        "daemon": {"": f"vpc-ipamd {status['version']} answers, {status['phase']}"},
        "verdict": {"": status["verdict"]},
        "pool": {
            "": f"{pool.get('total_count', 0)} addresses: {counts}; {pool.get('eni_count', 0)} ENIs; {pool.get('last_cycle', '')}"
        },
        "attachment": {f"{row['container_id']}/{row['ifname']}": _attachment(row) for row in rows},
    }


def _attachment(row: Answer) -> str:
    lost = f", lost since {row['lost_since']}" if row["lost_since"] else ""
    return f"{row['address']} {row['sandbox_name'] or '-'} {row['container_id']}/{row['ifname']}{lost}"


def _changes(before: dict[str, dict[str, str]], now: dict[str, dict[str, str]]) -> Iterator[tuple[str, str]]:
    for what, texts in now.items():
        known = before.get(what, {})
        for name, text in texts.items():
            if known.get(name) != text:
                yield what, f"+ {text}" if name and name not in known else text
        yield from ((what, f"- {text}") for name, text in known.items() if name not in texts)


VERB = Verb(
    help="changes of verdict, pool and attachments, a line each, until Ctrl-C",
    ask=lambda daemon, _: daemon("GetStatus"),
    render=render,
    arguments=_arguments,
    stream=_stream,
    position=9,
)
