"""The port `Wiring`: create, change and remove one sandbox's veth pair, routes and rules.

An ADD takes three sends and no dump:

    create        host ns     makes the uplink, if the sandbox needs one (the VLAN link to its branch ENI), and then the veth pair,
                              whose peer is made directly in the sandbox's namespace; the answer has the link indexes of both ends
    host side     host ns     keeps IPv6 addresses off the link, sets IPv4 settings and alias, raises the link, adds the route to the
                              address in our own route table (OWN_TABLE) and in main, and for an address of a secondary ENI the rule
                              that sends packets from the address, or from its prefix, to the ENI's route table
    sandbox side  sandbox ns  adds the permanent neighbour entry of the gateway and the sandbox's address, raises the link, adds the
                              route to the gateway and the default route

A sandbox has one or more legs (`ipamd.model.legs`): a leg is a veth pair with its address, routes and rules. Each send has the
messages of all legs, so an extra leg costs no further send.

With IPv6 the host's end has a permanent neighbour entry too, for the sandbox's address, and neither end has a link-local address. So
no neighbour discovery is needed on a veth, no ADD waits for the detection of duplicate addresses, and the tables of
`confinement_ruleset` drop all neighbour discovery of sandboxes.

The kernel continues a batch after a refused message. So every message that changes the link is sent after the answer to `create`, and
names the link by its index: a link of another owner with the same name is never touched. All or nothing (I5): a failure is undone
before it is raised. If there is a route to the address already, or a default route in the sandbox, the kernel refuses ours and keeps
the existing route (I1).
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack

from ipamd.kernel import (
    answers,
    checks,
    devconf,
    further_interfaces,
    host_state,
    messages,
    sandbox_repair,
    source_tree,
    survey,
    sysctls,
    uapi,
)
from ipamd.kernel.legs.adoption import KernelAdoption
from ipamd.kernel.legs.wirings import LegWirings
from ipamd.kernel.netlink import AnswerOutcome, Message, NetlinkSocket, must
from ipamd.kernel.netns import HostNetns, opened_netns
from ipamd.kernel.netns_absence import is_netns_gone
from ipamd.kernel.pod_snat_sets import PodSnatSets
from ipamd.kernel.wiring_messages import IPV6_IS_OFF, address_removals, sandbox_routes, sandbox_rule_removals, sandbox_side
from ipamd.model import kernel_numbers
from ipamd.model.attachment import Wired, WiringSpec
from ipamd.model.cni_request import NetnsIdentity
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.errors import NetnsError, NothingWiredError, WiringError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IPV4, IPV6, Family, IpAddress, family_of
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.legs import Leg, decode_first_alias, extra_veth_names, first_leg, legs_of
from ipamd.model.record import dataclass, replace
from ipamd.model.repairs import RepairCode, RepairedObject, RepairKind, RepairReport
from ipamd.model.uplink import Uplink
from ipamd.model.wiring_comparison import wiring_differences
from ipamd.model.wiring_difference import WiringDifference, wiring_difference
from ipamd.ports.kernel import VlanLinks, Wiring

Failpoint = Callable[[str], bool]
"""Called with the name of each step before it is sent; True makes the kernel refuse the step. For crash and rollback tests."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """The veth pair that was created for a leg.

    `host_index`: link index of the host's end.
    `sandbox_index`: link index of the sandbox's end, in the sandbox's namespace.
    """

    leg: Leg
    host_index: int
    sandbox_index: int


@dataclass(frozen=True, slots=True)
class _DyingLink:
    """A leg's host veth that is to be marked for deletion: it is put into the link group DYING_GROUP. `sweep` deletes all links of
    this group.
    """

    link: answers.Link
    leg: Leg

    def taking_down(self) -> Message:
        """Return the message that puts the link into the dying group and takes it down, so that the kernel removes its routes."""
        link = self.link
        return messages.change_link(
            link.index,
            step=f"take link {link.name} down",
            is_up=False,
            group=uapi.DYING_GROUP,
            tolerated=messages.ABSENT,
        )

    def routes_removal(self) -> Iterator[Message]:
        """Yield the messages that remove the routes to the address through the link, and then put the link, which stays up, into the
        dying group.
        """
        link, address = self.link, self.leg.address
        for table in self.leg.route_tables:
            yield messages.delete_route(
                address,
                length=address.max_prefixlen,
                table=table,
                index=link.index,
                step=f"delete route {address} dev {link.name} table {table}",
            )
        yield messages.change_link(link.index, step=f"mark link {link.name}", group=uapi.DYING_GROUP, tolerated=messages.ABSENT)


class _Uplinks:
    """The uplinks of one sandbox's legs while the sandbox is wired. They are made in the same send as the veths if possible, otherwise
    before or after it.

    `creation`: the messages that make uplinks, to be sent together with the messages that make the veths.
    """

    def __init__(self, wirings: LegWirings, host: HostNetns, *, undo: list[Message]) -> None:
        """`undo`: the messages that delete the uplinks again are appended to this list."""
        self._wirings = wirings
        self._host = host
        self._undo = undo
        self._indexes: dict[Leg, int] = {}
        # The legs whose uplinks `creation` makes, each with the number of its messages in `creation`.
        self._message_counts: list[tuple[Leg, int]] = []
        self.creation: list[Message] = []

    def prepare(self, legs: Iterable[Leg]) -> None:
        """Collect the messages that make uplinks. If making an uplink needs a lookup first, the uplink is made at once.

        Raises: as `make_uplink`.
        """
        for leg in legs:
            if leg.uplink is None:
                continue
            creation = self._wirings.of(leg).uplink_creation(self._host, leg)
            if creation:
                self.creation += creation
                self._message_counts.append((leg, len(creation)))
            else:
                self._make(leg)

    def read(self, outcomes: Sequence[AnswerOutcome]) -> None:
        """Read the answers to `creation`."""
        position = 0
        for leg, count in self._message_counts:
            index, is_right = self._wirings.of(leg).created_uplink(outcomes[position : position + count], leg)
            position += count
            if index:
                self._undo.append(messages.delete_link(index, step="undo: delete the VLAN link"))
            if is_right:
                self._indexes[leg] = index

    def complete(self, legs: Iterable[Leg]) -> None:
        """Make the uplinks that `creation` did not make, or that are not usable. Raises: as `make_uplink`."""
        for leg in legs:
            if leg.uplink is not None and leg not in self._indexes:
                self._make(leg)

    @property
    def are_made(self) -> bool:
        """Whether any uplink was made and is usable."""
        return bool(self._indexes)

    def index_of(self, leg: Leg) -> int:
        """Return the index of a leg's uplink; 0 for a leg without one."""
        if self._indexes:
            return self._indexes.get(leg, 0)
        return 0

    def _make(self, leg: Leg) -> None:
        with self._host.netlink() as host:
            index = self._wirings.of(leg).make_uplink(host, leg)
        self._undo.append(messages.delete_link(index, step=f"undo: delete link {leg.links[-1]}"))
        self._indexes[leg] = index


