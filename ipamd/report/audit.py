"""Cross-check datastore, kernel, runtime and EC2: report what differs, and what will be done about it.

Reads only. A `violation` breaks an invariant. A `difference` is repaired, or is not ours to repair; the finding says which. `pending`
is in progress and needs no action. The crash tests end with this audit; operators run the same one (`ipamctl audit`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from functools import partial
from typing import TypeVar

from ipamd.core.deadline import KeyLocks
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.branch import BranchEni, contradiction
from ipamd.model.cloud import DescribedEni
from ipamd.model.cloud_evidence import CloudKey, addresses_on, plausibility, recorded
from ipamd.model.cniresult import recorded_spec
from ipamd.model.errors import Defect, IpamError, log_text
from ipamd.model.family import IpAddress, stand_in
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.intent import IntentKind, leaving_addresses
from ipamd.model.kernel import (
    INSIDE_IS_LEFT,
    KernelSurvey,
    RoutingDifference,
    duplicate_addresses,
    wiring_differences,
)
from ipamd.model.record import dataclass, replace
from ipamd.model.snapshot import Snapshot
from ipamd.model.words import counted, first_of, rfc3339
from ipamd.ports import Datastore
from ipamd.report.sources import ON_FROZEN, UNREACHED, Sources


class Severity(StrEnum):
    """How much a finding matters."""

    VIOLATION = "violation"
    DIFFERENCE = "difference"
    PENDING = "pending"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing that differs; `next` says what will be done about it, and by whom."""

    severity: Severity
    subject: str
    what: str
    next: str


# The part of the audit about ENIs on the host: links, addresses, route tables, rules, sysctls, our nftables table, frozen ENIs.
#
# It uses the comparisons that the repair uses (`HostNetwork.differences`), and repairs nothing. What no repair can put right
# while sandboxes depend on it is a violation: they have no network.


REPAIR = "the host network reconciler repairs it at once, or within 30 s"
SET_UP = "set up now, or by the host network reconciler within 30 s; if it stays, see the daemon's log"
NAMED_MAX = 20
"""Of the pods on an ENI. Ours: those of most types' ENIs."""

WAY = "the other findings and `ipamctl status` say what is in the way; what is ours is repaired within 30 s"
SUCCESSOR = "delete the pod: its successor gets another address"
LINK = "look at the ENI in EC2: detached by hand? Delete the pods on it; the pool grows elsewhere"


def _host(sources: Sources, silent: list[str], told: Collection[str]) -> list[Finding]:
    """Compare the host's routing with what the attached ENIs need, and ask for the ways of sandboxes that were not `told` of."""
    identity, frozen, snapshot = sources.identity(), sources.frozen(), sources.datastore.snapshot()
    if identity is None:
        silent.append("the node's own routing is not compared: instance metadata has not answered")
    attached = {eni.eni_id: eni for eni in snapshot.enis.values() if eni.is_in_pool}

    def compare() -> list[RoutingDifference]:
        hostnet = sources.hostnet
        found = hostnet.differences(identity=identity, enis=attached.values(), addresses=snapshot.addresses)
        living = (one for one in snapshot.attachments.values() if not one.is_cut_off)
        asked = [recorded_spec(one) for one in living if str(one.address) not in told]
        ways = hostnet.way_differences(asked, enis=attached.values())
        lasting = {str(one.address) for one in sources.datastore.attachments()}  # no DEL came between
        return [*found, *hostnet.confinement_differences(), *(one for one in ways if one.subject in lasting)]

    differences = _ask("host routing", compare, silent)
    if differences is None:
        return []
    unready = {eni_id for eni_id, eni in attached.items() if not eni.host_ready and eni_id not in frozen}
    sandboxes: dict[EniId, list[str]] = {}
    for one in snapshot.attachments.values():
        sandboxes.setdefault(one.eni_id, []).append(one.sandbox_name or str(one.key))
    found = [
        _of_routing(each, sandboxes)
        for each in differences
        if not (each.is_repaired and each.subject in unready)  # its set-up may be under way
    ]
    for eni_id in attached.keys() & frozen.keys():
        what = f"frozen, it gives no address to new sandboxes: {frozen[eni_id]}"
        what += f"; {counted(len(sandboxes[eni_id]), 'sandbox')} on it" if eni_id in sandboxes else ""
        over = "it is used again once that is over, or forgotten once EC2 confirms it"
        found.append(Finding(Severity.DIFFERENCE, eni_id, what, over))
    found += [
        Finding(Severity.DIFFERENCE, one.name, f"leads into sandbox {one.key}, and is not ours", FOREIGN)
        for one in sources.hostnet.foreign_links()
    ]
    what = "its routing is not set up on the host, so it gives no address (I7)"
    return found + [Finding(Severity.PENDING, eni_id, what, SET_UP) for eni_id in unready]


