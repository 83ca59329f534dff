"""The state that one run leaves for the next: samples for the forecast, reservations, last readings, and the subnets to read next.

The deployed job keeps it in memory and in a file, so that it survives a restart of the container. A new pod begins with an empty
memory, and then a forecast needs three readings over two hours again. A run by hand without a file begins with an empty memory.
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
    """The memory of one subnet.

    `samples`: free counts, oldest first.
    `reservations_read_at`: when `reservations` were read; None if they never were.
    `attempted_at_s`: Unix time at which the last list of its ENIs began; 0 if there was none. The subnets with the oldest time are
        listed first. A list that failed counts only if it was too long for all calls of a run; after any other failure its subnets
        come first again.
    `report`: the last complete reading.
    """

    samples: tuple[CapacitySample, ...] = ()
    reservations: tuple[CidrReservation, ...] = ()
    reservations_read_at: datetime | None = None
    attempted_at_s: float = 0.0
    report: SubnetReport | None = None

    def remember(self, report: SubnetReport) -> None:
        """Store a complete reading, and add its sample.

        The sample has EC2's own count of free addresses if that is smaller than ours. In a subnet that is shared with other accounts
        it is smaller, because EC2 does not list their ENIs.
        """
        free_count = min(report.capacity.free_count, report.ec2_free_count)
        sample = CapacitySample(report.read_at.timestamp(), free_count, report.capacity.free_prefix_count)
        self.samples = with_sample(self.samples, sample)
        self.report = report

    def forecast(self, now: datetime) -> SubnetForecast:
        """Make the forecast from the samples. `now`: aware UTC."""
        now_s = now.timestamp()
        return SubnetForecast(
            addresses_s=exhausted_in_s(self.samples, now_s=now_s, are_prefixes=False),
            prefixes_s=exhausted_in_s(self.samples, now_s=now_s, are_prefixes=True),
        )


@dataclass(slots=True)
class InventoryMemory:
    """The memory of all subnets of a cluster.

    `group_size`: number of subnets in one list of ENIs. It halves after a list that does not end within the calls of a run, and
        doubles after a run that reads all subnets.
    `report`: the report of the last run.
    """

    subnets: dict[SubnetId, SubnetMemory] = field(default_factory=dict)
    group_size: int = FILTER_VALUES_MAX
    report: InventoryReport | None = None

    def of(self, subnet_id: SubnetId) -> SubnetMemory:
        """Return the memory of a subnet, which is made if there is none."""
        return self.subnets.setdefault(subnet_id, SubnetMemory())

    def keep_only(self, subnet_ids: Collection[SubnetId]) -> None:
        """Forget subnets that are not the cluster's any more."""
        self.subnets = {subnet_id: memory for subnet_id, memory in self.subnets.items() if subnet_id in subnet_ids}

    def list_was_too_long(self, subnet_count: int) -> None:
        """Halve the number of subnets in a list. `subnet_count`: the number in the list that did not end."""
        self.group_size = max(subnet_count // 2, 1)

    def all_lists_ended(self) -> None:
        """Double the number of subnets in a list, up to FILTER_VALUES_MAX."""
        self.group_size = min(self.group_size * 2, FILTER_VALUES_MAX)
