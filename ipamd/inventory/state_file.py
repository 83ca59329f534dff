"""The job's memory in a file: JSON, written whole and renamed into place after each run.

A file that cannot be read or has another format is an error, because its samples are lost. The caller decides whether to begin with
an empty memory, and also whether the file is of its cluster and VPC (`command.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from ipamd.inventory.capacity import CidrReservation, ReservedFor
from ipamd.inventory.document import read_report, read_time, report_document
from ipamd.inventory.ec2_lists import FILTER_VALUES_MAX
from ipamd.inventory.forecast import SAMPLES_MAX, CapacitySample
from ipamd.inventory.memory import InventoryMemory, SubnetMemory
from ipamd.inventory.report import SubnetReport
from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.ids import SubnetId
from ipamd.model.time_text import rfc3339

FORMAT = 1
"""Version of the file's format. Increment it when the meaning of a field changes."""

BYTES_MAX = 64 << 20
"""Largest state file that is read. Ours: a file of 200 subnets of the largest size has 2 MB."""


def save(path: Path, memory: InventoryMemory) -> None:
    """Replace the file. Raises: OSError; the old file then stays."""
    text = json.dumps(_document(memory), separators=(",", ":"))
    written = path.with_name(f"{path.name}.new")
    written.write_text(text)
    written.replace(path)


def load(path: Path) -> InventoryMemory:
    """Read the file. Returns: an empty memory if there is none. Raises: SettingsError if it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(BYTES_MAX + 1)
        if len(raw) > BYTES_MAX:
            raise ValueError(f"it has more than {BYTES_MAX} bytes")
        return _read(json.loads(raw))
    except FileNotFoundError:
        return InventoryMemory()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        cause = f"{type(error).__name__}: {error}"
        raise failure(SettingsError, FailureCode.INVENTORY_STATE_UNREADABLE, path=path, cause=cause) from error


def _document(memory: InventoryMemory) -> dict[str, Any]:
    report = None
    if memory.report is not None:
        report = report_document(memory.report)
    return {
        "format": FORMAT,
        "group_size": memory.group_size,
        "report": report,
        "subnets": {subnet_id: _subnet_document(subnet) for subnet_id, subnet in memory.subnets.items()},
    }


def _subnet_document(memory: SubnetMemory) -> dict[str, Any]:
    read_at = None
    if memory.reservations_read_at is not None:
        read_at = rfc3339(memory.reservations_read_at)
    return {
        "samples": [[sample.at_s, sample.free_count, sample.free_prefix_count] for sample in memory.samples],
        "reservations": [[str(item.cidr), item.reserved_for] for item in memory.reservations],
        "reservations_read_at": read_at,
        "attempted_at_s": memory.attempted_at_s,
    }


def _read(document: Mapping[str, Any]) -> InventoryMemory:
    if document["format"] != FORMAT:
        raise ValueError(f"its format is {document['format']!r}, not {FORMAT}")
    report = None
    reports: dict[SubnetId, SubnetReport] = {}
    if document["report"] is not None:
        report = read_report(document["report"])
        reports = {subnet.subnet_id: subnet for subnet in report.subnets}
    subnets = {}
    for name, memory_json in document["subnets"].items():
        subnet_id = SubnetId(name)
        subnets[subnet_id] = _read_subnet(memory_json, reports.get(subnet_id))
    group_size = min(max(int(document["group_size"]), 1), FILTER_VALUES_MAX)
    return InventoryMemory(subnets=subnets, group_size=group_size, report=report)


def _read_subnet(memory_json: Mapping[str, Any], report: SubnetReport | None) -> SubnetMemory:
    read_at = None
    if memory_json["reservations_read_at"] is not None:
        read_at = read_time(memory_json["reservations_read_at"])
    return SubnetMemory(
        samples=tuple(
            CapacitySample(float(at_s), int(free), int(prefixes))
            for at_s, free, prefixes in memory_json["samples"][-SAMPLES_MAX:]
        ),
        reservations=tuple(CidrReservation(IPv4Network(cidr), ReservedFor(kind)) for cidr, kind in memory_json["reservations"]),
        reservations_read_at=read_at,
        attempted_at_s=float(memory_json["attempted_at_s"]),
        report=report,
    )
