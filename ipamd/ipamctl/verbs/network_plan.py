"""The code of `ipamctl plan --network FILE`: read the file, and show what a start with it would do to this node's ENIs and pods."""

from __future__ import annotations

import sys

from ipamd.ipamctl.layout import Colour, Layout
from ipamd.ipamctl.tables import Columns, filled, table
from ipamd.ipamctl.verb import Answer, UsageError
from ipamd.model.words import counted, printable, usable

STANDARD_INPUT = "-"

PODS_SHOWN = 3
"""The largest number of pods that a row names. Ours: few are enough, because `-o wide` and JSON have all."""

FATES = {
    "kept": "kept",
    "detached": "no new pods; detached once it is empty",
    "drained": "no new pods; stays attached",
}


def read_network(path: str) -> tuple[bytes, str]:
    """Read the file that the daemon shall judge. Returns: its content, and its name. Raises: UsageError if it cannot be read."""
    from ipamd.settings.settings_file import SIZE_MAX, content_of  # imported here, to save all other verbs 20 ms

    if path == STANDARD_INPUT:
        return sys.stdin.buffer.read(SIZE_MAX + 1), "standard input"
    try:
        return content_of(path), path
    except OSError as error:
        raise UsageError(f"{printable(path)} cannot be read: {error.strerror or error}") from error


def loses_something(network: Answer) -> bool:
    """Whether the file is refused, stops growth on this node, or excludes new pods from an ENI that can have new pods now."""
    if network["refused_code"] or network["problem"]:
        return True
    return any(eni["reason"] and not eni["reason_now"] for eni in network["enis"])


def render_network(network: Answer, layout: Layout) -> str:
    """Write the judgement: whether the file is accepted, where new ENIs go, and a row per ENI."""
    if network["refused_code"]:
        return filled(
            f"refused   {network['source']} ({network['refused_code']}): {network['refused_reason']}; a start would end with status 2",
            layout,
            indent=10,
        )
    lines = [f"file      {network['source']}, {_difference(network)}", *_placement_lines(network)]
    lines += [f"max pods  {network['max_pods']}{_before(network)}"]
    columns: Columns = {
        "ENI": "{eni_id}",
        "SUBNET": "{subnet_id}",
        "THEN": lambda eni: FATES.get(eni["fate"], eni["fate"]),
        "FREE": lambda eni: usable(eni["free_count"]),
        "PODS": lambda eni: _pods(eni["pods"], layout),
        "WHY": "{reason}",
    }
    lines = [filled(line, layout, indent=10) for line in lines]
    rows = table(network["enis"], columns, layout, empty="-", is_shortened=not layout.is_wide, colour_of=_colour)
    return "\n".join([*lines, "", rows, "", filled("nothing is changed; pods that run keep their addresses", layout)])


def _difference(network: Answer) -> str:
    if not network["custom_networking"]:
        return "custom networking is off now"
    if network["in_force"]:
        return "it is the one in force"
    return "it differs from the one in force"


def _placement_lines(network: Answer) -> list[str]:
    zone = f"zone      {network['zone']}: "
    if not network["entry"]:
        return [f"{zone}no entry", f"problem   {network['problem']}; no ENI would be made on this node"]
    groups = ", ".join(network["security_group_ids"]) or "none"
    room = ""
    if network["free_count"] >= 0:
        room = f", {counted(network['free_count'], 'free address')}"
    lines = [f"{zone}entry {network['entry']}", f"new ENIs  {network['subnet_id']}{room}; security groups {groups}"]
    if network["problem"]:
        lines.append(f"problem   {network['problem']}; no ENI would be made on this node")
    if network["unchecked_reason"]:
        lines.append(f"unchecked {network['subnet_id']}: {network['unchecked_reason']}")
    if network["other_entries"]:
        lines.append(f"others    {', '.join(network['other_entries'])}: not this node's")
    return lines


def _before(network: Answer) -> str:
    if network["max_pods"] == network["max_pods_now"]:
        return ""
    return f", {network['max_pods_now']} now: give kubelet the same number"


def _pods(pods: list[str], layout: Layout) -> str:
    if layout.is_wide or len(pods) <= PODS_SHOWN:
        return ", ".join(pods)
    return f"{', '.join(pods[:PODS_SHOWN])} and {len(pods) - PODS_SHOWN} more"


def _colour(eni: Answer) -> Colour | None:
    if eni["reason"]:
        return Colour.NOTICE
    return None
