"""Convert values of the Helm chart of amazon-vpc-cni-k8s (charts/aws-vpc-cni, v1.23.1) to values of our chart.

Each key of the other chart is copied, translated, or named in a remark with the reason why it has no counterpart. Settings follow the
table of `ipamd/settings/upstream.py`, as in the daemon. Pure: the caller reads the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ipamd.ipamctl.eniconfig import API_VERSION, convert
from ipamd.model.errors import SettingsError
from ipamd.model.record import dataclass, field
from ipamd.model.subnets import render, unusual_zone_problem
from ipamd.model.words import printable
from ipamd.settings import differences, load
from ipamd.settings.loading import OF_THE_SDK
from ipamd.settings.upstream import NO, UPSTREAM, YES, Fate
from ipamd.settings.upstream_values import POLICY_MODES

Values = dict[str, Any]

QUOTED_MAX = 60
"""The largest number of characters of a key or a value in a remark. Ours: enough to recognise it, and a remark stays one line."""

COPIED = ("imagePullSecrets", "podLabels", "podAnnotations", "priorityClassName", "nodeSelector", "tolerations", "resources")
"""Keys that have the same name, form and meaning in both charts."""

WITHOUT_COUNTERPART = {
    "nameOverride": "objects are named after our chart's release",
    "fullnameOverride": "objects are named after our chart's release",
    "originalMatchLabels": "there is no earlier DaemonSet of this name to adopt",
    "enableWindowsIpam": "Windows nodes are the VPC resource controller's: keep its ConfigMap amazon-vpc-cni",
    "enableWindowsPrefixDelegation": "Windows nodes are the VPC resource controller's: keep its ConfigMap amazon-vpc-cni",
    "warmWindowsPrefixTarget": "Windows nodes are the VPC resource controller's: keep its ConfigMap amazon-vpc-cni",
    "warmWindowsIPTarget": "Windows nodes are the VPC resource controller's: keep its ConfigMap amazon-vpc-cni",
    "minimumWindowsIPTarget": "Windows nodes are the VPC resource controller's: keep its ConfigMap amazon-vpc-cni",
    "branchENICooldown": "it is the VPC resource controller's: keep its ConfigMap amazon-vpc-cni",
    "cniConfig": "the daemon writes the conflist itself: chain plugins by VPC_IPAMD_CHAINED_PLUGINS",
    "podSecurityContext": "the DaemonSet has the rights that the daemon needs (SECURITY.md)",
    "securityContext": "the DaemonSet has the rights that the daemon needs (SECURITY.md)",
    "livenessProbe": "probes are those of /healthz and /readyz",
    "livenessProbeTimeoutSeconds": "probes are those of /healthz and /readyz",
    "readinessProbe": "probes are those of /healthz and /readyz",
    "readinessProbeTimeoutSeconds": "probes are those of /healthz and /readyz",
    "extraVolumes": "the DaemonSet mounts what the daemon needs",
    "extraVolumeMounts": "the DaemonSet mounts what the daemon needs",
}


@dataclass(slots=True)
class Conversion:
    """The result of a conversion.

    `values`: values of our chart.
    `remarks`: a line for each value of the chart of amazon-vpc-cni-k8s that has no counterpart or another meaning in ours.
    """

    values: Values = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def put(self, *path: str, value: object) -> None:
        """Set a value of our chart. `path`: its nested keys, the outermost first. An empty value is ignored."""
        if value in ("", None, [], {}):
            return
        place = self.values
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = value

    def remark(self, key: str, reason: str, value: object = None) -> None:
        """Add a line about a key of the chart of amazon-vpc-cni-k8s."""
        if value not in (None, ""):
            key += f"={printable(_text(value), most=QUOTED_MAX)}"
        self.remarks.append(f"{key}: {reason}")


def convert_values(theirs: Mapping[str, Any]) -> Conversion:
    """Convert a whole file of values. `theirs`: values of the chart of amazon-vpc-cni-k8s.

    Raises: SettingsError whose details list every setting that would keep the daemon from starting, or that names a value of another
        form than in the chart.
    """
    conversion = Conversion()
    for key, value in theirs.items():
        if value is None:
            continue  # with null Helm removes a default
        if key in COPIED:
            conversion.put(key, value=value)
        elif key in WITHOUT_COUNTERPART:
            conversion.remark(key, WITHOUT_COUNTERPART[key])
        elif key in HANDLERS:
            HANDLERS[key](conversion, _part(theirs, key))
        elif key not in TOGETHER:
            conversion.remark(printable(str(key), most=QUOTED_MAX), "no such value is known")
    _convert_settings(conversion, theirs)
    return conversion


def _convert_image(conversion: Conversion, image: Mapping[str, Any]) -> None:
    conversion.put("image", "pullPolicy", value=image.get("pullPolicy"))
    conversion.remark("image", "ours is another image: set image.repository and image.tag")


def _convert_service_account(conversion: Conversion, account: Mapping[str, Any]) -> None:
    for key in ("create", "name", "annotations"):
        conversion.put("serviceAccount", key, value=account.get(key))


def _convert_update_strategy(conversion: Conversion, strategy: Mapping[str, Any]) -> None:
    conversion.put("updateStrategy", "type", value=strategy.get("type"))
    conversion.put("updateStrategy", "maxUnavailable", value=_part(strategy, "rollingUpdate").get("maxUnavailable"))


def _convert_affinity(conversion: Conversion, affinity: Mapping[str, Any]) -> None:
    """Copy an affinity, unless it is the default of amazon-vpc-cni-k8s's chart: our DaemonSet has that default already."""
    node_affinity = _part(affinity, "nodeAffinity")
    terms = _part(node_affinity, "requiredDuringSchedulingIgnoredDuringExecution").get("nodeSelectorTerms")
    if len(affinity) == len(node_affinity) == 1 and terms == DEFAULT_TERMS:
        return
    conversion.put("affinity", value=affinity)


