"""Wheel and image contain the daemon and the plugin, and no lab, benchmark or test."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.unit.manifests import dockerfile
from tests.unit.manifests.manifest import MANIFESTS, ROOT

SHIPPED = {"ipamd", "cni_plugin"}
LIST_WHEEL = """
import json, setuptools
distribution = setuptools.Distribution({"script_name": "setup.py"})
distribution.parse_config_files(["setup.cfg"])
distribution.include_package_data = False  # it would write an egg-info directory; package_data is listed all the same
command = distribution.get_command_obj("build_py")
command.ensure_finalized()
data = [f"{folder}/{name}" for _, folder, _, names in command.data_files for name in names]
print(json.dumps({"files": [file for _, _, file in command.find_all_modules()] + data, "scripts": distribution.entry_points}))
"""


def test_the_wheel_holds_daemon_and_plugin_only() -> None:
    """Every file that setuptools would put into the wheel is of one of the two packages, and so is every command."""
    done = subprocess.run([sys.executable, "-c", LIST_WHEEL], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    listed = json.loads(done.stdout)
    assert {file.split("/")[0] for file in listed["files"]} == SHIPPED
    assert "ipamd/daemon.py" in listed["files"]
    commands = [line.split("=")[1].strip() for line in listed["scripts"]["console_scripts"]]
    assert {command.split(".")[0] for command in commands} == SHIPPED


def test_the_image_holds_daemon_and_plugin_only() -> None:
    """The recipe copies no other package of the repository, and the build is sent none."""
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - SHIPPED == {"bench", "fuzz", "kubectl_ipamd", "lab", "tests"}
    copied = [each.text.split() for each in dockerfile.read(MANIFESTS / "Dockerfile") if each.name == "COPY"]
    sources = {word for words in copied if not words[0].startswith("--from=") for word in words[:-1]}
    sent = {line[1:] for line in (MANIFESTS / "Dockerfile.dockerignore").read_text().split() if line.startswith("!")}
    assert sources & packages == SHIPPED
    assert {path.split("/")[0] for path in sent} & packages == SHIPPED
