"""EC2 calls and instance metadata: what they cost, how they end, what is left of the node's own budget."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from ipamd.eni.resync import LookReason
from ipamd.metric_families.counts import Counts, counters, gauge
from ipamd.model.call_report import ATTEMPT_BUCKETS_MS, Outcome


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