class KernelWiring(Wiring):
    """Wires sandboxes through netlink messages packed by hand.

    Concurrency: safe from any thread, for different sandboxes at the same time. The caller serialises calls for one sandbox (the
    sandbox lock). It has no lock of its own.
    """

    def __init__(
        self,
        host: HostNetns,
        *,
        veth_prefix: str,
        families: Callable[[], Collection[Family]] = lambda: (IPV4,),
        failpoint: Failpoint | None = None,
        is_strict: bool = True,
        state_reader: host_state.HostStateReader | None = None,
        vlan_links: VlanLinks | None = None,
        pod_snat: PodSnatSets | None = None,
    ) -> None:
        """Wire sandboxes to the namespace of `host`.

        Args:
            veth_prefix: identifies a host veth that has no alias yet.
            families: returns the families of all legs on the node; a survey reads routes and rules of these.
            failpoint: makes the kernel refuse a step, for tests.
            is_strict: no sandbox may send from other addresses than its own (no `VPC_IPAMD_EXTRA_SOURCE_CIDRS`).
            state_reader: finds links of ENIs by MAC.
            vlan_links: makes and recognises the links that a lab uses in place of VLAN links; None if the kernel makes VLAN links.
            pod_snat: keeps the SNAT choices of single sandboxes; None: no sandbox has a choice.
        """
        self._host = host
        self._veth_prefix = veth_prefix
        self._families = families
        self._failpoint = failpoint
        self._ipv4_conf = devconf.host_veth(is_strict=is_strict)
        state_reader = state_reader or host_state.HostStateReader(veth_prefix=veth_prefix, family=IPV4)
        self._vlan_links = vlan_links
        self._pod_snat = pod_snat
        self._wirings = LegWirings(state_reader=state_reader, vlan_links=vlan_links, pod_snat=pod_snat)
        self.adoption = KernelAdoption(host, ipv4_conf=self._ipv4_conf, vlan_links=vlan_links, rename=self._rename)
        """Takes over the legs of sandboxes that amazon-vpc-cni-k8s wired."""

    def identify_netns(self, path: str) -> NetnsIdentity:
        with opened_netns(path) as (_, identity):
            return identity

    def is_netns_gone(self, path: str) -> bool:
        return is_netns_gone(path)

    def wire(self, spec: WiringSpec) -> Wired:
        """Create and configure the veth pair, routes and rules. On any error everything is undone before it is raised.

        If this sandbox's own link of an earlier try exists, it is removed and the creation is repeated once.
        Raises: NetnsError; WiringError naming the step and the kernel's cause.
        """
        first, *more = legs_of(spec)
        identity, is_beside = self._wire(spec, [first, *more])
        return Wired(first.mac("host"), first.mac("sandbox"), identity, is_default_route=not is_beside)

    def _wire(self, spec: WiringSpec, legs: Sequence[Leg]) -> tuple[NetnsIdentity, bool]:
        """Wire legs of a sandbox, all or none. Raises: as `wire`.

        Returns: the identity of its namespace, and whether the interface is a further one in a sandbox that has a default route
            already.
        """
        with ExitStack() as stack:
            netns, identity = stack.enter_context(opened_netns(spec.netns))
            self._refuse_host(spec, identity)
            sandbox = stack.enter_context(self._host.sandbox_netlink(netns))
            undo: list[Message] = []
            pairs: list[_Pair] = []
            try:
                for leg in legs:
                    self._wirings.of(leg).enter_sets(leg)
                uplinks = _Uplinks(self._wirings, self._host, undo=undo)
                uplinks.prepare(legs)
                pairs = self._create(spec, legs, netns, uplinks)
                uplinks.complete(legs)
                self._configure_host_side(pairs, uplinks, undo=undo)
                if spec.prefix:
                    undo.clear()  # other sandboxes of the prefix may need its rule by now
                # Unless the interface is a further one, the first leg adds a default route, and no other leg needs to add one.
                is_beside = spec.is_further and further_interfaces.has_default_route(sandbox, family_of(spec.address))
                self._configure_sandbox_side(sandbox, netns, pairs, has_default_route=is_beside or not spec.is_further)
            except BaseException as exc:
                self._undo(spec, legs, pairs, undo=undo, cause=exc)
                raise
        return identity, is_beside

    def _leave_sets(self, legs: Iterable[Leg]) -> None:
        for leg in legs:
            self._wirings.of(leg).leave_sets(leg.address)

    def unwire(self, spec: WiringSpec) -> None:
        with self._host.netlink() as host:
            link_removals: list[Message] = []
            rule_removals: list[Message] = []
            for leg in legs_of(spec):
                link = self._veth_to_delete(host, leg.host_veth, key=spec.key)
                if link is not None:
                    link_removals.append(messages.delete_link(link.index, step=f"delete link {link.name}"))
                rule_removals += self._wirings.of(leg).rule_removals(leg)
                if leg.uplink:
                    uplink_removals, uplink_rules = self._wirings.of(leg).uplink_removals(
                        host, leg.uplink, address=leg.address, host_veth=leg.host_veth, is_deleted=True
                    )
                    link_removals += uplink_removals
                    rule_removals += uplink_rules
            host.carry_out([*link_removals, *rule_removals], operation=f"unwiring of {spec.key}")
        self._leave_sets(legs_of(spec))
        if spec.is_further:
            self.forget_inside(netns=spec.netns, identity=None, ifname=spec.key.ifname, address=spec.address)

    def forget_inside(self, *, netns: str, identity: NetnsIdentity | None, ifname: str, address: IpAddress) -> None:
        with contextlib.suppress(NetnsError):  # the namespace is gone, with everything in it
            further_interfaces.remove_source_rule(self._host, netns, identity, ifname=ifname, address=address)

    def mark_for_deletion(
        self, spec: WiringSpec, *, is_source_checked: bool = False, owner: AttachmentKey | None = None
    ) -> HostVeth | None:
        # Taking a link down waits for the kernel's RCU grace period, which is longer on a busy node. If the tables check the source of
        # packets, the link stays up, and messages remove its routes. If they do not, the link goes down, so that the sandbox cannot
        # send, and the kernel removes its routes.
        first, *more = legs_of(spec)
        operation = f"marking {first.host_veth} ({first.address}) for deletion"
        with self._host.netlink() as host:
            link, veth = self._first_to_mark(host, first, owner)
            if link is None and veth is not None and not spec.is_of_pool and veth.address == first.address:
                return veth  # the pod's next sandbox has both the name and the address, so nothing of this sandbox is left
            dying = self._dying_links(host, link, first, more)
            after = self._after_closing(host, (first, *more))
            if dying and is_source_checked:
                # Links through which the address may still be routed are then taken down, which removes all their routes.
                dying = _close_without_taking_down(host, dying, after, operation=operation)
                after = []
            host.carry_out([*(dying_link.taking_down() for dying_link in dying), *after], operation=operation)
        self._leave_sets((first, *more))
        return veth

    def _first_to_mark(
        self, host: NetlinkSocket, first: Leg, owner: AttachmentKey | None
    ) -> tuple[answers.Link | None, HostVeth | None]:
        """Find the first host veth of a sandbox that is to be marked for deletion.

        Returns: the link, None if it is gone or is not the sandbox's; and what has the veth's name at present, None if nothing has.
        """
        link = self._link(host, first.host_veth)
        if link is None:
            return None, None
        veth = survey.host_veth(link)
        if link.kind != uapi.VETH_KIND:
            # Other software gave the name to a link of its own. Whatever its alias says, the sandbox's link has another name.
            return None, replace(veth, key=None, address=None)
        if _is_of_another_sandbox(veth, first.address, owner):
            return None, veth
        return link, veth

    def _dying_links(
        self, host: NetlinkSocket, first_link: answers.Link | None, first: Leg, extra_legs: Iterable[Leg]
    ) -> list[_DyingLink]:
        """Return the host veths of a sandbox that are to be marked for deletion.

        `first_link`: the host veth of the first leg; None if it is gone or is another sandbox's.
        """
        dying: list[_DyingLink] = []
        if first_link is not None:
            dying.append(_DyingLink(first_link, first))
        for leg in extra_legs:
            link = self._veth_to_delete(host, leg.host_veth, key=leg.key)
            if link is not None:
                dying.append(_DyingLink(link, leg))
        return dying

    def _after_closing(self, host: NetlinkSocket, legs: Iterable[Leg]) -> list[Message]:
        """Return the messages that remove uplinks, rules and routes of legs, in this order.

        The messages must be sent after the veths are closed. A veth is closed if it is down, so that no packet arrives by it, or if no
        route leads through it, so that our nftables tables drop its packets. Without uplinks and rules, a packet that arrives by an
        open veth would be routed by table main.
        """
        uplink_changes: list[Message] = []
        rule_removals: list[Message] = []
        for leg in legs:
            rule_removals += self._wirings.of(leg).rule_removals(leg)
            if leg.uplink:
                changes, uplink_rules = self._wirings.of(leg).uplink_removals(
                    host, leg.uplink, address=leg.address, host_veth=leg.host_veth
                )
                uplink_changes += changes
                rule_removals += uplink_rules
        return uplink_changes + rule_removals

    def veth(self, name: str) -> HostVeth | None:
        with self._host.netlink() as host:
            link = self._own_veth(host, name)
        if link:
            return survey.host_veth(link)
        return None

    def rename_veth(self, spec: WiringSpec, *, to: str) -> None:
        with self._host.netlink() as host:
            self._rename(host, first_leg(spec), former_name=spec.host_veth, to=to)

    def _rename(self, host: NetlinkSocket, leg: Leg, *, former_name: str, to: str) -> None:
        """Rename the host veth of a leg, as `rename_veth` does.

        Nothing is changed if the veth is gone or if its alias names another address. Raises: WiringError.
        """
        link = self._own_veth(host, former_name)
        if link is None or _is_of_another(link, leg.address):
            return
        down = messages.change_link(link.index, step=f"take link {former_name} down", is_up=False)
        rename = messages.change_link(link.index, step=f"name it {to}", name=to)
        batch = [down, rename]
        if link.is_up:  # the link of a sandbox that is kept down or cut off stays down
            batch.append(messages.change_link(link.index, step=f"raise link {to}", is_up=True))
        batch += self._restore_after_renaming(host, link, leg, former_name=former_name, name=to)
        host.carry_out(batch, operation=f"renaming of {former_name} to {to}")

    def _restore_after_renaming(
        self, host: NetlinkSocket, link: answers.Link, leg: Leg, *, former_name: str, name: str
    ) -> list[Message]:
        """Return the messages that restore what a host veth loses by a rename: its routes, its permanent neighbour entry, and the
        rules that contain its name.
        """
        batch: list[Message] = []
        # Routes are added only if the link has routes to the address now: a sandbox can forge a name and an alias, but no route.
        for route in survey.routes_of(host, index=link.index, family=family_of(leg.address)):
            if route.destination == leg.address:
                batch = sandbox_routes(leg, link.index, name)
                break
        batch += self._wirings.of(leg).rules_by_name(leg, name=name, former_name=former_name)
        if leg.is_neighbour_fixed:
            mac = checks.mac_inside(host, link)
            if mac:
                batch.append(messages.add_neighbour(link.index, leg.address, mac=mac))
        return batch

    def sweep(self) -> None:
        with self._host.netlink() as host:
            host.carry_out([messages.delete_group(uapi.DYING_GROUP)], operation="sweep of dying links")

    def check(self, spec: WiringSpec) -> list[WiringDifference]:
        differences = wiring_differences(spec, self.survey())
        try:
            return differences + self.check_inside(spec)
        except NetnsError as exc:
            return [*differences, wiring_difference(DifferenceCode.SANDBOX_GONE, cause=exc)]

    def check_inside(self, spec: WiringSpec, *, is_arrival_only: bool = False) -> list[WiringDifference]:
        with opened_netns(spec.netns) as (netns, identity):
            self._refuse_host(spec, identity)
            legs = legs_of(spec)
            with self._host.netlink() as host:
                host_links = [checks.find_link(host, leg.host_veth) for leg in legs]
            differences: list[WiringDifference] = []
            with self._host.sandbox_netlink(netns) as sandbox:
                for leg, host_link in zip(legs, host_links, strict=True):
                    compared = None if is_arrival_only else host_link
                    found = checks.sandbox_differences(sandbox, leg, host_link=compared, is_arrival_only=is_arrival_only)
                    if is_arrival_only and host_link is None and not _lacks_interface(found):
                        # The pair is whole, so the sandbox has not ended: something moved the host veth into another namespace.
                        found = [wiring_difference(DifferenceCode.VETH_MISSING, link=leg.host_veth), *found]
                    differences += found
            return differences

    def survey(self, *, may_be_torn: bool = False) -> KernelSurvey:
        with self._host.netlink() as host:
            seen = survey.survey(
                host,
                veth_prefix=self._veth_prefix,
                families=self._families(),
                may_be_torn=may_be_torn,
                vlan_links=self._vlan_links,
            )
        if self._pod_snat is None or self._pod_snat.chosen() is None:
            return seen
        return replace(seen, snat=self._pod_snat.seen())

    def repair(
        self, specs: Iterable[WiringSpec], *, seen: KernelSurvey | None = None, backed_off: Collection[RepairedObject] = ()
    ) -> list[RepairReport]:
        seen = seen or self.survey(may_be_torn=True)
        reports: list[RepairReport] = []
        with self._host.netlink() as host:
            for spec in specs:
                for leg in legs_of(spec):
                    reports += self._repair_leg(host, spec, leg, seen, backed_off)
        return reports

    def _repair_leg(
        self, host: NetlinkSocket, spec: WiringSpec, leg: Leg, seen: KernelSurvey, backed_off: Collection[RepairedObject]
    ) -> list[RepairReport]:
        """Repair one leg of a sandbox. Returns: a report for each repair and each failure."""
        link_object = RepairedObject(RepairKind.LINK, str(leg.address))
        is_backed_off = link_object in backed_off
        veth = leg.veth_in(seen)
        if leg.is_wired_again and veth is None and checks.find_link(host, leg.host_veth) is None:
            if is_backed_off:
                return []
            return [self._wire_again(host, spec, leg, link_object)]
        leg_repair = sandbox_repair.SandboxRepair(host, leg, backed_off)
        if veth and not is_backed_off and self._restore_name(host, veth, leg):
            leg_repair.reports.append(RepairReport(RepairCode.LINK_RENAMED, link_object, leg.host_veth, before=veth.name))
        is_ours = leg_repair.host_side(seen)
        if is_ours:
            self._wirings.of(leg).repair_uplink(leg_repair, leg, seen)
        else:
            self._wirings.of(leg).cut_uplink(leg_repair, leg)
        return leg_repair.reports

    def _restore_name(self, host: NetlinkSocket, veth: HostVeth, leg: Leg) -> bool:
        """Give a leg's host veth its recorded name again.

        Returns: False if nothing was renamed, because the veth has that name already, is gone, or leads into another namespace.
        """
        if veth.name == leg.host_veth or self._leads_elsewhere(host, veth, leg):
            return False
        self._rename(host, leg, to=leg.host_veth, former_name=veth.name)
        return True

    @staticmethod
    def _leads_elsewhere(host: NetlinkSocket, veth: HostVeth, leg: Leg) -> bool:
        """Whether a host veth is gone, or leads into another namespace than the sandbox's.

        `veth`: it has the leg's alias, but another name. A sandbox with NET_ADMIN can make such a link.
        """
        link = checks.find_link(host, veth.ifindex)
        return link is None or checks.leads_elsewhere(host, link, leg)

    def _wire_again(self, host: NetlinkSocket, spec: WiringSpec, leg: Leg, link_object: RepairedObject) -> RepairReport:
        """Wire a missing leg of a living sandbox again, with the recorded address. Returns: the report of success or failure."""
        try:
            link = checks.find_link(host, spec.host_veth)
            # Another namespace may be at the path by now. The link of the first leg proves which namespace is this sandbox's.
            if link is None or not link.netnsid or link.netnsid != survey.namespace_number(host, leg.netns):
                raise failure(WiringError, FailureCode.VETH_ASTRAY, link=spec.host_veth, netns=leg.netns)
            # The new link gets MACs of ours: if amazon-vpc-cni-k8s made the old link, the MAC inside the sandbox is not recorded.
            again = replace(spec, others_mac=None, mtu=spec.mtu or link.mtu)
            self._wire(again, [replace(leg, sandbox=again)])
        except (NetnsError, WiringError) as exc:
            return RepairReport(RepairCode.NOT_WIRED_AGAIN, link_object, leg.host_veth, owner=str(leg.key), cause=str(exc))
        return RepairReport(RepairCode.ADDED, link_object, f"host link {leg.host_veth} of {leg.key}")

    def cut_off(self, spec: WiringSpec) -> RepairReport:
        links: list[answers.Link] = []
        leg = first_leg(spec)
        with self._host.netlink() as host:
            veth = self._veth_to_delete(host, leg.host_veth, key=leg.key)
            if veth is not None:
                links.append(veth)
            uplink = self._wirings.of(leg).own_uplink(host, leg)
            if uplink is not None:
                links.append(uplink)
            downs = [messages.change_link(link.index, step=f"take link {link.name} down", is_up=False) for link in links]
            host.carry_out(downs, operation=f"cutting off {leg.key}")
        link_object = RepairedObject(RepairKind.LINK, str(leg.address))
        names = ", ".join(link.name for link in links)
        return RepairReport(RepairCode.CUT_OFF, link_object, str(leg.address), after=names, owner=str(leg.key))

    def write_former_rules(self, specs: Iterable[WiringSpec]) -> None:
        with self._host.netlink() as host:
            all_specs = tuple(specs)
            batch: list[Message] = []
            for leg in _legs_of_all(all_specs):
                if leg.is_in_shared_tables:  # the rules of any other leg select only by link
                    batch += self._wirings.of(leg).rules(messages.add_rule, leg)
            host.carry_out(batch, operation="rules of single sandboxes")
            host.carry_out(self._own_rule_removals(host, all_specs), operation="removal of our own rules")

    def _own_rule_removals(self, host: NetlinkSocket, specs: Iterable[WiringSpec]) -> list[Message]:
        """Return the messages that remove what amazon-vpc-cni-k8s would leave behind: our rules, and the unreachable default routes at
        the end of the route tables of branch ENIs.

        The routes in OWN_TABLE are not among them, because the kernel removes them together with their links.
        """
        batch = [
            messages.delete_rule(kernel_numbers.OWN_TABLE_PRIORITY, table=kernel_numbers.OWN_TABLE, family=family)
            for family in self._families()
        ]
        for family in self._families():
            rules = survey.rules_of(host, family)
            for rule in rules:
                prefix = survey.from_prefix(rule)
                if prefix is not None:
                    batch.append(messages.delete_rule(rule.priority, table=rule.table, source=prefix))
            if family is IPV4:
                batch += source_tree.all_removals(rules)
        for leg in _legs_of_all(specs):
            batch += self._wirings.of(leg).former_table_removals(leg)
        return batch

    def remove_leftover(
        self,
        *,
        host_veth: str | None,
        address: IpAddress | None,
        key: AttachmentKey | None = None,
        uplink: Uplink | None = None,
    ) -> IpAddress | None:
        """Remove wiring without an owner: the link by name, and every route and rule of an address, in all tables.

        If `address` is None, it is read from the link's alias. If a route leads that address to another link, another sandbox has the
        address, and its routes and rules stay (I2).
        """
        batch: list[Message] = []
        with self._host.netlink() as host:
            if host_veth:
                batch, address = self._leftover_link_removals(host, host_veth, address, key)
            if address is not None:
                batch += address_removals(host, address)
            if uplink:
                wiring = self._wirings.of_uplink(uplink)
                uplink_removals, uplink_rules = wiring.uplink_removals(
                    host, uplink, address=address, host_veth=host_veth, is_deleted=True
                )
                batch += [*uplink_removals, *wiring.idle_rules(host, uplink), *uplink_rules]
            host.carry_out(batch, operation=f"removal of leftover {host_veth or address}")
        if address is not None:
            self._wirings.leave_sets(address)
        return address

    def _leftover_link_removals(
        self, host: NetlinkSocket, name: str, address: IpAddress | None, key: AttachmentKey | None
    ) -> tuple[list[Message], IpAddress | None]:
        """Return the messages that delete a leftover host veth, and the host veths of extra legs of the same sandbox.

        Returns: the messages; and the address whose routes and rules are to be removed: `address`, or else the address in the alias.
            It is None if neither is known, or if a route leads the address in the alias to another link.
        """
        link = self._veth_to_delete(host, name)
        if link is None or (address is not None and _is_of_another(link, address)):
            return _extra_link_removals(host, name, key), address
        removal = messages.delete_link(link.index, step=f"delete link {link.name}")
        identity = _identity(link)
        if identity is not None:
            key_of_alias, address_of_alias = identity
            key = key or key_of_alias
            if address is None and _has_all_routes(host, link, address_of_alias):
                address = address_of_alias
        return [removal, *_extra_link_removals(host, name, key)], address

    def _configure_host_side(self, pairs: Sequence[_Pair], uplinks: _Uplinks, *, undo: list[Message]) -> None:
        batch: list[Message] = []
        for pair in pairs:
            batch += self._wirings.of(pair.leg).host_side(
                pair.leg, veth=pair.host_index, uplink=uplinks.index_of(pair.leg), ipv4_conf=self._ipv4_conf
            )
        with self._host.netlink() as host:
            self._apply(host, batch, undo=undo, legs=[pair.leg for pair in pairs])

    def _configure_sandbox_side(
        self, sandbox: NetlinkSocket, netns: int, pairs: Sequence[_Pair], *, has_default_route: bool
    ) -> None:
        """Send the messages of the sandbox side. If IPv6 is turned off in the sandbox, turn it on and send the refused messages again.

        After a failure no rule is left in the sandbox; the caller deletes the links. Raises: WiringError.
        """
        batch: list[Message] = []
        for pair in pairs:
            batch += sandbox_side(pair.leg, pair.sandbox_index, has_default_route=has_default_route)
        undo: list[Message] = []
        legs = [pair.leg for pair in pairs]
        try:
            refused = self._apply(sandbox, batch, undo=undo, legs=legs, tolerated=IPV6_IS_OFF)
            if refused:
                self._turn_ipv6_on(netns, legs)
                self._apply(sandbox, refused, undo=undo, legs=legs)
        except BaseException as exc:
            further_interfaces.remove_added_rules(sandbox, undo, cause=exc)
            raise

    def _create(self, spec: WiringSpec, legs: Sequence[Leg], netns: int, uplinks: _Uplinks) -> list[_Pair]:
        """Create the veth pairs, and at the first try the uplinks.

        If links of an earlier ADD of the same sandbox are in the way, remove them and try once more. Raises: WiringError.
        """
        veth_messages: list[Message] = []
        for leg in legs:  # two messages for each leg
            veth_messages.append(_creation(leg, netns))
            veth_messages.append(messages.get_link(leg.host_veth))
        uplink_messages = uplinks.creation
        for is_last in (False, True):
            outcomes = self._send_creation(spec, legs, [*uplink_messages, *veth_messages])
            if uplink_messages:
                uplinks.read(outcomes[: len(uplink_messages)])
                outcomes = outcomes[len(uplink_messages) :]
                uplink_messages = []
            pairs = _created_pairs(legs, outcomes)
            if len(pairs) == len(legs):
                return pairs
            failed_leg = legs[len(pairs)]
            creation, lookup = outcomes[2 * len(pairs) : 2 * len(pairs) + 2]
            has_removed = self._delete_own(spec, legs)
            if creation.errno == 0:
                raise failure(
                    WiringError, FailureCode.LOOKUP_REFUSED, sandbox=spec.key, step=lookup.message.step, cause=lookup.cause
                )
            if is_last or not has_removed:
                break
        error_class = WiringError if pairs or uplinks.are_made else NothingWiredError
        raise _not_created(error_class, failed_leg, creation, lookup.read(answers.read_link))

    def _send_creation(self, spec: WiringSpec, legs: Sequence[Leg], batch: Sequence[Message]) -> list[AnswerOutcome]:
        """Send the messages that create links. If their answers are lost, delete what they may have created."""
        try:
            with self._host.netlink() as host:
                return host.request(self._armed(batch))
        except BaseException:
            self._delete_own(spec, legs)
            raise

    def _delete_own(self, spec: WiringSpec, legs: Sequence[Leg]) -> bool:
        """Delete the links with the legs' names that belong to this sandbox. If the first leg's link is among them, delete the rules
        of the address too.

        Returns: whether there was such a link.
        """
        own_links: list[answers.Link] = []
        with self._host.netlink() as host:
            for leg in legs:
                link = checks.find_link(host, leg.host_veth)
                if link is not None and _is_own(link, leg):
                    own_links.append(link)
            batch = [
                messages.delete_link(link.index, step=f"delete leftover link {link.name} of the same sandbox")
                for link in own_links
            ]
            if any(_identity(link) == (spec.key, spec.address) for link in own_links):
                batch += sandbox_rule_removals(spec.address, spec.route_table)
            host.carry_out(batch, operation=f"wiring of {spec.key}")
        return bool(own_links)

    def _apply(
        self, sock: NetlinkSocket, batch: Sequence[Message], *, undo: list[Message], legs: Sequence[Leg], tolerated: int = 0
    ) -> list[Message]:
        """Send a batch. Append to `undo` the messages that remove what the batch added, also if sending it fails.

        Returns: all refused messages, if the errno `tolerated` (0 for none) is among the answers; otherwise none. Raises: WiringError
        if a message is refused and that errno is not among the answers.
        """
        added = batch  # if the answers are lost, any of the rules may have been added
        try:
            outcomes = sock.request(self._armed(batch))
            added = [outcome.message for outcome in outcomes if outcome.errno == 0]
        finally:
            undo += _rule_removals(added)
            for leg in legs:
                undo += self._wirings.of(leg).undo(leg, added)
        if tolerated and any(outcome.errno == tolerated for outcome in outcomes):
            return [outcome.message for outcome in outcomes if outcome.is_refused]
        must(outcomes, f"wiring of {legs[0].key}")
        return []

    def _turn_ipv6_on(self, netns: int, legs: Iterable[Leg]) -> None:
        """Turn IPv6 on in a namespace, for our interfaces and for the loopback, where it is off. Raises: WiringError."""
        names = [leg.ifname for leg in legs if family_of(leg.address) is IPV6]
        for name in (*names, "lo"):
            setting = f"net/ipv6/conf/{name}/disable_ipv6"
            with self._host.entered_at(netns):
                if sysctls.sysctl(setting, wanted="0") != "0":
                    sysctls.sysctl(setting, wanted="0", is_set=True)

    def _undo(
        self, spec: WiringSpec, legs: Iterable[Leg], pairs: Sequence[_Pair], *, undo: Sequence[Message], cause: BaseException
    ) -> None:
        """Remove the veth pairs, with which the kernel removes their routes, and then carry out `undo`.

        If that fails, the failure is appended to the details of `cause`, or raised if `cause` is not a WiringError.
        """
        links = [messages.delete_link(pair.host_index, step=f"undo: delete link {pair.leg.host_veth}") for pair in pairs]
        try:
            self._leave_sets(legs)
            with self._host.netlink() as host:
                host.carry_out([*links, *undo], operation=f"rollback of {spec.key}")
        except WiringError as exc:
            if not isinstance(cause, WiringError):
                raise
            cause.details += f"; the rollback failed too, and the next start removes the rest: {exc}"

    def _armed(self, batch: Sequence[Message]) -> Sequence[Message]:
        """Give the messages that the failpoint selects an unknown type, so that the kernel refuses them."""
        if self._failpoint is None:
            return batch
        armed: list[Message] = []
        for message in batch:
            is_selected = self._failpoint(message.step)
            armed.append(replace(message, kind=uapi.RTM_UNKNOWN) if is_selected else message)
        return armed

    def _refuse_host(self, spec: WiringSpec, identity: NetnsIdentity) -> None:
        if identity == self._host.identity:
            raise failure(NetnsError, FailureCode.HOST_NETNS, netns=spec.netns)

    def _own_veth(self, host: NetlinkSocket, name: str, *, key: AttachmentKey | None = None) -> answers.Link | None:
        """Find a host veth by name; None if it is gone.

        Raises: WiringError if it is not a veth, or, if `key` is given, if its alias names another sandbox.
        """
        link = self._link(host, name)
        if link is not None and link.kind != uapi.VETH_KIND:
            raise _not_ours(link, name, key)
        return self._of_key(link, name, key)

    def _veth_to_delete(self, host: NetlinkSocket, name: str, *, key: AttachmentKey | None = None) -> answers.Link | None:
        """Find a host veth by name, to delete it or to take it down; None if it is gone.

        A link of another kind, such as a bridge, was given the name by other software. It is left alone, and it must not prevent the
        DEL of the sandbox. Raises: WiringError if `key` is given, and the alias of the veth names another sandbox.
        """
        link = self._link(host, name)
        if link is not None and link.kind != uapi.VETH_KIND:
            return None
        return self._of_key(link, name, key)

    @staticmethod
    def _link(host: NetlinkSocket, name: str) -> answers.Link | None:
        """Find a link by name; None if it is gone. Raises: WiringError if the kernel does not answer."""
        (outcome,) = host.request([messages.get_link(name)])
        must([outcome], f"look at {name}")
        if not outcome.replies:
            return None
        return answers.read_link(outcome.replies[0])

    @staticmethod
    def _of_key(link: answers.Link | None, name: str, key: AttachmentKey | None) -> answers.Link | None:
        """Return a veth. Raises: WiringError if `key` is given, and the veth's alias names another sandbox."""
        owner = survey.host_veth(link).key if link and key else None
        if link is not None and owner is not None and owner != key:
            raise _not_ours(link, name, key)
        return link


