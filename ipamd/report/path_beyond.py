"""List the parts of AWS that decide about a packet beyond the node, by their names in the AWS console. EC2 is not asked."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from ipaddress import IPv4Network

from ipamd.model.family import IpAddress
from ipamd.report.path_report import PathEni, UnseenPart
from ipamd.report.path_sender import PathTarget

NO_POLICY = "none"


def beyond(
    eni: PathEni, target: PathTarget, *, seen_as: IpAddress, translated: bool, vpc_cidrs: Collection[IPv4Network]
) -> Iterator[UnseenPart]:
    """List the parts of AWS that a packet passes after it has left by an ENI, in their order."""
    port = "the port"
    if target.port:
        port = f"TCP port {target.port}"
    groups = ", ".join(eni.security_group_ids) or f"those of {eni.eni_id}"
    subnet = eni.subnet_id or f"the subnet of {eni.eni_id}"
    yield UnseenPart(
        "security groups of the ENI", "VPC > Security groups > Outbound rules", f"{groups}: {port} to {target.address}"
    )
    yield UnseenPart("network ACL of the subnet", "VPC > Network ACLs > Inbound and Outbound rules", f"{subnet}: both directions")
    yield UnseenPart("route table of the subnet", "VPC > Route tables > Routes", f"{subnet}: a route to {target.address}")
    if not any(target.address in cidr for cidr in vpc_cidrs):
        yield from _outside(target, is_translated=translated)
    yield UnseenPart(
        "network ACL of the other side", "VPC > Network ACLs > Inbound and Outbound rules", f"both directions, {seen_as}"
    )
    rule = f"{port} from {seen_as}"
    if eni.security_group_ids:
        rule += f" or from {', '.join(eni.security_group_ids)}"
    yield UnseenPart(
        "security groups of the other side",
        "VPC > Security groups > Inbound rules; of a database: RDS > Databases > Connectivity & security",
        rule,
    )


def _outside(target: PathTarget, *, is_translated: bool) -> Iterator[UnseenPart]:
    """List the parts of AWS between the VPC and other networks, or the internet."""
    if not target.address.is_global:  # private ranges, and 100.64.0.0/10, which VPCs use too
        routes = f"{target.address}, and its route back"
        if is_translated:
            routes += "; AWS_VPC_K8S_CNI_EXTERNALSNAT"
        yield UnseenPart("route to another network", "VPC > Peering connections, Transit gateways", routes)
        yield UnseenPart(
            "Service of the cluster", "kubectl get service -A", f"if {target.address} is one: ask for an endpoint of it"
        )
    else:
        yield UnseenPart(
            "way to the internet", "VPC > NAT gateways, Internet gateways", "the target of the subnet's default route"
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
