"""The modes that decide which packets of a pod with security groups of its own pass these security groups."""

from __future__ import annotations

from enum import StrEnum


class EnforcingMode(StrEnum):
    """The value of POD_SECURITY_GROUP_ENFORCING_MODE: which packets of the pod pass its branch ENI.

    STRICT: all packets.
    STANDARD: packets between the pod and anything outside its node, but not packets between the pod and its node or its node's pods.

    Source: amazon-vpc-cni-k8s pkg/sgpp/constants.go.
    """

    STRICT = "strict"
    STANDARD = "standard"
