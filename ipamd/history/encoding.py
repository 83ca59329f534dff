"""Encode a record as one line of JSON, which `grep` and `jq` can read while nothing of ours runs.

The fields are those of `HistoryRecord`; empty ones are left out. Every text is made printable and cut here, so that no record is long.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from ipamd.model.history import HistoryRecord
from ipamd.model.time_text import rfc3339
from ipamd.model.words import printable

DETAIL_MAX = 1500
"""The largest number of characters of `detail`. Ours: the longest refusal, with EC2's words, cause, counts and advice, has 1,000."""

NAME_MAX = 520
"""The largest length of each other text, in characters: a namespace and a pod's name have 253 each."""

NUMBER_MAX = 2**31 - 1
"""Largest count or code of a record: the largest int32 of the proto."""

_TEXTS = ("address", "container_id", "ifname", "eni_id", "pod", "other_address")


def encode(record: HistoryRecord) -> bytes:
    """Write one line, with its line break."""
    line: dict[str, Any] = {"at": rfc3339(record.at), "event": printable(record.event, most=NAME_MAX)}
    for name in _TEXTS:
        value = getattr(record, name)
        if value:
            line[name] = printable(value, most=NAME_MAX)
    if record.since is not None:
        line["since"] = rfc3339(record.since)
    if record.count != 1:
        line["count"] = record.count
    if record.code:
        line["code"] = record.code
    if record.detail:
        line["detail"] = printable(record.detail, most=DETAIL_MAX)
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> HistoryRecord | None:
    """Read one line; None if it is unreadable: torn by a crash, damaged, or of a release with another form."""
    try:
        fields = json.loads(line)
        return HistoryRecord(
            at=_moment(fields["at"]),
            event=printable(str(fields["event"])),
            detail=printable(str(fields.get("detail", ""))),
            **{name: printable(str(fields.get(name, ""))) for name in _TEXTS},
            since=_moment(fields["since"]) if "since" in fields else None,
            count=_number(fields.get("count", 1)),
            code=_number(fields.get("code", 0)),
        )
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def _number(value: Any) -> int:
    """Read a count or a code. Raises: ValueError, TypeError; OverflowError if the proto has no room for the number."""
    number = int(value)
    if not 0 <= number <= NUMBER_MAX:
        raise OverflowError(f"{number} is no count")
    return number


def _moment(text: str) -> datetime:
    """Read a time with a zone. Raises: ValueError, TypeError; OverflowError if the time is out of range in UTC."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return moment.astimezone(UTC)
