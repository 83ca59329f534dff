"""Values from the kernel about our wiring in the host namespace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from ipamd.model.attachment import WiringSpec
from ipamd.model.branch import Branch, encode_link_alias
from ipamd.model.eni import MAIN_TABLE
from ipamd.model.family import IPV6, IpAddress, IpNetwork, family_of
from ipamd.model.ids import AttachmentKey, EniId, MacAddress
from ipamd.model.record import dataclass, field


@dataclass(frozen=True, slots=True)
class HostVeth:
    """One host veth of ours: named with our prefix or carrying our alias. `key`/`address` come from the alias, or are None.
    `is_egress`: it is a sandbox's second link, and the address that for egress. `is_branch`: the address is a branch ENI's.

    `mac` is empty and `mtu` (bytes) 0 where they were not read. `kind` as the kernel names it: another kind is no veth of ours.
    `master`: index of a bridge or other link that takes its packets, or 0. `has_ipv6` is None where the kernel did not tell.
    """

    name: str
    ifindex: int
    alias: str
    is_dying: bool
    is_up: bool
    key: AttachmentKey | None = None
    address: IpAddress | None = None
    mac: str = ""
    mtu: int = 0
    kind: str = "veth"
    master: int = 0
    is_egress: bool = False
    is_branch: bool = False
    has_ipv6: bool | None = None


@dataclass(frozen=True, slots=True)
class VlanLink:
    """The link to a branch ENI: one with our alias, or named as those of amazon-vpc-cni-k8s are.

    `parent`: index of the trunk's link. `address`, `eni_id`, `branch` come from the alias; None or "" where it does not say. One that
    we made and have not named yet has a `branch` and no address.
    """

    name: str
    ifindex: int
    vlan: int
    mac: str
    alias: str
    parent: int
    is_dying: bool
    is_up: bool
    address: IpAddress | None = None
    eni_id: EniId = EniId("")
    branch: Branch | None = None


class BranchRoute(NamedTuple):
    """A route to one address, or to a network, or the default route for None, in the table of a branch."""

    table: int
    destination: IpAddress | IpNetwork | None
    via: IpAddress | None
    device: str

    def __str__(self) -> str:
        via = f" via {self.via}" if self.via else ""
        return f"{self.destination or 'default'}{via} dev {self.device} table {self.table}"


class IncomingRule(NamedTuple):
    """A rule by which what comes by a link is looked up in a table."""

    incoming: str
    table: int

    def __str__(self) -> str:
        return f"rule {BRANCH_PRIORITY} iif {self.incoming} lookup {self.table}"


@dataclass(frozen=True)
class KernelSurvey:
    """One survey of the host namespace. `veths`: of pool addresses; `egress`: the second links; `branches`: host veths of sandboxes
    with branch ENIs, and `vlans`: the links to these; `branch_routes`: of the tables of these and of `STRICT_TABLE`; `incoming_rules`:
    of BRANCH_PRIORITY.

    `routes`: address/32 in the main table -> name of the host veth, or what else it leads through; `own_routes`: in `OWN_TABLE`.
    `to_rules`: addresses with a rule 512 to main. `has_own_rule`: whether the rule to `OWN_TABLE` is there.
    `from_rules`: address -> tables of its rules 1536; `from_prefixes`: of rules for a whole prefix.
    `is_whole`: no dump was interrupted, so what it lacks was not there (I11).
    """

    veths: tuple[HostVeth, ...]
    routes: dict[IpAddress, str]
    to_rules: frozenset[IpAddress]
    from_rules: dict[IpAddress, tuple[int, ...]]
    is_whole: bool = True
    own_routes: dict[IpAddress, str] = field(default_factory=dict)
    has_own_rule: bool = False
    from_prefixes: dict[IpNetwork, tuple[int, ...]] = field(default_factory=dict)
    egress: tuple[HostVeth, ...] = ()
    branches: tuple[HostVeth, ...] = ()
    vlans: tuple[VlanLink, ...] = ()
    branch_routes: frozenset[BranchRoute] = frozenset()
    incoming_rules: frozenset[IncomingRule] = frozenset()

    @property
    def firsts(self) -> tuple[HostVeth, ...]:
        """The host veths of all sandboxes, whatever they are led to."""
        return (*self.veths, *self.branches)

    @property
    def living_names(self) -> set[str]:
        """Of those that are not on their way out."""
        return {veth.name for veth in self.firsts if not veth.is_dying}

    def vlan_of(self, address: IpAddress | None) -> VlanLink | None:
        """The living VLAN link that says to be for an address."""
        return next((one for one in self.vlans if address and one.address == address and not one.is_dying), None)

    @cached_property
    def _named(self) -> Mapping[tuple[str | AttachmentKey | None, bool], list[HostVeth]]:
        """The veths by name and by key: to look through all for each sandbox grows with the square of their number."""
        named = defaultdict[tuple[str | AttachmentKey | None, bool], list[HostVeth]](list)
        for veth in (*self.firsts, *self.egress):
            named[veth.name, veth.is_egress].append(veth)
            named[veth.key, veth.is_egress].append(veth)
        return named

    def egress_of(self, key: AttachmentKey) -> HostVeth | None:
        """The second link of a sandbox, if a route of its address leads to it: a sandbox may forge the link, but no route, and others
        may have deleted one of both."""
        ours = (one for one in self._named[key, True] if not one.is_dying)
        tables = (self.routes, self.own_routes)
        return next((one for one in ours if one.address and any(each.get(one.address) == one.name for each in tables)), None)

    def tables_from_prefix(self, address: IpAddress) -> tuple[int, ...]:
        """Tables of the rules 1536 for the prefix that contains an address."""
        family = family_of(address)
        return self.from_prefixes.get(family.network((address, family.prefix_length), strict=False), ())

    def veth_of(self, spec: WiringSpec) -> HostVeth | None:
        """The sandbox's host veth: by its name, a living one first; if none has it, by alias, under whatever name."""
        ours = self._named[spec.host_veth, spec.is_egress] + self._named[spec.key, spec.is_egress]
        return min(ours, key=lambda one: (one.name != spec.host_veth, one.is_dying), default=None)


