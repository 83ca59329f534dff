"""What leads a sandbox to its branch ENI: a VLAN link on the trunk's link, a route table of its own, and rules.

    VLAN link     of the branch's ID and MAC; its alias has what the host veth's does not (`ipamd/model/branch.py`)
    table 100+ID  the subnet's router on the VLAN link, and the default route through it
    strict        the sandbox's route is in that table only, and rules 10 send what comes by either link there. A reverse lookup knows
                  no link that a packet came by, so what confines sandboxes asks a table of its own (`ruleset`)
    standard      the sandbox is led to as one of the pool is, and rule 1536 sends what it sends to the table

Source of the form: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go, SetupBranchENIPodNetwork. Different on purpose: a
link that is there is made anew only where it is not this sandbox's, and DEL goes by what aliases say, not by names.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from ipamd.kernel import checks, devconf, messages, routing, survey, uapi
from ipamd.kernel.netlink import Message, NetlinkSocket, Outcome, must
from ipamd.kernel.netns import HostNetns
from ipamd.model import kernel as dataplane
from ipamd.model.attachment import WiringSpec
from ipamd.model.branch import Branch, encode_link_alias
from ipamd.model.errors import BranchPendingError, WiringError
from ipamd.model.family import IPV4, IpAddress, IpNetwork, family_of, read_address
from ipamd.model.kernel import BranchRoute, IncomingRule, Repaired, RepairedObject, RepairKind
from ipamd.model.record import replace
from ipamd.ports import VlanLinks


class BranchLinks:
    """Makes and repairs VLAN links. Concurrency: as `KernelWiring`."""

    def __init__(self, *, looker: routing.HostLooker, links: VlanLinks | None) -> None:
        """`looker` knows the trunk's link by its MAC; `links` makes the link where the kernel cannot, None: the kernel does."""
        self._looker = looker
        self._links = links

    def _require_table(self, host: HostNetns, branch: Branch) -> None:
        """Raise WiringError if another program uses the branch's table: what it sends would go by the branch ENI, or the pod's by it.

        An ADD reads the kernel only where something may be there by the last look; that follows each change within a second.
        """
        table = branch.route_table
        if not self._looker.may_be_used(table):
            return
        with host.netlink() as sock:
            family, own = family_of(branch.gateway), (dataplane.BRANCH_PRIORITY, dataplane.FROM_SANDBOX_PRIORITY)
            found = [
                f"rule {one.priority}" for one in survey.rules_of(sock, family) if one.table == table and one.priority not in own
            ]
            for route in survey.routes_of(sock, table=table, family=family):
                link = checks.find_link(sock, route.index)
                if link is None or not (link.name == branch.link or survey.is_strict_veth(link)):
                    found.append(f"a route to {route.destination or 'all'}")
        if found:
            raise WiringError(
                f"VLAN {branch.vlan}: another program uses table {table}: {found[0]}",
                details=f"see `ip rule` and `ip route show table {table}`; let that program have another table, or delete the pod",
            )

    def ahead(self, host: HostNetns, spec: WiringSpec, branch: Branch) -> list[Message]:
        """Messages that make the link on the trunk's link as that was last, for the send that makes the veth; `made` reads their
        answers. None if that is not known: then `make` is called, which looks first. Raises: WiringError.
        """
        self._require_table(host, branch)
        parent = self._looker.known(spec.trunk_mac)
        if parent is None:
            return []
        looks = [messages.get_link(parent.name), messages.get_link(branch.link)]
        if self._links is None:
            return [looks[0], messages.create_vlan(branch.link, vlan=branch.vlan, parent=parent.index, mac=branch.mac), looks[1]]
        with suppress(WiringError):
            if self._links.make(branch.link, vlan=branch.vlan, parent=parent.index, mac=branch.mac):
                return looks
        return []

    def made(self, outcomes: Sequence[Outcome], spec: WiringSpec) -> tuple[int, bool]:
        """Read the answers to `ahead`. Returns: the index of the link that was made, 0 for none; whether it is on the trunk's link."""
        parent, (looked, *created, found) = self._looker.known(spec.trunk_mac), outcomes
        link = found.read(messages.read_link)
        if link is None or any(one.errno for one in created):
            return 0, False
        trunk = looked.read(messages.read_link)
        is_trunk = bool(trunk and parent and (trunk.index, trunk.mac) == (parent.index, spec.trunk_mac))
        return link.index, is_trunk and trunk is not None and trunk.is_up and trunk.mtu >= spec.mtu

    def make(self, sock: NetlinkSocket, spec: WiringSpec, branch: Branch) -> int:
        """Make the link, in place of whatever has its name or its ID on the trunk's link. Returns: its index; it is down.

        Raises: BranchPendingError if the trunk's link is not there; WiringError if a sandbox that lives is led to by what is there.
        """
        parent = self._looker.links(sock, [spec.trunk_mac]).get(spec.trunk_mac)
        if parent is None:
            raise BranchPendingError(
                f"no link of the node has the trunk ENI's MAC {spec.trunk_mac or '(unknown)'}", details="retry"
            )
        what = f"wiring of {spec.key}"
        if not parent.is_up or parent.mtu < spec.mtu:
            raised = messages.change_link(parent.index, step=f"raise {parent.name}", is_up=True, mtu=max(parent.mtu, spec.mtu))
            sock.carry_out([raised], what=what)
        for is_last in (False, True):
            if self._ask(sock, branch, parent, what):
                link = checks.find_link(sock, branch.link)
                if link is None:
                    break
                return link.index
            if is_last:
                break
            removed = self._in_the_way(sock, spec, branch, parent)
            sock.carry_out([messages.delete_link(one.index, step=f"delete link {one.name}") for one in removed], what=what)
        raise WiringError(
            f"{what}: VLAN link {branch.link} on {parent.name} could not be made", details="somebody else makes it too"
        )

    def _ask(self, sock: NetlinkSocket, branch: Branch, parent: messages.Link, what: str) -> bool:
        """Have the link made. Returns: False if the name or the ID is taken."""
        if self._links is not None:
            return self._links.make(branch.link, vlan=branch.vlan, parent=parent.index, mac=branch.mac)
        (made,) = sock.request([messages.create_vlan(branch.link, vlan=branch.vlan, parent=parent.index, mac=branch.mac)])
        if made.errno != errno.EEXIST:
            must([made], what)
        return not made.errno

    @staticmethod
    def _in_the_way(sock: NetlinkSocket, spec: WiringSpec, branch: Branch, parent: messages.Link) -> list[messages.Link]:
        """The links that have the name, or the ID on the trunk's link. Raises: WiringError if one of them is in use."""
        every = survey.links_of(sock, kind="")
        found = [
            one
            for one in every
            if one.name == branch.link
            or (one.kind == uapi.VLAN_KIND and (one.peer_index, one.vlan) == (parent.index, branch.vlan))
        ]
        veths = {veth.address: veth for veth in map(survey.host_veth, every) if veth.is_branch and not veth.is_dying}
        for link in found:
            known = survey.vlan_link(link)
            owner = known.address if known else None
            if owner not in (None, spec.address) and (veth := veths.get(owner)):
                raise WiringError(f"VLAN {branch.vlan} leads to {veth.name} of {veth.key}, {owner}", details="see `ip -d link`")
        return found

    def repair(self, sock: NetlinkSocket, work: checks.SandboxRepair, branch: Branch, seen: dataplane.KernelSurvey) -> None:
        """Restore the link, its table and its rules. Raises: KernelDumpError, WiringError."""
        spec, thing = work.spec, RepairedObject(RepairKind.LINK, str(work.spec.address))
        link = checks.find_link(sock, branch.link)
        known = None if link is None else survey.vlan_link(link)
        if thing not in work.held and (known is None or known.is_dying or known.address not in (None, spec.address)):
            if not spec.trunk_mac:
                work.sentences.append(
                    f"VLAN link {branch.link} of {spec.key} is missing: not repaired: the trunk ENI is not known"
                )
                return
            try:
                self.make(sock, spec, branch)
            except (BranchPendingError, WiringError) as exc:
                work.sentences.append(f"VLAN link {branch.link} of {spec.key} is missing: not repaired: {exc}")
                return
            link, known = checks.find_link(sock, branch.link), None
            work.sentences.append(Repaired(f"VLAN link {branch.link} of {spec.key} was missing: made again", thing))
        veth = checks.find_link(sock, spec.host_veth)
        if link is None or veth is None:
            return
        found = [one.what for one in dataplane.vlan_differences(spec, known)] if known else []
        if not known or found:
            self._raise_parent(sock, spec)
            change = replace(naming(spec, branch, link.index), step=f"set {link.name}")
            with_mac = [messages.change_link(link.index, step=f"set the MAC of {link.name}", mac=branch.mac)] * (
                link.mac != branch.mac
            )
            changes = [*with_mac, change] if found else []
            work.make(RepairKind.LINK, [(one, f"{'; '.join(found)}: set") for one in changes])
            sock.request([change, *own_addresses(branch, link.index)])
        indexes = {branch.link: link.index, spec.host_veth: veth.index}
        wanted = dataplane.branch_routes(spec)
        strays = [one for one in seen.branch_routes if one.table == branch.route_table and one not in wanted]
        removed = [(_route_removal(one, sock), f"the route {one} led elsewhere: removed") for one in strays]
        work.make(RepairKind.ROUTE, removed)
        added = [(_route(one, indexes), f"the route {one} was missing: added") for one in wanted]
        work.make(RepairKind.ROUTE, [(replace(message, tolerated=messages.PRESENT), said) for message, said in added])
        due = dataplane.incoming_rules(spec)
        stale = [one for one in seen.incoming_rules if one.incoming in indexes and one not in due]
        work.make(RepairKind.RULE, [(rule(messages.add_rule, one, branch), f"{one} was missing: added") for one in due])
        work.make(RepairKind.RULE, [(rule(messages.delete_rule, one, branch), f"{one} led elsewhere: removed") for one in stale])

    def _raise_parent(self, sock: NetlinkSocket, spec: WiringSpec) -> None:
        parent = self._looker.links(sock, [spec.trunk_mac]).get(spec.trunk_mac) if spec.trunk_mac else None
        if parent is not None and not parent.is_up:
            sock.carry_out([messages.change_link(parent.index, step=f"raise {parent.name}", is_up=True)], what="the trunk's link")


