"""Adopt wired sandboxes that have no row, as soon as kernel and runtime agree about them; until then quarantine their addresses.

`ipamd/model/evidence.py` decides about a quarantined address. Its sandbox is adopted if the runtime lists the sandbox. The address
cools if the wiring is gone. The wiring is removed and the address cools if the DEL was done, or if the sandbox has been absent from
the lists for an hour. The same rules decide about an *unplaced* sandbox. It is wired and not recorded, and its address has no row: EC2
did not show the address when the datastore was rebuilt, or the address is that of a branch ENI, which never has a row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline
from ipamd.core.failure_isolation import FailureIsolation
from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment, Origin, Wired, WiringSpec, name_key, record_of
from ipamd.model.cni_request import NetnsIdentity, SandboxNames
from ipamd.model.cniresult import build_result
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.errors import InvariantError, IpamError, log_text
from ipamd.model.evidence import SandboxVerdict
from ipamd.model.family import IpAddress
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import HostVeth, KernelSurvey, VlanLink
from ipamd.model.legs import extra_kind, first_leg
from ipamd.model.sandbox import Sandbox
from ipamd.sandbox.cooldown import Cooldown
from ipamd.sandbox.detach import leftover_uplink
from ipamd.sandbox.judge import SandboxJudge
from ipamd.sandbox.legs.adoption import ADOPTERS, adopter_of, seen_wiring

RESOLVE_WAIT_S = 1.0
"""How many seconds the removal of a link waits for another operation on the same sandbox. Ours: a short time is enough, because the
removal is tried again at the next list."""

FAILPOINTS = ("adopt.adopted", "adopt.leftover-removed", "adopt.settled", "adopt.vlan-removed")

log = logging.getLogger(__name__)


class QuarantineService(Service):
    """Adopts sandboxes and resolves quarantined addresses, according to the verdicts of `SandboxJudge`."""

    def __init__(self, context: ServiceContext, *, cooldown: Cooldown, judge: SandboxJudge, mtu: Callable[[], int]) -> None:
        super().__init__(context)
        self._cooldown = cooldown
        self.judge = judge
        self._mtu = mtu
        self._failures = FailureIsolation(context.health, work="quarantine")
        # The host veths of the first legs of unplaced sandboxes (see the module docstring), by the name of the veth. Two threads
        # change the dictionary, the runtime's reconciler and the host's, so entries are put and removed one by one, and readers take
        # a copy.
        self._unplaced: dict[str, HostVeth] = {}
        # Names of host veths whose sandbox has no row and no uplink.
        self._without_uplink: frozenset[str] = frozenset()
        # Names of host veths that the start had to remove, usually of ADDs that were never answered. The kernel refused the removal.
        self._leftovers: frozenset[str] = frozenset()
        self.on_list: Callable[[], None] = lambda: None
        """Called after all quarantined and unplaced sandboxes have been compared with a plausible list of the runtime."""

    def adopt(self, veth: HostVeth, sandbox: Sandbox, survey: KernelSurvey) -> str:
        """Record a wired sandbox that the runtime lists.

        Returns: an empty string, or one sentence with the reason why it must not be adopted.
        """
        wiring = seen_wiring(veth, survey, self._datastore, mtu=self._mtu)
        return wiring if isinstance(wiring, str) else self._record(self._attachment(wiring, sandbox))

    def _record(self, attachment: Attachment) -> str:
        """Record an adopted sandbox. Returns: an empty string, or why it was refused. Raises: DatastoreError, InvariantError."""
        try:
            with self._datastore.transaction() as uow:
                uow.adopt(attachment)
        except InvariantError:
            if not self._datastore.is_tombstoned(attachment.key):
                raise
            return "its DEL was done"
        self._failpoint("adopt.adopted")
        return ""

    def sweep_uplinks(self, survey: KernelSurvey) -> int:
        """Remove our uplinks that no sandbox uses.

        Such an uplink remains if the kernel deleted the veth with its namespace, or if an ADD or a DEL ended before it
        had handled both veth and uplink.
        A link that an ADD is making is left alone, and so is a link whose sandbox is wired but not recorded.
        Returns: the number of removed uplinks.
        """
        used_addresses = {veth.address for veth in survey.firsts if veth.address and not veth.is_dying}
        removed_count = 0
        for link in survey.vlans:
            if link.uplink is None or link.is_dying or link.address in used_addresses:
                continue
            try:
                with self._locks.hold(name_key(link.name), "RESOLVE", Deadline.after(self._clock, 0.0)):
                    if self._is_uplink_needed(link):
                        continue
                    self._wiring.remove_leftover(host_veth=None, address=link.address, uplink=link.uplink)
            except IpamError as error:
                log.warning(
                    "an unused VLAN link could not be removed link=%s address=%s error=%s",
                    link.name,
                    link.address,
                    log_text(error),
                )
                continue
            self._failpoint("adopt.vlan-removed")
            log.info("removed a VLAN link that no sandbox uses link=%s address=%s", link.name, link.address)
            removed_count += 1
        return removed_count

    def _is_uplink_needed(self, link: VlanLink) -> bool:
        """Whether an uplink must be left alone, because a recorded sandbox has a link of its name, or because the cooldown deletes it.

        If the veth of a recorded sandbox is missing, the reaper judges that sandbox, and its DEL removes the uplink too.
        """
        for attachment in self._datastore.attachments():
            if link.name in first_leg(attachment.wiring).links:
                return True
        return self._cooldown.is_dying(link.name)

    def remember_unplaced(self, veth: HostVeth) -> None:
        """Remember a wired sandbox whose address has no row, so that every later `resolve` judges it."""
        self._unplaced[veth.name] = veth
        self._report_unplaced()

    def unplaced(self, *, is_of_pool: bool) -> frozenset[str]:
        """Return the names of the host veths of unplaced sandboxes. Safe from any thread.

        `is_of_pool`: True selects the sandboxes with an address of the pool, False those with another address.
        """
        return frozenset(name for name, veth in self._unplaced.copy().items() if veth.is_of_pool == is_of_pool)

    def unplaced_keys(self) -> list[AttachmentKey]:
        """Return the keys of the unplaced sandboxes."""
        return [veth.key for veth in self._unplaced.copy().values() if veth.key]

    def without_network(self) -> list[HostVeth]:
        """Return the host veths of unplaced sandboxes that have no network. Safe from any thread.

        A sandbox has no network if EC2 does not show its address of the pool, or if its uplink is gone.
        """
        return [veth for veth in self._unplaced.copy().values() if veth.is_of_pool or veth.name in self._without_uplink]

    def remember_leftover(self, veth: HostVeth) -> None:
        """Remember a veth that the start had to remove and the kernel refused to remove.

        Later judgements count the veth as that of an ADD that was never answered. The caller quarantines its address.
        """
        self._leftovers |= {veth.name}

    def inspect_wiring(self, survey: KernelSurvey) -> None:
        """Quarantine addresses that other software wired, then resolve the quarantined addresses that need no list of the runtime.

        Other software wired an address if our row has no owner and the address is routed through a host veth without our alias (I1,
        I2). If the daemon of amazon-vpc-cni-k8s runs again, it assigns addresses of the same ENIs. Without the quarantine an ADD that
        got such an address would fail, and the pool could release the address at EC2 while a pod uses it. Like every quarantine, this
        one ends when the address is not wired any more. Raises: DatastoreError.
        """
        if survey.vlans:
            self.sweep_uplinks(survey)
        foreign_links = {veth.name for veth in survey.veths if veth.key is None and not veth.is_dying}
        for address, link in survey.routes.items():
            row = self._datastore.address(address) if link in foreign_links else None
            if row and row.state in (AddressState.FREE, AddressState.COOLING):
                with self._datastore.transaction() as uow:
                    uow.quarantine(address, reason=f"{link} has it, which is not ours")
                log.warning("quarantined an address that a link of other software has address=%s link=%s", address, link)
        self.resolve(None)

    def wired_sandboxes(self) -> frozenset[str] | None:
        """Return the container IDs of wired sandboxes that are quarantined or unplaced; None if the kernel could not be read.

        The sandbox of an ADD that is under way is left out, because it may be younger than the list with which the result is compared.
        """
        quarantined = {row.address for row in self._datastore.addresses(state=AddressState.QUARANTINED)}
        if not quarantined and not self._unplaced:
            return frozenset()
        survey = self.survey()
        if survey is None:
            return None
        container_ids = set[str]()
        for veth in self._unrecorded(survey):
            is_known = veth.address in quarantined or veth.name in self._unplaced
            if is_known and veth.key is not None:
                container_ids.add(veth.key.container_id)
        return frozenset(container_ids)

    def verdicts(self, address: IpAddress, listed: Collection[str] | None) -> list[str]:
        """Describe the present verdict on each unrecorded veth that has this address, one sentence each. Changes nothing."""
        survey = self.survey()
        if survey is None:
            return []
        sentences = []
        for veth in self._unrecorded(survey):
            if veth.address == address:
                judgement = self.judge.judge_veth(veth, listed=listed, was_never_promised=veth.name in self._leftovers)
                sentences.append(f"{veth.name} of sandbox {veth.key}: {judgement.verdict}: {judgement.text}")
        return sentences

    def resolve(self, listed: Mapping[str, Sandbox] | None) -> None:
        """Carry out the verdicts on all quarantined addresses and all unplaced sandboxes.

        Args:
            listed: a complete, plausible list of the runtime, by container ID. If it is None, only verdicts that need no list are
                carried out.
        Raises nothing. A condition names each address that cannot be resolved, and the next call tries again.
        """
        rows, unplaced = self._datastore.addresses(state=AddressState.QUARANTINED), frozenset(self._unplaced)
        if rows or unplaced:
            survey = self.survey()
            if survey is None:
                return
            self._resolve_by(survey, rows, unplaced, listed)
        else:
            self._failures.retain(())
        if listed is not None:
            self.on_list()

    def _resolve_by(
        self, survey: KernelSurvey, rows: Collection[Address], unplaced: Collection[str], listed: Mapping[str, Sandbox] | None
    ) -> None:
        """Resolve the quarantined rows, then the unplaced sandboxes.

        `unplaced`: names of the host veths of the sandboxes that were unplaced before the survey.
        """
        unrecorded = self._unrecorded(survey)
        self._leftovers &= {veth.name for veth in unrecorded}
        self._failures.retain({str(row.address) for row in rows} | {str(veth.address) for veth in unrecorded})
        for row in rows:
            with self._failures.isolate(str(row.address)):
                self._resolve_row(row, unrecorded, survey, listed)
        self._update_unplaced(unplaced, unrecorded, survey)
        for veth in self._unplaced.copy().values():
            with self._failures.isolate(str(veth.address)):
                self._resolve_unplaced(veth, listed)

    def _update_unplaced(self, unplaced: Collection[str], unrecorded: list[HostVeth], survey: KernelSurvey) -> None:
        """Drop the unplaced sandboxes that are gone or have got a row, and note which sandboxes without a row have no uplink.

        A sandbox that another thread has remembered since the survey is not in `unplaced`, and stays.
        """
        without_row = [veth for veth in unrecorded if veth.address and self._datastore.address(veth.address) is None]
        self._without_uplink = frozenset(veth.name for veth in without_row if survey.vlan_of(veth.address) is None)
        present = {veth.name: veth for veth in without_row}
        for name in unplaced:
            if name not in present:
                self._unplaced.pop(name, None)
            elif name in self._unplaced:
                self._unplaced[name] = present[name]
        self._report_unplaced()

    def _resolve_row(
        self, row: Address, unrecorded: list[HostVeth], survey: KernelSurvey, listed: Mapping[str, Sandbox] | None
    ) -> None:
        """Resolve one quarantined address. If several veths have it, removing one of them does not free the address."""
        carriers = [veth for veth in survey.firsts if veth.address == row.address]
        live_count = sum(not veth.is_dying for veth in carriers)
        if not live_count:
            self._resolve_without_veth(row, carriers, survey)
        for veth in unrecorded:
            if veth.address == row.address:
                self._resolve_carrier(row, veth, survey, listed, is_only_carrier=live_count == 1)

    def _resolve_without_veth(self, row: Address, dying_veths: list[HostVeth], survey: KernelSurvey) -> None:
        """Let a quarantined address cool if neither a live veth nor a route has it."""
        judgement = self.judge.judge_without_veth(is_routed=row.address in survey.routes)
        if judgement.verdict is not SandboxVerdict.REAP:
            return
        if row.address in survey.to_rules or row.address in survey.from_rules:
            self._wiring.remove_leftover(host_veth=None, address=row.address)
        self._cool(row, judgement.main_reason, dying_veth=dying_veths[0].name if dying_veths else None)

    def _resolve_carrier(
        self, row: Address, veth: HostVeth, survey: KernelSurvey, listed: Mapping[str, Sandbox] | None, *, is_only_carrier: bool
    ) -> None:
        """Adopt or remove the unrecorded sandbox that has a quarantined address, if that is the verdict."""
        for extra in survey.extras_of(veth.key) if veth.key else ():
            self._reserve_extra_address(row, extra)
        judgement = self.judge.judge_veth(veth, listed=listed, was_never_promised=veth.name in self._leftovers)
        if judgement.verdict is SandboxVerdict.ADOPT and listed is not None and veth.key is not None:
            refusal = self.adopt(veth, listed[veth.key.container_id], survey)
            if refusal:
                log.warning("an address stays quarantined address=%s reason=%s", row.address, refusal)
        elif judgement.verdict is SandboxVerdict.UNWIRE_THEN_REAP:
            self._unwire(veth, address=row.address if is_only_carrier else None)
            self._failpoint("adopt.leftover-removed")
            if is_only_carrier:
                self._cool(row, f"sandbox {veth.key}: {judgement.main_reason}; its wiring was removed", dying_veth=None)

    def _reserve_extra_address(self, row: Address, extra: HostVeth) -> None:
        """Reserve the address of an extra leg of a quarantined sandbox, so that it cools with the pool address (I1, I8).

        Nothing is done for a leg whose address does not cool, or whose address is recorded already.
        """
        extra_address, kind = extra.address, extra_kind(extra)
        if extra_address is None or kind is None or not kind.cools_with_first:
            return
        if any(extra_address == other_row.other_address for other_row in self._datastore.addresses()):
            return
        with self._datastore.transaction() as uow:
            current = self._datastore.address(row.address)
            if current is not None and current.state is AddressState.QUARANTINED and current.other_address is None:
                uow.record_extra_address(row.address, other_address=extra_address)

    def _resolve_unplaced(self, veth: HostVeth, listed: Mapping[str, Sandbox] | None) -> None:
        """Adopt an unplaced sandbox, or remove its wiring, if that is the verdict.

        A sandbox with an address of the pool is not adopted while the address has no row. No address is freed, because the pool has no
        row of the sandbox's address.
        """
        judgement = self.judge.judge_veth(veth, listed=listed)
        if judgement.verdict is SandboxVerdict.ADOPT and not veth.is_of_pool and listed is not None and veth.key is not None:
            survey = self.survey()
            refusal = self.adopt(veth, listed[veth.key.container_id], survey) if survey else "the kernel could not be read"
            if refusal:
                log.warning("a sandbox stays unrecorded veth=%s sandbox=%s reason=%s", veth.name, veth.key, refusal)
                return
        elif judgement.verdict is SandboxVerdict.UNWIRE_THEN_REAP:
            self._unwire(veth, address=veth.address)
            log.info(
                "removed the wiring of an unrecorded sandbox veth=%s sandbox=%s reason=%s",
                veth.name,
                veth.key,
                judgement.main_reason,
            )
        else:
            return
        self._unplaced.pop(veth.name, None)
        self._report_unplaced()

    def _unwire(self, veth: HostVeth, *, address: IpAddress | None) -> None:
        """Remove a veth of an unrecorded sandbox. Raises: BusyError, WiringError, KernelDumpError.

        `address`: the address whose routes and rules are removed too; None if they must stay.
        """
        if veth.key is None:
            raise ValueError("a veth without identity is not ours to remove")
        with self._locks.hold(veth.key, "RESOLVE", Deadline.after(self._clock, RESOLVE_WAIT_S)):
            # The name of the link comes from the key. If the sandbox was added again in the meantime, the link is in use (I2).
            is_added = self._datastore.attachment(veth.key) is not None
            uplink = None
            if not veth.is_of_pool:
                address, uplink = leftover_uplink(veth, self._wiring.survey(), self._datastore)
            self._wiring.remove_leftover(host_veth=None if is_added else veth.name, address=address, uplink=uplink)

    def _cool(self, row: Address, reason: str, *, dying_veth: str | None) -> None:
        """Start the cooldown of a quarantined address."""
        with self._datastore.transaction() as uow:
            current = self._datastore.address(row.address)  # read again: another thread may have resolved it in the meantime
            if current is None or current.state is not AddressState.QUARANTINED:
                return
            uow.resolve(row.address, cooldown=self._cooldown.period, reason=reason)
        self._failpoint("adopt.settled")
        self._cooldown.start(row.address, dying_veth=dying_veth)

    def _unrecorded(self, survey: KernelSurvey) -> list[HostVeth]:
        """Return the live first host veths with an alias of ours whose sandbox is not recorded."""
        return [
            veth
            for veth in survey.firsts
            if not veth.is_dying and veth.key and veth.address and self._datastore.attachment(veth.key) is None
        ]

    def _report_unplaced(self) -> None:
        """Tell the judge how many sandboxes are unplaced, and report them as a condition."""
        unplaced = self._unplaced.copy()
        self.judge.unplaced_count = len(unplaced)
        problems = []
        for adopter in ADOPTERS:
            sandboxes = [f"{veth.address} of {veth.key}" for veth in unplaced.values() if adopter_of(veth) is adopter]
            if sandboxes:
                problems.append(f"{adopter.why_without_row}: {', '.join(sandboxes)}")
        unrecorded = problem(ConditionCode.UNRECORDED_SANDBOXES, sandboxes="; ".join(problems)) if problems else None
        self._health.report("unrecorded sandboxes", unrecorded)

    def survey(self) -> KernelSurvey | None:
        """Survey the kernel. Returns: None if it could not be read, from which the caller must conclude nothing."""
        try:
            return self._wiring.survey()
        except IpamError as error:
            log.info("the kernel could not be surveyed, nothing is reaped or resolved now error=%s", log_text(error))
            return None

    def _attachment(self, wiring: WiringSpec, sandbox: Sandbox) -> Attachment:
        """Return a record with the facts from the kernel.

        The path of the network namespace is unknown. The MACs are derived in the same way as at ADD, or were read from the veth.
        """
        first = first_leg(wiring)
        wired = Wired(first.mac("host"), first.mac("sandbox"), NetnsIdentity(0, 0), is_default_route=not wiring.is_further)
        return record_of(
            wiring,
            netns_identity=wired.netns_identity,
            fingerprint="",
            result=build_result(wiring, wired),
            created_at=self._clock.now(),
            names=SandboxNames(sandbox.pod_namespace, sandbox.pod_name, sandbox.pod_uid),
            origin=Origin.ADOPT,
        )
