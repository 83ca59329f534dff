"""Istio's real installer and plugin beside a real daemon; `make neighbours` builds and runs them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lab.node.node import REPOSITORY
from tests.patience import PATIENCE_S
from tests.rig import Rig, rig, wait_until

BUILT = REPOSITORY / "build" / "neighbours"

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.skipif(
        os.environ.get("VPC_IPAMD_NEIGHBOURS") != "1" or not (BUILT / "istio-installer").exists(),
        reason="`make neighbours` runs these: it builds Istio's installer and plugin",
    ),
]

OURS = "10-vpc-ipamd.conflist"
OWNED = "02-istio-cni.conflist"


@pytest.fixture
def made() -> Iterator[Rig]:
    """A node with a daemon."""
    with rig() as node:
        yield node


class Installer:
    """Istio's installer on a lab node. Its directory has links to those of the node."""

    def __init__(self, made: Rig, home: Path) -> None:
        self._home = home
        for name in ("run", "source", "account"):
            (home / name).mkdir()
        (home / "account" / "token").write_text("a token")
        shutil.copy(BUILT / "istio-cni", home / "source" / "istio-cni")
        (home / "bin").symlink_to(made.node.root + "/opt/cni/bin")
        (home / "net.d").symlink_to(made.node.root + "/etc/cni/net.d")
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self, mode: str) -> Iterator[None]:
        """Run it; at the end it cleans up, as at an uninstall. `mode`: chained or owned."""
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen([BUILT / "istio-installer", self._home, mode], stdout=log, stderr=log)
        try:
            yield
        finally:
            self.end(signal.SIGTERM)

    def end(self, number: signal.Signals) -> None:
        """Send it a signal, and wait for its end."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
        self._process.wait(PATIENCE_S)

    def writes(self) -> int:
        """How often it wrote a conflist."""
        return (self._home / "log").read_text().count("Wrote CNI config to")


@pytest.fixture
def installer(made: Rig, tmp_path: Path) -> Installer:
    """Not started."""
    return Installer(made, tmp_path)


def conflist(made: Rig, name: str = OURS) -> dict[str, Any]:
    """A conflist of the node, {} if there is none."""
    try:
        content: dict[str, Any] = json.loads(Path(made.node.root + "/etc/cni/net.d", name).read_text())
    except OSError:
        return {}
    return content


def types(made: Rig, name: str = OURS) -> list[str]:
    """The plugins of a conflist."""
    return [plugin["type"] for plugin in conflist(made, name).get("plugins", [])]


def subjects(made: Rig) -> set[str]:
    """The subjects of the conditions but that CRI is off."""
    status = made.status()
    assert status is not None
    return {condition["subject"] for condition in status["conditions"]} - {"cri"}


def test_chained(made: Rig, installer: Installer) -> None:
    """One write of its own, and it is satisfied; a killed agent leaves the plugin, a new one adds none; an uninstall takes it out."""
    before = conflist(made)
    with installer.running("chained"):
        wait_until(lambda: types(made) == ["vpc-cni", "istio-cni"], what="the plugin is appended")
        time.sleep(5.0)  # longer than its pause between two installations
        assert installer.writes() == 1
        installer.end(signal.SIGKILL)
    made.restart()
    assert types(made) == ["vpc-cni", "istio-cni"]
    with installer.running("chained"):
        time.sleep(3.0)
        assert types(made) == ["vpc-cni", "istio-cni"]
        assert subjects(made) == set()
    wait_until(lambda: conflist(made) == before, what="the conflist as it was")
    assert subjects(made) == set()


def test_its_own_conflist(made: Rig, installer: Installer) -> None:
    """It copies ours into a file that sorts first: a fact, and a condition once our settings changed and the copy did not."""
    with installer.running("owned"):
        wait_until(lambda: types(made, OWNED) == ["vpc-cni", "istio-cni"], what="its own conflist")
        wait_until(lambda: bool((made.status() or {}).get("companions")), what="the fact in status")
        assert (types(made), subjects(made)) == (["vpc-cni"], set())
        made.restart(env={"ENABLE_POD_ENI": "true"})
        wait_until(lambda: "other conflist copy" in subjects(made), what="the copy is stale")
    wait_until(lambda: "other conflist copy" not in subjects(made), what="its end with the file")


def test_the_plugin_speaks_what_it_says(made: Rig, installer: Installer) -> None:
    """Whatever it speaks is what is offered."""
    with installer.running("chained"):
        wait_until(lambda: types(made) == ["vpc-cni", "istio-cni"], what="the plugin is appended")
        environment = {"CNI_COMMAND": "VERSION", "CNI_PATH": "x", "CNI_NETNS": "x", "CNI_IFNAME": "x", "PATH": os.environ["PATH"]}
        done = subprocess.run(
            [BUILT / "istio-cni"], env=environment, input=b'{"cniVersion":"1.0.0"}', capture_output=True, check=True, timeout=30
        )
        spoken = json.loads(done.stdout)["supportedVersions"]
        wait_until(lambda: set(conflist(made)["cniVersions"]) <= set(spoken), what="no more is offered")
