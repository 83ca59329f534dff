"""Values read from the kernel about our wiring in the host's namespace: a survey of all wiring, and notifications of changes. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from ipamd.model.family import IpAddress, IpNetwork, family_of
from ipamd.model.ids import AttachmentKey, EniId, MacAddress
from ipamd.model.kernel_numbers import INCOMING_PRIORITY
from ipamd.model.pod_snat import PodSnat
from ipamd.model.record import dataclass, field
from ipamd.model.source_rules import RulePlace
from ipamd.model.uplink import Uplink


@dataclass(frozen=True, slots=True)
class HostVeth:
    """A host veth with our alias, our name prefix or a name of strict mode, or any veth that is about to be deleted with ours.

    is_dying: whether it is in the link group that is about to be deleted.
    key, address: the sandbox and the address in its alias; None without an alias of ours.
    mac: the MAC of the veth; "" if it was not read.
    mtu: the MTU in bytes; 0 if it was not read.
    kind: the kernel's name of the kind of link; a link of another kind than `veth` is not ours.
    master: the index of a bridge or other link that takes its packets; 0 if there is no such link.
    is_extra: whether it belongs to an extra leg of the sandbox.
    has_uplink: whether the sandbox has an uplink, so that its address is in no pool.
    has_ipv6: whether IPv6 is on; None if the kernel did not report it.
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
    is_extra: bool = False
    has_uplink: bool = False
    has_ipv6: bool | None = None

    @property
    def is_first(self) -> bool:
        """Whether it belongs to a sandbox's first leg, by which the sandbox has the pod's address."""
        return not self.is_extra

    @property
    def is_of_pool(self) -> bool:
        """Whether its address is one of a pool."""
        return not self.has_uplink


