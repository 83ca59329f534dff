"""The kernel, for a migration: make legs ours whose sandboxes amazon-vpc-cni-k8s wired."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from ipamd.model.family import Family, IpAddress
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.kernel import HostVeth, VlanLink
from ipamd.model.uplink import Uplink


class LegAdoption(Protocol):
    """Writes our aliases on links of amazon-vpc-cni-k8s. Every method can be repeated."""

    def stamp(self, veth: HostVeth, *, key: AttachmentKey, address: IpAddress) -> HostVeth:
        """Write our alias on a host veth that amazon-vpc-cni-k8s made. Packets go the same way as before.

        Returns: the veth as it is now. Raises: WiringError, also if another link has the name by now, or if an alias of ours with a
        sandbox is on the link already.
        """

    def stamp_uplinked(
        self, veth: HostVeth, link: VlanLink, *, key: AttachmentKey, address: IpAddress, uplink: Uplink, eni_id: EniId
    ) -> tuple[HostVeth, VlanLink]:
        """Write our alias on the host veth and on the VLAN link of a sandbox with a branch ENI.

        `uplink`: the sandbox's connection to that ENI, as the kernel shows it.
        Returns: both links as they are now. Raises: WiringError, as `stamp`.
        """

    def extra_links(self, firsts: Iterable[HostVeth], *, family: Family) -> Mapping[str, int]:
        """Find the extra links by which amazon-vpc-cni-k8s gives sandboxes a second address, of `family`.

        Returns: the index of each extra link, by the name of the first host veth of the same sandbox.
        Raises: WiringError, KernelDumpError.
        """

    def adopt_extra(
        self, index: int, *, first: HostVeth, key: AttachmentKey, family: Family, recorded_address: IpAddress | None
    ) -> HostVeth:
        """Make an extra link (`extra_links`) ours: set fixed neighbours at both ends, alias and name. The link is down for a moment.

        `recorded_address`: the link's address in a file of amazon-vpc-cni-k8s; it is used if no route leads to the link.
        Returns: the link as it is now. Raises: WiringError, KernelDumpError.
        """
