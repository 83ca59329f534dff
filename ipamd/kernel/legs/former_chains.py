"""The nftables chains that amazon-vpc-cni-k8s makes for single sandboxes."""

from __future__ import annotations

SANDBOX_CHAINS = ("CNI-E4-", "CNI-E6-")
"""Beginnings of their names; one for each sandbox with an address for egress: `ipamd/model/legs/aws_node_extra.py`, egress_chain."""

SANDBOX_CHAIN_PURPOSE = "egress"
