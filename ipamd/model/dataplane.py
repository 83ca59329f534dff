"""Numbers that amazon-vpc-cni-k8s uses in the kernel, and we too, so that a node can be moved between both without a reboot.

Rules, routes and neighbours that one of them left must be recognised, replaced or removed by the other. Do not change a number
here alone: `tests/unit/model/test_data_plane_numbers.py` names each compatible value, its source and what breaks without it.
Route tables are in `ipamd/model/eni.py`, names of host veths in `ipamd/model/attachment.py`.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Final

SANDBOX_GATEWAY: Final = IPv4Address("169.254.1.1")
"""Next hop inside every sandbox. No host has it: a permanent neighbour entry resolves it to the host veth's MAC.

Source: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go, createVethPairContext.run.
"""

TO_SANDBOX_PRIORITY: Final = 512
"""`to address lookup main`. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, ToContainerRulePriority."""

MARK_PRIORITY: Final = 1024
"""`fwmark 0x80/0x80 lookup main`. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, hostRulePriority."""

EXTERNAL_SERVICE_PRIORITY: Final = 1535
"""`to <CIDR of AWS_EXTERNAL_SERVICE_CIDRS> lookup main`.

Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, externalServiceIpRulePriority.
"""

FROM_SANDBOX_PRIORITY: Final = 1536
"""`from address lookup <ENI table>`. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, FromPodRulePriority."""

FROM_ENI_PRIORITY: Final = 32765
"""`from <ENI's primary address> lookup <ENI table>`.

Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, FromPrimaryIPofENIRulePriority.
"""
