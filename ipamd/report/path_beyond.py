"""List the parts of AWS that decide about a packet beyond the node, by their names in the AWS console. EC2 is not asked."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from ipaddress import IPv4Network, IPv6Network
from typing import NamedTuple

from ipamd.model.family import IpAddress, read_address
from ipamd.report.path_report import PathEni, UnseenPart
from ipamd.report.path_sender import PathTarget

NO_POLICY = "none"

KEEP_SOURCE = (
    "the other side must admit {seen_as}; or add {cidr} to AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS, and pods keep their own address "
    "there. Otherwise "
)
"""The next action if the node replaces the source: what the other side must admit, and how to keep the pod's address."""

DNS_OFFSET = 2
"""The address of the VPC's DNS is this far above the first address of the VPC's CIDR.
Source: https://docs.aws.amazon.com/vpc/latest/userguide/AmazonDNS-concepts.html."""

_VPC_SERVICES_IPV6 = IPv6Network("fd00:ec2::/32")


class VpcService(NamedTuple):
    """A service that AWS serves to each ENI, past security groups and network ACLs.

    Sources: https://docs.aws.amazon.com/vpc/latest/userguide/vpc-security-groups.html; vpc-network-acls.html of the same guide.

    `name`: its name in a sentence.
    `mend`: what to do if it does not answer.
    `parts`: the settings of AWS that decide about it.
    """

    name: str
    mend: str
    parts: tuple[UnseenPart, ...] = ()


_METADATA = VpcService(
    "instance metadata",
    "a pod needs a hop limit of 2: `aws ec2 modify-instance-metadata-options --instance-id INSTANCE --http-endpoint enabled "
    "--http-put-response-hop-limit 2`; EKS advises against access of pods to the node's role",
    (
        UnseenPart(
            "metadata options of the instance",
            "EC2 > Instances > Actions > Instance settings > Modify instance metadata options",
            "enabled, and a hop limit of 2 or more; of the node itself 1 is enough",
        ),
    ),
)
_DNS = VpcService(
    "the VPC's DNS",
    "check the setting below. AWS drops what exceeds 1,024 packets a second of an ENI: on the node `ethtool -S LINK`, "
    "linklocal_allowance_exceeded",
    (UnseenPart("DNS of the VPC", "VPC > Your VPCs > Actions > Edit VPC settings", "Enable DNS resolution"),),
)
_TIME = VpcService("the time service", "ask it from the node: `chronyc sources`; a pod needs UDP, port 123, and no VPC setting")

_VPC_SERVICES = {
    read_address(text): service
    for service, texts in (
        (_METADATA, ("169.254.169.254", "fd00:ec2::254")),
        (_DNS, ("169.254.169.253", "fd00:ec2::253")),
        (_TIME, ("169.254.169.123", "fd00:ec2::123")),
    )
    for text in texts
}


def vpc_service(address: IpAddress, vpc_cidrs: Collection[IPv4Network]) -> VpcService | None:
    """Return the service of AWS that has an address, or None. The third address of each VPC CIDR counts as the VPC's DNS."""
    if any(address == cidr[DNS_OFFSET] for cidr in vpc_cidrs):
        return _DNS
    return _VPC_SERVICES.get(address)


def is_link_local(address: IpAddress) -> bool:
    """Whether no router forwards packets to an address. The IPv6 range of AWS's own services counts too."""
    return address.is_link_local or address in _VPC_SERVICES_IPV6


def beyond(
    eni: PathEni, target: PathTarget, *, seen_as: IpAddress, translated: bool, vpc_cidrs: Collection[IPv4Network]
) -> Iterator[UnseenPart]:
    """List the parts of AWS that a packet passes after it has left by an ENI.

    The likeliest causes are first: the other side's security
    groups, then the way out of the VPC. The others are in the order in which the packet passes them.
    """
    service = vpc_service(target.address, vpc_cidrs)
    if service is not None:
        yield from service.parts
    if service is not None or is_link_local(target.address):
        return
    port = "the port"
    if target.port:
        port = f"TCP port {target.port}"
    groups = ", ".join(eni.security_group_ids) or f"those of {eni.eni_id}"
    subnet = eni.subnet_id or f"the subnet of {eni.eni_id}"
    yield _groups_of_other_side(eni, port, seen_as)
    if not any(target.address in cidr for cidr in vpc_cidrs):
        yield from _outside(eni, target, seen_as=seen_as, is_translated=translated)
    yield UnseenPart(
        "security groups of the ENI", "VPC > Security groups > Outbound rules", f"{groups}: {port} to {target.address}"
    )
    yield UnseenPart("network ACL of the subnet", "VPC > Network ACLs > Inbound and Outbound rules", f"{subnet}: both directions")
    yield UnseenPart("route table of the subnet", "VPC > Route tables > Routes", f"{subnet}: a route to {target.address}")
    yield UnseenPart(
        "network ACL of the other side", "VPC > Network ACLs > Inbound and Outbound rules", f"both directions, {seen_as}"
    )


def _groups_of_other_side(eni: PathEni, port: str, seen_as: IpAddress) -> UnseenPart:
    rule = f"{port} from {seen_as}"
    if eni.security_group_ids:
        rule += f" or from {', '.join(eni.security_group_ids)}"
    return UnseenPart(
        "security groups of the other side",
        "VPC > Security groups > Inbound rules; of a database: RDS > Databases > Connectivity & security",
        rule,
    )


def cidr_of(destination: IpAddress) -> str:
    """Return the CIDR that has one address only."""
    return f"{destination}/{destination.max_prefixlen}"


def _outside(eni: PathEni, target: PathTarget, *, seen_as: IpAddress, is_translated: bool) -> Iterator[UnseenPart]:
    """List the parts of AWS between the VPC and other networks, or the internet."""
    seen = f"by an internet gateway the public address of {eni.eni_id}, by a NAT gateway the gateway's, by a peering {seen_as}"
    if is_translated:
        seen += "; to have the pod's address there: AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS"
    yield UnseenPart(
        "address that the other side sees", "EC2 > Network interfaces > Public IPv4 address; VPC > NAT gateways", seen
    )
    if not target.address.is_global:  # private ranges, and 100.64.0.0/10, which VPCs use too
        routes = f"{target.address}, and its route back"
        yield UnseenPart("route to another network", "VPC > Peering connections, Transit gateways", routes)
        yield UnseenPart(
            "Service of the cluster", "kubectl get service -A", f"if {target.address} is one: ask for an endpoint of it"
        )
    else:
        yield UnseenPart(
            "way to the internet", "VPC > NAT gateways, Internet gateways", "the target of the subnet's default route"
        )


def idle_connections(timeout_s: int) -> UnseenPart:
    """Return the part that ends idle connections, which is no obstacle to new ones. `timeout_s`: of an established TCP connection."""
    return UnseenPart(
        "connections that are idle",
        "`ipamctl status`, line fact",
        f"security groups forget TCP after {timeout_s} s without a packet: send keepalives sooner",
    )


def policies(mode: str, pod: str) -> Iterator[UnseenPart]:
    """List the network policies of a pod, if an agent enforces them."""
    namespace, separator, _ = pod.partition("/")
    if not separator:
        namespace = "NAMESPACE"
    if mode != NO_POLICY:
        yield UnseenPart(
            "network policies of the pod", f"kubectl get networkpolicy -n {namespace}", f"mode {mode}, by the policy agent"
        )
