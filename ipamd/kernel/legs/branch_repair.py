"""Restore the VLAN link, the route table and the rules of a sandbox with a branch ENI. If that is not possible, cut the sandbox
off."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from ipamd.kernel import answers, checks, messages, survey
from ipamd.kernel.legs.branch_links import BranchLinks
from ipamd.kernel.legs.branch_messages import (
    branch_route,
    branch_route_removal,
    end_of_table,
    naming,
    own_addresses,
    rule,
)
from ipamd.kernel.netlink import Message
from ipamd.kernel.sandbox_repair import SandboxChange, SandboxRepair
from ipamd.model.errors import UplinkPendingError, WiringError
from ipamd.model.family import family_of
from ipamd.model.kernel import IncomingRule, KernelSurvey, VlanLink
from ipamd.model.legs.branch import BranchLeg
from ipamd.model.record import replace
from ipamd.model.repairs import RepairCode, RepairKind, RepairReport
from ipamd.model.wiring_difference import difference_texts


class BranchRepair:
    """Repairs the VLAN link, the table and the rules of one leg. Each change is sent and reported by `work`."""

    def __init__(self, links: BranchLinks, work: SandboxRepair, leg: BranchLeg) -> None:
        self._links = links
        self._work = work
        self._sock = work.sock
        self._leg = leg
        self._branch = leg.branch

    def restore(self, seen: KernelSurvey) -> None:
        """Restore the link, its table and its rules, and remove the routes and rules in `seen` that lead elsewhere.

        If a foreign link has the VLAN link's name, that link is shut out (`_shut_out`), and the VLAN link is not restored.
        Raises: KernelDumpError, WiringError.
        """
        leg, name = self._leg, self._branch.link
        link_object = self._work.object_of(RepairKind.LINK)
        self._divert_from_main()
        link = checks.find_link(self._sock, name)
        known = self._links.vlan_link(link)
        if link is not None and known is not None and not known.is_dying:
            why = self._links.impostor_why(self._sock, leg, link)
            if why:
                self._shut_out(link, why)
                return
        if link_object not in self._work.backed_off and not self._is_usable(known):
            if not self._make_again():
                return
            link, known = checks.find_link(self._sock, name), None
            self._work.reports.append(RepairReport(RepairCode.ADDED, link_object, f"VLAN link {name} of {leg.key}"))
        veth = checks.find_link(self._sock, leg.host_veth)
        if link is None or veth is None:
            return
        self._set_link(link, known)
        self._repair_routes(seen, indexes={name: link.index, leg.host_veth: veth.index})

    def cut(self) -> None:
        """Take the VLAN link down. Called if the host veth is gone, or if another link has the host veth's name.

        A foreign link with the VLAN link's name is shut out instead, and another sandbox's VLAN link is not changed. Raises:
        KernelDumpError, WiringError.
        """
        self._divert_from_main()
        leg = self._leg
        link = checks.find_link(self._sock, self._branch.link)
        known = self._links.vlan_link(link)
        if link is None or known is None or known.address not in (None, leg.address):
            return
        why = self._links.impostor_why(self._sock, leg, link)
        if why:
            self._shut_out(link, why)
        elif link.is_up:
            down = messages.change_link(link.index, step=f"take link {link.name} down", is_up=False)
            self._sock.carry_out([down], operation=f"cutting off {leg.key}")
            self._report(RepairCode.LINK_TAKEN_DOWN, link.name)

    def _report(self, code: RepairCode, name: str, *, cause: str = "") -> None:
        """Append a report about the VLAN link `name`."""
        link_object, owner = self._work.object_of(RepairKind.LINK), str(self._leg.key)
        self._work.reports.append(RepairReport(code, link_object, name, owner=owner, cause=cause))

    def _divert_from_main(self) -> None:
        """Keep the sandbox's packets out of table main. This comes first, because the rest of the repair may fail."""
        (end,) = (route for route in self._leg.routes if route.is_end)
        self._work.apply(RepairKind.ROUTE, [_addition(end_of_table(self._branch), f"route {end}")])
        self._add_rules(incoming for incoming in self._leg.incoming_rules if incoming.incoming == self._leg.host_veth)

    def _is_usable(self, known: VlanLink | None) -> bool:
        """Whether a VLAN link exists, is not being deleted, and does not belong to another sandbox."""
        return known is not None and not known.is_dying and known.address in (None, self._leg.address)

    def _make_again(self) -> bool:
        """Make a missing VLAN link again, or report why that is not possible.

        Returns: whether it was made. Raises: KernelDumpError.
        """
        if self._leg.trunk_mac:
            try:
                self._links.make(self._sock, self._leg)
            except (UplinkPendingError, WiringError) as exc:
                cause = str(exc)
            else:
                return True
        else:
            cause = "the trunk ENI is not known"
        self._report(RepairCode.VLAN_LINK_MISSING, self._branch.link, cause=cause)
        return False

    def _shut_out(self, link: answers.Link, why: str) -> None:
        """Keep packets away from a foreign link that has the VLAN link's name, and report the link.

        The routes through it and the rule for packets that arrive by it are removed. `why`: why the link is not the VLAN link.
        """
        branch = self._branch
        family, table = family_of(branch.gateway), branch.route_table
        routes = survey.routes_of(self._sock, table=table, index=link.index, family=family)
        removals = [
            messages.delete_route(
                route.destination,
                length=route.length,
                table=table,
                index=link.index,
                via=route.via or branch.gateway,
                step=f"delete a route by {link.name} of table {table}",
            )
            for route in sorted(routes, key=lambda route: route.length)
        ]
        item = f"route of table {table} by foreign link {link.name}"
        self._work.apply(RepairKind.ROUTE, [_misleading(removal, item) for removal in removals])
        self._sock.request([rule(messages.delete_rule, IncomingRule(branch.link, table), branch)])
        self._report(RepairCode.VLAN_LINK_NOT_OURS, link.name, cause=why)

    def _set_link(self, link: answers.Link, known: VlanLink | None) -> None:
        """Give the VLAN link its MAC, alias and state. `known`: the same link with its decoded alias; None for a link that was just
        made, whose alias must be written in any case.
        """
        differences = self._leg.uplink_differences(known) if known else []
        if known and not differences:
            return
        self._links.raise_trunk(self._sock, self._leg)
        change = replace(naming(self._leg, link.index), step=f"set {link.name}")
        changes = []
        if differences:
            if link.mac != self._branch.mac:
                mac_change = messages.change_link(link.index, step=f"set the MAC of {link.name}", mac=self._branch.mac)
                changes.append(mac_change)
            changes.append(change)
        was = difference_texts(differences)
        reported = [SandboxChange(message, RepairCode.LINK_SET, link.name, before=was) for message in changes]
        self._work.apply(RepairKind.LINK, reported)
        self._sock.request([change, *own_addresses(self._branch, link.index)])

    def _add_rules(self, rules: Iterable[IncomingRule]) -> None:
        changes = [_addition(rule(messages.add_rule, incoming, self._branch), str(incoming)) for incoming in rules]
        self._work.apply(RepairKind.RULE, changes)

    def _repair_routes(self, seen: KernelSurvey, *, indexes: Mapping[str, int]) -> None:
        """Restore the routes and rules of the branch's table, and remove those that lead elsewhere.

        `indexes`: name -> index of the VLAN link and the host veth.
        """
        branch, wanted = self._branch, self._leg.routes
        strays = [route for route in seen.uplink_routes if route.table == branch.route_table and route not in wanted]
        removed = [_misleading(branch_route_removal(route, self._sock), f"route {route}") for route in strays]
        self._work.apply(RepairKind.ROUTE, removed)
        added = list[SandboxChange]()
        for route in wanted:
            message = replace(branch_route(route, indexes, branch), tolerated=messages.PRESENT)
            added.append(_addition(message, f"route {route}"))
        self._work.apply(RepairKind.ROUTE, added)
        self._repair_incoming_rules(seen, names=indexes)

    def _repair_incoming_rules(self, seen: KernelSurvey, *, names: Container[str]) -> None:
        """Restore the rules for packets that arrive by the links `names`, and remove those that lead elsewhere."""
        wanted = self._leg.incoming_rules
        self._add_rules(wanted)
        stale = [incoming for incoming in seen.incoming_rules if incoming.incoming in names and incoming not in wanted]
        removed = [_misleading(rule(messages.delete_rule, incoming, self._branch), str(incoming)) for incoming in stale]
        self._work.apply(RepairKind.RULE, removed)


def _addition(message: Message, item: str) -> SandboxChange:
    return SandboxChange(message, RepairCode.ADDED, item)


def _misleading(removal: Message, item: str) -> SandboxChange:
    return SandboxChange(removal, RepairCode.MISLEADING_REMOVED, item)
