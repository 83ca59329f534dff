"""The node's own links and rules: the primary ENI's MTU, and the rule that sends marked packets through table main. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from ipaddress import IPv4Network
from pathlib import Path

from ipamd.kernel import messages, records, ruleset, uapi
from ipamd.kernel.enis import Repair
from ipamd.kernel.netns import HostNetns
from ipamd.model import kernel as dataplane
from ipamd.model.attachment import VETH_HASH_LENGTH
from ipamd.model.errors import WiringError
from ipamd.settings import NetworkConfig


def node_repairs(link: records.Link, rules: Collection[records.Rule], config: NetworkConfig) -> Iterator[Repair]:
    """Compare the primary ENI's link and the node's rules with what they must be."""
    if link.mtu != config.eni_mtu:
        change = messages.change_link(link.index, step=f"set MTU of {link.name}", mtu=config.eni_mtu)
        yield Repair(change, f"{link.name} (primary) had MTU {link.mtu}", f"set to {config.eni_mtu}")
    main, mark, priority = uapi.RT_TABLE_MAIN, config.connmark, dataplane.MARK_PRIORITY
    has_mark = any(rule.priority == priority and (rule.mark, rule.mask, rule.table) == (mark, mark, main) for rule in rules)
    words = f"rule {priority} fwmark {mark:#x}"
    if ruleset.needs_mark(config) and not has_mark:
        yield Repair(messages.add_rule(priority, table=main, mark=mark), f"{words} was missing", "added")
    yield from _external_service_repairs(rules, config)


def former_settings(rules: Collection[records.Rule], veth_names: Iterable[str], config: NetworkConfig) -> ruleset.FormerSettings:
    """What living sandboxes and open connections need from before a change of settings.

    A rule 1024 is never removed: connections that carry its mark would leave by the wrong ENI, and conntrack keeps them for days.
    """
    current = {config.connmark} if ruleset.needs_mark(config) else set()
    marks = {
        rule.mark
        for rule in rules
        if (rule.priority, rule.table) == (dataplane.MARK_PRIORITY, uapi.RT_TABLE_MAIN) and rule.mark and rule.mark == rule.mask
    }
    prefixes = {name[:-VETH_HASH_LENGTH] for name in veth_names if len(name) > VETH_HASH_LENGTH}
    return ruleset.FormerSettings(tuple(sorted(prefixes - {config.veth_prefix})), tuple(sorted(marks - current)))


def _external_service_repairs(rules: Collection[records.Rule], config: NetworkConfig) -> Iterator[Repair]:
    """Compare the rules of AWS_EXTERNAL_SERVICE_CIDRS; the priority is theirs alone, so others of it are left from before."""
    main, priority = uapi.RT_TABLE_MAIN, dataplane.EXTERNAL_SERVICE_PRIORITY
    wanted = set(config.external_service_cidrs)
    present = {
        IPv4Network((rule.destination, rule.destination_length))
        for rule in rules
        if (rule.priority, rule.table, rule.source) == (priority, main, None) and rule.destination is not None
    }
    for cidr in sorted(wanted - present):
        yield Repair(messages.add_rule(priority, table=main, destination=cidr), f"rule {priority} to {cidr} was missing", "added")
    for cidr in sorted(present - wanted):
        change = messages.delete_rule(priority, table=main, destination=cidr)
        yield Repair(change, f"rule {priority} to {cidr} is not needed", "removed")


# The sysctl that the node needs and that netlink cannot set: forwarding for all links.
#
# Links of ours are set one by one (`devconf`), which needs no writable /proc/sys, so packets of sandboxes are forwarded even
# where this one is refused; it is for whatever else is on the node, and for links that are still to come. ip_forward is ours:
# amazon-vpc-cni-k8s leaves it to the node image.


SYSCTL_ROOT = Path("/proc/sys")
"""/proc/sys/net shows the namespace of the thread that opens it. Source: net/sysctl_net.c."""


WANTED = {"net/ipv4/ip_forward": "1"}


def wrong_sysctls(host: HostNetns) -> dict[str, str]:
    """Say of each sysctl that differs what it is: key -> sentence. Raises: WiringError for one that cannot be read."""
    values = {key: sysctl(host, key, wanted=wanted) for key, wanted in WANTED.items()}
    return {key: f"sysctl {key} was {now}" for key, now in values.items() if now != WANTED[key]}


def repair_sysctls(host: HostNetns) -> list[str]:
    """Set what differs; one sentence each. Raises: WiringError for one that cannot be read or set."""
    wrong = wrong_sysctls(host)
    for key in wrong:
        set_sysctl(host, key, WANTED[key])
    return [f"{found}: set to {WANTED[key]}" for key, found in wrong.items()]


def promote_secondaries(host: HostNetns, link: str) -> None:
    """Keep the other addresses of a subnet when the first one is removed. Raises: WiringError; then none may be removed.

    Source: the kernel's Documentation/networking/ip-sysctl.rst, promote_secondaries; systemd sets it for all links.
    """
    set_sysctl(host, f"net/ipv4/conf/{link}/promote_secondaries", "1")


def sysctl(host: HostNetns, key: str, *, wanted: str) -> str:
    """Read a sysctl by its path below /proc/sys. Raises: WiringError that says what it should be."""
    try:
        with host.entered():
            return (SYSCTL_ROOT / key).read_text(encoding="ascii").strip()
    except OSError as exc:
        raise _refused(key, wanted, exc) from exc


def set_sysctl(host: HostNetns, key: str, value: str) -> None:
    """Set a sysctl. Raises: WiringError."""
    try:
        with host.entered():
            (SYSCTL_ROOT / key).write_text(value, encoding="ascii")
    except OSError as exc:
        raise _refused(key, value, exc) from exc


def _refused(key: str, wanted: str, exc: OSError) -> WiringError:
    details = f"{exc.strerror}; run `sysctl -w {key.replace('/', '.')}={wanted}` on the node, or let the init container do it"
    return WiringError(f"sysctl {key} could not be set to {wanted}", details=details)
