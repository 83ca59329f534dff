"""The port `Wiring`: one sandbox's veth pair, routes and rules, in three sends and without a dump.

    create        host ns     veth pair, the peer directly in the sandbox's namespace; the answer has both link indexes; before it the
                              link to a branch ENI, if the sandbox has one
    host side     host ns     no IPv6 address, IPv4 settings, alias, up, route to the address in our table and in main, and on a
                              secondary ENI rule 1536 from the address, or from the prefix that has it
    sandbox side  sandbox ns  up, address, route to the family's gateway, default route, permanent neighbour

A sandbox with egress has two pairs, and each send what both need, so it costs no further one.

IPv6 has a permanent neighbour at the host's end too, and no link-local address at either: nobody on a veth asks for a neighbour, no
ADD waits for the detection of duplicate addresses, and all neighbour discovery of sandboxes is dropped (`ruleset`).

The kernel continues a batch after a refused message. So everything that names the link waits for the answer to `create`, and then
uses its index: a link of another owner with the same name is never touched. All or nothing (I5): a failure is undone before it is
raised. An existing route to the address, or an existing default route, is refused and not replaced (I1).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from ipamd.kernel import branches, checks, devconf, messages, routing, survey, uapi
from ipamd.kernel.branches import BranchLinks
from ipamd.kernel.netlink import Message, NetlinkSocket, Outcome, must
from ipamd.kernel.netns import HostNetns, opened_netns
from ipamd.model import kernel as dataplane
from ipamd.model.attachment import (
    BRANCH_TAG,
    EGRESS_TAG,
    IMPORTED_TAG,
    VETH_HASH_LENGTH,
    NetnsIdentity,
    Wired,
    WiringSpec,
    decode_alias,
    egress_veth_name,
    encode_alias,
)
from ipamd.model.aws_node import Led
from ipamd.model.branch import Branch, encode_link_alias
from ipamd.model.errors import NetnsError, WiringError
from ipamd.model.family import IPV4, IPV6, Family, IpAddress, family_of
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.kernel import (
    INSIDE_IS_LEFT,
    HostVeth,
    IncomingRule,
    KernelSurvey,
    Repaired,
    RepairedObject,
    RepairKind,
    VlanLink,
    wiring_differences,
)
from ipamd.model.record import dataclass, replace
from ipamd.ports import VlanLinks, Wiring

Failpoint = Callable[[str], bool]
"""Called with the name of each step before it is sent; True makes the kernel refuse it. For crash and rollback tests."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A veth pair that exists: link index of the host end, and of the sandbox end in its own namespace; `spec` is of this link."""

    spec: WiringSpec
    host_index: int
    sandbox_index: int


