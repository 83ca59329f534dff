"""Reconcile datastore, kernel and runtime after a start: keep recorded sandboxes, adopt unrecorded ones, remove leftover wiring.

What a wired sandbox without a row means is the verdict of `ipamd/model/evidence.py`. If the datastore is intact and the address has a
row that nobody has, an ADD ended before it replied: its wiring is removed before its address becomes assignable. If the datastore was
lost, the alias of the veth is a second copy of the identity, and if the runtime lists the sandbox the row is restored from it. If the
sources disagree or do not answer, the address is quarantined (docs/adr/0010).
"""

from __future__ import annotations

import logging

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline, Steps
from ipamd.core.loop import OddObjects
from ipamd.model.address import AddressState
from ipamd.model.errors import DatastoreError, Defect, IpamError, log_text
from ipamd.model.evidence import Verdict
from ipamd.model.family import IpAddress
from ipamd.model.history import LedgerEvent
from ipamd.model.kernel import HostVeth, KernelSurvey, duplicate_addresses, stray_rules
from ipamd.model.record import dataclass, field
from ipamd.model.sandbox import Sandbox
from ipamd.model.words import counted
from ipamd.ports import Import, Runtime, Spool
from ipamd.sandbox.cooldown import Cooldown, Dying
from ipamd.sandbox.detach import DetachService, leftover_branch
from ipamd.sandbox.quarantine import QuarantineService

log = logging.getLogger(__name__)


FAILPOINTS = ("restore.leftover-removed", "restore.veth-settled", "restore.replayed", "restore.entry-done")


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