def _of_routing(difference: RoutingDifference, sandboxes: Mapping[EniId, list[str]]) -> Finding:
    on_it = sandboxes.get(EniId(difference.subject))
    if difference.is_repaired or difference.mend or not on_it:
        mend = f"it is not ours; to mend it: {difference.mend}" if difference.mend else "look at the daemon's log"
        return Finding(Severity.DIFFERENCE, difference.subject, difference.what, REPAIR if difference.is_repaired else mend)
    what = f"{difference.what}: {counted(len(on_it), 'sandbox')} on it without network: {first_of(sorted(on_it), NAMED_MAX)}"
    return Finding(Severity.VIOLATION, difference.subject, what, LINK)


FOREIGN = "left alone: if no second CNI made it, the sandbox did, by NET_ADMIN; `ip -d link show` shows it"
OWED = "the agent is told to forget it, within 5 s or once it answers; an ADD of that name tells it first"
NEXT_GIVEN_TWICE = "delete one of the two pods, and remove its DaemonSet aws-node from this node"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All findings, worst first; `silent` names the sources that did not answer: nothing is concluded from them (I11)."""

    findings: tuple[Finding, ...]
    silent: tuple[str, ...]
    address_count: int


def audit(sources: Sources, *, ask_ec2: bool = True) -> AuditReport:
    """Read every source once and compare.

    Args:
        ask_ec2: make one Describe call; otherwise EC2 is not compared.
    Returns: the report. A source that fails is named in it; nothing is raised.
    """
    datastore, silent = sources.datastore, list[str]()
    before = datastore.snapshot()  # one read: an ADD between two reads would look like a contradiction
    findings = [
        Finding(Severity.VIOLATION, "datastore", sentence, "report it: memory and disk must never differ")
        for sentence in datastore.audit()
    ]
    sources.health.count_defects(Defect.DATASTORE, len(findings))
    findings += [
        Finding(Severity.VIOLATION, str(one.ours.address), f"{one} (I1, I20)", NEXT_GIVEN_TWICE) for one in sources.given_twice()
    ]
    findings += [
        Finding(
            Severity.PENDING, str(pod), f"the network policy agent may know it since {rfc3339(since)}, no sandbox has it", OWED
        )
        for pod, since in sources.owed().items()
    ]
    findings += lost_addresses(before) + primary_addresses(before) + contradicted_branches(before)
    findings += _kernel(sources, before, silent)
    findings += _host(sources, silent, {one.subject for one in findings}) + _runtime(sources, before, silent)
    if ask_ec2:
        findings += _ec2(sources, before, silent)
    findings += _without_network(sources, {one.subject for one in findings if one.severity is Severity.VIOLATION})
    order = list(Severity)
    findings.sort(key=lambda finding: (order.index(finding.severity), finding.subject))
    return AuditReport(tuple(findings), tuple(silent), len(before.addresses))


def _without_network(sources: Sources, told: Collection[str]) -> list[Finding]:
    """The sandboxes without network whose address or ENI no violation has `told` of, one finding for each cause. Asks nobody."""
    left: dict[str, list[str]] = {}
    for one in sources.without_network():
        if not {str(one.address), str(one.eni_id)} & set(told):
            left.setdefault(one.cause, []).append(f"{one.address} ({one.who})")
    return [
        Finding(
            Severity.VIOLATION,
            "network",
            f"{counted(len(who), 'sandbox')} without network: {cause}: {first_of(sorted(who), NAMED_MAX)}",
            {ON_FROZEN: LINK, UNREACHED: WAY}.get(cause, SUCCESSOR),
        )
        for cause, who in left.items()
    ]


def _kernel(sources: Sources, before: Snapshot, silent: list[str]) -> list[Finding]:
    """Compare the wiring of sandboxes; the inside of one whose veth or namespace path is not known is told of elsewhere."""
    survey = _ask("kernel", lambda: sources.wiring.survey(may_be_torn=True), silent)
    if survey is None:
        return []
    if not survey.is_whole:
        silent.append("kernel: links or routes changed without pause: nothing is concluded from what was not seen")
    findings = against_kernel(before, survey, datastore=sources.datastore, locks=sources.locks)
    wired = survey.living_names
    busy = {held.key for held in sources.locks.held()}
    for one in before.attachments.values():
        if one.host_veth not in wired or one.key in busy or not one.netns or one.is_cut_off:
            continue
        found = _ask(f"sandbox {one.key}", partial(sources.wiring.check_inside, recorded_spec(one)), silent)
        if found and sources.datastore.attachment(one.key) == one:  # no DEL came between
            findings.append(Finding(Severity.DIFFERENCE, str(one.address), "; ".join(found), INSIDE_IS_LEFT))
    return findings


def _runtime(sources: Sources, before: Snapshot, silent: list[str]) -> list[Finding]:
    """Compare the records with the runtime's complete list of container IDs."""
    if sources.cri is None:
        silent.append("CRI is off: dead sandboxes are not noticed")
        return []
    sandboxes = _ask("runtime", sources.cri.sandboxes, silent)
    if sandboxes is None:
        return []
    listed = {sandbox.container_id for sandbox in sandboxes}
    return [
        Finding(
            Severity.PENDING,
            str(attachment.address),
            f"sandbox {attachment.key} is recorded and the runtime does not list it",
            "freed by its DEL, or reaped once every source says that it is gone",
        )
        for attachment in before.attachments.values()
        if attachment.key.container_id not in listed
    ]


