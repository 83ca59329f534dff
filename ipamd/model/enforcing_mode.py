"""How the packets of pods with security groups of their own are led."""

from __future__ import annotations

from enum import StrEnum


class EnforcingMode(StrEnum):
    """POD_SECURITY_GROUP_ENFORCING_MODE. Source: amazon-vpc-cni-k8s pkg/sgpp/constants.go."""

    STRICT = "strict"
    STANDARD = "standard"
