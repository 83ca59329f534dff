"""Compare host routing with the expected state soon after the kernel announces a change, and every 30 s, and repair the differences.
One such comparison, with its repairs, is a *pass*.

Other software on the node (amazon-ec2-net-utils, a firewall's reload) deletes rules and routes, and pods lose their network without an
error anywhere. An object that other software changes again after each repair is repaired less and less often (`repair_backoff.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Network
from typing import NamedTuple

from ipamd.core.backoffs import soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline
from ipamd.core.failure_isolation import NAMED_MAX, FailureIsolation
from ipamd.core.health import ConditionHandle
from ipamd.core.loop import Loop
from ipamd.eni.enis import EniService
from ipamd.host.notifications import scope_of
from ipamd.host.repair_backoff import ALWAYS_REPAIRED, RepairBackoff
from ipamd.host.triggers import PassScope, Triggers
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment, WiringSpec
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.cniresult import recorded_spec
from ipamd.model.conditions import ConditionCode, problem, problem_of
from ipamd.model.errors import IpamError, UplinkPendingError, WiringError, log_text
from ipamd.model.family import IpAddress, IpNetwork, family_of
from ipamd.model.history import LedgerEvent
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import (
    ChangeKind,
    HostChange,
    HostVeth,
    KernelSurvey,
    VlanLink,
    duplicate_addresses,
    stray_rules,
)
from ipamd.model.kernel_numbers import FROM_SANDBOX_PRIORITY
from ipamd.model.legs import first_leg
from ipamd.model.legs.condition_codes import EXTRA_LEGS, LegConditionCode
from ipamd.model.repair_messages import repair_text, repair_texts
from ipamd.model.repairs import CONFINEMENT, NODE_ROUTING, RepairCode, RepairedObject, RepairKind, RepairReport, refusals_of
from ipamd.model.source_rules import single_priority
from ipamd.model.wiring_comparison import wiring_differences
from ipamd.model.wiring_difference import advised_texts
from ipamd.model.words import first_of
from ipamd.ports.datastore import Datastore
from ipamd.ports.kernel import HostNetwork
from ipamd.sandbox.quarantine import QuarantineService

log = logging.getLogger(__name__)

RECONCILE_INTERVAL_S = 30.0
"""Seconds between two passes by the clock, which are the passes that no notification triggers. Ours: amazon-vpc-cni-k8s checks only
the VPC's CIDRs, also every 30 s, and a pass costs milliseconds."""

CLOCK_PASS = ("host pass",)
"""Key in `Backoffs` of the next pass by the clock."""

FIRST_RECONCILE_S = 1.0
"""Seconds from the start to the first pass. Ours: long enough for the ADDs that waited for the start to come first, and short enough
that even a daemon that restarts every few seconds makes a pass."""

SURVEYED = frozenset(
    {
        ChangeKind.LINK,
        ChangeKind.OTHER_LINK,
        ChangeKind.VETH_GONE,
        ChangeKind.ADDRESS,
        ChangeKind.ROUTE,
        ChangeKind.RULE,
        ChangeKind.MISSED,
    }
)
"""Kinds of changes after which a new survey of the sandboxes' wiring may differ from the last one. NFT is not among them: kube-proxy
changes nftables every second."""

REACHABILITY_TURNS = 9
"""Within this many passes by the clock the reachability of each sandbox is checked at least once. Ours: so each sandbox is checked
within 5 minutes."""

ALL_CHECKED_BELOW = 8
"""If a node has fewer sandboxes than this, the reachability of all of them is checked in each pass. Ours: few checks cost little."""

SURVEY_TURNS = REACHABILITY_TURNS
"""The number of passes by the clock from one survey of the sandboxes' wiring to the next while the kernel announces no change. Ours:
tests show that the kernel announces every change that a survey shows, so such a survey is only a safeguard. For 660 sandboxes a survey
costs as much as the checks of their reachability, so it is made equally seldom."""

CHECK_SOON = "reachability"
"""First part of a key in `Backoffs`. The second part is an address that an announced change contains: the reachability of its sandbox
is checked in the next pass."""