class KernelWiring(Wiring):
    """Wires sandboxes through netlink messages packed by hand.

    Concurrency: safe from any thread, for different sandboxes at the same time. The caller serialises calls for one sandbox (the
    sandbox lock). Holds no lock.
    """

    def __init__(
        self,
        host: HostNetns,
        *,
        veth_prefix: str,
        families: Callable[[], Collection[Family]] = lambda: (IPV4,),
        failpoint: Failpoint | None = None,
        is_strict: bool = True,
        looker: routing.HostLooker | None = None,
        vlan_links: VlanLinks | None = None,
    ) -> None:
        """Wire between `host` and sandboxes; `veth_prefix` identifies a host veth that has no alias yet.

        `families`: of the node's pool and of egress, whose routes and rules are surveyed.
        `is_strict`: no sandbox may send from other addresses than its own (no `VPC_IPAMD_EXTRA_SOURCE_CIDRS`).
        `looker`: who knows links of ENIs by MAC; `vlan_links`: see `BranchLinks`.
        """
        self._host = host
        self._veth_prefix = veth_prefix
        self._families = families
        self._failpoint = failpoint
        self._ipv4_conf = devconf.host_veth(is_strict=is_strict)
        looker = looker or routing.HostLooker(veth_prefix=veth_prefix, family=IPV4)
        self._branches = BranchLinks(looker=looker, links=vlan_links)

    def identify_netns(self, path: str) -> NetnsIdentity:
        with opened_netns(path) as (_, identity):
            return identity

    def wire(self, spec: WiringSpec) -> Wired:
        """Create and configure the veth pair, routes and rules. On any error everything is undone before it is raised.

        If this sandbox's own link of an earlier try exists, it is removed and the creation is repeated once.
        Raises: NetnsError; WiringError naming the step and the kernel's cause.
        """
        with ExitStack() as stack:
            netns, identity = stack.enter_context(opened_netns(spec.netns))
            self._refuse_host(spec, identity)
            sandbox = stack.enter_context(self._host.sandbox_netlink(netns))
            done: list[Message] = []
            pairs: list[_Pair] = []
            try:
                ahead = self._branches.ahead(self._host, spec, spec.branch) if spec.branch else []
                link = self._create_vlan(spec, undo=done) if spec.branch and not ahead else 0
                pairs, made = self._create(spec, netns, ahead, undo=done)
                if ahead:
                    link = made or self._create_vlan(spec, undo=done)
                outside = [
                    one for each in pairs for one in host_side(each.spec, each.host_index, link, ipv4_conf=self._ipv4_conf)
                ]
                with self._host.netlink() as host:
                    self._apply(host, outside, undo=done, spec=spec)
                if spec.prefix:
                    done.clear()  # others of the prefix may need its rule by now
                inside = [one for each in pairs for one in sandbox_side(each.spec, each.sandbox_index)]
                if left := self._apply(sandbox, inside, undo=done, spec=spec, tolerated=IPV6_IS_OFF):
                    self._turn_ipv6_on(netns, spec)
                    self._apply(sandbox, left, undo=done, spec=spec)
            except BaseException as exc:
                self._undo(spec, pairs, done, exc)
                raise
        return Wired(host_mac=spec.mac("host"), sandbox_mac=spec.mac("sandbox"), netns_identity=identity)

    def unwire(self, spec: WiringSpec) -> None:
        with self._host.netlink() as host:
            batch = sandbox_rules(messages.delete_rule, spec.address, spec.route_table)
            if spec.branch:
                batch += branches.ending(host, spec.branch, address=spec.address, host_veth=spec.host_veth, is_deleted=True)
            for one in spec.links:
                if (link := self._own_veth(host, one.host_veth, key=spec.key)) is not None:
                    batch.append(messages.delete_link(link.index, step=f"delete link {link.name}"))
            host.carry_out(batch, what=f"unwiring of {spec.key}")

    def mark_for_deletion(
        self,
        *,
        host_veth: str,
        address: IpAddress,
        route_table: int,
        is_source_checked: bool = False,
        key: AttachmentKey | None = None,
        second: WiringSpec | None = None,
        branch: Branch | None = None,
    ) -> HostVeth | None:
        # A link that goes down waits for the kernel's RCU, and longer on a busy node. Otherwise there is no message
        # for the route: the kernel removes a link's routes with that, and a route through any other link is not this sandbox's.
        what = f"marking {host_veth} ({address}) for deletion"
        with self._host.netlink() as host:
            link = self._own_veth(host, host_veth)
            found = survey.host_veth(link) if link else None
            is_of_another = found is not None and (found.address not in {None, address} or bool(key and found.key != key))
            if branch and found and is_of_another and found.address == address:
                return found  # the pod's next sandbox has its name and its branch ENI: nothing of this one is left
            batch = sandbox_rules(messages.delete_rule, address, route_table)
            link = None if is_of_another else link
            # A pod's next sandbox has the veth's name, and the same branch ENI unless its veth says otherwise.
            if branch and (link or not found or found.address != address):
                batch += branches.ending(host, branch, address=address, host_veth=host_veth)
            links = [] if link is None else [(link, address)]
            if second is not None and (other := self._own_veth(host, second.host_veth, key=second.key)):
                links.append((other, second.address))
            if links and is_source_checked:
                # Marked as dying and left up: its route goes, and the last messages look up where the addresses lead now.
                batch += [one for each in links for one in _routeless(*each, tables=sandbox_tables(branch))]
                outcomes = host.request([*batch, *(messages.look_up_route(each) for _, each in links)])
                must(outcomes[: -len(links)], what)
                looked = zip(links, outcomes[-len(links) :], strict=True)
                # Another route to an address through its link: only a link that is down has none.
                batch, links = [], [each for each, answer in looked if _may_lead_to(each[0], answer)]
            for each, _ in links:
                down = messages.change_link(each.index, step=f"take link {each.name} down", is_up=False, group=uapi.DYING_GROUP)
                batch.append(replace(down, tolerated=messages.ABSENT))
            host.carry_out(batch, what=what)
        return found

    def veth(self, name: str) -> HostVeth | None:
        with self._host.netlink() as host:
            link = self._own_veth(host, name)
        return survey.host_veth(link) if link else None

    def rename_veth(self, *, host_veth: str, to: str, address: IpAddress, branch: Branch | None = None) -> None:
        with self._host.netlink() as host:
            link = self._own_veth(host, host_veth)
            if link is None or _is_of_another(link, address):
                return
            what = f"renaming of {host_veth} to {to}"
            down = messages.change_link(link.index, step=f"take link {host_veth} down", is_up=False)
            name = messages.change_link(link.index, step=f"name it {to}", name=to)
            up = messages.change_link(link.index, step=f"raise link {to}", is_up=True)
            # Those that it loses by going down, if it has any: name and alias may be a sandbox's forgery, no route is.
            routes_now = survey.routes_of(host, index=link.index, family=family_of(address))
            has_routes = any(one.destination == address for one in routes_now)
            again = sandbox_routes(address, link.index, to, branch=branch) if has_routes else []
            if branch and branch.is_strict:
                again.append(branches.rule(messages.add_rule, IncomingRule(to, branch.route_table), branch))
                again.append(branches.rule(messages.delete_rule, IncomingRule(host_veth, branch.route_table), branch))
            is_fixed = family_of(address) is IPV6 or survey.host_veth(link).is_egress
            if is_fixed and (mac := checks.mac_inside(host, link)):
                again.append(messages.add_neighbour(link.index, address, mac=mac))
            host.carry_out([down, name, up, *again], what=what)

    def stamp(self, veth: HostVeth, *, key: AttachmentKey, address: IpAddress) -> HostVeth:
        with self._host.netlink() as host:
            link = checks.find_link(host, veth.ifindex)
            if link is None or link.kind != uapi.VETH_KIND or link.name != veth.name or _identity(link) is not None:
                raise WiringError(f"link {veth.name} changed while it was looked at", details="it is looked at again")
            alias = encode_alias(key, address, tag=IMPORTED_TAG)
            host.carry_out(self._adoption(host, link, alias, address), what=f"adoption of {link.name}")
        return replace(veth, alias=alias, key=key, address=address)

    def _adoption(self, host: NetlinkSocket, link: messages.Link, alias: str, address: IpAddress) -> list[Message]:
        batch = [messages.change_link(link.index, step=f"name {link.name}", alias=alias, ipv4_conf=self._ipv4_conf)]
        if family_of(address) is IPV6 and (mac := checks.mac_inside(host, link)):
            batch.append(messages.add_neighbour(link.index, address, mac=mac))
        return batch

    def stamp_branch(self, veth: HostVeth, led: Led, *, key: AttachmentKey, eni_id: EniId) -> tuple[HostVeth, VlanLink]:
        alias = encode_alias(key, led.address, tag=BRANCH_TAG)
        spec = WiringSpec(key, led.address, led.branch.route_table, veth.name, "", 0, branch=led.branch, eni_id=eni_id)
        with self._host.netlink() as host:
            link, vlan = checks.find_link(host, veth.ifindex), checks.find_link(host, led.link.ifindex)
            known = survey.vlan_link(vlan) if vlan else None
            is_same = link is not None and link.name == veth.name and survey.host_veth(link).key is None
            if (
                link is None
                or vlan is None
                or not is_same
                or known is None
                or (known.name, known.address) != (led.link.name, None)
            ):
                raise WiringError(
                    f"{veth.name} or {led.link.name} changed while it was looked at", details="it is looked at again"
                )
            # In one send: a VLAN link with our alias and without a sandbox of ours would be removed as nobody's.
            batch = [branches.naming(spec, led.branch, vlan.index), *self._adoption(host, link, alias, led.address)]
            host.carry_out(batch, what=f"adoption of {link.name}")
        own = encode_link_alias(led.address, eni_id, led.branch)
        return (
            replace(veth, alias=alias, key=key, address=led.address, is_branch=True),
            replace(led.link, alias=own, address=led.address, eni_id=eni_id, branch=led.branch),
        )

    def second_links(self, firsts: Iterable[HostVeth], *, egress: Family) -> Mapping[str, int]:
        wanted = {veth.ifindex: veth.name for veth in firsts}
        with self._host.netlink() as host:
            links = survey.links_of(host) if wanted else []
            owners = {link.netnsid: wanted[link.index] for link in links if link.netnsid and link.index in wanted}
            beside = [link for link in links if link.netnsid in owners and link.index not in wanted]
            found = {link.index: checks.link_inside(host, link) for link in beside}
        return {
            owners[link.netnsid]: link.index
            for link in beside
            if (inside := found[link.index]) is not None and inside.name == egress.egress.ifname
        }

    def take_second(self, index: int, *, first: HostVeth, key: AttachmentKey, egress: Family, told: IpAddress | None) -> HostVeth:
        name = egress_veth_name(key, prefix=first.name[:-VETH_HASH_LENGTH])
        with self._host.netlink() as host:
            link = checks.find_link(host, index)
            inside = None if link is None else checks.link_inside(host, link)
            if link is None or inside is None:
                raise WiringError(
                    f"link {index} for egress of {key} changed while it was looked at", details="it is looked at again"
                )
            routes = survey.routes_of(host, table=uapi.RT_TABLE_MAIN, index=index, family=egress)
            routed = next((one.destination for one in routes if one.destination in egress.egress.addresses()), None)
            address = routed or told
            known = survey.host_veth(link).key
            if address is None or known not in (None, key):
                why = "its address is not known" if address is None else f"it is the link of {known}"
                raise WiringError(f"link {link.name} for egress of {key} is not taken over: {why}", details="delete the pod")
            self._fix_neighbours(host, link, inside, address)
            alias = encode_alias(key, address, tag=EGRESS_TAG)
            named = messages.change_link(index, step=f"name {link.name}", alias=alias, ipv4_conf=self._ipv4_conf)
            lost = [] if routed else [checks.wiring_route(address, index, link.name, table=uapi.RT_TABLE_MAIN)]
            host.carry_out([named, *lost], what=f"adoption of {link.name}")
        if link.name != name:
            self.rename_veth(host_veth=link.name, to=name, address=address)
        return survey.host_veth(replace(link, name=name, alias=alias))

    def _fix_neighbours(self, host: NetlinkSocket, link: messages.Link, inside: messages.Link, address: IpAddress) -> None:
        """Let neither end of another's link ask for the other: what confines sandboxes drops it. Raises: WiringError."""
        paths = (str(path) for path in NETNS_DIRECTORY.iterdir())
        path = next((one for one in paths if survey.namespace_number(host, one) == link.netnsid), "")
        if not path:
            raise WiringError(f"the namespace behind {link.name} is not in {NETNS_DIRECTORY}", details="it is looked at again")
        family, what = family_of(address), f"adoption of {link.name}"
        with opened_netns(path) as (netns, _), self._host.sandbox_netlink(netns) as sandbox:
            (looked,) = sandbox.request([messages.match_route(family.outside, index=inside.index)])
            via = messages.read_route(looked.replies[0]).via if looked.replies else None
            gateway = via or family.egress.gateway  # with IPv6 the next hop is the host end's own link-local address
            sandbox.carry_out([messages.add_neighbour(inside.index, gateway, mac=link.mac)], what=what)
        fixed = messages.add_neighbour(link.index, address, mac=inside.mac)
        host.carry_out([fixed], what=what)

    def sweep(self) -> None:
        with self._host.netlink() as host:
            host.carry_out([messages.delete_group(uapi.DYING_GROUP)], what="sweep of dying links")

    def check(self, spec: WiringSpec) -> list[str]:
        differences = [one.what for one in wiring_differences(spec, self.survey())]
        try:
            inside = self.check_inside(spec)
        except NetnsError as exc:
            return [*differences, str(exc)]
        return [*differences, *inside, *([INSIDE_IS_LEFT] if inside else [])]

    def check_inside(self, spec: WiringSpec, *, is_arrival_only: bool = False) -> list[str]:
        with opened_netns(spec.netns) as (netns, identity):
            self._refuse_host(spec, identity)
            with self._host.netlink() as host:
                links = [(one, None if is_arrival_only else checks.find_link(host, one.host_veth)) for one in spec.links]
            with self._host.sandbox_netlink(netns) as sandbox:
                return [
                    difference
                    for one, link in links
                    for difference in checks.sandbox_differences(sandbox, one, host_link=link, is_arrival_only=is_arrival_only)
                ]

    def survey(self, *, may_be_torn: bool = False) -> KernelSurvey:
        with self._host.netlink() as host:
            return survey.survey(host, veth_prefix=self._veth_prefix, families=self._families(), may_be_torn=may_be_torn)

    def repair(
        self, specs: Iterable[WiringSpec], *, seen: KernelSurvey | None = None, held: Collection[RepairedObject] = ()
    ) -> list[str]:
        seen = seen or self.survey(may_be_torn=True)
        sentences: list[str] = []
        with self._host.netlink() as host:
            for first, spec in ((one, link) for one in specs for link in one.links):
                work = checks.SandboxRepair(host, spec, held)
                veth, thing = seen.veth_of(spec), RepairedObject(RepairKind.LINK, str(spec.address))
                if spec.is_egress and veth is None and checks.find_link(host, spec.host_veth) is None:
                    sentences += [] if thing in held else [self._wire_second(host, first, spec, thing)]
                    continue
                if veth is not None and veth.name != spec.host_veth and thing not in held:
                    self.rename_veth(host_veth=veth.name, to=spec.host_veth, address=spec.address, branch=spec.branch)
                    work.sentences.append(Repaired(f"host link {spec.host_veth} was named {veth.name}: renamed", thing))
                work.host_side(seen)
                if spec.branch:
                    self._branches.repair(host, work, spec.branch, seen)
                sentences += work.sentences
        return sentences

    def _wire_second(self, host: NetlinkSocket, first: WiringSpec, second: WiringSpec, thing: RepairedObject) -> str:
        """Wire a living sandbox's link for egress again, which is gone: its address is still the sandbox's, and it is led to by no
        rule of an ENI. Of the first link the sandbox would not know the same address any more. Returns: what was done, or why not.
        """
        what = f"host link {second.host_veth} of {second.key} was missing"
        try:
            link = checks.find_link(host, first.host_veth)
            # The path may be another sandbox's by now: where the first link leads is this one's.
            if link is None or not link.netnsid or link.netnsid != survey.namespace_number(host, second.netns):
                raise WiringError(f"{first.host_veth} does not lead into {second.netns}")
            # Another's link had MACs that nobody recorded.
            self.wire(replace(second, others_mac=None, mtu=second.mtu or link.mtu))
        except (NetnsError, WiringError) as exc:
            return f"{what}: not repaired: {exc}"
        return Repaired(f"{what}: wired again", thing)

    def cut_off(self, spec: WiringSpec) -> str:
        with self._host.netlink() as host:
            links = [self._own_veth(host, spec.host_veth, key=spec.key)]
            if spec.branch is not None and (link := checks.find_link(host, spec.branch.link)):
                links += [link] if branches.is_link_of(link, spec.address) else []
            downs = [messages.change_link(one.index, step=f"take link {one.name} down", is_up=False) for one in links if one]
            host.carry_out(downs, what=f"cutting off {spec.key}")
        return f"sandbox {spec.key} with {spec.address} is cut off: {', '.join(one.name for one in links if one)} taken down"

    def write_former_rules(self, specs: Iterable[WiringSpec]) -> None:
        with self._host.netlink() as host:
            led = [one for one in specs if not (one.branch and one.branch.is_strict)]  # in strict mode rules go by links alone
            batch = [rule for spec in led for rule in sandbox_rules(messages.add_rule, spec.address, spec.route_table)]
            host.carry_out(batch, what="rules of single sandboxes")
            # The routes of our table go with their links.
            needless = [
                messages.delete_rule(dataplane.OWN_TABLE_PRIORITY, table=dataplane.OWN_TABLE, family=family)
                for family in self._families()
            ]
            for rule in (rule for family in self._families() for rule in survey.rules_of(host, family)):
                if (prefix := survey.from_prefix(rule)) is not None:
                    needless.append(messages.delete_rule(rule.priority, table=rule.table, source=prefix))
            host.carry_out(needless, what="removal of our own rules")

    def remove_leftover(
        self,
        *,
        host_veth: str | None,
        address: IpAddress | None,
        key: AttachmentKey | None = None,
        branch: Branch | None = None,
    ) -> IpAddress | None:
        """Remove wiring without owner: the link by name, and every route and rule of an address, in all tables.

        Without `address` the link's alias names it, unless its route leads to another link: then another sandbox has it (I2).
        """
        batch: list[Message] = []
        with self._host.netlink() as host:
            if host_veth:
                link = self._own_veth(host, host_veth)
                if link is not None and not (address and _is_of_another(link, address)):
                    batch.append(messages.delete_link(link.index, step=f"delete link {link.name}"))
                    named = _identity(link)
                    if address is None and named is not None:
                        # In any table: in strict mode main has none.
                        routes = [one for one in survey.routes_of(host, family=family_of(named[1])) if one.is_to(named[1])]
                        if all(one.index == link.index or one.route_type != uapi.RTN_UNICAST for one in routes):
                            address = named[1]
                    key = key or (named[0] if named else None)
                # Its routes go with it. It is found by the key alone, and a link that is another's by its alias is left alone.
                name = egress_veth_name(key, prefix=host_veth[:-VETH_HASH_LENGTH]) if key else ""
                second = checks.find_link(host, name)
                if second is not None and key and survey.host_veth(second).key == key:
                    batch.append(messages.delete_link(second.index, step=f"delete link {name}"))
            if address is not None:
                batch += address_removals(host, address)
            if branch:
                batch += branches.ending(host, branch, address=address, host_veth=host_veth, is_deleted=True)
                batch += branches.idle_rules(host, branch)
            host.carry_out(batch, what=f"removal of leftover {host_veth or address}")
        return address

    def _create_vlan(self, spec: WiringSpec, *, undo: list[Message]) -> int:
        """Make the link to a branch ENI. Returns: its index. Raises: as `BranchLinks.make`."""
        branch = cast(Branch, spec.branch)
        with self._host.netlink() as host:
            link = self._branches.make(host, spec, branch)
        undo.append(messages.delete_link(link, step=f"undo: delete link {branch.link}"))
        return link

    def _create(self, spec: WiringSpec, netns: int, ahead: Sequence[Message], *, undo: list[Message]) -> tuple[list[_Pair], int]:
        """Make the pairs. `ahead`: messages that make the link to a branch ENI. Returns: them, and the index of that, 0 without it."""
        batch = [one for link in spec.links for one in (_creation(link, netns), messages.get_link(link.host_veth))]
        vlan = 0
        for is_last in (False, True):
            try:
                with self._host.netlink() as host:
                    outcomes = host.request(self._armed([*ahead, *batch]))
            except BaseException:
                self._delete_own(spec)
                raise
            if ahead:
                vlan, is_right = self._branches.made(outcomes[: len(ahead)], spec)
                undo += [messages.delete_link(vlan, step="undo: delete the VLAN link")] if vlan else []
                vlan, outcomes, ahead = vlan * is_right, outcomes[len(ahead) :], []
            pairs: list[_Pair] = []
            for one, made, looked in zip(spec.links, outcomes[::2], outcomes[1::2], strict=True):
                link = looked.read(messages.read_link)
                if made.errno or link is None:
                    break
                pairs.append(_Pair(one, link.index, link.peer_index))
            else:
                return pairs, vlan
            removed = self._delete_own(spec)
            if made.errno == 0:
                raise WiringError(f"wiring of {spec.key}: {looked.message.step} failed", details=looked.cause)
            if not removed or is_last:
                break
        raise WiringError(f"wiring of {spec.key}: {made.message.step} failed", details=_why_not_made(one, made, link))

    def _delete_own(self, spec: WiringSpec) -> bool:
        """Delete links of the spec's names that are this sandbox's, with the rules of its address. Returns: whether there were any."""
        with self._host.netlink() as host:
            found = [(one, checks.find_link(host, one.host_veth)) for one in spec.links]
            own = [link for one, link in found if link is not None and _is_own(link, one)]
            batch = [
                messages.delete_link(link.index, step=f"delete leftover link {link.name} of the same sandbox") for link in own
            ]
            if any(_identity(link) == (spec.key, spec.address) for link in own):
                batch += sandbox_rules(messages.delete_rule, spec.address, spec.route_table)
            host.carry_out(batch, what=f"wiring of {spec.key}")
        return bool(own)

    def _apply(
        self, sock: NetlinkSocket, batch: Sequence[Message], *, undo: list[Message], spec: WiringSpec, tolerated: int = 0
    ) -> list[Message]:
        """Send a batch. The removal of every rule that it added is appended to `undo`, even if the batch fails.

        Returns: what the kernel refused, if one with the errno `tolerated` is among it.
        """
        added = batch  # if the answers are lost, any of the rules may have been
        try:
            outcomes = sock.request(self._armed(batch))
            added = [one.message for one in outcomes if one.errno == 0]
        finally:
            undo += [
                replace(one, step=f"undo: {one.step}", kind=uapi.RTM_DELRULE, flags=0, tolerated=messages.ABSENT)
                for one in added
                if one.kind == uapi.RTM_NEWRULE
            ]
        if tolerated and any(one.errno == tolerated for one in outcomes):
            return [one.message for one in outcomes if one.is_refused]
        must(outcomes, f"wiring of {spec.key}")
        return []

    def _turn_ipv6_on(self, netns: int, spec: WiringSpec) -> None:
        """The namespace has IPv6 turned off: turn it on for our interface, and for the loopback. Raises: WiringError."""
        for name in (*(one.ifname for one in spec.links if family_of(one.address) is IPV6), "lo"):
            key = f"net/ipv6/conf/{name}/disable_ipv6"
            with self._host.entered_at(netns):
                if routing.sysctl(key, wanted="0") != "0":
                    routing.sysctl(key, wanted="0", is_set=True)

    def _undo(self, spec: WiringSpec, pairs: Sequence[_Pair], rules: Sequence[Message], cause: BaseException) -> None:
        """Remove the pairs (their routes go with them) and the added rules. A failure is appended to the details of `cause`."""
        links = [messages.delete_link(one.host_index, step=f"undo: delete link {one.spec.host_veth}") for one in pairs]
        try:
            with self._host.netlink() as host:
                host.carry_out([*rules, *links], what=f"rollback of {spec.key}")
        except WiringError as exc:
            if not isinstance(cause, WiringError):
                raise
            cause.details += f"; the rollback failed too, and the next start removes the rest: {exc}"

    def _armed(self, batch: Sequence[Message]) -> Sequence[Message]:
        """Replace the messages that the failpoint selects by an unknown type, which the kernel refuses."""
        if self._failpoint is None:
            return batch
        return [replace(one, kind=uapi.RTM_UNKNOWN) if self._failpoint(one.step) else one for one in batch]

    def _refuse_host(self, spec: WiringSpec, identity: NetnsIdentity) -> None:
        if identity == self._host.identity:
            raise NetnsError(
                f"{spec.netns} is the host's own network namespace",
                details="a sandbox on the host's network is not wired; the runtime should not have called",
            )

    def _own_veth(self, host: NetlinkSocket, name: str, *, key: AttachmentKey | None = None) -> messages.Link | None:
        """Find a host veth by name; None if it is gone.

        Raises: WiringError if it is no veth, or if its alias names another sandbox than `key`.
        """
        (looked,) = host.request([messages.get_link(name)])
        must([looked], f"look at {name}")
        if not looked.replies:
            return None
        link = messages.read_link(looked.replies[0])
        owner = survey.host_veth(link).key
        if link.kind != uapi.VETH_KIND or (key and owner and owner != key):
            raise WiringError(
                f"link {name} is not the host veth of {key or 'a sandbox'}: it is left alone",
                details=f"kind {link.kind or 'hardware'}, alias {link.alias!r}; see `ip -d link show {name}`",
            )
        return link


