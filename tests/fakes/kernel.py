"""The kernel as dictionaries: wired links, dying links, and the namespaces that exist."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from ipamd.model.attachment import ALIAS_TAG, IMPORTED_TAG, Wired, WiringSpec, decode_alias, encode_alias, sandbox_mac
from ipamd.model.cni_request import NetnsIdentity
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.eni import MAIN_TABLE
from ipamd.model.errors import IpamError, KernelDumpError, NetnsError, UplinkPendingError, WiringError
from ipamd.model.family import IPV4, Family, IpAddress
from ipamd.model.ids import AttachmentKey, EniId, MacAddress
from ipamd.model.kernel import HostVeth, IncomingRule, KernelSurvey, UplinkRoute, VlanLink
from ipamd.model.legs import BranchLeg, first_leg, legs_of
from ipamd.model.legs.branch import BRANCH_TAG
from ipamd.model.legs.branch_alias import encode_link_alias
from ipamd.model.legs.branch_eni import Branch, branch_of
from ipamd.model.repairs import RepairCode, RepairedObject, RepairKind, RepairReport
from ipamd.model.uplink import Uplink
from ipamd.model.wiring_difference import WiringDifference, wiring_difference


@lru_cache(4096)  # each look at the kernel asks for all
def _decoded(alias: str) -> tuple[AttachmentKey, IpAddress] | None:
    return decode_alias(alias, ALIAS_TAG, IMPORTED_TAG, BRANCH_TAG)


TRUNK = MacAddress("02:00:00:00:00:ff")
"""MAC of the trunk ENI's link, which is there until a test takes it from `trunks`."""


