"""Tags that mark ENIs as made for a node. They are the tags of amazon-vpc-cni-k8s, so that tools and IAM conditions that were made for
amazon-vpc-cni-k8s work for our ENIs too.

Source: amazon-vpc-cni-k8s pkg/awsutils/awsutils.go.
"""

from __future__ import annotations

from datetime import datetime

from ipamd.model.cloud import INTENT_TAG, DescribedEni, InstanceIdentity
from ipamd.model.record import dataclass
from ipamd.model.time_text import rfc3339

INSTANCE_TAG = "node.k8s.amazonaws.com/instance_id"

POOL_TAG = "vpc-ipamd/pool"
"""Tag with the pool of pods for which an ENI was made (docs/adr/0084). Ours: if the datastore was lost, this tag shows the pool of an
ENI."""

NO_MANAGE_TAG = "node.k8s.amazonaws.com/no_manage"

CREATED_AT_TAG = "node.k8s.amazonaws.com/createdAt"

CLUSTER_TAG = "cluster.k8s.amazonaws.com/name"

DESCRIPTION_PREFIX = "aws-K8S-"

OWNER_TAG = ("eks:eni:owner", "amazon-vpc-cni")

TRUNK = "trunk"
"""EC2's interface type of the trunk ENI, which carries the branch ENIs of pods."""

FOREIGN_INTERFACE_TYPES = frozenset({"efa-only", TRUNK, "branch"})
"""Interface types that are not for sandboxes: EFA-only ENIs have no IP address, trunk and branch ENIs belong to the VPC resource
controller. Source: amazon-vpc-cni-k8s pkg/awsutils/awsutils.go; https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa.html."""


@dataclass(frozen=True, slots=True)
class EniTags:
    """The tags of new ENIs: the cluster's name, if it is known, and the operator's own tags."""

    cluster_name: str = ""
    additional: tuple[tuple[str, str], ...] = ()

    def of_new_eni(self, identity: InstanceIdentity, *, created_at: datetime, token: str, pool: str = "") -> dict[str, str]:
        """Return the tags by name.

        The operator's tags replace ours of the same name, except two tags of ours: that with the pool, and that with the token of the
        creation.

        Args:
            token: the client token of the creation; if EC2's answer is lost, the new ENI is searched for by this token.
            pool: the pool of pods; "" for the node's own pool, which has no tag.
        """
        tags = {INSTANCE_TAG: str(identity.instance_id), CREATED_AT_TAG: rfc3339(created_at, timespec="seconds")}
        if self.cluster_name:
            tags |= {CLUSTER_TAG: self.cluster_name, OWNER_TAG[0]: OWNER_TAG[1]}
        of_pool = {POOL_TAG: pool} if pool else {}
        return tags | dict(self.additional) | of_pool | {INTENT_TAG: token}


def description(identity: InstanceIdentity) -> str:
    """Return the description of a new ENI of this node, which people see in EC2's console."""
    return f"{DESCRIPTION_PREFIX}{identity.instance_id}"


def is_created_by_us(described: DescribedEni, identity: InstanceIdentity) -> bool:
    """Whether we created the ENI: it has our tag for this instance, and nothing shows that somebody else created it.

    The primary ENI was created with the instance, and an ENI that an AWS service manages (`operator`) by this service. We create no
    ENI of FOREIGN_INTERFACE_TYPES; the control plane, which creates the trunk ENI, gives it the tag that our ENIs have.
    Source: amazon-vpc-resource-controller-k8s pkg/config/type.go, NetworkInterfaceNodeIDKey.
    """
    if described.operator:
        return False
    is_tagged = described.tags.get(INSTANCE_TAG) == identity.instance_id and described.eni_id != identity.primary_eni_id
    return is_tagged and described.interface_type not in FOREIGN_INTERFACE_TYPES


def pool_of(described: DescribedEni, *, is_primary: bool) -> str:
    """Return the pool of pods that an ENI belongs to; "" for the node's own pool, to which the primary ENI always belongs."""
    if is_primary:
        return ""
    return described.tags.get(POOL_TAG, "")


def is_managed(described: DescribedEni, *, is_primary: bool, instance_id: str, has_cards: bool = False) -> bool:
    """Whether an attached ENI's addresses are for sandboxes. `has_cards`: whether ENIs on further network cards may be for sandboxes.

    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, setUnmanagedENIs.
    """
    if described.operator:
        return False
    if is_primary:
        return True
    if described.interface_type in FOREIGN_INTERFACE_TYPES or (described.network_card > 0 and not has_cards):
        return False
    if NO_MANAGE_TAG in described.tags:
        return described.tags[NO_MANAGE_TAG] != "true"
    return described.tags.get(INSTANCE_TAG, instance_id) == instance_id
