"""vpc-ipamd as a DaemonSet that the tests of amazon-vpc-cni-k8s take for theirs: its names, and settings that make it act as soon.

The tests change the environment of the container `aws-node`, or of the init container `aws-vpc-cni-init`, in the DaemonSet `aws-node`,
and find its pods by the label `k8s-app=aws-node`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from lab.vpc.family import IPV4, Family

Object = dict[str, Any]

NAME, INIT_NAME = "aws-node", "aws-vpc-cni-init"
LABEL = {"k8s-app": NAME}

SOONER = {
    "VPC_IPAMD_AWS_NODE_SOCKET": "off",
    "VPC_IPAMD_POD_VETH_NAMES": "true",
    "VPC_IPAMD_RELEASE_HOLD_SECONDS": "1",
    "VPC_IPAMD_SPARE_ENI_DELAY_SECONDS": "0",
}
"""A pod named aws-node-xxxxx is no sign of the other software here; links are named by pod, as their tester computes the names; and
the pool follows its targets at once, as their tests expect."""

ASKED_FOR = {"DISABLE_TCP_EARLY_DEMUX": "false", "ENABLE_IPv6": "false"}
"""Variables of their init container which a test may change."""


def as_aws_node(manifest: Object, *, image: str, environment: Mapping[str, str], family: Family = IPV4) -> Object:
    """Rename the DaemonSet of manifests/base and its containers; `manifest` is left as it is.

    Args:
        image: what both containers run.
        environment: more variables of the daemon, over those of the manifest.
        family: of the pods' addresses, which both containers are told.
    """
    daemonset = copy.deepcopy(manifest)
    daemonset["metadata"] |= {"name": NAME, "labels": LABEL}
    spec = daemonset["spec"]
    spec["selector"] = {"matchLabels": LABEL}
    spec["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0}}
    spec["template"]["metadata"]["labels"] = LABEL
    pod = spec["template"]["spec"]
    del pod["serviceAccountName"]
    (init,), (daemon,) = pod["initContainers"], pod["containers"]
    init |= {
        "name": INIT_NAME,
        "image": image,
        "imagePullPolicy": "Never",
        "env": _merged(init["env"], ASKED_FOR | dict(family.settings)),
    }
    daemon |= {
        "name": NAME,
        "image": image,
        "imagePullPolicy": "Never",
        "env": _merged(daemon["env"], SOONER | dict(environment) | dict(family.settings)),
    }
    return daemonset


def _merged(variables: list[Object], more: Mapping[str, str]) -> list[Object]:
    values = {variable["name"]: variable["value"] for variable in variables} | dict(more)
    return [{"name": name, "value": value} for name, value in values.items()]
