"""Define the settings of the network: how sandboxes and the node are wired, and in which subnets ENIs are made."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

from ipamd.model.enforcing_mode import EnforcingMode
from ipamd.model.family import IPV4, IPV6, Family
from ipamd.model.pinned_address import PinnedRange
from ipamd.model.record import dataclass
from ipamd.settings.field_kinds import live, setting
from ipamd.settings.parsers import (
    choice,
    integer,
    parse_bool,
    parse_cidrs,
    parse_file,
    parse_mark,
    parse_namespaces,
    parse_pinned_ranges,
    parse_pod_subjects,
    parse_pool_by_namespace,
    parse_pool_choices,
    parse_service_cidrs,
    parse_veth_prefix,
)

NETWORK_FILE = Path("/etc/vpc-ipamd/network.json")


@dataclass(frozen=True)
class NetworkConfig:
    """How sandboxes and the node are wired."""

    ipv4: bool = setting(
        "ENABLE_IPv4", parse_bool, True, "Pods have IPv4 addresses. A node has one of the two families, for all of its life."
    )
    ipv6: bool = setting("ENABLE_IPv6", parse_bool, False, "Pods have IPv6 addresses, of one /80 on the primary ENI.")
    v4_egress: bool = setting(
        "ENABLE_V4_EGRESS",
        parse_bool,
        True,
        "Let IPv6 pods reach IPv4 by the node's own address; no effect with IPv4 pods.",
        is_kept_by_pods=True,
    )
    v6_egress: bool = setting(
        "ENABLE_V6_EGRESS",
        parse_bool,
        False,
        "Let IPv4 pods reach IPv6 by the node's own address; no effect with IPv6 pods.",
        is_kept_by_pods=True,
    )
    eni_mtu: int = live("AWS_VPC_ENI_MTU", integer(576, 9001), 9001, "MTU of ENIs, bytes.", is_kept_by_pods=True)
    pod_mtu: int = live(
        "POD_MTU", integer(576, 9001), 0, "MTU of sandboxes, bytes; empty: the MTU of the ENIs.", is_kept_by_pods=True
    )
    veth_prefix: str = setting(
        "AWS_VPC_K8S_CNI_VETHPREFIX", parse_veth_prefix, "eni", "Beginning of host veth names.", is_kept_by_pods=True
    )
    pod_veth_names: bool = setting(
        "VPC_IPAMD_POD_VETH_NAMES",
        parse_bool,
        False,
        "Name host veths by pod as amazon-vpc-cni-k8s does, for policy agents that compute the name.",
        is_kept_by_pods=True,
    )
    external_snat: bool = live("AWS_VPC_K8S_CNI_EXTERNALSNAT", parse_bool, False, "Leave SNAT to something outside the node.")
    exclude_snat_cidrs: tuple[IPv4Network, ...] = live(
        "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS",
        parse_cidrs,
        (),
        "IPv4 CIDRs, comma separated, to which traffic is sent without SNAT.",
    )
    snat_annotation_namespaces: tuple[str, ...] = setting(
        "VPC_IPAMD_SNAT_ANNOTATION_NAMESPACES",
        parse_namespaces,
        (),
        "Namespaces, comma separated, whose pods may choose their SNAT by the annotation vpc-ipamd/snat: none or force.",
        is_kept_by_pods=True,
    )
    snat_exempt_pods: tuple[str | IPv4Network, ...] = setting(
        "VPC_IPAMD_SNAT_EXEMPT_PODS",
        parse_pod_subjects,
        (),
        "Namespaces, or IPv4 CIDRs of pods' addresses, comma separated: packets from these pods keep the pod's own address.",
        is_kept_by_pods=True,
    )
    snat_forced_pods: tuple[str | IPv4Network, ...] = setting(
        "VPC_IPAMD_SNAT_FORCED_PODS",
        parse_pod_subjects,
        (),
        "Namespaces, or IPv4 CIDRs of pods' addresses, comma separated: connections from these pods to outside the VPC get the node's "
        "address, whatever the other settings say.",
        is_kept_by_pods=True,
    )
    pinned_ranges: tuple[PinnedRange, ...] = setting(
        "VPC_IPAMD_PINNED_ADDRESSES",
        parse_pinned_ranges,
        (),
        "Namespaces, comma separated, whose pods may keep their address. With namespace=CIDR they may also ask for an address in the "
        "CIDR (annotation vpc-ipamd/address).",
        is_kept_by_pods=True,
    )
    pinned_take_namespaces: tuple[str, ...] = setting(
        "VPC_IPAMD_PINNED_ADDRESS_TAKE_NAMESPACES",
        parse_namespaces,
        (),
        "Namespaces of VPC_IPAMD_PINNED_ADDRESSES, comma separated, whose pods may take an address from a node that is not proven "
        "gone.",
    )
    pinned_kept_max_s: int = setting(
        "VPC_IPAMD_PINNED_ADDRESS_KEEP_SECONDS",
        integer(0, 86400),
        600,
        "Longest time in seconds for which an address is kept for a pod after the pod's end. A pod that asks for `same` without a "
        "time gets this time.",
    )
    external_service_cidrs: tuple[IPv4Network, ...] = live(
        "AWS_EXTERNAL_SERVICE_CIDRS",
        parse_service_cidrs,
        (),
        "IPv4 CIDRs, comma separated, that every sandbox reaches through route table main and not through its own ENI (rule 1535).",
    )
    randomize_snat: str = live(
        "AWS_VPC_K8S_CNI_RANDOMIZESNAT", choice("prng", "hashrandom", "none"), "prng", "How SNAT chooses ports."
    )
    node_port_support: bool = live("AWS_VPC_CNI_NODE_PORT_SUPPORT", parse_bool, True, "Mark NodePort connections.")
    connmark: int = live(
        "AWS_VPC_K8S_CNI_CONNMARK", parse_mark, 0x80, "Bit of the packet mark that the node's rules use: a bit of 0x10ff."
    )
    extra_source_cidrs: tuple[IPv4Network, ...] = setting(
        "VPC_IPAMD_EXTRA_SOURCE_CIDRS",
        parse_cidrs,
        (),
        "IPv4 CIDRs, comma separated, from which any sandbox may send besides its own address: for pods that route for others.",
    )
    foreign_links: str = live(
        "VPC_IPAMD_FOREIGN_LINK_POLICY",
        choice("confine", "drop"),
        "confine",
        "For links into a sandbox that other software made (Multus). confine: drop packets whose source address is routed elsewhere; "
        "drop: drop all packets.",
    )
    pod_eni: bool = setting(
        "ENABLE_POD_ENI",
        parse_bool,
        False,
        "Serve pods that have security groups of their own, by branch ENIs (docs/security-groups.md).",
        is_kept_by_pods=True,
    )
    multi_nic: bool = setting(
        "ENABLE_MULTI_NIC",
        parse_bool,
        False,
        "Manage the ENIs of every network card, so that a pod can have an interface of each card (docs/network-cards.md).",
    )
    multi_nic_namespaces: tuple[str, ...] = setting(
        "VPC_IPAMD_MULTI_NIC_NAMESPACES",
        parse_namespaces,
        (),
        "Namespaces, comma separated, whose pods may ask for an interface of each network card (k8s.amazonaws.com/nicConfig), or of "
        "cards that they name (vpc-ipamd/network-cards); no effect without ENABLE_MULTI_NIC.",
        is_kept_by_pods=True,
    )
    pod_groups_mode: str = setting(
        "POD_SECURITY_GROUP_ENFORCING_MODE",
        choice(*EnforcingMode),
        str(EnforcingMode.STRICT),
        "strict: all packets of a pod with security groups pass its branch ENI; standard: packets between the pod and its own node do "
        "not.",
        is_kept_by_pods=True,
    )
    early_demux_disabled: bool = setting(
        "DISABLE_TCP_EARLY_DEMUX",
        parse_bool,
        False,
        "Turn off early demultiplexing of TCP on the node. Without this, kubelet's TCP probes do not reach pods in strict mode.",
    )

    @property
    def family(self) -> Family:
        """The address family of the pool and of the pods' own addresses."""
        if self.ipv6:
            return IPV6
        return IPV4

    @property
    def extra_sources(self) -> tuple[IPv4Network, ...]:
        """The extra source CIDRs in force. On a node with IPv6 pods there are none."""
        if self.ipv6:
            return ()
        return self.extra_source_cidrs

    @property
    def has_pod_snat(self) -> bool:
        """Whether the SNAT of single pods may differ from the node's SNAT. IPv6 pods have no SNAT."""
        return not self.ipv6 and bool(self.snat_annotation_namespaces or self.snat_exempt_pods or self.snat_forced_pods)

    @property
    def has_pinned_addresses(self) -> bool:
        """Whether pods may ask for particular addresses (pinned addresses). IPv6 pods may not."""
        return not self.ipv6 and bool(self.pinned_ranges)

    @property
    def extra_family(self) -> Family | None:
        """The address family that is not the pool's, if pods have egress to it by the node's own address; else None."""
        if self.ipv6 and self.v4_egress:
            return IPV4
        if not self.ipv6 and self.v6_egress:
            return IPV6
        return None

    @property
    def enforcing_mode(self) -> EnforcingMode | None:
        """How pods with security groups of their own are wired; None if such pods are not served."""
        if not self.pod_eni:
            return None
        return EnforcingMode(self.pod_groups_mode)

    @property
    def is_strict(self) -> bool:
        """Whether all packets of a pod with security groups of its own pass its branch ENI, even packets to and from its own node."""
        return self.enforcing_mode is EnforcingMode.STRICT

    @property
    def sandbox_mtu(self) -> int:
        """The MTU of sandboxes in bytes: POD_MTU, or the MTU of the ENIs if that is not set."""
        return self.pod_mtu or self.eni_mtu


