"""Tables for people: plain text, columns as wide as their content, nothing cut off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipamd.model.words import counted
from ipamd.node_info import CLOUD_NOT_ASKED

STATE_COLUMNS = ("assigned", "reserved", "cooling", "quarantined", "free")
"""As in PoolCounts.__str__: one order everywhere."""


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lay out rows under a header; every row as long as the header."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)


def status(answer: dict[str, Any]) -> str:
    """Render GetStatus."""
    pool, runtime, cloud = answer.get("pool", {}), answer.get("runtime", {}), answer.get("cloud", {})
    readiness = "ready" if answer["ready"] else "not ready"
    lines = [
        f"vpc-ipamd {answer['version']} on {answer['instance_id'] or 'an unknown instance'}: {answer['phase']}, {readiness}, "
        f"up {answer['uptime_s']:.0f} s",
        "",
        table(
            ("STAGE", "STATE", "MS", "DETAIL"),
            [(s["name"], s["state"], f"{s['elapsed_ms']:.1f}", s["detail"]) for s in answer["stages"]],
        ),
        "",
        f"pool     {_pool(pool)}",
        "targets  " + (", ".join(f"{t['name']}={t['value']}" for t in pool["targets"] if t["defined"]) or "none"),
        f"loop     {pool['last_cycle']}",
        f"runtime  {_runtime(runtime)}",
        f"ec2      {_cloud(cloud)}",
        f"pending  {counted(answer['spooled_count'], 'spooled DEL')}, {counted(answer['dying_count'], 'dying link')}",
    ]
    lines += [
        f"busy     {b['operation']} on {b['container_id']}/{b['ifname']} for {b['age_s']:.1f} s, waiting behind: {b['waiting_count']}"
        for b in answer["busy"]
    ]
    lines += [f"lacks    {sentence}" for sentence in answer["lacks"]]
    last = answer.get("last_error")
    lines.append(f"last error  {last['at']} {last['what']}: {last['message']}" if last else "last error  none since start")
    return "\n".join(lines)


def enis(answer: dict[str, Any]) -> str:
    """Render ListEnis."""
    header = ("ENI", "DEVICE", "STATE", "PRIMARY ADDRESS", "SUBNET", "TABLE", "HOST", *map(str.upper, STATE_COLUMNS))
    return table(
        header,
        [
            (
                eni["eni_id"],
                eni["device_index"],
                eni["state"],
                eni["primary_address"],
                eni["subnet_cidr"],
                "main" if eni["route_table"] == 254 else eni["route_table"],
                "ready" if eni["host_ready"] else "not ready",
                *(eni[f"{state}_count"] for state in STATE_COLUMNS),
            )
            for eni in answer["enis"]
        ],
    )


def attachments(answer: dict[str, Any]) -> str:
    """Render ListAttachments."""
    return table(
        ("ADDRESS", "SANDBOX", "IFNAME", "NAME", "ENI", "HOST VETH", "SINCE", "ORIGIN"),
        [
            (
                row["address"],
                row["container_id"],
                row["ifname"],
                row["sandbox_name"] or "-",
                row["eni_id"],
                row["host_veth"],
                row["created_at"],
                row["origin"],
            )
            for row in answer["attachments"]
        ],
    )


def history(answer: dict[str, Any]) -> str:
    """Render GetHistory."""
    return table(
        ("AT", "EVENT", "ADDRESS", "SANDBOX", "ENI", "DETAIL"),
        [
            (
                row["at"],
                row["event"],
                row["address"] or "-",
                f"{row['container_id']}/{row['ifname']}" if row["container_id"] else "-",
                row["eni_id"] or "-",
                row["detail"],
            )
            for row in answer["entries"]
        ],
    )


def audit(answer: dict[str, Any]) -> str:
    """Render Audit."""
    lines = [f"silent: {sentence}" for sentence in answer["silent"]]
    if not answer["findings"]:
        return "\n".join([*lines, f"{counted(answer['address_count'], 'address')} compared: the witnesses agree"])
    rows = [(f["severity"], f["subject"], f["what"], f["next"]) for f in answer["findings"]]
    return "\n".join([*lines, table(("SEVERITY", "SUBJECT", "WHAT DIFFERS", "NEXT"), rows)])


def explain(answer: dict[str, Any]) -> str:
    """Render Explain."""
    return "\n".join([*answer["sentences"], "", history({"entries": answer["history"]})])


def config(answer: dict[str, Any]) -> str:
    """Render settings, under a line that says whose they are."""
    return f"{answer['origin_note']}\n\n" + table(
        ("SETTING", "VALUE", "DEFAULT", "ORIGIN", "MEANING"),
        [
            (line["env"], line["value"] or '""', line["default"] or '""', line["origin"], line["text"])
            for line in answer["settings"]
        ],
    )


def _pool(pool: dict[str, Any]) -> str:
    states = ", ".join(f"{pool[f'{state}_count']} {state}" for state in STATE_COLUMNS)
    enis = f"{pool['eni_count']} of {counted(pool['eni_limit'], 'ENI')} with {counted(pool['slots_per_eni'], 'slot')} each"
    return f"{counted(pool['total_count'], 'address')}: {states}; {enis}"


def _cloud(cloud: dict[str, Any]) -> str:
    if cloud["detail"] == CLOUD_NOT_ASKED:
        return CLOUD_NOT_ASKED
    return f"{'reachable' if cloud['reachable'] else 'not reachable'}, {counted(cloud['call_count'], 'call')}; {cloud['detail']}"


def _runtime(runtime: dict[str, Any]) -> str:
    if not runtime.get("socket"):
        return str(runtime.get("detail", ""))
    reach = "reachable" if runtime["reachable"] else "not reachable"
    events = "with events" if runtime["events"] else "without events"
    listed, seen = "not listed yet", counted(runtime["sandbox_count"], "sandbox")
    if runtime["list_age_s"] >= 0:
        listed = f"listed {runtime['list_age_s']:.0f} s ago: {seen} then"
    more = "" if runtime["detail"] in (seen, listed) else f"; {runtime['detail']}"
    return f"{runtime['name']} {runtime['version']} at {runtime['socket']}: {reach}, {events}, {listed}{more}"
