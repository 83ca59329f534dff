"""Compare datastore, kernel, runtime and EC2 with each other. Report each difference with the next step, and who takes it.

The audit repairs nothing. A finding of severity `violation` breaks an invariant. A `difference` is repaired by the daemon, or is not
ours to repair, and the finding says which of the two. A `pending` finding is in progress and needs no action. The crash tests end with
this audit, and operators run the same audit with `ipamctl audit`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from ipamd.model.cniresult import recorded_spec
from ipamd.model.defects import Defect
from ipamd.model.finding_codes import FindingCode, Severity
from ipamd.model.kernel import KernelSurvey
from ipamd.model.record import dataclass
from ipamd.model.snapshot import Snapshot
from ipamd.model.time_text import rfc3339
from ipamd.model.wiring_difference import difference_texts
from ipamd.model.words import counted
from ipamd.report.audit_ec2 import compare_with_ec2, lost_addresses, primary_addresses
from ipamd.report.audit_host import compare_with_host
from ipamd.report.audit_sandboxes import against_kernel, still_recorded
from ipamd.report.finding import AuditFinding, ask_source, finding
from ipamd.report.legs.uplinked import contradicted
from ipamd.report.sources import ON_FROZEN, UNREACHED, CutOff, Sources, sandbox_count

CODES_BY_CAUSE = {ON_FROZEN: FindingCode.NO_NETWORK_ON_FROZEN_ENI, UNREACHED: FindingCode.NO_NETWORK_UNREACHED}
"""The code of the finding about sandboxes without network, by the cause. For every other cause it is NO_NETWORK."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of one audit.

    `findings`: all findings, the worst first.
    `silent`: a sentence for each source that did not answer, or whose answer was not compared. Nothing is concluded from that (I11).
    `address_count`: the number of recorded addresses.
    `is_ec2_compared`: whether EC2 gave a plausible answer, and it was compared completely.
    """

    findings: tuple[AuditFinding, ...]
    silent: tuple[str, ...]
    address_count: int
    is_ec2_compared: bool = False


def audit(sources: Sources, *, ask_ec2: bool = True) -> AuditReport:
    """Read every source once and compare them.

    Args:
        ask_ec2: whether to ask EC2. Otherwise EC2 is not compared.
    Returns: the report. It names each source that failed. A source that fails raises nothing.
    """
    datastore = sources.datastore
    silent: list[str] = []
    before = datastore.snapshot()  # one read: an ADD between two reads would look like a contradiction
    findings = [finding(FindingCode.MEMORY_DIFFERS, "datastore", difference=difference) for difference in datastore.audit()]
    sources.health.count_defects(Defect.DATASTORE, len(findings))
    findings += _addresses_given_twice(sources) + _pending_policy_cleanups(sources)
    findings += lost_addresses(before) + primary_addresses(before) + contradicted(before)
    findings += _compare_with_kernel(sources, before, silent)
    reported_subjects = {reported.subject for reported in findings}
    findings += compare_with_host(sources, silent, reported_subjects) + _compare_with_runtime(sources, before, silent)
    silent_count = len(silent)
    if ask_ec2:
        findings += compare_with_ec2(sources, before, silent)
    is_ec2_compared = ask_ec2 and len(silent) == silent_count
    violated_subjects = {reported.subject for reported in findings if reported.severity is Severity.VIOLATION}
    findings += _without_network(sources, violated_subjects)
    order = list(Severity)
    findings.sort(key=lambda reported: (order.index(reported.severity), reported.subject))
    return AuditReport(tuple(findings), tuple(silent), len(before.addresses), is_ec2_compared)


def _addresses_given_twice(sources: Sources) -> list[AuditFinding]:
    """Report the addresses that aws-node has assigned to one sandbox, and our daemon to another."""
    return [finding(FindingCode.GIVEN_TWICE, pair.ours.address, pair=pair) for pair in sources.given_twice()]


def _pending_policy_cleanups(sources: Sources) -> list[AuditFinding]:
    """Report each pod whose last sandbox is gone, until the network policy agent has confirmed that it has forgotten the pod."""
    findings = []
    for pod, since in sources.pending_policy_cleanups().items():
        findings.append(finding(FindingCode.POLICY_OWED, pod, since=rfc3339(since)))
    return findings


def _without_network(sources: Sources, reported: Collection[str]) -> list[AuditFinding]:
    """Report the sandboxes without network, one finding for each cause. Reads memory only.

    Args:
        reported: the subjects of the violations that were found before. An interface whose address or ENI is a subject is left out.
    """
    interfaces_by_cause: dict[str, list[CutOff]] = {}
    for interface in sources.without_network():
        if not {str(interface.address), str(interface.eni_id)} & set(reported):
            interfaces_by_cause.setdefault(interface.cause, []).append(interface)
    findings = []
    for cause, interfaces in interfaces_by_cause.items():
        code, count = CODES_BY_CAUSE.get(cause, FindingCode.NO_NETWORK), counted(sandbox_count(interfaces), "sandbox")
        names = sorted(f"{interface.address} ({interface.name})" for interface in interfaces)
        findings.append(finding(code, "network", count=count, cause=cause, sandboxes="; ".join(names)))
    return findings


def _compare_with_kernel(sources: Sources, before: Snapshot, silent: list[str]) -> list[AuditFinding]:
    """Compare the wiring of sandboxes with the records, on the host and inside the sandboxes.

    If the kernel cannot be read, the reason is added to `silent`, and the result is [].
    """
    survey = ask_source("kernel", lambda: sources.wiring.survey(may_be_torn=True), silent)
    if survey is None:
        return []
    if not survey.is_whole:
        silent.append("kernel: links or routes changed without pause while they were read: an object that was not seen may exist")
    findings = against_kernel(before, survey, datastore=sources.datastore, locks=sources.locks)
    return findings + _inside_sandboxes(sources, before, survey, silent)


def _inside_sandboxes(sources: Sources, before: Snapshot, survey: KernelSurvey, silent: list[str]) -> list[AuditFinding]:
    """Compare interfaces and routes inside the sandboxes with the records.

    Left out are sandboxes without a host veth, which another finding reports; adopted sandboxes, because the path of their namespace
    is not recorded; sandboxes with a running operation; and sandboxes that must be cut off, because their links are down on purpose.
    """
    wired = survey.living_names
    busy = {lock.key for lock in sources.locks.holders()}
    findings = []
    for attachment in before.attachments.values():
        if attachment.host_veth not in wired or attachment.key in busy or not attachment.netns or attachment.must_be_cut_off:
            continue
        check = partial(sources.wiring.check_inside, recorded_spec(attachment))
        differences = ask_source(f"sandbox {attachment.key}", check, silent)
        if differences and sources.datastore.attachment(attachment.key) == attachment:  # no DEL came between
            findings.append(finding(FindingCode.INSIDE_DIFFERS, attachment.address, differences=difference_texts(differences)))
    return findings


def _compare_with_runtime(sources: Sources, before: Snapshot, silent: list[str]) -> list[AuditFinding]:
    """Compare the records with the runtime's complete list of container IDs, without sandboxes that came or went meanwhile.

    If CRI is off or does not answer, or if its list is not plausible, the reason is added to `silent`, and the result is [].
    """
    if sources.cri is None:
        silent.append("CRI is off: dead sandboxes are not noticed")
        return []
    sandboxes = ask_source("runtime", sources.cri.sandboxes, silent)
    if sandboxes is None:
        return []
    listed = {sandbox.container_id for sandbox in sandboxes}
    attachments = still_recorded(before, sources.datastore)
    missing_count = 0
    if sources.missing_count:
        missing_count = sources.missing_count(attachments, listed)
    if missing_count > 1:
        mismatch = f"none of {missing_count} wired sandboxes is in a list of {len(listed)}"
        silent.append(f"runtime: its list is not plausible, {mismatch}: nothing is concluded from it")
        return []
    findings = []
    for attachment in attachments:
        if attachment.key.container_id not in listed:
            findings.append(finding(FindingCode.NOT_LISTED, attachment.address, sandbox=attachment.key))
    return findings
