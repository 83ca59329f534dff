"""Compare with a survey what every leg has on the host: the host veth, the routes to the address, and the rules from the address."""

from __future__ import annotations

from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.eni import MAIN_TABLE
from ipamd.model.family import IPV6, family_of
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.kernel_numbers import OWN_RULE, OWN_TABLE
from ipamd.model.legs.leg import Leg
from ipamd.model.repairs import RepairKind
from ipamd.model.wiring_difference import WiringDifference, wiring_difference


def veth_differences(leg: Leg, veth: HostVeth | None) -> list[WiringDifference]:
    """Compare the host veth with the record. A veth is the sandbox's if its alias or its MAC is that of the sandbox: other software
    may have changed one of the two.
    """
    if veth is None:
        kind = RepairKind.LINK if leg.is_wired_again else None
        return [wiring_difference(DifferenceCode.VETH_MISSING, kind, link=leg.host_veth)]
    if veth.is_dying:
        return [wiring_difference(DifferenceCode.VETH_DYING, link=leg.host_veth)]
    mac = leg.mac("host")
    has_mac = not mac or veth.mac in (mac, "")
    mismatch = _identity_mismatch(leg, veth, has_mac=has_mac)
    return [mismatch] if mismatch else _veth_problems(leg, veth, has_mac=has_mac)


def _identity_mismatch(leg: Leg, veth: HostVeth, *, has_mac: bool) -> WiringDifference | None:
    """Return why a link is not the sandbox's host veth; None if it is. A mismatch is not repaired, because the link may be another
    sandbox's.
    """
    if veth.kind != "veth":
        return wiring_difference(DifferenceCode.VETH_KIND, link=leg.host_veth, actual=veth.kind or "hardware")
    if veth.key is not None and (veth.key, veth.address) != (leg.key, leg.address):
        return wiring_difference(
            DifferenceCode.VETH_OF_ANOTHER,
            link=leg.host_veth,
            other=veth.key,
            other_address=veth.address,
            sandbox=leg.key,
            address=leg.address,
        )
    if veth.key is None and not has_mac:
        return wiring_difference(
            DifferenceCode.VETH_WITHOUT_IDENTITY, link=leg.host_veth, sandbox=leg.key, alias=veth.alias, mac=veth.mac
        )
    return None


def _veth_problems(leg: Leg, veth: HostVeth, *, has_mac: bool) -> list[WiringDifference]:
    """List what the repair has to change on the sandbox's host veth."""
    differences: list[WiringDifference] = []

    def add(code: DifferenceCode, **fields: object) -> None:
        differences.append(wiring_difference(code, RepairKind.LINK, link=leg.host_veth, **fields))

    if veth.name != leg.host_veth:
        add(DifferenceCode.VETH_NAME, actual=veth.name)
    if veth.master:
        add(DifferenceCode.VETH_MASTER, actual=veth.master)
    if veth.alias != leg.alias:
        add(DifferenceCode.VETH_ALIAS, actual=veth.alias, expected=leg.alias)
    if not has_mac:
        add(DifferenceCode.VETH_MAC, actual=veth.mac, expected=leg.mac("host"))
    if leg.is_mtu_known and veth.mtu not in (leg.mtu, 0):
        add(DifferenceCode.VETH_MTU, actual=veth.mtu, expected=leg.mtu)
    if not veth.is_up:
        add(DifferenceCode.VETH_DOWN)
    if veth.has_ipv6 is False and family_of(leg.address) is IPV6:
        add(DifferenceCode.VETH_IPV6_OFF)
    return differences


def route_differences(leg: Leg, survey: KernelSurvey) -> list[WiringDifference]:
    """Compare the routes to the address, and the rule to our own table."""
    differences = []
    tables = [(survey.routes, "")]
    # If the address has a rule of its own, only the main table is used: amazon-vpc-cni-k8s and an earlier release of ours wire
    # sandboxes in this way.
    if leg.address not in survey.to_rules:
        tables.append((survey.own_routes, f" table {OWN_TABLE}"))
        if not survey.has_own_rule:
            differences.append(wiring_difference(DifferenceCode.RULE_MISSING, RepairKind.RULE, rule=OWN_RULE))
    for devices, table in tables:
        device = devices.get(leg.address)
        fields = {"address": leg.address, "link": leg.host_veth, "table": table}
        if device is None:
            differences.append(wiring_difference(DifferenceCode.ROUTE_MISSING, RepairKind.ROUTE, **fields))
        elif device != leg.host_veth:
            differences.append(wiring_difference(DifferenceCode.ROUTE_ELSEWHERE, RepairKind.ROUTE, actual=device, **fields))
    return differences


def snat_differences(leg: Leg, survey: KernelSurvey) -> list[WiringDifference]:
    """Compare the recorded SNAT choice with the nftables set that contains the address.

    The repair of the node's nftables table corrects the sets, so the difference has no `kind`.
    """
    if survey.snat is None:
        return []
    actual, expected = survey.snat.get(leg.address), leg.sandbox.snat
    if actual is expected:
        return []
    return [wiring_difference(DifferenceCode.SNAT_CHOICE, address=leg.address, actual=actual or "-", expected=expected or "-")]


def from_rule_differences(leg: Leg, survey: KernelSurvey) -> list[WiringDifference]:
    """Compare the rules that select the table for packets from the address."""
    tables = survey.from_rules.get(leg.address, ()) + survey.tables_from_prefix(leg.address)
    rule = f"rule from {leg.address}"  # the rule's priority depends on the node (`source_rules`)
    differences = []
    if leg.route_table not in (MAIN_TABLE, *tables):
        missing = f"{rule} lookup {leg.route_table}"
        differences.append(wiring_difference(DifferenceCode.RULE_MISSING, RepairKind.RULE, rule=missing))
    for table in dict.fromkeys(tables):
        if table != leg.route_table:
            fields = {"rule": rule, "actual": table, "expected": leg.route_table}
            differences.append(wiring_difference(DifferenceCode.RULE_ELSEWHERE, RepairKind.RULE, **fields))
    return differences
