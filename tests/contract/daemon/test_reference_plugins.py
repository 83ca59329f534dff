"""The plugins that a sandbox needs beside ours: a real daemon puts them in place, asks them, and is not ready while one is lacking."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipamd.model.cni_versions import SUPPORTED_VERSIONS
from lab.lab import missing_requirements
from lab.node.node import REPOSITORY
from tests.rig import Rig, rig, wait_until

pytestmark = pytest.mark.privileged

DEBIAN = Path("/usr/lib/cni")
PINNED = REPOSITORY / "build" / "reference-plugins"
BIN = "/opt/cni/bin"
IMAGE = "/opt/vpc-ipamd/plugins"
CONFLIST = "/etc/cni/net.d/10-vpc-ipamd.conflist"
PINS = json.loads((REPOSITORY / "tools" / "reference_plugins" / "plugins.json").read_text())
NAMES = ("bandwidth", "loopback", "portmap", "tuning")

needs_pinned = pytest.mark.skipif(
    not (PINNED / "SHA256SUMS").exists() or platform.machine() != "x86_64",
    reason="the pinned plugins are not here: tools/build_reference_plugins.sh build/reference-plugins builds them, with Go",
)
needs_debian = pytest.mark.skipif(
    not (DEBIAN / "portmap").exists(), reason="the reference plugins are not installed (containernetworking-plugins)"
)


@pytest.fixture
def fresh() -> Iterator[Rig]:
    """A node without any plugin but ours, where a daemon may start."""
    with rig(start=False, env={"VPC_IPAMD_ENABLE_PORTMAP_PLUGIN": "true", "VPC_IPAMD_CRI_SOCKET": "off"}) as made:
        yield made


def ship(made: Rig) -> None:
    """Give the node the image's directory of plugins."""
    for path in sorted(PINNED.iterdir()):
        made.node.write_file(f"{IMAGE}/{path.name}", path.read_bytes(), 0o755 if path.name in NAMES else 0o644)


def replace(made: Rig, content: bytes) -> None:
    """Put a portmap into the node's directory as an upgrade does: whole."""
    made.node.write_file("/opt/cni/portmap", content, 0o755)
    made.node.run(["mv", "/opt/cni/portmap", f"{BIN}/portmap"])


def offered(made: Rig) -> list[str]:
    """`cniVersions` of the conflist."""
    return list(json.loads(Path(made.node.root + CONFLIST).read_text())["cniVersions"])


def verdict(made: Rig) -> str:
    """The first line of status."""
    status = made.status()
    return str(status["verdict"]) if status is not None else ""


@needs_pinned
def test_a_fresh_node_gets_all_four(fresh: Rig) -> None:
    """Before the conflist is written; byte for byte what is pinned; 1.1.0 is offered, so the runtime has STATUS and GC."""
    ship(fresh)
    fresh.start()
    for name in NAMES:
        placed = Path(f"{fresh.node.root}{BIN}/{name}")
        assert placed.read_bytes() == (PINNED / name).read_bytes()
        assert placed.stat().st_mode & 0o7777 == 0o755
    assert offered(fresh) == list(SUPPORTED_VERSIONS)
    chain = json.loads(Path(fresh.node.root + CONFLIST).read_text())["plugins"]
    config = {"cniVersion": "1.1.0", "name": "vpc-ipamd", **chain[1]}
    for verb in ("STATUS", "GC"):  # what libcni asks every plugin of the chain
        said = fresh.node.run(
            [f"{BIN}/portmap"], env={"CNI_COMMAND": verb, "CNI_PATH": BIN}, stdin_bytes=json.dumps(config).encode(), check=False
        )
        assert (said.returncode, said.stdout) == (0, ""), said


