"""Numbers and names that must stay as amazon-vpc-cni-k8s has them, with the public file of each.

A node can be moved from amazon-vpc-cni-k8s to vpc-ipamd and back while sandboxes run. Each then finds routes, rules, marks and
tags that the other has left, and recognises them by these values only. Whoever changes one sees here what breaks. The values are
compared with what the adapters emit, not only with constants. Files are those of https://github.com/aws/amazon-vpc-cni-k8s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ipamd.kernel import answers, devconf, messages, routing, ruleset, sysctls, uapi, wiring_messages
from ipamd.kernel.host_state import HostState
from ipamd.kernel.netlink import Message
from ipamd.model import eni_tags, kernel_numbers
from ipamd.model.attachment import WiringSpec, veth_name
from ipamd.model.eni import Eni, gateway
from ipamd.model.family import IPV4, IPV6
from ipamd.model.ids import EniId, MacAddress, SubnetId, parse_key
from ipamd.model.legs import first_leg
from ipamd.settings import NetworkConfig

NETWORK, HELPER = "pkg/networkutils/network.go", "pkg/networkutils/helper.go"
NAMES, CONNMARK = "pkg/networkutils/names.go", "pkg/networkutils/nftables_connmark.go"
DRIVER, INIT = "cmd/routed-eni-cni-plugin/driver/driver.go", "cmd/aws-vpc-cni-init/main.go"
IPAMD, AWSUTILS = "pkg/ipamd/ipamd.go", "pkg/awsutils/awsutils.go"

STALE_RULES = "rules of running sandboxes are not recognised: they stay after DEL and misroute the next owner of the address"
NO_ROUTE = "running sandboxes lose their route when the other daemon restores or removes routes"
LOST_MARK = "replies of open NodePort and outbound connections leave through the wrong ENI"
LOST_ENI = "ENIs of the other daemon are not recognised: they leak, or ENIs that must be left alone are used"

SPEC = WiringSpec(
    key=parse_key("c" * 64, "eth0"),
    address=IPv4Address("10.0.1.5"),
    route_table=2,
    host_veth="eni01234567890",
    netns="/run/netns/x",
    mtu=9001,
)
VPC = (IPv4Network("10.0.0.0/16"),)


@dataclass(frozen=True)
class Row:
    """One compatible value: what it is, where amazon-vpc-cni-k8s has it, what breaks if it changes, and what we emit."""

    what: str
    value: object
    source: str
    breaks: str
    emitted: Callable[[], object]

    def message(self, emitted: object) -> str:
        """Tell whoever changed the value what to consider."""
        return (
            f"{self.what} is {emitted!r}; the value compatible with amazon-vpc-cni-k8s is {self.value!r} ({self.source}). "
            f"On a node that moves between both: {self.breaks}"
        )


def eni(device_index: int = 1, network_card: int = 0, *, is_primary: bool = False) -> Eni:
    """An ENI at a place on the instance."""
    return Eni(
        eni_id=EniId("eni-1"),
        mac=MacAddress("02:00:00:00:00:01"),
        device_index=device_index,
        network_card=network_card,
        subnet_id=SubnetId("subnet-1"),
        subnet_cidr=IPv4Network("10.0.1.0/24"),
        primary_address=IPv4Address("10.0.1.4"),
        is_primary=is_primary,
    )


def sandbox_rule(priority_index: int) -> tuple[int, int, str]:
    """Priority, table and address of a single sandbox's rules, which DEL removes whoever made them: 0 to the sandbox, 1 from it."""
    rule = answers.read_rule(
        wiring_messages.sandbox_rules(messages.add_rule, SPEC.address, SPEC.route_table)[priority_index].body
    )
    return rule.priority, rule.table, str(rule.destination if priority_index == 0 else rule.source)


def sandbox_messages(kind: int) -> list[Message]:
    """The messages of one type that ADD sends into the sandbox."""
    return [message for message in wiring_messages.sandbox_side(first_leg(SPEC), 2) if message.kind == kind]


def next_hop() -> tuple[str, bool, str]:
    """The sandbox's neighbour entry, whether it is permanent, and the next hop of its default route."""
    (neighbour,) = (answers.read_neighbour(message.body) for message in sandbox_messages(uapi.RTM_NEWNEIGH))
    default = next(
        route
        for route in map(answers.read_route, (message.body for message in sandbox_messages(uapi.RTM_NEWROUTE)))
        if route.destination is None
    )
    return str(neighbour.address), neighbour.is_permanent, str(default.via)


