"""Network namespaces in place of sandboxes, each bound to a file as a container runtime does.

They are made before a timed block and removed after it. Otherwise the kernel, which removes them in the background, would hold a lock
that the next plugin needs.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from pathlib import Path

CLONE_NEWNET = 0x40000000  # linux/sched.h
MS_BIND, MNT_DETACH = 0x1000, 2  # linux/mount.h
FOLDER = Path("/run/bench")
"""Folder in the node for the namespaces' files, and for the output of plugins."""

_libc = ctypes.CDLL(None, use_errno=True)


def netns_path(container_id: str) -> Path:
    """Return the path of the file to which a sandbox's namespace is bound."""
    return FOLDER / f"{container_id}.net"


def make_all(container_ids: Sequence[str]) -> None:
    """Make a namespace for each container ID. Raises: OSError."""
    for container_id in container_ids:
        make_netns(container_id)


def make_netns(container_id: str) -> None:
    """Make a new namespace and bind it to its file, in a thread that ends afterwards. Raises: OSError."""
    failed: list[OSError] = []

    def make() -> None:
        path = netns_path(container_id)
        path.touch()
        if _libc.unshare(CLONE_NEWNET) or _libc.mount(b"/proc/thread-self/ns/net", str(path).encode(), None, MS_BIND, None):
            errno = ctypes.get_errno()
            failed.append(OSError(errno, f"namespace {path}: {os.strerror(errno)}"))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def remove_all(container_ids: Sequence[str]) -> None:
    """Remove the namespaces of these container IDs and the output of plugins, if they exist."""
    for container_id in container_ids:
        _libc.umount2(str(netns_path(container_id)).encode(), MNT_DETACH)
        netns_path(container_id).unlink(missing_ok=True)
        (FOLDER / f"{container_id}.out").unlink(missing_ok=True)
