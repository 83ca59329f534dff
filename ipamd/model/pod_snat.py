"""A sandbox's choice of how its connections to outside the VPC are translated (docs/adr/0082)."""

from __future__ import annotations

from enum import StrEnum


class PodSnat(StrEnum):
    """The choice. Connections of a sandbox without a choice are translated as the node's settings say.

    NONE: the sandbox's connections keep the sandbox's address as their source.
    FORCE: all connections of the sandbox to outside the VPC get the node's primary address as their source.
    """

    NONE = "none"
    FORCE = "force"