@dataclass(frozen=True)
class SubnetsConfig:
    """Settings about the subnets of new ENIs, and about the network file."""

    discovery: bool = setting(
        "ENABLE_SUBNET_DISCOVERY",
        parse_bool,
        True,
        "Make ENIs in every subnet of the zone that is tagged for it, not only in the node's.",
    )
    answer_valid_s: int = setting(
        "VPC_IPAMD_SUBNETS_VALID_SECONDS",
        integer(1, 3600),
        300,
        "Seconds for which an answer of DescribeSubnets is used. With 1 the subnets are described before each new ENI, as "
        "amazon-vpc-cni-k8s does.",
    )
    custom_networking: bool = setting(
        "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG",
        parse_bool,
        False,
        "Take subnet and security groups of new ENIs from a file, by availability zone; the primary ENI carries no pods.",
    )
    network_file: Path = setting(
        "VPC_IPAMD_NETWORK_FILE",
        parse_file,
        NETWORK_FILE,
        "The network file, of custom networking, pools of pods and addresses of pods: JSON, read at the start (docs/subnets.md).",
    )
    pod_pools: tuple[str, ...] = setting(
        "VPC_IPAMD_POD_POOLS",
        parse_pool_by_namespace,
        (),
        "NAMESPACE=POOL, comma separated: pods of the namespace get their addresses of that pool of the network file.",
        is_kept_by_pods=True,
    )
    pool_annotations: tuple[str, ...] = setting(
        "VPC_IPAMD_POOL_ANNOTATION_NAMESPACES",
        parse_pool_choices,
        (),
        "NAMESPACE=POOL, comma separated: pods of the namespace may choose that pool by the annotation vpc-ipamd/pool.",
        is_kept_by_pods=True,
    )
    pinned_list: bool = setting(
        "VPC_IPAMD_PINNED_ADDRESS_LIST",
        parse_bool,
        False,
        "Give pods the addresses that the network file names for them under `addresses`, in the ranges of VPC_IPAMD_PINNED_ADDRESSES.",
    )

    @property
    def reads_network_file(self) -> bool:
        """Whether a setting that is on needs the network file."""
        return self.custom_networking or self.has_pod_pools or self.pinned_list

    @property
    def has_pod_pools(self) -> bool:
        """Whether pods may get addresses of another pool than the node's own."""
        return bool(self.pod_pools or self.pool_annotations)

    @property
    def named_pools(self) -> dict[str, str]:
        """The pools that these settings name, each with the variable of the setting that names it."""
        named = {choice.partition("=")[2]: "VPC_IPAMD_POOL_ANNOTATION_NAMESPACES" for choice in self.pool_annotations}
        return named | {choice.partition("=")[2]: "VPC_IPAMD_POD_POOLS" for choice in self.pod_pools}
