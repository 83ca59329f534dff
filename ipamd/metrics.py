"""Prometheus metrics: names of amazon-vpc-cni-k8s where it has one, so existing dashboards keep working; ours carry their unit.

Label sets are closed: no IDs. Gauges are read from memory at each scrape; nothing is computed in between.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ipamd.health_pages import Pages, listen, plain_page
from ipamd.metrics_port import MetricsPort, Refusal
from ipamd.model.errors import log_text
from ipamd.model.freeze import FreezeCause
from ipamd.model.kernel import DROP_REASONS
from ipamd.model.placement import eni_limit
from ipamd.model.repair import RepairKind
from ipamd.ports import Ec2
from ipamd.service.pool.cloud_look import LookReason
from ipamd.service.report.sources import Sources
from ipamd.service.report.verdict import facts
from ipamd.settings.current import INVALID_SETTINGS

VERBS = ("ADD", "DEL", "CHECK", "GC", "STATUS")
STEPS = ("decode", "lock", "netns", "reserve", "wire", "commit", "retire", "leftover", "check")
LATENCY_BUCKETS_MS = (0.5, 1, 2, 2.5, 5, 10, 20, 50, 100, 250, 1000, 5000, 60000)
"""Ours: the budgets that `make bench` checks (2, 2.5 and 10 ms) are bounds, so that a histogram shows whether they are kept."""

PAGE_AGE_S = 0.5
"""Scrapes within it share a page. Ours: rendering costs milliseconds, and whoever reaches the port can ask for it."""

log = logging.getLogger(__name__)


class Metrics:
    """Registry and request counters; implements `rpc.cni.RequestObserver`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter("ipamd_requests", "CNI requests answered", ("verb", "code"), registry=self.registry)
        self._latency = Histogram(
            "ipamd_request_duration_ms",
            "Time that the daemon takes for a CNI request",
            ("verb",),
            buckets=LATENCY_BUCKETS_MS,
            registry=self.registry,
        )
        self._steps = Histogram(
            "ipamd_step_duration_ms",
            "One step of a CNI request",
            ("verb", "step"),
            buckets=LATENCY_BUCKETS_MS,
            registry=self.registry,
        )
        self.add_count = 0
        self.del_count = 0
        self._counting = threading.Lock()
        self._orphaned = Counter(
            "ipamd_orphaned_requests", "Requests whose caller had gone before the answer", ("verb",), registry=self.registry
        )
        self._refused = Counter(
            "ipamd_metrics_refused_connections",
            "Connections to the metrics port that were closed without an answer, by the bound that was reached",
            ("reason",),
            registry=self.registry,
        )
        for reason in Refusal:
            self._refused.labels(reason.value)

    def request_done(self, verb: str, *, code: int, total_ms: float, steps_ms: dict[str, float]) -> None:
        """Count one answered request; unknown verbs share the label `other`."""
        verb = verb if verb in VERBS else "other"
        self._requests.labels(verb, str(code)).inc()
        self._latency.labels(verb).observe(total_ms)
        for step, duration_ms in steps_ms.items():
            if step in STEPS:
                self._steps.labels(verb, step).observe(duration_ms)
        if verb == "ADD":
            with self._counting:
                self.add_count += 1
        elif verb == "DEL":
            with self._counting:
                self.del_count += 1

    def request_orphaned(self, verb: str) -> None:
        """Count a request whose caller had gone before the answer."""
        self._orphaned.labels(verb if verb in VERBS else "other").inc()

    def scrape_refused(self, reason: Refusal) -> None:
        """Count a connection to the metrics port that was closed without an answer."""
        self._refused.labels(reason.value).inc()

    def watch(
        self,
        sources: Sources,
        *,
        ec2: Ec2,
        replayed: Callable[[], int],
        pool_empty: Callable[[], int],
        looks: Callable[[], Mapping[LookReason, int]],
        repairs: Callable[[], Mapping[RepairKind, int]],
        released: Callable[[], Mapping[str, int]],
    ) -> None:
        """Read pool, runtime and EC2 figures at every scrape; the callables count since start."""
        self.registry.register(_StateCollector(self, sources, ec2, _Counts(replayed, pool_empty, looks, repairs, released)))


RELEASED_KINDS = ("addresses", "prefixes", "enis")
"""Labels of `ipamd_released_total`: single addresses, /28s and whole ENIs, whose addresses are not counted again."""


