"""tools/foreign.py: what needs no QEMU. tests/heavy/test_image_arm64.py has the rest."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tests.unit.manifests.manifest import ROOT
from tools import foreign

COMMAND = [sys.executable, str(ROOT / "tools" / "foreign.py")]


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("words", [(), ("arm64",), ("sparc", "true")])
def test_a_wrong_call_is_refused(words: tuple[str, ...]) -> None:
    """Without architecture and command, or with an unknown architecture, nothing is run."""
    done = _run(*words)
    assert done.returncode == 2
    assert done.stderr == "usage: foreign.py amd64|arm64 COMMAND...\n"


@pytest.mark.skipif(platform.machine() not in foreign.MACHINES.values(), reason="neither amd64 nor arm64")
def test_the_machines_own_architecture_needs_nothing() -> None:
    """The command is run as it is, by whoever calls, and its exit status is the status; a missing command is named."""
    (own,) = [arch for arch, machine in foreign.MACHINES.items() if machine == platform.machine()]
    assert _run(own, "sh", "-c", "exit 7").returncode == 7
    missing = _run(own, "/nonexistent/command")
    assert (missing.returncode, missing.stderr) == (1, "foreign: /nonexistent/command: [Errno 2] No such file or directory\n")


def test_numbers_stay_what_they_are() -> None:
    """Each user of this namespace is itself in the next one, also where only some numbers are mapped."""
    assert foreign._identity("         0          0 4294967295\n") == "0 0 4294967295\n"
    assert foreign._identity("0 1000 1\n1 100000 65536\n") == "0 0 1\n1 1 65536\n"
