"""Repair one wired sandbox after other software on the node changed it, object by object and without a dump of the whole node.

The kernel refuses to add an object that exists. So an object that was never missing is neither changed nor counted as a repair. A link
is ours if it is a veth of the recorded name whose alias or MAC is this sandbox's: one of the two may have been changed. The datastore
decides who owns the address, so a route that leads elsewhere is replaced, unless it leads to another sandbox's veth (I1). A missing
link is not restored here: `KernelWiring` may wire an extra leg again, and without its first leg the sandbox must be created again.
Objects inside the sandbox are not repaired; `checks` reports their differences.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ipamd.kernel import answers, messages, survey, uapi
from ipamd.kernel.checks import find_link, leads_elsewhere, mac_inside, wrong_neighbour
from ipamd.kernel.netlink import Message, NetlinkSocket
from ipamd.model import kernel_numbers
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.family import Family, IpAddress, IpNetwork, family_of
from ipamd.model.kernel import KernelSurvey
from ipamd.model.legs import Leg
from ipamd.model.legs.comparison import veth_differences
from ipamd.model.record import dataclass, field, replace
from ipamd.model.repairs import RepairCode, RepairedObject, RepairKind, RepairReport
from ipamd.model.source_rules import RulePlace
from ipamd.model.wiring_difference import WiringDifference, difference_texts, wiring_difference


class SandboxChange(NamedTuple):
    """A message that changes an object, and the fields of the report about it.

    `code`, `target`, `before`, `after`: as in `RepairReport`. Without a code the change is reported only if it fails.
    """

    message: Message
    code: RepairCode | None = None
    target: str = ""
    before: str = ""
    after: str = ""


def addition(message: Message) -> SandboxChange:
    """Return the change that adds a missing object. Its target is the message's step without the leading "add "."""
    return SandboxChange(message, RepairCode.ADDED, message.step.removeprefix("add "))


