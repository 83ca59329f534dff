"""Count requests, and render the page of metrics.

`families.py` reads all other figures from services at each scrape. Metrics of amazon-vpc-cni-k8s keep their names, so that existing
dashboards go on working. The names of our own metrics end with the unit, if there is one. The number of label values is bounded: they
are members of closed lists, the IDs of attached ENIs, whose number the instance type limits, the subnets that the node may use, and
the pools of the network file. Pods and addresses are never label values.
"""

from __future__ import annotations

import logging
import time
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

from ipamd.http.listening import Pages, listen, page_of, plain_page
from ipamd.http.port import CloseReason, MetricsPort
from ipamd.metrics.counts import Counts
from ipamd.metrics.families import Families
from ipamd.model.errors import log_text
from ipamd.model.legs.steps import SOURCE_STEPS
from ipamd.report.sources import Sources

VERBS = ("ADD", "DEL", "CHECK", "GC", "STATUS")
STEPS = ("decode", *SOURCE_STEPS, "lock", "netns", "reserve", "wire", "policy", "commit", "retire", "leftover", "check")
LATENCY_BUCKETS_S = (0.0005, 0.001, 0.002, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1, 5, 60)
"""Upper bounds of the histograms' buckets, in seconds. Ours: the budgets that `make bench` checks (2, 2.5 and 10 ms) are among them,
so that a histogram shows whether they are kept."""

PAGE_AGE_S = 0.5
"""Scrapes within this time get the same page. Ours: rendering takes milliseconds, and every pod can request the page, so the
number of renderings must not depend on that of requests."""

log = logging.getLogger(__name__)


class Metrics:
    """Registry and request counters."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # reads /proc/self at each scrape
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry, buckets=LATENCY_BUCKETS_S)
        self._requests = counter("ipamd_requests", "CNI requests answered", ("verb", "code"))
        self._latency = histogram("ipamd_request_duration_seconds", "Time that the daemon takes for a CNI request", ("verb",))
        self._steps = histogram("ipamd_request_step_duration_seconds", "One step of a CNI request", ("verb", "step"))
        self._orphaned = counter("ipamd_orphaned_requests", "Requests whose caller had gone before the answer", ("verb",))
        self._refusals = counter("ipamd_refusals", "Requests that were refused, by the kind of error", ("verb", "cause"))
        text = "Connections to this port or the probes' that were closed without an answer, by the bound that was reached"
        self._refused = counter("ipamd_http_refused_connections", text, ("reason",))
        for reason in CloseReason:
            self._refused.labels(reason.value)

    def request_done(self, verb: str, *, code: int, total_ms: float, steps_ms: dict[str, float], cause: str = "") -> None:
        """Count one answered request. Unknown verbs share the label value `other`.

        Args:
            code: the CNI error code, 0 for success.
            steps_ms: duration of each step, by its name in STEPS; other names are ignored.
            cause: the kind of error if the request was refused, otherwise "".
        """
        verb = _label_of(verb)
        if cause:
            self._refusals.labels(verb, cause).inc()
        self._requests.labels(verb, str(code)).inc()
        self._latency.labels(verb).observe(total_ms / 1000)
        for step, duration_ms in steps_ms.items():
            if step in STEPS:
                self._steps.labels(verb, step).observe(duration_ms / 1000)

    def request_orphaned(self, verb: str) -> None:
        """Count a request whose caller had gone before the answer."""
        self._orphaned.labels(_label_of(verb)).inc()

    def scrape_refused(self, reason: CloseReason) -> None:
        """Count a connection to the metrics port or the probes' port that got no page."""
        self._refused.labels(reason.value).inc()

    def watch(self, sources: Sources, counts: Counts) -> None:
        """Add the families that are read from services at every scrape."""
        self.registry.register(Families(sources, counts, served=self._served))

    def _served(self, verb: str) -> float:
        (metric,) = self._requests.collect()
        return sum(sample.value for sample in metric.samples if sample.name.endswith("_total") and sample.labels["verb"] == verb)


def _label_of(verb: str) -> str:
    if verb in VERBS:
        return verb
    return "other"


class Page:
    """The page of metrics, rendered at most once in PAGE_AGE_S for each format. Only one thread may call it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._rendered: dict[bool, tuple[float, tuple[bytes, bytes]]] = {}
        self._problem = ""

    def __call__(self, is_openmetrics: bool) -> tuple[bytes, bytes]:
        """Return head and body of the answer to a scrape."""
        now = time.monotonic()
        rendered_monotonic_s, answer = self._rendered.get(is_openmetrics, (-PAGE_AGE_S, (b"", b"")))
        if now - rendered_monotonic_s >= PAGE_AGE_S:
            accepted = ""
            if is_openmetrics:
                accepted = "application/openmetrics-text"
            encode, content_type = choose_encoder(accepted)
            status, text, problem = "200 OK", b"", ""
            try:
                text = encode(self._registry)
            except Exception as error:  # noqa: BLE001  # top of a loop: the next scrape may succeed
                status, problem = "500 Internal Server Error", log_text(error)
            if problem and problem != self._problem:
                log.error("metrics cannot be rendered error=%s", problem)
            self._problem = problem
            answer = page_of(status, text, content_type=content_type)
            self._rendered[is_openmetrics] = (now, answer)
        return answer


def serve(metrics: Metrics, address: str, *, health: Pages | None = None) -> MetricsPort | None:
    """Serve /metrics and the pages of `health` on `host:port`; returns None when the address is "off".

    Raises: SettingsError if the address is malformed, PortTakenError if another program has it.
    """
    page = Page(metrics.registry)

    def pages(path: str, is_openmetrics: bool) -> tuple[bytes, bytes]:
        if path == "/metrics":
            return page(is_openmetrics)
        if health is None:
            return plain_page("404 Not Found", "there is /metrics")
        return health(path, is_openmetrics)

    return listen(address, variable="VPC_IPAMD_METRICS_ADDRESS", pages=pages, refused=metrics.scrape_refused)
