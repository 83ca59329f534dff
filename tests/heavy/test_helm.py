"""The chart rendered by helm: with its defaults it is the base, and every value arrives where it belongs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ipamd.model.family import IPV4, IPV6
from ipamd.settings import Settings, load
from tests.heavy.tools import HELM, needs
from tests.network_files import custom_of
from tests.unit.manifests.manifest import MANIFESTS, documents
from tests.unit.manifests.monitoring import DASHBOARDS
from tests.unit.manifests.test_chart import AGENT
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


ONLY_OF_HELM = ("instance", "version", "component", "part-of", "managed-by")
"""Standard labels, below app.kubernetes.io/, that the chart adds to an object and the files for kustomize have not, or only some."""


def _as_of_kustomize(document: dict[str, Any]) -> dict[str, Any]:
    """An object without the labels that say which release of a chart it is of. Its pods have none of these."""
    extra = {"helm.sh/chart", *(f"app.kubernetes.io/{name}" for name in ONLY_OF_HELM)}
    if document["kind"] == "ServiceAccount":
        extra.add("app.kubernetes.io/name")
    labels = {name: value for name, value in document["metadata"].get("labels", {}).items() if name not in extra}
    metadata = {name: value for name, value in document["metadata"].items() if name != "labels"}
    return document | {"metadata": metadata | ({"labels": labels} if labels else {})}


def test_the_defaults_are_the_base(tmp_path: Path) -> None:
    """Object for object, field for field, once the settings file and the labels of a release are taken away."""
    found = _rendered(tmp_path, {"hotReload": False})
    assert [_as_of_kustomize(each) for each in found.values()] == [_as_of_kustomize(each) for each in documents()]
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
        rendered = found[f"{wanted['kind']}/{wanted['metadata']['name']}"]
        assert _as_of_kustomize(rendered) == _as_of_kustomize(wanted)


def test_the_inventory_is_that_of_the_manifest(tmp_path: Path) -> None:
    """With its names filled in; with podMonitor its PodMonitor too."""
    values = {
        "clusterName": "prod",
        "inventory": {"enabled": True, "vpcId": "vpc-0a1b", "region": "us-west-2"},
        "podMonitor": {"enabled": True},
    }
    text = (MANIFESTS / "inventory" / "inventory.yaml").read_text()
    for placeholder, value in (("CLUSTER}", "prod}"), ("VPC}", "vpc-0a1b}"), ("REGION}", "us-west-2}")):
        text = text.replace(f"value: {placeholder}", f"value: {value}")
    found = _rendered(tmp_path, values)
    monitor = (MANIFESTS / "inventory" / "podmonitor.yaml").read_text()
    for wanted in [*yaml.safe_load_all(text), yaml.safe_load(monitor)]:
        rendered = found[f"{wanted['kind']}/{wanted['metadata']['name']}"]
        assert _as_of_kustomize(rendered) == _as_of_kustomize(wanted)


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
    assert custom_of(found["ConfigMap/vpc-ipamd-network"]["data"]["network.json"], source="the ConfigMap").zones


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
        assert _as_of_kustomize(found[f"{kind}/vpc-ipamd"]) == wanted
    dashboard = found["ConfigMap/vpc-ipamd-dashboard"]
    assert dashboard["data"] == {name: (MANIFESTS / "monitoring" / name).read_text() for name in DASHBOARDS}
    labels = dashboard["metadata"]["labels"]
    assert labels.items() >= {"grafana_dashboard": "1", "release": "prometheus"}.items()


@pytest.mark.parametrize(
    ("values", "page"),
    [
        ({}, "docs/metrics.md"),
        ({"runbookBaseUrl": "https://runbooks.example.net/ipamd/"}, "https://runbooks.example.net/ipamd/docs/metrics.md"),
        (
            {"runbookBaseUrl": "https://runbooks.example.net", "runbookPath": "docs/metrics.html"},
            "https://runbooks.example.net/docs/metrics.html",
        ),
    ],
    ids=["default", "base", "base and page"],
)
def test_runbooks_are_where_the_values_say(tmp_path: Path, values: dict[str, str], page: str) -> None:
    """With or without a slash at the base's end; by default the page in the repository."""
    rules = {"enabled": True, **values}
    groups = _rendered(tmp_path, {"rules": rules})["PrometheusRule/vpc-ipamd"]["spec"]["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert alerts
    for rule in alerts:
        assert rule["annotations"]["runbook_url"] == f"{page}#{rule['alert'].lower()}"


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
        {"inventory": {"enabled": True}},
        {"settings": {"X": 1}},
        {"networkPolicyAgent": AGENT},
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


TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"


def test_only_the_policy_agent_has_a_token(tmp_path: Path) -> None:
    """The pod mounts none by itself; a projected one is in the agent's container, and a ClusterRole of its own lets it read."""
    values = {"networkPolicy": "strict", "networkPolicyAgent": AGENT, "settings": {"ENABLE_IPv6": True, "ENABLE_IPv4": False}}
    found = _rendered(tmp_path, values)
    pod = found["DaemonSet/vpc-ipamd"]["spec"]["template"]["spec"]
    daemon, agent = pod["containers"]
    assert (daemon["name"], agent["image"]) == ("ipamd", "registry.example/agent:v1.4.2")
    assert pod["automountServiceAccountToken"] is False
    (volume,) = [volume for volume in pod["volumes"] if "projected" in volume]
    with_token = [
        (container["name"], mount["mountPath"])
        for container in [*pod["initContainers"], *pod["containers"]]
        for mount in container["volumeMounts"]
        if mount["name"] == volume["name"]
    ]
    assert with_token == [("network-policy-agent", TOKEN)]
    assert {"--enable-network-policy=true", "--enable-ipv6=true", "--metrics-bind-addr=:8162"} <= set(agent["args"])
    shared = {mount["name"] for mount in daemon["volumeMounts"]} & {mount["name"] for mount in agent["volumeMounts"]}
    assert "aws-node" in shared
    binding = found["ClusterRoleBinding/vpc-ipamd-policy-agent"]
    assert binding["roleRef"]["name"] == found["ClusterRole/vpc-ipamd-policy-agent"]["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "kube-system"}]
    verbs = {verb for rule in found["ClusterRole/vpc-ipamd-policy-agent"]["rules"] for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch"}


def test_without_the_policy_agent_nobody_has_a_token(tmp_path: Path) -> None:
    """No role, no projected volume and one container; also with a mode, for an agent that runs elsewhere."""
    for values in ({}, {"networkPolicy": "standard"}):
        found = _rendered(tmp_path, values)
        assert not any(name.startswith("ClusterRole") for name in found)
        pod = found["DaemonSet/vpc-ipamd"]["spec"]["template"]["spec"]
        assert len(pod["containers"]) == 1
        assert not any("projected" in volume for volume in pod["volumes"])


def test_numbers_and_booleans_arrive_as_text(tmp_path: Path) -> None:
    """Whole and without an exponent, in the file, in variables and in the variables of an init container."""
    values = {
        "settings": {"WARM_IP_TARGET": 5, "VPC_IPAMD_HISTORY_MAX_BYTES": 33554432, "DISABLE_TCP_EARLY_DEMUX": True},
        "extraEnv": [{"name": "GOMAXPROCS", "value": 2}, {"name": "AWS_USE_FIPS_ENDPOINT", "value": False}],
        "portmap": False,
    }
    for has_file in (True, False):
        found = _rendered(tmp_path, values | {"hotReload": has_file})
        settings = _settings(found, tmp_path)
        assert (settings.pool.warm_ip_target, settings.daemon.history_bytes) == (5, 33554432)
        variables = _variables(found["DaemonSet/vpc-ipamd"])
        assert (variables["GOMAXPROCS"], variables["AWS_USE_FIPS_ENDPOINT"]) == ("2", "false")
        assert variables["VPC_IPAMD_ENABLE_PORTMAP_PLUGIN"] == "false"
        (init,) = found["DaemonSet/vpc-ipamd"]["spec"]["template"]["spec"]["initContainers"]
        assert {"name": "DISABLE_TCP_EARLY_DEMUX", "value": "true"} in init["env"]


def test_contexts_probes_and_volumes_are_values(tmp_path: Path) -> None:
    """A part is laid over the default; the port is that of the daemon and of its probes."""
    values = {
        "healthPort": 61700,
        "startupProbe": {"failureThreshold": 90},
        "securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "ipamd.json"}},
        "seLinuxType": "spc_t",
        "podSecurityContext": {"supplementalGroups": [7]},
        "extraVolumes": [{"name": "ca", "secret": {"secretName": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
    }
    daemonset = _rendered(tmp_path, values)["DaemonSet/vpc-ipamd"]
    pod = daemonset["spec"]["template"]["spec"]
    (daemon,) = pod["containers"]
    assert _variables(daemonset)["VPC_IPAMD_HEALTH_ADDRESS"] == "127.0.0.1:61700"
    probes = [daemon[name] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert {probe["httpGet"]["port"] for probe in probes} == {61700}
    assert (daemon["startupProbe"]["failureThreshold"], daemon["startupProbe"]["periodSeconds"]) == (90, 1)
    context = daemon["securityContext"]
    assert context["seccompProfile"] == {"type": "Localhost", "localhostProfile": "ipamd.json"}
    assert (context["readOnlyRootFilesystem"], context["seLinuxOptions"]) == (True, {"type": "spc_t"})
    assert pod["securityContext"] == {"supplementalGroups": [7]}
    assert values["extraVolumes"][0] in pod["volumes"]  # type: ignore[index]
    assert values["extraVolumeMounts"][0] in daemon["volumeMounts"]  # type: ignore[index]


def test_options_of_the_pod_monitor(tmp_path: Path) -> None:
    """They arrive, and the scraped port is the one that the settings name."""
    drop = {"sourceLabels": ["__name__"], "regex": "process_.*", "action": "drop"}
    monitor = {
        "enabled": True,
        "interval": "1m",
        "scrapeTimeout": "5s",
        "jobLabel": "app.kubernetes.io/name",
        "podTargetLabels": ["team"],
        "sampleLimit": 2000000,
        "annotations": {"x/y": "text"},
        "relabelings": [{"targetLabel": "fleet", "replacement": "a"}],
        "metricRelabelings": [drop],
    }
    found = _rendered(tmp_path, {"podMonitor": monitor, "settings": {"VPC_IPAMD_METRICS_ADDRESS": "0.0.0.0:9100"}})
    pod_monitor = found["PodMonitor/vpc-ipamd"]
    spec = pod_monitor["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    assert (endpoint["interval"], endpoint["scrapeTimeout"], endpoint["metricRelabelings"]) == ("1m", "5s", [drop])
    assert endpoint["relabelings"][-1] == {"targetLabel": "fleet", "replacement": "a"}
    assert {rule["replacement"] for rule in endpoint["relabelings"] if rule.get("targetLabel") == "__address__"} == {
        "$1:9100",
        "[$1]:9100",
    }
    assert (spec["jobLabel"], spec["podTargetLabels"], spec["sampleLimit"]) == ("app.kubernetes.io/name", ["team"], 2000000)
    assert pod_monitor["metadata"]["annotations"] == {"x/y": "text"}


def test_every_object_has_the_standard_labels(tmp_path: Path) -> None:
    """Those that Kubernetes recommends, and yours; pods have those of the base only, so a new chart rolls nothing."""
    values = {
        "clusterName": "prod",
        "commonLabels": {"team": "net"},
        "network": NETWORK,
        "networkPolicy": "standard",
        "networkPolicyAgent": AGENT,
        "sweeper": {"enabled": True, "vpcId": "vpc-0a1b", "region": "us-west-2"},
        "inventory": {"enabled": True, "vpcId": "vpc-0a1b", "region": "us-west-2"},
        "podMonitor": {"enabled": True},
        "rules": {"enabled": True},
        "dashboard": {"enabled": True},
    }
    found = _rendered(tmp_path, values)
    standard = {f"app.kubernetes.io/{name}" for name in ("name", *ONLY_OF_HELM)} | {"helm.sh/chart", "team"}
    assert [name for name, each in found.items() if not standard <= set(each["metadata"]["labels"])] == []
    assert {each["metadata"]["labels"]["app.kubernetes.io/managed-by"] for each in found.values()} == {"Helm"}
    pod_labels = found["DaemonSet/vpc-ipamd"]["spec"]["template"]["metadata"]["labels"]
    assert set(pod_labels) == {"app.kubernetes.io/name", "app.kubernetes.io/version"}
