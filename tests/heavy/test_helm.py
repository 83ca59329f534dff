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
from ipamd.settings import Settings, load
from tests.heavy.tools import HELM, needs
from tests.unit.manifests.manifest import MANIFESTS, documents
from tests.unit.manifests.monitoring import DASHBOARDS
from tests.unit.manifests.test_kubernetes_schemas import OF_OPERATORS, VERSIONS, validate

pytestmark = needs("helm")

CHART = MANIFESTS / "chart"
NETWORK = json.loads((MANIFESTS / "overlays" / "custom-networking" / "network.json").read_text())


def _helm(*words: str, values: dict[str, Any] | None = None, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "values.json"
    file.write_text(json.dumps(values or {}))
    command = [str(HELM), *words, "--namespace", "kube-system", "--values", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env={"HOME": str(folder)})


def _rendered(folder: Path, values: dict[str, Any] | None = None, *, release: str = "vpc-ipamd") -> dict[str, dict[str, Any]]:
    done = _helm("template", release, str(CHART), values=values, folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    for document in found:
        if document["kind"] not in OF_OPERATORS:
            for version in VERSIONS:
                validate(document, version)
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def _variables(daemonset: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in daemonset["spec"]["template"]["spec"]["containers"][0]["env"]}


def _settings(found: dict[str, dict[str, Any]], folder: Path, *, name: str = "vpc-ipamd") -> Settings:
    """What the daemon makes of its variables and of the file in its mount; the mount is a directory, which kubelet updates."""
    daemonset = found[f"DaemonSet/{name}"]
    pod, environment = daemonset["spec"]["template"]["spec"], _variables(daemonset)
    if "VPC_IPAMD_SETTINGS_FILE" in environment:
        path = Path(environment["VPC_IPAMD_SETTINGS_FILE"])
        (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["mountPath"] == str(path.parent)]
        assert mount == {"name": mount["name"], "mountPath": str(path.parent), "readOnly": True}
        (volume,) = [one for one in pod["volumes"] if one["name"] == mount["name"]]
        file = folder / path.name
        file.write_text(found[f"ConfigMap/{volume['configMap']['name']}"]["data"][path.name])
        environment["VPC_IPAMD_SETTINGS_FILE"] = str(file)
    return load(environment)


def test_the_defaults_are_the_base(tmp_path: Path) -> None:
    """Object for object, field for field, once the settings file is taken away."""
    found = _rendered(tmp_path, {"hotReload": False})
    assert list(found.values()) == documents()
    with_file = _rendered(tmp_path)
    assert set(with_file) - set(found) == {"ConfigMap/vpc-ipamd-settings"}
    assert _settings(with_file, tmp_path).pool == Settings().pool


def test_settings_change_without_a_roll(tmp_path: Path) -> None:
    """With another value the ConfigMap differs and the DaemonSet does not; as variables it is the other way round. The daemon reads
    the same of both."""
    values = {"WARM_IP_TARGET": "5", "ADDITIONAL_ENI_TAGS": '{"team": "blue # 1"}', "AWS_VPC_K8S_CNI_EXTERNALSNAT": "true"}
    before, after = _rendered(tmp_path), _rendered(tmp_path, {"settings": values})
    assert before["DaemonSet/vpc-ipamd"] == after["DaemonSet/vpc-ipamd"]
    assert before["ConfigMap/vpc-ipamd-settings"] != after["ConfigMap/vpc-ipamd-settings"]
    as_variables = _rendered(tmp_path, {"settings": values, "hotReload": False})
    assert "ConfigMap/vpc-ipamd-settings" not in as_variables
    of_file, of_variables = _settings(after, tmp_path), _settings(as_variables, tmp_path)
    assert of_file.pool == of_variables.pool
    assert of_file.pool.warm_ip_target == 5
    assert of_file.network == of_variables.network


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"hotReload": False, "clusterName": "prod", "nodeSelector": {"group": "gpu"}},
        {"podMonitor": {"enabled": True}, "rules": {"enabled": True}, "dashboard": {"enabled": True}},
    ],
)
def test_lint(tmp_path: Path, values: dict[str, Any]) -> None:
    """No error of helm's own, in the notes neither."""
    done = _helm("lint", "--strict", str(CHART), values=values, folder=tmp_path)
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
        "networkPolicy": "strict",
        "settings": {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "1"},
        "network": NETWORK,
        "nodeMatchExpressions": [{"key": "vpc-ipamd", "operator": "Exists"}],
        "updateStrategy": {"maxUnavailable": 1},
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}},
        "resources": {"requests": {"cpu": "50m"}},
        "initResources": {"requests": {"cpu": "10m"}},
        "extraEnv": [{"name": "AWS_REGION", "value": "eu-west-1"}],
    }
    found = _rendered(tmp_path, values)
    daemonset, account = found["DaemonSet/vpc-ipamd"], found["ServiceAccount/vpc-ipamd"]
    pod = daemonset["spec"]["template"]["spec"]
    images = {one["image"] for one in pod["containers"] + pod["initContainers"]}
    assert images == {f"registry.example/vpc-ipamd@{digest}"}
    settings = _settings(found, tmp_path)
    assert settings.runtime.cri_socket == "/run/crio/crio.sock"
    assert settings.pool.prefix_delegation
    assert settings.subnets.custom_networking
    assert (settings.policy.mode, settings.network.pod_veth_names) == ("strict", True)
    assert _variables(daemonset)["CLUSTER_NAME"] == "prod"
    assert _variables(daemonset)["VPC_IPAMD_ENABLE_PORTMAP_PLUGIN"] == "false"
    assert "/run/containerd" not in json.dumps(pod)
    assert daemonset["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 1
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {"key": "vpc-ipamd", "operator": "Exists"} in term["matchExpressions"]
    assert len(term["matchExpressions"]) == 4
    assert account["metadata"]["annotations"] == values["serviceAccount"]["annotations"]  # type: ignore[index]
    assert pod["containers"][0]["resources"]["requests"]["cpu"] == "50m"
    assert pod["initContainers"][0]["resources"]["requests"]["cpu"] == "10m"
    assert _variables(daemonset)["AWS_REGION"] == "eu-west-1"
    assert parse(found["ConfigMap/vpc-ipamd-network"]["data"]["network.json"], source="the ConfigMap").zones


def test_ipv6_is_turned_on_in_both_containers(tmp_path: Path) -> None:
    """Two settings are the init container's too: what it sets in the kernel the daemon cannot."""
    values = {"settings": {"ENABLE_IPv4": "false", "ENABLE_IPv6": "true", "ENABLE_V4_EGRESS": "true"}}
    daemonset = _rendered(tmp_path, values)["DaemonSet/vpc-ipamd"]
    (init,) = daemonset["spec"]["template"]["spec"]["initContainers"]
    wanted = {"ENABLE_IPv6": "true", "ENABLE_V6_EGRESS": "false", "DISABLE_TCP_EARLY_DEMUX": "false"}
    assert {one["name"]: one["value"] for one in init["env"]} == wanted
    network = _settings(_rendered(tmp_path, values), tmp_path).network
    assert (network.family, network.extra_family) == (IPV6, IPV4)


@pytest.mark.parametrize("facts", ["annotations", "kubelet"])
def test_security_groups_for_pods(tmp_path: Path, facts: str) -> None:
    """The mode turns them on; kubelet's directory is mounted where it is asked; the sysctl is the init container's too."""
    groups, settings = {"mode": "strict", "source": facts}, {"DISABLE_TCP_EARLY_DEMUX": "true"}
    found = _rendered(tmp_path, {"podSecurityGroups": groups, "settings": settings})
    pod, network = found["DaemonSet/vpc-ipamd"]["spec"]["template"]["spec"], _settings(found, tmp_path).network
    assert (network.enforcing_mode, network.early_demux_disabled) == ("strict", True)
    assert _settings(found, tmp_path).pod_facts.source == facts
    assert {"name": "DISABLE_TCP_EARLY_DEMUX", "value": "true"} in pod["initContainers"][0]["env"]
    paths = [volume["hostPath"]["path"] for volume in pod["volumes"] if volume["name"] == "kubelet-pods"]
    mounts = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "kubelet-pods"]
    assert paths == mounts == ([str(Path(Settings().pod_facts.kubelet_socket).parent)] if facts == "kubelet" else [])
    assert "kubelet-pods" not in json.dumps(_rendered(tmp_path, {"podSecurityGroups": {"source": facts}}))


