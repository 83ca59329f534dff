"""The deployed job: when it runs, what its port shows, and that a failure ends nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ipamd.inventory.memory import InventoryMemory
from ipamd.inventory.report import InventoryReport
from ipamd.inventory.serve import INTERVAL_S, LATE_S, RETRY_S, InventoryJob
from ipamd.model.errors import CloudError, IpamError
from ipamd.model.record import replace
from tests.fakes.clock import FakeClock
from tests.unit.inventory.reports import a_memory

LABELS = ("subnet", "zone", "resource", "problem", "part")


class Runs:
    """Runs that take a minute, or fail."""

    def __init__(self, memory: InventoryMemory | None = None) -> None:
        self.clock = FakeClock()
        self.errors: list[IpamError] = []
        self.count = self.save_count = 0
        self.save_error: OSError | None = None
        self.job = InventoryJob(
            self.take, memory or InventoryMemory(), call_count=lambda: 5 * self.count, save=self.save, clock=self.clock
        )

    def take(self) -> InventoryReport:
        """One run."""
        self.count += 1
        self.clock.advance(60)
        if self.errors:
            raise self.errors.pop(0)
        report = a_memory().report
        assert report is not None
        return replace(report, at=self.clock.now())

    def save(self) -> None:
        """Keep the memory."""
        self.save_count += 1
        if self.save_error is not None:
            raise self.save_error

    def samples(self) -> dict[tuple[str, ...], float]:
        """The page, by name and values of labels."""
        head, body = self.job.page("/metrics")
        assert head.startswith(b"HTTP/1.1 200 OK")
        return {
            (sample.name, *(sample.labels[name] for name in LABELS if name in sample.labels)): sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
        }


def test_a_run_an_hour() -> None:
    """The first at once, each an hour after the beginning of the one before, however long that took."""
    runs = Runs()
    assert runs.job.first_wait_s() == 0.0
    assert runs.job.turn() == INTERVAL_S - 60
    assert (runs.count, runs.save_count) == (1, 1)


def test_a_failed_run_is_repeated_soon_and_the_last_report_stays() -> None:
    """And it is counted."""
    runs = Runs()
    runs.job.turn()
    runs.errors = [CloudError("EC2 is away")]
    assert runs.job.turn() == RETRY_S - 60
    samples = runs.samples()
    assert samples["ipamd_inventory_failed_runs_total",] == 1
    assert samples["ipamd_inventory_subnet_enis", "subnet-0a", "us-west-2a"] == 1
    runs.clock.advance(600)
    runs.errors = [CloudError("EC2 is away")]
    runs.job.turn()
    samples = runs.samples()
    assert samples["ipamd_inventory_last_run_timestamp_seconds",] == runs.clock.now().timestamp() - 60
    assert samples["ipamd_inventory_last_success_timestamp_seconds",] < samples["ipamd_inventory_last_run_timestamp_seconds",]


def test_a_restart_waits_for_the_rest_of_the_hour() -> None:
    """A container that restarts again and again spends no calls; it shows the report that it found."""
    clock = FakeClock()
    memory = a_memory()
    assert memory.report is not None
    memory.report = replace(memory.report, at=clock.now() - timedelta(minutes=20))
    runs = Runs(memory)
    assert runs.job.first_wait_s() == INTERVAL_S - 1200
    assert runs.samples()["ipamd_inventory_subnet_free_prefixes", "subnet-0a", "us-west-2a"] == 5
    memory.report = replace(memory.report, at=clock.now() + timedelta(days=1))
    assert Runs(memory).job.first_wait_s() == 0.0


def test_a_full_disk_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The report is on the port all the same."""
    runs = Runs()
    runs.save_error = OSError(28, "No space left on device")
    assert runs.job.turn() == INTERVAL_S - 60
    assert [record.levelname for record in caplog.records if record.name == "ipamd.inventory.serve"] == ["ERROR"]
    assert runs.job.status.report is not None


def test_it_runs_until_it_is_told_to_end() -> None:
    """Each pause is the one that the run before asked for."""
    runs = Runs()
    pauses: list[float] = []

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) == 3

    runs.job.run(wait)
    assert pauses == [0.0, INTERVAL_S - 60, INTERVAL_S - 60]
    assert runs.count == 2


def test_the_pages() -> None:
    """Alive while a run began within the hour and a bound; anything else is not there, the report neither."""
    runs = Runs()
    assert runs.job.page("/healthz")[0].startswith(b"HTTP/1.1 200 OK")
    runs.clock.advance(INTERVAL_S + LATE_S + 1)
    assert runs.job.page("/healthz")[0].startswith(b"HTTP/1.1 503 ")
    runs.job.turn()
    assert runs.job.page("/healthz")[0].startswith(b"HTTP/1.1 200 OK")
    for path in ("/", "/report.json", "/metrics/x"):
        assert runs.job.page(path)[0].startswith(b"HTTP/1.1 404 ")


def test_metrics_before_the_first_report() -> None:
    """What is not known has no sample."""
    assert set(Runs().samples()) == {("ipamd_inventory_failed_runs_total",), ("ipamd_inventory_ec2_attempts_total",)}


def test_metrics_of_a_report() -> None:
    """Each figure by subnet and zone; a forecast only where there is one; problems of each kind, 0 too."""
    runs = Runs()
    runs.job.turn()
    runs.clock.advance(40)
    samples = runs.samples()
    first, second = ("subnet-0a", "us-west-2a"), ("subnet-0b", "us-west-2a")
    assert samples["ipamd_inventory_subnet_addresses", *second] == 251
    assert samples["ipamd_inventory_subnet_free_addresses", *first] == 122
    assert samples["ipamd_inventory_subnet_fragmented_addresses", *first] == 42
    assert samples["ipamd_inventory_subnet_explicitly_reserved_addresses", *first] == 0
    exhaustion = {key[1:]: value for key, value in samples.items() if key[0] == "ipamd_inventory_subnet_exhaustion_seconds"}
    assert exhaustion == {(*first, "addresses"): 7200.0, (*first, "prefixes"): 0.0, (*second, "addresses"): float("inf")}
    problems = {key[3]: value for key, value in samples.items() if key[:3] == ("ipamd_inventory_findings", *first)}
    assert problems == {"leaked-eni": 1, "address-on-two-enis": 1, "eni-of-two-nodes": 1, "hidden-eni": 1}
    assert samples["ipamd_inventory_findings", *second, "leaked-eni"] == 0
    unread = {key[1]: value for key, value in samples.items() if key[0] == "ipamd_inventory_unread_subnets"}
    assert unread == {"enis": 0, "reservations": 1, "second-look": 0}
    assert ("ipamd_inventory_subnet_age_seconds", *second, "reservations") not in samples
    assert samples["ipamd_inventory_ec2_attempts_total",] == 5