def stray_rules(survey: KernelSurvey, subnets: Iterable[IpNetwork]) -> frozenset[IpAddress]:
    """Addresses in our subnets that have a rule of ours, and neither a route nor a veth: what led there is gone.

    Other software that uses the same priorities has a route for each of its addresses.
    """
    ruled = {*survey.to_rules, *survey.from_rules} - survey.routes.keys() - {veth.address for veth in survey.firsts}
    networks = tuple(subnets)
    return frozenset(address for address in ruled if any(address in network for network in networks))


@dataclass(frozen=True, slots=True)
class ForeignLink:
    """A link of the host that is not ours and leads into the namespace of a sandbox.

    `is_in_use`: an IPv4 route of the host leads through it, or it is a port of a bridge: somebody on the node made use of it.
    """

    name: str
    index: int
    key: AttachmentKey
    is_in_use: bool

    def __str__(self) -> str:
        return f"{self.name} leads into {self.key}"


class LinkEventKind(StrEnum):
    """What the kernel said about a link. After `opened` and `missed` every link must be looked at: changes may have gone unheard."""

    OPENED = "opened"
    GONE = "gone"
    SEEN = "seen"
    MISSED = "missed"


_EVERY = MacAddress("")


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """One notification. `mac` is empty for `opened` and `missed`, which concern every link.

    `gone`: the link was deleted or moved to another namespace. `seen`: it appeared or changed; being down is no event of its own.
    """

    kind: LinkEventKind
    mac: MacAddress = _EVERY


