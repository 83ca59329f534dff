"""Real neighbours of the daemon on a lab node: their configuration, how they are reloaded, and what docs/host.md sets for them.

Lines that an image ships are named with their source. Links of the lab have no driver, so files that match ENIs by driver match them
by name here. The address that EC2's DHCP would give is static.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network

from lab.fabric.port import gateway
from lab.node.neighbour import Neighbour
from lab.node.node import REPOSITORY, Node
from lab.vpc.model import Eni

HOST_FILES = REPOSITORY / "manifests" / "host"

FOREIGN_STAYS = "[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n"
"""Source: awslabs/amazon-eks-ami, templates/al2023/runtime/rootfs/etc/systemd/networkd.conf.d/80-release.conf."""

EKS_PRIMARY = """\
[Match]
Name=eth0
[Link]
MTUBytes=9001
[Network]
Address={address}
IPv6DuplicateAddressDetection=0
LLMNR=no
DNSDefaultRoute=yes
[Route]
Gateway={gateway}
Metric=512
"""
"""Source: the same, nodeadm/cmd/nodeadm-internal/udev/eks-managed.network.tpl, of the primary ENI. There it has
PermanentMACAddress=, which a veth has none of, and DHCP=yes."""

OTHERS_UNMATCHED = "[Match]\nName=none\n[Network]\nDHCP=yes\n"
"""The image's 80-ec2.network, which nodeadm makes match nothing. Source: the same, systemd.go."""

DISTRIBUTION = "[Match]\nName=e*\n[Network]\nDHCP=yes\n"
"""What a distribution's own file does: it configures every link that nothing before it matches."""


@dataclass(frozen=True)
class Kind:
    """A neighbour.

    files: content by path below /, for a node whose primary ENI is given.
    is_ready: whether it manages the node.
    reload: what its operator runs to have it read its configuration again, one command after another.
    mend: what docs/host.md says to set beside it, as commands once it is ready.
    starts_first: what it does depends on forwarding, which is off until our node-init or its own start turns it on, as at a boot.
    """

    argv: tuple[str, ...]
    files: Callable[[Eni], Mapping[str, str]]
    is_ready: Callable[[Neighbour], bool]
    reload: tuple[tuple[str, ...], ...]
    mend: tuple[tuple[str, ...], ...] = ()
    starts_first: bool = False

    def on(self, node: Node, primary: Eni) -> Neighbour:
        """Make it for a node; it is not started."""
        return Neighbour(node, self.argv, files=self.files(primary))


def _primary_file(primary: Eni) -> str:
    subnet: IPv4Network = primary.subnet_cidr
    return EKS_PRIMARY.format(address=f"{primary.primary_address}/{subnet.prefixlen}", gateway=gateway(subnet))


def _of_eks(primary: Eni) -> dict[str, str]:
    """The files of EKS's AL2023 image, and none of ours."""
    return {
        "etc/systemd/networkd.conf.d/80-release.conf": FOREIGN_STAYS,
        "etc/systemd/network/70-eks-eth0.network": _primary_file(primary),
        "etc/systemd/network/80-ec2.network": OTHERS_UNMATCHED,
        "etc/systemd/network/99-default.link.d/99-no-policy.conf": "[Link]\nMACAddressPolicy=none\n",
    }


def _bare(primary: Eni) -> dict[str, str]:
    """The primary ENI's file alone: networkd's defaults."""
    return {"etc/systemd/network/70-eks-eth0.network": _primary_file(primary)}


def _of_a_distribution(primary: Eni) -> dict[str, str]:
    """A distribution's catch-all with networkd's defaults, and our files."""
    ours = {path.name: path.read_text() for path in (HOST_FILES / "networkd").iterdir()}
    secondary = ours.pop("10-vpc-ipamd-secondary.network").replace("Driver=ena", "Name=eth1")
    files = {f"etc/systemd/network/{name}": text for name, text in ours.items() if not name.endswith(".conf")}
    files["etc/systemd/networkd.conf.d/50-vpc-ipamd.conf"] = ours["50-vpc-ipamd.conf"]
    files["etc/systemd/network/10-vpc-ipamd-secondary.network"] = secondary.replace("Property=!INTERFACE=PRIMARY\n", "")
    files["etc/systemd/network/05-primary.network"] = _primary_file(primary)
    files["etc/systemd/network/90-distribution.network"] = DISTRIBUTION
    return files


