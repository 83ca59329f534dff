"""Convert a report to a JSON document and back. `-o json` prints the document, and the state file has it.

Other programs read it, so the names of its fields must not change.
`read_report` reads documents of `report_document`. For any other content it raises KeyError, TypeError or ValueError. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from ipaddress import IPv4Network
from typing import Any

from ipamd.inventory.capacity import SubnetCapacity
from ipamd.inventory.findings import EniFinding, EniProblem
from ipamd.inventory.report import InventoryReport, ReadGap, ReadPart, SubnetForecast, SubnetReport
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.time_text import rfc3339

FALLING, STEADY, UNKNOWN = "falling", "steady", "unknown"
"""Trends of a free count. FALLING: it will reach 0. STEADY: it does not fall. UNKNOWN: there are too few samples."""


def report_document(report: InventoryReport) -> dict[str, Any]:
    """Make the document. Times are RFC 3339 in UTC, durations seconds."""
    return {
        "cluster": report.cluster_name,
        "vpc": report.vpc_id,
        "region": report.region,
        "at": rfc3339(report.at),
        "calls": {"made": report.call_count, "allowed": report.calls_max},
        "is_complete": not report.gaps,
        "subnets": [_subnet_document(subnet) for subnet in report.subnets],
        "findings": [_finding_document(finding) for finding in report.findings],
        "gaps": [{"part": gap.part, "subnets": list(gap.subnet_ids), "reason": gap.reason} for gap in report.gaps],
    }


def read_report(document: Mapping[str, Any]) -> InventoryReport:
    """Read a report. Raises: KeyError, TypeError or ValueError."""
    findings = [_read_finding(finding_json) for finding_json in document["findings"]]
    return InventoryReport(
        cluster_name=str(document["cluster"]),
        vpc_id=str(document["vpc"]),
        region=str(document["region"]),
        at=read_time(document["at"]),
        subnets=tuple(_read_subnet(subnet_json, findings) for subnet_json in document["subnets"]),
        gaps=tuple(
            ReadGap(ReadPart(gap_json["part"]), tuple(map(SubnetId, gap_json["subnets"])), str(gap_json["reason"]))
            for gap_json in document["gaps"]
        ),
        call_count=int(document["calls"]["made"]),
        calls_max=int(document["calls"]["allowed"]),
    )


def read_time(text: str) -> datetime:
    """Read a time. Raises: ValueError, also without a time zone; TypeError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return moment.astimezone(UTC)


def _subnet_document(subnet: SubnetReport) -> dict[str, Any]:
    capacity = subnet.capacity
    reservations_read_at = None
    if subnet.reservations_read_at is not None:
        reservations_read_at = rfc3339(subnet.reservations_read_at)
    return {
        "subnet": subnet.subnet_id,
        "zone": subnet.zone,
        "cidr": str(subnet.cidr),
        "addresses": subnet.address_count,
        "enis": subnet.eni_count,
        "unreadable_enis": subnet.unreadable_count,
        "free_addresses": capacity.free_count,
        "free_addresses_by_ec2": subnet.ec2_free_count,
        "unseen_addresses": subnet.unseen_count,
        "free_prefixes": capacity.free_prefix_count,
        "fragmented_addresses": capacity.fragmented_count,
        "explicitly_reserved_addresses": capacity.explicit_count,
        "map": capacity.block_map,
        "forecast": {
            "addresses": _trend_document(subnet.forecast.addresses_s),
            "prefixes": _trend_document(subnet.forecast.prefixes_s),
        },
        "read_at": rfc3339(subnet.read_at),
        "reservations_read_at": reservations_read_at,
    }


def _read_subnet(subnet_json: Mapping[str, Any], findings: list[EniFinding]) -> SubnetReport:
    reservations_read_at = None
    if subnet_json["reservations_read_at"] is not None:
        reservations_read_at = read_time(subnet_json["reservations_read_at"])
    capacity = SubnetCapacity(
        block_map=str(subnet_json["map"]),
        free_count=int(subnet_json["free_addresses"]),
        fragmented_count=int(subnet_json["fragmented_addresses"]),
        explicit_count=int(subnet_json["explicitly_reserved_addresses"]),
    )
    subnet_id = SubnetId(str(subnet_json["subnet"]))
    return SubnetReport(
        subnet_id=subnet_id,
        zone=str(subnet_json["zone"]),
        cidr=IPv4Network(subnet_json["cidr"]),
        ec2_free_count=int(subnet_json["free_addresses_by_ec2"]),
        eni_count=int(subnet_json["enis"]),
        unreadable_count=int(subnet_json["unreadable_enis"]),
        capacity=capacity,
        read_at=read_time(subnet_json["read_at"]),
        reservations_read_at=reservations_read_at,
        findings=tuple(finding for finding in findings if finding.subnet_id == subnet_id),
        forecast=SubnetForecast(
            _read_trend(subnet_json["forecast"]["addresses"]), _read_trend(subnet_json["forecast"]["prefixes"])
        ),
    )


def _trend_document(exhausted_in_s: float | None) -> dict[str, Any]:
    """Write a forecast. The trend is a word, because JSON has no infinity."""
    if exhausted_in_s is None:
        return {"trend": UNKNOWN, "exhausted_in_s": None}
    if math.isinf(exhausted_in_s):
        return {"trend": STEADY, "exhausted_in_s": None}
    return {"trend": FALLING, "exhausted_in_s": round(exhausted_in_s)}


def _read_trend(trend_json: Mapping[str, Any]) -> float | None:
    if trend_json["trend"] == UNKNOWN:
        return None
    if trend_json["trend"] == STEADY:
        return math.inf
    return float(trend_json["exhausted_in_s"])


def _finding_document(finding: EniFinding) -> dict[str, Any]:
    return {
        "problem": finding.problem,
        "subject": finding.subject,
        "subnet": finding.subnet_id,
        "enis": list(finding.eni_ids),
        "instances": list(finding.instance_ids),
        "detail": finding.detail,
        "is_confirmed": finding.is_confirmed,
    }


def _read_finding(finding_json: Mapping[str, Any]) -> EniFinding:
    return EniFinding(
        problem=EniProblem(finding_json["problem"]),
        subject=str(finding_json["subject"]),
        subnet_id=SubnetId(str(finding_json["subnet"])),
        eni_ids=tuple(map(EniId, finding_json["enis"])),
        instance_ids=tuple(map(str, finding_json["instances"])),
        detail=str(finding_json["detail"]),
        is_confirmed=bool(finding_json["is_confirmed"]),
    )
