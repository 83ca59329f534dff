"""Prove that nothing is at the path of a network namespace.

A namespace is a mount in a directory of the host, for example /run/netns/cni-1. Whether the daemon sees such a mount depends on its
own mount namespace. Without mount propagation (`mountPropagation: HostToContainer`), or without the volume, the daemon sees an
ordinary file or nothing in place of a living namespace. So an absent path is a proof only in a directory where the mounts of the host
appear.
"""

from __future__ import annotations

from pathlib import Path

from ipamd.model.record import dataclass

MOUNTS = "/proc/thread-self/mountinfo"
"""The file that lists the mounts of the calling thread's mount namespace. Source of the format: proc_pid_mountinfo(5)."""

_PROPAGATION = ("shared:", "master:")
"""Tags of a mount that receives the mounts made below it elsewhere. Source: mount_namespaces(7)."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount of this mount namespace.

    `point`: the path at which it is mounted.
    `is_propagated`: mounts that the host makes below that path appear in this namespace.
    """

    point: str
    is_propagated: bool


def is_netns_gone(path: str, *, mounts_path: str = MOUNTS) -> bool:
    """Whether nothing is at `path`, in a directory where a mount of the host would be visible.

    Returns: False also in doubt. Always False if the directory is on the mount at `/`, because that mount's tags prove nothing: a
        container's root file system may be tagged `shared` or `master`, although no mount of the host appears in it.
    """
    try:
        directory = Path(path).parent.resolve(strict=True)
        mounts = Path(mounts_path).read_text(encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError, RuntimeError):  # RuntimeError: links in a circle
        return False
    mount = covering_mount(str(directory), mounts)
    if mount is None or mount.point == "/" or not mount.is_propagated:
        return False
    try:
        Path(path).lstat()
    except FileNotFoundError:
        return directory.is_dir()  # a missing directory proves nothing about the file
    except OSError:
        return False
    return False


def covering_mount(directory: str, mounts: str) -> Mount | None:
    """Return the mount that a directory is on; None if `mounts` does not list it.

    `mounts`: the text of mountinfo. If two mounts have the same path, the later one hides the earlier one.
    """
    covering: Mount | None = None
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 7 or "-" not in fields[6:]:
            continue
        point = _unescaped(fields[4])
        is_above = point == "/" or directory == point or directory.startswith(f"{point}/")
        if is_above and (covering is None or len(point) >= len(covering.point)):
            tags = fields[6 : fields.index("-", 6)]
            covering = Mount(point, any(tag.startswith(_PROPAGATION) for tag in tags))
    return covering


def _unescaped(text: str) -> str:
    """Undo the octal escapes of space, tab, newline and backslash."""
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, character)
    return text