def _ask(source: str, question: Callable[[], T], silent: list[str]) -> T | None:
    try:
        return question()
    except IpamError as error:
        silent.append(f"{source}: {log_text(error)}")
        return None


# The part of the audit about sandboxes: their wiring in the kernel, and the runtime's list, against the records.


def against_kernel(snapshot: Snapshot, survey: KernelSurvey, *, datastore: Datastore, locks: KeyLocks) -> list[Finding]:
    """Compare the wiring of every sandbox with its record.

    Args:
        snapshot: older than `survey`; where an ADD or DEL between them may explain a difference, `datastore` is asked again.
        locks: an ADD or DEL at work changes the kernel while we read: its sandbox is left out.
    """
    attachments, rows = tuple(snapshot.attachments.values()), tuple(snapshot.addresses.values())
    busy = {held.key for held in locks.held()}
    findings = _duplicates(survey)
    for attachment in attachments:
        if attachment.key not in busy and not attachment.is_cut_off:
            findings += _of_wiring(attachment, survey)
    findings += _unowned_links(attachments, survey, busy, datastore)
    findings += [] if busy else _unowned_vlans({*attachments, *datastore.attachments()}, survey)
    assigned = {attachment.address for attachment in attachments}
    cold = {row.address for row in rows if row.state in (AddressState.FREE, AddressState.COOLING)} - assigned
    for address in sorted(cold & {*survey.to_rules, *survey.from_rules, *survey.routes, *survey.own_routes}):
        # The rows are older than the survey: an ADD may have wired the address since.
        now = datastore.address(address)
        if now and now.state in (AddressState.FREE, AddressState.COOLING):
            findings.append(
                Finding(Severity.VIOLATION, str(address), f"{now.state}, yet it has a route or rule (I4)", "restart vpc-ipamd")
            )
    return findings