CHECK_TURN = "reachability turn"
"""First part of a key in `Backoffs`. The second part is the number of a group of the sandboxes. Each pass checks the reachability of
the group that was checked longest ago."""

REPAIR_WAIT_S = 1.0
"""How many seconds a repair waits for another operation on the same sandbox. Ours: a longer wait is not needed, because a later pass
tries again."""


class _CleanSurvey(NamedTuple):
    """The last survey that showed no fault.

    `announced`: the kernel's last announcement, and the attachments, as they were before the survey began. While neither has changed,
        no other survey is needed.
    `pass_count`: number of passes since then that made no survey.
    `compared`: the survey, and the attachments with which it was compared.
    """

    announced: object
    pass_count: int
    compared: object


class _PoolAddresses:
    """The addresses for sandboxes, as a container that only answers whether it contains an address."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore

    def __contains__(self, address: object) -> bool:
        return isinstance(address, IpAddress) and self._datastore.address(address) is not None


class HostNetworkReconciler(Service):
    """Compares host routing with the expected state, and repairs it."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        hostnet: HostNetwork,
        quarantine: QuarantineService,
        enis: EniService,
        identity: Callable[[], InstanceIdentity | None],
    ) -> None:
        super().__init__(context)
        self._hostnet = hostnet
        self._identity = identity
        self._quarantine_service = quarantine
        self._enis = enis
        self.loop = Loop("host network", self.turn, health=context.health, clock=context.clock)
        self._confinement = context.health.claim("confinement")
        self._node_routing = context.health.claim("node routing")
        self._duplicates = context.health.claim("duplicate addresses")
        self._last_reported: list[RepairReport] = []
        self.failed_sandboxes = FailureIsolation(context.health, work="repair of sandboxes")
        self._failed_strays = FailureIsolation(context.health, work="removal of rules that lead nowhere")
        self._triggers = Triggers(context.clock)
        self._addresses = _PoolAddresses(context.datastore)
        self._backed_off: frozenset[RepairedObject] = frozenset()
        # Replaced by a new object at each announcement. A survey remembers the object from before it began, so no lock is needed.
        self._last_announced = object()
        self._last_clean_survey: _CleanSurvey | None = None
        self.repair_backoff = RepairBackoff(clock=context.clock, health=context.health, backoffs=context.backoffs)

    def cut_off(self) -> frozenset[str]:
        """Return the keys of sandboxes that may have no network: their repair failed, or the daemon takes their links down on purpose
        (`must_be_cut_off`). From any thread.
        """
        return self.failed_sandboxes.names.union(str(row.key) for row in self._datastore.attachments() if row.must_be_cut_off)

    def confine(self, *, is_silent: bool = False) -> list[RepairReport]:
        """Put the tables that confine sandboxes in place. A failure is a condition while it lasts.

        Returns: one report per repair, and one per part that was refused.

        `is_silent`: whether the kernel has announced no change of a link since the last call (`HostNetwork.confine_sandboxes`).
        """
        repairs = self._try_repair(self._confinement, CONFINEMENT, lambda: self._hostnet.confine_sandboxes(is_silent=is_silent))
        # A foreign link that the node uses is most likely a second CNI's, so it is not a condition. The audit reports it.
        unused = first_of([str(link) for link in self._hostnet.foreign_links() if not link.is_in_use], NAMED_MAX)
        unused_problem = None
        if unused:
            unused_problem = problem(ConditionCode.FOREIGN_LINKS, links=unused)
        self._health.report("foreign links", unused_problem)
        return repairs

    def report_duplicates(self, duplicates: Sequence[str]) -> None:
        """Report addresses that two sandboxes have at the start. The condition ends with the first survey without such an address."""
        self._duplicates.report(problem(ConditionCode.DUPLICATE_ADDRESSES, addresses="; ".join(duplicates)))

    def set_up_node(self, identity: InstanceIdentity) -> None:
        """Set up the routing that belongs to the node and not to one ENI. A failure is a condition, and the next pass tries again."""
        try:
            self._hostnet.setup_node(identity)
        except IpamError as error:
            self._node_routing.report(problem(ConditionCode.NOT_REPAIRED, cause=log_text(error)), error=error)

    def _try_repair(
        self, condition: ConditionHandle, repaired_object: RepairedObject, repair: Callable[[], list[RepairReport]]
    ) -> list[RepairReport]:
        """Repair one part of the host. A failure becomes a condition of that part, and no exception.

        Returns: one report per repair, and one per refusal.
        """
        try:
            repairs = repair()
        except IpamError as error:
            repairs = [RepairReport(RepairCode.REFUSED, repaired_object, cause=log_text(error))]
        condition.report(problem_of(ConditionCode.NOT_REPAIRED, repair_texts(refusals_of(repairs))))
        return repairs

    def turn(self) -> float:
        """Make the passes that are due: soon after the start, after changes, and once in RECONCILE_INTERVAL_S.

        Returns: seconds until the next pass is due.
        """
        if not self._backoffs.keys(*CLOCK_PASS):
            self._backoffs.put(CLOCK_PASS, in_s=FIRST_RECONCILE_S)
        left_s = self._backoffs.left_s(CLOCK_PASS)
        self._backoffs.put(CLOCK_PASS, in_s=0.0)  # a pass that fails is thus due again at the next turn
        self.run_due(is_by_clock=not left_s)
        self._backoffs.put(CLOCK_PASS, in_s=left_s or RECONCILE_INTERVAL_S)
        return soonest_s([left_s or RECONCILE_INTERVAL_S, self.repair_backoff.wait_s(), self._triggers.wait_s()]) or 0.0

    def on_change(self, change: HostChange) -> None:
        """Handle a change that the kernel announced: if it may need a repair, schedule a pass soon. From any thread."""
        if change.kind in SURVEYED:
            self._last_announced = object()
        if change.process:
            self.repair_backoff.record_changer(change.process)
        scope = scope_of(change, self._datastore)
        if scope is not None:
            if change.address is not None:
                self._backoffs.put((CHECK_SOON, change.address), in_s=0.0)
            self.mark(scope)
        if change.kind is ChangeKind.NFT and self._hostnet.other_software():
            self.mark(PassScope.OTHER_SOFTWARE)

    def mark(self, scope: PassScope) -> None:
        """Schedule a pass of this scope soon. From any thread."""
        self._triggers.mark(scope)
        self.loop.wake()

    def run_due(self, *, is_by_clock: bool) -> None:
        """Make the pass that is due: by the clock, after changes, or because the repair of an object need not pause any more."""
        due_scopes = self._triggers.take()
        backed_off_before = self._backed_off
        is_pause_over = bool(backed_off_before - self.repair_backoff.backed_off())
        if is_by_clock:
            self.reconcile(is_by_clock=True)
        elif PassScope.EVERYTHING in due_scopes or is_pause_over:
            self._make_requested_pass(PassScope.EVERYTHING, self.reconcile)
        elif PassScope.LINKS in due_scopes:
            self._reconcile_table(has_links=True)
        elif PassScope.TABLE in due_scopes:
            self._make_requested_pass(PassScope.TABLE, self._reconcile_table)
        elif PassScope.CHECK in due_scopes:
            self._check_tables()
        if PassScope.OTHER_SOFTWARE in due_scopes and not is_by_clock:
            self._hostnet.inspect_other_software(self._addresses)
            self._report_other_software()
            self._triggers.done(PassScope.OTHER_SOFTWARE, has_repaired=False)

    def _report_other_software(self) -> None:
        other_software = first_of([difference.advised_text for difference in self._hostnet.other_software()], NAMED_MAX)
        self._health.report("other software", problem_of(ConditionCode.OTHER_SOFTWARE, other_software))

    def _check_tables(self) -> None:
        """Restore our tables at once if they have changed. If their state cannot be read, schedule a TABLE pass."""
        match self._hostnet.are_tables_in_place():
            case False:
                self._reconcile_table()
            case None:
                self._triggers.mark(PassScope.TABLE)

    def _make_requested_pass(self, scope: PassScope, make_pass: Callable[[], list[RepairReport]]) -> None:
        """Make a pass that a change requested. After a pass that fails or repairs nothing the next one waits longer."""
        has_repaired = False
        try:
            has_repaired = any(report.is_repair for report in make_pass())
        finally:
            self._triggers.done(scope, has_repaired=has_repaired)

    def _reconcile_table(self, *, has_links: bool = False) -> list[RepairReport]:
        """Compare and repair only nftables, after another program changed nftables or links that our tables name.

        `has_links`: links were changed. Returns: one report per repair; failed repairs are left to the pass by the clock.
        """
        repairs = self.confine(is_silent=not has_links)
        identity = self._identity()
        if identity is not None:
            repairs += self._hostnet.reconcile_table(identity=identity)
        repairs = [report for report in repairs if not report.is_refusal]
        self._count(repairs)
        if repairs:
            self._record(repairs)
        return repairs

    def _repair_sandboxes(
        self, survey: KernelSurvey, attachments: Collection[Attachment], cut_off_keys: Collection[AttachmentKey]
    ) -> tuple[list[RepairReport], bool]:
        """Restore links, routes and rules of attached sandboxes.

        Returns: one report for each repair and each failure, and whether any sandbox may have been damaged.

        The survey, whose dumps may have been interrupted, shows the sandboxes that may be damaged. Each of these is compared again,
        object by object, under its lock, so a concurrent DEL is never undone (I4). A failed repair of one sandbox is a condition, and
        the repair continues with the next sandbox.

        `cut_off_keys`: sandboxes that packets do not reach or leave.
        """
        repairs: list[RepairReport] = []
        moved = self._moved_tables(attachments)
        damaged = self._damaged(survey, attachments, unseen={*moved, *cut_off_keys})
        self.failed_sandboxes.retain(str(attachment.key) for attachment in damaged)
        for attachment in damaged:
            with (
                self.failed_sandboxes.isolate(str(attachment.key)),
                self._locks.hold(attachment.key, "REPAIR", Deadline.after(self._clock, REPAIR_WAIT_S)),
            ):
                if self._datastore.attachment(attachment.key) == attachment:
                    loses_packets = attachment.key in cut_off_keys
                    self._repair_sandbox(
                        attachment, survey, table=moved.get(attachment.key), loses_packets=loses_packets, repairs=repairs
                    )
        return repairs, bool(damaged)

    def _damaged(
        self, survey: KernelSurvey, attachments: Collection[Attachment], *, unseen: Container[AttachmentKey]
    ) -> list[Attachment]:
        """Return the sandboxes whose wiring may be damaged, and the sandboxes that must be cut off but have a link that is up.

        `unseen`: sandboxes with a fault that a survey does not show.
        """
        # On a quiet node a survey returns the same objects as the last one, which were compared already.
        last = self._last_clean_survey
        was_compared = last is not None and last.compared == (survey, attachments)
        links: tuple[HostVeth | VlanLink, ...] = (*survey.host_veths, *survey.vlans)
        up = {link.name for link in links if link.is_up and not link.is_dying}
        # Addresses with rules of amazon-vpc-cni-k8s or of an earlier release, which the repair replaces by our rules.
        former = survey.to_rules | {address for address in survey.from_rules if self._is_rule_former(address, survey)}

        def is_damaged(attachment: Attachment) -> bool:
            if attachment.must_be_cut_off:
                return not up.isdisjoint(first_leg(attachment.wiring).links)
            if attachment.key in unseen:
                return True
            if was_compared:
                return False
            return attachment.address in former or bool(wiring_differences(self._spec(attachment), survey))

        return [attachment for attachment in attachments if is_damaged(attachment)]

    def _repair_sandbox(
        self, attachment: Attachment, survey: KernelSurvey, *, table: int | None, loses_packets: bool, repairs: list[RepairReport]
    ) -> None:
        """Repair one sandbox, whose lock is held, and append a report of each repair and each failure to `repairs`.

        A sandbox that must be cut off is not repaired: its links are taken down.

        Args:
            table: the route table of the sandbox's ENI if it has changed; otherwise None.
            loses_packets: whether packets do not reach or leave the sandbox.
        Raises: WiringError for faults that could not be repaired, KernelDumpError, DatastoreError.
        """
        if table is not None:  # change the record first, because DEL uses it
            with self._datastore.transaction() as uow:
                attachment = uow.move_table(attachment.key, route_table=table)
        address = attachment.address
        spec = replace(recorded_spec(attachment), prefix=self._prefix(address), subnet=self._subnet(address))
        if not attachment.is_of_pool:
            with suppress(UplinkPendingError):  # the trunk ENI is not known; `trunk_mac` requests a Describe for it
                spec = replace(spec, trunk_mac=self._enis.trunk_mac())
        if attachment.must_be_cut_off:
            repairs.append(self._wiring.cut_off(spec))
            return
        reports = self._wiring.repair([spec], seen=survey, backed_off=self._backed_off)
        repairs += reports
        problems = [repair_text(report) for report in reports if report.needs_operator]
        if loses_packets and not problems:
            problems += self._reachability_problems([spec]).values()
        if problems:  # the caller turns the error into a condition while it lasts
            raise WiringError("; ".join(problems))

    def _find_cut_off(self) -> Collection[AttachmentKey]:
        """Check the reachability of one part of the sandboxes, and of sandboxes with an announced change or a failed repair.

        Returns: the keys of sandboxes that packets do not reach or leave.
        """
        attachments = self._datastore.attachments()
        named_keys = self._backoffs.keys(CHECK_SOON)
        self._backoffs.clear(*named_keys)
        named_addresses = {key[1] for key in named_keys}
        part_count = min(REACHABILITY_TURNS, len(attachments) // ALL_CHECKED_BELOW + 1)
        part = min(range(part_count), key=lambda number: self._backoffs.left_s((CHECK_TURN, number)))
        self._backoffs.put((CHECK_TURN, part), in_s=3600.0)
        specs = []
        for attachment in attachments:
            is_in_part = int(attachment.address) % part_count == part
            has_failed = str(attachment.key) in self.failed_sandboxes.names
            is_checked = is_in_part or has_failed or attachment.address in named_addresses
            if is_checked and not attachment.must_be_cut_off:
                specs.append(recorded_spec(attachment))
        return self._reachability_problems(specs)

    def _reachability_problems(self, specs: Sequence[WiringSpec]) -> dict[AttachmentKey, str]:
        """Return the sandboxes that packets do not reach or leave, each with a text about the faults on the host or inside."""
        on_host = self._hostnet.reachability_problems(specs, enis=self._datastore.enis())
        problems = dict[AttachmentKey, str]()
        for spec in specs:
            with suppress(IpamError):  # its namespace is gone, or cannot be read: that proves nothing about its packets (I11)
                sentences = [problem.advised_text for problem in on_host if problem.subject == str(spec.address)]
                if spec.netns:
                    sentences += advised_texts(self._wiring.check_inside(spec, is_arrival_only=True))
                if sentences:
                    problems[spec.key] = "; ".join(sentences)
        return problems

    def _spec(self, attachment: Attachment) -> WiringSpec:
        """Return the recorded wiring of a sandbox, with the trunk ENI's MAC if the sandbox has a branch ENI and the MAC is known."""
        spec = recorded_spec(attachment)
        if attachment.is_of_pool:
            return spec
        trunk = self._enis.book.trunk()
        return replace(spec, trunk_mac=trunk[1]) if trunk else spec

    def _prefix(self, address: IpAddress) -> IpNetwork | None:
        row = self._datastore.address(address)
        if row is None:
            return None
        return row.prefix

    def _subnet(self, address: IpAddress) -> IPv4Network | None:
        """Return the subnet of an address's ENI; None if it is not known, or if the node has no rules in buckets (docs/adr/0088)."""
        row = self._datastore.address(address)
        if row is None or not self._hostnet.has_source_tree():
            return None
        eni = self._datastore.eni(row.eni_id)
        return eni.subnet_cidr if eni else None

    def _is_rule_former(self, address: IpAddress, survey: KernelSurvey) -> bool:
        """Whether the rule from this address in a survey is to be replaced by a rule from its prefix or in a bucket."""
        if self._prefix(address) is not None:
            return True
        wanted = single_priority(address, self._subnet(address))
        if wanted == FROM_SANDBOX_PRIORITY:
            return False
        return any(place.priority != wanted for place in survey.rule_places.get(address, ()))

    def _moved_tables(self, attachments: Iterable[Attachment]) -> dict[AttachmentKey, int]:
        """Return the sandboxes whose recorded route table is not the table of their ENI, each with the ENI's table.

        The table changes when an ENI is attached again at another device index.
        """
        tables = {eni.eni_id: eni.route_table for eni in self._datastore.enis() if eni.host_ready}
        moved = {}
        for attachment in attachments:
            table = tables.get(attachment.eni_id)
            if table is not None and table != attachment.route_table:
                moved[attachment.key] = table
        return moved

    def reconcile(self, *, is_by_clock: bool = False) -> list[RepairReport]:
        """Compare and repair once. While the kernel announces nothing, most passes by the clock make no survey.

        Returns: one report for each repair and each failure.
        """
        # The last announcement and the attachments are read before the survey, so that an announcement during the survey leads to
        # another survey. The attachments are compared too, because the kernel does not announce changes of our records.
        announced, is_silent = (self._last_announced, self._datastore.attachments()), False
        last = self._last_clean_survey
        if last is not None and last.announced == announced and last.pass_count + 1 < SURVEY_TURNS:
            self._last_clean_survey = _CleanSurvey(announced, last.pass_count + 1, last.compared)
            is_silent = is_by_clock
        repairs = self.confine(is_silent=is_silent)
        identity = self._identity()
        self._backed_off = self.repair_backoff.backed_off()
        if identity is not None:
            repairs += self._reconcile_routing(identity, announced, is_silent=is_silent)
        self._count(repairs)
        if repairs != self._last_reported:
            # If a pass reports the same repairs as the pass before, the repairs do not end the fault. They are logged and recorded
            # only the first time.
            self._last_reported = repairs
            if repairs:
                self._record(repairs)
        return repairs

    def _reconcile_routing(self, identity: InstanceIdentity, announced: object, *, is_silent: bool) -> list[RepairReport]:
        """Compare and repair the routing of the node, its ENIs and its sandboxes, which depends on the node's identity.

        Args:
            announced: as in `_CleanSurvey`, read at the beginning of the pass.
            is_silent: whether nothing was announced since the last clean survey, so that no other survey is needed.
        Returns: one report for each repair and each failure.
        """
        self._set_up_unready_enis()
        enis = [eni for eni in self._datastore.enis() if eni.host_ready]  # also excluded ENIs, because their sandboxes stay
        repairs = self._try_repair(
            self._node_routing,
            NODE_ROUTING,
            lambda: self._hostnet.reconcile(
                identity=identity, enis=enis, addresses=self._addresses, backed_off=self._backed_off, is_silent=is_silent
            ),
        )
        self._health.report(EXTRA_LEGS, problem_of(LegConditionCode.EXTRA_LEG_MISSING, self._hostnet.extra_family()[1]))
        self._report_other_software()
        cut_off_keys = self._find_cut_off()
        if not is_silent or cut_off_keys or self._moved_tables(self._datastore.attachments()):
            return repairs + self._reconcile_sandboxes(announced, cut_off_keys)
        self._quarantine_service.resolve(None)
        return repairs

    def _set_up_unready_enis(self) -> None:
        """Set up the routing of ENIs of the pool that have none yet and are not frozen. Forget ENIs that are gone and unused."""
        attached = [eni for eni in self._datastore.enis() if eni.is_in_pool]
        self._enis.forget_unused()  # the last sandbox of an ENI that is gone may have left since the pass before
        frozen = self._enis.routing.frozen()
        for eni in attached:
            if not eni.host_ready and eni.eni_id not in frozen:
                self._enis.routing.set_up(eni, is_counted=False)

    def _reconcile_sandboxes(self, announced: object, cut_off_keys: Collection[AttachmentKey]) -> list[RepairReport]:
        """Survey the kernel, repair sandboxes, remove leftover rules, and quarantine addresses that other software has wired."""
        survey = self._wiring.survey(may_be_torn=True)
        compared = survey, self._datastore.attachments()
        repairs, is_damaged = self._repair_sandboxes(*compared, cut_off_keys)
        stray_addresses: frozenset[IpAddress] = frozenset()
        if survey.is_whole:
            stray_addresses = self._stale_rules(survey)
            repairs += self._remove_strays(stray_addresses)
        self._quarantine_service.inspect_wiring(survey)
        is_doubled = bool(duplicate_addresses(survey))
        if survey.is_whole and not is_doubled:
            self._duplicates.report(None)
        is_unclean = is_damaged or is_doubled or _has_foreign_veth(survey) or bool(stray_addresses) or not survey.is_whole
        self._last_clean_survey = None if is_unclean else _CleanSurvey(announced, 0, compared)
        return repairs

    def _stale_rules(self, survey: KernelSurvey) -> frozenset[IpAddress]:
        """Return addresses that have no owner but still have rules.

        The rules lead nowhere: the sandbox's namespace, and with it the veth, was deleted before the DEL, and the row was lost.
        """
        stale = set()
        for address in stray_rules(survey, self._networks(survey)):
            row = self._datastore.address(address)
            if row is None or not (row.is_in_use or row.state is AddressState.QUARANTINED):
                stale.add(address)
        return frozenset(stale)

    def _networks(self, survey: KernelSurvey) -> set[IpNetwork]:
        """Return the networks to which addresses of sandboxes belong: the ENIs' IPv4 subnets, and the recorded IPv6 prefixes that
        contain an address with a rule.

        Such an address needs no row of its own: for a free address of a recorded IPv6 prefix, `Datastore.address` makes a row.
        """
        rows = (self._datastore.address(address) for address in (*survey.to_rules, *survey.from_rules))
        prefixes = {row.prefix for row in rows if row is not None and row.prefix and family_of(row.address).is_sparse}
        return prefixes.union(eni.subnet_cidr for eni in self._datastore.enis())

    def _remove_strays(self, stray_addresses: frozenset[IpAddress]) -> list[RepairReport]:
        """Remove the rules of addresses without an owner (`_stale_rules`), if a second survey confirms that they have none.

        Returns: one report for each address whose rules were removed.

        The second survey begins after the first one has read the rules. So it shows veth and route of an ADD that was in progress
        during the first survey.
        """
        confirmed: frozenset[IpAddress] = frozenset()
        if stray_addresses:
            survey = self._wiring.survey(may_be_torn=True)
            if survey.is_whole:
                confirmed = stray_addresses & self._stale_rules(survey)
        self._failed_strays.retain(map(str, confirmed))
        repairs = []
        for address in sorted(confirmed):
            with self._failed_strays.isolate(str(address)):
                self._wiring.remove_leftover(host_veth=None, address=address)
                rules = RepairedObject(RepairKind.RULE, str(address))
                repairs.append(RepairReport(RepairCode.STRAY_REMOVED, rules, str(address)))
        return repairs

    def _count(self, repairs: list[RepairReport]) -> None:
        self.repair_backoff.count_repairs(repairs)
        self._backed_off = self.repair_backoff.backed_off()

    def _record(self, repairs: list[RepairReport]) -> None:
        """Log repairs and failures, and record them in the ledger.

        Repairs of an object in a repair conflict are logged and recorded less often, because its condition contains their number.
        """
        logged = []
        for repair in repairs:
            if not repair.is_repair or self._backoffs.is_due((ALWAYS_REPAIRED, repair.object)):
                logged.append(repair)
        if logged:
            log.warning("host routing repaired=%s", repair_texts(logged))
            self.record_repair(repair_texts(logged))

    def record_repair(self, sentence: str) -> None:
        """Record a repair in the ledger. From any thread. Raises: DatastoreError."""
        with self._datastore.transaction() as uow:
            uow.record_event(LedgerEvent.REPAIRED, detail=sentence[:1000])


def _has_foreign_veth(survey: KernelSurvey) -> bool:
    """Whether a survey shows a veth that other software wired. While there is one, no survey may be left out, because the address of
    the veth's sandbox may come into our pool.
    """
    return any(veth.key is None and not veth.is_dying for veth in survey.veths)
