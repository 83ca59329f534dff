"""The leg of a sandbox with a branch ENI: a veth pair, and a VLAN link on the trunk ENI's link by which its packets leave the node.

`ipamd/kernel/legs/branch.py` explains the purpose of the links, routes and rules.
"""

from __future__ import annotations

from ipamd.model.attachment import VETH_HASH_LENGTH, encode_alias
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.ids import MacAddress
from ipamd.model.kernel import IncomingRule, KernelSurvey, UplinkRoute, VlanLink
from ipamd.model.kernel_numbers import STRICT_TABLE
from ipamd.model.legs.branch_alias import encode_link_alias
from ipamd.model.legs.branch_eni import Branch, branch_of
from ipamd.model.legs.comparison import from_rule_differences, route_differences, veth_differences
from ipamd.model.legs.leg import SHARED_TABLES, Leg
from ipamd.model.record import dataclass
from ipamd.model.repairs import RepairKind
from ipamd.model.wiring_difference import WiringDifference, wiring_difference

BRANCH_TAG = "vpc-ipamd-branch/1"
"""First word of the ifalias of a host veth of a sandbox with a branch ENI. The VLAN link's alias has the rest of the sandbox's
identity: ENI, gateway and mode (`branch_alias.py`)."""

DUMMY_PREFIX = "dummy"
"""Name prefix of an interface in CNI results of amazon-vpc-cni-k8s that does not exist. Source: amazon-vpc-cni-k8s
cmd/routed-eni-cni-plugin/cni.go, add and tryDelWithPrevResult."""


