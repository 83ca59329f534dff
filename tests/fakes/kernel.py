"""The kernel as dictionaries: wired links, dying links, and the namespaces that exist."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from ipamd.model.attachment import (
    ALIAS_TAG,
    BRANCH_TAG,
    IMPORTED_TAG,
    NetnsIdentity,
    Wired,
    WiringSpec,
    decode_alias,
    encode_alias,
    sandbox_mac,
)
from ipamd.model.aws_node import Led
from ipamd.model.branch import Branch, encode_link_alias
from ipamd.model.eni import MAIN_TABLE
from ipamd.model.errors import BranchPendingError, IpamError, KernelDumpError, NetnsError, WiringError
from ipamd.model.family import IPV4, Family, IpAddress
from ipamd.model.ids import AttachmentKey, EniId, MacAddress
from ipamd.model.kernel import (
    BranchRoute,
    HostVeth,
    IncomingRule,
    KernelSurvey,
    Repaired,
    RepairedObject,
    RepairKind,
    VlanLink,
    branch_routes,
    incoming_rules,
)


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
        self.branch_routes: set[BranchRoute] = set()
        """Of sandboxes that another software wired."""
        self.cut: list[str] = []
        """What was taken from a sandbox that is wired: never."""
        self.dying_aliases: dict[str, str] = {}
        self.fail: dict[str, list[IpamError]] = {}
        self.down: set[str] = set()
        """Links of wired sandboxes that are down."""
        self.lost_inside: set[AttachmentKey] = set()
        self.before_wire: Callable[[WiringSpec], None] = lambda spec: None

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

    def wire(self, spec: WiringSpec) -> Wired:
        """See the port."""
        self.before_wire(spec)
        self._maybe_fail("wire")
        identity = self.identify_netns(spec.netns)
        with self.lock:
            for link in spec.links[1:]:
                if self.routes.get(link.address, link.host_veth) != link.host_veth:
                    raise WiringError(f"add route {link.address} dev {link.host_veth} failed: File exists")
            if spec.branch is not None:
                self._add_vlan(spec, spec.branch)
            self.wired[spec.host_veth] = spec
            for link in spec.links:
                if not (link.branch and link.branch.is_strict):
                    self.routes[link.address] = link.host_veth
            self.rules[spec.address] = spec.route_table
        return Wired(sandbox_mac(spec.key, side="host"), sandbox_mac(spec.key, side="sandbox"), identity)

    def unwire(self, spec: WiringSpec) -> None:
        """See the port."""
        self._maybe_fail("unwire")
        with self.lock:
            self._drop(spec.host_veth, spec.address)
            self._drop_vlan(spec.branch, spec.address)

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
        """See the port; `left_up` has the dying links that may stay up."""
        self._maybe_fail("mark_for_deletion")
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
                self.dying_aliases[host_veth] = held.alias
                self.left_up |= {host_veth} if is_source_checked else set()
            if second is not None:
                self.routes.pop(second.address, None)
            self.routes.pop(address, None)
            self.rules.pop(address, None)
            return found

    def veth(self, name: str) -> HostVeth | None:
        """See the port."""
        self._maybe_fail("veth")
        return next((veth for veth in self.survey().firsts if veth.name == name), None)

    def rename_veth(self, *, host_veth: str, to: str, address: IpAddress, branch: Branch | None = None) -> None:
        """See the port."""
        self._maybe_fail("rename_veth")
        with self.lock:
            spec = self.wired.get(host_veth)
            if spec is not None and spec.address == address:
                self.wired[to] = replace(self.wired.pop(host_veth), host_veth=to)
                if branch is None or not branch.is_strict:
                    self.routes[address] = to

    def stamp(self, veth: HostVeth, *, key: AttachmentKey, address: IpAddress) -> HostVeth:
        """See the port: of links that a test put into `foreign`."""
        self._maybe_fail("stamp")
        with self.lock:
            spec = self.foreign.pop(veth.name)
            self.wired[veth.name] = replace(spec, key=key, address=address, other_address=self.taken_seconds.get(key))
        return replace(veth, alias=encode_alias(key, address, tag=IMPORTED_TAG), key=key, address=address)

    def stamp_branch(self, veth: HostVeth, led: Led, *, key: AttachmentKey, eni_id: EniId) -> tuple[HostVeth, VlanLink]:
        """See the port."""
        self._maybe_fail("stamp_branch")
        with self.lock:
            spec = replace(self.foreign.pop(veth.name), key=key, address=led.address, branch=led.branch, eni_id=eni_id)
            self.wired[veth.name] = spec
            alias = encode_link_alias(led.address, eni_id, led.branch)
            link = replace(led.link, alias=alias, address=led.address, eni_id=eni_id, branch=led.branch)
            self.vlans[link.vlan] = link
        return replace(veth, alias=spec.alias, key=key, address=led.address, is_branch=True), link

    def second_links(self, firsts: Iterable[HostVeth], *, egress: Family) -> Mapping[str, int]:
        """See the port: those that a test put into `seconds`, by name of the first, with their addresses."""
        self._maybe_fail("second_links")
        return {veth.name: number for number, veth in enumerate(firsts, 1) if veth.name in self.seconds}

    def take_second(self, index: int, *, first: HostVeth, key: AttachmentKey, egress: Family, told: IpAddress | None) -> HostVeth:
        """See the port."""
        self._maybe_fail("take_second")
        if not index:
            raise WiringError("link 0 for egress changed")
        with self.lock:
            address = self.seconds[first.name] or told
            if address is None:
                raise WiringError("its address is not known")
            self.taken_seconds[key] = address
            spec = replace(self.foreign[first.name], key=key, other_address=address).links[1]
            self.routes[address] = spec.host_veth
        return HostVeth(spec.host_veth, index, spec.alias, False, True, key, address, is_egress=True)

    def sweep(self) -> None:
        """See the port."""
        self._maybe_fail("sweep")
        with self.lock:
            self.dying.clear()
            self.vlans = {vlan: one for vlan, one in self.vlans.items() if not one.is_dying}

    def check(self, spec: WiringSpec) -> list[str]:
        """See the port."""
        held = self.wired.get(spec.host_veth)
        found = [] if held is not None and held.address == spec.address else [f"host veth {spec.host_veth} is missing"]
        if spec.branch is not None and spec.branch.vlan not in self.vlans:
            found.append(f"VLAN link {spec.branch.link} is missing")
        return found

    def repair(
        self, specs: Iterable[WiringSpec], *, seen: KernelSurvey | None = None, held: Collection[RepairedObject] = ()
    ) -> list[str]:
        """See the port."""
        said: list[str] = []
        with self.lock:
            wired = {link.host_veth for one in self.wired.values() for link in one.links}
            for spec in (link for one in specs for link in one.links):
                self.is_former = False
                self.down -= {spec.host_veth, spec.branch.link} if spec.branch else {spec.host_veth}
                route = RepairedObject(RepairKind.ROUTE, str(spec.address))
                rule = RepairedObject(RepairKind.RULE, str(spec.address))
                if spec.host_veth not in wired:
                    said.append(f"host link {spec.host_veth} of {spec.key} is missing: not repaired")
                elif spec.branch is not None and spec.branch.vlan not in self.vlans and spec.trunk_mac in self.trunks:
                    self._add_vlan(spec, spec.branch)
                    said.append(Repaired(f"VLAN link {spec.branch.link} of {spec.key} was missing: made again", route))
                elif spec.branch is not None and spec.branch.is_strict:
                    continue
                elif spec.address not in self.routes and route not in held:
                    self.routes[spec.address] = spec.host_veth
                    if not spec.is_egress:
                        self.rules[spec.address] = spec.route_table
                    said.append(Repaired(f"route to {spec.address} was missing: added", route))
                elif not spec.is_egress and self.rules.get(spec.address) != spec.route_table and rule not in held:
                    self.rules[spec.address] = spec.route_table
                    said.append(Repaired(f"rule from {spec.address} lookup {spec.route_table} was missing: added", rule))
        return said

    def cut_off(self, spec: WiringSpec) -> str:
        """See the port."""
        self._maybe_fail("cut_off")
        with self.lock:
            self.down |= {spec.host_veth, spec.branch.link} if spec.branch else {spec.host_veth}
        return f"sandbox {spec.key} is cut off"

    def check_inside(self, spec: WiringSpec, *, is_arrival_only: bool = False) -> list[str]:
        """See the port: `lost_inside` are the sandboxes that lost their default route."""
        self._maybe_fail("check_inside")
        self.identify_netns(spec.netns)
        is_lost = spec.key in self.lost_inside and not is_arrival_only
        return ["the default route is missing in the sandbox"] if is_lost else []

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
            live = [(name, spec.alias, spec.address, False) for name, spec in self.wired.items()]
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
                HostVeth(name, 900 + n, "", False, True, mac=one.mac("host"))
                for n, (name, one) in enumerate(self.foreign.items())
            ]
            strict = {name for name, one in self.foreign.items() if one.branch and one.branch.is_strict}
            led = [one for one in veths if one.alias.startswith(f"{BRANCH_TAG} ") or one.name in strict]
            branches = tuple(replace(one, is_branch=True) for one in led)
            veths = [one for one in veths if one not in led]
            egress = tuple(
                HostVeth(link.host_veth, 500 + index, link.alias, False, True, link.key, link.address, is_egress=True)
                for index, spec in enumerate(self.wired.values())
                for link in spec.links[1:]
            )
            routes = dict(self.routes)
            whole = [spec for spec in self.wired.values() if spec.branch and spec.branch.vlan in self.vlans]
            # Where ours lead, rules of single sandboxes are those without a route.
            to_rules = frozenset(address for address in self.rules if self.is_former or address not in routes)
            own = {} if self.is_former else dict(routes)
            return KernelSurvey(
                tuple(veths),
                routes,
                to_rules,
                from_rules,
                is_whole,
                own,
                has_own_rule=not self.is_former,
                egress=egress,
                branches=branches,
                vlans=tuple(replace(one, is_up=one.is_up and one.name not in self.down) for one in self.vlans.values()),
                branch_routes=frozenset(self.branch_routes).union(*map(branch_routes, whole)),
                incoming_rules=frozenset[IncomingRule]().union(*map(incoming_rules, whole)),
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
        branch: Branch | None = None,
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
            self._drop_vlan(branch, address)
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
            raise BranchPendingError(f"the link of the trunk ENI, {spec.trunk_mac or 'whose MAC is not known'}, is not there")
        before = self.vlans.get(branch.vlan)
        if before is not None and any(one.address == before.address for one in self.wired.values()):
            self.cut.append(f"{before.name} of {before.address}")
        alias = encode_link_alias(spec.address, spec.eni_id, branch)
        self.torn.pop(branch.vlan, None)
        self.vlans[branch.vlan] = VlanLink(
            branch.link, 700 + branch.vlan, branch.vlan, branch.mac, alias, 3, False, True, spec.address, spec.eni_id, branch
        )

    def _drop_vlan(self, branch: Branch | None, address: IpAddress | None) -> None:
        found = self.vlans.get(branch.vlan) if branch else None
        if found is not None and found.address in (None, address):
            del self.vlans[found.vlan]
            self.cut += [f"{found.name} of {address}" for one in self.wired.values() if one.address == address]

    def _drop(self, host_veth: str | None, address: IpAddress | None) -> None:
        if (spec := self.wired.pop(host_veth or "", None)) is not None:
            for link in spec.links[1:]:
                self.routes.pop(link.address, None)
        self.dying.pop(host_veth or "", None)
        if address is not None:
            self.routes.pop(address, None)
            self.rules.pop(address, None)

    def _maybe_fail(self, method: str) -> None:
        if self.fail.get(method):
            raise self.fail[method].pop(0)
