"""The metrics of the job, made from its last report at each scrape. docs/inventory.md lists their names and labels for other programs.

Labels come from closed lists: the cluster's subnets with their zones, and the words of our own enumerations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ipamd.inventory.findings import EniProblem
from ipamd.inventory.report import InventoryReport, ReadPart, SubnetReport
from ipamd.model.record import dataclass

SUBNET_LABELS = ("subnet", "zone")


@dataclass(slots=True)
class JobStatus:
    """The state of the job.

    `report`: the last report; None before the first.
    `attempted_at_s`, `succeeded_at_s`: Unix times of the beginning of the last run, and of the last report; None before the first.
    `failure_count`: runs that listed no subnets.
    `call_count`: HTTP attempts at EC2 since the start.
    """

    report: InventoryReport | None = None
    attempted_at_s: float | None = None
    succeeded_at_s: float | None = None
    failure_count: int = 0
    call_count: int = 0


SUBNET_FIGURES: Sequence[tuple[str, str, Callable[[SubnetReport], float]]] = (
    ("ipamd_inventory_subnet_enis", "ENIs in a subnet, hidden ones too", lambda subnet: subnet.eni_count),
    (
        "ipamd_inventory_subnet_addresses",
        "Addresses of a subnet, free or not, without the five that AWS reserves",
        lambda subnet: subnet.address_count,
    ),
    (
        "ipamd_inventory_subnet_free_addresses",
        "Addresses that no ENI has",
        lambda subnet: subnet.capacity.free_count,
    ),
    (
        "ipamd_inventory_subnet_unseen_addresses",
        "Addresses that EC2 counts as taken and no listed ENI has, as those of other accounts in a shared subnet",
        lambda subnet: subnet.unseen_count,
    ),
    (
        "ipamd_inventory_subnet_free_prefixes",
        "Whole free /28s that EC2 can choose for a prefix",
        lambda subnet: subnet.capacity.free_prefix_count,
    ),
    (
        "ipamd_inventory_subnet_fragmented_addresses",
        "Free addresses in no whole free /28, without those that are reserved explicitly",
        lambda subnet: subnet.capacity.fragmented_count,
    ),
    (
        "ipamd_inventory_subnet_explicitly_reserved_addresses",
        "Free addresses in an explicit CIDR reservation, from which EC2 chooses none",
        lambda subnet: subnet.capacity.explicit_count,
    ),
)
"""Name and help of each metric, and the function that reads its value from the report of a subnet."""


class InventoryCollector(Collector):
    """Makes the metric families of a scrape, in the thread of the port. It needs no lock: it only reads, and each run replaces the
    whole report."""

    def __init__(self, status: JobStatus, *, now_s: Callable[[], float]) -> None:
        """`now_s`: Unix time."""
        self._status = status
        self._now_s = now_s

    def collect(self) -> Iterator[Metric]:
        """Yield every family; those about subnets have no sample before the first report."""
        report = self._status.report
        subnets: Sequence[SubnetReport] = ()
        if report is not None:
            subnets = report.subnets
        for name, text, figure in SUBNET_FIGURES:
            family = GaugeMetricFamily(name, text, labels=SUBNET_LABELS)
            for subnet in subnets:
                family.add_metric([subnet.subnet_id, subnet.zone], figure(subnet))
            yield family
        yield _exhaustion(subnets)
        yield _ages(subnets, self._now_s())
        yield _findings(report)
        yield _unread(report)
        yield from self._of_the_job()

    def _of_the_job(self) -> Iterator[Metric]:
        status = self._status
        text = "Unix time of the last run that listed subnets"
        yield _single("ipamd_inventory_last_success_timestamp_seconds", text, status.succeeded_at_s)
        text = "Unix time at which the last run began"
        yield _single("ipamd_inventory_last_run_timestamp_seconds", text, status.attempted_at_s)
        failures = CounterMetricFamily(
            "ipamd_inventory_failed_runs", "Runs that listed no subnets, because EC2 or a setting refused"
        )
        failures.add_metric([], status.failure_count)
        yield failures
        calls = CounterMetricFamily("ipamd_inventory_ec2_attempts", "EC2 attempts (HTTP requests, repetitions included)")
        calls.add_metric([], status.call_count)
        yield calls


def registry(status: JobStatus, *, now_s: Callable[[], float]) -> CollectorRegistry:
    """Make the registry of the job's page. It has no metrics of the process, such as its memory."""
    made = CollectorRegistry(auto_describe=False)
    made.register(InventoryCollector(status, now_s=now_s))
    return made


def _single(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric([], value)
    return family


def _exhaustion(subnets: Sequence[SubnetReport]) -> GaugeMetricFamily:
    text = "Seconds until a subnet has nothing free, by the line of the last day; +Inf if it does not fall, none if not known"
    family = GaugeMetricFamily("ipamd_inventory_subnet_exhaustion_seconds", text, labels=(*SUBNET_LABELS, "resource"))
    for subnet in subnets:
        by_resource: Mapping[str, float | None] = {
            "addresses": subnet.forecast.addresses_s,
            "prefixes": subnet.forecast.prefixes_s,
        }
        for resource, seconds in by_resource.items():
            if seconds is not None:
                family.add_metric([subnet.subnet_id, subnet.zone, resource], seconds)
    return family


def _ages(subnets: Sequence[SubnetReport], now_s: float) -> GaugeMetricFamily:
    text = "Age of what is known of a subnet, by what was read; none of reservations before they were read"
    family = GaugeMetricFamily("ipamd_inventory_subnet_age_seconds", text, labels=(*SUBNET_LABELS, "part"))
    for subnet in subnets:
        family.add_metric([subnet.subnet_id, subnet.zone, ReadPart.ENIS], now_s - subnet.read_at.timestamp())
        if subnet.reservations_read_at is not None:
            age_s = now_s - subnet.reservations_read_at.timestamp()
            family.add_metric([subnet.subnet_id, subnet.zone, ReadPart.RESERVATIONS], age_s)
    return family


def _findings(report: InventoryReport | None) -> GaugeMetricFamily:
    text = "Problems of the cluster's ENIs, by kind, subnet and zone; the job's report names each"
    family = GaugeMetricFamily("ipamd_inventory_findings", text, labels=(*SUBNET_LABELS, "problem"))
    if report is None:
        return family
    for subnet in report.subnets:
        counts = Counter(finding.problem for finding in subnet.findings)
        for problem in EniProblem:
            family.add_metric([subnet.subnet_id, subnet.zone, problem], counts[problem])
    return family


def _unread(report: InventoryReport | None) -> GaugeMetricFamily:
    text = "Subnets that the last run did not read, by what it did not read; later runs do"
    family = GaugeMetricFamily("ipamd_inventory_unread_subnets", text, labels=("part",))
    if report is None:
        return family
    for part in ReadPart:
        unread = {subnet_id for gap in report.gaps if gap.part is part for subnet_id in gap.subnet_ids}
        family.add_metric([part], len(unread))
    return family
