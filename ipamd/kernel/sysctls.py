"""The sysctls that the node needs and that netlink cannot set, above all forwarding for all links.

Forwarding of our own links is set by netlink for each link (`devconf`), without a writable /proc/sys. So packets of sandboxes are
forwarded even if ip_forward cannot be set; ip_forward is for all other links of the node, present and future. Setting it is our
decision: amazon-vpc-cni-k8s leaves it to the node image.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from pathlib import Path

from ipamd.kernel import answers, devconf, messages, uapi
from ipamd.kernel.host_state import HostState
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.repair import Repair, route_removal
from ipamd.model import kernel_numbers
from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IPV6, Family, IpNetwork, family_of
from ipamd.model.repairs import RepairCode, RepairKind

SYSCTL_ROOT = Path("/proc/sys")
"""/proc/sys/net shows the namespace of the thread that opens it. Source: net/sysctl_net.c."""

WANTED = {"net/ipv4/ip_forward": "1"}

EARLY_DEMUX_OFF = {"net/ipv4/tcp_early_demux": "0"}
"""Without early demux the kernel routes a TCP segment even if it arrives by another link than its socket expects.
Source: amazon-vpc-cni-k8s cmd/aws-vpc-cni-init/main.go, configureSystemParams."""


def wanted_sysctls(
    families: Container[Family | None], primary_link: str, *, early_demux_disabled: bool = False
) -> Mapping[str, str]:
    """Return the sysctls that a node needs if its sandboxes have these families, in the order in which they are set.

    The primary ENI must accept router advertisements while it forwards. This is set before forwarding: otherwise the kernel drops the
    default route that it learnt from them. Source: the kernel's net/ipv6/addrconf.c, addrconf_fixup_forwarding.
    """
    wanted = WANTED
    if early_demux_disabled:
        wanted = WANTED | EARLY_DEMUX_OFF
    if IPV6 not in families:
        return wanted
    of_ipv6 = {"all/disable_ipv6": "0", "default/disable_ipv6": "0", f"{primary_link}/accept_ra": "2", "all/forwarding": "1"}
    return wanted | {f"net/ipv6/conf/{key}": value for key, value in of_ipv6.items()}


def sysctl_repairs(host: HostNetns, sysctls: Mapping[str, str]) -> Iterator[Repair]:
    """Yield the repairs of the node's sysctls. `sysctls`: key -> wanted value. Raises: WiringError for one that cannot be read."""
    for key, wanted in sysctls.items():
        with host.entered():
            current = sysctl(key, wanted=wanted)
        if current != wanted:
            target = f"sysctl {key}"
            yield Repair(RepairKind.SYSCTL, RepairCode.VALUE_SET, target, before=current, after=wanted, sysctl=(key, wanted))


def setting_repairs(link: answers.Link, wanted: Mapping[int, int]) -> Iterator[Repair]:
    """Yield the repairs of a link's IPv4 settings. `wanted`: number (see `devconf.NAMES`) -> value."""
    for number, current in devconf.wrong_settings(link, wanted).items():
        change = messages.change_link(link.index, step=f"set {link.name}", ipv4_conf={number: wanted[number]})
        target = f"sysctl net/ipv4/conf/{link.name}/{devconf.NAMES[number]}"
        yield Repair(RepairKind.SYSCTL, RepairCode.VALUE_SET, target, change, before=str(current), after=str(wanted[number]))


def sysctl(key: str, *, wanted: str, is_set: bool = False) -> str:
    """Read a sysctl in the thread's namespace.

    Args:
        key: its path below /proc/sys.
        wanted: the right value.
        is_set: set the sysctl to `wanted` before it is read.
    Raises: WiringError, with the command that sets `wanted`.
    """
    try:
        if is_set:
            (SYSCTL_ROOT / key).write_text(wanted, encoding="ascii")
        return (SYSCTL_ROOT / key).read_text(encoding="ascii").strip()
    except OSError as exc:
        command = f"sysctl -w {key.replace('/', '.')}={wanted}"
        raise failure(
            WiringError, FailureCode.SYSCTL_REFUSED, sysctl=key, wanted=wanted, cause=exc.strerror, command=command
        ) from exc


def unreachable_route_repairs(host_state: HostState, prefixes: Collection[IpNetwork]) -> Iterator[Repair]:
    """Yield the repairs of the unreachable routes to `prefixes`, which refuse packets to free addresses.

    Without such a route a packet to a free address goes back to the VPC's router by the default route. The router sends the packet
    here again, until the packet's hop limit ends.
    """
    table, unreachable = kernel_numbers.OWN_TABLE, uapi.RTN_UNREACHABLE
    present = dict[IpNetwork, answers.Route]()
    for route in host_state.routes:
        if (route.table, route.route_type) == (table, unreachable) and route.destination is not None:
            prefix = family_of(route.destination).network((route.destination, route.length))
            present[prefix] = route
    for prefix in prefixes:
        if prefix not in present:
            change = messages.add_unreachable_route(prefix, table=table)
            yield Repair(RepairKind.ROUTE, RepairCode.ADDED, change.step.removeprefix("add "), change)
    for prefix, route in present.items():
        if prefix not in prefixes:
            target = f"unreachable {prefix} table {table}"
            yield Repair(RepairKind.ROUTE, RepairCode.REMOVED, target, route_removal(route, f"delete {target}"))
