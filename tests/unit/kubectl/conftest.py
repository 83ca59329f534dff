"""A desk: a made cluster, a made kubectl, and the plugin run in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kubectl_ipamd.command import main
from tests.unit.kubectl.cluster import MadeCluster, serving


@dataclass
class Desk:
    """An operator's shell."""

    cluster: MadeCluster
    folder: Path
    capsys: pytest.CaptureFixture[str]

    def run(self, *words: str) -> tuple[int, str]:
        """Run the plugin. Returns: exit status and standard output."""
        self.capsys.readouterr()
        status = main(["--kubectl", str(self.folder / "kubectl"), *words])
        return status, self.capsys.readouterr().out

    def ask(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Run the plugin with -o json."""
        status, text = self.run("-o", "json", *words)
        return status, json.loads(text)

    def kubectl_commands(self) -> list[list[str]]:
        """The command lines of kubectl so far, without those of `proxy`."""
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    """A desk in an empty folder."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\nexec {sys.executable} -S {Path(__file__).with_name("fake_kubectl.py")} "$@"\n')
    kubectl.chmod(0o755)
    cluster = MadeCluster()
    with serving(cluster) as address:
        for name, value in {"FAKE_API": address, "FAKE_LOG": str(tmp_path / "log"), "FAKE_OUTPUT": str(tmp_path / "out")}.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "log").touch()
        yield Desk(cluster, tmp_path, capsys)
