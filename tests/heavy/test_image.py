"""The image: built twice to the same bytes, of known content and size, and its own file system runs the DaemonSet's container."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipamd.settings import Settings
from lab.lab import Lab, missing_requirements
from lab.node.node import Node
from lab.node.process import NodeProcess
from tests.heavy.tools import ROOT, needs, unpacked
from tests.rig import wait_until
from tests.unit.manifests import bundle
from tests.unit.manifests.manifest import container, environment, init_container
from tests.unit.manifests.test_locks import DAEMON
from tools.image_contents import Archive, lines_of

pytestmark = [
    needs("buildah", "mmdebstrap", "cyclonedx-py", "runc", root=True),
    pytest.mark.skipif(not (ROOT / "build" / "vpc-cni").exists(), reason="no build/vpc-cni: `make plugin` builds it"),
    pytest.mark.timeout(900),  # the base alone takes a minute on an idle machine
]

OUT = ROOT / "build" / "image"
ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
ARCHIVE = OUT / f"vpc-ipamd-{ARCH}.tar"  # the other architecture's may lie beside it
SIZE_MAX_MB = 120
REFERENCE_PLUGINS = ("loopback", "portmap", "bandwidth", "tuning", "LICENCES")
LOG = "/var/log/ipamd-container.log"


def _build(*steps: str) -> None:
    done = subprocess.run([str(ROOT / "tools" / "image.sh"), *steps], capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """The image of this checkout, built as `make image` does."""
    _build("context", "base", "build", "sbom")
    kept = tmp_path_factory.mktemp("image") / "first.tar"
    shutil.copy(ARCHIVE, kept)
    return Archive(kept)


@pytest.fixture(scope="module")
def lines(archive: Archive) -> dict[str, str]:
    """Path -> mode, owner, size, time and hash."""
    return lines_of(archive)


@pytest.fixture(scope="module")
def rootfs(archive: Archive) -> Iterator[Path]:
    """Its content, where a lab node sees it too: outside of /run, /etc, /opt, /var, which are the node's own."""
    with unpacked(archive, "rootfs") as folder:
        yield folder


def test_two_builds_are_the_same(archive: Archive, lines: dict[str, str]) -> None:
    """The same digest, so the same bytes; or the lists say which file differs."""
    _build("build")
    second = Archive(ARCHIVE)
    if second.digest != archive.digest:
        assert {path for path, line in lines_of(second).items() if lines.get(path) != line} == set()
    assert second.digest == archive.digest


def test_size(archive: Archive) -> None:
    """As a registry keeps it and a node pulls it."""
    assert archive.compressed_bytes < SIZE_MAX_MB * 1e6


def test_contents(lines: dict[str, str]) -> None:
    """Daemon, all plugins, node-init and licences; no compiler, package manager, pip or test, no data of botocore."""
    paths = set(lines)
    wanted = {
        "/opt/ipamd/bin/ipamd",
        "/opt/ipamd/bin/ipamctl",
        "/opt/ipamd/bin/vpc-ipamd-sweeper",
        "/opt/ipamd/bin/vpc-ipamd-inventory",
    }
    wanted |= {f"/opt/vpc-ipamd/{name}" for name in ("vpc-cni", "vpc-cni-interpreted", "vpc-cni.licences", "node-init")}
    wanted |= {f"{Settings().daemon.reference_plugins}/{name}" for name in REFERENCE_PLUGINS}
    assert wanted <= paths
    assert init_container()["command"][0] in paths
    assert init_container()["command"][1] in paths
    unwanted = re.compile(
        r"/bin/(apt|apt-get|gcc|cc|pip|pip3|curl|wget)$|/site-packages/(pip|setuptools|lab|tests|bench|fuzz|botocore/data)/"
    )
    assert [path for path in paths if unwanted.search(path)] == []
    assert any(path.endswith("/ipamd/cloud/data/manifest.json") for path in paths)
    assert any(path.endswith("/ipamd/cloud/inventory_data/manifest.json") for path in paths)
    sources = {path.removesuffix(".py") for path in paths if re.match(r"(/opt/ipamd/lib|/usr/lib)/python3.11/.*[.]py$", path)}
    compiled = {path for path in paths if path.startswith("/opt/ipamd/bytecode/")}
    lacking = {path for path in sources if f"/opt/ipamd/bytecode{path}.cpython-311.opt-2.pyc" not in compiled}
    assert lacking == set(), "it would be compiled at each start"


