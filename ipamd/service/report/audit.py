"""Cross-check datastore, kernel, runtime and EC2 per address: report what differs, and what will be done about it.

Reads only. A `violation` breaks an invariant. A `difference` is repaired, and the finding names what repairs it. `pending` is in
progress and needs no action. The crash tests end with this audit; operators run the same one (`ipamctl audit`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address
from typing import TypeVar

from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.cloud import DescribedEni, InstanceIdentity
from ipamd.model.dataplane import FROM_SANDBOX_PRIORITY, TO_SANDBOX_PRIORITY
from ipamd.model.eni import MAIN_TABLE
from ipamd.model.errors import IpamError, log_text
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import KernelSurvey, duplicate_addresses
from ipamd.model.snapshot import Snapshot
from ipamd.ports import Datastore, Ec2, Runtime, Wiring
from ipamd.service.locks import KeyLocks

T = TypeVar("T")


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


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All findings, worst first; `silent` names the sources that did not answer: nothing is concluded from them (I11)."""

    findings: tuple[Finding, ...]
    silent: tuple[str, ...]
    address_count: int


class AuditService:
    """Audits one node."""

    def __init__(
        self,
        *,
        datastore: Datastore,
        wiring: Wiring,
        ec2: Ec2,
        runtime: Runtime | None,
        locks: KeyLocks,
        identity: Callable[[], InstanceIdentity | None],
    ) -> None:
        self._datastore = datastore
        self._wiring = wiring
        self._ec2 = ec2
        self._runtime = runtime
        self._locks = locks
        self._identity = identity

    def audit(self, *, ask_ec2: bool = True) -> AuditReport:
        """Read every source once and compare.

        Args:
            ask_ec2: make one Describe call; otherwise EC2 is not compared.
        Returns: the report. A source that fails is named in it; nothing is raised.
        """
        silent: list[str] = []
        before = self._datastore.snapshot()  # one read: an ADD between two reads would look like a contradiction
        attachments, rows = tuple(before.attachments.values()), tuple(before.addresses.values())
        findings = [
            Finding(Severity.VIOLATION, "datastore", sentence, "report it: memory and disk must never differ")
            for sentence in self._datastore.audit()
        ]
        survey = _ask("kernel", self._wiring.survey, silent)
        if survey is not None:
            findings += self._against_kernel(attachments, rows, survey)
        if self._runtime is None:
            silent.append("CRI is off: dead sandboxes are not noticed")
        else:
            sandboxes = _ask("runtime", self._runtime.sandboxes, silent)
            if sandboxes is not None:
                findings += _against_runtime(attachments, {sandbox.container_id for sandbox in sandboxes})
        identity = self._identity()
        if ask_ec2 and identity is None:
            silent.append("EC2 cannot be asked: instance metadata has not answered, so this node is not known")
        elif ask_ec2 and identity is not None:
            instance_id = identity.instance_id
            enis = _ask("EC2", lambda: self._ec2.describe_enis(instance_id), silent)
            if enis is not None:
                findings += self._against_ec2(before, enis)
        order = list(Severity)
        findings.sort(key=lambda finding: (order.index(finding.severity), finding.subject))
        return AuditReport(tuple(findings), tuple(silent), len(rows))

    def _against_kernel(
        self, attachments: tuple[Attachment, ...], rows: tuple[Address, ...], survey: KernelSurvey
    ) -> list[Finding]:
        busy = {held.key for held in self._locks.held()}
        findings = _duplicates(survey)
        for attachment in attachments:
            if attachment.key not in busy:  # an ADD or DEL at work changes the kernel while we read
                findings += _wiring_differences(attachment, survey)
        findings += self._unowned_links(attachments, survey, busy)
        assigned = {attachment.address for attachment in attachments}
        cold = {row.address for row in rows if row.state in (AddressState.FREE, AddressState.COOLING)} - assigned
        for address in sorted(cold & (set(survey.to_rules) | set(survey.from_rules) | set(survey.routes))):
            # The rows are older than the survey: an ADD may have wired the address since.
            now = self._datastore.address(address)
            if now is not None and now.state in (AddressState.FREE, AddressState.COOLING):
                findings.append(
                    Finding(
                        Severity.VIOLATION, str(address), f"{now.state}, yet it has a route or rule (I4)", "restart vpc-ipamd"
                    )
                )
        return findings

    def _unowned_links(
        self, attachments: tuple[Attachment, ...], survey: KernelSurvey, busy: set[AttachmentKey]
    ) -> list[Finding]:
        owners = {attachment.host_veth for attachment in attachments}
        findings = []
        for veth in survey.veths:
            if veth.is_dying:
                findings.append(Finding(Severity.PENDING, veth.name, "marked for deletion", "the cooldown deletes it at once"))
            elif veth.name not in owners and veth.key is None:
                findings.append(Finding(Severity.DIFFERENCE, veth.name, "carries no identity of ours", "left alone"))
            elif veth.name not in owners and veth.key not in busy:
                row = self._datastore.address(veth.address) if veth.address else None
                is_held = row is not None and row.state is AddressState.QUARANTINED
                findings.append(
                    Finding(
                        Severity.DIFFERENCE,
                        veth.name,
                        f"wired for {veth.key} with {veth.address}, which the datastore does not know",
                        "quarantined until runtime and kernel agree" if is_held else "the next start resolves it",
                    )
                )
        return findings

    def _against_ec2(self, before: Snapshot, enis: tuple[DescribedEni, ...]) -> list[Finding]:
        attached = {eni.eni_id: eni for eni in enis}
        on_eni: dict[IPv4Address, str] = {}
        for eni in enis:
            for address in (*eni.secondary_addresses, *(a for prefix in eni.prefixes for a in prefix)):
                on_eni[address] = eni.eni_id
        findings = []
        for row in before.addresses.values():
            if on_eni.get(row.address) == row.eni_id:
                continue
            findings.append(
                Finding(
                    Severity.VIOLATION if row.is_in_use else Severity.DIFFERENCE,
                    str(row.address),
                    f"{row.state} on {row.eni_id}; EC2 has it on {on_eni.get(row.address, 'no ENI of this node')} (I7)",
                    "kept while in use; its sandbox has no network" if row.is_in_use else "forgotten at the next comparison",
                )
            )
        primaries = {eni.primary_address for eni in enis}
        findings += [
            Finding(Severity.VIOLATION, str(row.address), "a primary address among those for sandboxes (I6)", "report it")
            for row in before.addresses.values()
            if row.address in primaries
        ]
        # ENIs may have been recorded while EC2 was asked: one is unknown only if a later snapshot lacks it too.
        after = self._datastore.snapshot()
        known = set(after.enis)
        covered = {intent.payload.get("eni_id") for intent in after.intents.values()}
        for eni_id in sorted(set(attached) - known - covered):
            findings.append(
                Finding(Severity.DIFFERENCE, eni_id, "attached, and unknown to the datastore", "adopted at the next start")
            )
        for eni_id in sorted(known - set(attached)):
            findings.append(Finding(Severity.DIFFERENCE, eni_id, "known, and not attached at EC2", "forgotten when unused"))
        return findings


