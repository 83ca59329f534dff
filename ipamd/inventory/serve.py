"""The deployed job: an inventory an hour, and a port for Prometheus and kubelet.

The first run begins at the start, or when the report in the state file is an hour old: a container that restarts again and again
must not spend the calls of an hour each time. After a run that fails, the next one begins ten minutes later; after a success, an
hour later. The report itself is not on the port, because it names ENIs and every pod reaches the port. `vpc-ipamd-inventory show`
prints it in the container.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from ipamd.http.listening import page_of, plain_page
from ipamd.inventory.memory import InventoryMemory
from ipamd.inventory.metrics import JobStatus, registry
from ipamd.inventory.report import InventoryReport
from ipamd.model.errors import IpamError, log_text
from ipamd.ports.process import Clock

INTERVAL_S = 3600.0
"""Time between the beginnings of two runs."""

RETRY_S = 600.0
"""Time from the beginning of a run that listed no subnets to the next run. Ours: disturbances of EC2 pass, and a run that IAM denies
costs one call."""

LATE_S = 1200.0
"""The job counts as alive until this long after a run was due. Ours: 20 calls with the longest timeouts take 20 minutes."""

_log = logging.getLogger(__name__)


class InventoryJob:
    """Takes an inventory once an hour. `run` works in the caller's thread; the thread of the port calls `page`."""

    def __init__(
        self,
        take: Callable[[], InventoryReport],
        memory: InventoryMemory,
        *,
        call_count: Callable[[], int],
        save: Callable[[], None],
        clock: Clock,
    ) -> None:
        """Make a job that has not run yet.

        Args:
            take: takes one inventory. Raises: IpamError.
            memory: its last report is served until the first run ends.
            call_count: returns the HTTP attempts at EC2 since the start.
            save: writes the memory to disk. Raises: OSError.
        """
        self._take = take
        self._call_count = call_count
        self._save = save
        self._clock = clock
        self._turned_at_s = clock.monotonic()
        self.status = JobStatus(report=memory.report)
        if memory.report is not None:
            self.status.succeeded_at_s = memory.report.at.timestamp()
        self._registry = registry(self.status, now_s=lambda: clock.now().timestamp())

    def first_wait_s(self) -> float:
        """Seconds until the first run is due: an hour after the report in the state file.

        Returns: 0 if there is no report, or if its time is in the future because a clock was ahead.
        """
        if self.status.succeeded_at_s is None:
            return 0.0
        age_s = self._clock.now().timestamp() - self.status.succeeded_at_s
        if age_s < 0:
            return 0.0
        return max(INTERVAL_S - age_s, 0.0)

    def turn(self) -> float:
        """Run once. Returns: seconds until the next run. Raises: nothing that EC2, a setting or the disk causes."""
        began_s = self._turned_at_s = self._clock.monotonic()
        self.status.attempted_at_s = self._clock.now().timestamp()
        wait_s = INTERVAL_S
        try:
            report = self._take()
        except IpamError as error:
            self.status.failure_count += 1
            wait_s = RETRY_S
            _log.warning("inventory failed error=%s retry_s=%.0f", log_text(error), RETRY_S)
        else:
            self.status.report = report
            self.status.succeeded_at_s = report.at.timestamp()
            self._save_or_log()
            subnet_count, problem_count, gap_count = len(report.subnets), len(report.findings), len(report.gaps)
            _log.info("inventory taken subnets=%d problems=%d gaps=%d", subnet_count, problem_count, gap_count)
        self.status.call_count = self._call_count()
        return max(began_s + wait_s - self._clock.monotonic(), 0.0)

    def run(self, wait: Callable[[float], bool]) -> None:
        """Run until `wait` returns true, which means that the process is to end."""
        pause_s = self.first_wait_s()
        while not wait(pause_s):
            pause_s = self.turn()

    def page(self, path: str, _is_openmetrics: bool = False) -> tuple[bytes, bytes]:
        """Return head and body of the answer to a request for `path`."""
        if path == "/metrics":
            return page_of("200 OK", generate_latest(self._registry), content_type=CONTENT_TYPE_LATEST)
        if path == "/healthz":
            if self._clock.monotonic() - self._turned_at_s > INTERVAL_S + LATE_S:
                return plain_page("503 Service Unavailable", "no run began for too long")
            return plain_page("200 OK", "alive")
        return plain_page("404 Not Found", "there are /metrics and /healthz")

    def _save_or_log(self) -> None:
        try:
            self._save()
        except OSError as error:
            _log.error("state file not written, a restart begins anew error=%s", log_text(error))


def interruptible_wait(seconds: float) -> bool:
    """Sleep, and return False: the job goes on. SIGTERM ends the process during the sleep (`command._end`)."""
    time.sleep(seconds)
    return False