def _lacks_interface(differences: Iterable[WiringDifference]) -> bool:
    return any(difference.code is DifferenceCode.INTERFACE_MISSING for difference in differences)


def _not_ours(link: answers.Link, name: str, key: AttachmentKey | None) -> WiringError:
    return failure(
        WiringError,
        FailureCode.LINK_NOT_OURS,
        link=name,
        sandbox=key or "a sandbox",
        kind=link.kind or "hardware",
        alias=link.alias,
    )


def _extra_link_removals(host: NetlinkSocket, first_name: str, key: AttachmentKey | None) -> list[Message]:
    """Return the messages that delete the host veths of a sandbox's extra legs; none without a key.

    `first_name`: name of the host veth of its first leg.
    """
    if key is None:
        return []
    batch: list[Message] = []
    for name in extra_veth_names(key, first_name):
        link = checks.find_link(host, name)
        if link is not None and survey.host_veth(link).key == key:
            batch.append(messages.delete_link(link.index, step=f"delete link {name}"))
    return batch


def _is_of_another(link: answers.Link, address: IpAddress) -> bool:
    """Whether a link's alias names another address. A pod's next sandbox may use the same link name (docs/adr/0024)."""
    identity = _identity(link)
    return identity is not None and identity[1] != address


def _identity(link: answers.Link) -> tuple[AttachmentKey, IpAddress] | None:
    """Return the sandbox and the address in a link's alias; None if the alias is not that of a first leg."""
    return decode_first_alias(link.alias)


