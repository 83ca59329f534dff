"""Every setting that amazon-vpc-cni-k8s v1.23.1 documents or reads, and what becomes of it here (I15).

Honoured: it is a field of `Settings`. Refused: some values ask for what this program does not do, and the daemon does not start, so
that no pod runs without something that was asked for; `harmless` values ask for nothing and are accepted. Without meaning: nothing
here depends on it; all that are set are named in one line at the start.
Source: amazon-vpc-cni-k8s README.md, "CNI Configuration Variables", and the code (docs/sources.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ipamd.model.record import dataclass
from ipamd.model.words import printable


class Fate(StrEnum):
    """What becomes of a setting of amazon-vpc-cni-k8s."""

    HONOURED = "honoured"
    REFUSED = "refused"
    WITHOUT_MEANING = "without meaning"


@dataclass(frozen=True, slots=True)
class Row:
    """One of its settings. `text`: a condition of an honoured one, what to do instead of a refused value, or why it means nothing.
    `harmless`: values that ask for nothing, in lower case."""

    name: str
    fate: Fate
    text: str = ""
    harmless: tuple[str, ...] = ()


NO = ("false", "f", "0")
YES = ("true", "t", "1")


def _refused(name: str, text: str, *, harmless: tuple[str, ...] = NO) -> Row:
    return Row(name, Fate.REFUSED, text, harmless)


def _without_meaning(text: str, *names: str) -> tuple[Row, ...]:
    return tuple(Row(name, Fate.WITHOUT_MEANING, text) for name in names)


UPSTREAM: tuple[Row, ...] = (
    *(
        Row(name, Fate.HONOURED)
        for name in (
            "WARM_ENI_TARGET",
            "WARM_IP_TARGET",
            "MINIMUM_IP_TARGET",
            "WARM_PREFIX_TARGET",
            "MAX_ENI",
            "IP_COOLDOWN_PERIOD",
            "ENABLE_PREFIX_DELEGATION",
            "ENABLE_IPv4",
            "ENABLE_IPv6",
            "ENABLE_V4_EGRESS",
            "ENABLE_V6_EGRESS",
            "ENABLE_SUBNET_DISCOVERY",
            "DISABLE_LEAKED_ENI_CLEANUP",
            "CLUSTER_NAME",
            "ADDITIONAL_ENI_TAGS",
            "AWS_EC2_ENDPOINT",
            "HTTP_TIMEOUT",
            "AWS_VPC_K8S_CNI_EXTERNALSNAT",
            "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS",
            "AWS_EXTERNAL_SERVICE_CIDRS",
            "AWS_VPC_K8S_CNI_RANDOMIZESNAT",
            "AWS_VPC_CNI_NODE_PORT_SUPPORT",
            "AWS_VPC_K8S_CNI_CONNMARK",
            "AWS_VPC_ENI_MTU",
            "POD_MTU",
            "AWS_VPC_K8S_CNI_VETHPREFIX",
            "ENABLE_BANDWIDTH_PLUGIN",
            "POD_SECURITY_GROUP_ENFORCING_MODE",
            "DISABLE_TCP_EARLY_DEMUX",
        )
    ),
    Row(
        "AWS_VPC_K8S_CNI_BACKING_STORE",
        Fate.HONOURED,
        "its file is read when a node comes over and written by `ipamctl export`; the datastore is in VPC_IPAMD_RUN_DIR",
    ),
    Row(
        "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG",
        Fate.HONOURED,
        "with the file of VPC_IPAMD_NETWORK_FILE, which `ipamctl convert-eniconfig` makes of ENIConfig objects; without it the daemon "
        "does not start",
    ),
    Row(
        "NETWORK_POLICY_ENFORCING_MODE",
        Fate.HONOURED,
        "with what docs/policy.md says; otherwise the daemon does not start",
    ),
    Row("ENABLE_POD_ENI", Fate.HONOURED, "with what docs/security-groups.md says"),
    _refused(
        "DISABLE_POD_V6",
        "pods of IPv4 get no IPv6 address without ENABLE_V6_EGRESS, and what they send by IPv6 is dropped anyway; to turn it off "
        "inside them too, chain the tuning plugin with VPC_IPAMD_CHAINED_PLUGINS",
    ),
    _refused(
        "ENABLE_MULTI_NIC", "one network card is managed: remove it; pods that need more run on nodes with amazon-vpc-cni-k8s"
    ),
    _refused(
        "DISABLE_NETWORK_RESOURCE_PROVISIONING",
        "the pool makes what it needs: to leave it as it is, use `ipamctl freeze` or VPC_IPAMD_FREEZE_FILE",
    ),
    _refused(
        "ENABLE_IMDS_ONLY_MODE", "EC2 is asked for every change: use `ipamctl freeze` or VPC_IPAMD_FREEZE_FILE to make none"
    ),
    _refused(
        "ANNOTATE_POD_IP",
        "pods are not annotated, because the Kubernetes API is never called: remove it, and read the address from the pod's status",
    ),
    _refused(
        "MANAGE_UNTAGGED_ENI",
        "ENIs without tags are managed: tag those that are not for pods with node.k8s.amazonaws.com/no_manage=true",
        harmless=YES,
    ),
    _refused("DISABLE_METRICS", "set VPC_IPAMD_METRICS_ADDRESS=off instead"),
    *_without_meaning(
        "set VPC_IPAMD_LOG_LEVEL; its manifest asks for DEBUG everywhere, which would fill logs here", "AWS_VPC_K8S_CNI_LOGLEVEL"
    ),
    *_without_meaning(
        "the daemon logs to standard error, and writes what the plugin does into its own log",
        "AWS_VPC_K8S_CNI_LOG_FILE",
        "AWS_VPC_K8S_PLUGIN_LOG_FILE",
        "AWS_VPC_K8S_PLUGIN_LOG_LEVEL",
        "AWS_VPC_K8S_EGRESS_V4_PLUGIN_LOG_FILE",
        "AWS_VPC_K8S_EGRESS_V6_PLUGIN_LOG_FILE",
    ),
    *_without_meaning(
        "the custom network's file is by availability zone (docs/subnets.md)", "ENI_CONFIG_ANNOTATION_DEF", "ENI_CONFIG_LABEL_DEF"
    ),
    *_without_meaning("ENIs are managed whether the node is schedulable or not", "AWS_MANAGE_ENIS_NON_SCHEDULABLE"),
    *_without_meaning(
        "introspection is served on a socket that root alone reaches (`ipamctl`)",
        "INTROSPECTION_BIND_ADDRESS",
        "DISABLE_INTROSPECTION",
    ),
    *_without_meaning("the init container installs the plugin where its mount leads", "HOST_CNI_BIN_PATH"),
    *_without_meaning("the conflist is written where VPC_IPAMD_CONFLIST says", "HOST_CNI_CONFDIR_PATH"),
    *_without_meaning("the Kubernetes API is never called", "CLUSTER_ENDPOINT", "MY_NODE_NAME", "MY_POD_NAME"),
    *_without_meaning("instance metadata tells the VPC", "VPC_ID"),
    *_without_meaning("the user agent names this program", "VPC_CNI_VERSION"),
    *_without_meaning("amazon-vpc-cni-k8s ignores it as well", "AWS_VPC_K8S_CNI_CONFIGURE_RPFILTER", "ENABLE_NFTABLES"),
    *_without_meaning(
        "it belongs to cni-metrics-helper: Prometheus scrapes this daemon (docs/metrics.md)",
        "USE_CLOUDWATCH",
        "USE_PROMETHEUS",
        "METRIC_UPDATE_INTERVAL",
        "AWS_CLUSTER_ID",
    ),
)
"""By name; the honoured ones first. `AWS_REGION`, which cni-metrics-helper reads, is the AWS SDK's and is left to it."""

FORMER: tuple[Row, ...] = (
    _refused(
        "VPC_IPAMD_PAGE_ADDRESS",
        "the daemon serves no page any more: remove it, and run `ipamctl page` on the node while you look at it (docs/page.md)",
        harmless=("off",),
    ),
    _refused(
        "VPC_IPAMD_PAGE_TOKEN_FILE", "remove it, and give the file to `ipamctl page --token-file` (docs/page.md)", harmless=()
    ),
)
"""Settings that this program had in an earlier release: what to do instead."""


def refused(given: Mapping[str, str]) -> list[str]:
    """Name each value that asks for what is not done here. Returns: one sentence for each, with what to do instead."""
    return [
        f"{row.name}={printable(given[row.name], most=40)}: {row.text}"
        for row in (*UPSTREAM, *FORMER)
        if row.fate is Fate.REFUSED and given.get(row.name, "") and given[row.name].lower() not in row.harmless
    ]


def without_meaning(given: Mapping[str, str]) -> list[str]:
    """Names of settings that are set and mean nothing here, sorted."""
    return sorted(row.name for row in UPSTREAM if row.fate is Fate.WITHOUT_MEANING and given.get(row.name, ""))