def _is_of_another(link: messages.Link, address: IpAddress) -> bool:
    """Whether the link's alias names another address: names may go from one sandbox to its successor (docs/adr/0024)."""
    identity = _identity(link)
    return identity is not None and identity[1] != address


def _identity(link: messages.Link) -> tuple[AttachmentKey, IpAddress] | None:
    """Of whom a first link is by its alias, whatever it is led to."""
    return decode_alias(link.alias) or decode_alias(link.alias, BRANCH_TAG)


def _creation(spec: WiringSpec, netns: int) -> Message:
    return messages.create_veth(
        spec.host_veth,
        mac=spec.mac("host"),
        peer_name=spec.ifname,
        peer_mac=spec.mac("sandbox"),
        peer_netns=netns,
        mtu=spec.mtu,
    )


def _routeless(link: messages.Link, address: IpAddress, *, tables: Iterable[int]) -> Iterable[Message]:
    """Mark a link as dying and remove the routes to its address through it."""
    for table in tables:
        yield messages.delete_route(
            address,
            length=address.max_prefixlen,
            table=table,
            index=link.index,
            step=f"delete route {address} dev {link.name} table {table}",
        )
    group = messages.change_link(link.index, step=f"mark link {link.name}", group=uapi.DYING_GROUP)
    yield replace(group, tolerated=messages.ABSENT)