def test_only_the_controller_names_branch_enis(tmp_path: Path) -> None:
    """The guard comes with the mode, under the release's name, and is the one of manifests/pod-eni; without mode, or turned off, there
    is none."""
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    found = _rendered(tmp_path, {"podSecurityGroups": {"mode": "standard"}}, release="groups")
    text = (MANIFESTS / "pod-eni" / "guard.yaml").read_text().replace("vpc-ipamd-pod-eni-guard", "groups-vpc-ipamd-pod-eni-guard")
    assert [found[f"{kind}/groups-vpc-ipamd-pod-eni-guard"] for kind in kinds] == list(yaml.safe_load_all(text))
    for values in ({}, {"podSecurityGroups": {"mode": "standard", "guard": False}}):
        assert not any(name.startswith("Validating") for name in _rendered(tmp_path, values))


def test_where_and_how_pods_run(tmp_path: Path) -> None:
    """Pull secrets and policy for all pods; nodes, taints, priority, update strategy, labels, annotations; an account that exists."""
    terms = {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "Exists"}]}]
        }
    }
    values = {
        "clusterName": "prod",
        "image": {"pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"group": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": terms},
        "priorityClassName": "mine",
        "updateStrategy": {"type": "OnDelete"},
        "seLinuxType": "spc_t",
        "podLabels": {"team": "net"},
        "podAnnotations": {"example.com/note": "x"},
        "serviceAccount": {"create": False, "name": "mine"},
        "sweeper": {"enabled": True, "vpcId": "vpc-0a1b", "region": "us-west-2"},
    }
    found = _rendered(tmp_path, values)
    daemonset, job = (
        found["DaemonSet/vpc-ipamd"],
        found["CronJob/vpc-ipamd-sweeper"]["spec"]["jobTemplate"]["spec"]["template"]["spec"],
    )
    pod = daemonset["spec"]["template"]["spec"]
    for one in (pod, job):
        assert one["imagePullSecrets"] == [{"name": "registry"}]
        assert {each["imagePullPolicy"] for each in [*one["containers"], *one.get("initContainers", [])]} == {"Always"}
    assert pod["nodeSelector"] == {"group": "gpu"}
    assert pod["tolerations"] == values["tolerations"]
    assert pod["affinity"] == {"nodeAffinity": terms}
    assert pod["priorityClassName"] == "mine"
    assert pod["containers"][0]["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert daemonset["spec"]["updateStrategy"] == {"type": "OnDelete"}
    metadata = daemonset["spec"]["template"]["metadata"]
    assert metadata["labels"]["team"] == "net"
    assert metadata["annotations"] == values["podAnnotations"]
    assert daemonset["spec"]["selector"]["matchLabels"] == {"app.kubernetes.io/name": "vpc-ipamd"}
    assert pod["serviceAccountName"] == "mine"
    assert [name for name in found if name.startswith("ServiceAccount/")] == ["ServiceAccount/vpc-ipamd-sweeper"]


def test_monitoring_is_that_of_kustomize(tmp_path: Path) -> None:
    """PodMonitor, rules and dashboard say the same, `$labels` of Prometheus included; labels for who selects by them arrive."""
    values = {name: {"enabled": True, "labels": {"release": "prometheus"}} for name in ("podMonitor", "rules", "dashboard")}
    found = _rendered(tmp_path, values)
    for kind, file in (("PodMonitor", "podmonitor.yaml"), ("PrometheusRule", "rules.yaml")):
        wanted = yaml.safe_load((MANIFESTS / "monitoring" / file).read_text())
        wanted["metadata"]["labels"]["release"] = "prometheus"
        assert found[f"{kind}/vpc-ipamd"] == wanted
    dashboard = found["ConfigMap/vpc-ipamd-dashboard"]
    assert dashboard["data"] == {name: (MANIFESTS / "monitoring" / name).read_text() for name in DASHBOARDS}
    assert dashboard["metadata"]["labels"] == {"grafana_dashboard": "1", "release": "prometheus"}


def test_runbooks_are_where_the_value_says(tmp_path: Path) -> None:
    """With or without a slash at its end, and nothing is left of the placeholder."""
    rules = {"enabled": True, "runbookBaseUrl": "https://runbooks.example.net/ipamd/"}
    groups = _rendered(tmp_path, {"rules": rules})["PrometheusRule/vpc-ipamd"]["spec"]["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert alerts
    for rule in alerts:
        url = f"https://runbooks.example.net/ipamd/docs/metrics.md#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == url


@pytest.mark.parametrize(
    ("release", "values", "name"),
    [
        ("vpc-ipamd-gpu", {}, "vpc-ipamd-gpu"),
        ("gpu", {}, "gpu-vpc-ipamd"),
        ("gpu", {"nameOverride": "ipam"}, "gpu-ipam"),
        ("gpu", {"fullnameOverride": "pods"}, "pods"),
        ("a" * 53, {}, "a" * 40),
    ],
)
def test_two_releases_are_apart(tmp_path: Path, release: str, values: dict[str, Any], name: str) -> None:
    """A second release for another node group shares no object with the first, none is the cluster's, each finds its own files, and
    neither's selector takes the other's pods as its own."""
    more = {"settings": {"WARM_IP_TARGET": "7"}, "network": NETWORK, "nodeSelector": {"group": "gpu"}}
    first, second = _rendered(tmp_path, {"network": NETWORK}), _rendered(tmp_path, values | more, release=release)
    assert not set(first) & set(second)
    assert {one["metadata"]["namespace"] for one in [*first.values(), *second.values()]} == {"kube-system"}
    settings = _settings(second, tmp_path, name=name)
    assert settings.pool.warm_ip_target == 7
    daemonset = second[f"DaemonSet/{name}"]
    (volume,) = [one for one in daemonset["spec"]["template"]["spec"]["volumes"] if one["name"] == "network"]
    assert f"ConfigMap/{volume['configMap']['name']}" in second
    assert f"ServiceAccount/{daemonset['spec']['template']['spec']['serviceAccountName']}" in second
    mine = daemonset["spec"]["selector"]["matchLabels"]
    theirs = first["DaemonSet/vpc-ipamd"]["spec"]["template"]["metadata"]["labels"]
    assert not mine.items() <= theirs.items()
    assert mine.items() <= daemonset["spec"]["template"]["metadata"]["labels"].items()


def test_a_changed_network_rolls_the_daemons(tmp_path: Path) -> None:
    """It is read at the start, so its text is part of the pod; the same text rolls nothing, and no file is no annotation."""

    def annotations(values: dict[str, Any]) -> dict[str, str]:
        template = _rendered(tmp_path, values)["DaemonSet/vpc-ipamd"]["spec"]["template"]
        found: dict[str, str] = template["metadata"].get("annotations", {})
        return found

    zones = {"us-west-2a": {"subnet": "subnet-0a1b"}}
    first = annotations({"network": {"zones": zones}})
    assert first == annotations({"network": {"zones": dict(zones)}}) != {}
    assert first != annotations({"network": {"zones": {"us-west-2a": {"subnet": "subnet-0a1c"}}}})
    both = annotations({"network": {"zones": zones}, "podAnnotations": {"x/y": "text"}})
    assert both == {**first, "x/y": "text"}
    assert annotations({}) == {}


@pytest.mark.parametrize(
    "values",
    [
        {"clustername": "prod"},
        {"sweeper": {"enabled": True}},
        {"settings": {"X": 1}},
        {"settings": {"WARM_ENI_TARGTE": "1"}},
        {"settings": {"WARM_ENI_TARGET": "one"}},
        {"settings": {"AWS_PROFILE": "x"}},
        {"maxUnavailable": "10%"},
        {"image": {"pullPolicy": "Sometimes"}},
        {"fullnameOverride": "VPC"},
        {"podLabels": {"app.kubernetes.io/name": "x"}},
        {"tolerations": [{"operator": "Exist"}]},
        {"updateStrategy": {"type": "OnDelete", "maxSurge": 1}},
    ],
)
def test_helm_refuses_what_the_schema_refuses(tmp_path: Path, values: dict[str, Any]) -> None:
    """Before anything is rendered."""
    done = _helm("template", "vpc-ipamd", str(CHART), values=values, folder=tmp_path)
    assert done.returncode != 0
    assert "don't meet the specifications of the schema" in done.stderr
