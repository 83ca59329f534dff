"""Tags and descriptions of ENIs: which are ours, and what a new one carries.

The names are those of amazon-vpc-cni-k8s, so that its clean-up tools and IAM conditions on tags hold for our ENIs too, and a node
can change from one to the other. Source: amazon-vpc-cni-k8s pkg/awsutils/awsutils.go.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ipamd.model.cloud import INTENT_TAG, DescribedEni, InstanceIdentity
from ipamd.model.eni import CLUSTER_TAG as CLUSTER_TAG
from ipamd.model.eni import CREATED_AT_TAG as CREATED_AT_TAG
from ipamd.model.eni import DESCRIPTION_PREFIX as DESCRIPTION_PREFIX
from ipamd.model.eni import INSTANCE_TAG as INSTANCE_TAG
from ipamd.model.eni import NO_MANAGE_TAG as NO_MANAGE_TAG
from ipamd.model.words import rfc3339

OWNER_TAG = ("eks:eni:owner", "amazon-vpc-cni")

FOREIGN_INTERFACE_TYPES = frozenset({"efa-only", "trunk", "branch"})
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
    """Whether the ENI carries our tag for this instance; the primary ENI came with the instance."""
    return described.tags.get(INSTANCE_TAG) == identity.instance_id and described.eni_id != identity.primary_eni_id


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
