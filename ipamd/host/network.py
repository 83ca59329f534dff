"""When the next pass over the host is due after a change: at once, and less often while changes mean nothing.

A burst of changes makes one pass, COALESCE_S after its first. Passes that a change asked for and that found nothing to repair make the
next one wait longer, up to GAP_MAX_S, so that software which changes the host without pause costs little. A change of nftables
(kube-proxy makes one every second on a busy cluster) makes a look at our tables only, which is so cheap that it waits for no gap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum

from ipamd.core.agenda import soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline
from ipamd.core.loop import NAMED_MAX, Loop, OddObjects
from ipamd.eni.enis import EniService
from ipamd.host.repair_backoff import OPEN_FIGHT, Fights
from ipamd.model import kernel as dataplane
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment, WiringSpec, host_veths
from ipamd.model.branch import TABLE_BASE, VLAN_MAX
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.cniresult import recorded_spec
from ipamd.model.errors import BranchPendingError, IpamError, WiringError, log_text
from ipamd.model.family import IpAddress, IpNetwork, family_of
from ipamd.model.history import LedgerEvent
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import (
    INSIDE_IS_LEFT,
    NODE,
    NOT_REPAIRED,
    ChangeKind,
    HostChange,
    HostVeth,
    KernelSurvey,
    Repaired,
    RepairedObject,
    VlanLink,
    duplicate_addresses,
    stray_rules,
    veth_differences,
    vlan_differences,
    wiring_differences,
)
from ipamd.model.words import first_of
from ipamd.ports import Clock, Datastore, HostNetwork
from ipamd.sandbox.quarantine import QuarantineService

COALESCE_S = 0.2
"""From the first change to its pass. Ours: short against the second in which it must be repaired, long against a burst."""

GAP_MAX_S = 5.0
"""Longest gap between two passes that changes ask for. Ours."""

CALM_S = 60.0
"""After so long without a pass for nothing the next change is looked at at once again. Ours."""


class Scope(StrEnum):
    """What a pass looks at. Everything includes the nftables tables; they are compared where a look shows no more than a doubt.

    Links are those of others, which our tables name: a sandbox may make one, so they wait for no gap.
    """

    EVERYTHING = "everything"
    LINKS = "links"
    TABLE = "table"
    LOOK = "look"


class Triggers:
    """The scopes that are due, and when. `mark` from any thread; the rest from the thread that makes the passes.

    No lock: single steps of dictionaries. A mark that comes while its scope is taken is served by the pass that follows.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: dict[Scope, float] = {}
        self._gaps: dict[Scope, tuple[float, float]] = {}
        """When the last pass for nothing ended, and how long the next one waits after it."""

    def mark(self, scope: Scope) -> None:
        """Something of a scope changed: a pass is due soon."""
        ended_s, gap_s = self._gaps.get(scope, (0.0, 0.0))
        self._due.setdefault(scope, max(self._clock.monotonic() + COALESCE_S, ended_s + gap_s))

    def wait_s(self) -> float | None:
        """Seconds until a scope is due; None if nothing is marked."""
        now_s = self._clock.monotonic()
        return soonest_s(max(at_s - now_s, 0.0) for at_s in tuple(self._due.values()))

    def take(self) -> frozenset[Scope]:
        """The scopes that are due now; they are due no more."""
        now_s = self._clock.monotonic()
        due = frozenset(scope for scope in Scope if self._due.get(scope, float("inf")) <= now_s)
        for scope in due:
            del self._due[scope]
        return due

    def done(self, scope: Scope, *, has_repaired: bool) -> None:
        """A pass that was asked for has ended: one for nothing makes the next wait longer."""
        if has_repaired:
            self._gaps.pop(scope, None)
            return
        now_s = self._clock.monotonic()
        ended_s, gap_s = self._gaps.get(scope, (float("-inf"), 0.0))
        self._gaps[scope] = now_s, COALESCE_S if now_s - ended_s > CALM_S else min(gap_s * 2, GAP_MAX_S)


# Which of the kernel's notifications may need a repair: the others, most of them about our own ADDs, cost no look at the host.
#
# A notification is compared with what is recorded, in memory. What this leaves out wrongly is found on the clock.


