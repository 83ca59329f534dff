"""Prometheus families by topic. Each scrape reads them from the memory of the services, and makes no EC2 call.

Beyond memory a scrape lists the spool, asks the kernel whether our nftables tables are unchanged, and examines a disk that refuses
writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
    UnknownMetricFamily,
)
from prometheus_client.registry import Collector

from ipamd.core.demand import delay
from ipamd.core.health import READY, Phase, StageState
from ipamd.eni.resync import ExternalChange, ResyncReason
from ipamd.metrics.counts import Counts, MetricRow, all_of, families
from ipamd.metrics.legs.families import extra_leg_rows, uplink_rows
from ipamd.metrics.node_info import node_info
from ipamd.metrics.pod_pools import pod_pool_rows
from ipamd.metrics.subnets import subnet_rows
from ipamd.model.blocked import Blocked
from ipamd.model.call_report import ANSWERED, ATTEMPT_BUCKETS_MS, OTHER, UNANSWERED, CallOutcome, CallReport
from ipamd.model.capacity import most_addresses, usable_eni_count
from ipamd.model.defects import Defect
from ipamd.model.freeze import FreezeCause
from ipamd.model.history import LedgerEvent
from ipamd.model.kernel import DROP_REASONS
from ipamd.model.repairs import RepairKind
from ipamd.model.words import MANY
from ipamd.report.sources import Sources
from ipamd.report.verdict import facts, kind_of
from ipamd.settings.current import INVALID_SETTINGS

RELEASED_KINDS = ("addresses", "prefixes", "enis")
"""Label values of `ipamd_released_resources_total`: single addresses, /28 prefixes and ENIs. The addresses of a released ENI do not
count as `addresses`."""

SPARSE_NOTE = f"; the free addresses of a /80 count as {MANY}"
"""End of the help texts of the metrics in which the free addresses of a /80 are counted."""

STATES = ("free", "reserved", "assigned", "cooling", "quarantined", "lost")


# Metrics named awscni_* have the names, labels and meaning of amazon-vpc-cni-k8s, so that dashboards keep working. Source:
# amazon-vpc-cni-k8s utils/prometheusmetrics/prometheusmetrics.go, and the code that sets each metric. docs/metrics.md lists the
# metrics of amazon-vpc-cni-k8s that are missing here, with the reasons. Its counters are exposed as untyped, because the client
# library would append `_total` to the name of a counter.

START_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of the start's duration, in seconds. Source: prometheus/client_golang prometheus/histogram.go,
DefBuckets, which amazon-vpc-cni-k8s uses."""

RECONCILED: Mapping[str, ExternalChange] = {
    "eniReconcileAdd": ExternalChange.ENI_ADDED,
    "eniReconcileDel": ExternalChange.ENI_REMOVED,
    "eniDataStorePoolReconcileAdd": ExternalChange.ADDRESS_ADDED,
    "eniIPPoolReconcileDel": ExternalChange.ADDRESS_REMOVED,
}
"""Label value of `awscni_reconcile_count` -> the counted change. Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, reconcileCnt."""


OF_PINNED_ADDRESSES = (LedgerEvent.KEEPING_ENDED, LedgerEvent.MOVED)
"""Events of pinned addresses. They have no sample before the first event, so that a node without pinned addresses has no such
sample."""


def _pinned_rows(sources: Sources) -> Iterator[MetricRow]:
    """Yield the metric of addresses that pods asked for. It has no sample without VPC_IPAMD_PINNED_ADDRESSES."""
    text = "Addresses that pods of this node asked for, by state; none without VPC_IPAMD_PINNED_ADDRESSES"
    counts = {}
    if sources.settings.now.network.has_pinned_addresses:
        rows = [sources.datastore.address(address) for address in sources.datastore.pinned()]
        kept_count = sum(row is not None and row.kept_for is not None for row in rows)
        in_use_count = sum(attachment.kept_s is not None for attachment in sources.datastore.attachments())
        counts = {"in use": in_use_count, "kept": kept_count}
    yield "ipamd_pinned_addresses", text, "state", counts


