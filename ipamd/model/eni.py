"""ENIs of this instance, their limits, and the numbers of their route tables.

Route table numbers are those of amazon-vpc-cni-k8s, so that a node can be moved between both without renumbering.
"""

from __future__ import annotations

from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network

from ipamd.model.cloud import DescribedEni
from ipamd.model.ids import EniId, MacAddress, SubnetId
from ipamd.model.record import dataclass

MAIN_TABLE = 254
"""The kernel's main routing table."""

ADDRESSES_PER_PREFIX = 16


class EniState(StrEnum):
    """State of an ENI on this node. Only an attached ENI with host routing gives addresses (I7)."""

    ATTACHING = "attaching"
    ATTACHED = "attached"
    DRAINING = "draining"
    DETACHING = "detaching"


@dataclass(frozen=True, slots=True)
class Eni:
    """One ENI of this instance.

    `host_ready`: the host's routing for it is in place.
    `managed`: its addresses may be given to sandboxes.
    `created_by_us`: we created it, so we may delete it (I9).
    `excluded`: why no new sandbox gets its addresses, "" if sandboxes may have them: its subnet is excluded, custom networking keeps
        pods off the primary ENI, or an AWS service manages the ENI. Sandboxes keep the addresses that they have (I2).
    `pool`: the pool of pods that gets its addresses (`pod_pools.py`), "" for the node's own.
    """

    eni_id: EniId
    mac: MacAddress
    device_index: int
    network_card: int
    subnet_id: SubnetId
    subnet_cidr: IPv4Network
    primary_address: IPv4Address
    is_primary: bool
    state: EniState = EniState.ATTACHED
    host_ready: bool = False
    created_by_us: bool = False
    managed: bool = True
    excluded: str = ""
    pool: str = ""

    @property
    def is_in_pool(self) -> bool:
        """Whether it is attached and its addresses are for sandboxes; they are given once `host_ready`."""
        return self.managed and self.state is EniState.ATTACHED

    @property
    def gives_addresses(self) -> bool:
        """Whether its free addresses may be given (I7)."""
        return self.host_ready and not self.excluded and self.is_in_pool

    @property
    def route_table(self) -> int:
        """Route table of this ENI's traffic: always main for the primary ENI."""
        if self.is_primary:
            return MAIN_TABLE
        return route_table(self.device_index, self.network_card)


@dataclass(frozen=True, slots=True)
class InstanceLimits:
    """ENIs and addresses that an instance type can have.

    `source`: ec2, table or default.
    `trunk_capacity`: ENIs that its trunk ENI can carry, 0 if it can have no trunk; None: not known.
    `tcp_timeout_s`: after how many seconds EC2 forgets an established TCP connection by default; 0: EC2 did not say.
    `eni_count`: of network card 0.
    `further_card_enis`: of the cards from 1 on; cards that are missing there take as many as card 0.
    """

    instance_type: str
    eni_count: int
    ipv4_per_eni: int
    network_card_count: int = 1
    hypervisor: str = "nitro"
    is_bare_metal: bool = False
    source: str = "table"
    trunk_capacity: int | None = None
    tcp_timeout_s: int = 0
    further_card_enis: tuple[int, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether they are those of the instance type, and not a guess that holds for most types."""
        return self.source != "default"

    def eni_count_of(self, card: int) -> int:
        """Return how many ENIs a network card takes; 0 for a card that the type does not have."""
        if not 0 <= card < self.network_card_count:
            return 0
        if card and card <= len(self.further_card_enis):
            return self.further_card_enis[card - 1]
        return self.eni_count

    @property
    def slots_per_eni(self) -> int:
        """Addresses (or prefixes) besides the primary address. Source: amazon-vpc-cni-k8s misc/eni-max-pods.txt."""
        return max(self.ipv4_per_eni - 1, 0)

    @property
    def supports_prefixes(self) -> bool:
        """Whether prefixes can be delegated: on Nitro and bare metal only.

        Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, isConfigValid;
        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-prefix-eni.html.
        """
        return self.hypervisor == "nitro" or self.is_bare_metal

    @property
    def max_pods(self) -> int:
        """Pods that fit with single addresses. Source: the formula in amazon-vpc-cni-k8s misc/eni-max-pods.txt."""
        return self.eni_count * self.slots_per_eni + 2

    @property
    def max_pods_without_primary(self) -> int:
        """Pods that fit with single addresses where the primary ENI carries no pods.

        Source: https://docs.aws.amazon.com/eks/latest/userguide/cni-custom-network.html (one ENI less in the formula).
        """
        return (self.eni_count - 1) * self.slots_per_eni + 2


def route_table(device_index: int, network_card: int) -> int:
    """Return the number of an ENI's route table.

    Source: amazon-vpc-cni-k8s pkg/networkutils/helper.go, CalculateRouteTableId.
    Raises: ValueError for a negative index or card.
    """
    if device_index < 0 or network_card < 0:
        raise ValueError(f"device index {device_index} and network card {network_card} must not be negative")
    if network_card > 0:
        return 10000 + 100 * network_card + device_index
    if device_index == 0:
        return MAIN_TABLE
    return device_index + 1


def gateway(subnet: IPv4Network) -> IPv4Address:
    """Return the subnet's router: the first address after the network address.

    Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, GetIPv4Gateway.
    """
    return subnet.network_address + 1


OPERATOR = "an AWS service manages it: "
"""Prefix of the reason why an ENI with EC2's Operator.Managed is not for sandboxes: that service owns its addresses, its tags and its
life. Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_OperatorResponse.html."""


def operator_exclusion(described: DescribedEni) -> str:
    """Return which service manages an ENI, as a reason; "" if none does."""
    if described.operator:
        return f"{OPERATOR}{described.operator}"
    return ""