def _unowned_links(
    attachments: tuple[Attachment, ...], survey: KernelSurvey, busy: set[AttachmentKey], datastore: Datastore
) -> list[Finding]:
    # A sandbox's own link under another name is its own difference.
    owners = {one for attachment in attachments for one in (attachment.host_veth, attachment.key)}
    findings = []
    for veth in (*survey.firsts, *survey.egress):
        if veth.is_dying:
            findings.append(Finding(Severity.PENDING, veth.name, "marked for deletion", "the cooldown deletes it at once"))
        elif veth.name not in owners and veth.key is None:
            findings.append(Finding(Severity.DIFFERENCE, veth.name, "carries no identity of ours", "left alone"))
        elif not {veth.name, veth.key} & {*owners, *busy}:
            row = datastore.address(veth.address) if veth.address else None
            is_quarantined = row and row.state is AddressState.QUARANTINED
            findings.append(
                Finding(
                    Severity.DIFFERENCE,
                    veth.name,
                    f"wired for {veth.key} with {veth.address}, which the datastore does not know",
                    "quarantined until runtime and kernel agree" if is_quarantined else "the next start resolves it",
                )
            )
    return findings


def _unowned_vlans(attachments: Iterable[Attachment], survey: KernelSurvey) -> list[Finding]:
    """VLAN links that no sandbox is led through; an ADD that is under way has made one before its row."""
    owners = {one.branch.link: one.address for one in attachments if one.branch}
    return [
        Finding(
            Severity.DIFFERENCE,
            link.name,
            f"leads to {link.eni_id or 'an unknown branch ENI'} with {link.address or 'no address'}, which no sandbox has",
            "removed before another sandbox gets its VLAN ID, and by the next start",
        )
        for link in survey.vlans
        if not link.is_dying and (link.name not in owners or link.address not in (None, owners[link.name]))
    ]


def _duplicates(survey: KernelSurvey) -> list[Finding]:
    return [
        Finding(
            Severity.VIOLATION,
            str(address),
            f"{len(veths)} host veths carry it: {', '.join(f'{veth.name} of {veth.key}' for veth in veths)} (I1)",
            "delete the sandbox that should not have it",
        )
        for address, veths in duplicate_addresses(survey).items()
    ]


def _of_wiring(attachment: Attachment, survey: KernelSurvey) -> list[Finding]:
    """What differs from the record, as CHECK and the repair see it; of a survey that is torn only what it shows."""
    subject = str(attachment.address)
    spec = recorded_spec(attachment)
    found = wiring_differences(spec, survey)
    if any(one.kind is None and one.is_absence for one in wiring_differences(replace(spec, other_address=None), survey)):
        gone = f"sandbox {attachment.key} is recorded and its host veth {attachment.host_veth} is gone"
        return [Finding(Severity.PENDING, subject, gone, "freed by its DEL, or reaped within minutes")] if survey.is_whole else []
    return [
        Finding(Severity.VIOLATION, subject, f"{one.what} (I1)", "delete the sandbox")
        if one.kind is None
        else Finding(Severity.DIFFERENCE, subject, one.what, "the host network reconciler repairs it")
        for one in found
        if survey.is_whole or not one.is_absence
    ]


# The part of the audit about EC2: which addresses are on which ENI, by the records and by one answer of EC2.
#
# One answer proves no absence (`ipamd/model/cloud_evidence.py`): what it lacks is a difference that is not confirmed, and an answer
# that is not plausible is not compared. What the daemon itself has found to be lost is told without EC2: a sandbox that has a lost
# address has no network.


