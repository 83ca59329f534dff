"""Durability of names: a rename or removal is on disk only once its directory is."""

from __future__ import annotations

import os
from pathlib import Path

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""To open a directory, and nothing that a link in its place leads to."""


def sync_directory(path: Path) -> None:
    """Make renames and removals in a directory durable. Raises: OSError."""
    handle = os.open(path, DIRECTORY_FLAGS)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
