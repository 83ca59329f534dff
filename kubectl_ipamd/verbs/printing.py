"""Print the answer of a command: as JSON, or as text with its notes on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kubectl_ipamd.text import printable

Answer = dict[str, Any]


def print_answer(answer: Answer, *, output: str, as_text: Callable[[Answer], str]) -> None:
    """Print an answer.

    Args:
        answer: what `-o json` prints; its "notes" are sentences about what could not be read.
        output: table, wide or json.
        as_text: lays the answer out for people, without its notes.
    """
    if output == "json":
        print(json.dumps(answer, indent=2))
        return
    text = as_text(answer)
    if text:
        print(text, flush=True)
    print_notes(answer["notes"])


def print_notes(notes: Iterable[str]) -> None:
    """Print sentences about what could not be read, on standard error, so that tables stay tables."""
    for note in notes:
        print(f"note: {printable(note)}", file=sys.stderr)


def columns_of(columns: Mapping[str, str], *, wide_only: Iterable[str], output: str) -> Mapping[str, str]:
    """Return the columns of a table: all of them for the output "wide", else those that are not in `wide_only`."""
    if output == "wide":
        return columns
    hidden = set(wide_only)
    return {head: key for head, key in columns.items() if head not in hidden}