NOT_CONFIRMED_BRANCH = "not confirmed: one answer may lag; two that contradict are the condition `branch`"
NOT_CONFIRMED = "not confirmed: one answer may lag; an address is lost after a second one"


def lost_addresses(snapshot: Snapshot) -> list[Finding]:
    """Tell each address that the daemon found to be lost, and which sandbox has it. Asks nobody."""
    found = []
    for row in snapshot.addresses.values():
        if row.lost_since is None:
            continue
        since = f"lost since {rfc3339(row.lost_since)}: {row.lost_reason or 'EC2 does not show it'}"
        if not row.is_in_use:
            what = f"{since}; it is {row.state}"
            found.append(
                Finding(Severity.PENDING, str(row.address), what, "given to nobody, and removed when it would become free")
            )
            continue
        name = next((a.sandbox_name for a in snapshot.attachments.values() if a.key == row.owner), "")
        what = f"{since}; sandbox {row.owner}{f' ({name})' if name else ''} has it and no network (I7)"
        found.append(Finding(Severity.VIOLATION, str(row.address), what, SUCCESSOR))
    return found


def contradicted_branches(snapshot: Snapshot) -> list[Finding]:
    """Tell each branch ENI of which EC2 has said something else twice. Asks nobody."""
    return [
        Finding(
            Severity.VIOLATION,
            str(one.address),
            f"EC2 contradicts {one.eni_id} of sandbox {one.key} ({one.sandbox_name or '-'}): {one.contradiction}"
            + (": it is cut off" if one.is_cut_off else ""),
            "find out who wrote the pod's annotation, and delete the pod; EC2 is asked again",
        )
        for one in snapshot.attachments.values()
        if one.contradiction
    ]


def primary_addresses(snapshot: Snapshot) -> list[Finding]:
    """Tell each recorded address that is the primary address of a recorded ENI."""
    primaries = {eni.primary_address for eni in snapshot.enis.values()}
    return [
        Finding(Severity.VIOLATION, str(address), "a primary address among those for sandboxes (I6)", "report it")
        for address in snapshot.addresses
        if address in primaries
    ]


def _ec2(sources: Sources, before: Snapshot, silent: list[str]) -> list[Finding]:
    """Compare the records with one complete answer.

    Only what both `before` and the records after the answer say is told: ENIs and addresses may be recorded while EC2 is asked.
    """
    identity = sources.identity()
    if identity is None:
        silent.append("EC2 cannot be asked: instance metadata has not answered, so this node is not known")
        return []
    enis = _ask("EC2", lambda: sources.ec2.describe_enis(identity.instance_id), silent)
    if enis is None:
        return []
    after = sources.datastore.snapshot()
    recent = {*sources.recent(), *_released(before), *_released(after)}
    if implausible := plausibility(enis, recorded(before, identity), recent=recent):
        silent.append(f"EC2: its answer is not plausible, {implausible}: nothing is concluded from it")
        return []
    on_eni = {address: eni.eni_id for eni in enis if eni.is_readable for address in addresses_on(eni)}
    unreadable = {eni.eni_id for eni in enis if not eni.is_readable}
    found, attached = [], {eni.eni_id for eni in enis}
    for row in before.addresses.values():
        now, other_id = after.addresses.get(row.address), on_eni.get(stand_in(row.address) or row.address, "")
        if row.is_lost or other_id == row.eni_id or row.eni_id in unreadable or now is None or now.eni_id != row.eni_id:
            continue
        if not other_id and row.eni_id not in attached:
            continue  # its ENI is told of
        what = f"{row.state} on {row.eni_id}; EC2's answer has it on {other_id or 'no ENI of this node'}"
        if row.address in recent or row.eni_id in recent:
            lags = "our own call changed it minutes ago: EC2's answer lags"
            found.append(Finding(Severity.PENDING, str(row.address), what, lags))
        else:
            found.append(Finding(Severity.DIFFERENCE, str(row.address), what, NOT_CONFIRMED))
    primaries: dict[IpAddress, EniId] = {eni.primary_address: eni.eni_id for eni in enis if eni.primary_address is not None}
    found += [
        Finding(Severity.DIFFERENCE, str(address), f"EC2 has it as the primary address of {primaries[address]}", NOT_CONFIRMED)
        for address in before.addresses.keys() & primaries.keys()
    ]
    return found + _of_enis(enis, after, recent) + _of_branches(sources, before, after, silent)


