"""Write a report as text for people: a table of the subnets, the problems and the gaps; or a map of the /28s. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from ipaddress import IPv4Address

from ipamd.inventory.capacity import BlockState
from ipamd.inventory.report import InventoryReport, ReadGap, SubnetReport
from ipamd.model.eni import ADDRESSES_PER_PREFIX
from ipamd.model.time_text import rfc3339
from ipamd.model.words import counted, printable

HEAD = ("SUBNET", "ZONE", "CIDR", "ENIS", "FREE", "FREE /28", "IN NO /28", "RESERVED", "ADDRESSES END", "/28 END", "READ")

MAP_COLUMNS = 64
"""Blocks in a line of the map: 1,024 addresses, a /22."""

LEGEND = (
    f"one character for each /28: {BlockState.FREE} free, {BlockState.KEPT} free and reserved for prefixes, "
    f"{BlockState.WITHHELD} reserved explicitly, {BlockState.PARTLY} partly taken, {BlockState.FULL} full"
)

IDS_MAX = 5
"""The largest number of subnets that the line about a gap names. Ours: few, because the JSON names all."""

UNSEEN_LEAST = 16
"""Least `unseen_count` that gets a line. Ours: the size of a /28. A smaller count comes from ENIs that changed between two lists."""

HOUR_S, DAY_S = 3600, 86_400


def table(report: InventoryReport) -> str:
    """Write the table, a line for each problem and each gap, and a summary."""
    rows = [HEAD, *(_row(subnet, report.at) for subnet in report.subnets)]
    lines = [*_aligned(rows), *(_problem_lines(report)), *map(_gap_line, report.gaps), _summary(report)]
    return "\n".join(lines)


def maps(report: InventoryReport) -> str:
    """Write the map of each subnet, 64 blocks a line, each line with the first address of its first block."""
    lines = [LEGEND]
    for subnet in report.subnets:
        count = counted(subnet.capacity.free_prefix_count, "free /28")
        lines += ["", f"{printable(subnet.subnet_id)} {subnet.cidr} {printable(subnet.zone)}: {count}"]
        lines += _map_lines(subnet)
    lines += map(_gap_line, report.gaps)
    return "\n".join(lines)


def _map_lines(subnet: SubnetReport) -> Iterator[str]:
    first, block_map = int(subnet.cidr.network_address), subnet.capacity.block_map
    for start in range(0, len(block_map), MAP_COLUMNS):
        address = IPv4Address(first + start * ADDRESSES_PER_PREFIX)
        yield f"{address!s:<15} {block_map[start : start + MAP_COLUMNS]}"


def _row(subnet: SubnetReport, at: datetime) -> tuple[str, ...]:
    capacity = subnet.capacity
    return (
        printable(subnet.subnet_id),
        printable(subnet.zone),
        str(subnet.cidr),
        str(subnet.eni_count),
        f"{capacity.free_count} of {subnet.address_count}",
        str(capacity.free_prefix_count),
        str(capacity.fragmented_count),
        str(capacity.explicit_count),
        _time_left(subnet.forecast.addresses_s),
        _time_left(subnet.forecast.prefixes_s),
        _age((at - subnet.read_at).total_seconds()),
    )


def _time_left(seconds: float | None) -> str:
    if seconds is None:
        return "not known"
    if math.isinf(seconds):
        return "does not fall"
    if seconds <= 0:
        return "now"
    return f"in {_duration(seconds)}"


def _age(seconds: float) -> str:
    if seconds < HOUR_S:
        return "now"
    return f"{_duration(seconds)} ago"


def _duration(seconds: float) -> str:
    if seconds < HOUR_S:
        return f"{seconds / 60:.0f} min"
    if seconds < 2 * DAY_S:
        return f"{seconds / HOUR_S:.0f} h"
    return f"{seconds / DAY_S:.0f} days"


def _problem_lines(report: InventoryReport) -> Iterator[str]:
    for finding in report.findings:
        doubt = "" if finding.is_confirmed else "; seen once"
        yield printable(f"{finding.problem} {finding.subject} ({finding.subnet_id}): {finding.detail}{doubt}")
    for subnet in report.subnets:
        if subnet.unreadable_count:
            count = counted(subnet.unreadable_count, "ENI")
            yield printable(f"{subnet.subnet_id}: the addresses of {count} could not be read, so more is taken than is shown")
        if subnet.unseen_count >= UNSEEN_LEAST:
            text = (
                f"EC2 counts {subnet.unseen_count} more addresses as taken than the listed ENIs have; the map shows them as free"
            )
            yield printable(f"{subnet.subnet_id}: {text}")


def _gap_line(gap: ReadGap) -> str:
    names = ", ".join(gap.subnet_ids[:IDS_MAX])
    more = len(gap.subnet_ids) - IDS_MAX
    if more > 0:
        names += f" and {more} more"
    return printable(f"not read: {gap.part} of {names}: {gap.reason}")


def _summary(report: InventoryReport) -> str:
    completeness = "partial" if report.gaps else "complete"
    text = (
        f"cluster {report.cluster_name} in {report.vpc_id} ({report.region}) at {rfc3339(report.at, timespec='seconds')}: "
        f"{completeness}, {counted(len(report.subnets), 'subnet')}, {counted(len(report.findings), 'problem')}, "
        f"{report.call_count} of {report.calls_max} calls"
    )
    return printable(text)


def _aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lay out rows under each other, with columns as wide as their content."""
    listed = list(rows)
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in listed]
