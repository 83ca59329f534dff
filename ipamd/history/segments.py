"""The files of one history: numbered segments, so that what is old or too much goes as whole files.

Two kinds lie in one directory, `history-NNNNNNNN.jsonl` and `refused-NNNNNNNN.jsonl`, each with a bound of its own: a pod that is
refused for days must not push out who had which address.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

KINDS = ("history", "refused")
_NAME = re.compile(r"(history|refused)-(\d{8})\.jsonl")


@dataclass(frozen=True, slots=True)
class Segment:
    """One file. `modified_s`: when it was last written, seconds since the epoch."""

    path: Path
    number: int
    size: int
    modified_s: float


def listed(directory: Path, kind: str) -> list[Segment]:
    """List the segments of one kind, oldest first; none if there is no directory. Raises: OSError."""
    found = []
    try:
        names = os.listdir(directory)  # noqa: PTH208  # names are all that is wanted
    except FileNotFoundError:
        return []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or match[1] != kind:
            continue
        try:
            status = (directory / name).lstat()
        except FileNotFoundError:
            continue  # removed by a daemon that runs, while `ipamctl` lists
        found.append(Segment(directory / name, int(match[2]), status.st_size, status.st_mtime))
    return sorted(found, key=lambda segment: segment.number)


def path_of(directory: Path, kind: str, number: int) -> Path:
    """Where a segment lies."""
    return directory / f"{kind}-{number:08d}.jsonl"


def prune(directory: Path, kind: str, *, bytes_max: int, oldest_s: float) -> None:
    """Remove segments from the oldest on, until the rest has at most `bytes_max` and was written after `oldest_s`.

    Raises: OSError.
    """
    segments = listed(directory, kind)
    total = sum(segment.size for segment in segments)
    for segment in segments:
        if total <= bytes_max and segment.modified_s >= oldest_s:
            return
        segment.path.unlink(missing_ok=True)
        total -= segment.size