def _may_lead_to(link: messages.Link, looked: Outcome) -> bool:
    """Whether an address is still routed through a link, by the kernel's answer; in doubt it is (I11)."""
    return looked.errno not in messages.UNREACHABLE and (
        looked.errno != 0 or not looked.replies or messages.read_route(looked.replies[0]).index in {0, link.index}
    )


def _is_own(link: messages.Link, spec: WiringSpec) -> bool:
    """Whether a link is this sandbox's: by its alias, or by its MAC if a crash came before the alias was set."""
    if link.kind != uapi.VETH_KIND:
        return False
    if link.alias:
        found = survey.host_veth(link)
        return (found.key, found.is_egress) == (spec.key, spec.is_egress)
    return link.mac == spec.mac("host")


def _why_not_made(spec: WiringSpec, made: Outcome, link: messages.Link | None) -> str:
    if made.errno == errno.EEXIST and link is not None:
        return (
            f"the host has a link {spec.host_veth} that is not this sandbox's (alias {link.alias!r}); "
            f"see `ip -d link show {spec.host_veth}`"
        )
    if made.errno == errno.EEXIST:
        return f"{spec.netns} has an interface {spec.ifname} already: {made.cause}"
    return made.cause if made.errno else "the link vanished while it was created"


# The batches of netlink messages that wire and unwire one sandbox: values in, messages out, no I/O but one dump.
#
# Which routes, rules and neighbours exist is compatible with amazon-vpc-cni-k8s (`ipamd/model/kernel.py`). `wiring` sends them.


