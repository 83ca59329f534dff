"""Give the node back to amazon-vpc-cni-k8s: refuse ADD, complete the wiring, write aws-node's file, and exchange the conflists.

Every step can be repeated, and the next export finishes an export that was interrupted (docs/adr/0038). The first step writes a note
to the disk. While the note exists, no process of ours assigns an address, even after a crash. aws-node's conflist is restored only
when the file with its allocations is complete, so that its daemon never reads an incomplete file.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline
from ipamd.model.attachment import Attachment
from ipamd.model.aws_node import Allocation
from ipamd.model.aws_node_export import recorded, unrecorded, wanted_name
from ipamd.model.card_interfaces import is_further_card
from ipamd.model.cniresult import recorded_spec
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.errors import ForeignStateError, IpamError, TakeoverError, log_text
from ipamd.model.failures import FailureCode, failure
from ipamd.model.freeze import FreezeCause
from ipamd.model.kernel import KernelSurvey
from ipamd.model.kernel_numbers import FROM_SANDBOX_PRIORITY, TO_SANDBOX_PRIORITY
from ipamd.model.legs import first_alone, legs_of
from ipamd.model.network_cards import subnet_pool
from ipamd.model.record import dataclass, field, replace
from ipamd.model.repair_messages import repair_texts
from ipamd.model.repairs import RepairKind, RepairReport
from ipamd.model.wiring_comparison import wiring_differences
from ipamd.model.words import counted, first_of
from ipamd.ports.aws_node import AwsNode
from ipamd.sandbox.cooldown import Cooldown

CONDITION = "export"
REASON = "this node goes back to amazon-vpc-cni-k8s (`ipamctl export`); `ipamctl export --undo` keeps it"

ADDS_WAIT_S = 20.0
"""Longest wait, in seconds, for ADDs that are in progress. Ours: nearly all ADDs end sooner. An ADD that finds no address may take
longer, and then the export must be repeated."""

LOCK_WAIT_S = 5.0
"""Longest wait for one sandbox that another request works on. Ours: ADD is blocked by then, and a DEL or CHECK takes less than
a second."""

NAMED_MAX = 5
"""The largest number of objects that a refusal names. Ours: a refusal is one line."""

POLL_S = 0.02
"""Pause between two looks for running ADDs. Ours: an ADD takes tens of milliseconds, and the export lasts for seconds."""

FAILPOINTS = ("export.begun", "export.renamed", "export.written", "export.restored")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ExportReport:
    """The result of an export.

    `exported_count`: the number of addresses in the exported file.
    `steps`: a sentence for each step that was done.
    `problems`: a sentence for each problem, with the operator's next step. The export is complete if there is none.
    """

    exported_count: int = 0
    steps: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class ExportService(Service):
    """Carries out `ipamctl export` and `ipamctl export --undo`, one at a time."""

    def __init__(self, context: ServiceContext, *, cooldown: Cooldown, aws_node: AwsNode, prefix: str) -> None:
        super().__init__(context)
        self._freeze = context.freeze
        self._cooldown = cooldown
        self._aws_node = aws_node
        self._prefix = prefix
        self._exclusive = threading.Lock()
        self._quiesce: Callable[[], None] = lambda: None
        self._restart: Callable[[str], None] = lambda _: None
        self._release: Callable[[], list[RepairReport]] = list

    def follow(
        self, *, quiesce: Callable[[], None], restart: Callable[[str], None], release: Callable[[], list[RepairReport]]
    ) -> None:
        """Set the collaborators that are made after this service.

        Args:
            quiesce: ends the loops that change something.
            restart: ends the process for the given reason.
            release: removes our rules that would stop sandboxes of aws-node (`HostNetwork.allow_neighbour_discovery`).
        """
        self._quiesce = quiesce
        self._restart = restart
        self._release = release

    def hold(self) -> None:
        """Block ADD and freeze the pool until the process ends."""
        self._health.block_adds(CONDITION, REASON)
        self._health.report(CONDITION, problem(ConditionCode.EXPORTED, cause=REASON))
        self._freeze.set(FreezeCause.EXPORT, REASON)

    def export(self) -> ExportReport:
        """Do all steps of the export that are not done yet. Returns: the steps that were done, and the problems."""
        return self._exclusively(self._export, busy="another export is at work")

    def undo(self) -> ExportReport:
        """Undo an export. This process ends, and the next process serves the node again.

        If aws-node has run in the meantime, the next process takes the node over from it in the same way as for the first time.
        """
        return self._exclusively(self._undo, busy="an export is at work: let it end first")

    def _exclusively(self, work: Callable[[ExportReport], None], *, busy: str) -> ExportReport:
        report = ExportReport()
        if not self._exclusive.acquire(blocking=False):
            report.problems.append(busy)
            return report
        try:
            work(report)
        finally:
            self._exclusive.release()
        return report

    def _undo(self, report: ExportReport) -> None:
        if not self._aws_node.is_exporting:
            report.steps.append("no export was begun")
            return
        listener = self._aws_node.listener()
        if listener:
            report.problems.append(f"amazon-vpc-cni-k8s serves {listener}: remove its DaemonSet aws-node from this node first")
            return
        try:
            self._aws_node.end_export()
        except TakeoverError as error:
            report.problems.append(log_text(error))
            return
        report.steps.append("the daemon restarts, and serves this node again")
        self._restart("an export was undone")

    def _export(self, report: ExportReport) -> None:
        try:
            self._begin()
            report.steps.append("ADD is refused, and no EC2 call is made")
            self._finish(report)
        except IpamError as error:
            self._health.record_error("export", error)
            report.problems.append(f"{log_text(error)}; repeat the export")

    def _begin(self) -> None:
        """Make sure that no process of ours assigns an address from now on. Raises: TakeoverError."""
        aws_node = self._aws_node
        if not (aws_node.is_exporting or self._health.is_ready):
            raise failure(TakeoverError, FailureCode.EXPORT_NOT_READY)
        listener = aws_node.listener()
        if listener:
            details = "its daemon would overwrite the exported file: export before its DaemonSet aws-node comes to this node"
            raise failure(TakeoverError, FailureCode.EXPORT_OTHER_SERVES, listener=listener, advice=details)
        if aws_node.has_run_since():  # some of the addresses that aws-node assigned may be free in our rows
            details = (
                "our rows are older than its file: restart vpc-ipamd, which then takes over the addresses that the other gave"
            )
            raise failure(TakeoverError, FailureCode.EXPORT_OTHER_RAN, advice=details)
        if not aws_node.is_exporting:
            self._require_common_snat()
            self._require_unpinned()
            self._require_no_pools()
            self._require_one_card()
        try:
            aws_node.begin_export()
        finally:
            # `is_exporting` is true even if `begin_export` failed after it had written a part of the note. That part would make the
            # next process block ADD, so this process does the same.
            if aws_node.is_exporting:
                self.hold()
        self._failpoint("export.begun")
        self._quiesce()

    def _require_common_snat(self) -> None:
        """Refuse the export while a sandbox has another SNAT than the node, because aws-node has no SNAT by pod.

        Raises: TakeoverError.
        """
        chosen = [row.sandbox_name or str(row.key) for row in self._datastore.attachments() if row.snat is not None]
        if chosen:
            raise failure(TakeoverError, FailureCode.EXPORT_POD_SNAT, sandboxes=first_of(chosen, NAMED_MAX))

    def _require_unpinned(self) -> None:
        """Refuse the export while there are pods that asked for their addresses, because aws-node would not keep these for them.

        Raises: TakeoverError.
        """
        pinned = [row.sandbox_name or str(row.key) for row in self._datastore.attachments() if row.kept_s is not None]
        if pinned:
            raise failure(TakeoverError, FailureCode.EXPORT_PINNED, sandboxes=first_of(pinned, NAMED_MAX))

    def _require_one_card(self) -> None:
        """Refuse the export while pods have interfaces of several network cards, because the exported file cannot contain them.

        Raises: TakeoverError.
        """
        pods = [row.sandbox_name or str(row.key) for row in self._datastore.attachments() if is_further_card(row.key.ifname)]
        if pods:
            raise failure(TakeoverError, FailureCode.EXPORT_MULTI_NIC, sandboxes=first_of(sorted(set(pods)), NAMED_MAX))

    def _require_no_pools(self) -> None:
        """Refuse the export while the node has an ENI of a pool of pods. Raises: TakeoverError."""
        enis = [f"{eni.eni_id} ({eni.pool})" for eni in self._datastore.enis() if subnet_pool(eni.pool)]
        if enis:
            raise failure(TakeoverError, FailureCode.EXPORT_POD_POOLS, enis=first_of(enis, NAMED_MAX))

    def _finish(self, report: ExportReport) -> None:
        """Complete the wiring, write aws-node's file, then exchange the conflists. Raises: IpamError."""
        self._await_adds()
        self._cooldown.sweep()
        self._rename(report)
        survey = self._complete(report)
        allocations = self._allocations(survey, report)
        # Before aws-node wires a sandbox that needs neighbour discovery. Sandboxes that we wired have permanent neighbour entries.
        released = self._release()
        if released:
            report.steps.append(repair_texts(released))
        path = self._aws_node.write(allocations, routed=survey.routes)
        self._failpoint("export.written")
        report.exported_count = len(allocations)
        report.steps.append(f"{counted(len(allocations), 'address')} written to {path}")
        restored = self._aws_node.restore_conflist()  # before our conflist is removed, so that there is always a conflist
        if restored:
            report.steps.append(restored)
        self._failpoint("export.restored")
        if not self._aws_node.has_conflist():
            report.steps.append(
                "amazon-vpc-cni-k8s had no conflist here, so ours stays for now: its daemon writes one, which sorts before ours; then "
                "remove ours"
            )
        else:
            removed = self._aws_node.remove_our_conflist()
            if removed:
                report.steps.append(removed)
        cooling = self._datastore.counts().cooling
        if cooling:
            report.steps.append(
                f"{counted(cooling, 'address')} still cooling, which amazon-vpc-cni-k8s does not know: it may assign them at once"
            )
        log.warning("exported to amazon-vpc-cni-k8s steps=%s", "; ".join([*report.steps, *report.problems]))

    def _await_adds(self) -> None:
        """Wait until no ADD is in progress. Raises: TakeoverError."""
        deadline = time.monotonic() + ADDS_WAIT_S
        while any(lock.operation == "ADD" for lock in self._locks.holders()):
            if time.monotonic() > deadline:
                raise failure(TakeoverError, FailureCode.EXPORT_ADD_AT_WORK)
            time.sleep(POLL_S)

    def _rename(self, report: ExportReport) -> None:
        """Name each host veth after its pod, if that name is free, because aws-node recognises living sandboxes by these names."""
        count = 0
        for attachment in self._datastore.attachments():
            if not attachment.is_of_pool:
                continue  # its host veth was named after the pod by the ADD
            wanted = wanted_name(attachment, prefix=self._prefix)
            if not wanted or attachment.host_veth == wanted:
                continue
            with self._locks.hold(attachment.key, "EXPORT", Deadline.after(self._clock, LOCK_WAIT_S)):
                if self._datastore.attachment(attachment.key) != attachment:
                    continue  # a DEL came before the lock was taken
                if any(row.host_veth == wanted for row in self._datastore.attachments()) or self._is_taken(wanted):
                    continue
                with self._datastore.transaction() as uow:
                    uow.rename_veth(attachment.key, host_veth=wanted)
                self._failpoint("export.renamed")
                self._wiring.rename_veth(attachment.wiring, to=wanted)
                count += 1
        if count:
            report.steps.append(f"{counted(count, 'host veth')} named by pod")

    def _is_taken(self, name: str) -> bool:
        try:
            return self._wiring.veth(name) is not None
        except IpamError:
            return True  # another kind of link has the name

    def _complete(self, report: ExportReport) -> KernelSurvey:
        """Restore the missing parts of the wiring of sandboxes. Returns: a survey that was taken afterwards.

        Raises: KernelDumpError, TakeoverError.
        """
        attachments = self._datastore.attachments()
        self._finish_renames(attachments)
        specs = [recorded_spec(attachment) for attachment in attachments]
        self._wiring.repair(specs)
        self._wiring.write_former_rules(specs)
        survey = self._wiring.survey()
        missing = [*_missing_routing(attachments, survey), *_missing_extra_routes(attachments, survey)]
        if missing:
            raise failure(TakeoverError, FailureCode.EXPORT_WIRING_INCOMPLETE, missing="; ".join(missing))
        report.steps.append(f"rules {TO_SANDBOX_PRIORITY} and {FROM_SANDBOX_PRIORITY} and routes of every sandbox are in place")
        uplinked_count = sum(not attachment.is_of_pool for attachment in attachments)
        if uplinked_count:
            report.steps.append(
                f"{counted(uplinked_count, 'sandbox')} with ENIs of their own: their links stay, and are not in the exported file"
            )
        return survey

    def _finish_renames(self, attachments: Iterable[Attachment]) -> None:
        """Rename links that a crash left with their old name, although their row has the new name."""
        names = {veth.key: veth.name for veth in self._wiring.survey().firsts if not veth.is_dying}
        for attachment in attachments:
            name = names.get(attachment.key)
            if name is not None and name != attachment.host_veth:
                self._wiring.rename_veth(replace(attachment.wiring, host_veth=name), to=attachment.host_veth)

    def _allocations(self, survey: KernelSurvey, report: ExportReport) -> list[Allocation]:
        """Return one allocation for each address in use, because aws-node assigns every address that is missing from its file."""
        allocations = recorded(self._datastore.attachments(), survey, prefix=self._prefix)
        from_file = {}
        try:
            from_file = {allocation.address: allocation for allocation in self._aws_node.allocations()}
        except ForeignStateError as error:
            log.info("unreadable file of amazon-vpc-cni-k8s is overwritten error=%s", log_text(error))
        unrecorded_allocations = unrecorded(survey, allocations, listed=from_file, prefix=self._prefix, now=self._clock.now())
        for address, (veth, allocation) in unrecorded_allocations.items():
            report.steps.append(
                f"{address} is not recorded, but {veth.name} (of {veth.key or 'an unknown sandbox'}) has it: exported"
            )
            allocations[address] = allocation
        return [allocations[address] for address in sorted(allocations)]


def _missing_routing(attachments: Iterable[Attachment], survey: KernelSurvey) -> Iterator[str]:
    """Describe the rules and routes that living sandboxes lack."""
    living = survey.living_names
    for attachment in attachments:
        # A sandbox whose uplink is missing is cut off on purpose, so its missing rules do not matter.
        must_be_cut_off = not attachment.is_of_pool and survey.vlan_of(attachment.address) is None
        if attachment.host_veth not in living or must_be_cut_off:
            continue
        spec = first_alone(recorded_spec(attachment))
        for difference in wiring_differences(spec, survey):
            if difference.kind in (RepairKind.ROUTE, RepairKind.RULE):
                yield f"{attachment.address} of {attachment.key}: {difference.text}"


def _missing_extra_routes(attachments: Iterable[Attachment], survey: KernelSurvey) -> Iterator[str]:
    """Describe the missing routes to addresses of extra legs of living sandboxes.

    Such an address has a route in table main, and no rule.
    """
    living = survey.living_names
    for attachment in attachments:
        for leg in legs_of(attachment.wiring)[1:]:
            if attachment.host_veth in living and leg.address not in survey.routes:
                yield f"{leg.address} of {attachment.key}: no route"
