"""vpc-ipamd's DaemonSet with the names of amazon-vpc-cni-k8s, which its tests use, and with settings by which it acts as early.

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
"""Settings of the daemon for the tests. A pod named aws-node-xxxxx must not count as a sign of amazon-vpc-cni-k8s. Links are named by
pod, because the tests compute the names. The pool follows its targets at once, because the tests expect that."""

ASKED_FOR = {"DISABLE_TCP_EARLY_DEMUX": "false", "ENABLE_IPv6": "false"}
"""Variables of the init container that a test may change, with their defaults."""


def as_aws_node(manifest: Object, *, image: str, environment: Mapping[str, str], family: Family = IPV4) -> Object:
    """Return a copy of the DaemonSet of manifests/base with the names of amazon-vpc-cni-k8s.

    Args:
        image: the image of both containers.
        environment: further variables of the daemon; they override those of the manifest.
        family: the family of the pods' addresses. Both containers get its settings.
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