def _is_of_another_sandbox(veth: HostVeth, address: IpAddress, key: AttachmentKey | None) -> bool:
    """Whether a host veth's alias names another address than `address`, or another sandbox than `key` if a key is given."""
    if veth.address is not None and veth.address != address:
        return True
    return key is not None and veth.key != key


def _has_all_routes(host: NetlinkSocket, link: answers.Link, address: IpAddress) -> bool:
    """Whether no unicast route to an address leads through another link.

    All tables are searched, because table main has no route to a sandbox in strict mode.
    """
    for route in survey.routes_of(host, family=family_of(address)):
        if route.is_to(address) and route.index != link.index and route.route_type == uapi.RTN_UNICAST:
            return False
    return True


def _created_pairs(legs: Sequence[Leg], outcomes: Sequence[AnswerOutcome]) -> list[_Pair]:
    """Read the answers to the creation and the lookup of each leg's veth.

    Returns: the pairs that were created, up to the first leg without a pair.
    """
    pairs: list[_Pair] = []
    for leg, creation, lookup in zip(legs, outcomes[::2], outcomes[1::2], strict=True):
        link = lookup.read(answers.read_link)
        if creation.errno or link is None:
            break
        pairs.append(_Pair(leg, link.index, link.peer_index))
    return pairs


