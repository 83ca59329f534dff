"""The chart rendered by helm: with its defaults it is the base, and every value arrives where it belongs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ipamd.model.family import IPV4, IPV6
from ipamd.model.subnets import parse
from ipamd.settings import load
from tests.heavy.tools import HELM, needs
from tests.unit.manifests.manifest import MANIFESTS, documents
from tests.unit.manifests.test_kubernetes_schemas import VERSIONS, validate

pytestmark = needs("helm")

CHART = MANIFESTS / "chart"
NETWORK = json.loads((MANIFESTS / "overlays" / "custom-networking" / "network.json").read_text())


def _helm(*words: str, values: dict[str, Any] | None = None, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "values.json"
    file.write_text(json.dumps(values or {}))
    command = [str(HELM), *words, "--namespace", "kube-system", "--values", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={"HOME": str(folder)})


def _rendered(folder: Path, values: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    done = _helm("template", "vpc-ipamd", str(CHART), values=values, folder=folder)
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    for document in found:
        validate(document, VERSIONS[-1])
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def _environment(daemonset: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in daemonset["spec"]["template"]["spec"]["containers"][0]["env"]}


def test_the_defaults_are_the_base(tmp_path: Path) -> None:
    """Object for object, field for field."""
    assert list(_rendered(tmp_path).values()) == documents()


def test_lint(tmp_path: Path) -> None:
    """No error of helm's own."""
    done = _helm("lint", str(CHART), folder=tmp_path)
    assert done.returncode == 0, done.stdout


def test_the_sweeper_is_that_of_the_manifest(tmp_path: Path) -> None:
    """With its three names filled in."""
    values = {"clusterName": "prod", "sweeper": {"enabled": True, "vpcId": "vpc-0a1b", "region": "us-west-2"}}
    text = (MANIFESTS / "sweeper" / "sweeper.yaml").read_text()
    for placeholder, value in (("CLUSTER}", "prod}"), ("VPC}", "vpc-0a1b}"), ("REGION}", "us-west-2}")):
        text = text.replace(f"value: {placeholder}", f"value: {value}")
    found = _rendered(tmp_path, values)
    for wanted in yaml.safe_load_all(text):
        assert found[f"{wanted['kind']}/{wanted['metadata']['name']}"] == wanted


def test_every_value_arrives(tmp_path: Path) -> None:
    """Image by digest, runtime, settings, nodes, network; and the daemon takes what comes out."""
    digest = "sha256:" + "0" * 64
    values = {
        "image": {"repository": "registry.example/vpc-ipamd", "digest": digest},
        "clusterName": "prod",
        "runtime": {"socket": "/run/crio/crio.sock"},
        "portmap": "false",
        "settings": {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "1"},
        "network": NETWORK,
        "nodeMatchExpressions": [{"key": "vpc-ipamd", "operator": "Exists"}],
        "maxUnavailable": 1,
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}},
        "resources": {"requests": {"cpu": "50m"}},
    }
    found = _rendered(tmp_path, values)
    daemonset, account = found["DaemonSet/vpc-ipamd"], found["ServiceAccount/vpc-ipamd"]
    pod = daemonset["spec"]["template"]["spec"]
    images = {one["image"] for one in pod["containers"] + pod["initContainers"]}
    assert images == {f"registry.example/vpc-ipamd@{digest}"}
    settings = load(_environment(daemonset))
    assert settings.runtime.cri_socket == "/run/crio/crio.sock"
    assert settings.pool.prefix_delegation
    assert settings.subnets.custom_networking
    assert _environment(daemonset)["CLUSTER_NAME"] == "prod"
    assert _environment(daemonset)["ENABLE_PORTMAP_PLUGIN"] == "false"
    assert "/run/containerd" not in json.dumps(pod)
    assert daemonset["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 1
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {"key": "vpc-ipamd", "operator": "Exists"} in term["matchExpressions"]
    assert len(term["matchExpressions"]) == 4
    assert account["metadata"]["annotations"] == values["serviceAccount"]["annotations"]  # type: ignore[index]
    assert pod["containers"][0]["resources"]["requests"]["cpu"] == "50m"
    assert parse(found["ConfigMap/vpc-ipamd-network"]["data"]["network.json"], source="the ConfigMap").zones


def test_ipv6_is_turned_on_in_both_containers(tmp_path: Path) -> None:
    """Two settings are the init container's too: what it sets in the kernel the daemon cannot."""
    values = {"settings": {"ENABLE_IPv4": "false", "ENABLE_IPv6": "true", "ENABLE_V4_EGRESS": "true"}}
    daemonset = _rendered(tmp_path, values)["DaemonSet/vpc-ipamd"]
    (init,) = daemonset["spec"]["template"]["spec"]["initContainers"]
    assert {one["name"]: one["value"] for one in init["env"]} == {"ENABLE_IPv6": "true", "ENABLE_V6_EGRESS": "false"}
    network = load(_environment(daemonset)).network
    assert (network.family, network.egress) == (IPV6, IPV4)


@pytest.mark.parametrize("values", [{"clustername": "prod"}, {"sweeper": {"enabled": True}}, {"settings": {"X": 1}}])
def test_helm_refuses_what_the_schema_refuses(tmp_path: Path, values: dict[str, Any]) -> None:
    """Before anything is rendered."""
    done = _helm("template", "vpc-ipamd", str(CHART), values=values, folder=tmp_path)
    assert done.returncode != 0
    assert "don't meet the specifications of the schema" in done.stderr
