"""The part of the audit about ENIs on the host: links, addresses, route tables, rules, sysctls, our nftables table, frozen ENIs.

It uses the comparisons that the repair uses (`HostNetwork.differences`), and repairs nothing. What no repair can put right while
sandboxes depend on it is a violation: they have no network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.ids import EniId
from ipamd.model.kernel import RoutingDifference
from ipamd.model.snapshot import Snapshot
from ipamd.model.words import counted
from ipamd.ports import HostNetwork
from ipamd.service.report.finding import Finding, Severity

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
