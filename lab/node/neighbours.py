"""Other software beside the daemon on a lab node: its configuration, the commands that reload it, and the settings of docs/host.md.

Configuration that an image ships is marked with its source. Links of the lab have no driver, so files that match ENIs by their driver
match them by name here. The primary address is static here, because there is no DHCP of EC2.
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
"""The file of the primary ENI. Source: awslabs/amazon-eks-ami, nodeadm/cmd/nodeadm-internal/udev/eks-managed.network.tpl. The original
has DHCP=yes, and PermanentMACAddress=, which a veth does not have."""

OTHERS_UNMATCHED = "[Match]\nName=none\n[Network]\nDHCP=yes\n"
"""The image's 80-ec2.network, which nodeadm changes so that it matches no link. Source: awslabs/amazon-eks-ami, systemd.go."""

DISTRIBUTION = "[Match]\nName=e*\n[Network]\nDHCP=yes\n"
"""A distribution's own file. It configures every link that no file before it matches."""


@dataclass(frozen=True)
class Kind:
    """A kind of other software.

    argv: its daemon with its arguments.
    files: returns path below / -> content, for a node with this primary ENI.
    is_ready: returns whether the daemon manages the node.
    reload: the commands by which an operator lets it read its configuration again, in order.
    mend: the commands that docs/host.md tells an operator to run for it, once it is ready.
    starts_first: whether tests start it before forwarding is on. Its rules depend on forwarding, which is off at a boot until our
        node-init or the software itself turns it on.
    """

    argv: tuple[str, ...]
    files: Callable[[Eni], Mapping[str, str]]
    is_ready: Callable[[Neighbour], bool]
    reload: tuple[tuple[str, ...], ...]
    mend: tuple[tuple[str, ...], ...] = ()
    starts_first: bool = False

    def on(self, node: Node, primary: Eni) -> Neighbour:
        """Make the object for a node; the daemon is not started yet."""
        return Neighbour(node, self.argv, files=self.files(primary))


NETWORKD_ON_BUS = ("org.freedesktop.network1", "/org/freedesktop/network1")
"""networkd's name and object on D-Bus."""


def _primary_file(primary: Eni) -> str:
    subnet: IPv4Network = primary.subnet_cidr
    return EKS_PRIMARY.format(address=f"{primary.primary_address}/{subnet.prefixlen}", gateway=gateway(subnet))


def _of_eks(primary: Eni) -> dict[str, str]:
    """Return the files of EKS's AL2023 image, without ours."""
    return {
        "etc/systemd/networkd.conf.d/80-release.conf": FOREIGN_STAYS,
        "etc/systemd/network/70-eks-eth0.network": _primary_file(primary),
        "etc/systemd/network/80-ec2.network": OTHERS_UNMATCHED,
        "etc/systemd/network/99-default.link.d/99-no-policy.conf": "[Link]\nMACAddressPolicy=none\n",
    }


def _bare(primary: Eni) -> dict[str, str]:
    """Return only the file of the primary ENI, so that networkd has its defaults."""
    return {"etc/systemd/network/70-eks-eth0.network": _primary_file(primary)}


def _of_a_distribution(primary: Eni) -> dict[str, str]:
    """Return a distribution's file that matches every link, and our files; networkd's other settings are its defaults."""
    ours = {path.name: path.read_text() for path in (HOST_FILES / "networkd").iterdir()}
    secondary = ours.pop("10-vpc-ipamd-secondary.network").replace("Driver=ena", "Name=eth1")
    files = {f"etc/systemd/network/{name}": text for name, text in ours.items() if not name.endswith(".conf")}
    files["etc/systemd/networkd.conf.d/50-vpc-ipamd.conf"] = ours["50-vpc-ipamd.conf"]
    files["etc/systemd/network/10-vpc-ipamd-secondary.network"] = secondary.replace("Property=!INTERFACE=PRIMARY\n", "")
    files["etc/systemd/network/05-primary.network"] = _primary_file(primary)
    files["etc/systemd/network/90-distribution.network"] = DISTRIBUTION
    return files


def _of_network_manager(_: Eni) -> dict[str, str]:
    """Return our file, without which NetworkManager runs DHCP on each host veth."""
    path = HOST_FILES / "NetworkManager" / "50-vpc-ipamd.conf"
    text = path.read_text().replace("driver:ena;except:interface-name:PRIMARY", "interface-name:eth1")
    return {"etc/NetworkManager/conf.d/50-vpc-ipamd.conf": text}


def _nothing(_: Eni) -> dict[str, str]:
    return {}


def _is_configured(neighbour: Neighbour) -> bool:
    """Whether networkd answers calls and has configured the primary ENI. It adds the ENI's default route last.

    It is asked over D-Bus, as `networkctl reload` asks it. On a busy machine networkd has its name there only after all that.
    """
    return neighbour.answers("busctl", "call", *NETWORKD_ON_BUS, "org.freedesktop.DBus.Peer", "Ping") and bool(
        neighbour.run("ip", "-4", "route", "show", "default", "metric", "512", "dev", "eth0")
    )


def _serves_network_manager(neighbour: Neighbour) -> bool:
    return neighbour.answers("nmcli", "--wait", "1", "general")


def _runs_network_manager(neighbour: Neighbour) -> bool:
    """Whether NetworkManager has activated all links, which takes most of a minute if it waits for DHCP on a link without a server."""
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
"""networkd with its default settings. With these it removes routing rules of other programs, so no node with pods should have them."""

BARE_NETWORK_MANAGER = Kind(NETWORK_MANAGER, _nothing, _serves_network_manager, RELOAD_NETWORK_MANAGER)
"""NetworkManager without configuration: it manages every link."""

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
