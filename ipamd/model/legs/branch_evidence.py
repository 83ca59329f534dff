"""Compare EC2's description of a branch ENI with the pod's annotation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipamd.model.ids import EniId
from ipamd.model.legs.branch_eni import BranchEni
from ipamd.model.words import printable

if TYPE_CHECKING:
    from ipamd.model.cloud import DescribedEni


VLAN_TAG, TRUNK_TAG = "vpcresources.k8s.aws/vlan-id", "vpcresources.k8s.aws/trunk-eni-id"
"""Tags that the controller puts on a branch ENI. Source: amazon-vpc-resource-controller-k8s pkg/config/type.go, VLandIDTag."""


def contradiction(claimed: BranchEni, described: DescribedEni, *, trunk: EniId | None) -> str:
    """Describe how EC2 contradicts the annotation about a branch ENI; "" if it does not.

    Args:
        claimed: the branch ENI as the annotation describes it.
        described: the ENI with the same ID as EC2 describes it.
        trunk: the node's trunk ENI; None if it is not known, and then it is not compared.
    """
    own_addresses = {described.primary_address, *described.secondary_addresses, *described.ipv6_addresses}
    address: object = described.primary_address
    if claimed.address in own_addresses:
        address = claimed.address
    facts = [
        ("MAC", claimed.mac, described.mac),
        ("address", str(claimed.address), str(address)),
        (f"tag {VLAN_TAG}", str(claimed.vlan), described.tags.get(VLAN_TAG, "not there")),
        (f"tag {TRUNK_TAG}", trunk or described.tags.get(TRUNK_TAG), described.tags.get(TRUNK_TAG, "not there")),
    ]
    differences = []
    for name, expected, actual in facts:
        if actual != expected:
            differences.append(f"its {name} is {printable(actual, most=40)}, not {expected}")
    return ", ".join(differences)