def _convert_pod_monitor(conversion: Conversion, monitor: Mapping[str, Any]) -> None:
    if not _is_true(monitor.get("create")):
        return
    conversion.put("podMonitor", "enabled", value=True)
    for key in ("interval", "labels"):
        conversion.put("podMonitor", key, value=monitor.get(key))
    for key in ("annotations", "scrapeTimeout", "relabelings"):
        if monitor.get(key):
            conversion.remark(f"podMonitor.{key}", "our PodMonitor has none")


HANDLERS: Mapping[str, Callable[[Conversion, Mapping[str, Any]], None]] = {
    "image": _convert_image,
    "serviceAccount": _convert_service_account,
    "updateStrategy": _convert_update_strategy,
    "affinity": _convert_affinity,
    "podMonitor": _convert_pod_monitor,
}

TOGETHER = frozenset({"env", "extraEnv", "init", "nodeAgent", "enableNetworkPolicy", "eniConfig"})
"""Keys that are converted together, by `_convert_settings`."""

DEFAULT_TERMS = [
    {
        "matchExpressions": [
            {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
            {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64", "arm64"]},
            {"key": "eks.amazonaws.com/compute-type", "operator": "NotIn", "values": ["fargate", "hybrid", "auto"]},
        ]
    }
]
"""Terms of the default affinity of amazon-vpc-cni-k8s's chart (charts/aws-vpc-cni/values.yaml). Those of our DaemonSet are in
manifests/base/daemonset.yaml."""


def _convert_settings(conversion: Conversion, theirs: Mapping[str, Any]) -> None:
    """Convert the variables of the main and the init container, and the other values that affect our settings."""
    init = _part(theirs, "init")
    conversion.put("initResources", value=init.get("resources"))
    for key in ("image", "securityContext"):
        if init.get(key):
            conversion.remark(f"init.{key}", "the init container is our image, with the rights that it needs")
    variables = {**_part(init, "env"), **_part(theirs, "env")}
    given = {str(name): _text(value) for name, value in variables.items()}
    given |= _extra_variables(conversion, theirs.get("extraEnv"))
    given = {name: text for name, text in given.items() if text}
    _convert_policy(conversion, theirs, given.pop("NETWORK_POLICY_ENFORCING_MODE", "").lower())
    _convert_branches(conversion, given)
    _convert_network(conversion, _part(theirs, "eniConfig"), given.pop("AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG", ""))
    conversion.put("clusterName", value=given.pop("CLUSTER_NAME", ""))
    settings: dict[str, str] = {}
    for name, text in sorted(given.items()):
        settings |= _convert_variable(conversion, name, text)
    load(settings)
    conversion.remarks += differences({**settings, "NETWORK_POLICY_ENFORCING_MODE": conversion.values.get("networkPolicy", "")})
    conversion.put("settings", value=settings)


def _extra_variables(conversion: Conversion, extra: Any) -> dict[str, str]:
    """Return the variables of `extraEnv` that have a value. Variables with `valueFrom` are copied to our `extraEnv`, because only the
    cluster has their values. Raises: SettingsError if `extra` is not a list."""
    given: dict[str, str] = {}
    if not isinstance(extra or [], list):
        raise SettingsError("extraEnv is no list", details="it is one in the chart's values.yaml")
    for variable in extra or []:
        if isinstance(variable, dict) and variable.get("name") and "valueFrom" in variable:
            conversion.values.setdefault("extraEnv", []).append({"name": variable["name"], "valueFrom": variable["valueFrom"]})
        elif isinstance(variable, dict) and variable.get("name"):
            given[str(variable["name"])] = _text(variable.get("value"))
    return given


def _convert_variable(conversion: Conversion, name: str, text: str) -> dict[str, str]:
    """Convert one variable.

    Returns: our setting; or {} if the variable is copied to `extraEnv`, if a remark names it, or if its value has no effect.
    """
    if name in OF_THE_SDK:
        conversion.values.setdefault("extraEnv", []).append({"name": name, "value": text})
        return {}
    setting = next((row for row in UPSTREAM if row.name == name), None)
    if setting is None:
        conversion.remark(f"env.{printable(name, most=QUOTED_MAX)}", "no such variable is known", text)
        return {}
    if setting.fate is Fate.HONOURED:
        return {name: text}
    if name == "DISABLE_METRICS" and text.lower() in YES:
        return {"VPC_IPAMD_METRICS_ADDRESS": "off"}
    if setting.fate is Fate.WITHOUT_MEANING or text.lower() not in setting.harmless:
        conversion.remark(f"env.{name}", setting.text, text)
    return {}


def _convert_policy(conversion: Conversion, theirs: Mapping[str, Any], mode: str) -> None:
    """Convert the policy mode. If the values turn the enforcement of policies off, the mode becomes a remark."""
    agent = _part(theirs, "nodeAgent")
    if agent:
        conversion.remark("nodeAgent", "the policy agent is not in our chart: run it in a DaemonSet of its own (docs/policy.md)")
    if mode not in POLICY_MODES:
        return
    if not _is_true(theirs.get("enableNetworkPolicy")) or (agent and not _is_true(agent.get("enabled", True))):
        reason = "no policies are enforced (enableNetworkPolicy, nodeAgent.enabled), so networkPolicy stays empty"
        conversion.remark("env.NETWORK_POLICY_ENFORCING_MODE", reason, mode)
        return
    conversion.put("networkPolicy", value=mode)


def _convert_branches(conversion: Conversion, given: dict[str, str]) -> None:
    mode = given.pop("POD_SECURITY_GROUP_ENFORCING_MODE", "strict").lower()
    if _is_true(given.pop("ENABLE_POD_ENI", "")):
        conversion.put("podSecurityGroups", "mode", value=mode)


def _convert_network(conversion: Conversion, config: Mapping[str, Any], switch: str) -> None:
    """Convert custom networking: make `network` from the ENIConfig objects that the chart of amazon-vpc-cni-k8s would create.

    `switch`: the value of AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG.
    Raises: SettingsError.
    """
    subnets: Mapping[str, Any] = {}
    if _is_true(config.get("create")):
        subnets = _part(config, "subnets")
    if not _is_true(switch):
        if subnets:
            conversion.remark("eniConfig", "custom networking is off (AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG)")
        return
    if not subnets:
        conversion.remark(
            "env.AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG",
            "set `network` to what `ipamctl convert-eniconfig` makes of the cluster's ENIConfig objects",
            switch,
        )
        return
    objects = []
    for zone, place in subnets.items():
        problem = unusual_zone_problem(str(zone))
        if problem:
            shown_zone = printable(str(zone), most=QUOTED_MAX)
            raise SettingsError(f"eniConfig.subnets.{shown_zone}: {problem}", details="write the zone's name in its place")
        spec = {"subnet": _part(subnets, zone).get("id"), "securityGroups": _part(subnets, zone).get("securityGroups")}
        content = None
        if place:
            content = {"apiVersion": API_VERSION, "kind": "ENIConfig", "metadata": {"name": zone}, "spec": spec}
        objects.append((f"eniConfig.subnets.{zone}", content))
    conversion.put("network", value=json.loads(render(convert(objects, zones={}, primary_carries_pods=False))))


def _part(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the map below a key; an empty map if the key is null or missing. Raises: SettingsError if the value is not a map."""
    part = values.get(key) or {}
    if not isinstance(part, dict):
        raise SettingsError(f"{printable(key, most=QUOTED_MAX)} is no map", details="it is one in the chart's values.yaml")
    return part


def _text(value: object) -> str:
    """Return a value as Helm's `quote` writes it into an environment variable."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _is_true(value: object) -> bool:
    return _text(value).lower() in YES and _text(value).lower() not in NO
