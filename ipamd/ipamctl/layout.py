"""The layout of a screen: its width, its colours, and whether all columns and whole IDs are shown. Light to import."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import NamedTuple, TextIO

WIDTH_MIN = 40
"""Least width of a layout, in characters. Ours: a narrower table cannot be read."""

_FRACTION = re.compile(r"\.\d+Z$")

SHORT_ID = 13
"""Characters of a container ID on a screen, similar to crictl and docker. `explain` accepts the beginning of an ID."""


class Colour(StrEnum):
    """The colours, named by their meaning on the screen, as ANSI codes. Source: ECMA-48, 8.3.117."""

    GOOD = "32"
    NOTICE = "33"
    BAD = "31"


class Layout(NamedTuple):
    """How answers are laid out.

    `width`: characters in a line of the screen; with 0 no line is broken.
    `is_wide`: whether all columns and whole IDs are shown.
    `has_colour`: whether the screen shows colours.
    """

    width: int = 0
    is_wide: bool = False
    has_colour: bool = False

    def paint(self, text: str, colour: Colour | None) -> str:
        """Return a text in a colour, if the screen has colours."""
        if not (self.has_colour and colour and text):
            return text
        return f"\x1b[{colour}m{text}\x1b[0m"

    def short_id(self, container_id: str) -> str:
        """Return a whole container ID on a wide screen; otherwise its beginning."""
        if self.is_wide:
            return container_id
        return container_id[:SHORT_ID]

    def short_time(self, at: str) -> str:
        """Return a time of RFC 3339 in UTC; only a wide screen shows its fraction of a second."""
        if self.is_wide:
            return at
        return _FRACTION.sub("Z", at)


WHOLE = Layout(is_wide=True)
"""All columns, on lines of any length."""


def layout_of(output: str, stream: TextIO) -> Layout:
    """Choose the layout for a stream. `output`: the value of `-o`.

    A terminal has a width, and colour unless NO_COLOR is set (https://no-color.org) or TERM is `dumb`. A pipe or a file has neither,
    so that one row stays one line for grep.
    """
    if not stream.isatty():
        return Layout(is_wide=output == "wide")
    has_colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Layout(_terminal_width(stream), output == "wide", has_colour)


def _terminal_width(stream: TextIO) -> int:
    """The width of the terminal, 0 if it is not known. The variable COLUMNS overrides it, as in other programs."""
    columns = os.environ.get("COLUMNS", "")
    if not (columns.isascii() and columns.isdecimal()):
        columns = str(os.get_terminal_size(stream.fileno()).columns)
    width = int(columns)
    if width == 0:
        return 0
    return max(width, WIDTH_MIN)
