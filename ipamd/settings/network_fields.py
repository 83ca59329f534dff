"""Settings of the network: how sandboxes and the node are wired, and in which subnets ENIs are made. The rest is in `fields.py`."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from ipamd.settings.field_kinds import live as _live
from ipamd.settings.field_kinds import setting as _setting
from ipamd.settings.parsers import (
    choice,
    integer,
    parse_bool,
    parse_cidrs,
    parse_file,
    parse_service_cidrs,
    parse_veth_prefix,
)

NETWORK_FILE = Path("/etc/vpc-ipamd/network.json")


@dataclass(frozen=True)
class NetworkConfig:
    """How sandboxes and the node are wired."""

    eni_mtu: int = _live("AWS_VPC_ENI_MTU", integer(576, 9001), 9001, "MTU of ENIs, bytes.")
    pod_mtu: int = _live("POD_MTU", integer(576, 9001), 0, "MTU of sandboxes, bytes; default: that of the ENIs.")
    veth_prefix: str = _setting("AWS_VPC_K8S_CNI_VETHPREFIX", parse_veth_prefix, "eni", "Beginning of host veth names.")
    pod_veth_names: bool = _setting(
        "VPC_IPAMD_POD_VETH_NAMES",
        parse_bool,
        False,
        "Name host veths by pod as amazon-vpc-cni-k8s does, for policy agents that compute the name.",
    )
    external_snat: bool = _live("AWS_VPC_K8S_CNI_EXTERNALSNAT", parse_bool, False, "Leave SNAT to something outside the node.")
    exclude_snat_cidrs: tuple[IPv4Network, ...] = _live(
        "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS",
        parse_cidrs,
        (),
        "IPv4 CIDRs, comma separated, to which traffic is sent without SNAT.",
    )
    external_service_cidrs: tuple[IPv4Network, ...] = _live(
        "AWS_EXTERNAL_SERVICE_CIDRS",
        parse_service_cidrs,
        (),
        "IPv4 CIDRs, comma separated, that every sandbox reaches through table main, whatever its ENI (rule 1535).",
    )
    randomize_snat: str = _live(
        "AWS_VPC_K8S_CNI_RANDOMIZESNAT", choice("prng", "hashrandom", "none"), "prng", "How SNAT chooses ports."
    )
    node_port_support: bool = _live("AWS_VPC_CNI_NODE_PORT_SUPPORT", parse_bool, True, "Mark NodePort connections.")
    connmark: int = _live(
        "AWS_VPC_K8S_CNI_CONNMARK", integer(1, 0xFFFFFFFF), 0x80, "Bit of the packet mark that the node's rules use."
    )
    extra_source_cidrs: tuple[IPv4Network, ...] = _setting(
        "VPC_IPAMD_EXTRA_SOURCE_CIDRS",
        parse_cidrs,
        (),
        "IPv4 CIDRs, comma separated, from which any sandbox may send besides its own address: for those that route for others.",
    )

    @property
    def sandbox_mtu(self) -> int:
        """POD_MTU, or the ENIs' MTU when it is not set."""
        return self.pod_mtu or self.eni_mtu


@dataclass(frozen=True)
class SubnetsConfig:
    """In which subnets new ENIs are made."""

    discovery: bool = _setting(
        "ENABLE_SUBNET_DISCOVERY",
        parse_bool,
        True,
        "Make ENIs in every subnet of the zone that is tagged for it, not only in the node's.",
    )
    custom_networking: bool = _setting(
        "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG",
        parse_bool,
        False,
        "Take subnet and security groups of new ENIs from a file, by availability zone; the primary ENI carries no pods.",
    )
    network_file: Path = _setting(
        "VPC_IPAMD_NETWORK_FILE", parse_file, NETWORK_FILE, "That file: JSON, read at the start (docs/subnets.md)."
    )
