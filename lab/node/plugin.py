"""Install the plugin in a lab node: the static file of `make plugin`, or the interpreted file if there is no static one.

A static file that is older than its sources is not used, so that a test after a change of the plugin tests the change.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lab.node.node import REPOSITORY, Node

ONEFILE = REPOSITORY / "build" / "vpc-cni"
PLUGIN_PATH = "/opt/cni/bin/vpc-cni"
PLUGIN_PYTHON = "/usr/bin/python3"
SOURCES = ("cni_plugin/*.py", "cni_plugin/micropython/*")
"""Patterns of the files from which `make plugin` builds the static file. The Makefile has the same list as PLUGIN_SOURCES."""


def onefile(path: Path = ONEFILE) -> Path | None:
    """Return the static plugin if `make plugin` built it from the present sources, otherwise None."""
    if not path.exists():
        return None
    newest = max(source.stat().st_mtime for pattern in SOURCES for source in REPOSITORY.glob(pattern))
    return path if path.stat().st_mtime >= newest else None


def install(node: Node) -> None:
    """Install the plugin in the node: the static file if `onefile` returns it, otherwise the interpreted file."""
    static_file = onefile()
    if static_file is not None:
        node.install(static_file, PLUGIN_PATH)
    else:
        install_interpreted(node)


def install_interpreted(node: Node) -> None:
    """Build the interpreted plugin from the checkout, directly to its path in the node."""
    build = [sys.executable, "-m", "cni_plugin.build", "--python", PLUGIN_PYTHON, "--output", PLUGIN_PATH]
    node.run(build, cwd=str(REPOSITORY))
