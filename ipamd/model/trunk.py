"""The trunk ENI of a node. The control plane attaches this ENI, and the VLAN links of sandboxes with branch ENIs are made on its
link."""

from __future__ import annotations

TRUNK_LABEL = "vpc.amazonaws.com/has-trunk-attached"
"""Label of a node that asks the control plane for a trunk ENI, whatever its value is. Source: amazon-vpc-resource-controller-k8s
pkg/node/manager/manager.go, canAttachTrunk."""

ASK_FOR_TRUNK = f"label the node {TRUNK_LABEL}=true, by nodeadm's kubelet flag --node-labels; see docs/security-groups.md"
"""The next step for an operator if the node has no trunk ENI."""
