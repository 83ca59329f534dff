"""How many ENIs, network cards and addresses an instance type supports.

The daemon does not use this table: it calls DescribeInstanceTypes, which the lab answers from the table. Source of the numbers: AWS
"IP addresses per network interface per instance type"; a test compares them with moto's data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class InstanceLimits:
    """Limits of one instance type.

    enis_per_card: most ENIs of each network card.
    addresses_per_eni: most addresses of an ENI. The primary address counts, and a prefix counts as one.
    hypervisor: "" on bare metal.
    shared_slots: most ENIs, volumes and NVMe instance stores together, on most Nitro types; None where volumes have slots of their own
        ("Amazon EBS volume limits for Amazon EC2 instances", EBS user guide).
    branches: most branch ENIs of the trunk; 0 if the type can have no trunk (amazon-vpc-resource-controller-k8s
        pkg/aws/vpc/limits.go). No answer of EC2 has this number.
    tcp_timeout_s: seconds after which EC2 forgets an idle TCP connection.
    """

    enis_per_card: tuple[int, ...]
    addresses_per_eni: int
    hypervisor: str = "nitro"
    architecture: str = "x86_64"
    vcpus: int = 2
    memory_mib: int = 8192
    shared_slots: int | None = 28
    branches: int = 0
    tcp_timeout_s: int = 432_000

    @property
    def total_enis(self) -> int:
        """Most ENIs of all network cards together."""
        return sum(self.enis_per_card)

    @property
    def is_bare_metal(self) -> bool:
        """Whether there is no hypervisor."""
        return not self.hypervisor


LIMITS: Mapping[str, InstanceLimits] = {
    "t3.nano": InstanceLimits((2,), 2, memory_mib=512),
    "t3.micro": InstanceLimits((2,), 2, memory_mib=1024),
    "t3.small": InstanceLimits((3,), 4, memory_mib=2048),
    "t3.medium": InstanceLimits((3,), 6, memory_mib=4096),
    "t3.large": InstanceLimits((3,), 12),
    "m4.large": InstanceLimits((2,), 10, hypervisor="xen", shared_slots=None),
    "m5.large": InstanceLimits((3,), 10, branches=9),
    "m5.xlarge": InstanceLimits((4,), 15, vcpus=4, memory_mib=16384, branches=18),
    "m5.4xlarge": InstanceLimits((8,), 30, vcpus=16, memory_mib=65536, branches=54),
    "m5.24xlarge": InstanceLimits((15,), 50, vcpus=96, memory_mib=393216, branches=107),
    "m5.metal": InstanceLimits((15,), 50, hypervisor="", vcpus=96, memory_mib=393216, branches=120),
    "m6g.large": InstanceLimits((3,), 10, architecture="arm64", branches=9),
    "m7i.large": InstanceLimits((3,), 10, shared_slots=None, branches=9),
    "c5.large": InstanceLimits((3,), 10, memory_mib=4096, branches=9),
    "c5.18xlarge": InstanceLimits((15,), 50, vcpus=72, memory_mib=147456, branches=107),
    "c6in.32xlarge": InstanceLimits((8, 8), 50, vcpus=128, memory_mib=262144, branches=106),
    "m8i.16xlarge": InstanceLimits((16,), 64, vcpus=64, memory_mib=262144, shared_slots=None, branches=106, tcp_timeout_s=350),
    "p4d.24xlarge": InstanceLimits((15, 15, 15, 15), 50, vcpus=96, memory_mib=1179648, shared_slots=None, branches=62),
}

MOST_ADDRESSES_PER_ENI = 64  # limit of an ENI that is not attached: the largest `addresses_per_eni` that AWS lists for a type