class StartupReconciler(Service):
    """Reconciles once, in one thread, before ADD is served; DEL may run beside it."""

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
        """`is_datastore_lost`: rows of this boot were lost, which is more than that there are none."""
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
            survey: one uninterrupted look, taken after the datastore was opened.
            listed: sandboxes by container ID, or None if the runtime is silent.
        An object that refuses is named in a condition, and its address is given to nobody.
        Raises: DatastoreError if not even that can be recorded.
        """
        self._outcome = outcome = StartupOutcome()
        self._claimed: set[IpAddress] = set()
        taken_over = self._imported.take_over(survey, listed)
        self._survey, self._listed = survey, listed = taken_over.after(survey), listed
        dying = _dying(survey)
        self._cooldown.resume(dying)
        outcome.dying_count = len(dying)
        if dying:
            try:
                self._cooldown.sweep()
            except IpamError as error:  # their addresses wait, and the cooldown thread tries again every second
                log.warning("dying links are swept later error=%s", log_text(error))
        outcome.duplicates = [
            f"{address} is wired to {' and to '.join(f'{veth.name} ({veth.key})' for veth in veths)}"
            for address, veths in duplicate_addresses(survey).items()
        ]
        self._health.count_defects(Defect.DUPLICATE, len(outcome.duplicates))
        for veth in survey.firsts:
            if not veth.is_dying:
                try:
                    self._resolve_veth(veth)
                except Exception as error:  # noqa: BLE001  # top of the work on one object: the others must not wait for it
                    log.warning("a host veth is resolved later veth=%s sandbox=%s error=%s", veth.name, veth.key, log_text(error))
                    if veth.address is not None:
                        self._quarantine(veth, f"it could not be resolved: {log_text(error)}")
                self._failpoint("restore.veth-settled")
        for unnamed in taken_over.unnamed:
            for address in unnamed.addresses:
                self._quarantine_address(address, f"{unnamed.veth.name} has it: {unnamed.why}")
                outcome.quarantined.append(f"{address} of {unnamed.veth.name}: {unnamed.why}")
        wired = survey.living_names
        outcome.missing_count = sum(a.host_veth not in wired for a in self._datastore.attachments())
        self._remove_stray_routes()
        self._resolve_second_links()
        outcome.removed_count += self._quarantine_service.sweep_vlans(self._wiring.survey() if survey.vlans else survey)
        self._quarantine_service.resolve(None)
        if listed is not None or self._is_datastore_intact or self._runtime is None:
            # What stays unresolved is quarantined, or has no row: neither passes for "no ADD was promised" at the next start.
            with self._datastore.transaction() as uow:
                uow.mark_restored(detail=str(outcome), was_lost=self._is_datastore_lost)
        return outcome

    def _resolve_veth(self, veth: HostVeth) -> None:
        if veth.key is None or veth.address is None:
            # Named like ours without our alias, and nobody knows whose it is: not ours to touch.
            log.warning("left alone, it carries no identity of ours veth=%s", veth.name)
            self._claimed.update(address for address, device in self._survey.routes.items() if device == veth.name)
            return
        known, listed = self._datastore.attachment(veth.key), self._listed
        if known is not None and known.address == veth.address:
            self._outcome.kept_count += 1
            self._claimed.add(veth.address)
            # A crash between the names of record and link. All are looked through only then: it grows with the square of their number.
            if known.host_veth != veth.name and known.host_veth not in {one.name for one in self._survey.firsts}:
                self._wiring.rename_veth(host_veth=veth.name, to=known.host_veth, address=veth.address, branch=known.branch)
            return
        if known is not None:
            routed = {routes.get(veth.address) for routes in (self._survey.routes, self._survey.own_routes)}
            beside = {(one.name, one.address) for one in self._survey.firsts if one.key == veth.key}
            if (known.host_veth, known.address) in beside and veth.name not in routed:
                # Anybody with NET_ADMIN in a sandbox makes such links, and would use up the pool; none can make a route.
                log.warning("left alone, its sandbox has the link and the address of its row veth=%s", veth.name)
                return
            self._quarantine(veth, f"the datastore says {known.address}, the kernel {veth.address}")
            return
        judgement = self._judge.judge_veth(veth, listed=listed, is_datastore_whole=self._is_datastore_intact)
        if judgement.verdict is Verdict.UNWIRE_THEN_REAP:
            self._remove(veth, judgement.reasons[0])
        elif judgement.verdict is not Verdict.ADOPT or listed is None:
            self._quarantine(veth, judgement.reasons[0])
        elif not (refusal := self._quarantine_service.adopt(veth, listed[veth.key.container_id], self._survey)):
            self._claimed.add(veth.address)
            self._outcome.adopted_count += 1
        elif self._datastore.is_tombstoned(veth.key):
            self._remove(veth, "its DEL was done")  # it was served in the meantime
        else:
            self._quarantine(veth, refusal)

    def _quarantine(self, veth: HostVeth, why: str) -> None:
        """Leave a veth as it is; its address is given to nobody. Raises: DatastoreError."""
        if veth.address is not None:
            self._claimed.add(veth.address)
        self._outcome.quarantined.append(f"{veth.address} of {veth.key}: {why}")
        row = self._datastore.address(veth.address) if veth.address else None
        if row is None:
            self._quarantine_service.remember_unplaced(veth)  # EC2 did not show its address: there is nothing to give away
        else:
            self._quarantine_address(row.address, f"{veth.key}: {why}")

    def _quarantine_address(self, address: IpAddress, why: str) -> None:
        """Quarantine an address, unless a sandbox has it or it is quarantined already."""
        row = self._datastore.address(address)
        if row is None or row.state in (AddressState.ASSIGNED, AddressState.QUARANTINED):
            return
        with self._datastore.transaction() as uow:
            uow.quarantine(address, reason=why)

    def _remove(self, veth: HostVeth, why: str) -> None:
        row = self._datastore.address(veth.address) if veth.address else None
        is_others = row is not None and row.owner not in (None, veth.key)
        # Without an address only what leads to this link is removed: the routes and rules are another sandbox's (I2).
        try:
            address, branch = leftover_branch(veth, self._survey, self._datastore)
            address = address if veth.is_branch else None if is_others else veth.address
            self._wiring.remove_leftover(host_veth=veth.name, address=address, branch=branch)
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

    def _resolve_second_links(self) -> None:
        """Remove links for egress whose sandbox has neither a row nor its first link: an ADD or a DEL ended between the two. One that
        a recorded sandbox is not known to have is recorded: a release that knows no egress was here.
        """
        first = {veth.key for veth in self._survey.firsts}
        for veth in self._survey.egress:
            known = self._datastore.attachment(veth.key) if veth.key else None
            try:
                if known and known.other_address is None and veth.address and self._survey.egress_of(known.key) == veth:
                    with self._datastore.transaction() as uow:
                        uow.find_other(known.address, other_address=veth.address)
                elif not (veth.is_dying or veth.key is None or veth.key in first or known):
                    self._wiring.remove_leftover(host_veth=veth.name, address=None)
                    self._outcome.removed_count += 1
            except IpamError as error:  # it goes with its namespace, and nobody is given its address: the route is there
                log.warning("a link for egress stays veth=%s sandbox=%s error=%s", veth.name, veth.key, log_text(error))

    def _remove_stray_routes(self) -> None:
        """Remove routes and rules of our addresses that belong to no veth and no attachment; EC2 may have taken the address since."""
        survey = self._survey
        owned = {attachment.address for attachment in self._datastore.attachments()} | self._claimed
        ruled = set(survey.to_rules) | set(survey.from_rules)
        known = {address for address in ruled if self._datastore.address(address) is not None}
        known |= stray_rules(survey, {eni.subnet_cidr for eni in self._datastore.enis()})
        strays = ruled & known - owned
        for address in sorted(strays):
            try:
                self._wiring.remove_leftover(host_veth=None, address=address)
                self._outcome.removed_count += 1
            except IpamError as error:
                self._quarantine_address(address, f"a rule that leads nowhere could not be removed: {log_text(error)}")


def _dying(survey: KernelSurvey) -> list[tuple[str, Dying]]:
    found = [(veth.name, Dying(veth.address)) for veth in (*survey.firsts, *survey.egress) if veth.is_dying]
    return found + [(link.name, Dying(link.address, link.branch)) for link in survey.vlans if link.is_dying]


# Carry out the DELs that the plugin left on disk while the daemon was down or too slow (I3).


class SpooledDeletes(Service):
    """Replays the spool: at start before ADD is served, and every few seconds afterwards."""

    def __init__(self, context: ServiceContext, *, spool: Spool, detach: DetachService) -> None:
        super().__init__(context)
        self._spool = spool
        self._detach = detach
        self._odd = OddObjects(context.health, work="spooled DELs")

    def replay(self, *, deadline: Deadline) -> int:
        """Carry out every spooled DEL. The socket must be listening already, so that no plugin spools one unseen.

        An entry that refuses stays on disk (I3), is named in a condition, and is tried again at the next replay: neither the others
        nor a start wait for it.
        Returns: how many were carried out. Raises: DatastoreError if the disk refuses, after all entries have been tried.
        """
        count = 0
        tried: set[str] = set()
        disk_error: DatastoreError | None = None
        with self._spool.replay() as entries:
            for entry in entries:
                tried.add(str(entry.key))
                with self._odd.skip(str(entry.key)):
                    try:
                        self._detach.detach_sandbox(entry.key, deadline=deadline, steps=Steps(self._clock), reason="spooled DEL")
                    except DatastoreError as error:
                        if error.retryable:  # the disk refuses; the others are about this entry
                            disk_error = disk_error or error
                        raise
                    self._failpoint("restore.replayed")
                    entry.done()
                    self._failpoint("restore.entry-done")
                    count += 1
        self._odd.keep_only(tried)
        if disk_error is not None:
            raise disk_error
        return count
