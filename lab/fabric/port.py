"""The kernel objects of an attached ENI as text for `ip -batch`. No function changes anything, so that tests can compare the text.

The router's end of an ENI's veth pair is its *port*. EC2 sends no ARP request for a secondary address, because it knows the address's
ENI. So the router routes all addresses and prefixes of an ENI to one made-up next hop on its port, and this next hop has a permanent
neighbour entry with the ENI's MAC. That needs one entry for each ENI instead of one for each address. In the other direction the port
answers ARP requests for every address (proxy ARP), because a node sends such requests for all addresses of its subnet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from lab.fabric.advertise import ROUTER
from lab.vpc.ipv6 import SUBNET_LENGTH
from lab.vpc.model import Eni, Network

MTU = 9001  # bytes; "Network MTU for your EC2 instance", EC2 user guide
NEXT_HOP = "169.254.255.1"  # ours: a link-local address that nobody has, and that is not in Amazon's 169.254.169.0/24
NEXT_HOP_6 = IPv6Address("fe80::ffff")  # ours: a link-local address that nobody has; the next hop of IPv6


def port_name(eni_id: str) -> str:
    """Return the name of an ENI's port. It is a hash of the ENI ID, whose 21 characters do not fit into an interface name of 15."""
    return f"p{hashlib.sha256(eni_id.encode()).hexdigest()[:13]}"


def interface_name(eni: Eni) -> str:
    """Return the name of the node's end: eth0, eth1, ... by device index as on Amazon Linux, with `c<n>` on network card n > 0."""
    if eni.attachment is None:
        return "eth0"
    card = f"c{eni.attachment.network_card}" if eni.attachment.network_card else ""
    return f"eth{eni.attachment.device_index}{card}"


def is_primary(eni: Eni) -> bool:
    """Whether the instance booted with this ENI, so that DHCP has configured it."""
    return eni.attachment is not None and eni.attachment.device_index == 0 and eni.attachment.network_card == 0


def create_lines(eni: Eni, *, node_netns_path: str) -> list[str]:
    """Return lines that make the veth pair of an ENI, with its ends in router and node. The node's end has the ENI's MAC and is
    down."""
    port, interface = port_name(eni.eni_id), interface_name(eni)
    return [
        f"link add {port} mtu {MTU} type veth peer name {interface} address {eni.mac} mtu {MTU} netns {node_netns_path}",
        f"link set {port} alias {eni.eni_id} up",
        f"neigh replace {NEXT_HOP} lladdr {eni.mac} dev {port} nud permanent",
    ]


def branch_lines(eni: Eni) -> list[str]:
    """Return lines that make a VLAN link on the trunk's port the port of a branch ENI. The daemon makes the node's end."""
    port = port_name(eni.eni_id)
    return [
        f"link set {port} alias {eni.eni_id} up",
        f"neigh replace {NEXT_HOP} lladdr {eni.mac} dev {port} nud permanent",
    ]


def ipv6_lines(eni: Eni) -> list[str]:
    """Return further lines for IPv6: the router's address on the port, and the made-up next hop."""
    port = port_name(eni.eni_id)
    # The router needs a global address as the source of its ICMP errors, because a node forwards no packet from a link-local address.
    own = {IPv6Network((address, SUBNET_LENGTH), strict=False)[1] for address in eni.ipv6_addresses}
    return [
        *(f"addr replace {address}/128 dev lo nodad" for address in own),
        f"addr replace {ROUTER}/64 dev {port} nodad",
        f"neigh replace {NEXT_HOP_6} lladdr {eni.mac} dev {port} nud permanent",
    ]


def port_sysctls(eni_id: str) -> dict[str, str]:
    """Return the settings of a port: it answers ARP for every address without delay, sends no redirects, and does not check the
    reverse path, because the source check does that."""
    port = port_name(eni_id)
    return {
        f"ipv4/conf/{port}/proxy_arp": "1",
        f"ipv4/neigh/{port}/proxy_delay": "0",
        f"ipv4/conf/{port}/rp_filter": "0",
        f"ipv4/conf/{port}/send_redirects": "0",
    }


def interface_sysctls(eni: Eni) -> dict[str, str]:
    """Return the setting of the node's end by which the kernel repeats an ARP request after 100 ms and not after 1 s.

    Measured: in 10 % of cases the answer to the first request after the link goes up is lost, because the kernel activates the port's
    queue later (linkwatch). EC2 has no such loss, and a second of silence would look like a drop by the source check.
    """
    return {f"ipv4/neigh/{interface_name(eni)}/retrans_time_ms": "100"}


def ipv6_sysctls(eni: Eni) -> dict[str, str]:
    """Return the setting that turns the detection of duplicate addresses off, as on EKS's image (amazon-eks-ami,
    eks-managed.network.tpl)."""
    return {f"ipv6/conf/{interface_name(eni)}/accept_dad": "0"}


def dhcp_lines(eni: Eni) -> list[str]:
    """Return lines that configure the primary ENI as DHCP does at boot. No other ENI is configured at boot."""
    interface = interface_name(eni)
    return [
        f"link set {interface} up",
        f"addr add {eni.primary_address}/{eni.subnet_cidr.prefixlen} brd + dev {interface}",
        f"route add default via {gateway(eni.subnet_cidr)} dev {interface}",
        # As by DHCPv6. The IPv6 default route comes from the router's advertisement.
        *(f"addr add {address}/128 dev {interface} nodad" for address in eni.ipv6_addresses),
    ]


def gateway(subnet: IPv4Network) -> IPv4Address:
    """Return the VPC router's address in a subnet: the first after the network address ("Subnet CIDR blocks", VPC user guide)."""
    return subnet.network_address + 1


def in_order(networks: Iterable[Network]) -> list[Network]:
    """Sort networks of both families: IPv4 first, each family ascending."""
    return sorted(networks, key=lambda network: (network.version, int(network.network_address), network.prefixlen))


def route_lines(eni_id: str, *, added: Iterable[Network], removed: Iterable[Network]) -> list[str]:
    """Return lines that add the routes of `added` to the port of an ENI, and delete those of `removed`."""
    port = port_name(eni_id)
    return [
        *(f"route del {network} via {_next_hop(network)} dev {port}" for network in in_order(removed)),
        *(f"route replace {network} via {_next_hop(network)} dev {port} onlink" for network in in_order(added)),
    ]


def _next_hop(network: Network) -> str:
    return NEXT_HOP if network.version == 4 else str(NEXT_HOP_6)