@dataclass(frozen=True, slots=True)
class VlanLink:
    """A link whose name has the form that we and amazon-vpc-cni-k8s give to the VLAN links of uplinks.

    `vlan`: the VLAN ID in its name.
    `parent`: the index of the link that carries its frames; this must be the trunk ENI's link.
    `parent_mac`: the MAC of the link with index `parent`; "" if it was not read.
    `is_dying`: whether it is in the link group that is about to be deleted.
    `impostor_why`: why it cannot be the link that its name claims, whatever its MAC and alias are; "" if it can. A sandbox with
        NET_ADMIN can make links of any name, MAC and alias on the node.
    `address`, `eni_id`, `uplink`: from the alias; None or "" without an alias of ours. A link that we are making has no alias yet, and
        is recognised by its link group: it has an `uplink` and no address.
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
    uplink: Uplink | None = None
    parent_mac: str = ""
    impostor_why: str = ""


END_METRIC = 2**32 - 1
"""Metric of the route `unreachable default` at the end of an uplink's table. Ours: the largest metric that a route can have, so the
kernel prefers any other default route of the table."""


class UplinkRoute(NamedTuple):
    """A route in the table of an uplink.

    destination: one address, or a network; None: the default route.
    via: the next hop; None if the destination is on the link.
    device: the name of the link; for a link that is neither a veth nor an uplink's, `link` and its index.
    is_end: whether it is `unreachable default` with END_METRIC, which has no device.
    """

    table: int
    destination: IpAddress | IpNetwork | None
    via: IpAddress | None
    device: str
    is_end: bool = False

    def __str__(self) -> str:
        if self.is_end:
            return f"unreachable default metric {END_METRIC} table {self.table}"
        via = f" via {self.via}" if self.via else ""
        return f"{self.destination or 'default'}{via} dev {self.device} table {self.table}"


class IncomingRule(NamedTuple):
    """A rule by which packets that arrive by the link `incoming` are looked up in the route table `table`."""

    incoming: str
    table: int

    def __str__(self) -> str:
        return f"rule {INCOMING_PRIORITY} iif {self.incoming} lookup {self.table}"


@dataclass(frozen=True)
class KernelSurvey:
    """All our links, routes and rules in the host's namespace, as one survey found them. Tables and priorities: `kernel_numbers.py`.

    veths: the host veths of the first legs (*first host veths*) of sandboxes with an address of a pool.
    uplinked: the first host veths of sandboxes with an uplink.
    extra: the host veths of extra legs.
    vlans: the links with names of uplinks.
    routes: the routes to single addresses in the main table: address -> name of the link (as `UplinkRoute.device`), and the next hop
        if the route has one.
    own_routes: the routes to single addresses in `OWN_TABLE`, in the same form.
    has_own_rule: whether the rule to `OWN_TABLE` exists in every family that was read.
    to_rules: the addresses with a rule of their own to the main table (TO_SANDBOX_PRIORITY).
    from_rules: address -> the tables of the rules for packets from the address, at FROM_SANDBOX_PRIORITY or in a bucket.
    rule_places: address -> priority and table of each of these rules (`source_rules.py`).
    from_prefixes: delegated prefix -> the tables of the rules for packets from the prefix.
    uplink_routes: the routes in the tables of uplinks, and in `STRICT_TABLE`.
    incoming_rules: the rules for packets that arrive by a certain link (INCOMING_PRIORITY).
    snat: the SNAT choices of sandboxes that our nftables sets have, by address; None if the sets were not read.
    is_whole: whether every dump was complete. Only then an object that the survey lacks was not there (I11).
    """

    veths: tuple[HostVeth, ...]
    routes: dict[IpAddress, str]
    to_rules: frozenset[IpAddress]
    from_rules: dict[IpAddress, tuple[int, ...]]
    is_whole: bool = True
    own_routes: dict[IpAddress, str] = field(default_factory=dict)
    has_own_rule: bool = False
    from_prefixes: dict[IpNetwork, tuple[int, ...]] = field(default_factory=dict)
    extra: tuple[HostVeth, ...] = ()
    uplinked: tuple[HostVeth, ...] = ()
    vlans: tuple[VlanLink, ...] = ()
    uplink_routes: frozenset[UplinkRoute] = frozenset()
    incoming_rules: frozenset[IncomingRule] = frozenset()
    snat: Mapping[IpAddress, PodSnat] | None = None
    rule_places: Mapping[IpAddress, tuple[RulePlace, ...]] = field(default_factory=dict)

    @property
    def firsts(self) -> tuple[HostVeth, ...]:
        """The first host veths of all sandboxes: those with a pool address, and those with an uplink."""
        return (*self.veths, *self.uplinked)

    @property
    def trace(self) -> str:
        """Name one link that only a daemon of ours can have made: a host veth or a VLAN link with our alias or in a link group of
        ours; "" if there is none.
        """
        for veth in self.host_veths:
            if veth.key is not None or veth.is_dying:
                return f"link {veth.name}"
        return next((f"link {link.name}" for link in self.vlans if link.uplink is not None), "")

    @property
    def living_names(self) -> set[str]:
        """Names of the first host veths that are not being deleted."""
        return {veth.name for veth in self.firsts if not veth.is_dying}

    def vlan_of(self, address: IpAddress | None) -> VlanLink | None:
        """Return the VLAN link whose alias contains an address. A dying link, or one that cannot be an uplink (`impostor_why`), is
        skipped.

        Returns: None if there is none.
        """
        for link in self.vlans:
            if address and link.address == address and not (link.is_dying or link.impostor_why):
                return link
        return None

    def chosen_snat(self, address: IpAddress) -> PodSnat | None:
        """Return the SNAT choice of an address by our nftables sets; None if no set contains it, or the sets were not read."""
        if self.snat is None:
            return None
        return self.snat.get(address)

    @property
    def host_veths(self) -> tuple[HostVeth, ...]:
        """The host veths of all legs."""
        return (*self.firsts, *self.extra)

    def uplink_of(self, veth: HostVeth) -> VlanLink | None:
        """Return the uplink that belongs to a host veth: the VLAN link whose alias has the same address as the veth's alias.

        Returns: None if there is none.
        """
        if veth.has_uplink:
            return self.vlan_of(veth.address)
        return None

    @cached_property
    def _named(self) -> Mapping[tuple[str | AttachmentKey | None, bool], list[HostVeth]]:
        """An index of the host veths, with the keys (name, is first leg) and (attachment key, is first leg).

        Without it, finding the veths of all sandboxes would take time that grows with the square of the number of sandboxes.
        """
        named = defaultdict[tuple[str | AttachmentKey | None, bool], list[HostVeth]](list)
        for veth in self.host_veths:
            named[veth.name, veth.is_first].append(veth)
            named[veth.key, veth.is_first].append(veth)
        return named

    def extras_of(self, key: AttachmentKey) -> list[HostVeth]:
        """Return those host veths of a sandbox's extra legs through which the address in their alias is routed.

        A sandbox can forge the link, but not a route. A route in either the main table or `OWN_TABLE` is enough, because other
        software may have deleted the route in the other table.
        """
        extras = []
        for veth in self._named[key, False]:
            if veth.is_dying or not veth.address:
                continue
            if veth.name in (self.routes.get(veth.address), self.own_routes.get(veth.address)):
                extras.append(veth)
        return extras

    def tables_from_prefix(self, address: IpAddress) -> tuple[int, ...]:
        """Return the tables that rules for the delegated prefix around an address look up (FROM_SANDBOX_PRIORITY)."""
        family = family_of(address)
        return self.from_prefixes.get(family.network((address, family.prefix_length), strict=False), ())

    def find_veth(self, name: str, key: AttachmentKey, *, extra_address: IpAddress | None) -> HostVeth | None:
        """Return the host veth of a leg by its name, if possible one that is not dying; if no veth has the name, find it by its alias.

        `extra_address`: the address of the extra leg, because a sandbox may have several; None for the first leg.
        """
        is_first = extra_address is None
        by_key = [veth for veth in self._named[key, is_first] if is_first or veth.address == extra_address]
        ours = self._named[name, is_first] + by_key
        return min(ours, key=lambda veth: (veth.name != name, veth.is_dying), default=None)

    def vlan_named(self, name: str) -> VlanLink | None:
        """Return the VLAN link with a name; None if there is none."""
        return next((link for link in self.vlans if link.name == name), None)


def stray_rules(survey: KernelSurvey, subnets: Iterable[IpNetwork]) -> frozenset[IpAddress]:
    """Return the addresses in our subnets that have a rule of ours, but neither a route nor a veth. Their rules are leftovers.

    Rules of other software that uses the same priorities are not among them, because that software has a route for each address.
    """
    networks = tuple(subnets)
    with_rule = {*survey.to_rules, *survey.from_rules}
    with_veth = {veth.address for veth in survey.firsts}
    strays = set[IpAddress]()
    for address in with_rule - survey.routes.keys() - with_veth:
        if any(address in network for network in networks):
            strays.add(address)
    return frozenset(strays)


@dataclass(frozen=True, slots=True)
class ForeignLink:
    """A link of the host that is not ours and leads into the namespace of a sandbox.

    `key`: the sandbox.
    `is_in_use`: whether a route of the host leads through the link, or the link is a port of a bridge or of another link. Not known,
        and therefore False, for a link that looks like a host veth of ours.
    """

    name: str
    index: int
    key: AttachmentKey
    is_in_use: bool

    def __str__(self) -> str:
        return f"{self.name} leads into {self.key}"


class LinkEventKind(StrEnum):
    """Kind of a link notification.

    OPENED: the subscription is open.
    GONE: the link was deleted, or moved to another namespace.
    SEEN: the link appeared or changed; it may have gone down.
    MISSED: notifications were lost.
    After OPENED and MISSED every link must be read again.
    """

    OPENED = "opened"
    GONE = "gone"
    SEEN = "seen"
    MISSED = "missed"


_EVERY = MacAddress("")


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """One notification about a link that may be an ENI's. `mac`: its MAC; empty for OPENED and MISSED, which concern every link."""

    kind: LinkEventKind
    mac: MacAddress = _EVERY


