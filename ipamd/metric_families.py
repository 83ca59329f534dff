"""Prometheus families by topic, made at each scrape from what services know already. Nothing is asked of EC2, kernel or disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

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
from ipamd.eni.external_changes import MetadataDifference
from ipamd.eni.resync import Found, ResyncReason
from ipamd.model.address import AddressState
from ipamd.model.call_report import ANSWERED, ATTEMPT_BUCKETS_MS, OTHER, UNANSWERED, CallReport, Outcome
from ipamd.model.errors import Defect
from ipamd.model.freeze import FreezeCause
from ipamd.model.history import LedgerEvent
from ipamd.model.kernel import DROP_REASONS, RepairKind
from ipamd.model.placement import most_addresses, usable_eni_count
from ipamd.model.pool import Blocked
from ipamd.model.record import dataclass
from ipamd.model.words import MANY
from ipamd.ports import Ec2
from ipamd.report.sources import Sources
from ipamd.report.verdict import facts, kind_of
from ipamd.settings.current import INVALID_SETTINGS

# What services count since the start, as one value for the families; and how a family is made.


K = TypeVar("K", bound=str)


@dataclass(frozen=True, slots=True)
class Counts:
    """Mappings go on counting, and callables return at once, from memory; a key that a mapping lacks counts as 0.

    `replayed`: repeated ADDs that got the stored answer. `pool_empty`: ADDs refused for want of an address. `looks`: at EC2, out of
    turn, and what those showed of external changes. `repairs`: of the host. `released`: to EC2, by kind. `metadata`: how it differs
    from the record now.
    """

    ec2: Ec2
    replayed: Callable[[], int]
    pool_empty: Mapping[Blocked, int]
    looks: Mapping[ResyncReason | Found, int]
    repairs: Callable[[], Mapping[RepairKind, int]]
    released: Mapping[str, int]
    metadata: Callable[[], MetadataDifference]
    metadata_requests: Callable[[], int]


Values = Mapping[Any, float] | float | None
"""One value without labels, None while it is not known; or a value for each label, which a tuple has if there are several."""

Row = tuple[str, str, *tuple[str, ...], Values]
"""Name, text, labels if there are any, values."""


def families(kind: Callable[..., GaugeMetricFamily | CounterMetricFamily | UnknownMetricFamily], *rows: Row) -> Iterator[Metric]:
    """Make the families of one kind."""
    for name, text, *labels, values in rows:
        family = kind(name, text, labels=labels)
        for key, value in (values if isinstance(values, Mapping) else {(): values}).items():
            if value is not None:
                family.add_metric(key if isinstance(key, tuple) else (str(key),), value)
        yield family


def all_of(keys: Iterable[K], values: Mapping[K, int]) -> Mapping[Any, float]:
    """Every key of a closed list has a sample from the start, so that a rate sees its first event."""
    return {key: values.get(key, 0) for key in keys}


# The node's own figures: pool, runtime, host, start, and what must stay 0.


RELEASED_KINDS = ("addresses", "prefixes", "enis")
"""Labels of `ipamd_released_total`: single addresses, /28s and whole ENIs, whose addresses are not counted again."""

EGRESS_STATES = ("in use", "cooling", "free")

OF_REST = f"; what is free of a /80 counts as {MANY}"

STATES = ("free", "reserved", "assigned", "cooling", "quarantined", "lost")


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


class Families(Collector):
    """Reads memory; made once. `served`: requests of a verb since the start."""

    def __init__(self, sources: Sources, counts: Counts, *, served: Callable[[str], float]) -> None:
        self._sources = sources
        self._counts = counts
        self._served = served

    def collect(self) -> Iterator[Metric]:
        """Yield the present figures."""
        build = InfoMetricFamily("ipamd_build", "The release that runs", labels=("version",))
        build.add_metric((), {"version": str(self._sources.version)})
        yield build
        yield from families(GaugeMetricFamily, *self._node(), *self._pool(), *self._ec2_gauges(), *self._enis())
        yield from families(CounterMetricFamily, *self._events(), *self._ec2_counters())
        yield from families(UnknownMetricFamily, *self._counted())
        yield from self._durations()

    def _node(self) -> Iterator[Row]:
        sources, health, known = self._sources, self._sources.health, facts(self._sources)
        text = "1 when ADD is served and the conflist is in place; never before the first address of a boot"
        yield "ipamd_ready", text, int(health.is_ready)
        yield "ipamd_conditions", "Lines `lacks` of `ipamctl status`", len(known.conditions)
        text = "Lines `lacks` of `ipamctl status`, by subject"
        yield "ipamd_condition_subjects", text, "subject", Counter(kind_of(one) or OTHER for one in known.conditions)
        yield "ipamd_assignable_addresses", f"Free addresses that an ADD could have now{OF_REST}", known.assignable_count
        held = sources.locks.held()
        yield "ipamd_operations_in_progress", "Sandboxes with an operation in progress", len(held)
        oldest = max((row.age_s for row in held), default=0.0)
        yield "ipamd_oldest_operation_age_s", "Age of the longest-running operation", oldest
        text = "For how long a pod has been refused, the longest by cause"
        yield "ipamd_longest_refusal_s", text, "cause", sources.refused.longest_s()
        yield "ipamd_waiting_adds", "ADDs that wait for an address now", sources.demand.waiting()[0]
        yield "ipamd_spooled_deletes", "DELs waiting in the spool", sources.spool.pending_count()
        text = "Names of pods that are gone and that the network policy agent may know"
        yield "ipamd_owed_policy_names", text, len(sources.owed())
        yield "ipamd_dying_links", "Host veths marked and not yet deleted", sources.dying_count()
        if (runtime := sources.runtime_view()) is not None:
            yield "ipamd_cri_reachable", "1 when the last list was complete", int(runtime.reachable)
        text = "1 while no sandbox can send with a source that is not its own; 0 with VPC_IPAMD_EXTRA_SOURCE_CIDRS"
        yield "ipamd_source_checked", text, int(sources.hostnet.is_source_checked())
        text = "Living sandboxes without network, whatever the cause; `ipamctl audit` names them"
        yield "ipamd_cut_off_sandboxes", text, known.cut_off_count
        yield from self._branches()
        generation = sources.settings.generation
        text = "Generation of the settings in force: 1 at the start, one more with each change that was accepted"
        yield "ipamd_settings_generation", text, int(generation.number)
        text = "0 while the settings that were read last are wrong and the generation before them is kept"
        yield "ipamd_settings_valid", text, int(INVALID_SETTINGS not in health.conditions_by_subject())
        text = "Settings that were changed and take effect at the next start"
        yield "ipamd_settings_awaiting_restart", text, len(generation.needs_restart)
        stages = {one.name: one.elapsed_ms / 1000 for one in health.stages() if one.state is not StageState.PENDING}
        yield "ipamd_start_stage_s", "Time that each stage of the start took, or has taken so far", "stage", stages
        text = "Addresses that sandboxes of ours have and amazon-vpc-cni-k8s gave to others, by its file: two daemons are on this node"
        yield "ipamd_given_twice_addresses", text, len(sources.given_twice())

    def _branches(self) -> Iterator[Row]:
        """No sample where pods get no security groups of their own."""
        sources = self._sources
        is_on, found = sources.settings.now.network.pod_eni, sources.branches()
        yield (
            "ipamd_branch_sandboxes",
            "Sandboxes with a branch ENI; none without ENABLE_POD_ENI",
            len(found) if is_on else None,
        )
        text = "Sandboxes of whose branch ENI EC2 says something else; in strict mode they are cut off"
        yield "ipamd_contradicted_branches", text, sum(bool(one.contradiction) for one in found) if is_on else None
        text = "1 while the trunk ENI is attached, as far as EC2 has shown"
        yield "ipamd_trunk_attached", text, int(sources.trunk() is not None) if is_on else None
        text = "ADDs that wait for the control plane to name a branch ENI"
        yield "ipamd_waiting_branch_adds", text, sources.waiting_branches() if is_on else None

    def _pool(self) -> Iterator[Row]:
        sources, counts = self._sources, self._sources.datastore.counts()
        frozen = all_of(FreezeCause, {one.cause: 1 for one in sources.freezings()})
        yield "ipamd_pool_frozen", "1 for each reason why the pool makes no ENI and releases nothing", "reason", frozen
        kind = sources.demand.status.kind
        kind = delay(self._counts.ec2, sources.clock) if kind is Blocked.GROWING else kind
        blocked = all_of(Blocked, {kind: 1})
        text = "1 for what keeps the pool from growing now; `growing`: nothing"
        yield "ipamd_pool_blocked", text, "cause", blocked
        yield "ipamd_addresses", f"Addresses by state{OF_REST}", "state", {state: getattr(counts, state) for state in STATES}
        yield "ipamd_held_addresses", "Free addresses that are given to nobody for now", counts.held
        text = "Free addresses above the target, in whole units of what the target counts"
        yield "ipamd_excess_addresses", text, int(sources.demand.status.excess_count)
        text = "Subnets of the node's zone by EC2's last answer: whether a new ENI may go there now; none before it"
        subnets = sources.subnets()
        usable = [one for one in subnets if not one.why_not]
        kinds = {"usable": len(usable), "not": len(subnets) - len(usable)} if subnets else {}
        yield "ipamd_subnets", text, "state", kinds
        known = [one.free_count for one in usable if one.free_count >= 0]
        text = (
            "Free addresses of the roomiest subnet that a new ENI may go to, by EC2's last answer less what this node took since"
        )
        is_asked = bool(subnets) and not sources.settings.now.network.family.is_sparse  # a /80 is of other room
        yield "ipamd_subnet_room_addresses", text, max(known, default=0) if is_asked else None
        text = "Addresses for egress of the other family on this node, by state; none where sandboxes have no egress"
        yield "ipamd_egress_addresses", text, "state", self._egress()

    def _egress(self) -> Mapping[Any, float]:
        datastore, family = self._sources.datastore, self._sources.settings.now.network.egress
        if not family:
            return {}
        held = [row.state is AddressState.COOLING for row in datastore.addresses() if row.other_address]
        free = len(family.egress.addresses()) - len(held)
        return dict(zip(EGRESS_STATES, (held.count(False), held.count(True), free), strict=True))

    def _events(self) -> Iterator[Row]:
        sources, counts = self._sources, self._counts
        text = "ADDs refused for want of an address, by what kept the pool from growing"
        yield "ipamd_no_address", text, "cause", all_of(Blocked, counts.pool_empty)
        text = "What was in excess and was released, by kind"
        yield "ipamd_released", text, "kind", all_of(RELEASED_KINDS, counts.released)
        text = "What happened to addresses, ENIs and sandboxes, as `ipamctl history` has it: adopted, reaped, lost, ..."
        yield "ipamd_events", text, "event", all_of(LedgerEvent, sources.datastore.event_counts())
        yield "ipamd_replayed_adds", "Repeated ADDs answered with the stored result", counts.replayed()
        if (runtime := sources.runtime_view()) is not None:
            text = "Changes found by a list that no event had announced"
            yield "ipamd_cri_missed_events", text, runtime.missed_events_count
        text = "Packets of sandboxes that were dropped, by reason"
        yield "ipamd_dropped_packets", text, "reason", all_of(DROP_REASONS, sources.hostnet.dropped_packets())
        text = "Objects of the host put right after something else changed them, by kind"
        yield "ipamd_repairs", text, "object", all_of(RepairKind, counts.repairs())
        text = "What must never happen: any increase is a defect of vpc-ipamd, to be reported with its log"
        yield "ipamd_defects", text, "what", all_of(Defect, sources.health.defects)

    # EC2 calls and instance metadata: what they cost, how they end, what is left of the node's own budget.

    def _reports(self) -> list[tuple[str, CallReport]]:
        return sorted(self._counts.ec2.call_reports().items())

    def _ec2_gauges(self) -> Iterator[Row]:
        reports, differing = self._reports(), self._counts.metadata()
        text = "Calls that this node may make at once by its own budget; negative while callers wait for their turn"
        yield "ipamd_ec2_budget_calls", text, "api", {api: report.left_count for api, report in reports}
        text = "Calls per second that the budget allows; halved each time when EC2 throttles"
        yield "ipamd_ec2_budget_rate_per_s", text, "api", {api: report.rate_per_s for api, report in reports}
        yield "ipamd_ec2_calls_in_progress", "EC2 calls being made or repeated now", len(self._counts.ec2.calls_under_way())
        text = "Differences between instance metadata and the record, by the last comparison"
        yield "ipamd_metadata_differences", text, differing.count
        text = "How long instance metadata and the record have differed without a break; 0: they agree"
        yield "ipamd_metadata_difference_age_s", text, differing.since_s
        text = "Age of the last list of ENIs that instance metadata gave; none before the first"
        yield "ipamd_metadata_list_age_s", text, differing.turn_age_s

    def _ec2_counters(self) -> Iterator[Row]:
        reports = self._reports()
        ends = {(api, outcome.value): report.outcomes.get(outcome, 0) for api, report in reports for outcome in Outcome}
        yield (
            "ipamd_ec2_attempts",
            "EC2 attempts (HTTP requests, repetitions included), by how they ended",
            "api",
            "outcome",
            ends,
        )
        text = "Calls that the node's own budget refused, because their turn would come too late"
        yield "ipamd_ec2_held_back", text, "api", {api: report.held_back_count for api, report in reports}
        looks = all_of(ResyncReason, self._counts.looks)
        yield "ipamd_ec2_looks", "Looks at all ENIs in EC2 out of turn, by reason", "reason", looks
        text = "Requests to instance metadata, unanswered ones included"
        yield "ipamd_metadata_requests", text, self._counts.metadata_requests()

    def _enis(self) -> Iterator[Row]:
        """Pool and limits. A limit has no sample before the instance's limits are known: a 0 would look like a full node."""
        sources = self._sources
        snapshot, settings, counts = sources.pool.outlook(), sources.pool.settings, sources.datastore.counts()
        enis = [one for one in sources.datastore.stock().enis if one.eni.managed and not one.has_left]
        usable, most = (
            (None, None) if snapshot is None else (usable_eni_count(snapshot, settings), most_addresses(snapshot, settings))
        )
        network = sources.settings.now.network
        if network.egress and most is not None:
            most = min(most, len(network.egress.egress.addresses()))
        yield "awscni_eni_allocated", "ENIs attached that carry pods or may", len(enis)
        yield (
            "awscni_eni_max",
            "ENIs this node may have for pods: without the places of ENIs that are not ours to use",
            usable,
        )
        yield "awscni_ip_max", "Addresses this node may have, in its mode and with the ENIs that are there", most
        shown_count = sum(one.counts.total - one.counts.lost for one in enis)
        yield "awscni_total_ip_addresses", f"Addresses on our ENIs{OF_REST}", shown_count
        prefix_count = 0 if network.family.is_sparse else sum(one.prefix_count for one in enis)
        yield "awscni_total_ipv4_prefixes", "Prefixes (/28) on our ENIs; 0 with IPv6", prefix_count
        yield "awscni_assigned_ip_addresses", "Addresses assigned to sandboxes", counts.assigned
        text = "Addresses assigned to sandboxes, by ENI: a series for each attached ENI"
        yield "awscni_assigned_ip_per_eni", text, "eni", {one.eni.eni_id: one.counts.assigned for one in enis}
        yield "awscni_connmark_backend", "1 for what marks connections: always nftables", "backend", {"nftables": 1}

    def _counted(self) -> Iterator[Row]:
        found, reports = self._counts.looks, self._reports()
        yield "awscni_add_ip_req_count", "ADD requests", self._served("ADD")
        yield "awscni_del_ip_req_count", "DEL requests", "reason", {"PodDeleted": self._served("DEL")}
        refused = sum(self._counts.pool_empty.values())
        yield "awscni_no_available_ip_addresses", "ADDs refused because no address was free", refused
        yield "awscni_ec2api_req_count", "EC2 calls, retries included", "fn", {api: report.count for api, report in reports}
        failed = {api: report.count - report.outcomes.get(Outcome.OK, 0) for api, report in reports}
        yield "awscni_ec2api_error_count", "EC2 attempts that failed, whatever the cause", "fn", failed
        errors = {
            (api, code): told.count
            for api, report in reports
            for code, told in sorted(report.statuses.items())
            if code not in (ANSWERED, UNANSWERED)
        }
        text = f"EC2 attempts that EC2 refused, by its code; `{OTHER}` is any beyond the first 24"
        yield "awscni_aws_api_error_count", text, "api", "error", errors
        text = "What external changes added or took, as a resync with EC2 showed it"
        yield "awscni_reconcile_count", text, "fn", {fn: found.get(what, 0) for fn, what in RECONCILED.items()}
        text = "ENIs that EC2 showed no more while sandboxes had their addresses"
        yield "awscni_force_removed_enis", text, found.get(Found.FORCED_ENI, 0)
        text = "Addresses that EC2 showed no more while a sandbox had them"
        yield "awscni_force_removed_ips", text, found.get(Found.FORCED_ADDRESS, 0)

    def _durations(self) -> Iterator[Metric]:
        health = self._sources.health
        attempts = HistogramMetricFamily("ipamd_ec2_attempt_duration_ms", "Time of one EC2 attempt", labels=("api",))
        text = "Time of EC2 attempts, count and sum, by EC2's code (200 is success, empty: no answer)"
        latency = SummaryMetricFamily("awscni_aws_api_latency_ms", text, labels=("api", "error", "status"))
        for api, report in self._reports():
            buckets = [(f"{bound:.1f}", float(count)) for bound, count in zip(ATTEMPT_BUCKETS_MS, report.buckets, strict=True)]
            attempts.add_metric((api,), [*buckets, ("+Inf", float(report.count))], report.total_ms)
            for status, told in sorted(report.statuses.items()):
                latency.add_metric((api, "false" if status == ANSWERED else "true", status), told.count, told.total_ms)
        text = "Time from the start of the process to ready; one observation in a process"
        labels = ("success", "with_api_server", "failure_reason")
        startup = HistogramMetricFamily("awscni_ipamd_startup_duration_seconds", text, labels=labels)
        text = "Time from the start of the process until ADD was served; one observation in a process"
        init = HistogramMetricFamily("awscni_ipamd_node_initialization_duration_seconds", text, labels=("success",))
        for family, words, stage in ((startup, ("true", "false", ""), READY), (init, ("true",), Phase.SERVING)):
            if (seconds := health.reached_s.get(stage)) is not None:
                buckets = [(str(bound), float(seconds <= bound)) for bound in START_BUCKETS_S]
                family.add_metric(words, [*buckets, ("+Inf", 1.0)], seconds)
        yield from (attempts, latency, startup, init)
