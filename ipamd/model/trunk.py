"""The trunk ENI of a node: the control plane attaches it, and its link carries the uplinks of sandboxes."""

from __future__ import annotations

TRUNK_LABEL = "vpc.amazonaws.com/has-trunk-attached"
"""Label of a node that asks the control plane for a trunk ENI, whatever its value is. Source: amazon-vpc-resource-controller-k8s
pkg/node/manager/manager.go, canAttachTrunk."""

ASK_FOR_TRUNK = f"label the node {TRUNK_LABEL}=true, by nodeadm's kubelet flag --node-labels; see docs/security-groups.md"
"""What an operator can do if the node has no trunk ENI."""
