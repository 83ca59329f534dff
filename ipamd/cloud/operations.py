"""The EC2 APIs that this daemon calls, and nothing else: what IAM must allow and what the trimmed model holds."""

from __future__ import annotations

from collections.abc import Mapping

OPERATIONS: Mapping[str, str] = {
    "AssignPrivateIpAddresses": "assign_private_ip_addresses",
    "AttachNetworkInterface": "attach_network_interface",
    "CreateNetworkInterface": "create_network_interface",
    "DeleteNetworkInterface": "delete_network_interface",
    "DescribeInstanceTypes": "describe_instance_types",
    "DescribeNetworkInterfaces": "describe_network_interfaces",
    "DescribeSubnets": "describe_subnets",
    "DetachNetworkInterface": "detach_network_interface",
    "ModifyNetworkInterfaceAttribute": "modify_network_interface_attribute",
    "UnassignPrivateIpAddresses": "unassign_private_ip_addresses",
}
"""API name -> method of a botocore client. Source: the port `Ec2`; a subset of upstream_reference 1.9."""
