"""Cross-check datastore, kernel, runtime and EC2: report what differs, and what will be done about it.

Reads only. A `violation` breaks an invariant. A `difference` is repaired, or is not ours to repair; the finding says which. `pending`
is in progress and needs no action. The crash tests end with this audit; operators run the same one (`ipamctl audit`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ipamd.core.locks import KeyLocks
from ipamd.model.attachment import Attachment
from ipamd.model.aws_node import GivenTwice
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.cniresult import recorded_spec
from ipamd.model.eni import Eni
from ipamd.model.errors import IpamError, log_text
from ipamd.model.ids import EniId
from ipamd.model.kernel import INSIDE_IS_LEFT, KernelSurvey, RoutingDifference
from ipamd.model.metadata_evidence import CloudKey
from ipamd.model.snapshot import Snapshot
from ipamd.model.words import counted
from ipamd.ports import Datastore, Ec2, HostNetwork, Runtime, Wiring
from ipamd.report.audit_cloud import against_ec2, lost_addresses, primary_addresses
from ipamd.report.audit_sandboxes import against_kernel, against_runtime
from ipamd.report.finding import Finding, Severity

# The part of the audit about ENIs on the host: links, addresses, route tables, rules, sysctls, our nftables table, frozen ENIs.
#
# It uses the comparisons that the repair uses (`HostNetwork.differences`), and repairs nothing. What no repair can put right
# while sandboxes depend on it is a violation: they have no network.


REPAIR = "the host network reconciler repairs it at once, or within 30 s"
SET_UP = "set up now, or by the host network reconciler within 30 s; if it stays, see the daemon's log"
LINK = "look at the ENI in EC2: detached by hand? Delete the pods on it; the pool grows elsewhere"


def against_host(
    snapshot: Snapshot, *, hostnet: HostNetwork, identity: InstanceIdentity | None, frozen: Mapping[EniId, str]
) -> list[Finding]:
    """Compare the host's routing with what the attached ENIs of `snapshot` need. Raises: KernelDumpError."""
    attached = {eni.eni_id: eni for eni in snapshot.enis.values() if eni.is_in_pool}
    unready = {eni_id for eni_id, eni in attached.items() if not eni.host_ready and eni_id not in frozen}
    sandboxes = Counter(attachment.eni_id for attachment in snapshot.attachments.values())
    found = [
        _of_routing(each, sandboxes)
        for each in (
            *hostnet.differences(identity=identity, enis=attached.values(), addresses=snapshot.addresses),
            *hostnet.confinement_differences(),
        )
        if not (each.is_repaired and each.subject in unready)  # its set-up may be under way
    ]
    found += [_of_frozen(eni, frozen[eni_id], sandboxes[eni_id]) for eni_id, eni in attached.items() if eni_id in frozen]
    what = "its routing is not set up on the host, so it gives no address (I7)"
    return found + [Finding(Severity.PENDING, eni_id, what, SET_UP) for eni_id in unready]


def _of_routing(difference: RoutingDifference, sandboxes: Counter[EniId]) -> Finding:
    if difference.is_repaired:
        return Finding(Severity.DIFFERENCE, difference.subject, difference.what, REPAIR)
    if difference.mend:
        return Finding(Severity.DIFFERENCE, difference.subject, difference.what, f"it is not ours; to mend it: {difference.mend}")
    count = sandboxes[EniId(difference.subject)]
    if not count:
        return Finding(Severity.DIFFERENCE, difference.subject, difference.what, "look at the daemon's log")
    what = f"{difference.what}: {counted(count, 'sandbox')} on it without network"
    return Finding(Severity.VIOLATION, difference.subject, what, LINK)


def _of_frozen(eni: Eni, reason: str, sandbox_count: int) -> Finding:
    what = f"frozen, it gives no address to new sandboxes: {reason}"
    if sandbox_count:
        what += f"; {counted(sandbox_count, 'sandbox')} on it"
    return Finding(Severity.DIFFERENCE, eni.eni_id, what, "it is used again once that is over, or forgotten once EC2 confirms it")


