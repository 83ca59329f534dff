"""The commands and the quoted words of a page for operators, by heading."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"


@dataclass(frozen=True)
class Section:
    """Commands (`$ ` in an indented block), in order, and the words in code font of its sentences."""

    commands: tuple[str, ...]
    quoted: frozenset[str]


def sections(name: str) -> dict[str, Section]:
    """Read a page of docs/: heading -> its section."""
    found = {}
    for part in re.split(r"^## ", (DOCS / name).read_text(), flags=re.M)[1:]:
        heading, _, body = part.partition("\n")
        commands = tuple(re.findall(r"^ {4,}\$ (.*)$", body, re.M))
        sentences = re.sub(r"^ {4,}\$ .*$", "", body, flags=re.M)
        found[heading.strip()] = Section(commands, frozenset(re.findall(r"`([^`]+)`", sentences)))
    return found
