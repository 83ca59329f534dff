"""The part of the audit about ENIs on the host: links, addresses, route tables, rules, sysctls, our nftables table, frozen ENIs.

It uses the comparisons of the repair (`HostNetwork.differences`), and repairs nothing. A difference of an ENI that neither the
daemon nor a known command can end is a violation while sandboxes are on the ENI, because they have no network then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.cniresult import recorded_spec
from ipamd.model.eni import Eni
from ipamd.model.finding_codes import FindingCode
from ipamd.model.ids import ContainerId, EniId
from ipamd.model.routing_difference import RoutingDifference
from ipamd.model.snapshot import Snapshot
from ipamd.model.words import counted
from ipamd.report.finding import AuditFinding, ask_source, finding
from ipamd.report.sources import Sources


def compare_with_host(sources: Sources, silent: list[str], reported: Collection[str]) -> list[AuditFinding]:
    """Compare the host's routing with the needs of the attached ENIs.

    Args:
        silent: gets a sentence if the host's routing cannot be read, and one if the node's own routing cannot be compared.
        reported: the subjects of earlier findings. The reachability of a sandbox whose address is among them is not checked.
    Returns: [] if the host's routing cannot be read.
    """
    identity, frozen, snapshot = sources.identity(), sources.frozen(), sources.datastore.snapshot()
    if identity is None:
        silent.append("the node's own routing is not compared: instance metadata has not answered")
    attached = {eni.eni_id: eni for eni in snapshot.enis.values() if eni.is_in_pool}
    differences = ask_source(
        "host routing", lambda: _routing_differences(sources, snapshot, identity, attached.values(), reported), silent
    )
    if differences is None:
        return []
    unready = _unready_enis(attached, frozen)
    sandboxes = _sandbox_names_by_eni(snapshot)
    findings = _routing_findings(differences, sandboxes, unready)
    for eni_id in attached.keys() & frozen.keys():
        count = counted(len(sandboxes.get(eni_id, ())), "sandbox")
        findings.append(finding(FindingCode.ENI_FROZEN, eni_id, reason=frozen[eni_id], count=count))
    for link in sources.hostnet.foreign_links():
        findings.append(finding(FindingCode.FOREIGN_LINK, link.name, sandbox=link.key))
    return findings + [finding(FindingCode.ENI_NOT_SET_UP, eni_id) for eni_id in unready]


def _routing_differences(
    sources: Sources,
    snapshot: Snapshot,
    identity: InstanceIdentity | None,
    attached: Collection[Eni],
    reported: Collection[str],
) -> list[RoutingDifference]:
    """Return how the kernel's state differs from the wanted one: the routing of ENIs, and the confinement and reachability of
    sandboxes.
    """
    hostnet = sources.hostnet
    differences = hostnet.differences(identity=identity, enis=attached, addresses=snapshot.addresses)
    specs = []
    for attachment in snapshot.attachments.values():
        if not attachment.must_be_cut_off and str(attachment.address) not in reported:
            specs.append(recorded_spec(attachment))
    unreachable = hostnet.reachability_problems(specs, enis=attached)
    still_recorded = {str(attachment.address) for attachment in sources.datastore.attachments()}  # a DEL may have come between
    return [
        *differences,
        *hostnet.confinement_differences(),
        *(problem for problem in unreachable if problem.subject in still_recorded),
    ]


def _unready_enis(attached: Mapping[EniId, Eni], frozen: Mapping[EniId, str]) -> set[EniId]:
    """Return the ENIs whose routing is not set up on the host yet, without frozen ENIs."""
    return {eni_id for eni_id, eni in attached.items() if not eni.host_ready and eni_id not in frozen}


def _sandbox_names_by_eni(snapshot: Snapshot) -> dict[EniId, list[str]]:
    """Return the names of the sandboxes on each ENI. A sandbox with several interfaces on an ENI is named once."""
    names: dict[EniId, dict[ContainerId, str]] = {}
    for attachment in snapshot.attachments.values():
        names_on_eni = names.setdefault(attachment.eni_id, {})
        names_on_eni.setdefault(attachment.key.container_id, attachment.sandbox_name or str(attachment.key))
    return {eni_id: list(names_on_eni.values()) for eni_id, names_on_eni in names.items()}


def _routing_findings(
    differences: Iterable[RoutingDifference], sandboxes: Mapping[EniId, list[str]], unready: Set[EniId]
) -> list[AuditFinding]:
    """Report the differences, except those of an ENI that is being set up."""
    findings = []
    for difference in differences:
        is_being_set_up = difference.will_be_repaired and difference.subject in unready
        if not is_being_set_up:
            findings.append(_routing_finding(difference, sandboxes))
    return findings


def _routing_finding(difference: RoutingDifference, sandboxes: Mapping[EniId, list[str]]) -> AuditFinding:
    """Make a finding of a difference. It is a violation if sandboxes are on the ENI, the daemon does not repair the difference, and
    no command for the operator is known (`mend`).
    """
    names = sandboxes.get(EniId(difference.subject))
    subject, text = difference.subject, difference.text
    if difference.will_be_repaired:
        return finding(FindingCode.ROUTING_REPAIRED, subject, difference=text)
    if difference.mend:
        return finding(FindingCode.ROUTING_FOREIGN, subject, difference=text, mend=difference.mend)
    if not names:
        return finding(FindingCode.ROUTING_DIFFERS, subject, difference=text)
    count = counted(len(names), "sandbox")
    return finding(FindingCode.ROUTING_CUT_OFF, subject, difference=text, count=count, sandboxes="; ".join(sorted(names)))
