"""Prometheus families by topic, made at each scrape from what services know already. Nothing is asked of EC2, kernel or disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from ipamd.core.health import READY, Phase, StageState
from ipamd.eni.metadata import MetadataDifference
from ipamd.eni.resync import Found, LookReason
from ipamd.model.call_report import ANSWERED, ATTEMPT_BUCKETS_MS, OTHER, UNANSWERED, CallReport, Outcome
from ipamd.model.errors import Defect
from ipamd.model.freeze import FreezeCause
from ipamd.model.kernel import DROP_REASONS, RepairKind
from ipamd.model.ledger import LedgerEvent
from ipamd.model.placement import most_addresses, usable_eni_count
from ipamd.model.pool import Blocked, EniStock
from ipamd.ports import Ec2
from ipamd.report.sources import Sources
from ipamd.report.verdict import facts
from ipamd.settings.current import INVALID_SETTINGS

# What services count since the start, as one value for the families; and how a family is made.


K = TypeVar("K", bound=str)


@dataclass(frozen=True, slots=True)
class Counts:
    """Each callable returns at once, from memory; a key that a mapping lacks counts as 0.

    `replayed`: repeated ADDs that got the stored answer. `pool_empty`: ADDs refused for want of an address. `looks`: at EC2, out of
    turn. `found`: what those showed of other hands. `repairs`: of the host. `released`: to EC2, by kind. `metadata`: how it differs
    from the record now.
    """

    ec2: Ec2
    replayed: Callable[[], int]
    pool_empty: Callable[[], Mapping[Blocked, int]]
    looks: Callable[[], Mapping[LookReason, int]]
    found: Callable[[], Mapping[Found, int]]
    repairs: Callable[[], Mapping[RepairKind, int]]
    released: Callable[[], Mapping[str, int]]
    metadata: Callable[[], MetadataDifference]
    metadata_requests: Callable[[], int]


def gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    """One gauge without labels; without a sample while its value is not known."""
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric((), value)
    return family


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """One gauge with one label."""
    family = GaugeMetricFamily(name, text, labels=(label,))
    for key, value in values.items():
        family.add_metric((str(key),), value)
    return family


def counters(name: str, text: str, label: str, keys: Iterable[K], values: Mapping[K, int]) -> CounterMetricFamily:
    """One counter with one label; every key of a closed list has a sample from the start, so that a rate sees its first event."""
    family = CounterMetricFamily(name, text, labels=(label,))
    for key in keys:
        family.add_metric((str(key),), values.get(key, 0))
    return family


# The node's own figures: pool, runtime, host, start, and what must stay 0.


RELEASED_KINDS = ("addresses", "prefixes", "enis")
"""Labels of `ipamd_released_total`: single addresses, /28s and whole ENIs, whose addresses are not counted again."""

STATES = ("free", "reserved", "assigned", "cooling", "quarantined", "lost")


class StateFamilies(Collector):
    """Reads memory; made once."""

    def __init__(self, sources: Sources, counts: Counts) -> None:
        self._sources = sources
        self._counts = counts
        self._parts: tuple[Callable[[], Iterator[Metric]], ...] = (
            self._node, self._pool, self._operations, self._runtime, self._host, self._settings, self._start,
            self._must_stay_zero,
        )  # fmt: skip

    def collect(self) -> Iterator[Metric]:
        """Yield the present figures."""
        for part in self._parts:
            yield from part()

    def _node(self) -> Iterator[Metric]:
        sources, known = self._sources, facts(self._sources)
        build = InfoMetricFamily("ipamd_build", "The release that runs", labels=("version",))
        build.add_metric((), {"version": str(sources.version)})
        yield build
        text = "1 when ADD is served and the conflist is in place; never before the first address of a boot"
        yield gauge("ipamd_ready", text, int(sources.health.is_ready))
        yield gauge("ipamd_conditions", "Lines `lacks` of `ipamctl status`", len(known.conditions))
        yield gauge("ipamd_assignable_addresses", "Free addresses that an ADD could have now", known.assignable_count)
        frozen = {one.cause.value: 1.0 for one in sources.freezings()}
        text = "1 for each reason why the pool makes no ENI and gives nothing back"
        yield gauges("ipamd_pool_frozen", text, "reason", {one.value: frozen.get(one.value, 0.0) for one in FreezeCause})

    def _pool(self) -> Iterator[Metric]:
        sources, counts, status = self._sources, self._sources.datastore.counts(), self._sources.demand.status()
        yield gauges("ipamd_addresses", "Addresses by state", "state", {state: getattr(counts, state) for state in STATES})
        yield gauge("ipamd_held_addresses", "Free addresses that are given to nobody for now", counts.held)
        text = "Free addresses above the target, in whole units of what the target counts"
        yield gauge("ipamd_excess_addresses", text, int(status.excess_count))
        text = "Subnets of the node's zone by EC2's last answer: whether a new ENI may go there now; none before it"
        subnets = sources.subnets()
        usable = [one for one in subnets if not one.why_not]
        kinds = {"usable": len(usable), "not": len(subnets) - len(usable)} if subnets else {}
        yield gauges("ipamd_subnets", text, "state", kinds)
        known = [one.free_count for one in usable if one.free_count >= 0]
        text = (
            "Free addresses of the roomiest subnet that a new ENI may go to, by EC2's last answer less what this node took since"
        )
        yield gauge("ipamd_subnet_room_addresses", text, max(known, default=0) if subnets else None)
        text = "ADDs refused for want of an address, by what kept the pool from growing"
        yield counters("ipamd_no_address", text, "cause", Blocked, self._counts.pool_empty())
        text = "What was in excess and was given back to EC2, by kind"
        yield counters("ipamd_released", text, "kind", RELEASED_KINDS, self._counts.released())
        text = "What happened to addresses, ENIs and sandboxes, as `ipamctl history` has it: adopted, reaped, lost, ..."
        yield counters("ipamd_events", text, "event", LedgerEvent, sources.datastore.event_counts())

    def _operations(self) -> Iterator[Metric]:
        sources, held = self._sources, self._sources.locks.held()
        yield gauge("ipamd_operations_in_progress", "Sandboxes with an operation in progress", len(held))
        oldest = max((row.age_s for row in held), default=0.0)
        yield gauge("ipamd_oldest_operation_age_s", "Age of the longest-running operation", oldest)
        yield gauge("ipamd_waiting_adds", "ADDs that wait for an address now", sources.demand.waiting()[0])
        yield gauge("ipamd_spooled_deletes", "DELs waiting in the spool", sources.spool.pending_count())
        yield gauge("ipamd_dying_links", "Host veths marked and not yet deleted", sources.dying_count())
        yield CounterMetricFamily(
            "ipamd_replayed_adds", "Repeated ADDs answered with the stored result", value=self._counts.replayed()
        )

    def _runtime(self) -> Iterator[Metric]:
        runtime = self._sources.runtime_view()
        if runtime is not None:
            yield gauge("ipamd_cri_reachable", "1 when the last list was complete", int(runtime.reachable))
            text = "Changes found by a list that no event had announced"
            yield CounterMetricFamily("ipamd_cri_missed_events", text, value=runtime.missed_events_count)

    def _host(self) -> Iterator[Metric]:
        sources = self._sources
        text = "1 while no sandbox can send with a source that is not its own; 0 with VPC_IPAMD_EXTRA_SOURCE_CIDRS"
        yield gauge("ipamd_source_checked", text, int(sources.hostnet.is_source_checked()))
        text = "Packets of sandboxes that were dropped, by reason"
        yield counters("ipamd_dropped_packets", text, "reason", DROP_REASONS, sources.hostnet.dropped_packets())
        text = "Objects of the host put right after something else changed them, by kind"
        yield counters("ipamd_repairs", text, "object", RepairKind, self._counts.repairs())

    def _settings(self) -> Iterator[Metric]:
        generation = self._sources.settings.generation
        is_valid = INVALID_SETTINGS not in self._sources.health.conditions_by_subject()
        text = "Generation of the settings in force: 1 at the start, one more with each change that was accepted"
        yield gauge("ipamd_settings_generation", text, int(generation.number))
        text = "0 while the settings that were read last are wrong and the generation before them is kept"
        yield gauge("ipamd_settings_valid", text, int(is_valid))
        text = "Settings that were changed and take effect at the next start"
        yield gauge("ipamd_settings_awaiting_restart", text, len(generation.needs_restart))

    def _start(self) -> Iterator[Metric]:
        stages = [one for one in self._sources.health.stages() if one.state is not StageState.PENDING]
        text = "Time that each stage of the start took, or has taken so far"
        yield gauges("ipamd_start_stage_s", text, "stage", {one.name: one.elapsed_ms / 1000 for one in stages})

    def _must_stay_zero(self) -> Iterator[Metric]:
        text = "Addresses that sandboxes of ours have and amazon-vpc-cni-k8s gave to others, by its file: two daemons are on this node"
        yield gauge("ipamd_given_twice_addresses", text, len(self._sources.given_twice()))
        found = self._sources.health.defects()
        text = "What must never happen: any increase is a defect of vpc-ipamd, to be reported with its log"
        yield counters("ipamd_defects", text, "what", Defect, found)


# EC2 calls and instance metadata: what they cost, how they end, what is left of the node's own budget.


class Ec2Families(Collector):
    """Reads memory; made once."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Yield the present figures."""
        yield from self._calls()
        text = "Looks at all ENIs in EC2 out of turn, by reason"
        yield counters("ipamd_ec2_looks", text, "reason", LookReason, self._counts.looks())
        yield from self._metadata()

    def _calls(self) -> Iterator[Metric]:
        text = "EC2 attempts (HTTP requests, repetitions included), by how they ended"
        attempts = CounterMetricFamily("ipamd_ec2_attempts", text, labels=("api", "outcome"))
        durations = HistogramMetricFamily("ipamd_ec2_attempt_duration_ms", "Time of one EC2 attempt", labels=("api",))
        text = "Calls that this node may make at once by its own budget; negative while callers wait for their turn"
        left = GaugeMetricFamily("ipamd_ec2_budget_calls", text, labels=("api",))
        text = "Calls per second that the budget allows; halved each time when EC2 throttles"
        rate = GaugeMetricFamily("ipamd_ec2_budget_rate_per_s", text, labels=("api",))
        text = "Calls that the node's own budget refused, because their turn would come too late"
        held_back = CounterMetricFamily("ipamd_ec2_held_back", text, labels=("api",))
        for api, report in sorted(self._counts.ec2.call_reports().items()):
            for outcome in Outcome:
                attempts.add_metric((api, outcome.value), report.outcomes.get(outcome, 0))
            buckets = [(f"{bound:.1f}", float(count)) for bound, count in zip(ATTEMPT_BUCKETS_MS, report.buckets, strict=True)]
            durations.add_metric((api,), [*buckets, ("+Inf", float(report.count))], report.total_ms)
            left.add_metric((api,), report.left_count)
            rate.add_metric((api,), report.rate_per_s)
            held_back.add_metric((api,), report.held_back_count)
        yield from (attempts, durations, left, rate, held_back)
        under_way = self._counts.ec2.calls_under_way()
        yield gauge("ipamd_ec2_calls_in_progress", "EC2 calls that are being made or repeated now", len(under_way))

    def _metadata(self) -> Iterator[Metric]:
        differing = self._counts.metadata()
        text = "Differences between instance metadata and the record, by the last comparison"
        yield gauge("ipamd_metadata_differences", text, differing.count)
        text = "How long instance metadata and the record have differed without a break; 0: they agree"
        yield gauge("ipamd_metadata_difference_age_s", text, differing.since_s)
        text = "Age of the last list of ENIs that instance metadata gave; none before the first"
        yield gauge("ipamd_metadata_list_age_s", text, differing.turn_age_s)
        text = "Requests to instance metadata, unanswered ones included"
        yield CounterMetricFamily("ipamd_metadata_requests", text, value=self._counts.metadata_requests())


# The metrics of amazon-vpc-cni-k8s that mean the same here, under their exact names and labels, so that dashboards keep
# working.
#
# Source of names, labels and meanings: amazon-vpc-cni-k8s utils/prometheusmetrics/prometheusmetrics.go, and where each is set.
# Which of them are missing, and why, is in docs/metrics.md. Its counters are exposed as untyped, because the client library
# would append `_total` to them.


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
