"""Numbers that amazon-vpc-cni-k8s and we both use in the kernel, so that a node can be moved between both without a reboot.

Rules, routes and neighbours that one of them left must be recognised, replaced or removed by the other. Do not change a number
here alone: `tests/unit/model/test_data_plane_numbers.py` names each compatible value, its source and what breaks without it.
Route tables of ENIs are in `ipamd/model/eni.py`, other names of host veths in `ipamd/model/attachment.py`, and a sandbox's next hop is
in `family.py`.
"""

from __future__ import annotations

TO_SANDBOX_PRIORITY = 512
"""`to address lookup main`. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, ToContainerRulePriority.

Our own sandboxes share one rule to `OWN_TABLE` instead (docs/adr/0044). Rules of this priority are written when a node goes back to
amazon-vpc-cni-k8s, and are removed where they are not needed.
"""

OWN_TABLE = 113213
"""The table with the routes to all sandboxes of ours. Ours: the group of dying links has this number too; far from the tables of ENIs
(at most 11,600 with 16 cards) and from those that other software is known to use."""

OWN_TABLE_PRIORITY = TO_SANDBOX_PRIORITY + 1
"""`lookup OWN_TABLE`. Ours: behind the rules of single sandboxes. So where another daemon, or an earlier release of ours, has made
such a rule, that rule decides, and packets go where they went before."""

OWN_RULE = f"rule {OWN_TABLE_PRIORITY} lookup {OWN_TABLE}"

LOCAL_PRIORITY, MOVED_LOCAL_PRIORITY = 0, 20
"""`lookup local`: the kernel's own priority, and that in strict mode. There the rule comes after the rules of uplinks, so that packets
from a sandbox to its own node leave by the uplink too. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, localRulePriority."""

STRICT_TABLE = OWN_TABLE + 1
"""The table with the routes to all sandboxes in strict mode, for reverse lookups alone. Ours."""

STRICT_MARK = 0x1000
"""Mark bit of a packet while its source is checked, for sandboxes in strict mode (`STRICT_PRIORITY`). Ours: no other software is known
to use this bit, and in strict mode AWS_VPC_K8S_CNI_CONNMARK must not contain it."""

STRICT_PRIORITY = 9
"""`iif lo fwmark <STRICT_MARK> lookup STRICT_TABLE`: selects the reverse lookup of a packet whose source is checked. A reverse lookup
has no incoming link, and the packet has the mark bit only during the check. Packets of the node itself have no incoming link either,
so a bit that other software sets (`MARKS_OF_OTHERS`) must not be used: such packets would get past the security groups. Ours."""

INCOMING_PRIORITY = 10
"""`iif <uplink or host veth> lookup <table of the uplink>`, in strict mode.

Source: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go, vlanRulePriority.
"""

MARK_PRIORITY = 1024
"""`fwmark 0x80/0x80 lookup main`. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, hostRulePriority."""

EXTERNAL_SERVICE_PRIORITY = 1535
"""`to <CIDR of AWS_EXTERNAL_SERVICE_CIDRS> lookup main`.

Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, externalServiceIpRulePriority.
"""

FROM_SANDBOX_PRIORITY = 1536
"""`from address lookup <ENI table>`. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, FromPodRulePriority."""

FROM_ENI_PRIORITY = 32765
"""`from <ENI's primary address> lookup <ENI table>`.

Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, FromPrimaryIPofENIRulePriority.
"""

TABLE_BASE = 100
"""Route table of an uplink: this and its VLAN ID. Source: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go."""

LINK_PREFIX = "vlan.eth."
"""How the name of an uplink, a VLAN link, begins. Source: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go,
buildVlanLink."""

STRICT_VETH_PREFIX = "vlan"
"""How the name of a host veth in strict mode begins. Source: amazon-vpc-cni-k8s pkg/sgpp/utils.go, BuildHostVethNamePrefix."""
