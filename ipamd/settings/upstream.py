"""List every setting that amazon-vpc-cni-k8s v1.23.1 documents or reads, and how this program treats it (I15).

- Honoured: the setting is a field of `Settings`.
- Different: the daemon starts, although this program does not do what the value requests, or has another setting for it. The log and
  `ipamctl status` report the difference.
- Refused: the daemon does not start, because the value would break an invariant or make the daemon manage foreign ENIs.
- Without meaning: nothing in this program depends on the setting. The daemon lists all given settings of this kind in one line at the
  start.

Values that only the code of amazon-vpc-cni-k8s accepts are translated in `upstream_values.py`.
Source: amazon-vpc-cni-k8s README.md, "CNI Configuration Variables", and the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ipamd.model.record import dataclass
from ipamd.model.words import printable


class Fate(StrEnum):
    """How this program treats a setting of amazon-vpc-cni-k8s."""

    HONOURED = "honoured"
    DIFFERENT = "different"
    REFUSED = "refused"
    WITHOUT_MEANING = "without meaning"


@dataclass(frozen=True, slots=True)
class UpstreamSetting:
    """One setting of amazon-vpc-cni-k8s.

    `name`: its environment variable.
    `fate`: how this program treats it.
    `text`: an explanation of the fate. It is the condition under which the setting is honoured, the difference, the step to take
        instead of a refused value, or the reason why the setting has no meaning.
    `harmless`: values, in lower case, that are accepted although the fate is DIFFERENT or REFUSED, because they request nothing that
        this program does differently or refuses.
    """

    name: str
    fate: Fate
    text: str = ""
    harmless: tuple[str, ...] = ()


NO = ("false", "f", "0")
YES = ("true", "t", "1")


def _refused(name: str, text: str, *, harmless: tuple[str, ...] = NO) -> UpstreamSetting:
    return UpstreamSetting(name, Fate.REFUSED, text, harmless)


def _different(name: str, text: str) -> UpstreamSetting:
    return UpstreamSetting(name, Fate.DIFFERENT, text, NO)


def _without_meaning(text: str, *names: str) -> tuple[UpstreamSetting, ...]:
    return tuple(UpstreamSetting(name, Fate.WITHOUT_MEANING, text) for name in names)


SAME_MEANING = (
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
"""Settings that are honoured without any condition."""

UPSTREAM: tuple[UpstreamSetting, ...] = (
    *(UpstreamSetting(name, Fate.HONOURED) for name in SAME_MEANING),
    UpstreamSetting(
        "AWS_VPC_K8S_CNI_BACKING_STORE",
        Fate.HONOURED,
        "the file is read when a node is taken over, and written by `ipamctl export`; our datastore is in VPC_IPAMD_RUN_DIR",
    ),
    UpstreamSetting(
        "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG",
        Fate.HONOURED,
        "with the file of VPC_IPAMD_NETWORK_FILE, which `ipamctl convert-eniconfig` makes of ENIConfig objects; without it the daemon "
        "does not start",
    ),
    UpstreamSetting(
        "NETWORK_POLICY_ENFORCING_MODE",
        Fate.HONOURED,
        "as docs/policy.md describes; without an agent on the node no pod starts, unless VPC_IPAMD_POLICY_AGENT=absent is set",
    ),
    UpstreamSetting("ENABLE_POD_ENI", Fate.HONOURED, "as docs/security-groups.md describes"),
    UpstreamSetting("DISABLE_POD_V6", Fate.HONOURED, "except with IPv6 pods or egress by IPv6: then the daemon does not start"),
    UpstreamSetting(
        "DISABLE_NETWORK_RESOURCE_PROVISIONING",
        Fate.HONOURED,
        "as a freeze of the pool: no ENI is made, nothing is assigned or released; EC2 is still read, because metadata alone "
        "confirms no address (I7)",
    ),
    UpstreamSetting(
        "ENABLE_MULTI_NIC",
        Fate.HONOURED,
        "as docs/network-cards.md describes; the annotation is read in the namespaces of VPC_IPAMD_MULTI_NIC_NAMESPACES only",
    ),
    _different(
        "ANNOTATE_POD_IP",
        "pods are not annotated, because the Kubernetes API is never called: their addresses are in their status",
    ),
    _different("DISABLE_METRICS", "it means VPC_IPAMD_METRICS_ADDRESS=off, unless that is set"),
    _refused(
        "ENABLE_IMDS_ONLY_MODE",
        "metadata alone confirms no address (I7): remove ENABLE_IMDS_ONLY_MODE, set DISABLE_NETWORK_RESOURCE_PROVISIONING=true "
        "instead, and allow ec2:DescribeNetworkInterfaces, ec2:DescribeInstances and ec2:DescribeSubnets",
    ),
    _refused(
        "MANAGE_UNTAGGED_ENI",
        "ENIs without tags are managed: tag those that are not for pods with node.k8s.amazonaws.com/no_manage=true",
        harmless=YES,
    ),
    *_without_meaning(
        "set VPC_IPAMD_LOG_LEVEL; the manifest of amazon-vpc-cni-k8s sets DEBUG, with which this daemon would write too much",
        "AWS_VPC_K8S_CNI_LOGLEVEL",
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
        "the file of custom networking has its entries by availability zone (docs/subnets.md)",
        "ENI_CONFIG_ANNOTATION_DEF",
        "ENI_CONFIG_LABEL_DEF",
    ),
    *_without_meaning("ENIs are managed whether the node is schedulable or not", "AWS_MANAGE_ENIS_NON_SCHEDULABLE"),
    *_without_meaning(
        "introspection is served on a Unix socket that only root can open (`ipamctl`)",
        "INTROSPECTION_BIND_ADDRESS",
        "DISABLE_INTROSPECTION",
    ),
    *_without_meaning("the init container installs the plugin into the directory that is mounted", "HOST_CNI_BIN_PATH"),
    *_without_meaning("the conflist is written where VPC_IPAMD_CONFLIST_FILE says", "HOST_CNI_CONFDIR_PATH"),
    *_without_meaning("the Kubernetes API is never called", "CLUSTER_ENDPOINT", "MY_NODE_NAME", "MY_POD_NAME"),
    *_without_meaning("the VPC is read from instance metadata", "VPC_ID"),
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
"""All settings of amazon-vpc-cni-k8s, the honoured settings first. `AWS_REGION`, which cni-metrics-helper reads, is missing, because
it is a setting of the AWS SDK."""


def refused(given: Mapping[str, str]) -> list[str]:
    """Find the values that this program refuses. Returns: one sentence for each, with the step to take instead.

    For a setting of the fate DIFFERENT every value that is not a boolean is refused.
    """
    sentences = []
    for setting in UPSTREAM:
        value = given.get(setting.name, "")
        if setting.fate is Fate.REFUSED and value and value.lower() not in setting.harmless:
            sentences.append(f"{setting.name}={printable(value, most=40)}: {setting.text}")
        elif setting.fate is Fate.DIFFERENT and value and value.lower() not in (*NO, *YES):
            sentences.append(f"{setting.name}={printable(value, most=40)}: must be true or false")
    return sentences


def different(given: Mapping[str, str]) -> list[str]:
    """Find the values that work differently here. Returns: one sentence for each."""
    sentences = []
    for setting in UPSTREAM:
        value = given.get(setting.name, "")
        if setting.fate is Fate.DIFFERENT and value and value.lower() not in setting.harmless:
            sentences.append(f"{setting.name}={printable(value, most=40)}: {setting.text}")
    return sentences


def without_meaning(given: Mapping[str, str]) -> list[str]:
    """Return the names of settings that are set and have no meaning here, sorted."""
    return sorted(setting.name for setting in UPSTREAM if setting.fate is Fate.WITHOUT_MEANING and given.get(setting.name, ""))
