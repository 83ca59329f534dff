"""Reconcile datastore, kernel and runtime after a start: keep recorded sandboxes, adopt unrecorded ones, remove leftover wiring.

`ipamd/model/evidence.py` decides about a wired sandbox without a row. If the datastore is intact and the row of the address has no
owner, an ADD ended before it replied. The wiring of that ADD is removed before its address becomes assignable. If the datastore was
lost and the runtime lists the sandbox, the row is restored from the alias of the veth, which is a second copy of the sandbox's
identity. If the sources disagree or do not answer, the address is quarantined (docs/adr/0010).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ipamd.core.context import Service, ServiceContext
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.aws_node import UnidentifiedVeth
from ipamd.model.defects import Defect
from ipamd.model.errors import IpamError, log_text
from ipamd.model.evidence import SandboxVerdict
from ipamd.model.family import IpAddress
from ipamd.model.history import LedgerEvent
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import HostVeth, KernelSurvey, duplicate_addresses, stray_rules
from ipamd.model.legs import extra_kind
from ipamd.model.record import dataclass, field, replace
from ipamd.model.sandbox import Sandbox
from ipamd.model.words import counted
from ipamd.ports.aws_node import Import
from ipamd.ports.runtime import Runtime
from ipamd.sandbox.cooldown import Cooldown, DyingLink
from ipamd.sandbox.detach import leftover_uplink
from ipamd.sandbox.quarantine import QuarantineService

log = logging.getLogger(__name__)

FAILPOINTS = ("restore.leftover-removed", "restore.veth-settled", "restore.replayed", "restore.entry-done")


@dataclass(slots=True)
class StartupOutcome:
    """The results of the reconciliation. Its text is the detail of the start stage.

    `kept_count`: recorded interfaces of sandboxes that are wired.
    `adopted_count`: wired interfaces of sandboxes that had no row and were recorded.
    `removed_count`: removals of wiring, routes and rules that had no sandbox.
    `dying_count`: links that an earlier process had marked for deletion.
    `missing_count`: recorded interfaces of sandboxes without their veth.
    `is_list_implausible`: the runtime's first list was not believed.
    `duplicates`: a sentence for each address that several veths have (I1).
    `quarantined`: a sentence for each veth or address that could not be resolved.
    """

    kept_count: int = 0
    adopted_count: int = 0
    removed_count: int = 0
    dying_count: int = 0
    missing_count: int = 0
    is_list_implausible: bool = False
    duplicates: list[str] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = (
            f"{counted(self.kept_count, 'interface')} kept, {self.adopted_count} adopted, "
            f"{counted(self.removed_count, 'leftover')} removed, "
            f"{self.dying_count} dying links found"
        )
        if self.missing_count:
            text += f", {self.missing_count} recorded without their veth (the runtime reconciler judges them)"
        if self.is_list_implausible:
            text += "; the runtime's first list has no sandbox that is wired, and was not believed"
        if self.quarantined:
            text += f"; quarantined: {'; '.join(self.quarantined)}"
        return text


class StartupReconciler(Service):
    """Reconciles once, in one thread, before ADD is served. DELs may run at the same time."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        cooldown: Cooldown,
        runtime: Runtime | None,
        quarantine: QuarantineService,
        imported: Import,
        is_datastore_intact: bool,
        is_datastore_lost: bool,
    ) -> None:
        """Keep the collaborators of the reconciliation.

        Args:
            runtime: None if CRI is off.
            is_datastore_intact: the rows on disk are those of this boot, and none is missing (docs/glossary.md, *intact*).
            is_datastore_lost: rows of this boot were lost. An empty datastore alone does not mean that: it may be the first start.
        """
        super().__init__(context)
        self._cooldown = cooldown
        self._runtime = runtime
        self._judge = quarantine.judge
        self._quarantine_service = quarantine
        self._imported = imported
        self._is_datastore_intact = is_datastore_intact
        self._is_datastore_lost = is_datastore_lost

    def reconcile_kernel(self, survey: KernelSurvey, listed: dict[str, Sandbox] | None) -> StartupOutcome:
        """Resolve every veth, route and rule of ours against the datastore.

        Args:
            survey: one uninterrupted dump, taken after the datastore was opened.
            listed: sandboxes by container ID, or None if the runtime did not answer.
        Returns: the outcome, which names each object that cannot be resolved; the address of such an object is quarantined.
        Raises: DatastoreError if the quarantine cannot be recorded.
        """
        self._outcome = outcome = StartupOutcome()
        listed = self._plausible_or_none(survey, listed)
        self._linked_addresses: set[IpAddress] = set()
        import_result = self._imported.take_over(survey, listed)
        survey = import_result.after(survey)
        self._survey = survey
        self._listed = listed
        dying = _dying(survey)
        self._cooldown.resume(dying)  # its thread deletes them: the kernel takes 20 ms for that, and every ADD would wait
        outcome.dying_count = len(dying)
        if any(self._is_free(link.address) for _, link in dying):
            self._sweep_dying_links()
        outcome.duplicates = _describe_duplicates(survey)
        self._health.count_defects(Defect.DUPLICATE, len(outcome.duplicates))
        self._resolve_veths(survey)
        self._quarantine_unnamed(import_result.unnamed)
        living_names = survey.living_names
        outcome.missing_count = sum(attachment.host_veth not in living_names for attachment in self._datastore.attachments())
        self._remove_stray_routes()
        self._resolve_extra_legs()
        outcome.removed_count += self._quarantine_service.sweep_uplinks(self._wiring.survey() if survey.vlans else survey)
        self._quarantine_service.resolve(None)
        if listed is not None or self._is_datastore_intact or self._runtime is None:
            self._mark_restored()
        else:
            self._quarantine_service.on_list = self._mark_restored_later
        return outcome

    def _plausible_or_none(self, survey: KernelSurvey, listed: dict[str, Sandbox] | None) -> dict[str, Sandbox] | None:
        """Return the first list, or None if it is implausible. An implausible list counts as no answer of the runtime (I11)."""
        if listed is None or self._judge.is_plausible_at_start(survey, listed, is_datastore_whole=self._is_datastore_intact):
            return listed
        log.warning("the first list of the runtime is implausible and is ignored listed=%d", len(listed))
        self._outcome.is_list_implausible = True
        return None

    def _is_free(self, address: IpAddress | None) -> bool:
        """Whether an ADD could get an address as soon as ADD is served."""
        row = self._datastore.address(address) if address else None
        return row is not None and row.state is AddressState.FREE

    def _sweep_dying_links(self) -> None:
        """Delete the dying links before ADD is served.

        The link of an ADD that failed has an address that is free on disk, if the daemon was killed after it had marked the link and
        before it had recorded that the address cools. An address that cools need not wait for this, because `Cooldown` frees it only
        after its link is deleted (I4).
        """
        try:
            self._cooldown.sweep()
        except IpamError as error:  # the cooldown's thread tries again every second
            log.warning("dying links could not be deleted yet; tried again every second error=%s", log_text(error))

    def _quarantine_unnamed(self, unnamed_veths: Iterable[UnidentifiedVeth]) -> None:
        """Quarantine the addresses of veths that the import could not attribute to a sandbox. Raises: DatastoreError."""
        for unnamed in unnamed_veths:
            for address in unnamed.addresses:
                self._quarantine_address(address, f"{unnamed.veth.name} has it: {unnamed.reason}")
                self._outcome.quarantined.append(f"{address} of {unnamed.veth.name}: {unnamed.reason}")

    def _mark_restored(self) -> None:
        """Record that the restore has ended. Raises: DatastoreError.

        Every unresolved sandbox is quarantined or recorded as unplaced, so that the next start does not take it for the leftover of an
        ADD that was never answered.
        """
        unplaced = self._quarantine_service.unplaced_keys()
        if self._is_datastore_intact:
            # Record only sandboxes whose rows were lost earlier. Any other unplaced sandbox may be the leftover of an unanswered ADD.
            unplaced = [key for key in unplaced if self._datastore.may_have_lost_row_of(key)]
        with self._datastore.transaction() as uow:
            uow.mark_restored(detail=str(self._outcome), was_lost=self._is_datastore_lost, unplaced=unplaced)
        self._quarantine_service.on_list = lambda: None

    def _mark_restored_later(self) -> None:
        """Record the end of the restore at the first plausible list. Raises nothing; after a failure the next list tries again."""
        try:
            self._mark_restored()
        except IpamError as error:
            log.warning("the end of the restore could not be recorded; tried again at the next list error=%s", log_text(error))

    def _resolve_veths(self, survey: KernelSurvey) -> None:
        """Resolve every living first host veth.

        A veth that fails is quarantined and does not stop the others. Raises: DatastoreError.
        """
        for veth in survey.firsts:
            if veth.is_dying:
                continue
            try:
                self._resolve_veth(veth)
            except Exception as error:  # noqa: BLE001  # top of the work on one object: the others must not wait for it
                log.warning(
                    "a host veth could not be resolved; it is quarantined veth=%s sandbox=%s error=%s",
                    veth.name,
                    veth.key,
                    log_text(error),
                )
                if veth.address is not None:
                    self._quarantine(veth, f"it could not be resolved: {log_text(error)}")
            self._failpoint("restore.veth-settled")

    def _resolve_veth(self, veth: HostVeth) -> None:
        if veth.key is None or veth.address is None:
            # It is named like ours but has no alias of ours, so its owner is unknown: leave it and its routed addresses alone.
            log.warning("left a veth as it is: it has a name like ours and no alias of ours veth=%s", veth.name)
            self._linked_addresses.update(address for address, device in self._survey.routes.items() if device == veth.name)
            return
        attachment = self._datastore.attachment(veth.key)
        if attachment is None:
            self._resolve_unrecorded(veth, veth.key)
        elif attachment.address == veth.address:
            self._keep(attachment, veth)
        elif self._is_surplus_link(attachment, veth):
            log.warning("left a veth as it is: its sandbox has another veth, which its row names veth=%s", veth.name)
        else:
            self._quarantine(veth, f"the datastore says {attachment.address}, the kernel {veth.address}")

    def _keep(self, attachment: Attachment, veth: HostVeth) -> None:
        """Keep a recorded sandbox. If a crash interrupted the renaming of its veth, finish that."""
        self._outcome.kept_count += 1
        self._linked_addresses.add(attachment.address)
        if attachment.host_veth == veth.name:
            return
        # A crash came after the record was renamed and before the link was. All veths are searched only in this case, because a search
        # for each sandbox would cost the square of their number.
        if attachment.host_veth not in {host_veth.name for host_veth in self._survey.firsts}:
            self._wiring.rename_veth(replace(attachment.wiring, host_veth=veth.name), to=attachment.host_veth)

    def _is_surplus_link(self, attachment: Attachment, veth: HostVeth) -> bool:
        """Whether a link with the alias of a recorded sandbox was made by somebody else, and the link of the row exists too.

        A process with NET_ADMIN in a sandbox can make such links. If each were quarantined, the process could use up the pool. It
        cannot make a route on the host, so a link to which the host has a route is never surplus.
        """
        routed = {routes.get(veth.address) for routes in (self._survey.routes, self._survey.own_routes) if veth.address}
        if veth.name in routed:
            return False
        return any(
            host_veth.key == veth.key and (host_veth.name, host_veth.address) == (attachment.host_veth, attachment.address)
            for host_veth in self._survey.firsts
        )

    def _resolve_unrecorded(self, veth: HostVeth, key: AttachmentKey) -> None:
        """Adopt, remove or quarantine a wired sandbox without a row."""
        listed = self._listed
        judgement = self._judge.judge_veth(veth, listed=listed, is_datastore_whole=self._is_datastore_intact)
        if judgement.verdict is SandboxVerdict.UNWIRE_THEN_REAP:
            self._remove(veth, judgement.main_reason)
            return
        if judgement.verdict is not SandboxVerdict.ADOPT or listed is None:
            self._quarantine(veth, judgement.main_reason)
            return
        refusal = self._quarantine_service.adopt(veth, listed[key.container_id], self._survey)
        if not refusal:
            if veth.address is not None:
                self._linked_addresses.add(veth.address)
            self._outcome.adopted_count += 1
        elif self._datastore.is_tombstoned(key):
            self._remove(veth, "its DEL was done")  # DEL was served in the meantime
        else:
            self._quarantine(veth, refusal)

    def _quarantine(self, veth: HostVeth, why: str) -> None:
        """Leave a veth as it is, and do not assign its address. Raises: DatastoreError."""
        if veth.address is not None:
            self._linked_addresses.add(veth.address)
        self._outcome.quarantined.append(f"{veth.address} of {veth.key}: {why}")
        row = self._datastore.address(veth.address) if veth.address else None
        if row is None:
            self._quarantine_service.remember_unplaced(veth)  # there is no row to quarantine
        else:
            self._quarantine_address(row.address, f"{veth.key}: {why}")

    def _quarantine_address(self, address: IpAddress, why: str) -> None:
        """Quarantine an address, unless it has no row, a sandbox has it, or it is quarantined already."""
        row = self._datastore.address(address)
        if row is None or row.state in (AddressState.ASSIGNED, AddressState.QUARANTINED):
            return
        with self._datastore.transaction() as uow:
            uow.quarantine(address, reason=why)

    def _remove(self, veth: HostVeth, why: str) -> None:
        """Remove the wiring of a sandbox that has no row. Raises: IpamError."""
        try:
            address, uplink = leftover_uplink(veth, self._survey, self._datastore)
            if veth.is_of_pool:
                address = self._address_to_unwire(veth)
            self._wiring.remove_leftover(host_veth=veth.name, address=address, uplink=uplink)
        except IpamError:
            self._quarantine_service.remember_leftover(veth)
            raise
        self._failpoint("restore.leftover-removed")
        with self._datastore.transaction() as uow:
            uow.record_event(
                LedgerEvent.REPAIRED,
                address=veth.address,
                key=veth.key,
                detail=f"wiring {veth.name} removed at start: {why}",
            )
        self._outcome.removed_count += 1

    def _address_to_unwire(self, veth: HostVeth) -> IpAddress | None:
        """Return the veth's address; None if another sandbox owns the address, because its routes and rules must stay then (I2)."""
        row = self._datastore.address(veth.address) if veth.address else None
        is_owned_by_another = row is not None and row.owner not in (None, veth.key)
        return None if is_owned_by_another else veth.address

    def _resolve_extra_legs(self) -> None:
        """Resolve the links of extra legs.

        If the sandbox of a link has neither a row nor its first link, an ADD or a DEL ended before it had made or removed all links,
        and the link is removed. If a recorded sandbox has a link that its row does not have, a version without such legs wrote the
        row, and the address of the link is recorded.
        """
        keys_with_first_link = {veth.key for veth in self._survey.firsts}
        for veth in self._survey.extra:
            attachment = self._datastore.attachment(veth.key) if veth.key else None
            try:
                if attachment is not None:
                    self._record_extra_leg(attachment, veth)
                elif veth.key is not None and not veth.is_dying and veth.key not in keys_with_first_link:
                    self._wiring.remove_leftover(host_veth=veth.name, address=None)
                    self._outcome.removed_count += 1
            except IpamError as error:
                # No retry: the kernel deletes the link with its namespace, and the address is not assigned while a route to it exists.
                log.warning(
                    "the link of an extra leg could not be recorded or removed veth=%s sandbox=%s error=%s",
                    veth.name,
                    veth.key,
                    log_text(error),
                )

    def _record_extra_leg(self, attachment: Attachment, veth: HostVeth) -> None:
        """Record the address of an extra leg, if the row of its sandbox has no address for such a leg. Raises: DatastoreError."""
        kind = extra_kind(veth)
        if kind is None or not kind.cools_with_first or kind.recorded_address(attachment) is not None or not veth.address:
            return
        if veth in self._survey.extras_of(attachment.key):
            with self._datastore.transaction() as uow:
                uow.record_extra_address(attachment.address, other_address=veth.address)

    def _remove_stray_routes(self) -> None:
        """Remove rules and routes of our addresses that no veth and no attachment has.

        Addresses without a row count as ours if they are in the subnet of one of our ENIs, because EC2 may have taken them away since.
        """
        survey = self._survey
        owned = {attachment.address for attachment in self._datastore.attachments()} | self._linked_addresses
        ruled = set(survey.to_rules) | set(survey.from_rules)
        ours = {address for address in ruled if self._datastore.address(address) is not None}
        ours |= stray_rules(survey, {eni.subnet_cidr for eni in self._datastore.enis()})
        strays = ruled & ours - owned
        for address in sorted(strays):
            try:
                self._wiring.remove_leftover(host_veth=None, address=address)
                self._outcome.removed_count += 1
            except IpamError as error:
                self._quarantine_address(address, f"a rule that leads nowhere could not be removed: {log_text(error)}")


def _dying(survey: KernelSurvey) -> list[tuple[str, DyingLink]]:
    """Return the name of each dying link, with the address that stays blocked until the link is deleted."""
    links: list[tuple[str, DyingLink]] = []
    for veth in survey.host_veths:
        if veth.is_dying:
            links.append((veth.name, DyingLink(veth.address)))
    for vlan_link in survey.vlans:
        if vlan_link.is_dying:
            links.append((vlan_link.name, DyingLink(vlan_link.address, vlan_link.uplink)))
    return links


def _describe_duplicates(survey: KernelSurvey) -> list[str]:
    """Describe every address that several living veths have, one sentence each with the veths (I1)."""
    duplicates = []
    for address, veths in duplicate_addresses(survey).items():
        carriers = " and to ".join(f"{veth.name} ({veth.key})" for veth in veths)
        duplicates.append(f"{address} is wired to {carriers}")
    return duplicates