@needs_pinned
def test_one_that_disappears_comes_back(fresh: Rig) -> None:
    """While the daemon serves, and somebody else's stays untouched."""
    ship(fresh)
    fresh.node.write_file(f"{BIN}/tuning", b"theirs", 0o644)
    fresh.start()
    portmap = Path(f"{fresh.node.root}{BIN}/portmap")
    portmap.unlink()
    wait_until(portmap.exists, what="portmap is back")
    assert portmap.read_bytes() == (PINNED / "portmap").read_bytes()
    assert Path(f"{fresh.node.root}{BIN}/tuning").read_bytes() == b"theirs"
    fresh.assert_sound(expected=0)


@needs_debian
def test_a_lacking_plugin_keeps_the_node_from_being_ready(fresh: Rig) -> None:
    """Row 2: no conflist, ready stays false and one condition says what to do; the daemon is ready as soon as the file is there."""
    fresh.start(wait=False)
    missing = f"NOT READY: plugins: {BIN}/portmap is missing: put it there, or do not chain it"
    wait_until(lambda: verdict(fresh).startswith(missing), what="the condition")
    assert not Path(fresh.node.root + CONFLIST).exists()
    replace(fresh, b'#!/bin/sh\necho \'{"code":3,"msg":"missing containerID"}\'; exit 1\n')
    wait_until(lambda: "missing containerID" in str((fresh.status() or {}).get("conditions")), what="what it answered")
    assert not Path(fresh.node.root + CONFLIST).exists()
    replace(fresh, (DEBIAN / "portmap").read_bytes())
    fresh.wait_ready()
    assert offered(fresh) == ["0.3.1", "0.4.0", "1.0.0"]  # Debian's does not speak 1.1.0
    wait_until(lambda: verdict(fresh).startswith("ready"), what="the verdict")
    assert fresh.log_tail(200).count(f"{BIN}/portmap is missing") == 1


@needs_pinned
@needs_debian
def test_the_offer_follows_a_plugin_that_is_upgraded(fresh: Rig) -> None:
    """Debian's portmap is replaced under a running daemon: 1.1.0 comes with it."""
    replace(fresh, (DEBIAN / "portmap").read_bytes())
    fresh.start()
    assert offered(fresh) == ["0.3.1", "0.4.0", "1.0.0"]
    replace(fresh, (PINNED / "portmap").read_bytes())
    wait_until(lambda: offered(fresh) == list(SUPPORTED_VERSIONS), what="1.1.0 is offered")


@needs_debian
@pytest.mark.containerd
@pytest.mark.skipif(bool(missing_requirements(containerd=True)), reason=missing_requirements(containerd=True) or "-")
def test_containerd_needs_loopback() -> None:
    """Without it no pod starts, so the daemon is not ready; with it a real sandbox runs behind a chain."""
    with rig(containerd=True, start=False, env={"VPC_IPAMD_CHAINED_PLUGINS": '[{"type":"tuning"}]'}) as made:
        made.node.install(DEBIAN / "tuning", f"{BIN}/tuning")
        loopback = Path(f"{made.node.root}{BIN}/loopback")
        kept = loopback.read_bytes()
        loopback.unlink()
        made.start(wait=False)
        wait_until(lambda: "loopback is missing" in verdict(made), what="the condition")
        made.node.write_file(f"{BIN}/loopback", kept, 0o755)
        made.wait_ready()
        sandbox = made.node.cri.run_sandbox("pod")
        made.node.cri.stop(sandbox)
        made.node.cri.remove(sandbox)
        made.assert_sound(expected=0)


@needs_pinned
def test_what_was_built_is_what_is_pinned() -> None:
    """SHA256SUMS is the list of plugins.json, of this machine's architecture, and both architectures have the same four."""
    sums: dict[str, Any] = PINS["sha256"]
    listed = dict(reversed(line.split("  ")) for line in (PINNED / "SHA256SUMS").read_text().splitlines())
    assert listed == sums["amd64"]
    assert all(set(sums[arch]) == set(NAMES) for arch in ("amd64", "arm64"))
    assert all(os.access(PINNED / name, os.X_OK) for name in NAMES)