def test_times_and_owners(archive: Archive, lines: dict[str, str]) -> None:
    """No file is newer than the image's one time, and all are root's or a system group's."""
    assert archive.config["created"] == "2026-01-01T00:00:00Z"
    for path, line in lines.items():
        if " sha256:" in line:
            assert int(line.split()[3]) <= 1767225600, path
            assert line.split()[1].startswith("0:"), path


def test_the_list_names_every_file(archive: Archive, lines: dict[str, str]) -> None:
    """build/image/contents-ARCH.txt: digest, base by digest, platform, sizes, then path, mode, owner, size, time, hash."""
    (listed,) = [path.read_text() for path in OUT.glob(f"contents-{archive.config['architecture']}.txt")]
    assert re.search(r"^base +localhost/vpc-ipamd-base@sha256:[0-9a-f]{64}$", listed, re.M)
    assert f"digest      {archive.digest}" in listed
    assert len(listed.split("\n\n", 1)[1].splitlines()) == len(lines)


def test_bill_of_materials(archive: Archive, rootfs: Path) -> None:
    """CycloneDX; the Python packages of the lock in their locked versions, this one, and every Debian package."""
    bom: dict[str, Any] = json.loads((ROOT / "build" / "sbom.json").read_text())
    assert bom["bomFormat"] == "CycloneDX"
    purls = {component["purl"].partition("?")[0] for component in bom["components"]}
    python = {purl.removeprefix("pkg:pypi/") for purl in purls if purl.startswith("pkg:pypi/")}
    assert python == {f"{name}@{version}" for name, (version, _) in DAEMON.items()} | {"vpc-ipamd@0.1.0"}
    installed = re.findall(r"^Package: (\S+)$", (rootfs / "var/lib/dpkg/status").read_text(), re.M)
    assert {
        purl.removeprefix("pkg:deb/debian/").partition("@")[0] for purl in purls - {f"pkg:pypi/{one}" for one in python}
    } == set(installed)


@pytest.mark.skipif(bool(missing_requirements(containerd=True)), reason=missing_requirements(containerd=True) or "-")
def test_the_image_serves_a_node(archive: Archive, rootfs: Path) -> None:
    """Init container and container of the DaemonSet on the image's own file system: a sandbox gets an address."""
    with Lab(name=f"image-{os.getpid()}", nodes=["node-a"]) as lab:
        node = lab.node("node-a")
        # The init container is privileged and on the host's network, so it is run as it is, with the image's files.
        node.run(["mkdir", "-p", "/opt/cni/bin"])
        node.run(["test", "!", "-e", "/opt/cni/bin/portmap"])
        script, plugin, _ = init_container()["command"]
        node.run([f"{rootfs}{script}", f"{rootfs}{plugin}", "/opt/cni/bin"])
        variables = dict(entry.split("=", 1) for entry in archive.config["config"]["Env"])
        variables |= node.daemon_environment("us-west-2") | environment()
        assert "command" not in container()
        process = bundle.start(
            node,
            argv=archive.config["config"]["Entrypoint"],
            environment=variables,
            capabilities=container()["securityContext"]["capabilities"]["add"],
            rootfs=str(rootfs),
            log=LOG,
        )
        try:
            wait_until(lambda: _status(node).returncode == 0 or process.poll() is not None, what="ready")
            assert process.poll() is None, node.run(["tail", "-n", "20", LOG], check=False).stdout
            sandbox = node.cri.run_sandbox("probe")
            assert node.cri.status(sandbox).address
            conflist = json.loads(node.run(["cat", environment()["VPC_IPAMD_CONFLIST_FILE"]]).stdout)
            assert [each["type"] for each in conflist["plugins"]] == ["vpc-cni", "portmap"]
            node.run(["test", "-x", "/opt/cni/bin/portmap"])  # the image's: the node had none
            assert node.run(["runc", "exec", "ipamd", "ipamctl", "audit"]).returncode == 0
            node.cri.stop(sandbox)
            node.cri.remove(sandbox)
            assert _memory_mib(node, process) < 100
        finally:
            bundle.remove(node, process)


def _status(node: Node) -> subprocess.CompletedProcess[str]:
    return node.run(["runc", "exec", "ipamd", "ipamctl", "status"], check=False)


def _memory_mib(node: Node, process: NodeProcess) -> float:
    """Resident memory of the daemon; its start on an empty node is less than the budget of a full one."""
    assert process.poll() is None
    pid = min(json.loads(node.run(["runc", "ps", "--format", "json", "ipamd"]).stdout))  # what asks EC2 was started later
    status = node.run(["cat", f"/proc/{pid}/status"]).stdout
    (kib,) = re.findall(r"^VmRSS:\s+(\d+) kB", status, re.M)
    return int(kib) / 1024
