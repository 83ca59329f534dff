"""The suites of amazon-vpc-cni-k8s's test/integration, with the reasons why some of their cases are not run or cannot pass.

A suite with a `reason` is not run at all, because all of its cases need something that the lab does not have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from lab.vpc.family import IPV4, IPV6, Family


class Need(Enum):
    """What a suite needs besides the cluster."""

    IAM = "the policies of the nodes' role can be changed"
    INTERNET = "gateways, and a website outside of the VPC"
    EARLIER_IMAGE = "an image of an earlier commit (tools/image_before.sh)"


@dataclass(frozen=True)
class Exclusion:
    """Cases of a suite, and the reason why they are not run or may fail. `pattern`: searched in the full name of a case."""

    pattern: str
    reason: str


@dataclass(frozen=True)
class Suite:
    """One suite, which is one program of tests.

    reason: why the suite is not run; "" if it is run.
    exclusions: cases that are not run.
    deviations: cases that are run and may fail, because vpc-ipamd behaves differently on purpose.
    options: options of the program; {subnet} and {zone} stand for those of the nodes, {private} for the subnet of the node group,
        {before} and {now} for manifests with the image of an earlier commit and of this tree.
    family: address family of the cluster that the suite needs.
    needs: what the suite needs besides.
    settings: variables of the daemon for this suite.
    node_group: instance type of the node that the suite launches by CloudFormation; "" if it launches none.
    """

    name: str
    timeout_s: int = 3600
    reason: str = ""
    exclusions: Sequence[Exclusion] = ()
    deviations: Sequence[Exclusion] = ()
    options: Sequence[str] = ()
    family: Family = IPV4
    needs: frozenset[Need] = frozenset()
    settings: Mapping[str, str] = field(default_factory=dict)
    node_group: str = ""

    def reason_for(self, case: str) -> str:
        """Return why a case is not run; "" if it is run."""
        return _first_reason(self.exclusions, case)

    def deviation_of(self, case: str) -> str:
        """Return why a case may fail; "" if it must pass."""
        return _first_reason(self.deviations, case)


def _first_reason(exclusions: Sequence[Exclusion], case: str) -> str:
    matching = (exclusion.reason for exclusion in exclusions if re.search(exclusion.pattern, case))
    return next(matching, "")


_FORMER_MODE = (
    "free addresses of the former mode are supply and count for the target, so a live switch needs no new ones (docs/adr/0029)"
)
_RULES = "their tester asks for a rule to each pod's address; here one rule leads to all pods (docs/adr/0044)"
_FIRST_RULES = f"it first asks the same of a sound pod: {_RULES}"
_ENI_CONFIGS = (
    "it makes ENIConfig objects and ends the instances, which an Auto Scaling group must replace; custom networking is by a file here "
    "(docs/adr/0030)"
)
_SUBNETS = (
    "--public-subnets={subnet}",
    "--availability-zones={zone}",
    "--public-route-table-id=rtb-0123456789abcdef0",
)
"""Options with the subnets and their route table. Without them the suite asks EC2 for route tables, which the lab does not have."""

_NODE_GROUP = (*_SUBNETS, "--private-subnets={private}")
"""Options with the subnet in which the suite makes a node group."""

_REGISTRY = "it installs software whose images come from a registry"

SUITES = (
    Suite("az-traffic"),
    Suite("calico", reason=_REGISTRY),
    Suite(
        "cni",
        timeout_s=6000,
        exclusions=(
            Exclusion(
                "verifies VPC CNI is kube-proxy mode agnostic",
                "it looks for the iptables chain or the nftables table of amazon-vpc-cni-k8s by name; the same promise is held by "
                "`make cluster` and tests/netns/test_other_software.py",
            ),
            Exclusion("test host networking.* invalid input", _FIRST_RULES),
            Exclusion("test host networking", _RULES),
            Exclusion(
                "MAC address [Pp]olicy",
                "it needs systemd-udevd on the node, which a lab node does not run; tests/netns/test_networkd_files.py has it",
            ),
            Exclusion(
                "AWS_VPC_K8S_CNI_LOG_FILE",
                "the daemon logs to standard error; the setting has no meaning here (docs/settings.md)",
            ),
        ),
        deviations=(Exclusion("^test pod networking", f"after a test with prefixes: {_FORMER_MODE}"),),
    ),
    Suite("cni-egress", reason="it finds a pod's egress address by its prefix, /118; here an address of a pod is a /128"),
    Suite(
        "cni-upgrade-downgrade",
        options=("--initial-manifest-file={before}", "--target-manifest-file={now}"),
        exclusions=(Exclusion("test host networking", _RULES),),
        needs=frozenset({Need.EARLIER_IMAGE}),
    ),
    Suite(
        "core-plugins",
        exclusions=(
            Exclusion(
                "all core plugins should be present",
                "four reference plugins come with the image, those that a conflist of ours can name (docs/adr/0039)",
            ),
        ),
    ),
    Suite("custom-networking", reason=_ENI_CONFIGS),
    Suite("custom-networking-sgpp", reason=_ENI_CONFIGS),
    Suite(
        "eni-subnet-discovery",
        timeout_s=6000,
        options=_SUBNETS,
        needs=frozenset({Need.IAM}),
        settings={"VPC_IPAMD_SUBNETS_VALID_SECONDS": "1"},
    ),
    Suite(
        "ipamd",
        timeout_s=6000,
        exclusions=(
            Exclusion("IPAMD Introspection", "introspection is served on a socket that root alone reaches (docs/ipamctl.md)"),
            Exclusion(
                "aws-node pod event",
                "it takes IAM policies away, and the daemon never calls the Kubernetes API to raise an event",
            ),
        ),
        deviations=(
            Exclusion("with PD enabled when WARM_IP_TARGET = 2 should have 1 prefix", _FORMER_MODE),
            Exclusion("ADDITIONAL_ENI_TAGS", f"after a test with prefixes: {_FORMER_MODE}"),
        ),
    ),
    Suite(
        "ipv6",
        exclusions=(
            Exclusion("test ipv6 host netns setup.* invalid input", _FIRST_RULES),
            Exclusion("test ipv6 host netns setup", _RULES),
        ),
        family=IPV6,
    ),
    Suite("metrics-helper", reason="cni-metrics-helper and CloudWatch are not in the lab; Prometheus scrapes the daemon"),
    Suite("multus", reason=_REGISTRY),
    Suite("pod-eni", reason="it ends the instances and waits for an Auto Scaling group to replace them"),
    Suite(
        "snat",
        options=_NODE_GROUP,
        exclusions=(Exclusion("RANDOMIZESNAT", "it looks for the iptables chain of amazon-vpc-cni-k8s by name"),),
        needs=frozenset({Need.INTERNET}),
        node_group="m5.large",
    ),
    Suite("eni-trunking", options=_NODE_GROUP, node_group="t3.medium"),
)


def suite(name: str) -> Suite:
    """Return the suite of this name. Raises: KeyError."""
    return {known.name: known for known in SUITES}[name]