def eni_rule() -> tuple[object, object, object]:
    """The rule of a secondary ENI that has none yet: priority, table, source."""

    (repair,) = routing.rule_repairs(cast(HostState, SimpleNamespace(rules=())), eni())
    rule = answers.read_rule(repair.change.body)
    return rule.priority, rule.table, str(rule.source)


def nft(config: NetworkConfig | None = None) -> str:
    """The nftables commands with default settings."""
    return ruleset.replace_table(
        config or NetworkConfig(), vpc_cidrs=VPC, primary_address=IPv4Address("10.0.0.4"), primary_link="eth0"
    )


def name_lengths() -> tuple[int, int, bool]:
    """Length of a host veth's name with the default and the longest prefix, and whether the rest is hexadecimal."""
    default, longest = (veth_name(SPEC.key, prefix=prefix) for prefix in (NetworkConfig().veth_prefix, "abcd"))
    return len(default), len(longest), set(default[3:]) <= set("0123456789abcdef")


ROWS = (
    Row(
        "the rule to a sandbox",
        (512, 254, "10.0.1.5"),
        f"{NETWORK}, ToContainerRulePriority",
        STALE_RULES,
        lambda: sandbox_rule(0),
    ),
    Row(
        "the rule from a sandbox", (1536, 2, "10.0.1.5"), f"{NETWORK}, FromPodRulePriority", STALE_RULES, lambda: sandbox_rule(1)
    ),
    Row(
        "the priority of rules to external services",
        1535,
        f"{NETWORK}, externalServiceIpRulePriority",
        STALE_RULES,
        lambda: kernel_numbers.EXTERNAL_SERVICE_PRIORITY,
    ),
    Row("the priority of the mark rule", 1024, f"{NETWORK}, hostRulePriority", LOST_MARK, lambda: kernel_numbers.MARK_PRIORITY),
    Row(
        "the rule from an ENI's primary address",
        (32765, 2, "10.0.1.4"),
        f"{NETWORK}, FromPrimaryIPofENIRulePriority",
        "the node answers from a secondary ENI's address through the wrong ENI, or has the rule twice",
        eni_rule,
    ),
    Row("the main route table", 254, f"{HELPER}, CalculateRouteTableId", NO_ROUTE, lambda: eni(0, is_primary=True).route_table),
    Row("the table of device 1, card 0", 2, f"{HELPER}, CalculateRouteTableId", NO_ROUTE, lambda: eni(1).route_table),
    Row("the table of device 14, card 0", 15, f"{HELPER}, CalculateRouteTableId", NO_ROUTE, lambda: eni(14).route_table),
    Row("the table of device 3, card 2", 10203, f"{HELPER}, CalculateRouteTableId", NO_ROUTE, lambda: eni(3, 2).route_table),
    Row("the subnet's router", "10.0.1.1", f"{NETWORK}, GetIPv4Gateway", NO_ROUTE, lambda: str(gateway(eni().subnet_cidr))),
    Row(
        "the sandbox's next hop",
        ("169.254.1.1", True, "169.254.1.1"),
        f"{DRIVER}, createVethPairContext.run",
        "CHECK of a sandbox that the other daemon wired fails, and its gateway in the CNI result is wrong",
        next_hop,
    ),
    Row("the connection mark", 0x80, f"{NETWORK}, defaultConnmark", LOST_MARK, lambda: NetworkConfig().connmark),
    Row(
        "the mark in the nftables table",
        True,
        f"{NETWORK}, defaultConnmark",
        LOST_MARK,
        lambda: "ct mark set ct mark or 0x80" in nft(),
    ),
    Row(
        "the priority of the chain that marks (dstnat is -100)",
        True,
        f"{CONNMARK}, getDesiredPriority (-90)",
        "connections are marked before or after another agent's DNAT than before the move",
        lambda: "hook prerouting priority dstnat + 10;" in nft(),
    ),
    Row(
        "the MTU of ENIs and sandboxes",
        (9001, 9001),
        f"{NETWORK}, defaultMTU",
        "packets of sandboxes wired before and after the move differ in size, and large ones are lost",
        lambda: (NetworkConfig().eni_mtu, NetworkConfig().sandbox_mtu),
    ),
    Row(
        "the prefix of host veths",
        "eni",
        f"{NETWORK}, envVethPrefixDefault",
        "firewall rules for eni* (Calico, the nftables table) miss the sandboxes",
        lambda: NetworkConfig().veth_prefix,
    ),
    Row(
        "the length of host veth names",
        (14, 15, True),
        f"{NAMES}, GeneratePodHostVethNameSuffix (11 hexadecimal digits)",
        "a prefix of 4 characters no longer fits the kernel's limit of 15",
        name_lengths,
    ),
    Row(
        "the tag of our ENIs",
        "node.k8s.amazonaws.com/instance_id",
        f"{AWSUTILS}, eniNodeTagKey",
        LOST_ENI,
        lambda: eni_tags.INSTANCE_TAG,
    ),
    Row(
        "the tag of foreign ENIs",
        "node.k8s.amazonaws.com/no_manage",
        f"{IPAMD}, eniNoManageTagKey",
        LOST_ENI,
        lambda: eni_tags.NO_MANAGE_TAG,
    ),
    Row(
        "the tag with the time of creation",
        "node.k8s.amazonaws.com/createdAt",
        f"{AWSUTILS}, eniCreatedAtTagKey",
        "the clean-up of leaked ENIs takes a new ENI for an old one, or never deletes it",
        lambda: eni_tags.CREATED_AT_TAG,
    ),
    Row(
        "the cluster's tag",
        "cluster.k8s.amazonaws.com/name",
        f"{AWSUTILS}, eniClusterTagKey",
        LOST_ENI,
        lambda: eni_tags.CLUSTER_TAG,
    ),
    Row(
        "the owner's tag",
        ("eks:eni:owner", "amazon-vpc-cni"),
        f"{AWSUTILS}, eniOwnerTagKey and eniOwnerTagValue",
        "IAM conditions and EKS itself do not recognise the ENI",
        lambda: eni_tags.OWNER_TAG,
    ),
    Row(
        "the description of ENIs", "aws-K8S-", f"{AWSUTILS}, eniDescriptionPrefix", LOST_ENI, lambda: eni_tags.DESCRIPTION_PREFIX
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_the_value_is_compatible(row: Row) -> None:
    """What we emit is what amazon-vpc-cni-k8s emits."""
    emitted = row.emitted()
    assert emitted == row.value, row.message(emitted)


def test_sysctls_are_compatible() -> None:
    """Loose reverse path filtering on the primary link, as INIT sets it, and forwarding, which is ours."""
    wanted = {devconf.NAMES[number]: value for number, value in devconf.PRIMARY_ENI.items()}
    assert wanted == {"rp_filter": 2, "forwarding": 1}, (
        f"sysctls are {wanted}; compatible with amazon-vpc-cni-k8s is rp_filter=2 ({INIT}, configureSystemParams). On a node that "
        "moves between both: replies to addresses of secondary ENIs that arrive on the primary ENI are dropped"
    )
    assert sysctls.wanted_sysctls((IPV4,), "eth0") == {"net/ipv4/ip_forward": "1"}
    for families in ((IPV4,), (IPV6,)):
        without = sysctls.wanted_sysctls(families, "eth0")
        off = sysctls.wanted_sysctls(families, "eth0", early_demux_disabled=True)
        assert off.items() - without.items() == {("net/ipv4/tcp_early_demux", "0")}
    of_ipv6 = [key.removeprefix("net/ipv6/conf/") for key in sysctls.wanted_sysctls((IPV6,), "eth0") if "ipv6" in key]
    assert of_ipv6 == ["all/disable_ipv6", "default/disable_ipv6", "eth0/accept_ra", "all/forwarding"], "in this order"


def test_our_table_is_not_theirs() -> None:
    """Both can be on a node for a while: with one name each would flush the other's chains."""
    other = "aws-cni"
    assert ruleset.TABLE == "vpc-ipamd", f"the nftables table is {ruleset.TABLE!r}: an upgrade leaves the table vpc-ipamd behind"
    assert other != ruleset.TABLE, f"{other} is the table of amazon-vpc-cni-k8s ({CONNMARK}, nftTableName)"
    assert f"table {ruleset.FAMILY} vpc-ipamd {{" in nft()


def test_our_rules_stay_out_of_reserved_priorities() -> None:
    """Priorities that amazon-vpc-cni-k8s gives to rules which we do not make: its teardown would take ours for its own."""
    reserved: dict[int, str] = {1: "FromInterfaceRulePriority"}
    ours = {name: value for name, value in vars(kernel_numbers).items() if name.endswith("_PRIORITY")}
    taken = {name: f"{NETWORK}, {reserved[value]}" for name, value in ours.items() if value in reserved}
    assert len(ours) == 10
    assert not taken


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_a_failure_says_value_source_and_consequence(row: Row) -> None:
    """Whoever changes a number reads all three."""
    changed: Any = "something else"
    text = row.message(changed)
    assert repr(row.value) in text
    assert row.source in text
    assert row.breaks in text
    assert row.source.partition(",")[0].endswith(".go")
