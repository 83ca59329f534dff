"""The part of the audit about ENIs on the host: links, addresses, route tables, rules, sysctls, our nftables table, frozen ENIs.

It uses the comparisons that the repair uses (`HostNetwork.differences`), and repairs nothing. What no repair can put right while
sandboxes depend on it is a violation: they have no network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni, EniState
from ipamd.model.ids import EniId
from ipamd.model.kernel import RoutingDifference
from ipamd.model.snapshot import Snapshot
from ipamd.model.words import counted
from ipamd.ports import HostNetwork
from ipamd.service.report.finding import Finding, Severity

REPAIR = "the host network reconciler repairs it within 30 s"
LINK = "look at the ENI in EC2: detached by hand? Delete the pods on it; the pool grows elsewhere"


def against_host(
    snapshot: Snapshot, *, hostnet: HostNetwork, identity: InstanceIdentity | None, frozen: Mapping[EniId, str]
) -> list[Finding]:
    """Compare the host's routing with what the attached ENIs of `snapshot` need. Raises: KernelDumpError."""
    attached = [eni for eni in snapshot.enis.values() if eni.managed and eni.state is EniState.ATTACHED]
    compared = [eni for eni in attached if eni.host_ready or eni.eni_id in frozen]
    sandboxes = Counter(attachment.eni_id for attachment in snapshot.attachments.values())
    found = [_of_routing(each, sandboxes) for each in hostnet.differences(identity=identity, enis=compared)]
    found += [_of_frozen(eni, frozen[eni.eni_id], sandboxes[eni.eni_id]) for eni in attached if eni.eni_id in frozen]
    covered = {intent.payload.get("eni_id") for intent in snapshot.intents.values()}
    for eni in attached:
        if not eni.host_ready and eni.eni_id not in frozen:
            severity = Severity.PENDING if eni.eni_id in covered else Severity.DIFFERENCE
            what = "its routing is not set up on the host, so it gives no address (I7)"
            found.append(Finding(severity, eni.eni_id, what, "the host network reconciler sets it up within 30 s"))
    return found


def _of_routing(difference: RoutingDifference, sandboxes: Counter[EniId]) -> Finding:
    if difference.is_repaired:
        return Finding(Severity.DIFFERENCE, difference.subject, difference.what, REPAIR)
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