NETNS_DIRECTORY = Path("/run/netns")
"""Where runtimes keep the namespaces of their sandboxes. Source: github.com/containerd/containerd pkg/netns; ip-netns(8)."""

IPV6_IS_OFF = errno.EACCES
"""The kernel's answer to an address or a route of a link for which IPv6 is turned off. Source: net/ipv6/addrconf.c, inet6_addr_add."""


def host_side(spec: WiringSpec, index: int, vlan_index: int = 0, *, ipv4_conf: Mapping[int, int]) -> list[Message]:
    """Host side of a sandbox whose host veth has link index `index`: 4 messages, 5 on a secondary ENI and of IPv6. `vlan_index`: of
    the link to its branch ENI.

    The rule to our own table is the node's, not the sandbox's (`KernelHostNetwork.confine_sandboxes`). Main has the route too, for
    software that looks there; it is refused where there is one already (I1).

    `ipv4_conf`: the host veth's settings (`devconf.host_veth`). An IPv6 address would cost more than the rest of the batch, and
    is one more way to the node.
    """
    name = spec.host_veth
    batch = [
        messages.give_no_ipv6_address(index, step=f"keep IPv6 off {name}"),
        messages.change_link(index, step=f"name and raise {name}", is_up=True, alias=spec.alias, ipv4_conf=ipv4_conf),
    ]
    if spec.branch:
        batch += branches.host_side(spec, spec.branch, link=vlan_index, veth=index)
    if not (spec.branch and spec.branch.is_strict):
        batch += sandbox_routes(spec.address, index, name)
    if family_of(spec.address) is IPV6 or spec.is_egress:
        batch.append(messages.add_neighbour(index, spec.address, mac=spec.mac("sandbox")))
    if spec.branch and spec.branch.is_strict:
        return batch
    if spec.route_table != uapi.RT_TABLE_MAIN:
        batch.append(
            messages.add_rule(dataplane.FROM_SANDBOX_PRIORITY, table=spec.route_table, source=spec.prefix or spec.address)
        )
    return batch


