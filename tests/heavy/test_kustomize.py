"""Base and overlays rendered by kustomize 5, and by a kubectl of the machine if it has one; the results validated."""

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
from ipamd.settings import load
from tests.heavy.tools import KUSTOMIZE, needs
from tests.network_files import custom_of
from tests.unit.manifests.manifest import MANIFESTS, documents
from tests.unit.manifests.test_kubernetes_schemas import OF_OPERATORS, SINCE, VERSIONS, validate

pytestmark = needs("kustomize")

RENDERERS = {"kustomize": [str(KUSTOMIZE), "build"], "kubectl": [shutil.which("kubectl") or "", "kustomize"]}
FOLDERS = [
    "base",
    "sweeper",
    "inventory",
    "monitoring",
    *(f"overlays/{path.name}" for path in sorted((MANIFESTS / "overlays").iterdir())),
]


@functools.cache
def _rendered(which: str, folder: str) -> str:
    if not RENDERERS[which][0]:
        pytest.skip("no kubectl on this machine")
    done = subprocess.run([*RENDERERS[which], str(MANIFESTS / folder)], check=True, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""  # what is deprecated is said there
    return done.stdout


def _objects(which: str, folder: str) -> dict[str, dict[str, Any]]:
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in yaml.safe_load_all(_rendered(which, folder))}


def _pod(folder: str) -> dict[str, Any]:
    spec: dict[str, Any] = _objects("kustomize", folder)["DaemonSet/vpc-ipamd"]["spec"]["template"]["spec"]
    return spec


def _environment(folder: str) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in _pod(folder)["containers"][0]["env"]}


def test_which_version_this_is() -> None:
    """The page names it, and the oldest kubectl whose kustomize knows the words of today."""
    done = subprocess.run([str(KUSTOMIZE), "version"], capture_output=True, text=True, check=True)
    found = re.match(r"v(\d+\.\d+)", done.stdout)
    assert found
    assert f"kustomize {found[1]} (kubectl 1.21 and later" in (MANIFESTS / "README.md").read_text()


@pytest.mark.parametrize("which", RENDERERS)
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
def test_both_agree(folder: str) -> None:
    """The same objects, whoever renders them."""
    assert _objects("kustomize", folder) == _objects("kubectl", folder)


@pytest.mark.parametrize("folder", ["base", "overlays/containerd"])
def test_base_and_containerd_change_nothing(folder: str) -> None:
    """What the other tests say of base/daemonset.yaml holds for what is applied."""
    assert _objects("kustomize", folder) == {f"{one['kind']}/{one['metadata']['name']}": one for one in documents()}


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder.startswith("overlays/")])
def test_the_daemon_takes_the_settings_of_each_overlay(folder: str, tmp_path: Path) -> None:
    """No variable is set twice, and what is set is valid together, with the settings file of the ConfigMap where there is one."""
    names = [entry["name"] for entry in _pod(folder)["containers"][0]["env"]]
    assert len(names) == len(set(names))
    environment = _environment(folder)
    if "VPC_IPAMD_SETTINGS_FILE" in environment:
        file = tmp_path / Path(environment["VPC_IPAMD_SETTINGS_FILE"]).name
        file.write_text(_objects("kustomize", folder)["ConfigMap/vpc-ipamd-settings"]["data"][file.name])
        environment["VPC_IPAMD_SETTINGS_FILE"] = str(file)
    load(environment)


def test_crio() -> None:
    """Socket, mount and volume are CRI-O's, and nothing of containerd is left."""
    assert "containerd" not in json.dumps(_pod("overlays/crio"))
    assert _environment("overlays/crio")["VPC_IPAMD_CRI_SOCKET"] == "/run/crio/crio.sock"
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
    assert (network.family, network.extra_family) == (IPV6, IPV4)
    (init,) = _pod("overlays/ipv6")["initContainers"]
    told = {entry["name"]: entry["value"] for entry in init["env"]}
    assert told == {"ENABLE_IPv6": "true", "ENABLE_V6_EGRESS": "false", "DISABLE_TCP_EARLY_DEMUX": "false"}


@pytest.mark.parametrize("facts", ["annotations", "kubelet"])
def test_security_groups_for_pods(facts: str) -> None:
    """The daemon serves such pods by either source, and kubelet's directory is mounted only where kubelet is asked."""
    folder = "overlays/pod-eni" + "-kubelet" * (facts == "kubelet")
    settings, pod = load(_environment(folder)), _pod(folder)
    assert (settings.network.enforcing_mode, settings.pod_facts.source) == ("strict", facts)
    assert settings.network.early_demux_disabled
    assert {"name": "DISABLE_TCP_EARLY_DEMUX", "value": "true"} in pod["initContainers"][0]["env"]
    volumes = [one["hostPath"]["path"] for one in pod["volumes"] if one["name"] == "kubelet-pods"]
    assert volumes == ([str(Path(settings.pod_facts.kubelet_socket).parent)] if facts == "kubelet" else [])


def test_the_policies_of_the_cluster() -> None:
    """Two with a binding each, of no namespace."""
    found = _objects("kustomize", "pod-eni")
    assert {one["kind"] for one in found.values()} == {*SINCE, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    for document in found.values():
        assert "namespace" not in document["metadata"]
        validate(document, VERSIONS[-1])


def test_custom_networking() -> None:
    """The ConfigMap has the name that the DaemonSet mounts, and a file that the daemon takes."""
    found = _objects("kustomize", "overlays/custom-networking")
    (volume,) = [one for one in _pod("overlays/custom-networking")["volumes"] if one["name"] == "network"]
    data = found[f"ConfigMap/{volume['configMap']['name']}"]["data"]
    settings = load(_environment("overlays/custom-networking"))
    assert settings.subnets.custom_networking
    assert custom_of(data[settings.subnets.network_file.name], source="the ConfigMap").zones


def test_the_dashboards_are_found_by_their_label() -> None:
    """Grafana's sidecar looks for it."""
    found = _objects("kustomize", "monitoring")["ConfigMap/vpc-ipamd-dashboard"]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {json.loads(text)["uid"] for text in found["data"].values()} == {"vpc-ipamd-fleet", "vpc-ipamd-node"}
