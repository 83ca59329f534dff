"""Decide what to restore of wired sandboxes after something else on the node removed it; the caller sends the messages.

Other agents flush rules and routes. Only our own objects are restored. A missing link cannot be restored (the sandbox must be
created again), and a route through another link is reported and never taken over (I1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ipamd.kernel import layout, messages, records, survey, uapi
from ipamd.kernel.netlink import Message, NetlinkSocket
from ipamd.model import dataplane
from ipamd.model.attachment import WiringSpec


@dataclass(slots=True)
class RepairPlan:
    """Messages to send, and one sentence per difference."""

    messages: list[Message] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)

    def add(self, message: Message, sentence: str) -> None:
        """Add a repair with its sentence."""
        self.messages.append(message)
        self.sentences.append(sentence)


def plan(sock: NetlinkSocket, specs: Iterable[WiringSpec]) -> RepairPlan:
    """Compare the host side of n sandboxes with the kernel, in three dumps.

    Raises: KernelDumpError if a dump was interrupted in every attempt; then nothing is repaired (I11).
    """
    links = {link.name: link for link in survey.links_of(sock)}
    routes = {
        route.destination: route
        for route in survey.routes_of(sock, table=uapi.RT_TABLE_MAIN)
        if route.length == 32 and route.destination is not None
    }
    rules = survey.rules_of(sock)
    to_rules = {rule.destination for rule in rules if survey.is_to_sandbox(rule)}
    from_rules = {(rule.source, rule.table) for rule in rules if survey.is_from_sandbox(rule)}
    result = RepairPlan()
    for spec in specs:
        link = links.get(spec.host_veth)
        if link is None or link.group == layout.DYING_GROUP:
            result.sentences.append(f"host link {spec.host_veth} of {spec.key} is missing: not repaired")
            continue
        _repair_link(result, spec, link)
        _repair_route(result, spec, link, routes.get(spec.address))
        if spec.address not in to_rules:
            rule = messages.add_rule(dataplane.TO_SANDBOX_PRIORITY, table=uapi.RT_TABLE_MAIN, destination=spec.address)
            result.add(rule, f"rule {dataplane.TO_SANDBOX_PRIORITY} to {spec.address} was missing: added")
        _repair_from_rules(result, spec, [table for source, table in from_rules if source == spec.address])
    return result


def _repair_link(result: RepairPlan, spec: WiringSpec, link: records.Link) -> None:
    if not link.is_up:
        raised = messages.change_link(link.index, step=f"raise {link.name}", is_up=True)
        result.add(raised, f"host link {link.name} of {spec.key} was down: raised")
    if link.alias != spec.alias:
        named = messages.change_link(link.index, step=f"name {link.name}", alias=spec.alias)
        result.add(named, f"host link {link.name} of {spec.key} had alias {link.alias!r}: set")


def _repair_route(result: RepairPlan, spec: WiringSpec, link: records.Link, route: records.Route | None) -> None:
    if route is None:
        step = f"add route {spec.address} dev {link.name}"
        result.add(
            messages.add_route(spec.address, index=link.index, step=step),
            f"route {spec.address} dev {link.name} was missing: added",
        )
    elif route.index != link.index:
        result.sentences.append(
            f"{spec.address} of {spec.key} is routed through link {route.index}, not {link.name}: not repaired"
        )


def _repair_from_rules(result: RepairPlan, spec: WiringSpec, tables: list[int]) -> None:
    priority = dataplane.FROM_SANDBOX_PRIORITY
    if spec.route_table != uapi.RT_TABLE_MAIN and spec.route_table not in tables:
        rule = messages.add_rule(priority, table=spec.route_table, source=spec.address)
        result.add(rule, f"rule {priority} from {spec.address} lookup {spec.route_table} was missing: added")
    for table in tables:
        if table != spec.route_table:
            stale = messages.delete_rule(priority, table=table, source=spec.address)
            result.add(stale, f"rule {priority} from {spec.address} looked up table {table}: removed")
