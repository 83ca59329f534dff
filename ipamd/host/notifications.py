"""Decide which of the kernel's notifications may need a repair, and so a pass of `network.py`. Most notifications are about our own
ADDs and need no pass.

Each notification is compared with the datastore's rows, in memory. If the comparison wrongly finds no need, the next pass by the clock
finds the change.
"""

from __future__ import annotations

from collections.abc import Sequence

from ipamd.host.triggers import PassScope
from ipamd.model import kernel_numbers
from ipamd.model.attachment import Attachment
from ipamd.model.cniresult import recorded_spec
from ipamd.model.eni import Eni
from ipamd.model.family import IpAddress, family_of
from ipamd.model.kernel import ChangeKind, HostChange
from ipamd.model.legs import addresses_of, first_leg, host_veths, legs_of, may_be_extra, may_be_uplink_table
from ipamd.model.legs.comparison import veth_differences
from ipamd.ports.datastore import Datastore


def scope_of(change: HostChange, datastore: Datastore) -> PassScope | None:
    """Return the scope of the pass that a change needs; None if it needs none. From any thread."""
    match change.kind:
        case ChangeKind.NFT:
            return PassScope.CHECK
        case ChangeKind.VETH_GONE:  # most are removed by our own DELs; the next pass by the clock finds the others
            is_ours = False
        case ChangeKind.SYSCTL | ChangeKind.MISSED:
            is_ours = True
        case ChangeKind.OTHER_LINK:
            return PassScope.LINKS
        case ChangeKind.LINK:
            is_ours = _is_link_damaged(change, datastore)
        case ChangeKind.VLAN_LINK:
            is_ours = _is_vlan_damaged(change, datastore)
        case _:
            is_ours = _concerns_us(change, datastore)
    if is_ours:
        return PassScope.EVERYTHING
    return None


def _is_link_damaged(change: HostChange, datastore: Datastore) -> bool:
    """Whether a veth differs from the one that is recorded for its sandbox. False for a veth of no recorded sandbox."""
    veth = change.veth
    if veth is None:
        return True
    if veth.is_dying:
        return False
    # An ADD writes the alias of its veth before its row is stored, so an alias without a row is not damage.
    attachment = datastore.attachment(veth.key) if veth.key is not None else _attachment_of_veth_name(veth.name, datastore)
    if attachment is None:
        return False
    for leg in legs_of(recorded_spec(attachment)):
        if leg.is_first is veth.is_first:
            return veth.name != leg.host_veth or bool(veth_differences(leg, veth))
    return False  # the record has no such extra leg: the sandbox may have made the link itself


def _attachment_of_veth_name(name: str, datastore: Datastore) -> Attachment | None:
    """Find by its name the attachment of a veth without our alias; None if no attachment has a host veth of this name."""
    for attachment in datastore.attachments():
        if name in host_veths(attachment):
            return attachment
    return None


def _is_vlan_damaged(change: HostChange, datastore: Datastore) -> bool:
    """Whether a VLAN link differs from the one that is recorded for its sandbox, or is gone."""
    link = change.vlan
    if link is None or link.is_dying:  # a DEL marks the link while its row still exists, and that is not damage
        return False
    present = None if change.is_gone else link
    # A link that no row has is not compared: the ADD that makes it stores its row afterwards.
    for attachment in datastore.attachments():
        for leg in legs_of(recorded_spec(attachment)):
            if leg.uplink and leg.uplink.link == link.name and leg.uplink_differences(present):
                return True
    return False


def _concerns_us(change: HostChange, datastore: Datastore) -> bool:
    """Whether a change of an address, a route or a rule concerns addresses, subnets, tables or priorities of ours."""
    address = change.address
    if address is not None:
        row = datastore.address(address)
        if row is not None:
            # The kernel announces the removal of an IPv6 route that it removes with its link. After a DEL this needs no pass.
            is_of_del = change.is_gone and change.length == address.max_prefixlen
            return row.is_in_use or not is_of_del
        if may_be_extra(address):
            return not change.is_gone or _is_extra_address(address, datastore)
    return _concerns_routing(change, datastore)


def _concerns_routing(change: HostChange, datastore: Datastore) -> bool:
    """Whether a change concerns a route table, subnet or rule priority of ours. The caller has handled changes of sandboxes'
    addresses.
    """
    address = change.address
    if _is_uplink_table(change.table, datastore):
        return True
    enis = datastore.enis()
    if change.kind is ChangeKind.ADDRESS:
        return address is not None and any(address in eni.subnet_cidr for eni in enis)
    if _is_eni_table(change.table, enis) or address is None:
        return True
    if change.kind is ChangeKind.RULE:
        return _may_divert_ours(change, address, enis)
    return any(address == eni.subnet_cidr.network_address for eni in enis)


def _is_extra_address(address: IpAddress, datastore: Datastore) -> bool:
    """Whether a sandbox has this address, for example at an extra leg."""
    return any(address in addresses_of(attachment) for attachment in datastore.attachments())


def _is_uplink_table(table: int, datastore: Datastore) -> bool:
    """Whether a route table is the table of a sandbox's uplink, or a table that all uplinks share."""
    if not may_be_uplink_table(table):
        return False
    return any(table in first_leg(attachment.wiring).uplink_tables for attachment in datastore.attachments())


def _is_eni_table(table: int, enis: Sequence[Eni]) -> bool:
    """Whether a route table is the table of a secondary ENI."""
    return any(table == eni.route_table and not eni.is_primary for eni in enis)


def _may_divert_ours(change: HostChange, address: IpAddress, enis: Sequence[Eni]) -> bool:
    """Whether a rule may select packets of sandboxes or ENIs. It would divert them if it is ahead of our rules."""
    family = family_of(address)
    selected = family.network((address, change.length), strict=False)
    if family.is_sparse:  # no IPv6 rule of ours selects by a network, so each rule counts; an IPv6 node has few rules
        return True
    if change.priority == kernel_numbers.EXTERNAL_SERVICE_PRIORITY:
        return True
    return any(selected.overlaps(eni.subnet_cidr) for eni in enis)
