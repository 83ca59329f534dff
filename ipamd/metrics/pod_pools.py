"""The metrics of the pools of pods. They have no samples on a node whose network file names no pool."""

from __future__ import annotations

from collections.abc import Iterator

from ipamd.metrics.counts import MetricRow
from ipamd.model.pod_pools import NO_POOLS
from ipamd.report.pod_pools import pod_pool_reports
from ipamd.report.sources import Sources

COUNTED_STATES = ("free", "assigned", "cooling")


def pod_pool_rows(sources: Sources) -> Iterator[MetricRow]:
    """Yield the metrics with the label `pool`; nothing if the network file names no pool.

    The label value of the node's own pool is `default`. There are at most 9 label values, because the network file can name at most 8
    pools.
    """
    if sources.pool.pools == NO_POOLS:
        return
    reports = pod_pool_reports(sources)
    text = "Addresses of each pool of pods by state; only where the network file names pools"
    counts = {(report.name, state): getattr(report, f"{state}_count") for report in reports for state in COUNTED_STATES}
    yield "ipamd_pod_pool_addresses", text, "pool", "state", counts
    text = "Addresses that a pool may have on this node now, in the ENIs of its share"
    yield "ipamd_pod_pool_address_limit", text, "pool", {report.name: report.address_limit for report in reports}
    yield "ipamd_pod_pool_enis", "ENIs of each pool of pods", "pool", {report.name: report.eni_count for report in reports}
    yield (
        "ipamd_pod_pool_waiting_adds",
        "ADDs that wait for an address, by pool",
        "pool",
        {report.name: report.waiting_count for report in reports},
    )
    text = "1 for what keeps a pool of pods from growing now; `growing`: nothing"
    yield "ipamd_pod_pool_blocked", text, "pool", "cause", {(report.name, report.blocked.value): 1 for report in reports}
