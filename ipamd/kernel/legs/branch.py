"""Connect a sandbox to its branch ENI by a VLAN link on the trunk's link, a separate route table, and rules.

    VLAN link     has the branch's VLAN ID and MAC. Its alias contains the data for which the alias of the host veth has no room
                  (`ipamd/model/legs/branch_alias.py`)
    table 100+ID  has the route to the subnet's router on the VLAN link, and the default route through it. It ends with
                  `unreachable default`. The rules lead to the table even while the VLAN link and its routes are gone, and without this
                  route packets would then be routed by table main
    strict        (POD_SECURITY_GROUP_ENFORCING_MODE) only this table has the route to the sandbox, and rules with priority 10 send
                  packets that arrive by the VLAN link or by the host veth to this table. The lookup that checks a packet's source has
                  no incoming link, so these rules do not apply to it. For this lookup the nftables tables that confine sandboxes set
                  a mark, which selects a separate route table (`confinement_ruleset`)
    standard      the sandbox has the routes that every sandbox of the pool has, and a rule of priority 1536 sends its packets to table
                  100+ID

Source of this arrangement: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go, SetupBranchENIPodNetwork. Deliberate
differences: an existing link is replaced only if it is not this sandbox's, and DEL finds links by their aliases, not by their names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ipamd.kernel import answers, checks, messages, sandbox_repair, survey, uapi, wiring_messages
from ipamd.kernel.host_state import HostStateReader
from ipamd.kernel.legs.branch_links import BranchLinks
from ipamd.kernel.legs.branch_messages import (
    diversion_from_main,
    end_of_table,
    end_removal,
    rule,
    uplink_side,
    uplink_side_kept_down,
)
from ipamd.kernel.legs.branch_repair import BranchRepair
from ipamd.kernel.legs.leg import LegWiring
from ipamd.kernel.netlink import AnswerOutcome, Message, NetlinkSocket
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.packets import LegPacket, LegPaths
from ipamd.model import kernel_numbers
from ipamd.model.family import IPV4, IpAddress, family_of
from ipamd.model.kernel import IncomingRule, KernelSurvey
from ipamd.model.legs.branch import BranchLeg
from ipamd.model.legs.branch_eni import Branch
from ipamd.model.record import replace
from ipamd.ports.kernel import VlanLinks


class BranchWiring(LegWiring[BranchLeg]):
    """The wiring of legs with branch ENIs. Concurrency: as `KernelWiring`."""

    def __init__(self, *, state_reader: HostStateReader, links: VlanLinks | None) -> None:
        """`links`: creates VLAN links if the kernel cannot, as in a lab. `state_reader`: finds the trunk's link by its MAC."""
        self._links = BranchLinks(state_reader=state_reader, links=links)

    def host_side(self, leg: BranchLeg, *, veth: int, uplink: int, ipv4_conf: Mapping[int, int]) -> list[Message]:
        naming_veth = wiring_messages.name_host_veth(leg, veth, ipv4_conf)
        if leg.sandbox.is_kept_down:
            # The links stay down until EC2 has confirmed the ENI. Until then no rule may name the address: another host may have it,
            # and this node may forward that host's packets.
            return naming_veth + uplink_side_kept_down(leg, link=uplink)
        batch = [*diversion_from_main(leg), *naming_veth, *uplink_side(leg, link=uplink, veth=veth)]
        if leg.is_in_shared_tables:
            batch += wiring_messages.sandbox_routes(leg, veth, leg.host_veth)
        return batch + wiring_messages.fixed_neighbour(leg, veth)

    def undo(self, leg: BranchLeg, added: Collection[Message]) -> list[Message]:
        """Return the removal of the route that ends the branch's table, if it was added.

        It is sent after the removals of the rules that lead to the table.
        """
        return [end_removal(leg.branch)] if end_of_table(leg.branch) in added else []

    def rules_by_name(self, leg: BranchLeg, *, name: str, former_name: str) -> list[Message]:
        if not leg.branch.is_strict:
            return []
        table = leg.branch.route_table
        return [
            rule(messages.add_rule, IncomingRule(name, table), leg.branch),
            rule(messages.delete_rule, IncomingRule(former_name, table), leg.branch),
        ]

    def former_table_removals(self, leg: BranchLeg) -> list[Message]:
        return [end_removal(leg.branch)]

    def packets(self, leg: BranchLeg, paths: LegPaths) -> list[LegPacket]:
        """Return packets whose routes show whether the leg works (`LegWiring.packets`).

        The first packet is from outside and arrives by the VLAN link. The last one is from the sandbox and leaves by the VLAN link. In
        standard mode a packet from the node to the sandbox is between them; in strict mode the node reaches the sandbox only through
        the VPC.

        The last packet's destination is an address outside (`Family.outside`), except in standard mode with IPv4, where it is the
        subnet's router. If the VLAN link is missing, there are no packets.
        """
        link = paths.links.get(leg.branch.link)  # `wiring_differences` reports a missing link
        if link is None:
            return []
        veth, far_off = paths.veth, family_of(leg.address).outside
        packets = [LegPacket(veth, leg.address, far_off, link)]
        if leg.branch.is_strict:
            return [*packets, LegPacket(link, far_off, leg.address, veth)]
        # With IPv6 the router's address is link-local, so an address outside takes its place.
        destination = leg.branch.gateway if family_of(leg.address) is IPV4 else far_off
        return [*packets, LegPacket(veth, leg.address), LegPacket(link, destination, leg.address, veth)]

    def uplink_creation(self, host: HostNetns, leg: BranchLeg) -> list[Message]:
        return self._links.creation(host, leg)

    def created_uplink(self, outcomes: Sequence[AnswerOutcome], leg: BranchLeg) -> tuple[int, bool]:
        return self._links.created(outcomes, leg)

    def make_uplink(self, sock: NetlinkSocket, leg: BranchLeg) -> int:
        return self._links.make(sock, leg)

    def own_uplink(self, sock: NetlinkSocket, leg: BranchLeg) -> answers.Link | None:
        """Return the VLAN link if it may be this leg's: its alias contains the leg's address, or is no alias of ours yet. Otherwise
        return None.
        """
        link = checks.find_link(sock, leg.branch.link)
        known = self._links.vlan_link(link)
        return link if known is not None and known.address in (None, leg.address) else None

    def uplink_removals(
        self, sock: NetlinkSocket, uplink: Branch, *, address: IpAddress | None, host_veth: str | None, is_deleted: bool = False
    ) -> tuple[list[Message], list[Message]]:
        """Return the messages that take a branch's link down, or delete it, and remove its rules and the route that ends its table.

        The kernel removes the table's other routes with the link. If another sandbox has a VLAN link of this name by now, that link,
        its rule and the route that ends the table stay. See `LegWiring.uplink_removals`.
        """
        link = checks.find_link(sock, uplink.link)
        incoming = [host_veth] if host_veth else []
        link_messages = list[Message]()
        is_others = False
        if link is not None:
            known = self._links.vlan_link(link)
            if known is not None and known.address in (None, address):
                link_messages.append(_deletion(link) if is_deleted else _taking_down(link))
            else:
                is_others = known is None or not known.impostor_why
        if not is_others:
            incoming.append(uplink.link)
        removals = [rule(messages.delete_rule, IncomingRule(name, uplink.route_table), uplink) for name in incoming]
        if not is_others:
            removals.append(end_removal(uplink))
        return link_messages, removals

    def idle_rules(self, sock: NetlinkSocket, uplink: Branch) -> list[Message]:
        """Return the removals of rules to a branch's table that name a link which does not exist any more.

        Such a rule stays, for example, when a veth is deleted together with its namespace.
        """
        own = (kernel_numbers.INCOMING_PRIORITY, uplink.route_table)
        names = set[str]()
        for present in survey.rules_of(sock, family_of(uplink.gateway)):
            if present.incoming and (present.priority, present.table) == own:
                names.add(present.incoming)
        idle = sorted(name for name in names if checks.find_link(sock, name) is None)
        return [rule(messages.delete_rule, IncomingRule(name, uplink.route_table), uplink) for name in idle]

    def repair_uplink(self, work: sandbox_repair.SandboxRepair, leg: BranchLeg, seen: KernelSurvey) -> None:
        BranchRepair(self._links, work, leg).restore(seen)

    def cut_uplink(self, work: sandbox_repair.SandboxRepair, leg: BranchLeg) -> None:
        BranchRepair(self._links, work, leg).cut()


def _deletion(link: answers.Link) -> Message:
    return messages.delete_link(link.index, step=f"delete link {link.name}")


def _taking_down(link: answers.Link) -> Message:
    """Return the message that takes a link down and puts it into the dying group."""
    down = messages.change_link(link.index, step=f"take link {link.name} down", is_up=False, group=uapi.DYING_GROUP)
    return replace(down, tolerated=messages.ABSENT)