def _of_branches(sources: Sources, before: Snapshot, after: Snapshot, silent: list[str]) -> list[Finding]:
    """Compare the branch ENIs of sandboxes with one answer; what is contradicted on record already is told elsewhere."""
    asked = [one for key, one in before.attachments.items() if one.branch and not one.contradiction and key in after.attachments]
    described = _ask("EC2", lambda: sources.ec2.find_enis([one.eni_id for one in asked]), silent) if asked else ()
    shown, findings = {eni.eni_id: eni for eni in described or ()}, []
    for one in asked if described is not None else ():
        eni = shown.get(one.eni_id)
        said = contradiction(BranchEni.of(one), eni, trunk=sources.trunk()) if eni and not eni.problem else "not shown"
        if said:
            what = f"branch ENI {one.eni_id} of sandbox {one.key}, by EC2's answer: {said}"
            findings.append(Finding(Severity.DIFFERENCE, str(one.address), what, NOT_CONFIRMED_BRANCH))
    return findings


def _released(snapshot: Snapshot) -> set[CloudKey]:
    """What open intents of ours take away at EC2; nobody can have it meanwhile."""
    enis = {EniId(i.payload.get("eni_id", "")) for i in snapshot.intents.values() if i.kind is IntentKind.DELETE_ENI}
    return {*leaving_addresses(snapshot.intents.values()), *enis}


def _of_enis(enis: Collection[DescribedEni], after: Snapshot, recent: Collection[CloudKey]) -> list[Finding]:
    """ENIs that only one side knows. One that was recorded while EC2 was asked, or is covered by an intent, is known."""
    covered = {intent.payload.get("eni_id") for intent in after.intents.values()}
    attached = {eni.eni_id for eni in enis}
    unknown = [eni for eni in enis if eni.eni_id not in after.enis and eni.eni_id not in covered]
    # An ENI that was taken from its sandboxes stays on record for them, with its primary address.
    holders: dict[IpAddress | None, str] = {one.primary_address: one.eni_id for one in after.enis.values()}
    holders |= {row.address: "a sandbox" for row in after.addresses.values() if row.is_lost}
    found = []
    for eni in sorted(unknown, key=lambda eni: eni.eni_id):
        holder = holders.get(eni.primary_address)
        if holder:
            what = f"attached, and takes a place only: its primary address {eni.primary_address} is still that of {holder}"
            next_step = "recorded once the sandboxes are gone that got their addresses where EC2 has taken this one from"
        elif eni.is_readable:
            what, next_step = "attached, and unknown to the datastore", "adopted at the next comparison with EC2"
        else:
            what = f"attached, and takes a place only: {eni.problem or f'no IPv4 address ({eni.interface_type})'}"
            next_step = "left alone"
        severity = Severity.DIFFERENCE if eni.is_readable and not holder else Severity.PENDING
        found.append(Finding(severity, eni.eni_id, what, next_step))
    for eni_id in sorted(after.enis.keys() - attached):
        severity = Severity.PENDING if eni_id in recent else Severity.DIFFERENCE
        found.append(Finding(severity, eni_id, "known, and not attached by EC2's answer", "forgotten when confirmed and unused"))
    return found