class _Counts(NamedTuple):
    """What services count since start."""

    replayed: Callable[[], int]
    pool_empty: Callable[[], int]
    looks: Callable[[], Mapping[LookReason, int]]
    repairs: Callable[[], Mapping[RepairKind, int]]
    released: Callable[[], Mapping[str, int]]


class _StateCollector(Collector):
    def __init__(self, requests: Metrics, sources: Sources, ec2: Ec2, counts: _Counts) -> None:
        self._requests = requests
        self._sources = sources
        self._ec2 = ec2
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Yield the present figures."""
        sources = self._sources
        counts, known = sources.datastore.counts(), facts(sources)
        limits, settings = sources.pool.limits, sources.pool.settings
        limit = eni_limit(limits, settings) if limits else 0
        gauges = {
            "awscni_eni_allocated": (len(sources.datastore.enis()), "ENIs attached"),
            "awscni_eni_max": (limit, "ENIs this node may have"),
            "awscni_ip_max": (limit * (limits.slots_per_eni if limits else 0), "Addresses this node may have"),
            "awscni_total_ip_addresses": (counts.total, "Addresses on our ENIs"),
            "awscni_assigned_ip_addresses": (counts.assigned, "Addresses assigned to sandboxes"),
            "ipamd_ready": (
                int(sources.health.is_ready),
                "1 when ADD is served and the conflist is in place; never before the first address of a boot",
            ),
            "ipamd_assignable_addresses": (known.assignable_count, "Free addresses that an ADD could have now"),
            "ipamd_conditions": (len(known.conditions), "Lines `lacks` of `ipamctl status`"),
            "ipamd_spooled_deletes": (sources.spool.pending_count(), "DELs waiting in the spool"),
            "ipamd_source_checked": (
                int(sources.is_source_checked()),
                "1 while no sandbox can send with a source that is not its own; 0 with VPC_IPAMD_EXTRA_SOURCE_CIDRS",
            ),
            "ipamd_dying_links": (sources.dying_count(), "Host veths marked and not yet deleted"),
        }
        for name, (value, text) in gauges.items():
            yield GaugeMetricFamily(name, text, value=value)
        held = sources.locks.held()
        yield GaugeMetricFamily("ipamd_operations_in_progress", "Sandboxes with an operation in progress", value=len(held))
        oldest = max((row.age_s for row in held), default=0.0)
        yield GaugeMetricFamily("ipamd_oldest_operation_age_s", "Age of the longest-running operation", value=oldest)
        yield CounterMetricFamily(
            "ipamd_replayed_adds", "Repeated ADDs answered with the stored result", value=self._counts.replayed()
        )
        yield from (self._frozen(), self._looks(), self._released(), self._dropped(), self._repairs_by_kind())
        states = GaugeMetricFamily("ipamd_addresses", "Addresses by state", labels=("state",))
        for state in ("free", "reserved", "assigned", "cooling", "quarantined", "lost"):
            states.add_metric((state,), getattr(counts, state))
        yield states
        runtime = sources.runtime_view()
        if runtime is not None:
            yield GaugeMetricFamily("ipamd_cri_reachable", "1 when the last list was complete", value=int(runtime.reachable))
            yield CounterMetricFamily(
                "ipamd_cri_missed_events",
                "Changes found by a list that no event had announced",
                value=runtime.missed_events_count,
            )
        yield from self._settings()
        yield from self._theirs()

    def _settings(self) -> Iterator[Metric]:
        generation = self._sources.settings.generation
        is_valid = INVALID_SETTINGS not in self._sources.health.conditions_by_subject()
        text = "Generation of the settings in force: 1 at the start, one more with each change that was accepted"
        yield GaugeMetricFamily("ipamd_settings_generation", text, value=int(generation.number))
        text = "0 while the settings that were read last are wrong and the generation before them is kept"
        yield GaugeMetricFamily("ipamd_settings_valid", text, value=int(is_valid))
        text = "Settings that were changed and take effect at the next start"
        yield GaugeMetricFamily("ipamd_settings_awaiting_restart", text, value=len(generation.needs_restart))

    def _frozen(self) -> Metric:
        text = "1 for each reason why the pool makes no ENI and gives nothing back"
        frozen = GaugeMetricFamily("ipamd_pool_frozen", text, labels=("reason",))
        in_force = {one.cause for one in self._sources.freezings()}
        for cause in FreezeCause:
            frozen.add_metric((cause.value,), int(cause in in_force))
        return frozen

    def _looks(self) -> Metric:
        looks = CounterMetricFamily("ipamd_ec2_looks", "Looks at all ENIs in EC2 out of turn, by reason", labels=("reason",))
        for reason in LookReason:
            looks.add_metric((reason.value,), self._counts.looks().get(reason, 0))
        return looks

    def _released(self) -> Metric:
        """What went back to EC2."""
        released = CounterMetricFamily(
            "ipamd_released", "What was in excess and was given back to EC2, by kind", labels=("kind",)
        )
        for kind in RELEASED_KINDS:
            released.add_metric((kind,), self._counts.released().get(kind, 0))
        return released

    def _dropped(self) -> Metric:
        """What confinement has dropped."""
        dropped = CounterMetricFamily(
            "ipamd_dropped_packets", "Packets of sandboxes that were dropped, by reason", labels=("reason",)
        )
        for why in DROP_REASONS:
            dropped.add_metric((why,), self._sources.dropped_packets().get(why, 0))
        return dropped

    def _repairs_by_kind(self) -> Metric:
        text = "Objects of the host put right after something else changed them, by kind"
        family, counts = CounterMetricFamily("ipamd_repairs", text, labels=("object",)), self._counts.repairs()
        for kind in RepairKind:
            family.add_metric((kind.value,), counts.get(kind, 0))
        return family

    def _theirs(self) -> Iterator[Metric]:
        """Counters of amazon-vpc-cni-k8s under their exact names: the client library appends `_total` to its own counters."""
        counts: dict[tuple[str, str], list[tuple[dict[str, str], int]]] = {
            ("awscni_add_ip_req_count", "ADD requests"): [({}, self._requests.add_count)],
            ("awscni_del_ip_req_count", "DEL requests"): [({"reason": "PodDeleted"}, self._requests.del_count)],
            ("awscni_no_available_ip_addresses", "ADDs refused because no address was free"): [({}, self._counts.pool_empty())],
            ("awscni_ec2api_req_count", "EC2 calls, retries included"): [
                ({"fn": api}, count) for api, count in sorted(self._ec2.call_counts().items())
            ],
        }
        for (name, text), samples in counts.items():
            family = Metric(name, text, "unknown")
            for labels, value in samples:
                family.add_sample(name, labels, value)
            yield family


class Page:
    """The page of metrics, rendered at most once in PAGE_AGE_S for each format. One thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._rendered: dict[bool, tuple[float, tuple[bytes, bytes]]] = {}
        self._problem = ""

    def __call__(self, is_openmetrics: bool) -> tuple[bytes, bytes]:
        """Return head and body of the answer to a scrape."""
        now = time.monotonic()
        rendered_monotonic_s, answer = self._rendered.get(is_openmetrics, (-PAGE_AGE_S, (b"", b"")))
        if now - rendered_monotonic_s >= PAGE_AGE_S:
            answer = self._render(is_openmetrics)
            self._rendered[is_openmetrics] = (now, answer)
        return answer

    def _render(self, is_openmetrics: bool) -> tuple[bytes, bytes]:
        encode, content_type = choose_encoder("application/openmetrics-text" if is_openmetrics else "")
        status, body, problem = "200 OK", b"", ""
        try:
            body = encode(self._registry)
        except Exception as error:  # noqa: BLE001  # top of a loop: scrapes go on, and the next may succeed
            status, problem = "500 Internal Server Error", log_text(error)
        if problem and problem != self._problem:
            log.error("metrics cannot be told: %s", problem)
        self._problem = problem
        head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        return head.encode(), body


def serve(metrics: Metrics, address: str, *, health: Pages | None = None) -> MetricsPort | None:
    """Serve /metrics on `host:port`, and beside it the pages of `health`; None when the address is "off".

    Raises: SettingsError if the address is malformed or taken.
    """
    page = Page(metrics.registry)

    def pages(path: str, is_openmetrics: bool) -> tuple[bytes, bytes]:
        if path == "/metrics":
            return page(is_openmetrics)
        return health(path, is_openmetrics) if health is not None else plain_page("404 Not Found", "there is /metrics")

    return listen(address, variable="VPC_IPAMD_METRICS_ADDRESS", pages=pages, refused=metrics.scrape_refused)