@dataclass(slots=True)
class SandboxRepair:
    """Repairs one leg of a sandbox. Each change is sent at once.

    `sock`: a socket of the host's namespace.
    `backed_off`: objects that must not be repaired now.
    `reports`: the reports about changes that were made or failed, and about obstacles.
    """

    sock: NetlinkSocket
    leg: Leg
    backed_off: Collection[RepairedObject]
    reports: list[RepairReport] = field(default_factory=list)

    def object_of(self, kind: RepairKind) -> RepairedObject:
        """Return the object that reports name for a repair of this kind."""
        return RepairedObject(kind, str(self.leg.address))

    def apply(self, kind: RepairKind, changes: Iterable[SandboxChange]) -> bool:
        """Make changes to one kind of object; none while that object is backed off.

        Returns: whether a change with a report was made.
        """
        repaired_object = self.object_of(kind)
        if repaired_object in self.backed_off:
            return False
        is_repaired = False
        for change in changes:
            (outcome,) = self.sock.request([change.message])
            if outcome.errno == 0 and change.code is not None:
                self.reports.append(
                    RepairReport(change.code, repaired_object, change.target, before=change.before, after=change.after)
                )
                is_repaired = True
            elif outcome.is_refused:
                step = change.message.step
                self.reports.append(RepairReport(RepairCode.STEP_FAILED, repaired_object, step, cause=outcome.cause))
        return is_repaired

    def host_side(self, seen: KernelSurvey) -> bool:
        """Restore link, routes and rules in the host's namespace. `seen`: a survey, which shows the present rules.

        Returns: False if the link is gone or may be another sandbox's, so that no route may lead through it.
        Raises: KernelDumpError, WiringError.
        """
        leg = self.leg
        link = find_link(self.sock, leg.host_veth)
        differences = veth_differences(leg, None if link is None else survey.host_veth(link))
        obstacles = self._obstacles(link, differences)
        if link is None or obstacles:
            self._report_obstacles(link, obstacles)
            return False
        if differences:
            self._repair_link(link, differences)
        self._repair_neighbour(link)
        if not leg.is_in_shared_tables:
            return True
        if leg.address in seen.to_rules:  # wired by an earlier release: add the route without a report
            self.sock.request([wiring_route(leg.address, link.index, link.name, table=kernel_numbers.OWN_TABLE)])
        for table in leg.route_tables:
            self._repair_route(link, table)
        self._repair_rules(seen)
        return True

    def _report_obstacles(self, link: answers.Link | None, obstacles: Sequence[WiringDifference]) -> None:
        """Report why the link is not repaired. A link that is gone or dying is not a lasting failure: a DEL may be in progress."""
        is_going = link is None or link.group == uapi.DYING_GROUP
        code = RepairCode.LINK_NOT_OURS
        if is_going:
            code = RepairCode.LINK_GOING
        link_object = self.object_of(RepairKind.LINK)
        leg = self.leg
        self.reports.append(
            RepairReport(code, link_object, leg.host_veth, owner=str(leg.key), cause=difference_texts(obstacles)),
        )

    def _obstacles(self, link: answers.Link | None, differences: Iterable[WiringDifference]) -> list[WiringDifference]:
        """Return the differences that forbid a repair, because the link is gone or may be another sandbox's."""
        obstacles = [difference for difference in differences if difference.kind is None]
        if link is not None and leads_elsewhere(self.sock, link, self.leg):
            fields = {"link": self.leg.host_veth, "netns": self.leg.netns}
            obstacles.append(wiring_difference(DifferenceCode.VETH_LEADS_ELSEWHERE, **fields))
        return obstacles

    def _repair_link(self, link: answers.Link, differences: Sequence[WiringDifference]) -> None:
        """Set state, alias, MAC and MTU of the host veth in one message.

        With several messages a crash in between could leave a link that neither alias nor MAC proves to be this sandbox's.
        """
        leg = self.leg
        mtu = leg.mtu if leg.is_mtu_known else 0
        # A right MAC is not set again, because that would remove the link's permanent neighbours.
        mac = "" if link.mac == leg.mac("host") else leg.mac("host")
        change = messages.change_link(link.index, step=f"set {link.name}", is_up=True, alias=leg.alias, mac=mac, mtu=mtu)
        changes: list[SandboxChange] = []
        if any(difference.code is DifferenceCode.VETH_IPV6_OFF for difference in differences):
            changes += [SandboxChange(message) for message in messages.reset_ipv6(link.index, mtu=link.mtu)]
        before = difference_texts(differences)
        changes.append(SandboxChange(change, RepairCode.LINK_SET, link.name, before=before))
        self.apply(RepairKind.LINK, changes)

    def _repair_neighbour(self, link: answers.Link) -> None:
        leg = self.leg
        (outcome,) = self.sock.request([messages.get_neighbour(link.index, leg.address)])
        difference = wrong_neighbour(outcome, leg)
        if difference is None:
            return
        mac = leg.mac("sandbox") or mac_inside(self.sock, link)
        if mac:
            change = messages.add_neighbour(link.index, leg.address, mac=mac)
            self.apply(RepairKind.LINK, [SandboxChange(change, RepairCode.LINK_SET, link.name, before=difference.text)])

    def _repair_route(self, link: answers.Link, table: int) -> None:
        """Restore the route to the sandbox in one table."""
        leg = self.leg
        family = family_of(self.leg.address)
        for route in survey.routes_of(self.sock, table=table, index=link.index, family=family):
            if route.is_to(leg.address) and route.metric == family.route_metric and not route.via:
                return
        route_addition = wiring_route(leg.address, link.index, link.name, table=table)
        if self.apply(RepairKind.ROUTE, [addition(replace(route_addition, tolerated=messages.PRESENT))]):
            return
        # The kernel has only one route for each destination and metric, so a route through another link prevented the addition.
        for route in survey.routes_of(self.sock, table=table, family=family):
            if route.is_to(leg.address) and route.metric == family.route_metric:
                self._replace_route(route, link, table)

    def _replace_route(self, route: answers.Route, link: answers.Link, table: int) -> None:
        """Replace a route that leads through another link, unless that link's alias names another sandbox of the same address."""
        leg = self.leg
        other = find_link(self.sock, route.index)
        if other is not None and other.index != link.index:
            owner = survey.host_veth(other)
            if owner.address == leg.address:
                route_object = self.object_of(RepairKind.ROUTE)
                was = f"{other.name} of {owner.key}"
                self.reports.append(
                    RepairReport(RepairCode.ROUTE_OF_ANOTHER, route_object, str(leg.address), before=was, owner=str(leg.key))
                )
                return
        other_name = f"link {route.index}"
        if other:
            other_name = other.name
        replacement = wiring_route(leg.address, link.index, link.name, table=table, is_replaced=True)
        change = SandboxChange(replacement, RepairCode.ROUTE_REPLACED, f"route {leg.address}", before=other_name, after=link.name)
        self.apply(RepairKind.ROUTE, [change])

    def _repair_rules(self, seen: KernelSurvey) -> None:
        """Restore the rules that the sandbox needs. Remove other rules that select its address as source: they lead elsewhere, or were
        replaced.
        """
        leg = self.leg
        former_places = _former_places(leg, seen.rule_places.get(leg.address, ()))
        if former_places:  # wired by an earlier release, or before rules were put into buckets: add the new rule without a report
            self.sock.request([self._own_rule()])
        changes = [SandboxChange(own_table_rule(family_of(leg.address)), RepairCode.ADDED, kernel_numbers.OWN_RULE)]
        if self._may_need_rule(seen):
            changes.append(addition(self._own_rule()))
        self.apply(RepairKind.RULE, changes + self._misleading_rule_removals(seen))
        self._remove_former_rules(seen, former_places)

    def _own_rule(self) -> Message:
        """Return the message that adds the rule from the address, or from its prefix, to the sandbox's table."""
        leg = self.leg
        return messages.add_rule(leg.rule_priority, table=leg.route_table, source=leg.prefix or leg.address)

    def _may_need_rule(self, seen: KernelSurvey) -> bool:
        """Whether to try the addition of the rule to the sandbox's table.

        If the rule exists at its place, the addition changes nothing and is not reported. The addition is not tried if the address has
        a rule to the table at another priority: such a rule is as good, or `_repair_rules` has added its replacement without a report.
        """
        leg = self.leg
        if leg.route_table == uapi.RT_TABLE_MAIN or leg.route_table in seen.tables_from_prefix(leg.address):
            return False
        if leg.prefix:
            return True
        places = seen.rule_places.get(leg.address, ())
        return not any(place.table == leg.route_table and place.priority != leg.rule_priority for place in places)

    def _misleading_rule_removals(self, seen: KernelSurvey) -> list[SandboxChange]:
        """Return the removals of rules that select the address or its prefix, and look up a table that is not the sandbox's."""
        leg = self.leg
        removals = self._stale_rule_removals(leg.address, seen.rule_places.get(leg.address, ()))
        if leg.prefix:
            tables = seen.tables_from_prefix(leg.address)
            places = [RulePlace(kernel_numbers.FROM_SANDBOX_PRIORITY, table) for table in tables]
            removals += self._stale_rule_removals(leg.prefix, places)
        return removals

    def _remove_former_rules(self, seen: KernelSurvey, former_places: Iterable[RulePlace]) -> None:
        """Remove former rules: the rule of an earlier release that selects the address as destination, and the rules at
        `former_places`, which select it as source.

        Each is removed only if the survey has shown its replacement: without a replacement packets would be lost.
        """
        leg = self.leg
        removals: list[Message] = []
        if leg.address in seen.to_rules and self._is_reached_by_own_table(seen):
            to_rule = messages.delete_rule(kernel_numbers.TO_SANDBOX_PRIORITY, table=uapi.RT_TABLE_MAIN, destination=leg.address)
            removals.append(to_rule)
        if leg.prefix:
            has_replacement = leg.route_table in seen.tables_from_prefix(leg.address)
        else:
            has_replacement = RulePlace(leg.rule_priority, leg.route_table) in seen.rule_places.get(leg.address, ())
        if has_replacement:
            removals += [messages.delete_rule(priority, table=table, source=leg.address) for priority, table in former_places]
        self.sock.request(removals)

    def _is_reached_by_own_table(self, seen: KernelSurvey) -> bool:
        return seen.has_own_rule and seen.own_routes.get(self.leg.address) == self.leg.host_veth

    def _stale_rule_removals(self, source: IpAddress | IpNetwork, places: Iterable[RulePlace]) -> list[SandboxChange]:
        """Return the removals of rules that select `source` and look up a table that is not the sandbox's.

        `places`: the places of all rules that select `source`.
        """
        removals: list[SandboxChange] = []
        for priority, table in dict.fromkeys(places):
            if table != self.leg.route_table:
                removal = messages.delete_rule(priority, table=table, source=source)
                target = f"rule {priority} from {source} lookup {table}"
                removals.append(SandboxChange(removal, RepairCode.MISLEADING_REMOVED, target))
        return removals


