"""The base class for the wiring of a kind of leg: its methods are the steps in which kinds of legs may differ.

Every leg is a veth pair, which `KernelWiring` makes, names, repairs and deletes in the same way for all kinds. The methods here return
the messages that most kinds share. A kind of leg overrides the methods in which it differs. Most of these methods serve an *uplink*, a
separate link of a leg to the outside: they make it, route packets through it, remove its routes and rules, and repair it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ipamd.kernel import answers, messages, sandbox_repair, uapi, wiring_messages
from ipamd.kernel.netlink import AnswerOutcome, Message, NetlinkSocket
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.packets import LegPacket, LegPaths
from ipamd.model.family import IpAddress, family_of
from ipamd.model.kernel import KernelSurvey
from ipamd.model.legs import Leg

MASQUERADE_MARK = 0x4000
"""The mark that kube-proxy sets on packets whose source it will translate. A packet to a sandbox may have it, such as that of a
NodePort's client, so the route to the sandbox is also looked up with this mark. Source: kubernetes pkg/proxy/iptables/proxier.go."""

L = TypeVar("L", bound=Leg)


class LegWiring(Generic[L]):
    """The wiring of one kind of leg. The methods of this base class suit a leg whose packets leave the node by an ENI's link."""

    def host_side(self, leg: L, *, veth: int, uplink: int, ipv4_conf: Mapping[int, int]) -> list[Message]:
        """Return the messages that configure the host side.

        The rule to OWN_TABLE belongs to the node, not to the sandbox (`KernelHostNetwork.confine_sandboxes`). The route to the sandbox
        is also added to table main, for other software that looks there. The kernel refuses it if main has such a route already (I1).

        Args:
            veth: index of the host's end.
            uplink: index of the uplink; 0 for a leg without one.
            ipv4_conf: the host veth's settings (`devconf.host_veth`).
        """
        del uplink
        return [
            *wiring_messages.name_host_veth(leg, veth, ipv4_conf),
            *wiring_messages.sandbox_routes(leg, veth, leg.host_veth),
            *wiring_messages.fixed_neighbour(leg, veth),
            *wiring_messages.rule_from_sandbox(leg),
        ]

    def rules(self, make: Callable[..., Message], leg: L) -> list[Message]:
        """Return the messages that add or delete the rules which select packets by the leg's address.

        `make`: `messages.add_rule` or `messages.delete_rule`.
        """
        return wiring_messages.sandbox_rules(make, leg.address, leg.route_table)

    def rule_removals(self, leg: L) -> list[Message]:
        """Return the messages that remove the rules which select packets by the leg's address."""
        return self.rules(messages.delete_rule, leg)

    def undo(self, leg: L, added: Collection[Message]) -> list[Message]:
        """Return the messages that undo the messages `added`, which the kernel carried out.

        The result leaves out rules, which the caller removes, and objects that the kernel removes together with the links. Most kinds
        have no other objects.
        """
        del leg, added
        return []

    def rules_by_name(self, leg: L, *, name: str, former_name: str) -> list[Message]:
        """Return the messages that replace the rules with the host veth's former name by rules with its new name. Most kinds have no
        such rules.
        """
        del leg, name, former_name
        return []

    def former_table_removals(self, leg: L) -> list[Message]:
        """Return the messages that remove those routes of the leg's table that amazon-vpc-cni-k8s does not make, and therefore would
        not remove.

        They are sent when amazon-vpc-cni-k8s takes the node over. Most kinds have no such routes.
        """
        del leg
        return []

    def packets(self, leg: L, paths: LegPaths) -> list[LegPacket]:
        """Return the packets whose routes show whether the leg works.

        The first checked leg of a route table gets all packets. Every further leg of that table gets only the packets whose routes may
        differ from leg to leg. If the link of the leg's ENI or of the primary ENI is missing, there are no packets.
        """
        if not {leg.route_table, uapi.RT_TABLE_MAIN} <= paths.eni_links.keys():  # other comparisons report an ENI's missing link
            return []
        by_eni, router = paths.eni_links[leg.route_table]
        veth, mark = paths.veth, paths.mark
        into, out = LegPacket(veth, leg.address, router, by_eni), LegPacket(by_eni, router, leg.address, veth)
        far = out if paths.refusal == errno.ENETUNREACH else out._replace(to=family_of(leg.address).outside)
        if not paths.is_first_of_table:
            return [into, far]
        by_primary = far._replace(mark=mark, by=paths.eni_links[uapi.RT_TABLE_MAIN][0] if mark else by_eni)
        masqueraded = into._replace(mark=MASQUERADE_MARK)
        return [into, far, masqueraded, out, LegPacket(veth, leg.address), out if far is out else by_primary]

    # Sets of our nftables tables. Their messages cannot be in one batch with the messages above.

    def enter_sets(self, leg: L) -> None:
        """Put the leg's address into the sets that must contain it, and take it out of all other sets. Called before the sandbox can
        send.

        Raises: WiringError.
        """
        del leg

    def leave_sets(self, address: IpAddress) -> None:
        """Take the address of a former leg of this kind out of the sets. If that fails, the next repair of the tables does it."""
        del address

    # The uplink. A leg without one has nothing to make, to repair or to remove.

    def uplink_creation(self, host: HostNetns, leg: L) -> list[Message]:
        """Return messages that make the uplink, to be sent together with those that make the veth.

        The list is empty if a lookup must come first. Then the caller calls `make_uplink`. Raises: WiringError.
        """
        del host, leg
        return []

    def created_uplink(self, outcomes: Sequence[AnswerOutcome], leg: L) -> tuple[int, bool]:
        """Read the answers to `uplink_creation`.

        Returns: the index of the link that was made, 0 for none; and whether the link is usable. If not, the caller calls
            `make_uplink`.
        """
        del outcomes, leg
        return 0, False

    def make_uplink(self, sock: NetlinkSocket, leg: L) -> int:
        """Make the uplink, in place of any link that is in its way. Returns: its index. Raises: UplinkPendingError, WiringError."""
        del sock, leg
        return 0

    def uplink_removals(
        self, sock: NetlinkSocket, uplink: Any, *, address: IpAddress | None, host_veth: str | None, is_deleted: bool = False
    ) -> tuple[list[Message], list[Message]]:
        """Return the messages that take an uplink of this kind out of use, or delete it, unless another sandbox has it.

        Args:
            uplink: the record of the uplink.
            address: the sandbox's address; None if it is unknown.
            host_veth: the present name of the host veth, whose rules are removed too; None if it is unknown.
            is_deleted: delete the link at once; otherwise it is only taken down and put into the dying group.
        Returns: the messages to send once the host veth is down or has no routes, and the messages to send after the removal of the
            sandbox's other rules.
        Raises: WiringError.
        """
        del sock, uplink, address, host_veth, is_deleted
        return [], []

    def idle_rules(self, sock: NetlinkSocket, uplink: Any) -> list[Message]:
        """Return the removals of rules to an uplink's table whose incoming link does not exist any more.

        Dumps the rules. Raises: KernelDumpError, WiringError.
        """
        del sock, uplink
        return []

    def own_uplink(self, sock: NetlinkSocket, leg: L) -> answers.Link | None:
        """Return the link of the uplink if it is the leg's own; None otherwise. Raises: WiringError."""
        del sock, leg
        return None

    def repair_uplink(self, work: sandbox_repair.SandboxRepair, leg: L, seen: KernelSurvey) -> None:
        """Restore the uplink, its table and its rules. Called after the repair of the host veth.

        Raises: KernelDumpError, WiringError.
        """
        del work, leg, seen

    def cut_uplink(self, work: sandbox_repair.SandboxRepair, leg: L) -> None:
        """Stop all packets through the uplink. Called if the host veth is gone, or if another link has the host veth's name.

        Raises: KernelDumpError, WiringError.
        """
        del work, leg
