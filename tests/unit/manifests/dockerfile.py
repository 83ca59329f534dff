"""A small reader of Dockerfiles: instructions with their words, in order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction, continuation lines joined. `stage` is the name or number of the stage it is in; "" before the first."""

    name: str
    text: str
    stage: str


def read(path: Path) -> list[Instruction]:
    """Parse a Dockerfile. Raises: ValueError for a line that is no instruction."""
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")))
    found: list[Instruction] = []
    stage, count = "", 0
    for line in filter(str.strip, joined.splitlines()):
        match = re.fullmatch(r"([A-Z]+)\s+(.*)", line.strip())
        if match is None:
            raise ValueError(f"{line!r} is no instruction")
        name, text = match[1], re.sub(r"\s+", " ", match[2])
        if name == "FROM":
            named = re.search(r" AS (\S+)$", text)
            stage, count = named[1] if named else str(count), count + 1
        found.append(Instruction(name, text, stage))
    return found
