"""Fold the conditions that one failing disk causes into one condition, which names the disk and its problem.

If a disk fails, each part of the daemon that writes to it reports that it cannot write: the datastore, the history, a loop that
writes files, and the writer of the mark that the daemon serves (`served_mark.py`). Each report is right, but the operator has to mend
only one file system. So only the first condition is shown, and it names the remaining conditions. When the first condition ends, the
next one takes its place.
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
"""The next step for each kind of refusal. The path of the disk is put in for `{0}`."""

DISK_PROBLEMS = {
    "full": "is full",
    "inodes": "has no inode left",
    "read-only": "is read-only",
    "failing": "reports errors",
}
"""The words for each kind of refusal in the text of a condition."""


def fold_by_disk(
    conditions: Mapping[str, str],
    refusals: Mapping[str, str],
    paths: Mapping[str, Path],
    sentence: Callable[[str, str], str],
) -> tuple[dict[str, str], dict[str, str]]:
    """Fold the conditions that one file system causes into one condition. It names the disk, its problem, and the other conditions.

    Args:
        conditions: the sentence of each condition, by the condition's subject.
        refusals: how the disk refused a write (a key of DISK_STEPS), by subject; "" or absent if the condition has another cause
            (`disk_refusal`).
        paths: a path on the disk that a condition is about, by subject. The path under "" is for all other subjects.
        sentence: called with a subject and a text that names the disk and its problem. Returns the condition's sentence, which
            begins with that text instead of the subject.
    Returns: two mappings by subject. The first has the sentences to show. For each failing disk it has one sentence, under the subject
        of the disk's first condition. The sentences of conditions with another cause are unchanged. The second mapping has the next
        step for each failing disk.
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
    """Return the kind of refusal, and a text with the free space in KiB, which is "" if space is not the problem.

    A file system without a free inode reports the same error as a full file system. The kind of refusal is `inodes` then.
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