class ChangeKind(StrEnum):
    """What of the host changed. VETH_GONE: a host veth of ours. OTHER_LINK: one that is neither that nor an ENI's. VLAN_LINK: one that
    leads to a branch ENI.

    MISSED: something, and the notification of it was lost.
    """

    LINK = "link"
    OTHER_LINK = "other-link"
    VETH_GONE = "veth-gone"
    VLAN_LINK = "vlan-link"
    ADDRESS = "address"
    ROUTE = "route"
    RULE = "rule"
    SYSCTL = "sysctl"
    NFT = "nft"
    MISSED = "missed"


@dataclass(frozen=True, slots=True)
class HostChange:
    """A change of the host's networking that was not made by this daemon's wiring, as far as its kind tells.

    `veth`, `vlan`: a host veth or a VLAN link as it is now (LINK, VLAN_LINK). `address`, `length`: of an interface, a route's
    destination, or a rule's selector. `table`: of a route or a rule; `priority` of a rule. `is_gone`: of a route or a VLAN link that
    was removed. `process`: who changed nftables, as the kernel tells it.
    """

    kind: ChangeKind
    veth: HostVeth | None = None
    vlan: VlanLink | None = None
    address: IpAddress | None = None
    length: int = 0
    table: int = 0
    priority: int = 0
    is_gone: bool = False
    process: str = ""


NODE = "node"
"""Subject of a difference in the routing of the node itself: sysctls, marks, our nftables table."""


@dataclass(frozen=True, slots=True)
class RoutingDifference:
    """One thing in the host's routing that is not as it must be. `subject`: an ENI's ID or NODE.

    `is_repaired`: the next reconciliation puts it right; otherwise it lasts until somebody does (a link that is missing, say).
    `mend`: the command for that, where there is one. `is_cut`: packets of sandboxes are lost by it, or may be; otherwise they flow,
    but not as our settings say.
    """

    subject: str
    what: str
    is_repaired: bool = True
    mend: str = ""
    is_cut: bool = True

    def __str__(self) -> str:
        return f"{self.what}; to mend it: {self.mend}" if self.mend else self.what


DROP_REASONS = ("source", "redirect", "loopback", "ipv6", "ipv4", "returned", "arp", "foreign", "listening", "discovery")
"""Why a sandbox's packet is dropped: a source that is not its own, an ICMP redirect or a router's advertisement, for the node's
loopback, of the family that sandboxes do not have, one that the VPC sent back because it is for an address of this node that no
sandbox has, an ARP request, by a link that is not ours: with a source that is routed elsewhere, or at all
(VPC_IPAMD_FOREIGN_LINKS). What every healthy sandbox of IPv6 sends: of multicast (listening), of routers and neighbours
(discovery)."""


NOT_REPAIRED = "could not be repaired"
"""In a sentence of `HostNetwork.reconcile`: this part stays as it is, and is a condition until it is repaired."""

INSIDE_IS_LEFT = "the inside of a sandbox is its own and left as it is: if that was not meant, delete the pod to get it anew"
"""What is done about differences of a sandbox's own side."""


def duplicate_addresses(survey: KernelSurvey) -> dict[IpAddress, tuple[HostVeth, ...]]:
    """Find every address that more than one live veth has, ascending, with the veths (I1).

    Such an address is not given again: it stays with the recorded sandbox, or quarantined until only one veth is left.
    """
    carriers: dict[IpAddress, tuple[HostVeth, ...]] = {}
    for veth in survey.firsts:
        if veth.address is not None and not veth.is_dying:
            carriers[veth.address] = (*carriers.get(veth.address, ()), veth)
    return dict(sorted((address, veths) for address, veths in carriers.items() if len(veths) > 1))


# Numbers that amazon-vpc-cni-k8s uses in the kernel, and we too, so that a node can be moved between both without a reboot.
#
# Rules, routes and neighbours that one of them left must be recognised, replaced or removed by the other. Do not change a number
# here alone: `tests/unit/model/test_data_plane_numbers.py` names each compatible value, its source and what breaks without it.
# Route tables are in `ipamd/model/eni.py`, names of host veths in `ipamd/model/attachment.py`, a sandbox's next hop in `family.py`.


