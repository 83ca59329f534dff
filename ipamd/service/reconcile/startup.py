"""Reconcile datastore, kernel and runtime after a start: keep recorded sandboxes, adopt unrecorded ones, remove leftover wiring.

What a wired sandbox without a row means depends on the datastore. If it is intact, an ADD ended before it replied: its wiring is
removed before its address becomes assignable. If it was lost, the alias of the veth is a second copy of the identity, and if the
runtime lists the sandbox the row is restored from it. If the sources disagree or do not answer, the address is quarantined
(docs/adr/0010).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from ipamd.model.address import AddressState
from ipamd.model.kernel import HostVeth, KernelSurvey, duplicate_addresses
from ipamd.model.ledger import LedgerEvent
from ipamd.model.sandbox import Sandbox
from ipamd.model.words import counted
from ipamd.ports import Runtime
from ipamd.service.context import ServiceContext
from ipamd.service.cooldown import Cooldown
from ipamd.service.reconcile.quarantine import QuarantineService

FAILPOINTS = ("restore.leftover-removed", "restore.veth-settled")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StartupOutcome:
    """What the reconciliation did, counted; shown as the detail of its stage."""

    kept_count: int = 0
    adopted_count: int = 0
    removed_count: int = 0
    dying_count: int = 0
    missing_count: int = 0
    duplicates: list[str] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = (
            f"{counted(self.kept_count, 'sandbox')} kept, {self.adopted_count} adopted, "
            f"{counted(self.removed_count, 'leftover')} removed, "
            f"{self.dying_count} dying links swept"
        )
        if self.missing_count:
            text += f", {self.missing_count} recorded without their veth (the runtime reconciler judges them)"
        if self.quarantined:
            text += f"; quarantined: {'; '.join(self.quarantined)}"
        return text


class StartupReconciler:
    """Reconciles once, in one thread, before ADD is served; DEL may run beside it."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        cooldown: Cooldown,
        runtime: Runtime | None,
        quarantine: QuarantineService,
        is_datastore_intact: bool,
    ) -> None:
        self._datastore = context.datastore
        self._wiring = context.wiring
        self._cooldown = cooldown
        self._runtime = runtime
        self._quarantine_service = quarantine
        self._is_datastore_intact = is_datastore_intact
        self._failpoint = context.failpoint

    def reconcile_kernel(self, survey: KernelSurvey, listed: dict[str, Sandbox] | None) -> StartupOutcome:
        """Resolve every veth, route and rule of ours against the datastore.

        Args:
            survey: one uninterrupted look, taken after the datastore was opened.
            listed: sandboxes by container ID, or None if the runtime is silent.
        Raises: WiringError, DatastoreError.
        """
        outcome = StartupOutcome()
        dying = [(veth.name, veth.address) for veth in survey.veths if veth.is_dying]
        self._cooldown.resume(dying)
        outcome.dying_count = len(dying)
        if dying:
            self._cooldown.sweep()
        outcome.duplicates = [
            f"{address} is wired to {' and to '.join(f'{veth.name} ({veth.key})' for veth in veths)}"
            for address, veths in duplicate_addresses(survey).items()
        ]
        claimed: set[IPv4Address] = set()
        for veth in survey.veths:
            if not veth.is_dying:
                self._resolve_veth(veth, survey, listed, claimed, outcome)
                self._failpoint("restore.veth-settled")
        wired = {veth.name for veth in survey.veths if not veth.is_dying}
        outcome.missing_count = sum(a.host_veth not in wired for a in self._datastore.attachments())
        self._remove_stray_routes(survey, claimed, outcome)
        self._quarantine_service.resolve_unclaimed(claimed)
        if listed is not None or self._is_datastore_intact or self._runtime is None:
            with self._datastore.transaction() as uow:
                uow.mark_restored(detail=str(outcome))
        return outcome

    def _resolve_veth(
        self,
        veth: HostVeth,
        survey: KernelSurvey,
        listed: dict[str, Sandbox] | None,
        claimed: set[IPv4Address],
        outcome: StartupOutcome,
    ) -> None:
        if veth.key is None or veth.address is None:
            # Named like ours without our alias: one of amazon-vpc-cni-k8s, perhaps. Not ours to touch.
            log.warning("host veth %s carries no identity of ours and is left alone", veth.name)
            claimed.update(address for address, device in survey.routes.items() if device == veth.name)
            return
        known = self._datastore.attachment(veth.key)
        if known is not None and known.address == veth.address:
            outcome.kept_count += 1
            claimed.add(veth.address)
        elif known is not None:
            claimed.add(veth.address)
            self._quarantine(veth, f"the datastore says {known.address}, the kernel {veth.address}", outcome)
        elif self._datastore.is_tombstoned(veth.key):
            self._remove(veth, "its DEL was done", outcome)
        elif listed is not None and veth.key.container_id in listed:
            claimed.add(veth.address)
            self._adopt(veth, listed[veth.key.container_id], survey, claimed, outcome)
        elif self._is_datastore_intact and not self._is_in_doubt(veth.address):
            # An ADD replies after its row is stored, and no row is lost: this one never replied, even if the runtime lists it.
            self._remove(veth, "no ADD was promised for it", outcome)
        elif listed is None:
            claimed.add(veth.address)
            self._quarantine(veth, "the runtime is silent", outcome)
        else:
            claimed.add(veth.address)
            self._quarantine(veth, "wired, but the runtime does not list its sandbox", outcome)

    def _is_in_doubt(self, address: IPv4Address) -> bool:
        """Whether an earlier start, after a lost datastore, could not find out who has the address: a row may be missing."""
        row = self._datastore.address(address)
        return row is not None and row.state is AddressState.QUARANTINED

    def _adopt(
        self,
        veth: HostVeth,
        sandbox: Sandbox,
        survey: KernelSurvey,
        claimed: set[IPv4Address],
        outcome: StartupOutcome,
    ) -> None:
        refusal = self._quarantine_service.adopt(veth, sandbox, survey)
        if not refusal:
            outcome.adopted_count += 1
        elif veth.key is not None and veth.address is not None and self._datastore.is_tombstoned(veth.key):
            claimed.discard(veth.address)  # its DEL was served in the meantime
            self._remove(veth, "its DEL was done", outcome)
        else:
            self._quarantine(veth, refusal, outcome)

    def _quarantine(self, veth: HostVeth, why: str, outcome: StartupOutcome) -> None:
        outcome.quarantined.append(f"{veth.address} of {veth.key}: {why}")
        row = self._datastore.address(veth.address) if veth.address else None
        if row is None or row.state in (AddressState.ASSIGNED, AddressState.QUARANTINED):
            return
        with self._datastore.transaction() as uow:
            uow.quarantine(row.address, reason=f"{veth.key}: {why}")

    def _remove(self, veth: HostVeth, why: str, outcome: StartupOutcome) -> None:
        self._wiring.remove_leftover(host_veth=veth.name, address=veth.address)
        self._failpoint("restore.leftover-removed")
        with self._datastore.transaction() as uow:
            uow.note(
                LedgerEvent.REPAIRED,
                address=veth.address,
                key=veth.key,
                detail=f"wiring {veth.name} removed at start: {why}",
            )
        outcome.removed_count += 1

    def _remove_stray_routes(self, survey: KernelSurvey, claimed: set[IPv4Address], outcome: StartupOutcome) -> None:
        """Remove routes and rules of our addresses that belong to no veth and no attachment."""
        owned = {attachment.address for attachment in self._datastore.attachments()} | claimed
        known = {row.address for row in self._datastore.addresses()}
        strays = (set(survey.to_rules) | set(survey.from_rules)) & known - owned
        for address in sorted(strays):
            self._wiring.remove_leftover(host_veth=None, address=address)
            outcome.removed_count += 1
