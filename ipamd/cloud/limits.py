"""ENIs and addresses of an instance type: EC2's answer, then the built-in table, then a safe default.

An unknown type is not an error: new types appear weekly, and a node must start on them. Only ENIs of the default network card
count (p5.48xlarge: 2, not 64), because the pool uses that card only. amazon-vpc-cni-k8s
counts the same way (misc/eni-max-pods.txt, its note on multi-card types).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipamd.cloud.limits_table import TABLE
from ipamd.model.eni import InstanceLimits

DEFAULT_ENIS, DEFAULT_ADDRESSES = 2, 4
"""The smallest Nitro size of the general families (a1.medium, c6g.medium, m7a.medium, ...). Ours: only nano and micro of the T
families, d3 and hpc6id have less, and the table has all of these, so a new type is none of them. EC2's first refusal corrects a
value that is too high; nothing corrects one that is too low."""


def from_ec2(instance_type: str, answer: Mapping[str, Any]) -> InstanceLimits | None:
    """Read a DescribeInstanceTypes answer; None if the type is missing or has no usable count."""
    for entry in answer.get("InstanceTypes", ()):
        network = entry.get("NetworkInfo", {})
        cards = {card.get("NetworkCardIndex", 0): card for card in network.get("NetworkCards", ())}
        default_card = cards.get(network.get("DefaultNetworkCardIndex", 0), {})
        enis = default_card.get("MaximumNetworkInterfaces", network.get("MaximumNetworkInterfaces", 0))
        addresses = network.get("Ipv4AddressesPerInterface", 0)
        if entry.get("InstanceType") == instance_type and enis > 0 and addresses > 0:
            return InstanceLimits(
                instance_type=instance_type,
                eni_count=enis,
                ipv4_per_eni=addresses,
                network_card_count=max(network.get("MaximumNetworkCards", 1), 1),
                hypervisor=entry.get("Hypervisor", ""),
                is_bare_metal=entry.get("BareMetal", False),
                source="ec2",
            )
    return None


def from_table(instance_type: str) -> InstanceLimits | None:
    """Find a type in the built-in table; None if it is missing."""
    family, _, size = instance_type.partition(".")
    for row in TABLE.splitlines():
        enis, addresses, cards, kind, *held = row.split()
        for part in held:
            name, _, sizes = part.partition(":")
            if name == family and size in sizes.split(","):
                return InstanceLimits(
                    instance_type=instance_type,
                    eni_count=int(enis),
                    ipv4_per_eni=int(addresses),
                    network_card_count=int(cards),
                    hypervisor="" if kind == "metal" else kind,
                    is_bare_metal=kind == "metal",
                    source="table",
                )
    return None


def safe_default(instance_type: str) -> InstanceLimits:
    """Limits that every current type of the general families reaches."""
    return InstanceLimits(instance_type, DEFAULT_ENIS, DEFAULT_ADDRESSES, source="default")