def _rule_removals(added: Iterable[Message]) -> list[Message]:
    """Return the removal of each rule that one of the messages adds."""
    return [
        replace(message, step=f"undo: {message.step}", kind=uapi.RTM_DELRULE, flags=0, tolerated=messages.ABSENT)
        for message in added
        if message.kind == uapi.RTM_NEWRULE
    ]


def _close_without_taking_down(
    host: NetlinkSocket, dying: Sequence[_DyingLink], after: Iterable[Message], *, operation: str
) -> list[_DyingLink]:
    """Mark links as dying and remove the routes to their addresses, but leave the links up. Then send `after`.

    Returns: the links through which the address of their leg may still be routed. Raises: WiringError.
    """
    batch: list[Message] = []
    for dying_link in dying:
        batch += dying_link.routes_removal()
    batch += after
    for dying_link in dying:
        batch.append(messages.look_up_route(dying_link.leg.address))
    outcomes = host.request(batch)
    must(outcomes[: -len(dying)], operation)
    return [
        dying_link
        for dying_link, lookup in zip(dying, outcomes[-len(dying) :], strict=True)
        if _may_lead_to(dying_link.link, lookup)
    ]


def _creation(leg: Leg, netns: int) -> Message:
    return messages.create_veth(
        leg.host_veth,
        mac=leg.mac("host"),
        peer_name=leg.ifname,
        peer_mac=leg.mac("sandbox"),
        peer_netns=netns,
        mtu=leg.mtu,
    )


