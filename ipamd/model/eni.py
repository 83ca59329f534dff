"""ENIs of this instance, their limits, the numbers of their route tables, and the tags by which they are known.

Route table numbers are those of amazon-vpc-cni-k8s, so that a node can be moved between both without renumbering.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network

from ipamd.model.cloud import INTENT_TAG, DescribedEni, InstanceIdentity
from ipamd.model.ids import EniId, MacAddress, SubnetId
from ipamd.model.record import dataclass
from ipamd.model.words import rfc3339

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

    `host_ready`: the host's routing for it is in place. `managed`: its addresses may be given to sandboxes.
    `created_by_us`: we created it, so we may delete it (I9). `excluded`: why its addresses are for no new sandbox, "" if they are: its
    subnet is excluded, or custom networking keeps pods off the primary ENI. Those that sandboxes have stay theirs (I2).
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
        return MAIN_TABLE if self.is_primary else route_table(self.device_index, self.network_card)


@dataclass(frozen=True, slots=True)
class InstanceLimits:
    """ENIs and addresses that an instance type can have. `source`: ec2, table or default.

    `branch_count`: branch ENIs of its trunk ENI, 0 if it can have no trunk; None: not known.
    """

    instance_type: str
    eni_count: int
    ipv4_per_eni: int
    network_card_count: int = 1
    hypervisor: str = "nitro"
    is_bare_metal: bool = False
    source: str = "table"
    branch_count: int | None = None

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
        """The same where the primary ENI carries no pods.

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
    return MAIN_TABLE if device_index == 0 else device_index + 1


def gateway(subnet: IPv4Network) -> IPv4Address:
    """Return the subnet's router: the first address after the network address.

    Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, GetIPv4Gateway.
    """
    return subnet.network_address + 1


# Names that mark ENIs as made for a node, as amazon-vpc-cni-k8s writes them: its tools and IAM conditions hold for ours too.
#
# Source: amazon-vpc-cni-k8s pkg/awsutils/awsutils.go.


INSTANCE_TAG = "node.k8s.amazonaws.com/instance_id"
NO_MANAGE_TAG = "node.k8s.amazonaws.com/no_manage"
CREATED_AT_TAG = "node.k8s.amazonaws.com/createdAt"
CLUSTER_TAG = "cluster.k8s.amazonaws.com/name"
DESCRIPTION_PREFIX = "aws-K8S-"
OWNER_TAG = ("eks:eni:owner", "amazon-vpc-cni")

TRUNK = "trunk"
"""Interface type of the ENI that carries a node's branch ENIs."""

FOREIGN_INTERFACE_TYPES = frozenset({"efa-only", TRUNK, "branch"})
"""Attached, and not for sandboxes: EFA-only ENIs have no IP address, trunk and branch ENIs belong to the VPC resource controller.
Source: amazon-vpc-cni-k8s pkg/awsutils/awsutils.go; https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa.html."""


@dataclass(frozen=True, slots=True)
class EniTags:
    """What a new ENI is tagged with: the cluster's name, if it is known, and the operator's own tags."""

    cluster_name: str = ""
    additional: tuple[tuple[str, str], ...] = ()

    def of_new_eni(self, identity: InstanceIdentity, *, created_at: datetime, token: str) -> dict[str, str]:
        """Tags by name; the operator's own win, except over the creation's token, by which its outcome is searched for."""
        tags = {INSTANCE_TAG: str(identity.instance_id), CREATED_AT_TAG: rfc3339(created_at, timespec="seconds")}
        if self.cluster_name:
            tags |= {CLUSTER_TAG: self.cluster_name, OWNER_TAG[0]: OWNER_TAG[1]}
        return tags | dict(self.additional) | {INTENT_TAG: token}


def description(identity: InstanceIdentity) -> str:
    """Describe an ENI of this node, as people see it in the console."""
    return f"{DESCRIPTION_PREFIX}{identity.instance_id}"


def is_created_by_us(described: DescribedEni, identity: InstanceIdentity) -> bool:
    """Whether the ENI carries our tag for this instance; the primary ENI came with the instance.

    The trunk carries the same tag, and is the control plane's. Source: amazon-vpc-resource-controller-k8s pkg/config/type.go,
    NetworkInterfaceNodeIDKey.
    """
    is_tagged = described.tags.get(INSTANCE_TAG) == identity.instance_id and described.eni_id != identity.primary_eni_id
    return is_tagged and described.interface_type not in FOREIGN_INTERFACE_TYPES


def is_managed(described: DescribedEni, *, is_primary: bool, instance_id: str) -> bool:
    """Whether an attached ENI's addresses are for sandboxes.

    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, setUnmanagedENIs.
    """
    if is_primary:
        return True
    if described.interface_type in FOREIGN_INTERFACE_TYPES or described.network_card > 0:
        return False
    if NO_MANAGE_TAG in described.tags:
        return described.tags[NO_MANAGE_TAG] != "true"
    return described.tags.get(INSTANCE_TAG, instance_id) == instance_id


# Which detached ENIs are leaked: made for a node, attached to nothing, and old enough that nobody is still making them. Pure.
#
# One rule for a node's own, at its start, and for a cluster's (`ipamd/sweeper.py`). It says why an ENI is kept, because everything
# that it lets through is deleted. As in amazon-vpc-cni-k8s (pkg/awsutils/awsutils.go, getLeakedENIs) but for this: an ENI without
# a readable creation time is kept for ever; there an absent time is written now, which costs a call and a permission, and an
# unreadable one deletes at once.


AVAILABLE = "available"


def why_kept(eni: DescribedEni, *, now: datetime, min_age: timedelta, cluster_name: str = "") -> str:
    """Say why an ENI is no leaked one; "" if it is.

    Args:
        now: aware UTC.
        min_age: since the creation time in its tag; must exceed the longest time from creation to attachment.
        cluster_name: whose tag it must carry, exactly; "" for none.
    """
    if eni.problem:
        return f"EC2's answer about it cannot be read: {eni.problem}"
    if eni.status != AVAILABLE or eni.attachment_id or eni.instance_id:
        return f"it is {eni.status}, attached to {eni.instance_id or 'something'}"
    if cluster_name and eni.tags.get(CLUSTER_TAG) != cluster_name:
        return f"its tag {CLUSTER_TAG} is {eni.tags.get(CLUSTER_TAG, 'missing')!r}"
    if not eni.tags.get(INSTANCE_TAG):
        return f"it has no tag {INSTANCE_TAG}"
    if not eni.description.startswith(DESCRIPTION_PREFIX):
        return f"its description does not begin with {DESCRIPTION_PREFIX}"
    if NO_MANAGE_TAG in eni.tags:
        return f"somebody tagged it {NO_MANAGE_TAG}"
    text = eni.tags.get(CREATED_AT_TAG, "")
    if not text:
        return f"it has no tag {CREATED_AT_TAG}: its age is not known"
    try:
        created_at = datetime.fromisoformat(text)
        if created_at.tzinfo is None:
            raise ValueError("no time zone")
        age = now - created_at.astimezone(UTC)
    except (ValueError, OverflowError):
        return f"its tag {CREATED_AT_TAG} is no time ({text[:40]!r}): its age is not known"
    return f"it is {age.total_seconds():.0f} s old, less than {min_age.total_seconds():.0f} s" if age < min_age else ""
