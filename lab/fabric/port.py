"""What one attached ENI needs of the kernel, as text for `ip -batch`; pure, so that it can be read and tested as text.

The fabric's end of the veth pair is the *port*. EC2 never asks who has a secondary address: it knows which ENI it
is on. So every address and prefix is routed to one made-up next hop per port, and that next hop has a permanent
neighbour entry with the ENI's MAC (one entry per ENI instead of one per address). In the other direction the port
answers ARP for every address (proxy ARP), because a node believes its whole subnet to be on the wire.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from lab.fabric.advertise import ROUTER
from lab.vpc.ipv6 import SUBNET_LENGTH
from lab.vpc.model import Eni, Network

MTU = 9001  # bytes; "Network MTU for your EC2 instance", EC2 user guide
NEXT_HOP = "169.254.255.1"  # ours, because: link-local and not one of Amazon's 169.254.169.0/24
NEXT_HOP_6 = IPv6Address("fe80::ffff")  # ours, because: nobody has it; its neighbour entry has the ENI's MAC, as that of NEXT_HOP


def port_name(eni_id: str) -> str:
    """Name the fabric's end after the ENI; an ENI ID (21 characters) does not fit the 15 of an interface name."""
    return f"p{hashlib.sha256(eni_id.encode()).hexdigest()[:13]}"


def interface_name(eni: Eni) -> str:
    """Name the node's end as Amazon Linux would: eth0, eth1 by device index; card n > 0 adds `c<n>`."""
    if eni.attachment is None:
        return "eth0"
    card = f"c{eni.attachment.network_card}" if eni.attachment.network_card else ""
    return f"eth{eni.attachment.device_index}{card}"


def is_primary(eni: Eni) -> bool:
    """Whether the instance booted with this ENI, so that DHCP has configured it."""
    return eni.attachment is not None and eni.attachment.device_index == 0 and eni.attachment.network_card == 0


def create_lines(eni: Eni, *, node_netns_path: str) -> list[str]:
    """Make the pair with both ends in their final namespaces; the node's end has the ENI's MAC and is down."""
    port, interface = port_name(eni.eni_id), interface_name(eni)
    return [
        f"link add {port} mtu {MTU} type veth peer name {interface} address {eni.mac} mtu {MTU} netns {node_netns_path}",
        f"link set {port} alias {eni.eni_id} up",
        f"neigh replace {NEXT_HOP} lladdr {eni.mac} dev {port} nud permanent",
    ]


def branch_lines(eni: Eni) -> list[str]:
    """What makes a link on the trunk's port the port of a branch. The node's end is the node's own to make."""
    port = port_name(eni.eni_id)
    return [
        f"link set {port} alias {eni.eni_id} up",
        f"neigh replace {NEXT_HOP} lladdr {eni.mac} dev {port} nud permanent",
    ]


def ipv6_lines(eni: Eni) -> list[str]:
    """What the port needs for IPv6 besides: the router's address and the made-up next hop. Neighbour discovery does the rest."""
    port = port_name(eni.eni_id)
    # For the router's ICMP errors: a node forwards none to its sandboxes that comes from a link-local address.
    own = {IPv6Network((address, SUBNET_LENGTH), strict=False)[1] for address in eni.ipv6_addresses}
    return [
        *(f"addr replace {address}/128 dev lo nodad" for address in own),
        f"addr replace {ROUTER}/64 dev {port} nodad",
        f"neigh replace {NEXT_HOP_6} lladdr {eni.mac} dev {port} nud permanent",
    ]


def port_sysctls(eni_id: str) -> dict[str, str]:
    """Answer ARP for everything, at once; never redirect, never judge by reverse path (the source check does)."""
    port = port_name(eni_id)
    return {
        f"ipv4/conf/{port}/proxy_arp": "1",
        f"ipv4/neigh/{port}/proxy_delay": "0",
        f"ipv4/conf/{port}/rp_filter": "0",
        f"ipv4/conf/{port}/send_redirects": "0",
    }


def interface_sysctls(eni: Eni) -> dict[str, str]:
    """Ask again after 100 ms, not 1 s, when the first ARP request after link-up is not answered.

    Measured: in 10 % of link-ups the port's queue is activated (by the kernel's linkwatch work) after the request came, and its
    answer is lost. A wire of EC2 has no such moment, and a second's silence would look like the source check at work.
    """
    return {f"ipv4/neigh/{interface_name(eni)}/retrans_time_ms": "100"}


def ipv6_sysctls(eni: Eni) -> dict[str, str]:
    """No detection of duplicate addresses on ENIs, as EKS's image has it (amazon-eks-ami, eks-managed.network.tpl)."""
    return {f"ipv6/conf/{interface_name(eni)}/accept_dad": "0"}


def dhcp_lines(eni: Eni) -> list[str]:
    """What DHCP would have set at boot: for the primary ENI only; EC2 configures no other one."""
    interface = interface_name(eni)
    return [
        f"link set {interface} up",
        f"addr add {eni.primary_address}/{eni.subnet_cidr.prefixlen} brd + dev {interface}",
        f"route add default via {gateway(eni.subnet_cidr)} dev {interface}",
        # By DHCPv6; the default route comes with the router's advertisement.
        *(f"addr add {address}/128 dev {interface} nodad" for address in eni.ipv6_addresses),
    ]


def gateway(subnet: IPv4Network) -> IPv4Address:
    """The VPC router's address in a subnet: the first after the network address ("Subnet CIDR blocks", VPC user guide)."""
    return subnet.network_address + 1


def in_order(networks: Iterable[Network]) -> list[Network]:
    """Both families, IPv4 first, each ascending."""
    return sorted(networks, key=lambda one: (one.version, int(one.network_address), one.prefixlen))


def route_lines(eni_id: str, *, added: Iterable[Network], removed: Iterable[Network]) -> list[str]:
    """Route what was added to this port; take back what was removed."""
    port = port_name(eni_id)
    return [
        *(f"route del {network} via {_next_hop(network)} dev {port}" for network in in_order(removed)),
        *(f"route replace {network} via {_next_hop(network)} dev {port} onlink" for network in in_order(added)),
    ]


def _next_hop(network: Network) -> str:
    return NEXT_HOP if network.version == 4 else str(NEXT_HOP_6)
