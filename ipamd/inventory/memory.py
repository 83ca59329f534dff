"""What a run needs of the runs before it: samples for the forecast, reservations, last readings, and whose turn it is.

The deployed job keeps this in memory and in a file, so that it survives a restart of the container; with a new pod it begins
anew, and the forecast needs three hours again. A run by hand without a file begins with nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from ipamd.inventory.capacity import CidrReservation
from ipamd.inventory.ec2_lists import FILTER_VALUES_MAX
from ipamd.inventory.forecast import CapacitySample, exhausted_in_s, with_sample
from ipamd.inventory.report import InventoryReport, SubnetForecast, SubnetReport
from ipamd.model.ids import SubnetId
from ipamd.model.record import dataclass, field


@dataclass(slots=True)
class SubnetMemory:
    """One subnet. `attempted_at_s`: Unix time at which a list of its ENIs began with the calls of a whole run, or succeeded; 0:
    never."""

    samples: tuple[CapacitySample, ...] = ()
    reservations: tuple[CidrReservation, ...] = ()
    reservations_read_at: datetime | None = None
    attempted_at_s: float = 0.0
    report: SubnetReport | None = None

    def remember(self, report: SubnetReport) -> None:
        """Keep a complete reading, and add its sample.

        EC2's own count is the smaller one where others have ENIs in a subnet that this account does not see.
        """
        free_count = min(report.capacity.free_count, report.ec2_free_count)
        sample = CapacitySample(report.read_at.timestamp(), free_count, report.capacity.free_prefix_count)
        self.samples = with_sample(self.samples, sample)
        self.report = report

    def forecast(self, now: datetime) -> SubnetForecast:
        """Forecast by the samples. `now`: aware UTC."""
        now_s = now.timestamp()
        return SubnetForecast(
            addresses_s=exhausted_in_s(self.samples, now_s=now_s, are_prefixes=False),
            prefixes_s=exhausted_in_s(self.samples, now_s=now_s, are_prefixes=True),
        )


@dataclass(slots=True)
class InventoryMemory:
    """All subnets of a cluster.

    `group_size`: subnets in one list of ENIs. It halves when the list does not end within the calls of a run, and doubles when a
    run read all subnets. `report`: of the last run.
    """

    subnets: dict[SubnetId, SubnetMemory] = field(default_factory=dict)
    group_size: int = FILTER_VALUES_MAX
    report: InventoryReport | None = None

    def of(self, subnet_id: SubnetId) -> SubnetMemory:
        """Return a subnet's memory, a new one if there is none."""
        return self.subnets.setdefault(subnet_id, SubnetMemory())

    def keep_only(self, subnet_ids: Collection[SubnetId]) -> None:
        """Forget subnets that are not the cluster's any more."""
        self.subnets = {subnet_id: memory for subnet_id, memory in self.subnets.items() if subnet_id in subnet_ids}

    def list_was_too_long(self, subnet_count: int) -> None:
        """Take half as many subnets into a list from now on as were in the one that did not end."""
        self.group_size = max(subnet_count // 2, 1)

    def all_lists_ended(self) -> None:
        """Take twice as many subnets into a list from now on."""
        self.group_size = min(self.group_size * 2, FILTER_VALUES_MAX)
