"""The refusals of the simulated EC2, with the codes and messages of the real EC2.

    Ec2Error          an answer of EC2: code, message, HTTP status

Each function returns the refusal that its docstring describes; the caller raises it. The messages matter, because several refusals
have the code InvalidParameterValue, so clients distinguish them by the message. Sources: the EC2 "Error codes" page; messages as
quoted in cilium 15877, 31016 and 42512, amazon-vpc-cni-k8s 989, 1585 and 3105, cloud-nuke 1132, terraform-provider-aws 906 and 27513.
For refusals marked (ours) the code is documented, and the message is our own.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from ipaddress import IPv4Address


class Ec2Error(Exception):
    """A refusal of EC2. `status`: the HTTP status: 4xx if the caller is at fault, 5xx if the service is. Botocore repeats a call after
    5xx."""

    def __init__(self, code: str, message: str, *, status: int = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = int(status)


def interface_not_found(eni_ids: Iterable[str]) -> Ec2Error:
    """Say that ENIs do not exist. If there are several, EC2 names only the first (amazon-vpc-cni-k8s issue 1011)."""
    return Ec2Error("InvalidNetworkInterfaceID.NotFound", f"The networkInterface ID '{next(iter(eni_ids))}' does not exist")


def unknown_parameter(name: str) -> Ec2Error:
    """Refuse a parameter that this endpoint does not know."""
    return Ec2Error("UnknownParameter", f"The parameter {name} is not recognized")


def instance_not_found(instance_id: str) -> Ec2Error:
    """Say that an instance does not exist."""
    return Ec2Error("InvalidInstanceID.NotFound", f"The instance ID '{instance_id}' does not exist")


def subnet_not_found(subnet_id: str) -> Ec2Error:
    """Say that a subnet does not exist."""
    return Ec2Error("InvalidSubnetID.NotFound", f"The subnet ID '{subnet_id}' does not exist")


def subnet_refused(reason: str) -> Ec2Error:
    """Refuse a subnet that does not fit into the VPC, or overlaps another one (ours)."""
    return Ec2Error("InvalidSubnet.Conflict" if "overlaps" in reason else "InvalidSubnet.Range", reason)


def subnet_in_use(subnet_id: str) -> Ec2Error:
    """Refuse to delete a subnet that has ENIs."""
    return Ec2Error("DependencyViolation", f"The subnet '{subnet_id}' has dependencies and cannot be deleted.")


def vpc_not_found(vpc_id: str) -> Ec2Error:
    """Say that a VPC does not exist."""
    return Ec2Error("InvalidVpcID.NotFound", f"The vpc ID '{vpc_id}' does not exist")


def group_not_found(group_id: str) -> Ec2Error:
    """Say that a security group does not exist."""
    return Ec2Error("InvalidGroup.NotFound", f"The security group '{group_id}' does not exist")


def duplicate_permission() -> Ec2Error:
    """Refuse to add a rule that a security group has."""
    return Ec2Error("InvalidPermission.Duplicate", "the specified rule already exists")


def permission_not_found() -> Ec2Error:
    """Refuse to remove a rule that a security group does not have."""
    return Ec2Error("InvalidPermission.NotFound", "The specified rule does not exist in this security group.")


def attachment_not_found(attachment_id: str) -> Ec2Error:
    """Say that an attachment does not exist."""
    return Ec2Error("InvalidAttachmentID.NotFound", f"The attachment ID '{attachment_id}' does not exist")


def interface_in_use(eni_id: str) -> Ec2Error:
    """Refuse to attach an ENI that is attached."""
    return Ec2Error("InvalidNetworkInterface.InUse", f"Interface: [{eni_id}] in use.")


def interface_not_deletable(eni_id: str) -> Ec2Error:
    """Refuse to delete an ENI that is attached. EC2 uses the code InvalidParameterValue here, not InvalidNetworkInterface.InUse."""
    return invalid_value(f"Network interface '{eni_id}' is currently in use.")


def device_index_taken(instance_id: str, device_index: int) -> Ec2Error:
    """Refuse a second ENI on one device index of one card."""
    return invalid_value(f"Instance '{instance_id}' already has an interface attached at device index '{device_index}'.")


def attachment_limit(count: int, instance_type: str) -> Ec2Error:
    """Refuse more ENIs than the instance type may have. `count`: number of ENIs, with the requested one."""
    return Ec2Error("AttachmentLimitExceeded", f"Interface count {count} exceeds the limit for {instance_type}")


def address_limit() -> Ec2Error:
    """Refuse more addresses and prefixes than an ENI may have."""
    return Ec2Error("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")


def no_free_addresses() -> Ec2Error:
    """Say that the subnet has not enough single addresses."""
    return Ec2Error(
        "InsufficientFreeAddressesInSubnet",
        "The specified subnet does not have enough free addresses to satisfy the request.",
    )


def no_room_for_prefixes() -> Ec2Error:
    """Say that the subnet has fewer free addresses than the prefixes need (cilium 31016)."""
    return invalid_value("There aren't sufficient free Ipv4 addresses or prefixes")


def no_free_prefixes() -> Ec2Error:
    """Say that the subnet is fragmented: it has enough free addresses, but too few whole aligned blocks (cilium 31016)."""
    return Ec2Error(
        "InsufficientCidrBlocks",
        "The specified subnet does not have enough free cidr blocks to satisfy the request.",
    )


def addresses_in_use(addresses: Iterable[IPv4Address]) -> Ec2Error:
    """Refuse to move an address without AllowReassignment."""
    return invalid_value(f"[{', '.join(map(str, addresses))}] assigned, but move is not allowed.")


def address_taken(address: object) -> Ec2Error:
    """Refuse to create an ENI with an address that another ENI has."""
    return Ec2Error("InvalidIPAddress.InUse", f"Address {address} is in use.")


def not_assigned(eni_id: str) -> Ec2Error:
    """Refuse to unassign an address that is not on the ENI."""
    return invalid_value(f"Some of the specified addresses are not assigned to interface {eni_id}")


def interface_quota() -> Ec2Error:
    """Say that the account may not have more ENIs (ours)."""
    return Ec2Error(
        "NetworkInterfaceLimitExceeded", "You have reached the limit on the number of network interfaces (lab quota)."
    )


def token_mismatch() -> Ec2Error:
    """Refuse a client token that an earlier request used with other parameters (ours)."""
    return Ec2Error(
        "IdempotentParameterMismatch",
        "The request uses the same client token as a previous, but non-identical request.",
    )


def request_limit() -> Ec2Error:
    """Throttle a call. Botocore repeats it, because the status is 503."""
    return Ec2Error("RequestLimitExceeded", "Request limit exceeded.", status=HTTPStatus.SERVICE_UNAVAILABLE)


def not_permitted(message: str) -> Ec2Error:
    """Refuse an operation that no caller may make."""
    return Ec2Error("OperationNotPermitted", message)


def invalid_value(message: str) -> Ec2Error:
    """Refuse a value. The code is the same for every value and reason, so `message` must name both."""
    return Ec2Error("InvalidParameterValue", message)


def invalid_combination(message: str) -> Ec2Error:
    """Refuse parameters that contradict each other."""
    return Ec2Error("InvalidParameterCombination", message)


def missing_parameter(name: str) -> Ec2Error:
    """Refuse a request without a required parameter."""
    return Ec2Error("MissingParameter", f"The request must contain the parameter {name}")


def association_not_found(association_id: str) -> Ec2Error:
    """Say that no association of a branch ENI with a trunk has this ID. Source: amazon-vpc-resource-controller-k8s pkg/aws/errors."""
    return Ec2Error("InvalidAssociationID.NotFound", f"The association ID '{association_id}' does not exist")