@dataclass(frozen=True, slots=True)
class BranchLeg(Leg):
    """A first leg with the address of a branch ENI. This address is in no pool."""

    @property
    def kind(self) -> str:
        return "branch-strict" if self.branch.is_strict else "branch-standard"

    @property
    def branch(self) -> Branch:
        """How the sandbox is connected to its branch ENI."""
        return branch_of(self.sandbox)

    @property
    def trunk_mac(self) -> MacAddress:
        """MAC of the trunk ENI's link; "" if it is not known or not needed."""
        return self.sandbox.trunk_mac

    @property
    def uplink(self) -> Branch:
        return self.branch

    @property
    def alias(self) -> str:
        return encode_alias(self.key, self.address, tag=BRANCH_TAG)

    @property
    def uplink_alias(self) -> str:
        """The VLAN link's ifalias, which has the part of the identity that the host veth's alias lacks."""
        return encode_link_alias(self.address, self.eni_id, self.branch)

    @property
    def entries_for_others(self) -> list[dict[str, str]]:
        """An entry of the CNI result for an interface that does not exist, with the VLAN ID as its MAC. By this entry a DEL of the
        plugin of amazon-vpc-cni-k8s finds the VLAN link.
        """
        return [{"name": f"{DUMMY_PREFIX}{self.host_veth[-VETH_HASH_LENGTH:]}", "mac": str(self.branch.vlan)}]

    @property
    def route_tables(self) -> tuple[int, ...]:
        return self.uplink_tables if self.branch.is_strict else SHARED_TABLES

    @property
    def uplink_tables(self) -> tuple[int, ...]:
        """The branch's own table, and STRICT_TABLE, which all sandboxes in strict mode share: the kernel checks sources with it."""
        return self.branch.route_table, STRICT_TABLE

    @property
    def routes(self) -> tuple[UplinkRoute, ...]:
        """The routes to the branch ENI, and in strict mode the routes to the sandbox, in the order in which they are added.

        The first route is `unreachable default`. Without it the kernel would apply the next rule to a packet that no other route of
        the table fits, and the main table would send the packet by the node's own ENI, past the security groups of the branch ENI.
        """
        gateway, table = self.branch.gateway, self.branch.route_table
        routes = [
            UplinkRoute(table, None, None, "", is_end=True),
            UplinkRoute(table, gateway, None, self.branch.link),
            UplinkRoute(table, None, gateway, self.branch.link),
        ]
        if self.branch.is_strict:
            routes += [UplinkRoute(own_table, self.address, None, self.host_veth) for own_table in self.uplink_tables]
        return tuple(routes)

    @property
    def incoming_rules(self) -> tuple[IncomingRule, ...]:
        """The rules of strict mode: packets that arrive by the VLAN link or by the host veth are looked up in the branch's table,
        whatever their source. In standard mode there are none.
        """
        if not self.branch.is_strict:
            return ()
        return tuple(IncomingRule(name, self.branch.route_table) for name in (self.branch.link, self.host_veth))

    def impostor_why(self, link: VlanLink) -> str:
        """Return why a VLAN link cannot lead to the branch ENI; "" if it can.

        The reason may be the link's kind, namespace or VLAN ID, or its parent link. Several links may have the trunk ENI's MAC. The
        repair finds out which of them is the trunk's (`BranchWiring`).
        """
        if link.impostor_why:
            return link.impostor_why
        if self.trunk_mac and link.parent_mac and link.parent_mac != self.trunk_mac:
            return f"is on the link with MAC {link.parent_mac}, not on the trunk ENI's, {self.trunk_mac}"
        return ""

    def differences(self, survey: KernelSurvey) -> list[WiringDifference]:
        differences = veth_differences(self, self.veth_in(survey))
        differences += self.uplink_differences(survey.vlan_named(self.branch.link))
        differences += self._branch_route_differences(survey)
        differences += self._incoming_rule_differences(survey)
        if not self.is_in_shared_tables:
            return differences
        differences += route_differences(self, survey)
        return differences + from_rule_differences(self, survey)

    def uplink_differences(self, link: VlanLink | None) -> list[WiringDifference]:
        """Compare the VLAN link with the record. The link is the sandbox's if its alias has the sandbox's address or no address.

        The repair makes a missing link again.
        """
        name = self.branch.link
        if link is None:
            return [wiring_difference(DifferenceCode.UPLINK_MISSING, RepairKind.LINK, link=name)]
        if link.is_dying:
            return [wiring_difference(DifferenceCode.UPLINK_DYING, RepairKind.LINK, link=name)]
        impostor_reason = self.impostor_why(link)
        if impostor_reason:
            return [wiring_difference(DifferenceCode.UPLINK_NOT_OURS, link=name, sandbox=self.key, cause=impostor_reason)]
        if link.address not in (None, self.address):
            fields = {"link": name, "actual": link.address, "expected": self.address}
            return [wiring_difference(DifferenceCode.UPLINK_OF_ANOTHER, RepairKind.LINK, **fields)]
        return self._uplink_problems(link)

    def _uplink_problems(self, link: VlanLink) -> list[WiringDifference]:
        """List what the repair has to change on the VLAN link."""
        differences: list[WiringDifference] = []

        def add(code: DifferenceCode, **fields: object) -> None:
            differences.append(wiring_difference(code, RepairKind.LINK, link=self.branch.link, **fields))

        if link.mac != self.branch.mac:
            add(DifferenceCode.UPLINK_MAC, actual=link.mac, expected=self.branch.mac)
        if link.alias != self.uplink_alias:
            add(DifferenceCode.UPLINK_ALIAS, actual=link.alias, expected=self.uplink_alias)
        if not link.is_up:
            add(DifferenceCode.UPLINK_DOWN)
        return differences

    def _branch_route_differences(self, survey: KernelSurvey) -> list[WiringDifference]:
        """Compare the routes of the branch's table. No other sandbox uses this table, so any further route in it is a difference."""
        required = self.routes
        differences = []
        for route in required:
            if route not in survey.uplink_routes:
                differences.append(wiring_difference(DifferenceCode.UPLINK_ROUTE_MISSING, RepairKind.ROUTE, route=route))
        for route in survey.uplink_routes:
            if route.table == self.branch.route_table and route not in required:
                differences.append(wiring_difference(DifferenceCode.UPLINK_ROUTE_ELSEWHERE, RepairKind.ROUTE, route=route))
        return differences

    def _incoming_rule_differences(self, survey: KernelSurvey) -> list[WiringDifference]:
        """Compare the rules for packets that arrive by the links of the leg."""
        required = self.incoming_rules
        differences = []
        for rule in required:
            if rule not in survey.incoming_rules:
                differences.append(wiring_difference(DifferenceCode.RULE_MISSING, RepairKind.RULE, rule=rule))
        for rule in survey.incoming_rules:
            if rule.incoming in self.links and rule not in required:
                differences.append(wiring_difference(DifferenceCode.UPLINK_RULE_ELSEWHERE, RepairKind.RULE, rule=rule))
        return differences
