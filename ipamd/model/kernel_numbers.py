"""Numbers in the kernel: those that amazon-vpc-cni-k8s uses too, so that a node can be migrated to vpc-ipamd, and back, without a
reboot; and numbers of our own, which are marked as such.

Each of the two daemons must recognise, replace or remove the rules, routes and neighbours that the other one left. Do not change a
number here alone: `tests/unit/model/test_data_plane_numbers.py` has each compatible value, its source and what breaks without it.
The numbers of ENIs' route tables are in `eni.py`, the names of host veths outside strict mode in `attachment.py`, and a sandbox's next
hop in `family.py`.
"""

from __future__ import annotations

TO_SANDBOX_PRIORITY = 512
"""Priority of the rule `to <sandbox's address> lookup main`. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go,
ToContainerRulePriority.

Our own sandboxes share one rule to `OWN_TABLE` instead (docs/adr/0044). Rules of this priority are written when a node goes back to
amazon-vpc-cni-k8s, and are removed where they are not needed.
"""

OWN_TABLE = 113213
"""The table with the routes to all our sandboxes. Ours: the number is far from the tables of ENIs (below 13,200 with 32 cards) and
from the tables that other software is known to use. The group of links that wait for deletion (`uapi.DYING_GROUP`) has the same
number, so that one number marks what is ours."""

OWN_TABLE_PRIORITY = TO_SANDBOX_PRIORITY + 1
"""Priority of the rule `lookup OWN_TABLE`. Ours: this rule comes after the rules of single sandboxes. So if another daemon, or an
earlier release of ours, has made a rule for a single sandbox, that rule decides, and packets go where they went before."""

OWN_RULE = f"rule {OWN_TABLE_PRIORITY} lookup {OWN_TABLE}"

LOCAL_PRIORITY, MOVED_LOCAL_PRIORITY = 0, 20
"""Priorities of the rule `lookup local`: the kernel's default, and the priority in strict mode. In strict mode the rule comes after
the rules of uplinks, so that packets from a sandbox to its own node leave by the uplink too. Source: amazon-vpc-cni-k8s
pkg/networkutils/network.go, localRulePriority."""

STRICT_TABLE = OWN_TABLE + 1
"""The table with the routes to all sandboxes in strict mode. The kernel uses it only when it checks the source of a packet. Ours: the
number next to OWN_TABLE, so it is far from the tables of other software too."""

STRICT_MARK = 0x1000
"""Mark bit of a packet while its source is checked, for sandboxes in strict mode (`STRICT_PRIORITY`). Ours: no other software is known
to use this bit, and in strict mode AWS_VPC_K8S_CNI_CONNMARK must not contain it."""

STRICT_PRIORITY = 9
"""Priority of the rule `iif lo fwmark <STRICT_MARK> lookup STRICT_TABLE`. The rule applies to the kernel's reverse lookup, by which it
checks a packet's source. A reverse lookup has no incoming link, which `iif lo` matches, and the packet has the mark bit only during
the check. `iif lo` also matches packets of the node itself. So the bit must not be one that other software sets (`MARKS_OF_OTHERS`):
packets of the node with that bit would bypass the security groups. The number is ours: this rule comes before the rules with
INCOMING_PRIORITY."""

INCOMING_PRIORITY = 10
"""Priority of the rule `iif <uplink or host veth> lookup <table of the uplink>`, in strict mode.

Source: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go, vlanRulePriority.
"""

MARK_PRIORITY = 1024
"""Priority of the rule `fwmark 0x80/0x80 lookup main`. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, hostRulePriority."""

EXTERNAL_SERVICE_PRIORITY = 1535
"""Priority of the rule `to <CIDR of AWS_EXTERNAL_SERVICE_CIDRS> lookup main`.

Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, externalServiceIpRulePriority.
"""

FROM_SANDBOX_PRIORITY = 1536
"""Priority of the rule `from <sandbox's address> lookup <ENI table>`, and of the same rule from a delegated prefix. On a node with
many single addresses the rules from single addresses have other priorities (`source_rules.py`). Source: amazon-vpc-cni-k8s
pkg/networkutils/network.go, FromPodRulePriority."""

FROM_ENI_PRIORITY = 32765
"""Priority of the rule `from <ENI's primary address> lookup <ENI table>`.

Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, FromPrimaryIPofENIRulePriority.
"""

TABLE_BASE = 100
"""The number of an uplink's route table is TABLE_BASE plus its VLAN ID. Source: amazon-vpc-cni-k8s
cmd/routed-eni-cni-plugin/driver/driver.go."""

LINK_PREFIX = "vlan.eth."
"""How the name of an uplink, a VLAN link, begins. Source: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go,
buildVlanLink."""

STRICT_VETH_PREFIX = "vlan"
"""How the name of a host veth in strict mode begins. Source: amazon-vpc-cni-k8s pkg/sgpp/utils.go, BuildHostVethNamePrefix."""
