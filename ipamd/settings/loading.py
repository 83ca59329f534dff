"""Read every setting from the environment and the settings file, and report all problems at once.

amazon-vpc-cni-k8s logs an invalid value and uses the default, so the mistake is discovered in production. Here the daemon does not
start with an invalid value (exit 2), and a running daemon keeps its settings.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Set
from ipaddress import IPv4Network
from itertools import combinations
from typing import Any

from ipamd.model.enforcing_mode import EnforcingMode
from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IPV6
from ipamd.model.kernel_numbers import STRICT_MARK
from ipamd.model.record import dataclass
from ipamd.model.redaction import without_secrets
from ipamd.model.words import printable
from ipamd.settings import settings_file, upstream
from ipamd.settings.fields import FROM_ANNOTATIONS, REFUSE, Settings
from ipamd.settings.network_fields import NetworkConfig
from ipamd.settings.parsers import choice, parse_region, parse_url, parsed
from ipamd.settings.unknown_names import unknown
from ipamd.settings.upstream_values import adapt

Parser = Callable[[str], Any]

FILE = "VPC_IPAMD_SETTINGS_FILE"

QUOTED_MAX = 200
"""The largest number of characters of a wrong value that a problem quotes. Ours: enough to recognise the value, and short enough to be
read in a log line."""

EVERY_HOST = {"", "0.0.0.0"}  # noqa: S104  # compared, not listened on

IPV6_MTU_LEAST = 1280
"""The least MTU of a link with IPv6, in bytes. Source: RFC 8200, 5; amazon-vpc-cni-k8s cmd/aws-vpc-cni/main.go, validateMTU."""

_NAME = re.compile(r"\b[A-Z][A-Za-z0-9_]+\b")
"""Words that may be the name of a setting."""

OF_THE_SDK = {
    "AWS_REGION": parse_region,
    "AWS_DEFAULT_REGION": parse_region,
    "AWS_ENDPOINT_URL": parse_url,
    "AWS_ENDPOINT_URL_EC2": parse_url,
    "AWS_ENDPOINT_URL_STS": parse_url,
    "AWS_STS_REGIONAL_ENDPOINTS": choice("legacy", "regional"),
    "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": choice("ipv4", "ipv6"),
    "AWS_DEFAULTS_MODE": choice("legacy", "auto", "standard", "in-region", "cross-region", "mobile"),
}
"""Variables that botocore reads itself at the first call, with the parsers that check them. Source: botocore/configprovider.py."""


@dataclass(frozen=True)
class ConfigLine:
    """One setting as it is shown to users.

    `env`: its environment variable.
    `value`, `default`: the value in force and the default, written as in the environment.
    `origin`: where the value in force comes from: "environment", "file" or "default". It is "earlier file" if the value in force is
        neither in the environment nor in the file any more. Then the value that is there now is invalid, or it will be in force later:
        after the random delay with which a changed file is read, or after a restart.
    `text`: a sentence about the setting.
    `is_live`: whether a change takes effect without a restart.
    """

    env: str
    value: str
    default: str
    origin: str
    text: str
    is_live: bool


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read every setting from the environment, and from the settings file that a variable of the environment names.

    The file overrides the environment. An empty variable counts as not set.
    Raises: SettingsError whose details name every problem.
    """
    problems: list[str] = []
    in_file = _from_file(environ, problems)
    given = adapt({**environ, **in_file}).given
    problems += [*unknown(environ, is_settings_file=False), *unknown(in_file, is_settings_file=True)]
    problems += upstream.refused(given)
    for name, parse in OF_THE_SDK.items():
        _value(name, parse, environ, problems)
    settings = _parsed(given, problems)
    problems += contradictions(settings)
    if problems:
        error = failure(SettingsError, FailureCode.SETTINGS_WRONG, count=len(problems), problems="; ".join(problems))
        error.next_step = _where_to_correct(problems, environ, in_file)
        raise error
    return settings


def _where_to_correct(problems: Iterable[str], environ: Mapping[str, str], in_file: Container[str]) -> str:
    """Return where the settings that the problems name are set, with the command that changes them; "" if no set one is named."""
    named = dict.fromkeys(name for text in problems for name in _NAME.findall(text))
    from_file = [name for name in named if name in in_file]
    from_environ = [name for name in named if name not in in_file and environ.get(name)]
    steps = []
    if from_environ:
        steps.append(_step_in_environment(from_environ))
    if from_file:
        steps.append(
            f"{', '.join(from_file)} set in the settings file {environ[FILE]}: correct its ConfigMap (`kubectl -n kube-system edit "
            "configmap`), and the overlay from which it is made"
        )
    return "; ".join(steps)


