"""One JSON line per event on standard error, where the container runtime collects it and `jq` can read it.

All text of a line is made safe to print and bounded, because a line may quote a runtime, a pod, EC2 or the kernel.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ipamd.model.time_text import rfc3339
from ipamd.model.words import printable

MESSAGE_MAX = 16384
"""Longest message or field, in characters. Ours: an encoded authorization failure, which must stay whole, has 10,240 at most.

Source: https://docs.aws.amazon.com/STS/latest/APIReference/API_DecodeAuthorizationMessage.html.
"""

TRACEBACK_LINES_MAX = 60
"""The largest number of lines of a traceback that are logged. The last lines are kept, because they show the cause. Ours: our deepest
calls through grpc and SQLAlchemy have 40 lines."""

TRACEBACK_LINE_MAX = 500
"""The largest number of characters of a line of a traceback. Ours: a line of our code has 135 at most. The last line may quote an
answer; its beginning is enough, because the log's message has the error too."""

KEYS = re.compile(r" (\w+)=(%\S+)")
"""Matches a key and the format of its value in a message, as ` eni=%s` in "released eni=%s". In our messages every value has a key, so
that lines can be filtered by key."""


class JsonFormatter(logging.Formatter):
    """Format a record as one JSON object: the event, and its keys as fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line without a line break."""
        line = {
            "at": rfc3339(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname,
            "logger": record.name,
            "message": printable(record.getMessage(), most=MESSAGE_MAX),
        }
        if record.name.startswith("ipamd"):
            line |= _fields(record)
        if record.exc_info:
            line["exception"] = _traceback(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False, separators=(",", ":"))


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return the fields of a record.

    If the arguments of the record are a mapping, that mapping is returned; the code that logs has bounded its values. Otherwise the
    result has the keys in the message with their values, and `message` without these keys. It is {} if the message has no keys.
    """
    if isinstance(record.args, Mapping):
        return record.args
    keys = KEYS.findall(str(record.msg))
    if not keys:
        return {}
    fields = {"message": KEYS.sub("", record.msg)}
    for (key, form), value in zip(keys, record.args or (), strict=True):
        fields[key] = printable(form % (value,), most=MESSAGE_MAX)
    return fields


def _traceback(text: str) -> str:
    """Shorten a traceback to its last TRACEBACK_LINES_MAX lines."""
    lines = text.splitlines()
    last_lines = [printable(line, most=TRACEBACK_LINE_MAX) for line in lines[-TRACEBACK_LINES_MAX:]]
    if len(lines) > TRACEBACK_LINES_MAX:
        last_lines.insert(0, f"({len(lines) - TRACEBACK_LINES_MAX} lines are left out)")
    return "\n".join(last_lines)


def set_up(level: str) -> None:
    """Send every record of `level` (debug, info, warning, error) and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("botocore", "boto3", "urllib3", "pyroute2", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    for decoder in ("grpc._common", "grpc._cython.cygrpc", "urllib3.connection", "botocore.credentials"):
        logging.getLogger(decoder).addFilter(_without_traceback)


def set_level(level: str) -> None:
    """Change the lowest level that is logged (debug, info, warning, error), for every logger without a level of its own."""
    logging.getLogger().setLevel(level.upper())


def _without_traceback(record: logging.LogRecord) -> bool:
    """In a library's message replace the traceback by the exception's type and text, and lower the message to a warning.

    That is enough for an unreadable protobuf message, a path that is not UTF-8, a malformed HTTP header, or missing credentials.
    Returns: True, because a logging filter that returns False drops the message.
    """
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        record.msg, record.args = "%s %s: %s", (record.getMessage(), type(error).__name__, error)
        record.exc_info, record.levelno, record.levelname = None, logging.WARNING, "WARNING"
    return True