class ChangeKind(StrEnum):
    """The kind of object that changed on the host.

    LINK: a host veth of ours, or the link of an ENI.
    OTHER_LINK: a virtual link that is not a host veth of ours. A change of an uplink is announced as VLAN_LINK, and then as this.
    VETH_GONE: a host veth of ours that was deleted.
    VLAN_LINK: a link whose name has the form of an uplink's.
    ADDRESS, ROUTE, RULE, SYSCTL, NFT: an address, a route, a rule, a sysctl, or nftables.
    MISSED: unknown, because notifications were lost.
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
    """A change of the host's networking. Changes that this daemon's own wiring makes are left out if they can be recognised.

    `veth`: with LINK, the host veth after the change; None for an ENI's link.
    `vlan`: with VLAN_LINK, the VLAN link after the change; with `is_gone`, as it was last.
    `address`, `length`: an interface's address, a route's destination, or a rule's selector, with its prefix length.
    `table`: the table of a route or a rule.
    `priority`: the priority of a rule.
    `is_gone`: whether a route or a VLAN link was removed.
    `process`: the process that changed nftables, by name and ID as the kernel reports them; "" if the kernel reports no name, or if it
        is the name of this process.
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


DROP_REASONS = (
    "source",
    "redirect",
    "loopback",
    "ipv6",
    "ipv4",
    "returned",
    "arp",
    "foreign",
    "listening",
    "discovery",
    "multicast",
)
"""The reasons why our rules drop a packet of a sandbox:

- source: its source address is not one of the sandbox's.
- redirect: it is an ICMP redirect or a router advertisement.
- loopback: its destination is the node's loopback.
- ipv6, ipv4: it is of the IP family that sandboxes do not have.
- returned: the VPC sent it back to this node, because its destination is an address of this node that no sandbox has.
- arp: it is an ARP request.
- foreign: it came, by a link of other software, from a source address that is routed elsewhere. With
  VPC_IPAMD_FOREIGN_LINK_POLICY=drop every packet that comes by a link of other software is dropped.
- listening, discovery: it is a message of multicast listener discovery, or of router or neighbour discovery. Every healthy IPv6
  sandbox sends such messages.
- multicast: in strict mode, its destination is a multicast group, the IPv4 broadcast address, or an IPv6 link-local address.
"""


def duplicate_addresses(survey: KernelSurvey) -> dict[IpAddress, tuple[HostVeth, ...]]:
    """Find every address that the aliases of more than one live first host veth contain. Returns: address -> the veths, ascending
    (I1).

    Such an address is not assigned again: it stays with the recorded sandbox, or in quarantine until only one veth is left.
    """
    carriers: dict[IpAddress, tuple[HostVeth, ...]] = {}
    for veth in survey.firsts:
        if veth.address is not None and not veth.is_dying:
            carriers[veth.address] = (*carriers.get(veth.address, ()), veth)
    return dict(sorted((address, veths) for address, veths in carriers.items() if len(veths) > 1))
