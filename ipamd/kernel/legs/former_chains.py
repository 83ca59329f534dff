"""Names of the nftables chains that amazon-vpc-cni-k8s makes for single sandboxes."""

from __future__ import annotations

SANDBOX_CHAINS = ("CNI-E4-", "CNI-E6-")
"""Beginnings of the names of the chains. A sandbox with an address for egress has one chain; its whole name is made by `egress_chain`
in `ipamd/model/legs/aws_node_extra.py`."""

SANDBOX_CHAIN_PURPOSE = "egress"
"""Word for the purpose of these chains in texts for people."""
