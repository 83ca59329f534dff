"""The kernel, for a migration: make the legs of sandboxes ours that amazon-vpc-cni-k8s wired."""

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
        """Write our alias on a host veth that amazon-vpc-cni-k8s made; nothing that carries packets changes.

        Returns: the veth as it is now. Raises: WiringError, also if it is another link by now, or has an identity already.
        """

    def stamp_uplinked(
        self, veth: HostVeth, link: VlanLink, *, key: AttachmentKey, address: IpAddress, uplink: Uplink, eni_id: EniId
    ) -> tuple[HostVeth, VlanLink]:
        """Do the same with a host veth that leads to an uplink, and with the uplink's link.

        `uplink`: how the sandbox is connected to it, by the kernel.

        Returns: both as they are now. Raises: WiringError, as `stamp`.
        """

    def extra_links(self, firsts: Iterable[HostVeth], *, family: Family) -> Mapping[str, int]:
        """Return the extra links by which amazon-vpc-cni-k8s gives sandboxes an address of `family` beside that of the pool.

        `firsts`: the host veths with the addresses of the pool. Returns: the index of the extra link, by the name of the sandbox's
        first host veth.

        Raises: WiringError, KernelDumpError.
        """

    def adopt_extra(
        self, index: int, *, first: HostVeth, key: AttachmentKey, family: Family, recorded_address: IpAddress | None
    ) -> HostVeth:
        """Make such a link one of ours: fixed neighbours at both ends, alias, name. The link is down briefly; can be repeated.

        `recorded_address`: the address that a file of amazon-vpc-cni-k8s has, for a link to which no route leads.
        Returns: the link as it is now. Raises: WiringError, KernelDumpError.
        """
