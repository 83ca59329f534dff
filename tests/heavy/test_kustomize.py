"""Base and overlays rendered by the kustomize of Debian's kubectl, and by another one if the machine has it; the results validated."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ipamd.model.family import IPV4, IPV6
from ipamd.model.subnets import parse
from ipamd.settings import load
from tests.heavy.tools import DEBIANS_KUBECTL, needs
from tests.unit.manifests.manifest import MANIFESTS, documents
from tests.unit.manifests.test_kubernetes_schemas import OF_OPERATORS, VERSIONS, validate

pytestmark = needs("kubectl")

KUBECTLS = {"debian": str(DEBIANS_KUBECTL), "machine": shutil.which("kubectl") or ""}
FOLDERS = ["base", "sweeper", "monitoring", *(f"overlays/{path.name}" for path in sorted((MANIFESTS / "overlays").iterdir()))]


@functools.cache
def _rendered(which: str, folder: str) -> str:
    if not KUBECTLS[which]:
        pytest.skip("no other kubectl on this machine")
    command = [KUBECTLS[which], "kustomize", str(MANIFESTS / folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def _objects(which: str, folder: str) -> dict[str, dict[str, Any]]:
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in yaml.safe_load_all(_rendered(which, folder))}


def _pod(folder: str) -> dict[str, Any]:
    spec: dict[str, Any] = _objects("debian", folder)["DaemonSet/vpc-ipamd"]["spec"]["template"]["spec"]
    return spec


def _environment(folder: str) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in _pod(folder)["containers"][0]["env"]}


def test_which_version_this_is() -> None:
    """Debian 12's kubectl is 1.20, with kustomize 2.0: the overlays use no newer word. The pages name it."""
    done = subprocess.run([KUBECTLS["debian"], "version", "--client", "--short"], capture_output=True, text=True, check=True)
    found = re.search(r"v(\d+\.\d+)", done.stdout)
    assert found
    for page in (MANIFESTS / "README.md", MANIFESTS.parent / "docs" / "install.md"):
        assert f"kubectl {found[1]}" in page.read_text()


@pytest.mark.parametrize("which", KUBECTLS)
@pytest.mark.parametrize("folder", FOLDERS)
def test_it_renders_what_kubernetes_knows(which: str, folder: str) -> None:
    """Every object of every folder, in the namespace of the system, strictly validated."""
    found = _objects(which, folder)
    assert found
    for document in found.values():
        assert document["metadata"]["namespace"] == "kube-system"
        if document["kind"] not in OF_OPERATORS:
            for version in VERSIONS:
                validate(document, version)


@pytest.mark.parametrize("folder", FOLDERS)
def test_old_and_new_kustomize_agree(folder: str) -> None:
    """The same objects, whoever renders them."""
    assert _objects("debian", folder) == _objects("machine", folder)


@pytest.mark.parametrize("folder", ["base", "overlays/containerd"])
def test_base_and_containerd_change_nothing(folder: str) -> None:
    """What the other tests say of base/daemonset.yaml holds for what is applied."""
    assert _objects("debian", folder) == {f"{one['kind']}/{one['metadata']['name']}": one for one in documents()}


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder.startswith("overlays/")])
def test_the_daemon_takes_the_settings_of_each_overlay(folder: str, tmp_path: Path) -> None:
    """No variable is set twice, and what is set is valid together, with the settings file of the ConfigMap where there is one."""
    names = [entry["name"] for entry in _pod(folder)["containers"][0]["env"]]
    assert len(names) == len(set(names))
    environment = _environment(folder)
    if "VPC_IPAMD_SETTINGS_FILE" in environment:
        file = tmp_path / Path(environment["VPC_IPAMD_SETTINGS_FILE"]).name
        file.write_text(_objects("debian", folder)["ConfigMap/vpc-ipamd-settings"]["data"][file.name])
        environment["VPC_IPAMD_SETTINGS_FILE"] = str(file)
    load(environment)


def test_crio() -> None:
    """Socket, mount and volume are CRI-O's, and nothing of containerd is left."""
    assert "containerd" not in json.dumps(_pod("overlays/crio"))
    assert _environment("overlays/crio")["CRI_SOCKET"] == "/run/crio/crio.sock"
    (mount,) = [one for one in _pod("overlays/crio")["containers"][0]["volumeMounts"] if one["mountPath"] == "/run/crio"]
    assert mount == {"name": "crio", "mountPath": "/run/crio", "readOnly": True, "mountPropagation": "HostToContainer"}
    (volume,) = [one for one in _pod("overlays/crio")["volumes"] if one["name"] == "crio"]
    assert volume["hostPath"] == {"path": "/run/crio", "type": "Directory"}
    assert len(_pod("overlays/crio")["volumes"]) == len(_pod("base")["volumes"])


def test_prefix_mode() -> None:
    """The daemon takes /28s, and keeps one free."""
    targets = load(_environment("overlays/prefix-mode")).pool
    assert targets.prefix_delegation
    assert targets.warm_prefix_target == 1


def test_ipv6() -> None:
    """The daemon gives IPv6 addresses, and one for egress of IPv4; the init container turns the same on in the kernel."""
    network = load(_environment("overlays/ipv6")).network
    assert (network.family, network.egress) == (IPV6, IPV4)
    (init,) = _pod("overlays/ipv6")["initContainers"]
    told = {entry["name"]: entry["value"] for entry in init["env"]}
    assert told == {"ENABLE_IPv6": "true", "ENABLE_V6_EGRESS": "false"}


def test_custom_networking() -> None:
    """The ConfigMap has the name that the DaemonSet mounts, and a file that the daemon takes."""
    found = _objects("debian", "overlays/custom-networking")
    (volume,) = [one for one in _pod("overlays/custom-networking")["volumes"] if one["name"] == "network"]
    data = found[f"ConfigMap/{volume['configMap']['name']}"]["data"]
    settings = load(_environment("overlays/custom-networking"))
    assert settings.subnets.custom_networking
    assert parse(data[settings.subnets.network_file.name], source="the ConfigMap").zones


def test_the_dashboard_is_found_by_its_label() -> None:
    """Grafana's sidecar looks for it."""
    found = _objects("debian", "monitoring")["ConfigMap/vpc-ipamd-dashboard"]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["data"]["dashboard.json"])["uid"] == "vpc-ipamd"