def scope_of(change: HostChange, datastore: Datastore) -> Scope | None:
    """What must be looked at after a change; None if nothing of ours is concerned. From any thread."""
    match change.kind:
        case ChangeKind.NFT:
            return Scope.LOOK
        case ChangeKind.VETH_GONE:  # nothing can be put back at once; most tell of our own DELs
            is_ours = False
        case ChangeKind.SYSCTL | ChangeKind.MISSED:
            is_ours = True
        case ChangeKind.OTHER_LINK:
            return Scope.LINKS
        case ChangeKind.LINK:
            is_ours = _is_link_damaged(change, datastore)
        case ChangeKind.VLAN_LINK:
            is_ours = _is_vlan_damaged(change, datastore)
        case _:
            is_ours = _concerns_us(change, datastore)
    return Scope.EVERYTHING if is_ours else None


def _is_link_damaged(change: HostChange, datastore: Datastore) -> bool:
    veth = change.veth
    if veth is None or veth.is_dying:
        return veth is None
    # An ADD names its veth before its row is stored: an alias without a row is no damage. Without an alias the name tells.
    if veth.key is not None:
        attachment = datastore.attachment(veth.key)
    else:
        attachment = next((one for one in datastore.attachments() if veth.name in host_veths(one)), None)
    specs = recorded_spec(attachment).links if attachment else ()
    # A second link that is not recorded is none of ours: a sandbox may make any.
    spec = next((one for one in specs if one.is_egress is veth.is_egress), None)
    return spec is not None and (veth.name != spec.host_veth or bool(veth_differences(spec, veth)))


def _is_vlan_damaged(change: HostChange, datastore: Datastore) -> bool:
    link = change.vlan
    named = (recorded_spec(one) for one in datastore.attachments() if link and one.branch and one.branch.link == link.name)
    # An ADD makes the link before its row is stored, and a DEL marks it before its row goes.
    return any(not (link and link.is_dying) and bool(vlan_differences(one, None if change.is_gone else link)) for one in named)


def _concerns_us(change: HostChange, datastore: Datastore) -> bool:
    """Whether an address, a route or a rule is of our addresses, subnets, tables or priorities."""
    address, kind = change.address, change.kind
    if address is not None and (row := datastore.address(address)) is not None:
        # An IPv6 route that goes with its link is announced: of a DEL's nothing is left to look for.
        is_of_del = change.is_gone and change.length == address.max_prefixlen
        return row.is_in_use or not is_of_del
    if address is not None and address in family_of(address).egress.network:
        return not change.is_gone or any(one.other_address == address for one in datastore.attachments())
    may_be_branch = TABLE_BASE < change.table <= TABLE_BASE + VLAN_MAX or change.table == dataplane.STRICT_TABLE
    branched = (one.route_table for one in datastore.attachments() if one.branch) if may_be_branch else ()
    if any(change.table in (table, dataplane.STRICT_TABLE) for table in branched):
        return True
    enis = datastore.enis()
    if kind is ChangeKind.ADDRESS:
        return address is not None and any(address in eni.subnet_cidr for eni in enis)
    if any(change.table == eni.route_table and not eni.is_primary for eni in enis):
        return True
    if kind is ChangeKind.RULE and address is not None:  # one ahead of ours leads away what it selects
        selected = family_of(address).network((address, change.length), strict=False)
        if family_of(address).is_sparse:  # a node of IPv6 has few rules, and none of ours is for a network
            return True
        return change.priority == dataplane.EXTERNAL_SERVICE_PRIORITY or any(selected.overlaps(eni.subnet_cidr) for eni in enis)
    return address is None or any(address == eni.subnet_cidr.network_address for eni in enis)


# Compare host routing with the expected state as soon as the kernel announces a change, and every 30 s; repair the differences.
#
# Other software on the node (amazon-ec2-net-utils, a firewall's reload) deletes rules and routes, and pods lose their network
# without an error anywhere. What it undoes again and again is repaired less and less often (`repair_backoff.py`).


log = logging.getLogger(__name__)


RECONCILE_INTERVAL_S = 30.0
"""Ours: amazon-vpc-cni-k8s checks only the VPC's CIDRs, also every 30 s; a reconciliation costs milliseconds."""

CLOCK_PASS = ("host pass",)
"""Of the agenda: when the next pass by the clock is due."""