def _of_network_manager(_: Eni) -> dict[str, str]:
    """Our file; without it NetworkManager runs DHCP on each host veth."""
    path = HOST_FILES / "NetworkManager" / "50-vpc-ipamd.conf"
    text = path.read_text().replace("driver:ena;except:interface-name:PRIMARY", "interface-name:eth1")
    return {"etc/NetworkManager/conf.d/50-vpc-ipamd.conf": text}


def _nothing(_: Eni) -> dict[str, str]:
    return {}


def _is_configured(neighbour: Neighbour) -> bool:
    """Whether networkd serves calls, and the primary ENI has the default route that it gives last."""
    return neighbour.answers("networkctl", "list") and bool(
        neighbour.run("ip", "-4", "route", "show", "default", "metric", "512", "dev", "eth0")
    )


def _serves_network_manager(neighbour: Neighbour) -> bool:
    return neighbour.answers("nmcli", "--wait", "1", "general")


def _runs_network_manager(neighbour: Neighbour) -> bool:
    """Whether no link is being activated any more; with DHCP on a link without a server that takes most of a minute."""
    return _serves_network_manager(neighbour) and "startup complete" in neighbour.log


def _runs_firewalld(neighbour: Neighbour) -> bool:
    return neighbour.answers("firewall-cmd", "--state")


def _runs_docker(neighbour: Neighbour) -> bool:
    return neighbour.answers("docker", "version")


NETWORKD = "/lib/systemd/systemd-networkd"
RELOAD_NETWORKD = (("networkctl", "reload"), ("networkctl", "reconfigure", "eth0"))

NETWORK_MANAGER = ("NetworkManager", "--debug", "--log-level=INFO")
RELOAD_NETWORK_MANAGER = (("nmcli", "general", "reload"),)

BARE_NETWORKD = Kind((NETWORKD,), _bare, _is_configured, RELOAD_NETWORKD)
"""networkd as nobody should run it beside pods: it removes rules that it did not make."""

BARE_NETWORK_MANAGER = Kind(NETWORK_MANAGER, _nothing, _serves_network_manager, RELOAD_NETWORK_MANAGER)
"""NetworkManager as it is installed: it takes every link."""

KINDS = {
    "networkd of EKS": Kind((NETWORKD,), _of_eks, _is_configured, RELOAD_NETWORKD),
    "networkd of a distribution": Kind((NETWORKD,), _of_a_distribution, _is_configured, RELOAD_NETWORKD),
    "NetworkManager": Kind(NETWORK_MANAGER, _of_network_manager, _runs_network_manager, RELOAD_NETWORK_MANAGER),
    "firewalld": Kind(
        ("firewalld", "--nofork", "--nopid"),
        _nothing,
        _runs_firewalld,
        (("firewall-cmd", "--reload"), ("firewall-cmd", "--complete-reload")),
        mend=(
            ("firewall-cmd", "--permanent", "--zone=trusted", "--add-interface=eni+"),
            ("firewall-cmd", "--permanent", "--new-policy=to-pods"),
            ("firewall-cmd", "--permanent", "--policy=to-pods", "--add-ingress-zone=ANY"),
            ("firewall-cmd", "--permanent", "--policy=to-pods", "--add-egress-zone=trusted"),
            ("firewall-cmd", "--permanent", "--policy=to-pods", "--set-target=ACCEPT"),
            ("firewall-cmd", "--reload"),
        ),
    ),
    "Docker": Kind(
        ("dockerd", "--storage-driver=vfs", "--host=unix:///run/docker.sock"),
        _nothing,
        _runs_docker,
        (("sh", "-c", "kill -HUP $(cat /run/docker.pid)"),),
        mend=(
            ("iptables", "-I", "DOCKER-USER", "-i", "eni+", "-j", "ACCEPT"),
            ("iptables", "-I", "DOCKER-USER", "-o", "eni+", "-j", "ACCEPT"),
        ),
        starts_first=True,
    ),
}
