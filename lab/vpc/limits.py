"""How many ENIs, network cards and addresses an instance type supports.

The table is the lab's, not the daemon's: the daemon asks DescribeInstanceTypes and gets these numbers. Numbers:
AWS "IP addresses per network interface per instance type", compared with moto's data by a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class InstanceLimits:
    """Limits of one instance type.

    `enis_per_card` has one entry per network card; `addresses_per_eni` counts the primary address and each prefix as
    one; `hypervisor` is empty on bare metal. `total_enis` is what the type carries over all cards. `shared_slots`: ENIs, volumes
    and NVMe instance stores together on most Nitro types; None where volumes have slots of their own ("Amazon EBS volume limits
    for Amazon EC2 instances", EBS user guide). `branches`: branch ENIs of its trunk, 0 without one (amazon-vpc-resource-controller-k8s
    pkg/aws/vpc/limits.go); EC2 tells them in no answer. `tcp_timeout_s`: seconds until an idle TCP connection is forgotten.
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
        """ENIs over all cards together."""
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

MOST_ADDRESSES_PER_ENI = 64  # the largest value AWS lists; bounds an ENI that is attached to nothing