def sandbox_side(spec: WiringSpec, index: int) -> list[Message]:
    """Sandbox side, in the order that the kernel needs: link up, then routes; the next hop's route before the default route."""
    name, address, gateway = spec.ifname, spec.address, spec.gateway
    batch = [
        messages.change_link(index, step=f"raise {name}", is_up=True),
        messages.add_address(index, address, length=address.max_prefixlen, step=f"add address {address} to {name}"),
    ]
    if family_of(address) is IPV6 or spec.is_egress:
        batch.insert(0, messages.give_no_ipv6_address(index, step=f"keep other addresses off {name}"))
    if family_of(address) is IPV6:
        batch.append(messages.deliver(address, index=index, step=f"deliver what is for {address}"))
    return [
        *batch,
        messages.add_route(gateway, index=index, step=f"add route {gateway} dev {name}"),
        messages.add_route(None, index=index, via=gateway, step=f"add default route via {gateway}"),
        messages.add_neighbour(index, gateway, mac=spec.mac("host")),
    ]


def sandbox_tables(branch: Branch | None) -> tuple[int, ...]:
    """The tables with the route to a sandbox."""
    return dataplane.strict_tables(branch) if branch and branch.is_strict else survey.SANDBOX_TABLES


def sandbox_routes(address: IpAddress, index: int, name: str, *, branch: Branch | None = None) -> list[Message]:
    """Add the routes to a sandbox."""
    return [checks.wiring_route(address, index, name, table=table) for table in sandbox_tables(branch)]