FIRST_RECONCILE_S = 1.0
"""A daemon that restarts every few seconds repairs too (found by a chaos run). Ours: after the ADDs that waited for the start."""

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
"""What a survey shows, or may; nftables, which kube-proxy changes every second, is not among it."""

WAY_TURNS, WAY_LEAST = 9, 8
"""Passes by the clock in which the ways of all sandboxes are asked for, within 5 minutes; of fewer than these all at each. Ours."""

SURVEY_TURNS = WAY_TURNS
"""Passes by the clock of which one reads the sandboxes' wiring in any case. Ours: the announcements have been tested for all that a
survey shows, so this guards against what nobody thought of, and each of 660 sandboxes costs as much in it as its way does."""

WAY = "way"
"""Of the agenda, with an address that a change named: its sandbox is asked for at the next pass."""

TURN = "turn of ways"
"""Of the agenda, with a number: the part of the sandboxes that was asked for longest ago comes next."""

REPAIR_WAIT_S = 1.0
"""How long a repair waits for an operation on the same sandbox; it has its turn again later. Ours."""


class _PoolAddresses:
    """The addresses for sandboxes as a container: nobody needs them all at once."""

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
        self._said: list[str] = []
        self.odd = OddObjects(context.health, work="repair of sandboxes")
        self._odd_strays = OddObjects(context.health, work="removal of rules that lead nowhere")
        self._triggers = Triggers(context.clock)
        self._addresses = _PoolAddresses(context.datastore)
        self._held: frozenset[RepairedObject] = frozenset()
        # Without a lock: who announces puts a new mark, and who surveys keeps the one that was there before it looked.
        self._last_announced = object()
        # Of the last survey without a fault: that mark, the passes since, and what was compared.
        self._in_order: tuple[object, int, object] | None = None
        self.fights = Fights(clock=context.clock, health=context.health, agenda=context.agenda)

    def cut_off(self) -> frozenset[str]:
        """Sandboxes that packets do not reach or leave, by key: all of them, if what is forwarded is dropped. From any thread."""
        filtered, rows = self._hostnet.filtered(), self._datastore.attachments()
        found = (one for one in rows if one.is_cut_off or (filtered and filtered & {NODE, str(one.address), one.host_veth}))
        return self.odd.names.union(str(one.key) for one in found)

    def confine(self, *, is_silent: bool = False) -> list[str]:
        """Put in place what confines sandboxes; a refusal is a condition, and ends with it. Returns: one sentence per repair."""
        repairs = self._tried("confinement", lambda: self._hostnet.confine_sandboxes(is_silent=is_silent))
        # One that the node makes use of is most likely a second CNI's: the audit names it.
        unused = first_of([str(one) for one in self._hostnet.foreign_links() if not one.is_in_use], NAMED_MAX)
        self._health.report("foreign links", unused and f"foreign links: {unused}; see docs/host.md")
        return repairs

    def _tried(self, subject: str, repair: Callable[[], list[str]]) -> list[str]:
        """Repair a part of the host; a failure is a condition of that part, and does not stop the repair of the others."""
        try:
            repairs = repair()
        except IpamError as error:
            repairs = [f"{NOT_REPAIRED}: {log_text(error)}"]
        refused = "; ".join(sentence for sentence in repairs if NOT_REPAIRED in sentence)
        self._health.report(subject, refused and f"{subject}: {refused}")
        return repairs

    def turn(self) -> float:
        """Reconcile soon after the start, after changes, and once per interval. Returns: seconds until something is due."""
        if not self._agenda.keys(*CLOCK_PASS):
            self._agenda.put(CLOCK_PASS, in_s=FIRST_RECONCILE_S)
        left_s = self._agenda.left_s(CLOCK_PASS)
        self._agenda.put(CLOCK_PASS, in_s=0.0)  # of a pass that fails: the next turn, after the loop's pause, makes it anew
        self.run_due(is_by_clock=not left_s)
        self._agenda.put(CLOCK_PASS, in_s=left_s or RECONCILE_INTERVAL_S)
        return soonest_s([left_s or RECONCILE_INTERVAL_S, self.fights.wait_s(), self._triggers.wait_s()]) or 0.0

    def on_change(self, change: HostChange) -> None:
        """The kernel announced a change: if it concerns anything of ours, a pass is due soon. From any thread."""
        if change.kind in SURVEYED:
            self._last_announced = object()
        if change.process:
            self.fights.record_changer(change.process)
        scope = scope_of(change, self._datastore)
        if scope is not None:
            if change.address is not None:
                self._agenda.put((WAY, change.address), in_s=0.0)
            self.mark(scope)

    def mark(self, scope: Scope) -> None:
        """A pass of this scope is due soon. From any thread."""
        self._triggers.mark(scope)
        self.loop.wake()

    def run_due(self, *, is_by_clock: bool) -> None:
        """Make the passes that are due: by the clock, after changes, or because an object's pause is over."""
        due, held_before = self._triggers.take(), self._held
        is_pause_over = bool(held_before - self.fights.held())
        if is_by_clock:
            self.reconcile(is_by_clock=True)
        elif Scope.EVERYTHING in due or is_pause_over:
            self._answer(Scope.EVERYTHING, self.reconcile)
        elif Scope.LINKS in due:
            self._reconcile_table(has_links=True)
        elif Scope.TABLE in due:
            self._answer(Scope.TABLE, self._reconcile_table)
        elif Scope.LOOK in due:
            self._look_at_tables()

    def _look_at_tables(self) -> None:
        """nftables changed: put back what is missing at once. What is unknown, because it was refused, is tried less and less."""
        match self._hostnet.are_tables_in_place():
            case False:
                self._reconcile_table()
            case None:
                self._triggers.mark(Scope.TABLE)

    def _answer(self, scope: Scope, make_pass: Callable[[], list[str]]) -> None:
        """Make a pass that a change asked for. One that fails, or is refused everything, puts the next off like one for nothing."""
        has_repaired = False
        try:
            has_repaired = any(isinstance(one, Repaired) for one in make_pass())
        finally:
            self._triggers.done(scope, has_repaired=has_repaired)

    def _reconcile_table(self, *, has_links: bool = False) -> list[str]:
        """Compare what is in nftables only: another program changed something there, or links of others that the tables name.

        What is refused the clock's pass records.
        """
        repairs = self.confine(is_silent=not has_links)
        identity = self._identity()
        if identity is not None:
            repairs += self._hostnet.reconcile_table(identity=identity)
        repairs = [one for one in repairs if NOT_REPAIRED not in one]
        self._count(repairs)
        if repairs:
            self._record(repairs)
        return repairs

    def _repair_sandboxes(
        self, survey: KernelSurvey, attachments: Collection[Attachment], cut: Collection[AttachmentKey]
    ) -> tuple[list[str], bool]:
        """Restore links, routes and rules of attached sandboxes. Returns: one sentence per repair, and whether any was damaged.

        The survey, which need not be whole, finds those that may be damaged; each is compared again, object by object, under its
        lock, so a concurrent DEL is never undone (I4). One that refuses is named in a condition, and does not stop the others.
        """
        repairs: list[str] = []
        moved = self._moved(attachments)
        beyond = {*moved, *cut}  # a survey does not show these
        # On a quiet node the same objects come again: they were compared already.
        was_in_order = self._in_order is not None and self._in_order[2] == (survey, attachments)
        links: tuple[HostVeth | VlanLink, ...] = (*survey.branches, *survey.vlans)
        up = {one.name for one in links if one.is_up and not one.is_dying}
        # Of rules that amazon-vpc-cni-k8s or an earlier release made, and that ours make needless.
        former = survey.to_rules | {address for address in survey.from_rules if self._prefix(address) is not None}
        damaged = [
            one
            for one in attachments
            if (
                up & one.links
                if one.is_cut_off
                else one.key in beyond
                or (not was_in_order and (one.address in former or wiring_differences(recorded_spec(one), survey)))
            )
        ]
        self.odd.keep_only(str(attachment.key) for attachment in damaged)
        for attachment in damaged:
            with (
                self.odd.skip(str(attachment.key)),
                self._locks.hold(attachment.key, "REPAIR", Deadline.after(self._clock, REPAIR_WAIT_S)),
            ):
                if self._datastore.attachment(attachment.key) == attachment:
                    if attachment.key in moved:  # the record comes first, because DEL goes by it
                        with self._datastore.transaction() as uow:
                            attachment = uow.move_table(attachment.key, route_table=moved[attachment.key])
                    spec = replace(recorded_spec(attachment), prefix=self._prefix(attachment.address))
                    if attachment.branch:
                        with suppress(BranchPendingError):  # EC2 is asked then, for a trunk that is back
                            spec = replace(spec, trunk_mac=self._enis.trunk_mac())
                    if attachment.is_cut_off:
                        repairs.append(self._wiring.cut_off(spec))
                        continue
                    repairs += self._wiring.repair([spec], seen=survey, held=self._held)
                    for sentence in self._obstacles([spec]).values() if spec.key in cut else ():
                        raise WiringError(sentence)
        return repairs, bool(damaged)

    def _cut_off(self) -> Collection[AttachmentKey]:
        """Ask for the ways of those whose turn it is, that a change named, or that were cut off before. Returns: those that are."""
        every, named = self._datastore.attachments(), self._agenda.keys(WAY)
        self._agenda.clear(*named)
        addresses, count = {key[1] for key in named}, min(WAY_TURNS, len(every) // WAY_LEAST + 1)
        turn = min(range(count), key=lambda one: self._agenda.left_s((TURN, one)))
        self._agenda.put((TURN, turn), in_s=3600.0)
        asked = (a for a in every if int(a.address) % count == turn or a.address in addresses or str(a.key) in self.odd.names)
        return self._obstacles([recorded_spec(one) for one in asked if not one.is_cut_off])

    def _obstacles(self, specs: Sequence[WiringSpec]) -> dict[AttachmentKey, str]:
        """What keeps packets from sandboxes, or theirs from the network, on the host or inside; nothing of those that have it not."""
        told, found = self._hostnet.way_differences(specs, enis=self._datastore.enis()), dict[AttachmentKey, str]()
        for spec in specs:
            with suppress(IpamError):  # its namespace is gone, or does not say (I11)
                inside = self._wiring.check_inside(spec, is_arrival_only=True) if spec.netns else []
                inside += [INSIDE_IS_LEFT] if inside else []
                if sentences := [*(str(one) for one in told if one.subject == str(spec.address)), *inside]:
                    found[spec.key] = "; ".join(sentences)
        return found

    def _prefix(self, address: IpAddress) -> IpNetwork | None:
        row = self._datastore.address(address)
        return None if row is None else row.prefix

    def _moved(self, attachments: Iterable[Attachment]) -> dict[AttachmentKey, int]:
        """Sandboxes whose ENI has another route table than theirs -> that table: the ENI was attached again at another place."""
        tables = {eni.eni_id: eni.route_table for eni in self._datastore.enis() if eni.host_ready}
        return {one.key: tables[one.eni_id] for one in attachments if tables.get(one.eni_id, one.route_table) != one.route_table}

    def reconcile(self, *, is_by_clock: bool = False) -> list[str]:
        """Compare and repair once; by the clock without what a silent kernel makes needless. Returns: one sentence per repair."""
        # What comes during the survey is for the next one. Nobody announces a change of the records.
        announced, is_silent = (self._last_announced, self._datastore.attachments()), False
        if self._in_order is not None and self._in_order[0] == announced and self._in_order[1] + 1 < SURVEY_TURNS:
            self._in_order, is_silent = (announced, self._in_order[1] + 1, self._in_order[2]), is_by_clock
        repairs = self.confine(is_silent=is_silent)
        identity = self._identity()
        self._held = self.fights.held()
        if identity is not None:
            repairs += self._reconcile_routing(identity, announced, is_silent=is_silent)
        self._count(repairs)
        if repairs != self._said:
            # The same sentences again mean a damage that cannot be repaired: it is logged and recorded only once.
            self._said = repairs
            if repairs:
                self._record(repairs)
        return repairs

    def _reconcile_routing(self, identity: InstanceIdentity, announced: object, *, is_silent: bool) -> list[str]:
        """Compare and repair what depends on which node this is."""
        attached = [eni for eni in self._datastore.enis() if eni.is_in_pool]
        self._enis.forget_unused()  # the last sandbox of an ENI that is gone may have left since
        frozen = self._enis.routing.frozen()
        for eni in (eni for eni in attached if not eni.host_ready and eni.eni_id not in frozen):
            self._enis.routing.set_up(eni, is_counted=False)
        enis = [eni for eni in self._datastore.enis() if eni.host_ready]  # excluded ones, too: their sandboxes stay
        repairs = self._tried(
            "node routing",
            lambda: self._hostnet.reconcile(
                identity=identity, enis=enis, addresses=self._addresses, held=self._held, is_silent=is_silent
            ),
        )
        self._health.report("egress", self._hostnet.egress()[1])
        cut = self._cut_off()
        if not is_silent or cut or self._moved(self._datastore.attachments()):
            return repairs + self._reconcile_sandboxes(announced, cut)
        self._quarantine_service.resolve(None)
        return repairs

    def _reconcile_sandboxes(self, announced: object, cut: Collection[AttachmentKey]) -> list[str]:
        """Compare and repair what one survey of the kernel shows: the sandboxes' wiring, and what nobody or somebody else wired."""
        survey = self._wiring.survey(may_be_torn=True)  # one for all that follows
        compared = survey, self._datastore.attachments()
        repairs, is_damaged = self._repair_sandboxes(*compared, cut)
        strays = self._strays(survey) if survey.is_whole else frozenset()
        if survey.is_whole:
            repairs += self._remove_strays(strays)
        self._quarantine_service.take_stock(survey)
        is_doubled = bool(duplicate_addresses(survey))
        if survey.is_whole and not is_doubled:
            self._health.report("duplicates", "")
        # Addresses of what others wired may become ours to give.
        has_others = any(veth.key is None and not veth.is_dying for veth in survey.veths)
        is_odd = is_damaged or is_doubled or has_others or bool(strays) or not survey.is_whole
        self._in_order = None if is_odd else (announced, 0, compared)
        return repairs

    def _strays(self, survey: KernelSurvey) -> frozenset[IpAddress]:
        """Addresses whose rules lead nowhere and that nobody owns: a sandbox's namespace went before its DEL, and its row was lost."""
        rows = self._datastore.address
        return frozenset(
            address
            for address in stray_rules(survey, self._networks(survey))
            if (row := rows(address)) is None or not (row.is_in_use or row.state is AddressState.QUARANTINED)
        )

    def _networks(self, survey: KernelSurvey) -> set[IpNetwork]:
        """The subnets of ENIs, and the prefixes of which not every address is recorded, that an address in a survey is in."""
        rows = (self._datastore.address(address) for address in (*survey.to_rules, *survey.from_rules))
        prefixes = {row.prefix for row in rows if row is not None and row.prefix and family_of(row.address).is_sparse}
        return prefixes.union(eni.subnet_cidr for eni in self._datastore.enis())

    def _remove_strays(self, strays: frozenset[IpAddress]) -> list[str]:
        """Remove those that a second survey shows, too: it began after the first had read the rules, so it has the veth and the
        route of an ADD that was under way then. Returns: one sentence per repair.
        """
        survey = self._wiring.survey(may_be_torn=True) if strays else None
        seen_twice = strays & self._strays(survey) if survey is not None and survey.is_whole else frozenset()
        self._odd_strays.keep_only(map(str, seen_twice))
        repairs = []
        for address in sorted(seen_twice):
            with self._odd_strays.skip(str(address)):
                self._wiring.remove_leftover(host_veth=None, address=address)
                repairs.append(f"rules of {address} led nowhere: removed")
        return repairs

    def _count(self, repairs: list[str]) -> None:
        self.fights.count_repairs(repairs)
        self._held = self.fights.held()

    def _record(self, repairs: list[str]) -> None:
        """Log and record repairs, but not each of an object that is put back each time in a fight: its condition counts them."""
        told = [one for one in repairs if not isinstance(one, Repaired) or self._agenda.is_due((OPEN_FIGHT, one.thing))]
        if told:
            log.warning("host routing repaired=%s", "; ".join(told))
            self.record_repair("; ".join(told))

    def record_repair(self, sentence: str) -> None:
        """Record a repair in the ledger. From any thread. Raises: DatastoreError."""
        with self._datastore.transaction() as uow:
            uow.record_event(LedgerEvent.REPAIRED, detail=sentence[:1000])
