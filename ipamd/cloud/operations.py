"""The EC2 APIs that this daemon calls: IAM must allow them, and the trimmed model contains them.

`manifests/iam-policy.json` is the IAM policy that allows them.
"""

from __future__ import annotations

from collections.abc import Mapping

OPERATIONS: Mapping[str, str] = {
    "AssignIpv6Addresses": "assign_ipv6_addresses",
    "AssignPrivateIpAddresses": "assign_private_ip_addresses",
    "AttachNetworkInterface": "attach_network_interface",
    "CreateNetworkInterface": "create_network_interface",
    "DeleteNetworkInterface": "delete_network_interface",
    "DescribeInstanceTypes": "describe_instance_types",
    "DescribeInstances": "describe_instances",
    "DescribeNetworkInterfaces": "describe_network_interfaces",
    "DescribeSubnets": "describe_subnets",
    "DetachNetworkInterface": "detach_network_interface",
    "GetSubnetCidrReservations": "get_subnet_cidr_reservations",
    "ModifyNetworkInterfaceAttribute": "modify_network_interface_attribute",
    "UnassignIpv6Addresses": "unassign_ipv6_addresses",
    "UnassignPrivateIpAddresses": "unassign_private_ip_addresses",
}
"""API name -> method of a botocore client: what the port `Ec2` needs. amazon-vpc-cni-k8s calls more (its docs/iam-policy.md)."""
