"""Which form of the plugin the lab installs."""

from __future__ import annotations

import os
from pathlib import Path

from lab.node.node import REPOSITORY
from lab.node.plugin import SOURCES, onefile


def newest_source() -> float:
    """When a source of the static file was last changed."""
    return max(path.stat().st_mtime for pattern in SOURCES for path in REPOSITORY.glob(pattern))


def test_a_static_plugin_older_than_its_sources_is_not_used(tmp_path: Path) -> None:
    """Who changes a source and forgets to build tests the interpreted plugin, which is made of it, and not yesterday's."""
    file = tmp_path / "vpc-cni"
    assert onefile(file) is None
    file.write_bytes(b"")
    os.utime(file, (newest_source() - 1,) * 2)
    assert onefile(file) is None
    os.utime(file, (newest_source() + 1,) * 2)
    assert onefile(file) == file
