"""Format times for people and for other programs: RFC 3339 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(moment: datetime, *, timespec: str = "milliseconds") -> str:
    """Format an aware time in UTC with a trailing Z. `timespec`: the smallest unit that is shown, as in `datetime.isoformat`."""
    return moment.astimezone(UTC).isoformat(timespec=timespec).removesuffix("+00:00") + "Z"
