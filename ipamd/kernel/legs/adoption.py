"""Take over the legs of sandboxes that amazon-vpc-cni-k8s wired: write our aliases on their links, and make their neighbour entries
permanent.

Meanwhile packets pass as before. Only a link for egress is down for a moment while it is renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from ipamd.kernel import answers, checks, messages, sandbox_repair, survey, uapi, wiring_messages
from ipamd.kernel.legs import branch_messages, uplink_survey
from ipamd.kernel.netlink import Message, NetlinkSocket
from ipamd.kernel.netns import HostNetns, opened_netns
from ipamd.model.attachment import IMPORTED_TAG, WiringSpec, encode_alias
from ipamd.model.eni import MAIN_TABLE
from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IPV6, Family, IpAddress, family_of
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.kernel import HostVeth, VlanLink
from ipamd.model.legs import BranchLeg, EgressLeg, Leg, decode_first_alias
from ipamd.model.record import replace
from ipamd.model.uplink import Uplink
from ipamd.ports.kernel import VlanLinks
from ipamd.ports.leg_adoption import LegAdoption


class Rename(Protocol):
    """Renames the host veth of a leg. Raises: WiringError."""

    def __call__(self, host: NetlinkSocket, leg: Leg, *, former_name: str, to: str) -> None: ...


class KernelAdoption(LegAdoption):
    """Implements `LegAdoption` by netlink. Concurrency: as `KernelWiring`."""

    def __init__(self, host: HostNetns, *, ipv4_conf: Mapping[int, int], vlan_links: VlanLinks | None, rename: Rename) -> None:
        """`ipv4_conf`: the settings of a host veth (`devconf.host_veth`)."""
        self._host = host
        self._ipv4_conf = ipv4_conf
        self._vlan_links = vlan_links
        self._rename = rename

    def stamp(self, veth: HostVeth, *, key: AttachmentKey, address: IpAddress) -> HostVeth:
        with self._host.netlink() as host:
            link = checks.find_link(host, veth.ifindex)
            if (
                link is None
                or link.kind != uapi.VETH_KIND
                or link.name != veth.name
                or decode_first_alias(link.alias) is not None
            ):
                raise failure(WiringError, FailureCode.LINK_CHANGED, link=veth.name)
            alias = encode_alias(key, address, tag=IMPORTED_TAG)
            host.carry_out(self._adoption(host, link, alias, address), operation=f"adoption of {link.name}")
        return replace(veth, alias=alias, key=key, address=address)

    def _adoption(self, host: NetlinkSocket, link: answers.Link, alias: str, address: IpAddress) -> list[Message]:
        """Return the messages that give a host veth its alias and IPv4 settings, and with IPv6 a permanent neighbour entry.

        If the kernel does not report the MAC of the other end, no entry is added.
        """
        batch = [messages.change_link(link.index, step=f"name {link.name}", alias=alias, ipv4_conf=self._ipv4_conf)]
        if family_of(address) is IPV6:
            mac = checks.mac_inside(host, link)
            if mac:
                batch.append(messages.add_neighbour(link.index, address, mac=mac))
        return batch

    def stamp_uplinked(
        self, veth: HostVeth, link: VlanLink, *, key: AttachmentKey, address: IpAddress, uplink: Uplink, eni_id: EniId
    ) -> tuple[HostVeth, VlanLink]:
        spec = WiringSpec(key, address, uplink.route_table, veth.name, "", 0, uplink=uplink, eni_id=eni_id)
        leg = BranchLeg(spec)
        with self._host.netlink() as host:
            host_veth = _same_unmarked_veth(host, veth)
            vlan = self._same_unmarked_vlan(host, link)
            if host_veth is None or vlan is None:
                raise failure(WiringError, FailureCode.LINKS_CHANGED, link=veth.name, uplink=link.name)
            # In one send, because a VLAN link that has our alias while its host veth has none would be removed as a leftover.
            batch = [branch_messages.naming(leg, vlan.index), *self._adoption(host, host_veth, leg.alias, address)]
            host.carry_out(batch, operation=f"adoption of {host_veth.name}")
        return (
            replace(veth, alias=leg.alias, key=key, address=address, has_uplink=True),
            replace(link, alias=leg.uplink_alias, address=address, eni_id=eni_id, uplink=uplink),
        )

    def _same_unmarked_vlan(self, host: NetlinkSocket, seen: VlanLink) -> answers.Link | None:
        """Read a VLAN link again; None if it is gone, can no longer be the uplink, or has an alias of ours by now."""
        link = checks.find_link(host, seen.ifindex)
        vlan = uplink_survey.vlan_link(link, self._vlan_links) if link else None
        if vlan is None or vlan.impostor_why or vlan.name != seen.name or vlan.address is not None:
            return None
        return link

    def extra_links(self, firsts: Iterable[HostVeth], *, family: Family) -> Mapping[str, int]:
        names = {veth.ifindex: veth.name for veth in firsts}
        indexes: dict[str, int] = {}
        with self._host.netlink() as host:
            links = survey.links_of(host) if names else []
            first_names = _names_by_namespace(links, names)
            for link in links:
                if link.netnsid not in first_names or link.index in names:
                    continue
                inside = checks.link_inside(host, link)
                if inside is not None and inside.name == family.local_range.ifname:
                    indexes[first_names[link.netnsid]] = link.index
        return indexes

    def adopt_extra(
        self, index: int, *, first: HostVeth, key: AttachmentKey, family: Family, recorded_address: IpAddress | None
    ) -> HostVeth:
        with self._host.netlink() as host:
            link = checks.find_link(host, index)
            inside = None if link is None else checks.link_inside(host, link)
            if link is None or inside is None:
                raise failure(WiringError, FailureCode.OTHER_LINK_CHANGED, index=index, sandbox=key)
            routed_address = _routed_extra_address(host, index, family)
            address = routed_address or recorded_address
            owner = survey.host_veth(link).key
            if address is None or owner not in (None, key):
                why = "its address is not known" if address is None else f"it is the link of {owner}"
                raise failure(WiringError, FailureCode.OTHER_LINK_NOT_TAKEN, link=link.name, sandbox=key, cause=why)
            self._fix_neighbours(host, link, inside, address)
            leg = EgressLeg(WiringSpec(key, address, MAIN_TABLE, first.name, "", 0, other_address=address))
            batch = [messages.change_link(index, step=f"name {link.name}", alias=leg.alias, ipv4_conf=self._ipv4_conf)]
            if not routed_address:
                batch.append(sandbox_repair.wiring_route(address, index, link.name, table=uapi.RT_TABLE_MAIN))
            host.carry_out(batch, operation=f"adoption of {link.name}")
            if link.name != leg.host_veth:
                self._rename(host, leg, former_name=link.name, to=leg.host_veth)
        return survey.host_veth(replace(link, name=leg.host_veth, alias=leg.alias))

    def _fix_neighbours(self, host: NetlinkSocket, link: answers.Link, inside: answers.Link, address: IpAddress) -> None:
        """Make the neighbour entries at both ends of a link permanent, because our tables drop neighbour discovery of sandboxes.

        The program that made the link did not make such entries. Raises: WiringError.

        Args:
            link: the host's end.
            inside: the sandbox's end.
            address: of the sandbox.
        """
        directory = wiring_messages.NETNS_DIRECTORY
        for path in map(str, directory.iterdir()):
            if survey.namespace_number(host, path) == link.netnsid:
                break
        else:
            raise failure(WiringError, FailureCode.LINK_NAMESPACE_UNKNOWN, link=link.name, directory=directory)
        family, operation = family_of(address), f"adoption of {link.name}"
        with opened_netns(path) as (netns, _), self._host.sandbox_netlink(netns) as sandbox:
            (outcome,) = sandbox.request([messages.match_route(family.outside, index=inside.index)])
            via = answers.read_route(outcome.replies[0]).via if outcome.replies else None
            gateway = via or family.local_range.gateway  # with IPv6 the next hop is the host end's own link-local address
            sandbox.carry_out([messages.add_neighbour(inside.index, gateway, mac=link.mac)], operation=operation)
        host.carry_out([messages.add_neighbour(link.index, address, mac=inside.mac)], operation=operation)


def _same_unmarked_veth(host: NetlinkSocket, veth: HostVeth) -> answers.Link | None:
    """Read a host veth again by its index; None if it is gone, has another name, or has an alias of ours by now."""
    link = checks.find_link(host, veth.ifindex)
    if link is None or link.name != veth.name or survey.host_veth(link).key is not None:
        return None
    return link


def _names_by_namespace(links: Iterable[answers.Link], names: Mapping[int, str]) -> dict[bytes, str]:
    """Return the name of the link that leads into each namespace, by the namespace's number.

    `names`: names of the host veths of first legs, by link index. Other links are ignored.
    """
    return {link.netnsid: names[link.index] for link in links if link.netnsid and link.index in names}


def _routed_extra_address(host: NetlinkSocket, index: int, family: Family) -> IpAddress | None:
    """Return the egress address of an extra leg, which table main routes through the link `index`; None if there is no such route."""
    for route in survey.routes_of(host, table=uapi.RT_TABLE_MAIN, index=index, family=family):
        if route.destination in family.local_range.addresses():
            return route.destination
    return None