TO_SANDBOX_PRIORITY = 512
"""`to address lookup main`. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, ToContainerRulePriority.

Sandboxes of ours have one rule to `OWN_TABLE` instead (docs/adr/0044). These are written when a node goes back, and are removed where
they are not needed.
"""

OWN_TABLE = 113213
"""The table with the routes to all sandboxes of ours. Ours: the group of dying links has this number too; far from the tables of ENIs
(at most 11,600 with 16 cards) and from those that other software is known to use."""

OWN_TABLE_PRIORITY = TO_SANDBOX_PRIORITY + 1
"""`lookup OWN_TABLE`. Ours: behind the rules of single sandboxes, so where there is one of another daemon, or of an earlier release of
ours, its word holds, and packets go where they went before."""

OWN_RULE = f"rule {OWN_TABLE_PRIORITY} lookup {OWN_TABLE}"

LOCAL_PRIORITY, MOVED_LOCAL_PRIORITY = 0, 20
"""`lookup local`: the kernel's, and in strict mode behind the rules of branches, so that what comes from a sandbox for its own node
leaves by the branch ENI too. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, localRulePriority."""

STRICT_TABLE = OWN_TABLE + 1
"""The table with the routes to all sandboxes in strict mode, for reverse lookups alone. Ours."""

STRICT_PRIORITY = 9
"""`iif lo fwmark <STRICT_MARK of branch.py> lookup STRICT_TABLE`: of a lookup that knows no incoming link, for a packet with this bit,
which it has only while its source is checked. What the node itself sends knows none either: with a bit that others set
(`MARKS_OF_OTHERS`) it would pass by the groups. Ours."""

BRANCH_PRIORITY = 10
"""`iif <VLAN link or host veth> lookup <table of the branch>`, in strict mode.

Source: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go, vlanRulePriority.
"""

MARK_PRIORITY = 1024
"""`fwmark 0x80/0x80 lookup main`. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, hostRulePriority."""

EXTERNAL_SERVICE_PRIORITY = 1535
"""`to <CIDR of AWS_EXTERNAL_SERVICE_CIDRS> lookup main`.

Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, externalServiceIpRulePriority.
"""

FROM_SANDBOX_PRIORITY = 1536
"""`from address lookup <ENI table>`. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, FromPodRulePriority."""

FROM_ENI_PRIORITY = 32765
"""`from <ENI's primary address> lookup <ENI table>`.

Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, FromPrimaryIPofENIRulePriority.
"""


# What the daemon repairs on the host, by kind and object, so that repairs can be counted and a fight over one object be noticed.
#
# Pure. A repair travels as its sentence: whoever only logs needs no more, and whoever counts finds the object in it.


class RepairKind(StrEnum):
    """Kinds of objects that are repaired; the label of `ipamd_repairs_total`, so the list is closed."""

    LINK = "link"
    ADDRESS = "address"
    ROUTE = "route"
    RULE = "rule"
    SYSCTL = "sysctl"
    NFT = "nft"
    CONFLIST = "conflist"
    PLUGIN = "plugin"


class RepairedObject(NamedTuple):
    """One object of the host. `subject`: an ENI's ID, a sandbox's address, NODE, "confinement", or a file's path."""

    kind: RepairKind
    subject: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.subject}"


CONFINEMENT = RepairedObject(RepairKind.NFT, "confinement")
"""What keeps sandboxes' packets where they belong."""

LEADING = RepairedObject(RepairKind.RULE, "all sandboxes")
"""The one rule that leads packets to sandboxes."""

TRANSLATION = RepairedObject(RepairKind.NFT, NODE)
"""What gives sandboxes' packets an address that is good outside: SNAT, and egress of the other family."""

PUT_BACK_ALWAYS = frozenset({CONFINEMENT, LEADING, TRANSLATION})
"""Put back each time, also in a fight: a pause would leave pods unconfined, or cut off."""


class Repaired(str):
    """One repair that was made: its sentence, and the object. A plain `str` among repairs says what was not repaired."""

    thing: RepairedObject

    def __new__(cls, sentence: str, thing: RepairedObject) -> Repaired:
        """A sentence with its object."""
        made = super().__new__(cls, sentence)
        made.thing = thing
        return made


