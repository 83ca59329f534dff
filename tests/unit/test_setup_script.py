"""tools/setup.sh: each command installs only what it needs, and what was installed is written down."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEPS = """
debian_packages() { printf '%s\\n' "${needed[@]%%:*}"; }
python_tool() { echo $1; }
from_go() { echo $1; }
heavy_kubectl() { echo kubectl; }
vlan_kernel() { echo linux-image-cloud-amd64; }
"""

ASKED = {
    "image": {"buildah", "mmdebstrap", "skopeo", "cyclonedx-py"},
    "lock": {"pip-compile"},
    "manifests": {"kubectl", "helm", "kustomize"},
    "machine": {"cpio", "kmod", "qemu-system-arm", "qemu-user-static"},
}
"""Part -> all that it installs."""


def _sourced(script: str, *, folder: Path, path: str = os.environ["PATH"]) -> str:
    """Run commands after the functions of setup.sh, with the current directory in a copy."""
    (folder / "tools").mkdir(exist_ok=True)
    shutil.copy(ROOT / "tools" / "setup.sh", folder / "tools")
    command = ["/bin/bash", "-c", f"source tools/setup.sh; {script}", "tools/setup.sh"]
    done = subprocess.run(
        command, cwd=folder, env={"PATH": path}, capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("part", ASKED)
def test_each_part_installs_its_own_only(part: str, tmp_path: Path) -> None:
    """An operator who wants an image gets no browser and no emulator, but what carries it into a registry."""
    assert set(_sourced(f"{STEPS}{part}", folder=tmp_path).split()) == ASKED[part]


def test_the_heavy_tests_get_all_of_them(tmp_path: Path) -> None:
    """And what they alone need."""
    asked = set(_sourced(f"{STEPS}heavy", folder=tmp_path).split())
    assert asked == {"chromium", "prometheus", "qemu-system-x86", "linux-image-cloud-amd64"}.union(*ASKED.values())


@pytest.mark.parametrize(
    ("target", "parts"), [("image", {"image"}), ("lock", {"lock"}), ("test-arm64", {"image", "arm64", "machine"})]
)
def test_each_command_asks_for_its_parts(target: str, parts: set[str]) -> None:
    """Beside those of `make setup`."""
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    asked = {word for line in re.findall(r"tools/setup\.sh ([a-z_ 0-9]+)", done.stdout) for word in line.split()}
    assert asked - {"packages", "debian_packages", "beside", "venv"} == parts


def test_what_was_installed_is_written_down(tmp_path: Path) -> None:
    """With the packages that came along; the line that is printed says how they go again. An `apt-get` that installs two stands in."""
    programs = {
        "apt-get": 'case "$*" in install*) echo "debconf: a warning" >&2; touch installed;; esac',
        "dpkg-query": 'printf "ii bash\\n"; [ ! -e installed ] || printf "ii skopeo\\nii its-library\\nrc gone\\n"',
        "id": "echo 0",
        "ldconfig": "echo libnftables.so.1",
    }
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    script = "needed=(skopeo:/nowhere/skopeo); debian_packages"
    policy = Path("/usr/sbin/policy-rc.d").exists()
    printed = _sourced(script, folder=tmp_path, path=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert (tmp_path / ".debian-packages").read_text().split() == ["its-library", "skopeo"]
    assert printed.splitlines()[0] == "setup: installing skopeo"
    assert "apt-get remove $(cat .debian-packages)" in printed
    assert "debconf" not in printed
    assert Path("/usr/sbin/policy-rc.d").exists() == policy


def test_a_machine_without_go_is_told_once_and_calmly(tmp_path: Path) -> None:
    """It is no error: only tests of chained plugins need Go."""
    (tmp_path / "bin").mkdir()
    for name in ("dirname", "id"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    printed = _sourced("reference_plugins", folder=tmp_path, path=str(tmp_path / "bin"))
    assert printed == "setup: without Go, tests of chained plugins are skipped; nothing else needs it\n"
