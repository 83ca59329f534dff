"""Translate values that only the code of amazon-vpc-cni-k8s accepts, and report where this program behaves differently.

This daemon must start with the environment of the DaemonSet of amazon-vpc-cni-k8s (docs/adr/0071). So a value that means "not set"
there counts as not set here, and parts of a list that are skipped there are skipped here. If a setting has another name here, the
variable of amazon-vpc-cni-k8s sets it. All other values are left to the parsers, which refuse invalid values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from ipaddress import IPv4Network

from ipamd.model.record import dataclass
from ipamd.model.words import printable
from ipamd.settings.json_parsers import RESERVED, parse_tags
from ipamd.settings.parsers import CIDRS_MAX, TEXT_MAX, parse_bool, parse_url

LOWEST = {
    "WARM_ENI_TARGET": 0,
    "WARM_IP_TARGET": 0,
    "MINIMUM_IP_TARGET": 0,
    "WARM_PREFIX_TARGET": 0,
    "MAX_ENI": 0,
    "HTTP_TIMEOUT": 1,
}
"""The lowest valid number of each of these settings. In amazon-vpc-cni-k8s a lower number means "not set". Source: amazon-vpc-cni-k8s
README.md; pkg/ipamd/ipamd.go, getWarmENITarget and the functions beside it; pkg/awsutils/awssession/session.go, getHTTPTimeout."""

CIDR_LISTS = ("AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS", "AWS_EXTERNAL_SERVICE_CIDRS")
"""Settings that are lists of CIDRs. Entries that are not IPv4 CIDRs are skipped. Source: amazon-vpc-cni-k8s README.md."""

POLICY_MODES = ("standard", "strict")

AGENT_PREFIX = "eni"
"""Beginning of the names of links that the policy agent finds. Source: aws-network-policy-agent pkg/ebpf/bpf_client.go,
POD_VETH_PREFIX."""

AGENT_SETTING, NO_AGENT = "VPC_IPAMD_POLICY_AGENT", "absent"
"""The setting about the policy agent, and its value for a node without an agent."""


@dataclass(frozen=True, slots=True)
class Adapted:
    """The environment of amazon-vpc-cni-k8s, adapted to this daemon.

    `given`: settings by name. A value that only amazon-vpc-cni-k8s accepts is replaced by a value that our parsers accept.
    `differences`: one sentence for each setting that has another effect in this daemon than in amazon-vpc-cni-k8s.
    """

    given: dict[str, str]
    differences: tuple[str, ...]


def adapt(given: Mapping[str, str]) -> Adapted:
    """Adapt settings. `given`: their values by name. An invalid value stays unchanged, so that its parser refuses it. Pure."""
    adapted = {name: text for name, text in given.items() if len(text) <= TEXT_MAX}
    differences: list[str] = []
    for step in STEPS:
        differences += step(adapted)
    return Adapted({**given, **adapted}, tuple(differences))


def _drop_unset_numbers(given: dict[str, str]) -> list[str]:
    """Empty the settings whose number means "not set" in amazon-vpc-cni-k8s. Returns: [], because this is not a difference."""
    for name, lowest in LOWEST.items():
        text = given.get(name, "")
        if re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII) and int(text) < lowest:
            given[name] = ""
    return []


def _choose_family(given: dict[str, str]) -> list[str]:
    """Turn IPv4 off if only ENABLE_IPv6 is given, because in amazon-vpc-cni-k8s neither family is on by default."""
    if _is_true(given, "ENABLE_IPv6") and not given.get("ENABLE_IPv4"):
        given["ENABLE_IPv4"] = "false"
    return []


def _turn_metrics_off(given: dict[str, str]) -> list[str]:
    if not _is_true(given, "DISABLE_METRICS"):
        return []
    address = given.get("VPC_IPAMD_METRICS_ADDRESS")
    if address and address != "off":
        return [f"DISABLE_METRICS=true: VPC_IPAMD_METRICS_ADDRESS={printable(address, most=40)} wins, and metrics are served"]
    given["VPC_IPAMD_METRICS_ADDRESS"] = "off"
    return []


def _complete_endpoint(given: dict[str, str]) -> list[str]:
    """Add https to a host or an address without a scheme, as the AWS SDK for Go does."""
    text = given.get("AWS_EC2_ENDPOINT", "")
    if not text or "://" in text:
        return []
    try:
        given["AWS_EC2_ENDPOINT"] = parse_url(f"https://{text}")
    except ValueError:
        return []  # the parser of this setting refuses the value as it was given
    return []


def _skip_other_cidrs(given: dict[str, str]) -> list[str]:
    differences = []
    for name in CIDR_LISTS:
        parts = [part.strip() for part in given.get(name, "").split(",") if part.strip()]
        skipped = [part for part in parts[: CIDRS_MAX + 1] if not _is_cidr(part)]
        if skipped:
            given[name] = ",".join(part for part in parts if part not in skipped)
            differences.append(f"{name}: skipped, because not an IPv4 CIDR: {printable(', '.join(skipped), most=120)}")
    return differences


def _skip_reserved_tags(given: dict[str, str]) -> list[str]:
    try:
        tags = json.loads(given.get("ADDITIONAL_ENI_TAGS") or "{}")
        reserved = sorted(key for key in tags if RESERVED in key)
        unreserved = json.dumps({key: value for key, value in tags.items() if key not in reserved})
        parse_tags(unreserved)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return []  # the parser of this setting refuses the value as it was given
    if not reserved:
        return []
    given["ADDITIONAL_ENI_TAGS"] = unreserved
    return [f"ADDITIONAL_ENI_TAGS: skipped, because reserved: {printable(', '.join(reserved), most=120)}"]


def _adapt_to_policy_agent(given: dict[str, str]) -> list[str]:
    """Turn on the link names that the policy agent expects, and report which pods it cannot filter.

    The agent refuses the pods that it cannot filter, so none of them runs unfiltered.
    """
    mode = given.get("NETWORK_POLICY_ENFORCING_MODE", "").lower()
    if mode not in POLICY_MODES or given.get(AGENT_SETTING, "").lower() == NO_AGENT:
        return []
    if not given.get("VPC_IPAMD_POD_VETH_NAMES"):
        given["VPC_IPAMD_POD_VETH_NAMES"] = "true"
    setting = f"NETWORK_POLICY_ENFORCING_MODE={mode}"
    differences = []
    prefix = given.get("AWS_VPC_K8S_CNI_VETHPREFIX") or AGENT_PREFIX
    if prefix != AGENT_PREFIX:
        differences.append(
            f"{setting}: an agent that enforces policies refuses pods whose links begin with {printable(prefix, most=8)}, "
            f"not {AGENT_PREFIX}"
        )
    if _is_true(given, "ENABLE_BANDWIDTH_PLUGIN"):
        differences.append(
            f"{setting}: pods with a bandwidth annotation do not start while an agent enforces policies, because its qdisc and the "
            "bandwidth plugin's exclude each other"
        )
    return differences


STEPS: tuple[Callable[[dict[str, str]], list[str]], ...] = (
    _drop_unset_numbers,
    _choose_family,
    _turn_metrics_off,
    _complete_endpoint,
    _skip_other_cidrs,
    _skip_reserved_tags,
    _adapt_to_policy_agent,
)
"""The steps of the adaptation. Each changes values in place and returns a sentence for each difference."""


def _is_true(given: Mapping[str, str], name: str) -> bool:
    """Whether a boolean setting is given and true. A value that is not a boolean counts as not true."""
    try:
        return parse_bool(given.get(name, ""))
    except ValueError:
        return False


def _is_cidr(text: str) -> bool:
    try:
        return bool(IPv4Network(text, strict=False))
    except ValueError:
        return False
