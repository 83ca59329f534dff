"""ENIs of this instance, their limits, and the numbers of their route tables.

Route table numbers are those of amazon-vpc-cni-k8s, so that a node can be migrated from it to vpc-ipamd, and back, without
renumbering.
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
    """State of an ENI on this node. Only addresses of an attached ENI with host routing are assigned (I7).

    ATTACHED: EC2 has shown it attached. An ENI that EC2 is attaching has no row yet, but an intent.
    DETACHING: EC2 was asked to detach it.
    """

    ATTACHED = "attached"
    DETACHING = "detaching"


@dataclass(frozen=True, slots=True)
class Eni:
    """One ENI of this instance.

    `subnet_cidr`: the IPv4 CIDR of its subnet.
    `primary_address`: its primary IPv4 address, which no sandbox gets (I6).
    `is_primary`: whether it is the primary ENI of the instance.
    `host_ready`: whether the host's routing for it is in place.
    `managed`: whether its addresses are for sandboxes.
    `created_by_us`: whether we created it, so that we may delete it (I9).
    `excluded`: why no new sandbox gets its addresses, for example because its subnet is excluded or an AWS service manages it; "" if
    sandboxes may have them. Sandboxes keep the addresses that they have (I2).
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
        """Whether it is attached and its addresses are for sandboxes. The addresses are assigned once `host_ready` is set."""
        return self.managed and self.state is EniState.ATTACHED

    @property
    def gives_addresses(self) -> bool:
        """Whether its free addresses may be assigned (I7)."""
        return self.host_ready and not self.excluded and self.is_in_pool

    @property
    def route_table(self) -> int:
        """The route table of this ENI's traffic; for the primary ENI it is always the main table."""
        if self.is_primary:
            return MAIN_TABLE
        return route_table(self.device_index, self.network_card)


@dataclass(frozen=True, slots=True)
class InstanceLimits:
    """The ENIs and addresses that an instance type can have.

    `eni_count`: the ENIs that network card 0 takes.
    `ipv4_per_eni`: the IPv4 addresses of an ENI, including the primary one.
    `source`: where the limits are from: `ec2` (an answer of EC2), `table` (our built-in table), or `default` (a guess).
    `trunk_capacity`: the branch ENIs that the trunk ENI can carry; 0 if the type can have no trunk ENI; None: not known.
    `tcp_timeout_s`: after how many seconds EC2 forgets an established TCP connection by default; 0: not known.
    `further_card_enis`: the ENIs that each network card from card 1 on takes. A card that is missing here takes as many as card 0.
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
        """Whether the limits are those of the instance type, and not the default."""
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
        """The secondary addresses, or prefixes, that an ENI can have. Source: amazon-vpc-cni-k8s misc/eni-max-pods.txt."""
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
        """Pods that fit with single addresses, including two on the host's network. Source: the formula in amazon-vpc-cni-k8s
        misc/eni-max-pods.txt.
        """
        return self.eni_count * self.slots_per_eni + 2

    @property
    def max_pods_without_primary(self) -> int:
        """Pods that fit with single addresses, including two on the host's network, where the primary ENI carries no pods.

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
"""Prefix of the reason why an ENI with EC2's Operator.Managed is not for sandboxes: the service that manages it owns its addresses and
tags, and deletes it. Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_OperatorResponse.html."""


def operator_exclusion(described: DescribedEni) -> str:
    """Return a reason which says that an AWS service manages an ENI, and names the service; "" if none does."""
    if described.operator:
        return f"{OPERATOR}{described.operator}"
    return ""