def _ask(source: str, question: Callable[[], T], silent: list[str]) -> T | None:
    try:
        return question()
    except IpamError as error:
        silent.append(f"{source}: {log_text(error)}")
        return None


def _duplicates(survey: KernelSurvey) -> list[Finding]:
    return [
        Finding(
            Severity.VIOLATION,
            str(address),
            f"{len(veths)} host veths carry it: {', '.join(veth.name for veth in veths)} (I1)",
            "delete the sandbox that should not have it",
        )
        for address, veths in duplicate_addresses(survey).items()
    ]


def _wiring_differences(attachment: Attachment, survey: KernelSurvey) -> list[Finding]:
    subject, repair = str(attachment.address), "the host network reconciler repairs it"
    veth = next((veth for veth in survey.veths if veth.name == attachment.host_veth and not veth.is_dying), None)
    if veth is None:
        gone = f"sandbox {attachment.key} is recorded and its host veth {attachment.host_veth} is gone"
        return [Finding(Severity.PENDING, subject, gone, "freed by its DEL, or reaped within minutes")]
    findings = []
    if (veth.key, veth.address) != (attachment.key, attachment.address):
        findings.append(
            Finding(Severity.VIOLATION, subject, f"{veth.name} says {veth.key} with {veth.address} (I1)", "delete the sandbox")
        )
    if survey.routes.get(attachment.address) != attachment.host_veth:
        device = survey.routes.get(attachment.address, "nothing")
        findings.append(Finding(Severity.DIFFERENCE, subject, f"its route leads to {device}", repair))
    if attachment.address not in survey.to_rules:
        findings.append(Finding(Severity.DIFFERENCE, subject, f"rule {TO_SANDBOX_PRIORITY} is missing", repair))
    tables = survey.from_rules.get(attachment.address, ())
    if attachment.route_table != MAIN_TABLE and attachment.route_table not in tables:
        findings.append(
            Finding(
                Severity.DIFFERENCE, subject, f"rule {FROM_SANDBOX_PRIORITY} to table {attachment.route_table} is missing", repair
            )
        )
    return findings


def _against_runtime(attachments: tuple[Attachment, ...], listed: set[str]) -> list[Finding]:
    return [
        Finding(
            Severity.PENDING,
            str(attachment.address),
            f"sandbox {attachment.key} is recorded and the runtime does not list it",
            "freed by its DEL, or reaped once every source says that it is gone",
        )
        for attachment in attachments
        if attachment.key.container_id not in listed
    ]
