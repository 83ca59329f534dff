"""Which form of the plugin a lab node gets: the static file of `make plugin`, or the interpreted one where there is none.

A static file that is older than its sources is not used: who changes the plugin and runs a test tests the change.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lab.node.node import REPOSITORY, Node

ONEFILE = REPOSITORY / "build" / "vpc-cni"
PLUGIN_PATH = "/opt/cni/bin/vpc-cni"
PLUGIN_PYTHON = "/usr/bin/python3"
SOURCES = ("cni_plugin/*.py", "cni_plugin/micropython/*")
"""What decides the file's bytes, beside the version of MicroPython; the Makefile's PLUGIN_SOURCES."""


def onefile(path: Path = ONEFILE) -> Path | None:
    """Give the static plugin that `make plugin` built from the sources as they are; None if there is none."""
    if not path.exists():
        return None
    newest = max(source.stat().st_mtime for pattern in SOURCES for source in REPOSITORY.glob(pattern))
    return path if path.stat().st_mtime >= newest else None


def install(node: Node) -> None:
    """Put the plugin in its place in the node: the static file, or else the interpreted one."""
    found = onefile()
    if found is not None:
        node.install(found, PLUGIN_PATH)
    else:
        install_interpreted(node)


def install_interpreted(node: Node) -> None:
    """Build the interpreted plugin from the checkout, in its place in the node."""
    build = [sys.executable, "-m", "cni_plugin.build", "--python", PLUGIN_PYTHON, "--output", PLUGIN_PATH]
    node.run(build, cwd=str(REPOSITORY))
