"""Rebuild the record of a sandbox's wiring from the links that the kernel shows, so that a sandbox whose row was lost is recorded
again.

The alias of the first host veth has the sandbox's key and its address. The remaining facts depend on the kind of leg. For a leg with
an address of the pool they are in the row of the address, and for a leg with an uplink in the alias of the uplink. `QuarantineService`
decides whether a sandbox is adopted at all. This module only refuses a sandbox that contradicts other sandboxes or other facts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ipamd.model.attachment import WiringSpec, is_imported_alias, sandbox_mac
from ipamd.model.ids import AttachmentKey, MacAddress
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.legs import with_seen_extra
from ipamd.model.legs.branch_eni import Branch
from ipamd.model.legs.conflict import branch_conflict
from ipamd.model.record import replace
from ipamd.ports.datastore import Datastore


class LegAdopter(Protocol):
    """Adopts the sandboxes with one kind of first leg."""

    why_without_row: str
    """Why a sandbox of this kind may have no row of its address, for people."""

    def wiring_of(self, veth: HostVeth, survey: KernelSurvey, datastore: Datastore) -> WiringSpec | str:
        """Return the wiring of the unrecorded sandbox of a first host veth; or one sentence with the reason not to record it."""


class PoolAdopter:
    """Adopts sandboxes that have an address of the pool. The row of the address names its ENI."""

    why_without_row = "EC2 shows the address on no ENI of this node"

    def wiring_of(self, veth: HostVeth, survey: KernelSurvey, datastore: Datastore) -> WiringSpec | str:
        """See `LegAdopter`."""
        row = datastore.address(veth.address) if veth.address else None
        if row is None or veth.key is None:
            return "the address is on no ENI of this node"
        if _contradicts_route(veth, survey):
            return "alias and route disagree"
        if row.owner is not None:
            return f"recorded for {row.owner}"
        if datastore.attachment(veth.key) is not None:
            return "the sandbox is recorded with another address"
        eni = next(eni for eni in datastore.enis() if eni.eni_id == row.eni_id)
        mac = MacAddress(veth.mac) if is_imported_alias(veth.alias) else None
        return WiringSpec(
            veth.key,
            row.address,
            eni.route_table,
            veth.name,
            "",
            veth.mtu,
            mac,
            eni_id=eni.eni_id,
            snat=survey.chosen_snat(row.address),
        )


class BranchAdopter:
    """Adopts sandboxes with branch ENIs. It recognises them by the aliases of the host veth and of the VLAN link."""

    why_without_row = "by a branch ENI, not recorded"

    def wiring_of(self, veth: HostVeth, survey: KernelSurvey, datastore: Datastore) -> WiringSpec | str:
        """See `LegAdopter`.

        The node gets a route to a sandbox in standard mode only after EC2 has confirmed the branch ENI. So without a route the ENI is
        not confirmed, and the wiring keeps the sandbox's links down (`is_kept_down`).
        """
        link, key = survey.uplink_of(veth), veth.key
        if link is None or not isinstance(link.uplink, Branch) or key is None or veth.address is None:
            return "no VLAN link of ours leads to its branch ENI"
        if datastore.attachment(key) is not None:
            return "the sandbox is recorded with another address"
        spec = WiringSpec(
            key,
            veth.address,
            link.uplink.route_table,
            veth.name,
            "",
            veth.mtu,
            _foreign_mac(veth, key),
            uplink=link.uplink,
            eni_id=link.eni_id,
            is_kept_down=not link.uplink.is_strict and not _is_routed(veth, survey),
        )
        eni = link.uplink.eni(link.eni_id, veth.address)
        others, enis, row = datastore.attachments(), datastore.enis(), datastore.address(veth.address)
        return branch_conflict(eni, key, row=row, others=others, enis=enis) or spec


ADOPTERS: tuple[LegAdopter, ...] = (PoolAdopter(), BranchAdopter())


def adopter_of(veth: HostVeth) -> LegAdopter:
    """Return the adopter for the sandbox of a first host veth."""
    pool, branch = ADOPTERS
    return pool if veth.is_of_pool else branch


def seen_wiring(veth: HostVeth, survey: KernelSurvey, datastore: Datastore, *, mtu: Callable[[], int]) -> WiringSpec | str:
    """Return the wiring of all legs of an unrecorded sandbox; or one sentence with the reason not to record it.

    `mtu`: returns the MTU of new sandboxes in bytes. It is used only if the survey does not show the sandbox's own MTU, because a
    record with a wrong MTU would make the reconciler change the sandbox.
    """
    if veth.key is None or veth.address is None:
        return "the veth carries no identity"
    wiring = adopter_of(veth).wiring_of(veth, survey, datastore)
    if isinstance(wiring, str):
        return wiring
    return with_seen_extra(replace(wiring, mtu=wiring.mtu or mtu()), survey)


def _contradicts_route(veth: HostVeth, survey: KernelSurvey) -> bool:
    """Whether the address of a veth is routed elsewhere, or is not routed and another living veth has it too.

    A missing route alone proves nothing (I11): the host network reconciler restores it.
    """
    device = survey.routes.get(veth.address) if veth.address else None
    if device == veth.name:
        return False
    if device is not None:
        return True
    return any(other.address == veth.address and other.name != veth.name and not other.is_dying for other in survey.firsts)


def _foreign_mac(veth: HostVeth, key: AttachmentKey) -> MacAddress | None:
    """Return the MAC of a host veth that amazon-vpc-cni-k8s wired; None for a veth of ours, whose MAC is derived from the sandbox.

    The alias of a sandbox with a branch ENI does not show who wired the sandbox, so the MAC is compared too.
    """
    is_foreign = is_imported_alias(veth.alias) or veth.mac not in ("", sandbox_mac(key, side="host"))
    return MacAddress(veth.mac) if is_foreign else None


def _is_routed(veth: HostVeth, survey: KernelSurvey) -> bool:
    """Whether the node routes to a sandbox. It has no route to a sandbox whose branch ENI EC2 has never confirmed."""
    return veth.address is not None and veth.name in (survey.routes.get(veth.address), survey.own_routes.get(veth.address))
