"""The node's own figures: pool, runtime, host, start, and what must stay 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from ipamd.core.health import StageState
from ipamd.metric_families.counts import Counts, counters, gauge, gauges
from ipamd.model.errors import Defect
from ipamd.model.freeze import FreezeCause
from ipamd.model.growth import Blocked
from ipamd.model.kernel import DROP_REASONS, RepairKind
from ipamd.model.ledger import LedgerEvent
from ipamd.report.sources import Sources
from ipamd.report.verdict import facts
from ipamd.settings.current import INVALID_SETTINGS

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
        yield gauge("ipamd_source_checked", text, int(sources.is_source_checked()))
        text = "Packets of sandboxes that were dropped, by reason"
        yield counters("ipamd_dropped_packets", text, "reason", DROP_REASONS, sources.dropped_packets())
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
        found = {**self._sources.health.defects(), Defect.DATASTORE: self._sources.audit.datastore_defect_count}
        text = "What must never happen: any increase is a defect of vpc-ipamd, to be reported with its log"
        yield counters("ipamd_defects", text, "what", Defect, found)
