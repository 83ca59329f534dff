"""Take one inventory: list subnets, ENIs and reservations with a bounded number of EC2 calls, and report what they show.

ENIs are listed first, because everything else is derived from them. The lists of ENIs leave at least two calls of the run unused: one
to read the reservations of the subnet that waited longest, and one for a second look at ENIs with a problem. The second look is
needed because a problem may be a passing state: an address that moves from one ENI to another while pages are read is shown on both,
and an ENI that a node deletes is detached for some seconds. So after a pause (`second_look_s`) ENIs with a problem are listed again,
200 in a call, with at most LOOKS_MAX calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from ipaddress import IPv4Address, IPv4Network

from ipamd.cloud.calls import Ec2Calls
from ipamd.inventory.capacity import measure
from ipamd.inventory.ec2_lists import FILTER_VALUES_MAX, Ec2Lists
from ipamd.inventory.findings import EniFinding, LeakRule, SeenEni, claims_of, find
from ipamd.inventory.memory import InventoryMemory
from ipamd.inventory.report import InventoryReport, ReadGap, ReadPart, SubnetReport
from ipamd.inventory.subnet_choice import by_age, cluster_subnets
from ipamd.model.errors import CloudCredentialsError, CloudDeniedError, CloudError, ThrottledError, log_text
from ipamd.model.failures import FailureCode
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.record import dataclass, replace
from ipamd.model.subnets import DescribedSubnet
from ipamd.model.time_text import rfc3339
from ipamd.ports.process import Clock

KEPT_CALLS = 2
"""Calls that the lists of ENIs leave unused: one for reservations, one for a second look."""

CALLS_LEAST = 2 + KEPT_CALLS
"""Fewest calls with which a run can work: one for a page of subnets, one for a page of ENIs, and KEPT_CALLS."""

LOOKS_MAX = 5
"""The largest number of calls of a second look; they list 1,000 ENIs. Ours: if more ENIs have a problem, they have a common cause, and
1,000 of them show it."""

NEVER_READ = "not read yet: the map shows no reservations there; the next runs read them, those that waited longest first"
NO_CALL_LEFT = "no call of this run was left; the next run begins with them"


@dataclass(frozen=True, slots=True)
class InventoryOrder:
    """Scope and bounds of a run.

    `subnet_names`: IDs of subnets, or "all" alone. If it is empty, tags choose the subnets (`subnet_choice.py`).
    `calls_max`: the bound on HTTP attempts of one run; it must be CALLS_LEAST or more.
    `leak_age`: least age of a detached ENI that counts as leaked.
    `second_look_s`: pause before ENIs with a problem are listed a second time; with 0 they are not.
    """

    cluster_name: str
    vpc_id: str
    region: str
    subnet_names: tuple[str, ...]
    calls_max: int
    leak_age: timedelta
    second_look_s: float


def take_inventory(
    order: InventoryOrder, memory: InventoryMemory, *, calls: Ec2Calls, clock: Clock, sleep: Callable[[float], None]
) -> InventoryReport:
    """Read as much as the calls allow, store it in `memory`, and return the report.

    Raises: CloudError if the list of subnets fails, SettingsError if no subnet is the cluster's. `memory` is unchanged then.
    """
    return _Inventory(order, memory, Ec2Lists(calls, calls_max=order.calls_max), clock, sleep).take()


class _Inventory:
    """One run of the inventory, made for `take_inventory`."""

    def __init__(
        self, order: InventoryOrder, memory: InventoryMemory, lists: Ec2Lists, clock: Clock, sleep: Callable[[float], None]
    ) -> None:
        self._order = order
        self._memory = memory
        self._lists = lists
        self._clock = clock
        self._sleep = sleep
        self._rule = LeakRule(order.cluster_name, order.leak_age)
        self._gaps: list[ReadGap] = []

    def take(self) -> InventoryReport:
        """Read the subnets and their ENIs, and judge them (`take_inventory`)."""
        order, memory = self._order, self._memory
        listed = self._lists.subnets(order.vpc_id)
        subnets = cluster_subnets(listed, vpc_id=order.vpc_id, cluster_name=order.cluster_name, names=order.subnet_names)
        memory.keep_only([subnet.subnet_id for subnet in subnets])
        enis_by_subnet = self._read_enis(subnets)
        looked_at_s = self._clock.monotonic()
        findings = self._find([seen for enis in enis_by_subnet.values() for seen in enis])
        look_count = self._look_count(findings)
        self._read_reservations(subnets, keep=look_count)
        if look_count:
            findings = self._confirmed(findings, look_count, not_before_s=looked_at_s + order.second_look_s)
        for subnet in subnets:
            if subnet.subnet_id in enis_by_subnet:
                own = tuple(finding for finding in findings if finding.subnet_id == subnet.subnet_id)
                memory.of(subnet.subnet_id).remember(self._subnet_report(subnet, enis_by_subnet[subnet.subnet_id], own))
        memory.report = self._report(subnets)
        return memory.report

    def _read_enis(self, subnets: Sequence[DescribedSubnet]) -> dict[SubnetId, list[SeenEni]]:
        """List the ENIs of as many subnets as the calls allow. The subnets that waited longest come first.

        Returns: the ENIs by subnet, only of subnets whose list is complete.
        """
        memory = self._memory
        attempts = {subnet_id: subnet.attempted_at_s for subnet_id, subnet in memory.subnets.items()}
        due = [subnet.subnet_id for subnet in by_age(subnets, attempts)]
        size = memory.group_size
        enis_by_subnet: dict[SubnetId, list[SeenEni]] = {}
        for start in range(0, len(due), size):
            group = due[start : start + size]
            began_s = self._clock.now().timestamp()
            try:
                enis = self._lists.enis_of(group, keep=KEPT_CALLS)
            except CloudError as error:
                self._lists_ended(error, group if start == 0 else (), due[start:], began_s)
                return enis_by_subnet
            self._mark_attempted(group, began_s)
            enis_by_subnet |= {subnet_id: [] for subnet_id in group}
            for seen in enis:
                if seen.eni.subnet_id in enis_by_subnet:
                    enis_by_subnet[seen.eni.subnet_id].append(seen)
        memory.all_lists_ended()
        return enis_by_subnet

    def _lists_ended(
        self, error: CloudError, first_group: Sequence[SubnetId], unread: Sequence[SubnetId], began_s: float
    ) -> None:
        """Record why ENIs were not listed.

        Args:
            first_group: the subnets of the failed list if it was the run's first list of ENIs, so that it could use all calls for such
                lists; otherwise empty.
            unread: all subnets whose ENIs were not listed, those of the failed list included.
        """
        is_spent = error.failure == FailureCode.INVENTORY_CALLS_SPENT
        if not is_spent:
            self._gap(ReadPart.ENIS, unread, log_text(error))
            return
        rest = [subnet_id for subnet_id in unread if subnet_id not in first_group]
        if first_group:
            self._gap(ReadPart.ENIS, first_group, log_text(error))
            self._mark_attempted(first_group, began_s)
            self._memory.list_was_too_long(len(first_group))
        if rest:
            self._gap(ReadPart.ENIS, rest, NO_CALL_LEFT)

    def _mark_attempted(self, subnet_ids: Sequence[SubnetId], began_s: float) -> None:
        for subnet_id in subnet_ids:
            self._memory.of(subnet_id).attempted_at_s = began_s

    def _read_reservations(self, subnets: Sequence[DescribedSubnet], *, keep: int) -> None:
        """Read the reservations of as many subnets as the calls allow. The subnets that waited longest come first.

        `keep`: calls that must remain for the second look.
        """
        read_at_s = {
            subnet_id: memory.reservations_read_at.timestamp()
            for subnet_id, memory in self._memory.subnets.items()
            if memory.reservations_read_at is not None
        }
        due = [subnet.subnet_id for subnet in by_age(subnets, read_at_s)]
        for number, subnet_id in enumerate(due):
            try:
                reservations = self._lists.reservations(subnet_id, keep=keep)
            except CloudError as error:
                if error.failure == FailureCode.INVENTORY_CALLS_SPENT:
                    self._reservations_left(due[number:])
                    return
                if isinstance(error, ThrottledError | CloudDeniedError | CloudCredentialsError):
                    self._gap(ReadPart.RESERVATIONS, due[number:], log_text(error))  # EC2 would refuse the next ones too
                    return
                self._gap(ReadPart.RESERVATIONS, [subnet_id], log_text(error))
                continue
            memory = self._memory.of(subnet_id)
            memory.reservations, memory.reservations_read_at = reservations, self._clock.now()

    def _reservations_left(self, subnet_ids: Sequence[SubnetId]) -> None:
        """Record the subnets whose reservations are left for the next runs."""
        times = {subnet_id: self._memory.of(subnet_id).reservations_read_at for subnet_id in subnet_ids}
        never = [subnet_id for subnet_id, read_at in times.items() if read_at is None]
        if never:
            self._gap(ReadPart.RESERVATIONS, never, NEVER_READ)
        earlier = {subnet_id: read_at for subnet_id, read_at in times.items() if read_at is not None}
        if earlier:
            oldest = rfc3339(min(earlier.values()), timespec="seconds")
            self._gap(
                ReadPart.RESERVATIONS, list(earlier), f"by earlier runs, the oldest at {oldest}; the next runs read them again"
            )

    def _find(self, enis: Sequence[SeenEni]) -> list[EniFinding]:
        return find(enis, rule=self._rule, now=self._clock.now())

    def _look_count(self, findings: Sequence[EniFinding]) -> int:
        """Return the number of calls of the second look; 0 if no ENI needs one, or the order asks for none."""
        suspects = _suspects(findings)
        if not suspects or self._order.second_look_s <= 0:
            return 0
        return min(-(-len(suspects) // FILTER_VALUES_MAX), LOOKS_MAX, max(self._lists.calls_left - 1, 1))

    def _confirmed(self, findings: Sequence[EniFinding], look_count: int, *, not_before_s: float) -> list[EniFinding]:
        """List the ENIs of the findings a second time.

        Returns: the findings that the second list shows too, marked as confirmed; the findings that were confirmed before; and the
            findings whose ENIs were not all listed again. Any other finding is dropped.
        """
        self._sleep(max(not_before_s - self._clock.monotonic(), 0.0))
        suspects = _suspects(findings)
        seen_again: list[SeenEni] = []
        looked_at = set()
        for number in range(look_count):
            batch = suspects[number * FILTER_VALUES_MAX : (number + 1) * FILTER_VALUES_MAX]
            try:
                seen_again += self._lists.enis_by_id(batch)
            except CloudError as error:
                self._gap(ReadPart.SECOND_LOOK, sorted({finding.subnet_id for finding in findings}), log_text(error))
                break
            looked_at |= set(batch)
        keys = {finding.key for finding in self._find(seen_again)}
        kept = []
        for finding in findings:
            if finding.key in keys:
                kept.append(replace(finding, is_confirmed=True))
            elif finding.is_confirmed or not set(finding.eni_ids) <= looked_at:
                kept.append(finding)
        return kept

    def _subnet_report(self, subnet: DescribedSubnet, enis: Sequence[SeenEni], findings: tuple[EniFinding, ...]) -> SubnetReport:
        memory = self._memory.of(subnet.subnet_id)
        claims = [claim for seen in enis for claim in claims_of(seen)]
        addresses = [claim for claim in claims if isinstance(claim, IPv4Address)]
        prefixes = [claim for claim in claims if isinstance(claim, IPv4Network)]
        return SubnetReport(
            subnet_id=subnet.subnet_id,
            zone=subnet.availability_zone,
            cidr=subnet.cidr,
            ec2_free_count=subnet.free_count,
            eni_count=len(enis),
            unreadable_count=sum(bool(seen.eni.problem) for seen in enis),
            capacity=measure(subnet.cidr, addresses=addresses, prefixes=prefixes, reservations=memory.reservations),
            read_at=self._clock.now(),
            reservations_read_at=memory.reservations_read_at,
            findings=findings,
        )

    def _report(self, subnets: Sequence[DescribedSubnet]) -> InventoryReport:
        now = self._clock.now()
        reports = []
        for subnet in subnets:
            memory = self._memory.of(subnet.subnet_id)
            if memory.report is not None:
                reports.append(replace(memory.report, forecast=memory.forecast(now)))
        return InventoryReport(
            cluster_name=self._order.cluster_name,
            vpc_id=self._order.vpc_id,
            region=self._order.region,
            at=now,
            subnets=tuple(reports),
            gaps=tuple(self._gaps),
            call_count=self._lists.call_count,
            calls_max=self._order.calls_max,
        )

    def _gap(self, part: ReadPart, subnet_ids: Sequence[SubnetId], reason: str) -> None:
        self._gaps.append(ReadGap(part, tuple(sorted(subnet_ids)), reason))


def _suspects(findings: Sequence[EniFinding]) -> list[EniId]:
    """Return the ENIs of the findings that a second look must confirm, ascending."""
    return sorted({eni_id for finding in findings if not finding.is_confirmed for eni_id in finding.eni_ids})
