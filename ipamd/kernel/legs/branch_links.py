"""Make the VLAN link of a branch ENI on the trunk's link, and recognise the VLAN links of branch ENIs.

MAC, name and alias of a link prove nothing, because a sandbox with NET_ADMIN can make links on the node. The only proof is the link
that carries a VLAN link's frames: it must be the trunk's.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from ipamd.kernel import answers, checks, eni_links, host_state, messages, survey, uapi
from ipamd.kernel.legs import uplink_survey
from ipamd.kernel.netlink import AnswerOutcome, Message, NetlinkSocket, must
from ipamd.kernel.netns import HostNetns
from ipamd.model import kernel_numbers
from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IpAddress, family_of
from ipamd.model.kernel import HostVeth, VlanLink
from ipamd.model.legs.branch import BranchLeg
from ipamd.model.legs.branch_eni import Branch
from ipamd.model.legs.branch_errors import BranchPendingError
from ipamd.ports.kernel import VlanLinks


class BranchLinks:
    """Makes VLAN links and recognises them. Concurrency: as `KernelWiring`."""

    def __init__(self, *, state_reader: host_state.HostStateReader, links: VlanLinks | None) -> None:
        """`links`: creates VLAN links if the kernel cannot, as in a lab. `state_reader`: finds the trunk's link by its MAC."""
        self._state_reader = state_reader
        self._links = links

    def _require_table(self, host: HostNetns, branch: Branch) -> None:
        """Raise WiringError if another program uses the branch's table.

        In a shared table packets of that program would follow the pod's routes, and packets of the pod the program's routes.

        The kernel is asked only if the table may have had a route or rule at the last reading of the host. That reading is recent
        enough, because each change that the kernel announces leads to another reading within a second.
        """
        table = branch.route_table
        if not self._state_reader.may_be_used(table):
            return
        with host.netlink() as sock:
            foreign = [*_foreign_rules(sock, branch), *_foreign_routes(sock, branch)]
        if foreign:
            raise failure(WiringError, FailureCode.TABLE_TAKEN, vlan=branch.vlan, table=table, entry=foreign[0])

    def creation(self, host: HostNetns, leg: BranchLeg) -> list[Message]:
        """Return messages that make the link on the trunk's last known link, to be sent together with those that make the veth.

        In a lab the link is made here, and the messages only look it up. `created` reads the answers. The list is empty if the trunk's
        link is not known, or if the lab could not make the link. Then the caller calls `make`. Raises: WiringError.
        """
        branch = leg.branch
        self._require_table(host, branch)
        parent = self._state_reader.last_link(leg.trunk_mac)
        if parent is None:
            return []
        lookups = [messages.get_link(parent.name), messages.get_link(branch.link)]
        if self._links is None:
            return [
                lookups[0],
                messages.create_vlan(branch.link, vlan=branch.vlan, parent=parent.index, mac=branch.mac),
                lookups[1],
            ]
        with suppress(WiringError):
            if self._links.make(branch.link, vlan=branch.vlan, parent=parent.index, mac=branch.mac):
                return lookups
        return []

    def created(self, outcomes: Sequence[AnswerOutcome], leg: BranchLeg) -> tuple[int, bool]:
        """Read the answers to `creation`.

        Returns: the index of the link that was made, 0 for none; and whether the link is usable: it is on the trunk's link, which is
            up and has a sufficient MTU.
        """
        parent = self._state_reader.last_link(leg.trunk_mac)
        trunk_outcome, *created, link_outcome = outcomes
        link = link_outcome.read(answers.read_link)
        if link is None or any(outcome.errno for outcome in created):
            return 0, False
        trunk = trunk_outcome.read(answers.read_link)
        if trunk is None or parent is None or (trunk.index, trunk.mac) != (parent.index, leg.trunk_mac):
            return link.index, False
        return link.index, self._is_on(trunk, link) and trunk.is_up and trunk.mtu >= leg.mtu

    def _is_on(self, trunk: answers.Link, link: answers.Link) -> bool:
        known = self.vlan_link(link)
        return known is not None and not known.impostor_why and known.parent == trunk.index

    def make(self, sock: NetlinkSocket, leg: BranchLeg) -> int:
        """Make the link, and replace any link that has its name, or its VLAN ID on the trunk's link.

        Returns: the index of the link, which is down.

        Raises: BranchPendingError if the trunk's link does not exist; WiringError if a link that would be replaced leads to a living
            sandbox, or if the kernel does not make the link.
        """
        branch = leg.branch
        parent = self._state_reader.links(sock, [leg.trunk_mac]).get(leg.trunk_mac)
        if parent is None:
            raise BranchPendingError(
                f"no link of the node has the trunk ENI's MAC {leg.trunk_mac or '(unknown)'}", details="retry"
            )
        operation = f"wiring of {leg.key}"
        _raise_trunk(sock, parent, leg.mtu, operation)
        for is_last in (False, True):
            if self._try_to_make(sock, branch, parent, operation):
                link = checks.find_link(sock, branch.link)
                if link is None or not self._is_on(parent, link):
                    break
                return link.index
            if is_last:
                break
            obstacles = self._in_the_way(sock, leg, parent)
            sock.carry_out(
                [messages.delete_link(link.index, step=f"delete link {link.name}") for link in obstacles], operation=operation
            )
        raise failure(WiringError, FailureCode.UPLINK_NOT_MADE, work=operation, link=branch.link, parent=parent.name)

    def _try_to_make(self, sock: NetlinkSocket, branch: Branch, parent: answers.Link, operation: str) -> bool:
        """Make the link. Returns: False if its name, or its VLAN ID on the parent, is taken. Raises: WiringError."""
        if self._links is not None:
            return self._links.make(branch.link, vlan=branch.vlan, parent=parent.index, mac=branch.mac)
        (outcome,) = sock.request([messages.create_vlan(branch.link, vlan=branch.vlan, parent=parent.index, mac=branch.mac)])
        if outcome.errno != errno.EEXIST:
            must([outcome], operation)
        return not outcome.errno

    def _in_the_way(self, sock: NetlinkSocket, leg: BranchLeg, parent: answers.Link) -> list[answers.Link]:
        """Return the links that have the branch's link name, or its VLAN ID on the trunk's link.

        Raises: WiringError if a living sandbox uses one of them.
        """
        links = survey.links_of(sock, kind="")
        obstacles = [link for link in links if _is_in_the_way(link, leg.branch, parent)]
        veths = _branch_veths(links)
        for link in obstacles:
            known = self.vlan_link(link)
            if known is None or known.impostor_why or known.address in (None, leg.address):
                continue
            veth = veths.get(known.address)
            if veth:
                details = "see `ip -d link`"
                raise failure(
                    WiringError,
                    FailureCode.VLAN_TAKEN,
                    vlan=leg.branch.vlan,
                    link=veth.name,
                    sandbox=veth.key,
                    address=known.address,
                    advice=details,
                )
        return obstacles

    def vlan_link(self, link: answers.Link | None) -> VlanLink | None:
        """Convert a link whose name has the form of a branch ENI's link; None for any other link, and for None."""
        return None if link is None else uplink_survey.vlan_link(link, self._links)

    def raise_trunk(self, sock: NetlinkSocket, leg: BranchLeg) -> None:
        """Bring the trunk's link up if it exists and is down. Raises: WiringError."""
        parent = self._state_reader.links(sock, [leg.trunk_mac]).get(leg.trunk_mac) if leg.trunk_mac else None
        if parent is not None and not parent.is_up:
            sock.carry_out(
                [messages.change_link(parent.index, step=f"raise {parent.name}", is_up=True)], operation="the trunk's link"
            )

    def impostor_why(self, sock: NetlinkSocket, leg: BranchLeg, link: answers.Link) -> str:
        """Return why a link with the VLAN link's name cannot lead to the branch ENI, "" if it can.

        MAC and alias prove nothing: a sandbox with NET_ADMIN can delete the link and make another one with the same name, MAC and
        alias. While the trunk is not known, the link must at least be on hardware (not in a lab, which has none). Raises:
        KernelDumpError, WiringError.
        """
        known = self.vlan_link(link)
        if known is None or known.impostor_why:
            return known.impostor_why if known else "has another name"
        if leg.trunk_mac:
            trunk = self._state_reader.links(sock, [leg.trunk_mac]).get(leg.trunk_mac)
            is_on_trunk = trunk is not None and trunk.index == known.parent
        else:
            parent = checks.find_link(sock, known.parent)
            is_on_trunk = self._links is not None or (parent is not None and eni_links.is_hardware(parent))
        return "" if is_on_trunk else f"is on link {known.parent}, which is not the trunk ENI's"