def _step_in_environment(names: Collection[str]) -> str:
    """Return how settings in the daemon's environment are changed."""
    values = " ".join(f"{name}=VALUE" for name in names)
    return (
        f"{', '.join(names)} set in the environment: `kubectl -n kube-system set env daemonset/vpc-ipamd -c ipamd {values}`, and the "
        "chart's values or the overlay, which the next installation applies"
    )


def load_valid(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the valid settings.

    Invalid settings keep their defaults. `ipamctl` uses this, because it must help while settings are wrong.
    """
    return _parsed(adapt({**environ, **_from_file(environ, [])}).given, [])


def contradictions(settings: Settings) -> list[str]:
    """Return one sentence for each combination of settings that are valid separately but not together."""
    chained = {plugin["type"] for plugin in json.loads(settings.daemon.chained_plugins or "[]")}
    return [
        *_two_warm_targets(settings),
        *_shared_ports(settings),
        *_plugins_chained_twice(settings, chained),
        *_without_policy(settings, chained),
        *_pods_without_ipv6(settings),
        *_without_branches(settings),
        *_conflist_of_aws_node(settings),
        *_pods_with_two_choices(settings.network),
        *_pinned_contradictions(settings.network),
        *_pinned_permissions_of_nobody(settings),
        *_network_contradictions(settings.network, custom_networking=settings.subnets.custom_networking),
        *_pools_of_ipv6(settings),
    ]


def without_meaning(environ: Mapping[str, str] = os.environ) -> str:
    """Return one line with the given settings that have no meaning in this program; "" if there is none.

    Call it after `load`, because this function does not check the values.
    """
    parts = []
    upstream_names = upstream.without_meaning({**environ, **_from_file(environ, [])})
    if upstream_names:
        names = ", ".join(upstream_names)
        parts.append(f"settings of amazon-vpc-cni-k8s without meaning here: {names} (docs/settings.md says why)")
    ipv4_names = load_valid(environ).meaningless()
    if ipv4_names:
        parts.append(f"settings without meaning with pods of IPv6: {', '.join(ipv4_names)}")
    return "; ".join(parts)


def differences(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return a sentence for each given setting of amazon-vpc-cni-k8s that works differently in this program.

    Call it after `load`, because this function does not check the values.
    """
    given = {**environ, **_from_file(environ, [])}
    return (*adapt(given).differences, *upstream.different(given))


def describe(settings: Settings, environ: Mapping[str, str] = os.environ) -> list[ConfigLine]:
    """List every setting with its value, default, origin and sentence, in the order of declaration."""
    in_file = _from_file(environ, [])
    given = adapt({**environ, **in_file}).given
    lines = []
    for _, field, value in settings.declared():
        meta = field.metadata
        env = meta["env"]
        origin = "environment"
        if not _means(given.get(env, ""), meta["parse"], value):
            origin = "earlier file"
            if value == field.default:
                origin = "default"
        elif env in in_file:
            origin = "file"
        lines.append(ConfigLine(env, show(value), show(field.default), origin, meta["text"], meta["is_live"]))
    return lines


def show(value: object) -> str:
    """Return a value as text, as it could be given in the environment."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, tuple):
        return str(value)
    parts = []
    for part in value:
        if isinstance(part, tuple):
            parts.append("=".join(part))
        else:
            parts.append(str(part))
    return ",".join(parts)


def wrong(name: str, text: str, error: ValueError) -> str:
    """Describe an invalid value. Its beginning is quoted without secrets, because a URL may contain a password."""
    quoted = repr(without_secrets(text[:QUOTED_MAX]))
    if len(text) > QUOTED_MAX:
        quoted += f"... ({len(text)} characters)"
    return f"{name}={quoted}: {printable(str(error), most=2 * QUOTED_MAX)}"


def _two_warm_targets(settings: Settings) -> list[str]:
    pool = settings.pool
    if pool.warm_target != "auto" or not pool.warm_ip_target:
        return []
    return [f"VPC_IPAMD_WARM_TARGET_MODE=auto: must not be set with WARM_IP_TARGET ({pool.warm_ip_target}), which it computes"]


def _shared_ports(settings: Settings) -> list[str]:
    """Return one sentence if metrics and health probes would listen on the same port of the same address; else []."""
    listeners = settings.daemon.metrics_address, settings.daemon.health_address
    if "off" in listeners:
        return []
    metrics_host, metrics_port = _host_and_port(listeners[0])
    health_host, health_port = _host_and_port(listeners[1])
    hosts_overlap = metrics_host == health_host or EVERY_HOST & {metrics_host, health_host}
    if metrics_port != health_port or not hosts_overlap:
        return []
    return [f"VPC_IPAMD_HEALTH_ADDRESS={listeners[1]!r}: VPC_IPAMD_METRICS_ADDRESS has that port already"]


def _plugins_chained_twice(settings: Settings, chained: Set[str]) -> list[str]:
    problems = []
    daemon = settings.daemon
    enabled = (
        ("portmap", "VPC_IPAMD_ENABLE_PORTMAP_PLUGIN", daemon.portmap),
        ("bandwidth", "ENABLE_BANDWIDTH_PLUGIN", daemon.bandwidth),
    )
    for name, variable, is_on in enabled:
        if is_on and name in chained:
            problems.append(f"{variable}=true: VPC_IPAMD_CHAINED_PLUGINS chains {name} too; it must not run twice")
    return problems


def _without_policy(settings: Settings, chained: Set[str]) -> list[str]:
    """Return one sentence for each setting that prevents the policy agent from filtering every pod of this node."""
    policy = settings.policy
    setting = f"NETWORK_POLICY_ENFORCING_MODE={policy.mode}"
    if policy.is_unfiltered and policy.mode != "standard":
        step = "set it to standard or none, or remove VPC_IPAMD_POLICY_AGENT"
        return [f"{setting}: without an agent on the node nothing restricts the connections of a new pod: {step}"]
    if not policy.is_on:
        return []
    problems = []
    if not settings.network.pod_veth_names:
        step = "set VPC_IPAMD_POD_VETH_NAMES=true, or remove it"
        problems.append(f"{setting}: the policy agent knows a pod's link by the name that amazon-vpc-cni-k8s gives: {step}")
    if "bandwidth" in chained:
        step = "remove the plugin from VPC_IPAMD_CHAINED_PLUGINS"
        problems.append(
            f"{setting}: a link cannot have both the policy agent's qdisc (clsact) and that of the bandwidth plugin: {step}"
        )
    return problems


def _pods_without_ipv6(settings: Settings) -> list[str]:
    """Return one sentence if DISABLE_POD_V6 turns IPv6 off in pods that need it for their own address or for egress; else []."""
    network = settings.network
    if settings.daemon.pod_ipv6_disabled and IPV6 in (network.family, network.extra_family):
        return ["DISABLE_POD_V6=true: pods of this node have IPv6 (ENABLE_IPv6 or ENABLE_V6_EGRESS): remove one of them"]
    return []


def _without_branches(settings: Settings) -> list[str]:
    """Return one sentence for each contradiction among the settings about branch ENIs; [] unless ENABLE_POD_ENI is on."""
    if settings.network.enforcing_mode is None:
        return []
    facts = settings.pod_facts
    problems = []
    setting = "ENABLE_POD_ENI=true"
    if settings.takeover.cni_backend_socket:
        step = "remove VPC_IPAMD_CNI_BACKEND_SOCKET once the node's runtime calls vpc-cni, or remove ENABLE_POD_ENI"
        problems.append(f"{setting}: the plugin of amazon-vpc-cni-k8s does not pass on which pods need branch ENIs: {step}")
    if facts.unmarked_pods == REFUSE and facts.source != FROM_ANNOTATIONS:
        step = f"remove it, or set VPC_IPAMD_POD_SECURITY_GROUP_SOURCE={FROM_ANNOTATIONS}"
        problems.append(
            f"VPC_IPAMD_UNMARKED_PODS={REFUSE}: it has no effect with VPC_IPAMD_POD_SECURITY_GROUP_SOURCE={facts.source}, which reads "
            f"no mark: {step}"
        )
    if settings.network.enforcing_mode is EnforcingMode.STRICT and settings.network.connmark & STRICT_MARK:
        step = "choose from 0xff, as 0x80"
        problems.append(
            f"AWS_VPC_K8S_CNI_CONNMARK has bit {STRICT_MARK:#x}, which {setting} in strict mode needs for itself: {step}"
        )
    return problems


def _conflist_of_aws_node(settings: Settings) -> list[str]:
    ours = settings.daemon.conflist_path
    if os.path.normpath(ours) != os.path.normpath(settings.takeover.conflist_beside(ours)):
        return []
    return [
        f"VPC_IPAMD_CONFLIST_FILE={str(ours)!r}: that is the conflist of amazon-vpc-cni-k8s, which is renamed: choose another"
    ]


def _pods_with_two_choices(network: NetworkConfig) -> list[str]:
    """Return one sentence if a namespace or an address is in both lists, of pods without SNAT and of pods with forced SNAT; else
    [].
    """
    shared = []
    for exempt in network.snat_exempt_pods:
        for forced in network.snat_forced_pods:
            is_overlap = isinstance(exempt, IPv4Network) and isinstance(forced, IPv4Network) and exempt.overlaps(forced)
            if exempt == forced or is_overlap:
                shared.append(str(exempt))
    if not shared:
        return []
    names = ", ".join(dict.fromkeys(shared))
    return [f"VPC_IPAMD_SNAT_EXEMPT_PODS and VPC_IPAMD_SNAT_FORCED_PODS both have {names}: remove it from one of them"]


def _pinned_contradictions(network: NetworkConfig) -> list[str]:
    """Return one sentence for each two ranges of different namespaces that have addresses in common."""
    problems = []
    for first, second in combinations(network.pinned_ranges, 2):
        is_shared = first.cidr is not None and second.cidr is not None and first.cidr.overlaps(second.cidr)
        if is_shared and first.namespace != second.namespace:
            problems.append(
                f"VPC_IPAMD_PINNED_ADDRESSES: {first} and {second} have addresses in common: give each to one namespace"
            )
    return problems


def _pinned_permissions_of_nobody(settings: Settings) -> list[str]:
    """Return one sentence for each setting about pinned addresses that has no effect for some pods, because
    VPC_IPAMD_PINNED_ADDRESSES does not contain their namespace.
    """
    network = settings.network
    namespaces = {item.namespace for item in network.pinned_ranges}
    problems = []
    strangers = [namespace for namespace in network.pinned_take_namespaces if namespace not in namespaces]
    if strangers:
        problems.append(
            f"VPC_IPAMD_PINNED_ADDRESS_TAKE_NAMESPACES: pods of {', '.join(strangers)} may ask for no address: add the namespace to "
            "VPC_IPAMD_PINNED_ADDRESSES, or remove it here"
        )
    if settings.subnets.pinned_list and not namespaces:
        problems.append(
            "VPC_IPAMD_PINNED_ADDRESS_LIST=true: without VPC_IPAMD_PINNED_ADDRESSES no pod of the list gets its address: add the "
            "namespaces of its pods with their ranges there, or remove it"
        )
    return problems


def _pools_of_ipv6(settings: Settings) -> list[str]:
    """Return one sentence if settings name pools of pods on a node with IPv6 pods; else [].

    Such a node has one /80 on one ENI, so there is no pool to choose.
    """
    if settings.network.ipv6 and settings.subnets.has_pod_pools:
        names = " and ".join(sorted(set(settings.subnets.named_pools.values())))
        return [f"{names}: pods of IPv6 have the one /80 of the node, and no pools: remove it"]
    return []


def _network_contradictions(network: NetworkConfig, *, custom_networking: bool) -> list[str]:
    """Return one sentence for each pair of settings about IP families or MTUs that exclude each other."""
    problems = []
    if network.ipv4 == network.ipv6:
        problems.append(f"ENABLE_IPv4 and ENABLE_IPv6 are both {str(network.ipv6).lower()}: pods have one family, set one")
    if network.ipv6 and custom_networking:
        problems.append("AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG=true: pods of IPv6 have the primary ENI's subnet, remove it")
    if network.sandbox_mtu < IPV6_MTU_LEAST and IPV6 in (network.family, network.extra_family):
        problems.append(f"POD_MTU or AWS_VPC_ENI_MTU={network.sandbox_mtu}: IPv6 needs {IPV6_MTU_LEAST} bytes at least")
    if network.sandbox_mtu > network.eni_mtu:
        problems.append(f"POD_MTU={network.pod_mtu}: must not exceed AWS_VPC_ENI_MTU ({network.eni_mtu})")
    return problems


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.replace("localhost", "127.0.0.1").rpartition(":")
    return host, int(port)


def _means(text: str, parse: Parser, value: object) -> bool:
    """Whether a text is not empty and parses to this value."""
    try:
        return bool(text) and parsed(text, parse) == value
    except ValueError:
        return False


def _from_file(environ: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    """Return the settings of the file that the environment names, and add the problems of the file to `problems`.

    Returns: {} if the environment names no file.
    """
    path = environ.get(FILE, "")
    if not path.startswith("/") or not path.isprintable():
        return {}  # the parser of this setting reports such a path
    settings, file_problems = settings_file.read(path)
    problems += file_problems
    return settings


def _value(name: str, parse: Parser, given: Mapping[str, str], problems: list[str]) -> Any:
    """Read one value. Returns: None if it is not set or wrong. A wrong value adds a sentence to `problems`."""
    text = given.get(name, "")
    try:
        if text:
            return parsed(text, parse)
    except ValueError as error:
        problems.append(wrong(name, text, error))
    return None


def _parsed(given: Mapping[str, str], problems: list[str]) -> Settings:
    """Parse all settings. A wrong value adds a sentence to `problems` and keeps its default."""
    settings = Settings()
    for topic, field, _ in settings.declared():
        value = _value(field.metadata["env"], field.metadata["parse"], given, problems)
        if value is not None:
            config = dataclasses.replace(getattr(settings, topic), **{field.name: value})
            settings = dataclasses.replace(settings, **{topic: config})
    return settings
