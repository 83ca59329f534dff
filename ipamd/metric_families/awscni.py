"""The metrics of amazon-vpc-cni-k8s that mean the same here, under their exact names and labels, so that dashboards keep working.

Source of names, labels and meanings: amazon-vpc-cni-k8s utils/prometheusmetrics/prometheusmetrics.go, and where each is set. Which of
them are missing, and why, is in docs/metrics.md. Its counters are exposed as untyped, because the client library would append `_total`
to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from ipamd.core.health import READY, Phase
from ipamd.eni.resync import Found
from ipamd.metric_families.counts import Counts, gauge, gauges
from ipamd.model.call_report import ANSWERED, OTHER, UNANSWERED, CallReport, Outcome
from ipamd.model.capacity import most_addresses, usable_eni_count
from ipamd.model.stock import EniStock
from ipamd.report.sources import Sources

START_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Source: prometheus/client_golang prometheus/histogram.go, DefBuckets, which amazon-vpc-cni-k8s uses."""

RECONCILED: Mapping[str, Found] = {
    "eniReconcileAdd": Found.ENI_ADDED,
    "eniReconcileDel": Found.ENI_REMOVED,
    "eniDataStorePoolReconcileAdd": Found.ADDRESS_ADDED,
    "eniIPPoolReconcileDel": Found.ADDRESS_REMOVED,
}
"""Label of `awscni_reconcile_count` -> what it counts. Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, reconcileCnt."""

Samples = list[tuple[dict[str, str], float]]


class AwscniFamilies(Collector):
    """Reads memory; made once. `add_count`, `del_count`: requests since the start."""

    def __init__(self, sources: Sources, counts: Counts, *, add_count: Callable[[], int], del_count: Callable[[], int]) -> None:
        self._sources = sources
        self._counts = counts
        self._add_count, self._del_count = add_count, del_count

    def collect(self) -> Iterator[Metric]:
        """Yield the present figures."""
        yield from self._enis()
        for name, (text, samples) in self._counted().items():
            family = Metric(name, text, "unknown")
            for labels, value in samples:
                family.add_sample(name, labels, value)
            yield family
        yield from self._starts()
        yield self._latency()

    def _enis(self) -> Iterator[Metric]:
        """Pool and limits. A limit has no sample before the instance's limits are known: a 0 would look like a full node."""
        sources = self._sources
        snapshot, settings, counts = sources.pool.outlook(), sources.pool.settings, sources.datastore.counts()
        enis = [one for one in sources.datastore.stock().enis if one.eni.managed and not one.has_left]
        usable, most = (
            (None, None) if snapshot is None else (usable_eni_count(snapshot, settings), most_addresses(snapshot, settings))
        )
        yield gauge("awscni_eni_allocated", "ENIs attached that carry pods or may", len(enis))
        yield gauge(
            "awscni_eni_max", "ENIs this node may have for pods: without the places of ENIs that are not ours to use", usable
        )
        yield gauge("awscni_ip_max", "Addresses this node may have, in its mode and with the ENIs that are there", most)
        shown_count = sum(one.counts.total - one.counts.lost for one in enis)
        yield gauge("awscni_total_ip_addresses", "Addresses on our ENIs", shown_count)
        yield gauge("awscni_total_ipv4_prefixes", "Prefixes (/28) on our ENIs", sum(one.prefix_count for one in enis))
        yield gauge("awscni_assigned_ip_addresses", "Addresses assigned to sandboxes", counts.assigned)
        text = "Addresses assigned to sandboxes, by ENI: a series for each attached ENI"
        yield gauges("awscni_assigned_ip_per_eni", text, "eni", {one.eni.eni_id: _assigned_count(one) for one in enis})
        backends = {"nftables": 1.0}
        yield gauges("awscni_connmark_backend", "1 for what marks connections: always nftables", "backend", backends)

    def _counted(self) -> Mapping[str, tuple[str, Samples]]:
        found, reports = self._counts.found(), sorted(self._counts.ec2.call_reports().items())
        errors: Samples = [
            ({"api": api, "error": code}, told.count)
            for api, report in reports
            for code, told in sorted(report.statuses.items())
            if code not in (ANSWERED, UNANSWERED)
        ]
        return {
            "awscni_add_ip_req_count": ("ADD requests", [({}, self._add_count())]),
            "awscni_del_ip_req_count": ("DEL requests", [({"reason": "PodDeleted"}, self._del_count())]),
            "awscni_no_available_ip_addresses": (
                "ADDs refused because no address was free",
                [({}, sum(self._counts.pool_empty().values()))],
            ),
            "awscni_ec2api_req_count": ("EC2 calls, retries included", [({"fn": api}, report.count) for api, report in reports]),
            "awscni_ec2api_error_count": (
                "EC2 attempts that failed, whatever the cause",
                [({"fn": api}, _failed_count(report)) for api, report in reports],
            ),
            "awscni_aws_api_error_count": (
                f"EC2 attempts that EC2 refused, by its code; `{OTHER}` is any beyond the first 24",
                errors,
            ),
            "awscni_reconcile_count": (
                "What other hands added or took, as a look at EC2 showed it",
                [({"fn": fn}, found.get(what, 0)) for fn, what in RECONCILED.items()],
            ),
            "awscni_force_removed_enis": (
                "ENIs that EC2 showed no more while sandboxes had their addresses",
                [({}, found.get(Found.FORCED_ENI, 0))],
            ),
            "awscni_force_removed_ips": (
                "Addresses that EC2 showed no more while a sandbox had them",
                [({}, found.get(Found.FORCED_ADDRESS, 0))],
            ),
        }

    def _starts(self) -> Iterator[Metric]:
        health = self._sources.health
        text = "Time from the start of the process to ready; one observation in a process"
        labels = ("success", "with_api_server", "failure_reason")
        startup = HistogramMetricFamily("awscni_ipamd_startup_duration_seconds", text, labels=labels)
        _observe(startup, ("true", "false", ""), health.reached_s(READY))
        text = "Time from the start of the process until ADD was served; one observation in a process"
        init = HistogramMetricFamily("awscni_ipamd_node_initialization_duration_seconds", text, labels=("success",))
        _observe(init, ("true",), health.reached_s(Phase.SERVING))
        yield from (startup, init)

    def _latency(self) -> Metric:
        text = "Time of EC2 attempts, count and sum, by EC2's code (200 is success, empty: no answer)"
        latency = SummaryMetricFamily("awscni_aws_api_latency_ms", text, labels=("api", "error", "status"))
        for api, report in sorted(self._counts.ec2.call_reports().items()):
            for status, told in sorted(report.statuses.items()):
                latency.add_metric((api, "false" if status == ANSWERED else "true", status), told.count, told.total_ms)
        return latency


def _assigned_count(one: EniStock) -> int:
    return one.counts.assigned


def _failed_count(report: CallReport) -> int:
    return report.count - report.outcomes.get(Outcome.OK, 0)


def _observe(family: HistogramMetricFamily, labels: tuple[str, ...], seconds: float | None) -> None:
    """Show one observation, or none."""
    if seconds is not None:
        buckets = [(str(bound), float(seconds <= bound)) for bound in START_BUCKETS_S]
        family.add_metric(labels, [*buckets, ("+Inf", 1.0)], seconds)