def _foreign_rules(sock: NetlinkSocket, branch: Branch) -> Iterator[str]:
    """Yield a description of each rule of another program that leads to the branch's table."""
    own = (kernel_numbers.INCOMING_PRIORITY, kernel_numbers.FROM_SANDBOX_PRIORITY)
    for present in survey.rules_of(sock, family_of(branch.gateway)):
        if present.table == branch.route_table and present.priority not in own:
            yield f"rule {present.priority}"


def _foreign_routes(sock: NetlinkSocket, branch: Branch) -> Iterator[str]:
    """Yield a description of each route of another program in the branch's table."""
    for route in survey.routes_of(sock, table=branch.route_table, family=family_of(branch.gateway)):
        if uplink_survey.is_end(route):
            continue
        link = checks.find_link(sock, route.index)
        if link is None or not (link.name == branch.link or uplink_survey.is_strict_veth(link)):
            yield f"a route to {route.destination or 'all'}"


def _raise_trunk(sock: NetlinkSocket, trunk: answers.Link, mtu: int, operation: str) -> None:
    """Bring the trunk's link up, and raise its MTU to `mtu` (bytes) if it is smaller: a VLAN link cannot have a larger MTU.

    `operation`: named in errors. Raises: WiringError.
    """
    if not trunk.is_up or trunk.mtu < mtu:
        raised = messages.change_link(trunk.index, step=f"raise {trunk.name}", is_up=True, mtu=max(trunk.mtu, mtu))
        sock.carry_out([raised], operation=operation)


def _is_in_the_way(link: answers.Link, branch: Branch, trunk: answers.Link) -> bool:
    """Whether a link has the name of the branch's link, or is a VLAN link with the branch's ID on the trunk's link."""
    if link.name == branch.link:
        return True
    return link.kind == uapi.VLAN_KIND and (link.peer_index, link.vlan) == (trunk.index, branch.vlan)


def _branch_veths(links: Iterable[answers.Link]) -> dict[IpAddress | None, HostVeth]:
    """Return the host veths of living sandboxes with branch ENIs, by address."""
    veths = dict[IpAddress | None, HostVeth]()
    for link in links:
        veth = survey.host_veth(link)
        if veth.has_uplink and not veth.is_dying:
            veths[veth.address] = veth
    return veths