class Followed(str):
    """What was changed because something of ours changed, a setting or a name: no repair, so there is nobody to fight with."""

    __slots__ = ()


def as_repairs(sentences: Iterable[str], thing: RepairedObject) -> list[str]:
    """Make repairs of one object of sentences, but for those that tell of changes of ours."""
    return [one if isinstance(one, Followed) else Repaired(one, thing) for one in sentences]


# Whether a sandbox is wired on the host as it is recorded: the one comparison, whoever asks and whatever they do about it.


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing of a sandbox's wiring that is not as recorded; `what` names the actual and the expected value.

    `kind`: of the object that is repaired; None: nothing may be touched, because the link is gone or may be another sandbox's.
    `is_absence`: something was not there, which only a survey that is whole proves (I11).
    """

    what: str
    kind: RepairKind | None = None
    is_absence: bool = False


def branch_routes(spec: WiringSpec) -> tuple[BranchRoute, ...]:
    """What the tables of a sandbox with a branch ENI must have, in the order in which the kernel takes it; none of another one."""
    if (branch := spec.branch) is None:
        return ()
    gateway, table = branch.gateway, branch.route_table
    out = BranchRoute(table, gateway, None, branch.link), BranchRoute(table, None, gateway, branch.link)
    to = (BranchRoute(each, spec.address, None, spec.host_veth) for each in strict_tables(branch))
    return (*out, *to) if branch.is_strict else out


def strict_tables(branch: Branch) -> tuple[int, int]:
    """Where a sandbox's own route is in strict mode."""
    return branch.route_table, STRICT_TABLE


def incoming_rules(spec: WiringSpec) -> tuple[IncomingRule, ...]:
    """What must be looked up in the table of a branch whatever its source: in strict mode, what comes by either link."""
    if spec.branch is None or not spec.branch.is_strict:
        return ()
    return tuple(IncomingRule(name, spec.branch.route_table) for name in (spec.branch.link, spec.host_veth))


def vlan_differences(spec: WiringSpec, link: VlanLink | None) -> list[Difference]:
    """Compare the VLAN link. It is the sandbox's if its alias has the address, or if it has none. One that is gone is made again."""
    branch = spec.branch
    if branch is None:
        return []
    who, kind = f"VLAN link {branch.link}", RepairKind.LINK
    if link is None or link.is_dying:
        return [Difference(f"{who} is {'missing' if link is None else 'marked for deletion'}", kind, is_absence=True)]
    if link.address not in (None, spec.address):
        return [Difference(f"{who} is that of {link.address}, not of {spec.address}", kind)]
    alias = encode_link_alias(spec.address, spec.eni_id, branch)
    found = (
        (link.mac == branch.mac, f"has MAC {link.mac}, not {branch.mac}"),
        (link.alias == alias, f"has alias {link.alias!r}, not {alias!r}"),
        (link.is_up, "is down"),
    )
    return [Difference(f"{who} {what}", kind) for is_right, what in found if not is_right]


def _branch_differences(spec: WiringSpec, branch: Branch, survey: KernelSurvey) -> list[Difference]:
    """Compare what leads to a branch ENI; the table is its own, so anything else in it leads elsewhere."""
    found = vlan_differences(spec, next((one for one in survey.vlans if one.name == branch.link), None))
    routes, rules, names = branch_routes(spec), incoming_rules(spec), (branch.link, spec.host_veth)
    missing = [one for one in routes if one not in survey.branch_routes]
    found += [Difference(f"the route {one} is missing", RepairKind.ROUTE, is_absence=True) for one in missing]
    strays = [one for one in survey.branch_routes if one.table == branch.route_table and one not in routes]
    found += [Difference(f"the route {one} leads elsewhere", RepairKind.ROUTE) for one in strays]
    found += [Difference(f"{one} is missing", RepairKind.RULE) for one in rules if one not in survey.incoming_rules]
    others = [one for one in survey.incoming_rules if one.incoming in names and one not in rules]
    return found + [Difference(f"{one} leads elsewhere", RepairKind.RULE) for one in others]