NEXT_GIVEN_TWICE = "delete one of the two pods, and remove its DaemonSet aws-node from this node"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All findings, worst first; `silent` names the sources that did not answer: nothing is concluded from them (I11)."""

    findings: tuple[Finding, ...]
    silent: tuple[str, ...]
    address_count: int


@dataclass(frozen=True, slots=True)
class AuditSources:
    """Whom the audit asks; `runtime` is None with CRI off.

    `frozen`: ENIs that give no address although they are attached, with the reason. `recent`: what our own calls to EC2 changed in
    the last minutes. `given_twice`: what amazon-vpc-cni-k8s gave besides, by its file.
    """

    datastore: Datastore
    wiring: Wiring
    hostnet: HostNetwork
    ec2: Ec2
    runtime: Runtime | None
    locks: KeyLocks
    identity: Callable[[], InstanceIdentity | None]
    frozen: Callable[[], Mapping[EniId, str]]
    recent: Callable[[], Collection[CloudKey]]
    given_twice: Callable[[], tuple[GivenTwice, ...]]


class AuditService:
    """Audits one node. `datastore_defect_count`: what audits found wrong in the datastore itself, since start."""

    def __init__(self, sources: AuditSources) -> None:
        self._sources = sources
        self.datastore_defect_count = 0

    def audit(self, *, ask_ec2: bool = True) -> AuditReport:
        """Read every source once and compare.

        Args:
            ask_ec2: make one Describe call; otherwise EC2 is not compared.
        Returns: the report. A source that fails is named in it; nothing is raised.
        """
        datastore, silent = self._sources.datastore, list[str]()
        before = datastore.snapshot()  # one read: an ADD between two reads would look like a contradiction
        findings = [
            Finding(Severity.VIOLATION, "datastore", sentence, "report it: memory and disk must never differ")
            for sentence in datastore.audit()
        ]
        self.datastore_defect_count += len(findings)
        findings += [
            Finding(Severity.VIOLATION, str(one.ours.address), f"{one} (I1, I20)", NEXT_GIVEN_TWICE)
            for one in self._sources.given_twice()
        ]
        findings += lost_addresses(before) + primary_addresses(before)
        findings += self._kernel(before, silent) + self._host(silent) + self._runtime(before, silent)
        if ask_ec2:
            findings += self._ec2(before, silent)
        order = list(Severity)
        findings.sort(key=lambda finding: (order.index(finding.severity), finding.subject))
        return AuditReport(tuple(findings), tuple(silent), len(before.addresses))

    def _kernel(self, before: Snapshot, silent: list[str]) -> list[Finding]:
        survey = _ask("kernel", lambda: self._sources.wiring.survey(may_be_torn=True), silent)
        if survey is None:
            return []
        if not survey.is_whole:
            silent.append("kernel: links or routes changed without pause: nothing is concluded from what was not seen")
        findings = against_kernel(before, survey, datastore=self._sources.datastore, locks=self._sources.locks)
        return findings + self._inside(before, survey, silent)

    def _inside(self, before: Snapshot, survey: KernelSurvey, silent: list[str]) -> list[Finding]:
        """Compare the sandboxes' own side; one whose veth or namespace path is not known is told of elsewhere."""
        sources, findings = self._sources, list[Finding]()
        wired = {veth.name for veth in survey.veths if not veth.is_dying}
        busy = {held.key for held in sources.locks.held()}
        for one in before.attachments.values():
            if one.host_veth not in wired or one.key in busy or not one.netns:
                continue
            found = _ask(f"sandbox {one.key}", partial(_look_inside, sources.wiring, one), silent)
            if found and sources.datastore.attachment(one.key) == one:  # no DEL came between
                findings.append(Finding(Severity.DIFFERENCE, str(one.address), "; ".join(found), INSIDE_IS_LEFT))
        return findings

    def _host(self, silent: list[str]) -> list[Finding]:
        sources, identity = self._sources, self._sources.identity()
        if identity is None:
            silent.append("the node's own routing is not compared: instance metadata has not answered")

        def compare() -> list[Finding]:
            frozen = sources.frozen()
            return against_host(sources.datastore.snapshot(), hostnet=sources.hostnet, identity=identity, frozen=frozen)

        return _ask("host routing", compare, silent) or []

    def _runtime(self, before: Snapshot, silent: list[str]) -> list[Finding]:
        if self._sources.runtime is None:
            silent.append("CRI is off: dead sandboxes are not noticed")
            return []
        sandboxes = _ask("runtime", self._sources.runtime.sandboxes, silent)
        return against_runtime(before, {sandbox.container_id for sandbox in sandboxes}) if sandboxes is not None else []

    def _ec2(self, before: Snapshot, silent: list[str]) -> list[Finding]:
        sources, identity = self._sources, self._sources.identity()
        if identity is None:
            silent.append("EC2 cannot be asked: instance metadata has not answered, so this node is not known")
            return []
        enis = _ask("EC2", lambda: sources.ec2.describe_enis(identity.instance_id), silent)
        if enis is None:
            return []
        # ENIs and addresses may have been recorded while EC2 was asked: a difference is told only if a later look has it too.
        compared = against_ec2(before, enis, after=sources.datastore.snapshot(), identity=identity, recent=sources.recent())
        if compared.implausible:
            silent.append(f"EC2: its answer is not plausible, {compared.implausible}: nothing is concluded from it")
        return list(compared.findings)


def _look_inside(wiring: Wiring, attachment: Attachment) -> list[str]:
    return wiring.check_inside(recorded_spec(attachment))


def _ask(source: str, question: Callable[[], T], silent: list[str]) -> T | None:
    try:
        return question()
    except IpamError as error:
        silent.append(f"{source}: {log_text(error)}")
        return None