# The batches of messages: values in, messages out.


def naming(spec: WiringSpec, branch: Branch, index: int) -> Message:
    """Name and raise a VLAN link."""
    alias = encode_link_alias(spec.address, spec.eni_id, branch)
    return messages.change_link(
        index, step=f"name and raise {branch.link}", is_up=True, alias=alias, group=0, ipv4_conf=devconf.BRANCH
    )


def own_addresses(branch: Branch, index: int) -> list[Message]:
    """The link-local address of a VLAN link of IPv6, without which the kernel asks for no neighbour; usable at once, and the kernel's
    own only after a second or two. Source: the kernel's net/ipv6/ndisc.c, ndisc_send_ns; RFC 4291, appendix A.
    """
    if family_of(branch.gateway) is IPV4:
        return []
    mac = bytes.fromhex(branch.mac.replace(":", ""))
    number = bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]
    address = read_address("fe80::") + int.from_bytes(number, "big")
    add = messages.add_address(index, address, length=64, step=f"add address {address} to {branch.link}")
    return [replace(add, tolerated=messages.PRESENT)]


def host_side(spec: WiringSpec, branch: Branch, *, link: int, veth: int) -> list[Message]:
    """What leads to the branch ENI, and in strict mode from it; `link` and `veth` are indexes. A rule of an earlier sandbox, whose
    link had the name, goes first: it would lead to another pod's branch ENI. In strict mode a VLAN link's own is always the right one.
    """
    indexes, name = {branch.link: link, spec.host_veth: veth}, spec.host_veth if branch.is_strict else branch.link
    stale = messages.delete_rule(dataplane.BRANCH_PRIORITY, table=0, incoming=name, family=family_of(branch.gateway))
    return [
        messages.give_no_ipv6_address(link, step=f"keep other addresses off {branch.link}"),
        naming(spec, branch, link),
        *own_addresses(branch, link),
        *(_route(one, indexes) for one in dataplane.branch_routes(spec)),
        stale,
        *(rule(messages.add_rule, one, branch) for one in dataplane.incoming_rules(spec)),
    ]


