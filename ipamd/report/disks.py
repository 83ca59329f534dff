"""Fold the conditions that one failing disk causes into one condition, which names the disk and its problem.

The datastore, the history, a loop, and the writer of the file that marks the daemon as serving each report that they cannot write.
Each report is right, but the operator has to mend one file system. So the first condition names the others. A condition that lasts
longer than the first one is shown by itself again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ipamd.model.errors import DATASTORE

DISK_STEPS = {
    "full": "free space there: `df {0}`, `du -x {0}`",
    "inodes": "delete files there: `df -i {0}`",
    "read-only": "mount it writable; the kernel log says why it is not",
    "failing": "see the kernel log; replace the disk",
}
"""What to do about each kind of refusal."""

DISK_PROBLEMS = {
    "full": "is full",
    "inodes": "has no inode left",
    "read-only": "is read-only",
    "failing": "reports errors",
}


def fold_by_disk(
    conditions: Mapping[str, str],
    refusals: Mapping[str, str],
    paths: Mapping[str, Path],
    sentence: Callable[[str, str], str],
) -> tuple[dict[str, str], dict[str, str]]:
    """Fold the conditions that one file system causes into one, with its cause, the names of the others, and what to do.

    Args:
        conditions: the sentence of each condition, by the condition's subject.
        refusals: how the disk refused a write (a key of DISK_STEPS), by subject; "" or absent if the condition has another cause
            (`disk_refusal`).
        paths: a path on the disk that a condition is about, by subject; the path under "" is that of all other subjects.
        sentence: called with a subject and a text that names the disk and its problem; returns the condition's sentence, which
            begins with that text instead of the subject.
    Returns: two mappings by subject. The first has the sentences: one for each failing disk, under the subject of its first
        condition, and those with another cause unchanged. The second says what to do about each failing disk.
    """
    subjects_by_disk: dict[object, list[str]] = {}
    for subject in sorted(conditions, key=lambda subject: (subject != DATASTORE, subject)):
        if refusals.get(subject):
            path = paths.get(subject, paths[""])
            subjects_by_disk.setdefault(_device(path), []).append(subject)
    folded, steps = dict(conditions), dict[str, str]()
    for first, *further in subjects_by_disk.values():
        path = paths.get(first, paths[""])
        kind, room = _room(path, refusals[first])
        folded[first] = sentence(first, f"{first}: the file system of {path} {DISK_PROBLEMS[kind]}{room}")
        if further:
            folded[first] += f"; the same disk causes: {', '.join(further)}"
        steps[first] = DISK_STEPS[kind].format(path)
        for subject in further:
            del folded[subject]
    return folded, steps


def _device(path: Path) -> object:
    try:
        return path.stat().st_dev
    except OSError:
        return path  # without a device number the path counts as a disk of its own


def _room(path: Path, refusal: str) -> tuple[str, str]:
    """Return the kind of refusal, and the free space in brackets; "" if space is not the problem.

    A file system without inodes reports the same error as a full one; its kind becomes `inodes`.
    """
    if refusal != "full":
        return refusal, ""
    try:
        status = os.statvfs(path)
    except OSError:
        return refusal, ""
    if status.f_files and not status.f_favail:
        return "inodes", ""
    return refusal, f" ({status.f_bavail * status.f_frsize >> 10} of {status.f_blocks * status.f_frsize >> 10} KiB are free)"