def sandbox_rules(make: Callable[..., Message], address: IpAddress, route_table: int) -> list[Message]:
    """Add or delete rule 512, and rule 1536 unless the address is routed by main: `make` is `messages.add_rule` or `delete_rule`.

    These are the rules of amazon-vpc-cni-k8s and of earlier releases: DEL removes both, whoever made them.
    """
    batch = [make(dataplane.TO_SANDBOX_PRIORITY, table=uapi.RT_TABLE_MAIN, destination=address)]
    if route_table != uapi.RT_TABLE_MAIN:
        batch.append(make(dataplane.FROM_SANDBOX_PRIORITY, table=route_table, source=address))
    return batch


def address_removals(host: NetlinkSocket, address: IpAddress) -> list[Message]:
    """Remove every route and rule of address/32, in all tables but the kernel's own (local). Dumps.

    Raises: KernelDumpError, WiringError.
    """
    batch = [
        messages.delete_route(
            address, length=address.max_prefixlen, table=route.table, index=route.index, metric=route.metric,
            step=f"delete route {address} of table {route.table}",
        )
        for route in survey.routes_of(host, family=family_of(address))
        if route.is_to(address) and route.route_type == uapi.RTN_UNICAST
    ]  # fmt: skip
    for rule in survey.rules_of(host, family_of(address)):
        if survey.is_to_sandbox(rule) and rule.destination == address:
            batch.append(messages.delete_rule(rule.priority, table=rule.table, destination=address))
        if survey.is_from_sandbox(rule) and rule.source == address:
            # Old releases of amazon-vpc-cni-k8s added one rule for each VPC CIDR (from address to CIDR); their restart merged
            # them (pkg/networkutils/network.go, UpdateRuleListBySrc). One deletion each, for any destination.
            batch.append(messages.delete_rule(rule.priority, table=rule.table, source=address))
    return batch
