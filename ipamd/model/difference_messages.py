"""The sentences of differences: for each code what is wrong, and the command that corrects it. No other module has these sentences.

The names in braces are the fields of the difference. A difference that a repair would end may have the sentence of this repair instead
(`repair_messages`). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from ipamd.model.difference_codes import DifferenceCode

INSIDE_IS_LEFT = (
    "we change nothing inside a sandbox: if the difference is not intended, delete the pod, so that it is created again"
)
"""The advice about differences inside a sandbox."""

_WITHOUT_MATCH = "the packets that no rule accepts, and no rule names our host veths"
_BY_IPVS = "kube-proxy is in IPVS mode: pods with security groups in strict mode reach no service"

MESSAGES: Mapping[DifferenceCode, str] = {
    DifferenceCode.VETH_MISSING: "host link {link} is missing",
    DifferenceCode.VETH_DYING: "host link {link} is marked for deletion",
    DifferenceCode.VETH_KIND: "host link {link} is of kind {actual}, not veth",
    DifferenceCode.VETH_OF_ANOTHER: "host link {link} says {other} with {other_address}, not {sandbox} with {address}",
    DifferenceCode.VETH_WITHOUT_IDENTITY: "host link {link} has neither alias nor MAC of {sandbox}: alias {alias!r}, MAC {mac}",
    DifferenceCode.VETH_NAME: "host link {link} is named {actual}",
    DifferenceCode.VETH_MASTER: "host link {link} is a port of link {actual}",
    DifferenceCode.VETH_ALIAS: "host link {link} has alias {actual!r}, not {expected!r}",
    DifferenceCode.VETH_MAC: "host link {link} has MAC {actual}, not {expected}",
    DifferenceCode.VETH_MTU: "host link {link} has MTU {actual}, not {expected}",
    DifferenceCode.VETH_DOWN: "host link {link} is down",
    DifferenceCode.VETH_IPV6_OFF: "host link {link} has IPv6 off (disable_ipv6)",
    DifferenceCode.VETH_LEADS_ELSEWHERE: "host link {link} does not lead into {netns}",
    DifferenceCode.NEIGHBOUR_OF_ANOTHER: "the neighbour {address} on {link} is {actual} (permanent), not {expected}",
    DifferenceCode.NEIGHBOUR_NOT_FIXED: "the neighbour {address} on {link} is {actual}, not permanent",
    DifferenceCode.ROUTE_MISSING: "the route {address} dev {link}{table} is missing on the host",
    DifferenceCode.ROUTE_ELSEWHERE: "{address} is routed through {actual}, not through {link}{table}",
    DifferenceCode.RULE_MISSING: "{rule} is missing",
    DifferenceCode.RULE_ELSEWHERE: "{rule} looks up table {actual}, not {expected}",
    DifferenceCode.SNAT_CHOICE: "the SNAT choice of {address} is {actual} in nftables, not {expected}",
    DifferenceCode.UPLINK_MISSING: "VLAN link {link} is missing",
    DifferenceCode.UPLINK_DYING: "VLAN link {link} is marked for deletion",
    DifferenceCode.UPLINK_NOT_OURS: "link {link} is not the VLAN link of {sandbox}: it {cause}; delete it: ip link del {link}",
    DifferenceCode.UPLINK_OF_ANOTHER: "VLAN link {link} is that of {actual}, not of {expected}",
    DifferenceCode.UPLINK_MAC: "VLAN link {link} has MAC {actual}, not {expected}",
    DifferenceCode.UPLINK_ALIAS: "VLAN link {link} has alias {actual!r}, not {expected!r}",
    DifferenceCode.UPLINK_DOWN: "VLAN link {link} is down",
    DifferenceCode.UPLINK_ROUTE_MISSING: "the route {route} is missing",
    DifferenceCode.UPLINK_ROUTE_ELSEWHERE: "the route {route} leads elsewhere",
    DifferenceCode.UPLINK_RULE_ELSEWHERE: "{rule} leads elsewhere",
    DifferenceCode.SANDBOX_GONE: "{cause}",
    DifferenceCode.INTERFACE_MISSING: "interface {ifname} is missing in {netns}",
    DifferenceCode.INTERFACE_NOT_THE_OTHER_END: "interface {ifname} is not the other end of {link}",
    DifferenceCode.INTERFACE_KIND: "interface {ifname} is of kind {actual}, not veth",
    DifferenceCode.INTERFACE_DOWN: "interface {ifname} is down",
    DifferenceCode.INTERFACE_MAC: "interface {ifname} has MAC {actual}, not {expected}",
    DifferenceCode.INTERFACE_MTU: "interface {ifname} has MTU {actual}, not {expected}",
    DifferenceCode.INTERFACE_ADDRESS_MISSING: "interface {ifname} does not have {address}",
    DifferenceCode.INTERFACE_ADDRESS_UNUSED: "interface {ifname} does not have {address} (the kernel {answer})",
    DifferenceCode.INSIDE_REFUSES: "a route in the sandbox refuses packets (the kernel {answer})",
    DifferenceCode.GATEWAY_ROUTE_UNUSED: "the route to {gateway} dev {ifname} is missing in the sandbox (the kernel {answer})",
    DifferenceCode.DEFAULT_ROUTE_UNUSED: (
        "the default route via {gateway} dev {ifname} is missing in the sandbox, or not in use (the kernel {answer})"
    ),
    DifferenceCode.GATEWAY_NEIGHBOUR: "the neighbour {gateway} in the sandbox is {actual}, not {expected} (permanent)",
    DifferenceCode.PACKET_DIVERTED: "a packet of {address} does not go by {link}: `{packet}` goes by table {table}",
    DifferenceCode.PACKET_REFUSED: "a packet of {address} does not go by {link}: `{packet}` is refused, {cause}",
    DifferenceCode.PACKET_WITHOUT_ROUTE: "a packet of {address} does not go by {link}: `{packet}` is refused, {cause}",
    DifferenceCode.NOT_AS_REQUIRED: "it is not as required",
    DifferenceCode.NOT_COMPARED: "{cause}",
    DifferenceCode.ENI_LINK_MISSING: "its link with MAC {mac} is missing",
    DifferenceCode.ENI_LINK_DOWN: "its link {link} is down",
    DifferenceCode.NO_CARRIER: "the link {link} of {eni} has no carrier: no packet passes",
    DifferenceCode.MAIN_RULE_MISSING: "no rule leads to table main: node and sandboxes reach nothing",
    DifferenceCode.NODE_ROUTE_MISSING: "the node's default route is missing",
    DifferenceCode.NODE_ROUTE_DIVERTED: "the node's default route leads through {link}, a secondary ENI",
    DifferenceCode.ADDRESS_ON_HOST: "{address}, an address for sandboxes, is local on {link}",
    DifferenceCode.RULE_REFUSES: "a rule ahead of ours refuses packets",
    DifferenceCode.SERVICES_BY_IPVS: _BY_IPVS,
    DifferenceCode.CHAIN_LEFT_SNAT: "chain {chain} of amazon-vpc-cni-k8s SNATs traffic whatever our settings say",
    DifferenceCode.CHAIN_LEFT_MARKS: "chain {chain} of amazon-vpc-cni-k8s marks traffic whatever our settings say",
    DifferenceCode.TABLE_LEFT: "nftables table {table} of amazon-vpc-cni-k8s marks connections besides ours",
    DifferenceCode.FILTER_POLICY_DROPS: f"chain {{chain}} may drop sandboxes' packets: it drops by its policy {_WITHOUT_MATCH}",
    DifferenceCode.FILTER_RULE_DROPS_REST: (
        f"chain {{chain}} may drop sandboxes' packets: it drops by the rule with handle {{handle}} {_WITHOUT_MATCH}"
    ),
    DifferenceCode.FILTER_RULE_DROPS: (
        "the rule with handle {handle} of chain {chain} may drop sandboxes' packets: it names {names}"
    ),
}
"""By code: what is wrong."""

MENDS: Mapping[DifferenceCode, str] = {
    DifferenceCode.PACKET_DIVERTED: "remove the rule or route that does it, unless rule 32766 to main is missing: `{ip} rule`",
    DifferenceCode.PACKET_REFUSED: "remove the rule or route that does it, unless rule 32766 to main is missing: `{ip} rule`",
    DifferenceCode.PACKET_WITHOUT_ROUTE: (
        "bring back the node's default route, or its rule 32766 to main: `{ip} route`, `{ip} rule`"
    ),
    DifferenceCode.MAIN_RULE_MISSING: "{ip} rule add prio 32766 lookup main",
    DifferenceCode.NODE_ROUTE_MISSING: "ip route add default via {gateway} dev {link}",
    DifferenceCode.NODE_ROUTE_DIVERTED: "ip route del default dev {link} metric {metric}",
    DifferenceCode.ADDRESS_ON_HOST: "ip address del {address}/{length} dev {link}",
    DifferenceCode.RULE_REFUSES: "ip rule del prio {priority}",
    DifferenceCode.SERVICES_BY_IPVS: (
        "set kube-proxy's mode to nftables; or set POD_SECURITY_GROUP_ENFORCING_MODE=standard, and create these pods again"
    ),
    DifferenceCode.CHAIN_LEFT_SNAT: "remove the DaemonSet aws-node, then: nft flush chain {chain}",
    DifferenceCode.CHAIN_LEFT_MARKS: "remove the DaemonSet aws-node, then: nft flush chain {chain}",
    DifferenceCode.TABLE_LEFT: "remove the DaemonSet aws-node, then: nft delete table {table}",
    DifferenceCode.FILTER_POLICY_DROPS: "{command}",
    DifferenceCode.FILTER_RULE_DROPS_REST: "{command}",
    DifferenceCode.FILTER_RULE_DROPS: "nft -a list chain {chain}; nft delete rule {chain} handle {handle}",
}
"""By code: the command or the advice by which an operator mends a difference that the daemon does not repair."""


def difference_text(code: DifferenceCode, fields: Mapping[str, str]) -> str:
    """Return the sentence that says what is wrong."""
    return MESSAGES[code].format_map(fields)


def mend_text(code: DifferenceCode, fields: Mapping[str, str]) -> str:
    """Return how an operator mends the difference; "" if this module has no advice for its code."""
    return MENDS.get(code, "").format_map(fields)
