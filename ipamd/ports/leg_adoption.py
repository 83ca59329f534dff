"""The kernel's part of a migration: write our aliases on the links of sandboxes that amazon-vpc-cni-k8s wired."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from ipamd.model.family import Family, IpAddress
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.kernel import HostVeth, VlanLink
from ipamd.model.uplink import Uplink


class LegAdoption(Protocol):
    """Writes our aliases on links of amazon-vpc-cni-k8s. `extra_links` and `adopt_extra` can be repeated; the other methods refuse a
    link that has our alias already.
    """

    def stamp(self, veth: HostVeth, *, key: AttachmentKey, address: IpAddress) -> HostVeth:
        """Write our alias, with `key` and `address`, on a host veth that amazon-vpc-cni-k8s made. Packets go the same way as before.

        The veth also gets the IPv4 settings of our host veths and, with IPv6, a permanent neighbour.

        Returns: the veth with the alias. Raises: WiringError if the kernel refuses, if the link is gone or has another name by now, or
        if it already has an alias of ours that names a sandbox.
        """

    def stamp_uplinked(
        self, veth: HostVeth, link: VlanLink, *, key: AttachmentKey, address: IpAddress, uplink: Uplink, eni_id: EniId
    ) -> tuple[HostVeth, VlanLink]:
        """Write our alias on the host veth and on the VLAN link of a sandbox with a branch ENI.

        `uplink`: the sandbox's connection to its branch ENI, as the kernel shows it.
        Returns: both links with the aliases. Raises: WiringError in the same cases as `stamp`, for either link, and if the VLAN link
        cannot be the uplink that its name claims.
        """

    def extra_links(self, firsts: Iterable[HostVeth], *, family: Family) -> Mapping[str, int]:
        """Find the extra links by which amazon-vpc-cni-k8s gives sandboxes a second address, of `family`.

        Returns: name of the first host veth of a sandbox -> index of the sandbox's extra link.
        Raises: WiringError, KernelDumpError.
        """

    def adopt_extra(
        self, index: int, *, first: HostVeth, key: AttachmentKey, family: Family, recorded_address: IpAddress | None
    ) -> HostVeth:
        """Take over an extra link (`extra_links`): set permanent neighbours at both ends, our settings, our alias and our name. If
        no route leads to its address, add one.

        If the link gets another name, it is down for a moment.

        Args:
            index: the index of the extra link.
            first: the first host veth of the same sandbox.
            family: the family of the link's address.
            recorded_address: the link's address in a file of amazon-vpc-cni-k8s, or None; it is used if no route leads to the link.
        Returns: the link after the change. Raises: WiringError, also if the link's address is not known, or if its alias names another
        sandbox; KernelDumpError.
        """