def _former_places(leg: Leg, places: Iterable[RulePlace]) -> list[RulePlace]:
    """Return the places of the former rules from a leg's address to its table.

    A rule is former if the leg has a rule from its prefix instead, or if the leg's rule belongs into a bucket and this one is at
    another priority. No rule is former for a leg whose rule belongs at FROM_SANDBOX_PRIORITY, because a rule in a bucket is as good.

    `places`: the places of all rules from the address.
    """
    if not leg.prefix and leg.rule_priority == kernel_numbers.FROM_SANDBOX_PRIORITY:
        return []
    wanted = RulePlace(leg.rule_priority, leg.route_table)
    is_former = [place for place in places if place.table == leg.route_table and (leg.prefix or place != wanted)]
    return list(dict.fromkeys(is_former))


def own_table_rule(family: Family) -> Message:
    """Return the message that adds the one rule to OWN_TABLE, which has the routes to all sandboxes of a family.

    A kernel that does not have the family refuses the message. That is tolerated, because the settings may ask for extra legs on such
    a kernel.
    """
    rule = messages.add_rule(kernel_numbers.OWN_TABLE_PRIORITY, table=kernel_numbers.OWN_TABLE, family=family)
    return replace(rule, tolerated=messages.PRESENT | {errno.EAFNOSUPPORT})


def wiring_route(address: IpAddress, index: int, name: str, *, table: int, is_replaced: bool = False) -> Message:
    """Return the message that adds the route to a sandbox through its host veth, in the same form as its wiring.

    Args:
        index: of the host veth.
        name: of the host veth, for texts.
        is_replaced: replace a route to the same address.
    """
    table_text = f" table {table}"
    if table == uapi.RT_TABLE_MAIN:
        table_text = ""
    step = f"{'replace' if is_replaced else 'add'} route {address} dev {name}{table_text}"
    return messages.add_route(address, index=index, table=table, is_replaced=is_replaced, step=step)