class Families(Collector):
    """Collects the metric families that are read from services. `served`: returns the number of requests of a verb since the start."""

    def __init__(self, sources: Sources, counts: Counts, *, served: Callable[[str], float]) -> None:
        self._sources = sources
        self._counts = counts
        self._served = served

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family with its present values."""
        build = InfoMetricFamily("ipamd_build", "The release that runs", labels=("version",))
        build.add_metric((), {"version": str(self._sources.version)})
        yield build
        yield node_info(self._sources)
        yield from families(GaugeMetricFamily, *self._node(), *self._pool(), *self._ec2_gauges(), *self._enis())
        yield from families(CounterMetricFamily, *self._events(), *self._ec2_counters())
        yield from families(UnknownMetricFamily, *self._counted())
        yield from self._durations()

    def _node(self) -> Iterator[MetricRow]:
        """Figures of the node itself: conditions, runtime, host, settings, start."""
        sources, health, node = self._sources, self._sources.health, facts(self._sources)
        text = "1 when ADD is served and the conflist is in place; never before the first address of a boot"
        yield "ipamd_ready", text, int(health.is_ready)
        text = "Conditions that `ipamctl status` shows as degraded, by subject; no sample while there is none"
        yield "ipamd_conditions", text, "subject", Counter(kind_of(name) or OTHER for name in node.conditions)
        yield "ipamd_assignable_addresses", f"Free addresses that an ADD could have now{SPARSE_NOTE}", node.assignable_count
        locks = sources.locks.holders()
        yield "ipamd_operations_in_progress", "Sandboxes with an operation in progress", len(locks)
        oldest_s = max((lock.age_s for lock in locks), default=0.0)
        yield "ipamd_oldest_operation_age_seconds", "Age of the longest-running operation", oldest_s
        text = "For how long a pod has been refused, the longest by cause"
        yield "ipamd_longest_refusal_seconds", text, "cause", sources.refused.longest_s()
        yield "ipamd_waiting_adds", "ADDs that wait for an address now", sources.demand.waiting()[0]
        yield "ipamd_spooled_deletes", "DELs waiting in the spool", sources.spool.pending_count()
        text = (
            "Pods without a sandbox that the network policy agent may remember, because it has not confirmed that it forgot them"
        )
        yield "ipamd_pending_policy_cleanups", text, len(sources.pending_policy_cleanups())
        yield "ipamd_veths_pending_deletion", "Host veths marked for deletion and not yet deleted", sources.dying_count()
        runtime = sources.runtime_view()
        if runtime is not None:
            yield "ipamd_cri_reachable", "1 when the runtime's last list of sandboxes was complete", int(runtime.reachable)
        text = "1 while no sandbox can send with a source address that is not its own; 0 with VPC_IPAMD_EXTRA_SOURCE_CIDRS"
        yield "ipamd_source_check_enforced", text, int(sources.hostnet.is_source_checked())
        text = "Living sandboxes of which an interface has no network, whatever the cause; `ipamctl audit` names them"
        yield "ipamd_cut_off_sandboxes", text, node.cut_off_count
        yield from uplink_rows(sources)
        generation = sources.settings.generation
        text = "Generation of the settings in force: 1 at the start, one more with each change that was accepted"
        yield "ipamd_settings_generation", text, int(generation.number)
        text = "0 while the settings that were read last are wrong, so that the generation before stays in force"
        yield "ipamd_settings_valid", text, int(INVALID_SETTINGS not in health.conditions_by_subject())
        text = "Settings that were changed and take effect at the next start"
        yield "ipamd_settings_awaiting_restart", text, len(generation.needs_restart)
        stages = {stage.name: stage.elapsed_ms / 1000 for stage in health.stages() if stage.state is not StageState.PENDING}
        yield "ipamd_start_stage_duration_seconds", "Time that each stage of the start took, or has taken so far", "stage", stages
        text = "Addresses that sandboxes of ours have and amazon-vpc-cni-k8s gave to others, by its file: two daemons are on this node"
        yield "ipamd_aws_node_conflicting_addresses", text, len(sources.given_twice())

    def _pool(self) -> Iterator[MetricRow]:
        sources, counts = self._sources, self._sources.datastore.counts()
        frozen = all_of(FreezeCause, {freezing.cause: 1 for freezing in sources.freezings()})
        yield "ipamd_pool_frozen", "1 for each cause why the pool makes no ENI and releases nothing", "cause", frozen
        cause = sources.demand.status.kind
        if cause is Blocked.GROWING:
            cause = delay(self._counts.ec2, sources.clock)
        text = "1 for the cause that keeps the pool from growing now; `growing` if nothing does"
        yield "ipamd_pool_blocked", text, "cause", all_of(Blocked, {cause: 1})
        yield "ipamd_addresses", f"Addresses by state{SPARSE_NOTE}", "state", {state: getattr(counts, state) for state in STATES}
        yield "ipamd_withheld_addresses", "Free addresses that are not assigned for now", counts.withheld
        text = "Free addresses above the target, in whole ENIs or prefixes if the target counts these"
        yield "ipamd_excess_addresses", text, int(sources.demand.status.excess_count)
        yield from subnet_rows(sources)
        yield from pod_pool_rows(sources)
        yield from extra_leg_rows(sources)
        yield from _pinned_rows(sources)

    def _events(self) -> Iterator[MetricRow]:
        sources, counts = self._sources, self._counts
        text = "ADDs refused for want of an address, by what kept the pool from growing"
        yield "ipamd_adds_without_address", text, "cause", all_of(Blocked, counts.pool_empty)
        text = "Addresses, prefixes and ENIs that were released because they were in excess, by kind"
        yield "ipamd_released_resources", text, "kind", all_of(RELEASED_KINDS, counts.released)
        text = "Events of addresses, ENIs and sandboxes, as in `ipamctl history`: adopted, reaped, lost, ..."
        events = sources.datastore.event_counts()
        usual = [event for event in LedgerEvent if event not in OF_PINNED_ADDRESSES or events.get(event)]
        yield "ipamd_history_events", text, "event", all_of(usual, events)
        yield "ipamd_replayed_adds", "Repeated ADDs answered with the stored result", counts.replayed()
        runtime = sources.runtime_view()
        if runtime is not None:
            text = "Changes of sandboxes that the runtime's list showed and that no event had announced"
            yield "ipamd_cri_missed_events", text, runtime.missed_events_count
        text = "Packets of sandboxes that were dropped, by reason"
        yield "ipamd_dropped_packets", text, "reason", all_of(DROP_REASONS, sources.hostnet.dropped_packets())
        text = "Objects of the host that were repaired after something else had changed them, by kind"
        yield "ipamd_repairs", text, "object", all_of(RepairKind, counts.repairs())
        text = "Events that must never happen, by kind: any increase is a defect of vpc-ipamd; report it with its log"
        yield "ipamd_defects", text, "kind", all_of(Defect, sources.health.defects)

    def _reports(self) -> list[tuple[str, CallReport]]:
        return sorted(self._counts.ec2.call_reports().items())

    def _ec2_gauges(self) -> Iterator[MetricRow]:
        reports, differing = self._reports(), self._counts.metadata()
        text = "Calls that this node may make at once by its own budget; negative while callers wait for their turn"
        yield "ipamd_ec2_budget_calls", text, "api", {api: report.left_count for api, report in reports}
        text = "Calls per second that the budget allows; halved each time when EC2 throttles"
        yield "ipamd_ec2_budget_calls_per_second", text, "api", {api: report.rate_per_s for api, report in reports}
        yield "ipamd_ec2_calls_in_progress", "EC2 calls being made or repeated now", len(self._counts.ec2.calls_under_way())
        text = "Differences between instance metadata and the record, by the last comparison"
        yield "ipamd_metadata_differences", text, differing.count
        text = "How long instance metadata and the record have differed without a break; 0: they agree"
        yield "ipamd_metadata_difference_age_seconds", text, differing.since_s
        text = "Age of the last list of ENIs from instance metadata; no sample before the first"
        yield "ipamd_metadata_list_age_seconds", text, differing.turn_age_s

    def _ec2_counters(self) -> Iterator[MetricRow]:
        reports = self._reports()
        ends: dict[tuple[str, str], int] = {}
        for api, report in reports:
            for outcome in CallOutcome:
                ends[api, outcome.value] = report.outcomes.get(outcome, 0)
        yield (
            "ipamd_ec2_attempts",
            "EC2 attempts (HTTP requests, repetitions included), by how they ended",
            "api",
            "outcome",
            ends,
        )
        text = "Calls that the node's own budget refused, because their turn would come too late"
        yield "ipamd_ec2_calls_over_budget", text, "api", {api: report.held_back_count for api, report in reports}
        looks = all_of(ResyncReason, self._counts.looks)
        yield "ipamd_ec2_resyncs", "Unscheduled comparisons of all ENIs with EC2, by reason", "reason", looks
        text = "Requests to instance metadata, unanswered ones included"
        yield "ipamd_metadata_requests", text, self._counts.metadata_requests()

    def _enis(self) -> Iterator[MetricRow]:
        """ENIs and addresses, in the metrics of amazon-vpc-cni-k8s."""
        sources = self._sources
        eni_max, address_max = self._limits()
        counts = sources.datastore.counts()
        enis = [stock for stock in sources.datastore.stock().enis if stock.eni.managed and not stock.has_left]
        yield "awscni_eni_allocated", "Attached ENIs that carry pods or may carry pods", len(enis)
        yield (
            "awscni_eni_max",
            "ENIs that this node may have for pods; the places of ENIs that are not managed do not count",
            eni_max,
        )
        yield (
            "awscni_ip_max",
            "Addresses that this node may have, in its mode and with the ENIs that are attached now",
            address_max,
        )
        address_count = sum(stock.counts.total - stock.counts.lost for stock in enis)
        yield "awscni_total_ip_addresses", f"Addresses on our ENIs{SPARSE_NOTE}", address_count
        prefix_count = 0
        if not sources.settings.now.network.family.is_sparse:
            prefix_count = sum(stock.prefix_count for stock in enis)
        yield "awscni_total_ipv4_prefixes", "Prefixes (/28) on our ENIs; 0 with IPv6", prefix_count
        yield "awscni_assigned_ip_addresses", "Addresses assigned to sandboxes", counts.assigned
        text = "Addresses assigned to sandboxes, by ENI: a series for each attached ENI"
        yield "awscni_assigned_ip_per_eni", text, "eni", {stock.eni.eni_id: stock.counts.assigned for stock in enis}
        yield "awscni_connmark_backend", "1 for what marks connections: always nftables", "backend", {"nftables": 1}

    def _limits(self) -> tuple[int | None, int | None]:
        """The largest numbers of ENIs and of addresses that the node can have; None before its limits are known, because 0 would look
        like a full node.
        """
        pool, extra_family = self._sources.pool, self._sources.settings.now.network.extra_family
        snapshot, settings = pool.preview(), pool.settings
        if snapshot is None:
            return None, None
        address_max = most_addresses(snapshot, settings)
        if extra_family:
            address_max = min(address_max, len(extra_family.local_range.addresses()))
        return usable_eni_count(snapshot, settings), address_max

    def _counted(self) -> Iterator[MetricRow]:
        """The untyped counters of amazon-vpc-cni-k8s."""
        looks, reports = self._counts.looks, self._reports()
        yield "awscni_add_ip_req_count", "ADD requests", self._served("ADD")
        yield "awscni_del_ip_req_count", "DEL requests", "reason", {"PodDeleted": self._served("DEL")}
        refused = sum(self._counts.pool_empty.values())
        yield "awscni_no_available_ip_addresses", "ADDs refused because no address was free", refused
        yield "awscni_ec2api_req_count", "EC2 calls, retries included", "fn", {api: report.count for api, report in reports}
        failed = {api: report.count - report.outcomes.get(CallOutcome.OK, 0) for api, report in reports}
        yield "awscni_ec2api_error_count", "EC2 attempts that failed, whatever the cause", "fn", failed
        errors: dict[tuple[str, str], int] = {}
        for api, report in reports:
            for code, attempts in sorted(report.statuses.items()):
                if code not in (ANSWERED, UNANSWERED):
                    errors[api, code] = attempts.count
        text = f"EC2 attempts that EC2 refused, by its code; `{OTHER}` is any beyond the first 24"
        yield "awscni_aws_api_error_count", text, "api", "error", errors
        text = "ENIs and addresses that external changes added or removed, as comparisons with EC2 showed"
        yield "awscni_reconcile_count", text, "fn", {fn: looks.get(kind, 0) for fn, kind in RECONCILED.items()}
        text = "ENIs that EC2 no longer showed while sandboxes had their addresses"
        yield "awscni_force_removed_enis", text, looks.get(ExternalChange.FORCED_ENI, 0)
        text = "Addresses that EC2 no longer showed while a sandbox had them"
        yield "awscni_force_removed_ips", text, looks.get(ExternalChange.FORCED_ADDRESS, 0)

    def _durations(self) -> Iterator[Metric]:
        health = self._sources.health
        attempts = HistogramMetricFamily("ipamd_ec2_attempt_duration_seconds", "Time of one EC2 attempt", labels=("api",))
        text = "Time of EC2 attempts, count and sum, by EC2's code (200 is success, empty: no answer)"
        latency = SummaryMetricFamily("awscni_aws_api_latency_ms", text, labels=("api", "error", "status"))
        for api, report in self._reports():
            buckets = [(str(bound / 1000), float(count)) for bound, count in zip(ATTEMPT_BUCKETS_MS, report.buckets, strict=True)]
            attempts.add_metric((api,), [*buckets, ("+Inf", float(report.count))], report.total_ms / 1000)
            for status, durations in sorted(report.statuses.items()):
                is_error = str(status != ANSWERED).lower()
                latency.add_metric((api, is_error, status), durations.count, durations.total_ms)
        text = "Time from the start of the process to ready; one observation per process"
        labels = ("success", "with_api_server", "failure_reason")
        startup = HistogramMetricFamily("awscni_ipamd_startup_duration_seconds", text, labels=labels)
        text = "Time from the start of the process until ADD was served; one observation per process"
        init = HistogramMetricFamily("awscni_ipamd_node_initialization_duration_seconds", text, labels=("success",))
        for family, values, stage in ((startup, ("true", "false", ""), READY), (init, ("true",), Phase.SERVING)):
            seconds = health.reached_s.get(stage)
            if seconds is not None:
                buckets = [(str(bound), float(seconds <= bound)) for bound in START_BUCKETS_S]
                family.add_metric(values, [*buckets, ("+Inf", 1.0)], seconds)
        yield from (attempts, latency, startup, init)