def _legs_of_all(specs: Iterable[WiringSpec]) -> Iterator[Leg]:
    for spec in specs:
        yield from legs_of(spec)


def _may_lead_to(link: answers.Link, lookup: AnswerOutcome) -> bool:
    """Whether the kernel's answer shows that an address is still routed through a link. True if the answer is unclear (I11)."""
    if lookup.errno in messages.UNREACHABLE:
        return False
    if lookup.errno != 0 or not lookup.replies:
        return True
    return answers.read_route(lookup.replies[0]).index in {0, link.index}


def _is_own(link: answers.Link, leg: Leg) -> bool:
    """Whether a link is this leg's: by its alias, or by its MAC if it has no alias yet because of a crash."""
    if link.kind != uapi.VETH_KIND:
        return False
    if link.alias:
        veth = survey.host_veth(link)
        return (veth.key, veth.is_first) == (leg.key, leg.is_first)
    return link.mac == leg.mac("host")


def _not_created(error_class: type[WiringError], leg: Leg, creation: AnswerOutcome, link: answers.Link | None) -> WiringError:
    """Return the error for a veth pair that the kernel did not make.

    Args:
        creation: the answer to the creation.
        link: the link on the host that has the veth's name; None if there is none.
    """
    fields = {"sandbox": leg.key, "step": creation.message.step}
    if creation.errno == errno.EEXIST and link is not None:
        return failure(error_class, FailureCode.VETH_NAME_OF_STRANGER, link=leg.host_veth, alias=link.alias, **fields)
    if creation.errno == errno.EEXIST:
        names = {"netns": leg.netns, "ifname": leg.ifname}
        return failure(error_class, FailureCode.INTERFACE_EXISTS, cause=creation.cause, **names, **fields)
    cause = creation.cause if creation.errno else "the link vanished while it was created"
    return failure(error_class, FailureCode.VETH_NOT_CREATED, cause=cause, **fields)
