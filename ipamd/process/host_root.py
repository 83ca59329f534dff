"""Find a file of the node from a container that has the node's file system below a directory."""

from __future__ import annotations

from collections import deque
from pathlib import Path, PurePosixPath

LINKS_MAX = 40
"""The largest number of symbolic links that are followed in one path. Source: path_resolution(7)."""


def below(root: Path, path: PurePosixPath) -> Path:
    """Return where an absolute path of the node is below `root`.

    Symbolic links of directories are followed as on the node. On Debian and Ubuntu `/var/run` is a link to `/run`, which would lead
    out of `root`. If the file itself is a link, it is not followed, because the caller removes the link and not its target.
    """
    directory = list[str]()
    pending = deque(path.parent.parts[1:])
    link_count = 0
    while pending:
        part = pending.popleft()
        if part == "..":
            directory = directory[:-1]
            continue
        entry = root.joinpath(*directory, part)
        if not entry.is_symlink() or link_count == LINKS_MAX:
            directory.append(part)
            continue
        link_count += 1
        target = PurePosixPath(entry.readlink())
        parts = target.parts
        if target.is_absolute():
            directory = []
            parts = parts[1:]
        pending.extendleft(reversed(parts))
    return root.joinpath(*directory, path.name)