IPV6_OFF = "has IPv6 off (disable_ipv6)"


def veth_differences(spec: WiringSpec, veth: HostVeth | None) -> list[Difference]:
    """Compare the host veth. It is the sandbox's if its alias or its MAC says so: one of both may have been changed."""
    who, mac = f"host link {spec.host_veth}", spec.mac("host")
    if veth is None or veth.is_dying:
        kind = RepairKind.LINK if spec.is_egress and veth is None else None  # one for egress is wired again
        return [Difference(f"{who} is {'missing' if veth is None else 'marked for deletion'}", kind, is_absence=True)]
    has_mac = not mac or veth.mac in (mac, "")
    if veth.kind != "veth":
        return [Difference(f"{who} is of kind {veth.kind or 'hardware'}, not veth")]
    if veth.key is not None and (veth.key, veth.address) != (spec.key, spec.address):
        return [Difference(f"{who} says {veth.key} with {veth.address}, not {spec.key} with {spec.address}")]
    if veth.key is None and not has_mac:
        return [Difference(f"{who} has neither alias nor MAC of {spec.key}: alias {veth.alias!r}, MAC {veth.mac}")]
    found = (
        (veth.name == spec.host_veth, f"is named {veth.name}"),
        (not veth.master, f"is a port of link {veth.master}"),
        (veth.alias == spec.alias, f"has alias {veth.alias!r}, not {spec.alias!r}"),
        (has_mac, f"has MAC {veth.mac}, not {mac}"),
        (not spec.is_mtu_known or veth.mtu in (spec.mtu, 0), f"has MTU {veth.mtu}, not {spec.mtu}"),
        (veth.is_up, "is down"),
        (veth.has_ipv6 is not False or family_of(spec.address) is not IPV6, IPV6_OFF),
    )
    return [Difference(f"{who} {what}", RepairKind.LINK) for is_right, what in found if not is_right]


def wiring_differences(spec: WiringSpec, survey: KernelSurvey) -> list[Difference]:
    """Compare host veths, routes and rules of a sandbox with what a survey shows."""
    return [difference for link in spec.links for difference in _link_differences(link, survey)]


def _link_differences(spec: WiringSpec, survey: KernelSurvey) -> list[Difference]:
    veth = survey.veth_of(spec)
    found, address = veth_differences(spec, veth), spec.address
    if spec.branch:
        found += _branch_differences(spec, spec.branch, survey)
        if spec.branch.is_strict:
            return found
    tables = survey.from_rules.get(address, ())
    looked_up = [(survey.routes, "")]
    if address not in survey.to_rules:  # with one, main decides: amazon-vpc-cni-k8s wires so, and an earlier release of ours did
        looked_up.append((survey.own_routes, f" table {OWN_TABLE}"))
        if not survey.has_own_rule:
            found.append(Difference(f"{OWN_RULE} is missing", RepairKind.RULE))
    for devices, where in looked_up:
        device = devices.get(address)
        if device is None:
            what = f"the route {address} dev {spec.host_veth}{where} is missing on the host"
            found.append(Difference(what, RepairKind.ROUTE, is_absence=True))
        elif device != spec.host_veth:
            found.append(
                Difference(f"{address} is routed through {device}, not through {spec.host_veth}{where}", RepairKind.ROUTE)
            )
    tables += survey.tables_from_prefix(address)
    from_words = f"rule {FROM_SANDBOX_PRIORITY} from {address}"
    if spec.route_table not in (MAIN_TABLE, *tables):
        found.append(Difference(f"{from_words} lookup {spec.route_table} is missing", RepairKind.RULE))
    return found + [
        Difference(f"{from_words} looks up table {table}, not {spec.route_table}", RepairKind.RULE)
        for table in dict.fromkeys(tables)
        if table != spec.route_table
    ]
