"""Which packets of pods with security groups of their own pass their branch ENI, and so their security groups."""

from __future__ import annotations

from enum import StrEnum


class EnforcingMode(StrEnum):
    """The value of POD_SECURITY_GROUP_ENFORCING_MODE: which packets of the pod pass its branch ENI.

    STRICT: all.
    STANDARD: those that leave the node, and none to or from the node itself and its other pods.

    Source: amazon-vpc-cni-k8s pkg/sgpp/constants.go.
    """

    STRICT = "strict"
    STANDARD = "standard"
