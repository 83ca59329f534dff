"""Adopt sandboxes that are wired but not recorded if kernel and runtime agree; until they do, their addresses are quarantined.

What becomes of a quarantined address is the verdict of `ipamd/model/evidence.py`: adopted if the runtime lists its sandbox, cooling
if its wiring is gone, unwired and then cooling if its DEL was done or its sandbox has been absent from the lists for an hour. The
same holds for a wired sandbox whose address has no row (*unplaced*): EC2 did not show the address when the datastore was rebuilt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline
from ipamd.core.loop import OddObjects
from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment, NetnsIdentity, Origin, Wired, WiringSpec, is_imported_alias, name_key, sandbox_mac
from ipamd.model.branch import Branch, BranchEni
from ipamd.model.cniresult import build_result
from ipamd.model.errors import InvariantError, IpamError, log_text
from ipamd.model.evidence import Verdict
from ipamd.model.family import IpAddress
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.sandbox import Sandbox
from ipamd.model.snapshot import branch_conflict
from ipamd.sandbox.cooldown import Cooldown
from ipamd.sandbox.detach import leftover_branch
from ipamd.sandbox.judge import SandboxJudge

RESOLVE_WAIT_S = 1.0
"""How long resolving waits for an operation on the same sandbox; the next list tries again. Ours."""

FAILPOINTS = ("adopt.adopted", "adopt.leftover-removed", "adopt.settled", "adopt.vlan-removed")

log = logging.getLogger(__name__)


class QuarantineService(Service):
    """Adopts sandboxes and resolves quarantined addresses, by the verdicts of `judge`."""

    def __init__(self, context: ServiceContext, *, cooldown: Cooldown, judge: SandboxJudge, mtu: Callable[[], int]) -> None:
        super().__init__(context)
        self._cooldown = cooldown
        self.judge = judge
        self._mtu = mtu
        self._odd = OddObjects(context.health, work="quarantine")
        self._unplaced: dict[str, HostVeth] = {}
        self._led_nowhere: frozenset[str] = frozenset()
        self._leftovers: frozenset[str] = frozenset()

    def adopt(self, veth: HostVeth, sandbox: Sandbox, survey: KernelSurvey) -> str:
        """Record a wired sandbox that the runtime lists.

        Returns: an empty string, or one sentence that says why it must not be adopted.
        """
        if veth.key is None or veth.address is None:
            return "the veth carries no identity"
        row = self._datastore.address(veth.address)
        if veth.is_branch:
            return self._adopt_branch(veth, sandbox, survey, row)
        if row is None:
            return "the address is on no ENI of this node"
        device = survey.routes.get(veth.address)
        others = [
            other for other in survey.firsts if other.address == veth.address and other.name != veth.name and not other.is_dying
        ]
        if device != veth.name and (device is not None or others):
            return "alias and route disagree"  # a missing route says nothing (I11): the host network reconciler restores it
        if row.owner is not None:
            return f"recorded for {row.owner}"
        if self._datastore.attachment(veth.key) is not None:
            return "the sandbox is recorded with another address"
        eni = next(eni for eni in self._datastore.enis() if eni.eni_id == row.eni_id)
        return self._record(self._attachment(veth, eni.eni_id, eni.route_table, sandbox, survey))

    def _adopt_branch(self, veth: HostVeth, sandbox: Sandbox, survey: KernelSurvey, row: Address | None) -> str:
        """Record a sandbox with a branch ENI by the aliases of its veth and its VLAN link."""
        link, key = survey.vlan_of(veth.address), veth.key
        if link is None or link.branch is None or key is None:
            return "no VLAN link of ours leads to its branch ENI"
        if self._datastore.attachment(key) is not None:
            return "the sandbox is recorded with another address"
        made = self._attachment(veth, link.eni_id, link.branch.route_table, sandbox, survey, link.branch)
        others, enis = self._datastore.attachments(), self._datastore.enis()
        return branch_conflict(BranchEni.of(made), key, row=row, others=others, enis=enis) or self._record(made)

    def _record(self, attachment: Attachment) -> str:
        try:
            with self._datastore.transaction() as uow:
                if attachment.branch is None:
                    uow.adopt(attachment)
                else:
                    uow.attach_branch(attachment, is_adopted=True)
        except InvariantError:
            if not self._datastore.is_tombstoned(attachment.key):
                raise
            return "its DEL was done"
        self._failpoint("adopt.adopted")
        return ""

    def sweep_vlans(self, survey: KernelSurvey) -> int:
        """Remove the VLAN links of ours that no sandbox has: the veth went with its namespace, or an ADD or a DEL ended in between.

        One that an ADD is just making is left alone, and so is one whose sandbox is wired and not recorded. Returns: how many.
        """
        used = {veth.address for veth in survey.firsts if veth.address and not veth.is_dying}
        count = 0
        for link in survey.vlans:
            if link.branch is None or link.is_dying or link.address in used:
                continue
            try:
                with self._locks.hold(name_key(link.name), "RESOLVE", Deadline.after(self._clock, 0.0)):
                    now = self._datastore.attachments()
                    if any(one.branch and one.branch.vlan == link.vlan for one in now):
                        continue  # its veth is missing: who judges that sandbox decides about both
                    if self._cooldown.is_dying(link.name):
                        continue
                    self._wiring.remove_leftover(host_veth=None, address=link.address, branch=link.branch)
            except IpamError as error:
                log.warning("a VLAN link stays link=%s address=%s error=%s", link.name, link.address, log_text(error))
                continue
            self._failpoint("adopt.vlan-removed")
            log.info("a VLAN link was removed, no sandbox has it link=%s address=%s", link.name, link.address)
            count += 1
        return count

    def remember_unplaced(self, veth: HostVeth) -> None:
        """Remember a wired sandbox whose address has no row, so that every later look judges it."""
        self._set_unplaced({**self._unplaced, veth.name: veth})

    def unplaced(self, *, is_branch: bool) -> frozenset[str]:
        """Host veths of sandboxes that are wired and whose address, of a branch ENI or not, has no row. For any thread."""
        return frozenset(name for name, veth in self._unplaced.items() if veth.is_branch == is_branch)

    def cut_off(self) -> list[HostVeth]:
        """Those of them that nothing leads to the network: EC2 does not show the address, or the VLAN link is gone. For any thread."""
        return [veth for veth in self._unplaced.values() if not veth.is_branch or veth.name in self._led_nowhere]

    def remember_leftover(self, veth: HostVeth) -> None:
        """Remember wiring that nobody was promised and the kernel would not remove; its address must be quarantined meanwhile."""
        self._leftovers |= {veth.name}

    def take_stock(self, survey: KernelSurvey) -> None:
        """After a look at the kernel: quarantine what others wired, and resolve what needs no list. Raises: DatastoreError.

        What others wired is nobody's by our rows, and routed through a host veth without our alias (I1, I2). amazon-vpc-cni-k8s gives
        addresses beside us where its daemon came back: an ADD that got one of them would fail, and in time EC2 would be asked to
        take it from under its pod. It ends like every quarantine, once nothing is wired.
        """
        if survey.vlans:
            self.sweep_vlans(survey)
        others = {veth.name for veth in survey.veths if veth.key is None and not veth.is_dying}
        for address, link in survey.routes.items():
            row = self._datastore.address(address) if link in others else None
            if row and row.state in (AddressState.FREE, AddressState.COOLING):
                with self._datastore.transaction() as uow:
                    uow.quarantine(address, reason=f"{link} has it, which is not ours")
                log.warning("quarantined: a link that is not ours has it address=%s link=%s", address, link)
        self.resolve(None)

    def wired_sandboxes(self) -> frozenset[str] | None:
        """Container IDs of the wired sandboxes that are quarantined or unplaced; None if the kernel could not be read.

        A veth of an ADD that is under way is neither: it may be younger than the list that is about to be counted.
        """
        quarantined = {row.address for row in self._datastore.addresses(state=AddressState.QUARANTINED)}
        if not quarantined and not self._unplaced:
            return frozenset()
        survey = self.survey()
        if survey is None:
            return None
        return frozenset(
            veth.key.container_id
            for veth in self._unrecorded(survey)
            if veth.key and (veth.address in quarantined or veth.name in self._unplaced)
        )

    def verdicts(self, address: IpAddress, listed: Collection[str] | None) -> list[str]:
        """Say what the verdict is now on each unrecorded veth that carries an address, one sentence each; acts on none."""
        survey, said = self.survey(), []
        for veth in (veth for veth in self._unrecorded(survey) if veth.address == address) if survey else ():
            judgement = self.judge.judge_veth(veth, listed=listed, is_unpromised=veth.name in self._leftovers)
            said.append(f"{veth.name} of sandbox {veth.key}: {judgement.verdict}: {'; '.join(judgement.reasons)}")
        return said

    def resolve(self, listed: Mapping[str, Sandbox] | None) -> None:
        """Carry out the verdicts on everything quarantined or unplaced.

        Args:
            listed: a complete, plausible list of the runtime; None without one: then only what needs no list is resolved.
        Nothing is raised: an address that refuses is named in a condition, and tried again.
        """
        rows = self._datastore.addresses(state=AddressState.QUARANTINED)
        if not rows and not self._unplaced:
            self._odd.keep_only(())
            return
        survey = self.survey()
        if survey is None:
            return
        unrecorded = self._unrecorded(survey)
        self._leftovers &= {veth.name for veth in unrecorded}
        self._odd.keep_only({str(row.address) for row in rows} | {str(veth.address) for veth in unrecorded})
        for row in rows:
            with self._odd.skip(str(row.address)):
                self._resolve_row(row, unrecorded, survey, listed)
        left = [veth for veth in unrecorded if veth.address and self._datastore.address(veth.address) is None]
        self._led_nowhere = frozenset(veth.name for veth in left if survey.vlan_of(veth.address) is None)
        self._set_unplaced({veth.name: veth for veth in left if veth.name in self._unplaced})
        for veth in list(self._unplaced.values()):
            with self._odd.skip(str(veth.address)):
                self._resolve_unplaced(veth, listed)

    def _resolve_row(
        self, row: Address, unrecorded: list[HostVeth], survey: KernelSurvey, listed: Mapping[str, Sandbox] | None
    ) -> None:
        """Resolve one quarantined address; while several veths carry it, the end of one does not free it."""
        carriers = [veth for veth in survey.firsts if veth.address == row.address]
        live_count = sum(not veth.is_dying for veth in carriers)
        if not live_count:
            judgement = self.judge.judge_unclaimed(is_routed=row.address in survey.routes)
            if judgement.verdict is Verdict.REAP:
                if row.address in survey.to_rules or row.address in survey.from_rules:
                    self._wiring.remove_leftover(host_veth=None, address=row.address)
                dying = next((veth.name for veth in carriers), None)
                self._cool(row, judgement.reasons[0], dying_veth=dying)
        for veth in (veth for veth in unrecorded if veth.address == row.address):
            self._hold_other(row, survey.egress_of(veth.key) if veth.key else None)
            is_leftover = veth.name in self._leftovers
            judgement = self.judge.judge_veth(veth, listed=listed, is_unpromised=is_leftover)
            if judgement.verdict is Verdict.ADOPT and listed is not None and veth.key is not None:
                refusal = self.adopt(veth, listed[veth.key.container_id], survey)
                if refusal:
                    log.warning("stays quarantined address=%s reason=%s", row.address, refusal)
            elif judgement.verdict is Verdict.UNWIRE_THEN_REAP:
                self._unwire(veth, address=row.address if live_count == 1 else None)
                self._failpoint("adopt.leftover-removed")
                if live_count == 1:
                    self._cool(row, f"sandbox {veth.key}: {judgement.reasons[0]}; its wiring was removed", dying_veth=None)

    def _hold_other(self, row: Address, second: HostVeth | None) -> None:
        """Give nobody what a quarantined sandbox has for egress, and let it cool with its pool address (I1, I8)."""
        found = second.address if second else None
        if found is None or any(found == one.other_address for one in self._datastore.addresses()):
            return
        with self._datastore.transaction() as uow:
            now = self._datastore.address(row.address)
            if now is not None and now.state is AddressState.QUARANTINED and now.other_address is None:
                uow.find_other(row.address, other_address=found)

    def _resolve_unplaced(self, veth: HostVeth, listed: Mapping[str, Sandbox] | None) -> None:
        """Remove what is left of a sandbox without a row if that is the verdict; it has no address that could be freed."""
        judgement = self.judge.judge_veth(veth, listed=listed)
        if judgement.verdict is Verdict.ADOPT and veth.is_branch and listed is not None and veth.key is not None:
            survey = self.survey()
            refusal = self.adopt(veth, listed[veth.key.container_id], survey) if survey else "the kernel could not be read"
            if refusal:
                log.warning("stays unplaced veth=%s sandbox=%s reason=%s", veth.name, veth.key, refusal)
                return
        elif judgement.verdict is Verdict.UNWIRE_THEN_REAP:
            self._unwire(veth, address=veth.address)
            log.info("wiring was removed veth=%s sandbox=%s reason=%s", veth.name, veth.key, judgement.reasons[0])
        else:
            return
        self._set_unplaced({name: other for name, other in self._unplaced.items() if name != veth.name})

    def _unwire(self, veth: HostVeth, *, address: IpAddress | None) -> None:
        """Remove a veth, and with `address` its routes and rules. Raises: BusyError, WiringError, KernelDumpError."""
        if veth.key is None:
            raise ValueError("a veth without identity is not ours to remove")
        with self._locks.hold(veth.key, "RESOLVE", Deadline.after(self._clock, RESOLVE_WAIT_S)):
            # The link's name comes from the key: if the sandbox was added again meanwhile, it is the new one's (I2).
            is_added = self._datastore.attachment(veth.key) is not None
            branch = None
            if veth.is_branch:
                address, branch = leftover_branch(veth, self._wiring.survey(), self._datastore)
            self._wiring.remove_leftover(host_veth=None if is_added else veth.name, address=address, branch=branch)

    def _cool(self, row: Address, reason: str, *, dying_veth: str | None) -> None:
        with self._datastore.transaction() as uow:
            now = self._datastore.address(row.address)  # units of work are serialised: another thread may have settled it
            if now is None or now.state is not AddressState.QUARANTINED:
                return
            uow.resolve(row.address, cooldown=self._cooldown.period, reason=reason)
        self._failpoint("adopt.settled")
        self._cooldown.start(row.address, dying_veth=dying_veth)

    def _unrecorded(self, survey: KernelSurvey) -> list[HostVeth]:
        """Live veths that carry an identity of ours whose sandbox is not recorded."""
        return [
            veth
            for veth in survey.firsts
            if not veth.is_dying and veth.key and veth.address and self._datastore.attachment(veth.key) is None
        ]

    def _set_unplaced(self, unplaced: dict[str, HostVeth]) -> None:
        self._unplaced = unplaced
        told = [
            f"{what}: {', '.join(f'{veth.address} of {veth.key}' for veth in of_kind)}"
            for what, is_branch in (
                ("EC2 shows the address on no ENI of this node", False),
                ("by a branch ENI, not recorded", True),
            )
            if (of_kind := [veth for veth in unplaced.values() if veth.is_branch == is_branch])
        ]
        self._health.report("unplaced", f"unplaced: wired, but {'; '.join(told)}" if told else "")

    def survey(self) -> KernelSurvey | None:
        """Look at the kernel; None if it could not be read: then nothing is concluded from it."""
        try:
            return self._wiring.survey()
        except IpamError as error:
            log.info("the kernel could not be surveyed, nothing is reaped or resolved now error=%s", log_text(error))
            return None

    def _attachment(
        self,
        veth: HostVeth,
        eni_id: EniId,
        route_table: int,
        sandbox: Sandbox,
        survey: KernelSurvey,
        branch: Branch | None = None,
    ) -> Attachment:
        """Rebuild a record from the kernel's copy. The netns path is not known; MACs are derived as at ADD, or another's."""
        if veth.key is None or veth.address is None:
            raise ValueError("a veth without identity cannot be recorded")
        unknown = NetnsIdentity(0, 0)
        # Of a sandbox with a branch ENI no alias says who wired it: with another MAC than ours amazon-vpc-cni-k8s did.
        is_others = is_imported_alias(veth.alias) or (veth.is_branch and veth.mac not in ("", sandbox_mac(veth.key, side="host")))
        others = MacAddress(veth.mac) if is_others else None
        # The setting may have changed since: a record with another MTU than the sandbox has would have it "repaired".
        second = survey.egress_of(veth.key)
        other = second.address if second else None
        mtu = veth.mtu or self._mtu()
        spec = WiringSpec(veth.key, veth.address, route_table, veth.name, "", mtu, others, other_address=other, branch=branch)
        macs = Wired(spec.mac("host"), spec.mac("sandbox"), unknown)
        return Attachment(
            key=veth.key,
            address=veth.address,
            eni_id=eni_id,
            route_table=route_table,
            host_veth=veth.name,
            netns="",
            netns_identity=unknown,
            fingerprint="",
            result=build_result(spec, macs),
            created_at=self._clock.now(),
            origin=Origin.ADOPT,
            pod_namespace=sandbox.pod_namespace,
            pod_name=sandbox.pod_name,
            pod_uid=sandbox.pod_uid,
            other_address=other,
            branch=branch,
        )