def rule(make: Callable[..., Message], one: IncomingRule, branch: Branch) -> Message:
    """Add or delete a rule: `make` is `messages.add_rule` or `delete_rule`."""
    return make(dataplane.BRANCH_PRIORITY, table=one.table, incoming=one.incoming, family=family_of(branch.gateway))


def _route(one: BranchRoute, indexes: dict[str, int]) -> Message:
    to, _ = _selector(one)
    return messages.add_route(to, via=one.via, index=indexes[one.device], table=one.table, step=f"add route {one}")


def _route_removal(one: BranchRoute, sock: NetlinkSocket) -> Message:
    link, (to, length) = checks.find_link(sock, one.device), _selector(one)
    index, step = link.index if link else 0, f"delete route {one}"
    return messages.delete_route(to, length=length, table=one.table, index=index, via=one.via, step=step)


def _selector(one: BranchRoute) -> tuple[IpAddress | None, int]:
    """What a route leads to, as the kernel has it: address and length."""
    to = one.destination
    if isinstance(to, IpNetwork):
        return to.network_address, to.prefixlen
    return to, to.max_prefixlen if to else 0


def idle_rules(sock: NetlinkSocket, branch: Branch) -> list[Message]:
    """Remove the rules to a branch's table that name no link any more: whose veth went with its namespace. Dumps.

    Raises: KernelDumpError, WiringError.
    """
    rules, of_table = survey.rules_of(sock, family_of(branch.gateway)), (dataplane.BRANCH_PRIORITY, branch.route_table)
    names = {one.incoming for one in rules if one.incoming and (one.priority, one.table) == of_table}
    idle = sorted(name for name in names if checks.find_link(sock, name) is None)
    return [rule(messages.delete_rule, IncomingRule(name, branch.route_table), branch) for name in idle]


def is_link_of(link: messages.Link, address: IpAddress | None) -> bool:
    """Whether a link is to the branch ENI with an address: its alias says so, or nothing yet."""
    known = survey.vlan_link(link)
    return known is not None and known.address in (None, address)


def ending(
    sock: NetlinkSocket, branch: Branch, *, address: IpAddress | None, host_veth: str | None, is_deleted: bool = False
) -> list[Message]:
    """Take a branch's link down, with the routes of its table, put it into the dying group, and remove its rules; or delete it.

    Another's link of the same name stays, with its rule. Raises: WiringError.
    """
    link, names = checks.find_link(sock, branch.link), [host_veth] if host_veth else []
    batch = list[Message]()
    if link is None or is_link_of(link, address):
        names.append(branch.link)
    if link is not None and branch.link in names:
        down = messages.change_link(link.index, step=f"take link {link.name} down", is_up=False, group=uapi.DYING_GROUP)
        gone = messages.delete_link(link.index, step=f"delete link {link.name}")
        batch.append(gone if is_deleted else replace(down, tolerated=messages.ABSENT))
    rules: Iterable[IncomingRule] = (IncomingRule(name, branch.route_table) for name in names)
    return [*(rule(messages.delete_rule, one, branch) for one in rules), *batch]
