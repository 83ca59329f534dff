"""tools/setup.sh: each command installs only what it needs, and what was installed is written down."""

from __future__ import annotations

import ast
import configparser
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEPS = """
debian_packages() { printf '%s\\n' "${needed[@]%%:*}"; }
python_tool() { echo $1; }
from_go() { echo $1; }
heavy_kubectl() { echo kubectl; }
axe() { echo axe-core; }
vlan_kernel() { echo linux-image-cloud-amd64; }
ldconfig() { :; }
lacks_ensurepip() { :; }
containerd() { echo containerd-$1; }
reference_plugins() { echo reference-plugins; }
in_venv() { echo $1; }
find() { :; }
timeout() { return 1; }
"""

COMPILER = {"gcc", "libc6-dev", "musl-tools", "xz-utils", "python3"}
LAB = {
    "containerd",
    "runc",
    "nftables",
    "iproute2",
    "util-linux",
    "mount",
    "containernetworking-plugins",
    "libnftables1",
    "python3-venv",
}
ASKED = {
    "for_plugin": COMPILER,
    "for_lab": COMPILER | LAB,
    "for_tests": COMPILER | LAB | {"systemd", "udev"},
    "beside": {"containerd-1.7", "containerd-2", "reference-plugins"},
    "venv": {"."},
    "venv_tests": {".[test]"},
    "cluster": COMPILER | LAB | {"containerd-2", "helm"},
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
        command,
        cwd=folder,
        env={"PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("part", ASKED)
def test_each_part_installs_its_own_only(part: str, tmp_path: Path) -> None:
    """An operator who wants an image gets no browser and no emulator, but what carries it into a registry."""
    assert set(_sourced(f"{STEPS}{part}", folder=tmp_path).split()) == ASKED[part]


def test_the_tour_names_what_each_command_installs(tmp_path: Path) -> None:
    """Every Debian package, and no other."""
    rows = re.findall(r"^\| `make (.*)` \| (.*) \|", (ROOT / "docs" / "tour.md").read_text(), re.M)
    told = {command: set(re.findall(r"(?<![\w`])[a-z][\w+-]*\d*(?![\w`])", text)) for command, text in rows}

    def asked(part: str) -> set[str]:
        return set(_sourced(f"{STEPS}python_tool() {{ :; }}; {part}", folder=tmp_path).split())

    heavy = asked("heavy") - {"axe-core", "kubectl", "helm", "kustomize", "linux-image-cloud-amd64"}
    for command, packages in {
        "demo`, `make chaos": asked("for_lab"),
        "test": asked("for_tests") - asked("for_lab"),
        "image": asked("image"),
        "test-all": asked("arm64") | heavy - asked("image"),
    }.items():
        assert packages <= told[command], command
        everything = asked("for_tests") | asked("arm64") | heavy
        assert told[command] & everything == packages, command


def test_a_python_with_ensurepip_needs_no_package_for_it(tmp_path: Path) -> None:
    """A Python of pyenv has it; a Python that is not there is nothing that this package would mend."""
    steps = STEPS.replace("lacks_ensurepip() { :; }\n", "")
    for python, is_asked in (("true", False), ("false", True), ("no-such-python", False)):
        asked = _sourced(f"{steps}python={python}; for_lab", folder=tmp_path).split()
        assert ("python3-venv" in asked) is is_asked, python


def test_the_heavy_tests_get_all_of_them(tmp_path: Path) -> None:
    """And what they alone need."""
    asked = set(_sourced(f"{STEPS}heavy", folder=tmp_path).split())
    parts = (ASKED[part] for part in ("image", "lock", "machine", "manifests"))
    assert asked == {"axe-core", "chromium", "prometheus", "qemu-system-x86", "secilc", "linux-image-cloud-amd64"}.union(*parts)


def test_axe_core_is_taken_by_its_hash(tmp_path: Path) -> None:
    """A wheel with another content is not unpacked, and a wheel that is there already is not asked for again."""
    script = """
    heavy_venv() { :; }
    mkdir -p build/heavy/venv/bin
    printf '#!/bin/bash\necho "$*" >>asked; [ "$2" != pip ]\n' >build/heavy/venv/bin/python
    chmod +x build/heavy/venv/bin/python
    axe 2>/dev/null
    [ ! -e build/heavy/axe ] || echo unpacked
    mkdir -p build/heavy/axe
    touch "build/heavy/axe/$axe_sha256"
    axe
    """
    assert _sourced(script, folder=tmp_path) == ""
    (asked,) = (tmp_path / "asked").read_text().splitlines()
    assert "--require-hashes" in asked


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("plugin", {"for_plugin"}),
        ("demo", {"for_lab", "for_plugin", "venv"}),
        ("chaos", {"for_lab", "for_plugin", "venv"}),
        ("setup", {"for_tests", "beside", "venv_tests"}),
        ("ready-for-tests", {"for_tests", "for_plugin", "beside", "venv_tests"}),
        ("image", {"for_plugin", "venv", "image"}),
        ("cluster", {"for_plugin", "venv", "image", "cluster"}),
        ("lock", {"lock"}),
        ("test-arm64", {"for_tests", "beside", "venv_tests", "for_plugin", "arm64", "image", "machine"}),
    ],
)
def test_each_command_asks_for_its_parts(target: str, parts: set[str], tmp_path: Path) -> None:
    """On a machine where nothing is there: what has checks and tests to run gets their tools, the others do not."""
    for name in ("Makefile", "setup.cfg", "pyproject.toml", "cni_plugin", "tools"):
        (tmp_path / name).symlink_to(ROOT / name)
    done = subprocess.run(["make", "-n", target], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    asked = {word for line in re.findall(r"tools/setup\.sh ([a-z_ 0-9]+)", done.stdout) for word in line.split()}
    assert asked == parts


def test_what_has_the_tools_of_the_tests_needs_no_other_set_up(tmp_path: Path) -> None:
    """After `make test` a demo installs nothing; after a demo `make test` gets what is missing."""
    for name in ("Makefile", "setup.cfg", "pyproject.toml", "cni_plugin", "tools"):
        (tmp_path / name).symlink_to(ROOT / name)
    for there, target, is_asked in (
        (".runs .tests", "demo", False),
        (".runs", "demo", False),
        (".runs", "ready-for-tests", True),
    ):
        shutil.rmtree(tmp_path / ".venv", ignore_errors=True)
        (tmp_path / ".venv").mkdir()
        for stamp in there.split():
            (tmp_path / ".venv" / stamp).touch()
        done = subprocess.run(["make", "-n", target], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
        assert bool(re.search(r"setup\.sh .*venv", done.stdout)) is is_asked, (there, target)


def _needed_by(distributions: set[str]) -> set[str]:
    """These, and all that they require on this machine."""
    found, left = set[str](), set(distributions)
    while left:
        found.add(name := left.pop())
        lines = [line for line in metadata.requires(name) or () if not re.search("extra ==|platform_system", line)]
        left |= {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for line in lines} - found
    return found


def _imported(folder: str) -> set[str]:
    """Top-level names that a folder's files import from elsewhere."""
    names = set[str]()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names)


@pytest.mark.parametrize("folder", ["ipamd", "kubectl_ipamd", "lab"])
def test_daemon_and_lab_import_nothing_of_the_tests(folder: str) -> None:
    """`make demo`, `make chaos` and `make cluster` run on what an installed daemon needs."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    required = {re.split(r"[ <>=]", line)[0] for line in settings["options"]["install_requires"].split("\n") if line}
    there = _needed_by({name.lower().replace("_", "-") for name in required})
    names = {
        module: {one.lower().replace("_", "-") for one in ones} for module, ones in metadata.packages_distributions().items()
    }
    ours = {"ipamd", "lab", "cni_plugin", "kubectl_ipamd"}
    assert {module for module in _imported(folder) - ours if not names.get(module, set()) & there} == set()


def test_what_was_installed_is_written_down(tmp_path: Path) -> None:
    """With the packages that came along; the line that is printed says how they go again. An `apt-get` that installs two stands in."""
    programs = {
        "apt-get": 'case "$*" in install*) echo "debconf: a warning" >&2; touch installed;; esac',
        "dpkg-query": 'printf "ii bash\\n"; [ ! -e installed ] || printf "ii skopeo\\nii its-library\\nrc gone\\n"',
        "id": "echo 0",
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
