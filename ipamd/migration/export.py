"""Give the node back to amazon-vpc-cni-k8s: stop giving addresses, make its wiring and its file complete, change the conflists.

Every step can be repeated, and an export that was cut short is finished by the next one (docs/adr/0038). The note comes first: from
then on no process of ours gives an address, whatever dies. Its conflist comes last, so its daemon never sees half a file.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline
from ipamd.model.aws_node import Allocation, recorded, unrecorded, wanted_name
from ipamd.model.cniresult import recorded_spec
from ipamd.model.errors import ForeignStateError, IpamError, TakeoverError, log_text
from ipamd.model.freeze import FreezeCause
from ipamd.model.kernel import FROM_SANDBOX_PRIORITY, TO_SANDBOX_PRIORITY, KernelSurvey, RepairKind, wiring_differences
from ipamd.model.record import dataclass, field, replace
from ipamd.model.words import counted
from ipamd.ports import AwsNode
from ipamd.sandbox.cooldown import Cooldown

CONDITION = "export"
REASON = "this node goes back to amazon-vpc-cni-k8s (`ipamctl export`); `ipamctl export --undo` keeps it"

ADDS_WAIT_S = 20.0
"""For ADDs that are under way. Ours: an ADD that finds no address may wait longer; the export is repeated then."""

LOCK_WAIT_S = 5.0
POLL_S = 0.02

FAILPOINTS = ("export.begun", "export.renamed", "export.written", "export.restored")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ExportReport:
    """What an export did. `problems`: what somebody must do; the export is complete if there is none."""

    exported_count: int = 0
    steps: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class ExportService(Service):
    """`ipamctl export` and `ipamctl export --undo`. One at a time."""

    def __init__(self, context: ServiceContext, *, cooldown: Cooldown, aws_node: AwsNode, prefix: str) -> None:
        super().__init__(context)
        self._freeze = context.freeze
        self._cooldown = cooldown
        self._aws_node = aws_node
        self._prefix = prefix
        self._one = threading.Lock()
        self._quiesce: Callable[[], None] = lambda: None
        self._restart: Callable[[str], None] = lambda _: None
        self._release: Callable[[], str] = lambda: ""

    def follow(self, *, quiesce: Callable[[], None], restart: Callable[[str], None], release: Callable[[], str]) -> None:
        """Say how the loops are ended, and how the process: its life is not known here. `release`: see `HostNetwork`."""
        self._quiesce, self._restart, self._release = quiesce, restart, release

    def hold(self) -> None:
        """Refuse ADD and leave EC2 alone, for as long as the process lives."""
        self._health.hold_adds(CONDITION, REASON)
        self._health.report(CONDITION, f"{CONDITION}: {REASON}")
        self._freeze.set(FreezeCause.EXPORT, REASON)

    def export(self) -> ExportReport:
        """Do everything that is not done yet. Returns: what was done, and what could not be."""
        return self._alone(self._export, busy="another export is at work")

    def undo(self) -> ExportReport:
        """Keep the node: the process ends, and the next one serves it again.

        If the other daemon has run meanwhile, the next one takes the node over as on the first day.
        """
        return self._alone(self._undo, busy="an export is at work: let it end first")

    def _alone(self, work: Callable[[ExportReport], None], *, busy: str) -> ExportReport:
        report = ExportReport()
        if not self._one.acquire(blocking=False):
            report.problems.append(busy)
            return report
        try:
            work(report)
        finally:
            self._one.release()
        return report

    def _undo(self, report: ExportReport) -> None:
        if not self._aws_node.is_exporting:
            report.steps.append("no export was begun")
            return
        if listener := self._aws_node.listener():
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
            report.steps.append("ADD is refused, and nothing is asked of EC2")
            self._finish(report)
        except IpamError as error:
            self._health.record_error("export", error)
            report.problems.append(f"{log_text(error)}; repeat the export")

    def _begin(self) -> None:
        """From here on no process of ours gives an address. Raises: TakeoverError."""
        aws_node = self._aws_node
        if not (aws_node.is_exporting or self._health.is_ready):
            raise TakeoverError("the daemon is not ready", details="its rows may not be whole; see `ipamctl status`")
        listener = aws_node.listener()
        if listener:
            details = "it would overwrite what is written: export before its DaemonSet aws-node comes to this node"
            raise TakeoverError(f"amazon-vpc-cni-k8s serves {listener} already", details=details)
        if aws_node.has_run_since():  # what it gave is not in our rows, and what they have may be another pod's by now
            details = "our rows are older than its file: restart the daemon, which then takes over what the other gave"
            raise TakeoverError("amazon-vpc-cni-k8s has run here since we last read or wrote its file", details=details)
        try:
            aws_node.begin_export()
        finally:
            if aws_node.is_exporting:  # if only half of it could be written too: the next process would be held
                self.hold()
        self._failpoint("export.begun")
        self._quiesce()

    def _finish(self, report: ExportReport) -> None:
        """Make wiring and file complete, then change the conflists. Raises: IpamError."""
        self._await_adds()
        self._cooldown.sweep()
        self._rename(report)
        survey = self._complete(report)
        allocations = self._allocations(survey, report)
        if released := self._release():  # before its daemon wires anybody; the neighbour entries of ours stay
            report.steps.append(released)
        path = self._aws_node.write(allocations, routed=survey.routes)
        self._failpoint("export.written")
        report.exported_count = len(allocations)
        report.steps.append(f"{counted(len(allocations), 'address')} written to {path}")
        if restored := self._aws_node.restore_conflist():  # its conflist first, so that there is never none: it sorts before ours
            report.steps.append(restored)
        self._failpoint("export.restored")
        if not self._aws_node.has_conflist():
            report.steps.append(
                "its conflist was never here, so ours stays: its daemon writes one, which sorts before ours; remove ours then"
            )
        elif removed := self._aws_node.remove_our_conflist():
            report.steps.append(removed)
        cooling = self._datastore.counts().cooling
        if cooling:
            report.steps.append(f"{counted(cooling, 'address')} still cool: its daemon knows no cooldown from before its start")
        log.warning("exported to amazon-vpc-cni-k8s steps=%s", "; ".join([*report.steps, *report.problems]))

    def _await_adds(self) -> None:
        """Return when no ADD is at work. Raises: TakeoverError."""
        deadline = time.monotonic() + ADDS_WAIT_S
        while any(held.operation == "ADD" for held in self._locks.held()):
            if time.monotonic() > deadline:
                raise TakeoverError("an ADD is still at work", details="it ends within a minute")
            time.sleep(POLL_S)

    def _rename(self, report: ExportReport) -> None:
        """Name host veths by pod, where the name is free: by that its daemon knows at its start which sandboxes live."""
        count = 0
        for attachment in self._datastore.attachments():
            wanted = "" if attachment.branch else wanted_name(attachment, prefix=self._prefix)  # those are named by pod
            if not wanted or attachment.host_veth == wanted:
                continue
            with self._locks.hold(attachment.key, "EXPORT", Deadline.after(self._clock, LOCK_WAIT_S)):
                if self._datastore.attachment(attachment.key) != attachment:
                    continue  # its DEL came
                if any(one.host_veth == wanted for one in self._datastore.attachments()) or self._is_taken(wanted):
                    continue
                with self._datastore.transaction() as uow:
                    uow.rename_veth(attachment.key, host_veth=wanted)
                self._failpoint("export.renamed")
                self._wiring.rename_veth(host_veth=attachment.host_veth, to=wanted, address=attachment.address)
                count += 1
        if count:
            report.steps.append(f"{counted(count, 'host veth')} named by pod")

    def _is_taken(self, name: str) -> bool:
        try:
            return self._wiring.veth(name) is not None
        except IpamError:
            return True  # no veth at all

    def _complete(self, report: ExportReport) -> KernelSurvey:
        """Put back what is missing of any sandbox's wiring. Returns: a look afterwards. Raises: KernelDumpError."""
        attachments = self._datastore.attachments()
        names = {veth.key: veth.name for veth in self._wiring.survey().firsts if not veth.is_dying}
        for one in attachments:  # a renaming that a crash cut short between row and link
            if (name := names.get(one.key)) not in (None, one.host_veth):
                self._wiring.rename_veth(host_veth=str(name), to=one.host_veth, address=one.address, branch=one.branch)
        specs = [recorded_spec(one) for one in attachments]
        self._wiring.repair(specs)
        self._wiring.write_former_rules(specs)
        survey = self._wiring.survey()
        live = survey.living_names
        led = [one for one in attachments if one.branch is not None]
        # Without its VLAN link a sandbox is cut off, and an export changes nothing of that.
        cut_off = {one.host_veth for one in led if survey.vlan_of(one.address) is None}
        lacking = [
            f"{one.address} of {one.key}: {each.what}"
            for one in attachments
            if one.host_veth in live - cut_off
            for each in wiring_differences(replace(recorded_spec(one), other_address=None), survey)
            if each.kind in (RepairKind.ROUTE, RepairKind.RULE)
        ]
        # Its egress has no rules, and needs none: main has the route.
        others = [one for one in attachments if one.host_veth in live and one.other_address is not None]
        lacking += [f"{one.other_address} of {one.key}: no route" for one in others if one.other_address not in survey.routes]
        if lacking:
            raise TakeoverError("the wiring of sandboxes is not complete", details="; ".join(lacking))
        report.steps.append(f"rules {TO_SANDBOX_PRIORITY} and {FROM_SANDBOX_PRIORITY} and routes of every sandbox are in place")
        if led:
            report.steps.append(f"{counted(len(led), 'sandbox')} with branch ENIs: their links stay, and are not in its file")
        return survey

    def _allocations(self, survey: KernelSurvey, report: ExportReport) -> list[Allocation]:
        """One for each address that somebody has: what is not in the file is given again."""
        found = recorded(self._datastore.attachments(), survey, prefix=self._prefix)
        told = {}
        try:
            told = {one.address: one for one in self._aws_node.allocations()}
        except ForeignStateError as error:
            log.info("its file is written anew unread error=%s", log_text(error))
        others = unrecorded(survey, found, told=told, prefix=self._prefix, now=self._clock.now())
        for address, (veth, allocation) in others.items():
            report.steps.append(
                f"{address} is not recorded, but {veth.name} ({veth.key or 'of nobody we know'}) has it: exported"
            )
            found[address] = allocation
        return [found[address] for address in sorted(found)]
