"""Where heavy tools are, and marks for tests that need them. `tools/setup.sh heavy` installs them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools.image_contents import Archive, unpack

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ROOT / "build" / "heavy"
DEBIANS_KUBECTL = HEAVY / "kubernetes-client" / "usr" / "bin" / "kubectl"
HELM = HEAVY / "helm"
KUSTOMIZE = HEAVY / "kustomize"
VLAN_KERNEL = HEAVY / "vlan-kernel"
NEIGHBOURS = HEAVY / "neighbours"
AXE = HEAVY / "axe" / "axe.min.js"


def find(name: str) -> str | None:
    """The path of a tool: from build/heavy, or of the machine."""
    known = {
        "vlan kernel": VLAN_KERNEL / "boot",
        "neighbours": NEIGHBOURS / "usr",
        "kubectl": DEBIANS_KUBECTL,
        "helm": HELM,
        "kustomize": KUSTOMIZE,
        "axe-core": AXE,
        "cyclonedx-py": HEAVY / "venv/bin/cyclonedx-py",
    }
    if name in known:
        return str(known[name]) if known[name].exists() else None
    return shutil.which(name)


def needs(*names: str, root: bool = False) -> pytest.MarkDecorator:
    """Skip with a reason that names what is missing. Args: names: tools; root: the test runs as root only."""
    missing = [name for name in names if find(name) is None] + (["root"] if root and os.geteuid() != 0 else [])
    reason = f"missing: {', '.join(missing)}; `tools/setup.sh heavy` installs the tools" if missing else "-"
    return pytest.mark.skipif(bool(missing), reason=reason)


@contextmanager
def unpacked(archive: Archive, name: str) -> Iterator[Path]:
    """An image's content in a directory, in memory where there is such a place; outside of /run, /etc, /opt and /var."""
    parent = Path("/dev/shm") if Path("/dev/shm").is_dir() else ROOT / "build" / "image"
    folder = parent / f"vpc-ipamd-{name}-{os.getpid()}"
    folder.mkdir()
    try:
        unpack(archive, folder)
        yield folder
    finally:
        shutil.rmtree(folder)
