"""How connections of one sandbox to outside the VPC are translated, where that differs from the node's settings (docs/adr/0082)."""

from __future__ import annotations

from enum import StrEnum


class PodSnat(StrEnum):
    """The choice for a sandbox. A sandbox without a choice is translated as the node's settings say.

    NONE: its connections keep its own address.
    FORCE: all its connections to outside the VPC get the node's primary address.
    """

    NONE = "none"
    FORCE = "force"