class FakeWiring:
    """Implements `Wiring`. `fail[method]` is raised by that method, once per entry; `before_wire` runs inside `wire`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.netns: dict[str, NetnsIdentity] = {}
        self.wired: dict[str, WiringSpec] = {}
        self.routes: dict[IpAddress, str] = {}
        self.rules: dict[IpAddress, int] = {}
        self.dying: dict[str, IpAddress] = {}
        self.foreign: dict[str, WiringSpec] = {}
        self.seconds: dict[str, IpAddress | None] = {}
        self.taken_seconds: dict[AttachmentKey, IpAddress] = {}
        self.left_up: set[str] = set()
        self.is_former = False
        self.trunks: set[MacAddress] = {TRUNK}
        self.vlans: dict[int, VlanLink] = {}
        """By ID: the kernel lets no second one be made on a trunk's link."""
        self.torn: dict[int, IpAddress] = {}
        """VLAN links by ID, with their addresses, that a test tore and nobody has made again."""
        self.uplink_routes: set[UplinkRoute] = set()
        """Of sandboxes that another software wired."""
        self.cut: list[str] = []
        """What was taken from a sandbox that is wired: never."""
        self.dying_aliases: dict[str, str] = {}
        self.fail: dict[str, list[IpamError]] = {}
        self.down: set[str] = set()
        """Links of wired sandboxes that are down."""
        self.forgotten_inside: list[tuple[str, IpAddress]] = []
        """Namespaces and addresses of further interfaces that were detached."""
        self.lost_inside: set[AttachmentKey] = set()
        self.are_mounts_seen = True
        self.before_wire: Callable[[WiringSpec], None] = lambda spec: None

    @property
    def adoption(self) -> FakeWiring:
        """It implements `LegAdoption` too."""
        return self

    def make_netns(self, path: str) -> str:
        """A namespace comes to be at `path`."""
        self.netns[path] = NetnsIdentity(4, 1000 + len(self.netns))
        return path

    def identify_netns(self, path: str) -> NetnsIdentity:
        """See the port."""
        self._maybe_fail("identify_netns")
        try:
            return self.netns[path]
        except KeyError:
            raise NetnsError(f"netns {path} does not exist") from None

    def is_netns_gone(self, path: str) -> bool:
        """See the port; `are_mounts_seen` is False where the host's mounts do not appear to the daemon."""
        return self.are_mounts_seen and path not in self.netns

    def wire(self, spec: WiringSpec) -> Wired:
        """See the port."""
        self.before_wire(spec)
        self._maybe_fail("wire")
        identity = self.identify_netns(spec.netns)
        with self.lock:
            for link in legs_of(spec)[1:]:
                if self.routes.get(link.address, link.host_veth) != link.host_veth:
                    raise WiringError(f"add route {link.address} dev {link.host_veth} failed: File exists")
            if spec.uplink is not None:
                self._add_vlan(spec, spec.uplink)
            is_default = not (
                spec.is_further and any(spec.key.container_id == other.key.container_id for other in self.wired.values())
            )
            self.wired[spec.host_veth] = spec
            if spec.is_kept_down:
                self.down |= set(first_leg(spec).links)
                return Wired(sandbox_mac(spec.key, side="host"), sandbox_mac(spec.key, side="sandbox"), identity)
            for link in legs_of(spec):
                if link.is_in_shared_tables:
                    self.routes[link.address] = link.host_veth
            self.rules[spec.address] = spec.route_table
        macs = sandbox_mac(spec.key, side="host"), sandbox_mac(spec.key, side="sandbox")
        return Wired(*macs, identity, is_default_route=is_default)

    def forget_inside(self, *, netns: str, identity: NetnsIdentity | None, ifname: str, address: IpAddress) -> None:
        """See the port."""
        self._maybe_fail("forget_inside")
        self.forgotten_inside.append((netns, address))

    def unwire(self, spec: WiringSpec) -> None:
        """See the port."""
        self._maybe_fail("unwire")
        with self.lock:
            self._drop(spec.host_veth, spec.address)
            self._drop_vlan(spec.uplink, spec.address)

    def mark_for_deletion(
        self, spec: WiringSpec, *, is_source_checked: bool = False, owner: AttachmentKey | None = None
    ) -> HostVeth | None:
        """See the port; `left_up` has the dying links that may stay up."""
        self._maybe_fail("mark_for_deletion")
        host_veth, address, branch, key = spec.host_veth, spec.address, spec.uplink, owner
        found = self.veth(host_veth)
        with self.lock:
            held = self.wired.get(host_veth)
            is_successors = branch and held is not None and key not in {None, held.key} and held.address == address
            vlan = self.vlans.get(branch.vlan) if branch and not is_successors else None
            if vlan is not None and vlan.address == address:
                self.vlans[vlan.vlan] = replace(vlan, is_dying=True, is_up=False)
            if is_successors:
                return found
            if held is not None and held.address == address and key in {None, held.key}:
                del self.wired[host_veth]
                self.dying[host_veth] = address
                self.dying_aliases[host_veth] = first_leg(held).alias
                self.left_up |= {host_veth} if is_source_checked else set()
            for leg in legs_of(spec)[1:]:
                self.routes.pop(leg.address, None)
            self.routes.pop(address, None)
            self.rules.pop(address, None)
            return found

    def veth(self, name: str) -> HostVeth | None:
        """See the port."""
        self._maybe_fail("veth")
        return next((veth for veth in self.survey().firsts if veth.name == name), None)

    def rename_veth(self, spec: WiringSpec, *, to: str) -> None:
        """See the port."""
        self._maybe_fail("rename_veth")
        host_veth, address = spec.host_veth, spec.address
        with self.lock:
            wired = self.wired.get(host_veth)
            if wired is not None and wired.address == address:
                self.wired[to] = replace(self.wired.pop(host_veth), host_veth=to)
                self.down |= {to} if host_veth in self.down else set()
                if address in self.routes:
                    self.routes[address] = to

    def stamp(self, veth: HostVeth, *, key: AttachmentKey, address: IpAddress) -> HostVeth:
        """See the port: of links that a test put into `foreign`."""
        self._maybe_fail("stamp")
        with self.lock:
            spec = self.foreign.pop(veth.name)
            self.wired[veth.name] = replace(spec, key=key, address=address, other_address=self.taken_seconds.get(key))
        return replace(veth, alias=encode_alias(key, address, tag=IMPORTED_TAG), key=key, address=address)

    def stamp_uplinked(
        self, veth: HostVeth, link: VlanLink, *, key: AttachmentKey, address: IpAddress, uplink: Uplink, eni_id: EniId
    ) -> tuple[HostVeth, VlanLink]:
        """See the port."""
        self._maybe_fail("stamp_uplinked")
        with self.lock:
            spec = replace(self.foreign.pop(veth.name), key=key, address=address, uplink=uplink, eni_id=eni_id)
            self.wired[veth.name] = spec
            alias = encode_link_alias(address, eni_id, branch_of(spec))
            named = replace(link, alias=alias, address=address, eni_id=eni_id, uplink=uplink)
            self.vlans[link.vlan] = named
        return replace(veth, alias=first_leg(spec).alias, key=key, address=address, has_uplink=True), named

    def extra_links(self, firsts: Iterable[HostVeth], *, family: Family) -> Mapping[str, int]:
        """See the port: those that a test put into `seconds`, by name of the first, with their addresses."""
        self._maybe_fail("extra_links")
        return {veth.name: number for number, veth in enumerate(firsts, 1) if veth.name in self.seconds}

    def adopt_extra(
        self, index: int, *, first: HostVeth, key: AttachmentKey, family: Family, recorded_address: IpAddress | None
    ) -> HostVeth:
        """See the port."""
        self._maybe_fail("adopt_extra")
        if not index:
            raise WiringError("link 0 for egress changed")
        with self.lock:
            address = self.seconds[first.name] or recorded_address
            if address is None:
                raise WiringError("its address is not known")
            self.taken_seconds[key] = address
            spec = legs_of(replace(self.foreign[first.name], key=key, other_address=address))[1]
            self.routes[address] = spec.host_veth
        return HostVeth(spec.host_veth, index, spec.alias, False, True, key, address, is_extra=True)

    def sweep(self) -> None:
        """See the port."""
        self._maybe_fail("sweep")
        with self.lock:
            self.dying.clear()
            self.vlans = {vlan: one for vlan, one in self.vlans.items() if not one.is_dying}

    def check(self, spec: WiringSpec) -> list[WiringDifference]:
        """See the port."""
        held = self.wired.get(spec.host_veth)
        differences = list[WiringDifference]()
        if held is None or held.address != spec.address:
            differences.append(wiring_difference(DifferenceCode.VETH_MISSING, link=spec.host_veth))
        if spec.uplink is not None and spec.uplink.vlan not in self.vlans:
            differences.append(wiring_difference(DifferenceCode.UPLINK_MISSING, RepairKind.LINK, link=spec.uplink.link))
        return differences

    def repair(
        self, specs: Iterable[WiringSpec], *, seen: KernelSurvey | None = None, backed_off: Collection[RepairedObject] = ()
    ) -> list[RepairReport]:
        """See the port."""
        said: list[RepairReport] = []
        with self.lock:
            wired = {link.host_veth for one in self.wired.values() for link in legs_of(one)}
            for spec in (leg for one in specs for leg in legs_of(one)):
                self.is_former = False
                self.down -= set(spec.links)
                route = RepairedObject(RepairKind.ROUTE, str(spec.address))
                rule = RepairedObject(RepairKind.RULE, str(spec.address))
                if spec.host_veth not in wired:
                    link = RepairedObject(RepairKind.LINK, str(spec.address))
                    said.append(RepairReport(RepairCode.LINK_GOING, link, spec.host_veth, owner=str(spec.key)))
                elif isinstance(spec, BranchLeg) and spec.uplink.vlan not in self.vlans and spec.trunk_mac in self.trunks:
                    self._add_vlan(spec.sandbox, spec.uplink)
                    said.append(RepairReport(RepairCode.ADDED, route, f"VLAN link {spec.uplink.link} of {spec.key}"))
                elif not spec.is_in_shared_tables:
                    continue
                elif spec.address not in self.routes and route not in backed_off:
                    self.routes[spec.address] = spec.host_veth
                    if spec.is_first:
                        self.rules[spec.address] = spec.route_table
                    said.append(RepairReport(RepairCode.ADDED, route, f"route to {spec.address}"))
                elif spec.is_first and self.rules.get(spec.address) != spec.route_table and rule not in backed_off:
                    self.rules[spec.address] = spec.route_table
                    said.append(RepairReport(RepairCode.ADDED, rule, f"rule from {spec.address} lookup {spec.route_table}"))
        return said

    def cut_off(self, spec: WiringSpec) -> RepairReport:
        """See the port."""
        self._maybe_fail("cut_off")
        with self.lock:
            self.down |= set(first_leg(spec).links)
        link = RepairedObject(RepairKind.LINK, str(spec.address))
        return RepairReport(RepairCode.CUT_OFF, link, str(spec.address), owner=str(spec.key))

    def check_inside(self, spec: WiringSpec, *, is_arrival_only: bool = False) -> list[WiringDifference]:
        """See the port: `lost_inside` are the sandboxes that lost their default route."""
        self._maybe_fail("check_inside")
        self.identify_netns(spec.netns)
        is_lost = spec.key in self.lost_inside and not is_arrival_only
        fields = {"gateway": first_leg(spec).gateway, "ifname": spec.key.ifname, "answer": "says nothing"}
        return [wiring_difference(DifferenceCode.DEFAULT_ROUTE_UNUSED, **fields)] if is_lost else []

    def survey(self, *, may_be_torn: bool = False) -> KernelSurvey:
        """See the port."""
        is_whole = True
        try:
            self._maybe_fail("survey")
        except KernelDumpError:
            if not may_be_torn:
                raise
            is_whole = False
        with self.lock:
            live = [(name, first_leg(spec).alias, spec.address, False) for name, spec in self.wired.items()]
            dead = [(name, self.dying_aliases.get(name, ""), address, True) for name, address in self.dying.items()]
            veths = []
            from_rules: dict[IpAddress, tuple[int, ...]] = {
                address: (table,) for address, table in self.rules.items() if table != MAIN_TABLE
            }
            for index, (name, alias, address, is_dying) in enumerate(live + dead, start=1):
                key = _decoded(alias)
                spec = self.wired.get(name)
                mac = (spec.others_mac or "") if spec is not None else ""
                veths.append(
                    HostVeth(
                        name,
                        index,
                        alias,
                        is_dying,
                        name not in self.down if not is_dying else name in self.left_up,
                        key[0] if key else None,
                        address,
                        mac,
                    )
                )
            veths += [
                HostVeth(name, 900 + n, "", False, True, mac=first_leg(one).mac("host"))
                for n, (name, one) in enumerate(self.foreign.items())
            ]
            strict = {name for name, one in self.foreign.items() if one.uplink and one.uplink.is_strict}
            led = [one for one in veths if one.alias.startswith(f"{BRANCH_TAG} ") or one.name in strict]
            branches = tuple(replace(one, has_uplink=True) for one in led)
            veths = [one for one in veths if one not in led]
            extra = tuple(
                HostVeth(link.host_veth, 500 + index, link.alias, False, True, link.key, link.address, is_extra=True)
                for index, spec in enumerate(self.wired.values())
                for link in legs_of(spec)[1:]
            )
            routes = dict(self.routes)
            # The kernel removes the routes of a link that goes down.
            up = [spec for spec in self.wired.values() if spec.host_veth not in self.down]
            whole = [leg for leg in map(first_leg, up) if isinstance(leg, BranchLeg) and leg.uplink.vlan in self.vlans]
            # Where ours lead, rules of single sandboxes are those without a route.
            to_rules = frozenset(address for address in self.rules if self.is_former or address not in routes)
            own = {} if self.is_former else dict(routes)
            chosen = {spec.address: spec.snat for spec in self.wired.values() if spec.snat is not None}
            return KernelSurvey(
                tuple(veths),
                routes,
                to_rules,
                from_rules,
                is_whole,
                own,
                has_own_rule=not self.is_former,
                extra=extra,
                uplinked=branches,
                vlans=tuple(replace(one, is_up=one.is_up and one.name not in self.down) for one in self.vlans.values()),
                uplink_routes=frozenset(self.uplink_routes).union(*(leg.routes for leg in whole)),
                incoming_rules=frozenset[IncomingRule]().union(*(leg.incoming_rules for leg in whole)),
                snat=chosen or None,
            )

    def write_former_rules(self, specs: Iterable[WiringSpec]) -> None:
        """See the port; a repair of any sandbox is the way back."""
        self._maybe_fail("write_former_rules")
        self.is_former = True

    def remove_leftover(
        self,
        *,
        host_veth: str | None,
        address: IpAddress | None,
        key: AttachmentKey | None = None,
        uplink: Uplink | None = None,
    ) -> IpAddress | None:
        """See the port."""
        self._maybe_fail("remove_leftover")
        with self.lock:
            if host_veth is not None and host_veth in self.wired:
                named = self.wired[host_veth].address
                if address is not None and named != address:
                    host_veth = None  # it went to another sandbox
                else:
                    address = address or (named if self.routes.get(named, host_veth) == host_veth else None)
            self._drop(host_veth, address)
            self._drop_vlan(uplink, address)
        return address

    def leave_vlan(
        self, vlan: int, address: IpAddress | None, *, eni_id: str = "eni-0aaa", is_strict: bool = True, is_ours: bool = False
    ) -> None:
        """A VLAN link is there that nobody has just made; without an address it is another software's, or ours if it `is_ours`."""
        mac, gateway = MacAddress("02:00:00:00:88:88"), address
        branch = Branch(vlan, mac, gateway or IPV4.gateway, is_strict) if gateway or is_ours else None
        alias = encode_link_alias(address, EniId(eni_id), branch) if address and branch else ""
        name = f"vlan.eth.{vlan}"
        link = VlanLink(name, 700 + vlan, vlan, mac, alias, 3, False, True, address, EniId(eni_id), branch)
        self.vlans[vlan] = link

    def tear_vlan(self, vlan: int) -> None:
        """Somebody deletes a VLAN link; the kernel's notification of it is lost."""
        with self.lock:
            if (address := self.vlans.pop(vlan).address) is not None:
                self.torn[vlan] = address

    def _add_vlan(self, spec: WiringSpec, branch: Branch) -> None:
        if spec.trunk_mac not in self.trunks:
            raise UplinkPendingError(f"the link of the trunk ENI, {spec.trunk_mac or 'whose MAC is not known'}, is not there")
        before = self.vlans.get(branch.vlan)
        if before is not None and any(one.address == before.address for one in self.wired.values()):
            self.cut.append(f"{before.name} of {before.address}")
        alias = encode_link_alias(spec.address, spec.eni_id, branch)
        self.torn.pop(branch.vlan, None)
        self.vlans[branch.vlan] = VlanLink(
            branch.link, 700 + branch.vlan, branch.vlan, branch.mac, alias, 3, False, True, spec.address, spec.eni_id, branch
        )

    def _drop_vlan(self, branch: Uplink | None, address: IpAddress | None) -> None:
        found = self.vlans.get(branch.vlan) if isinstance(branch, Branch) else None
        if found is not None and found.address in (None, address):
            del self.vlans[found.vlan]
            self.cut += [f"{found.name} of {address}" for one in self.wired.values() if one.address == address]

    def _drop(self, host_veth: str | None, address: IpAddress | None) -> None:
        if (spec := self.wired.pop(host_veth or "", None)) is not None:
            for link in legs_of(spec)[1:]:
                self.routes.pop(link.address, None)
        self.dying.pop(host_veth or "", None)
        if address is not None:
            self.routes.pop(address, None)
            self.rules.pop(address, None)

    def _maybe_fail(self, method: str) -> None:
        if self.fail.get(method):
            raise self.fail[method].pop(0)
