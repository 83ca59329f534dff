"""One JSON line per event on standard error, where the container runtime collects it and `jq` can read it.

Here all text of a line is made safe to print and bounded: what a runtime, a pod, EC2 or the kernel said may be in it.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ipamd.model.words import printable, rfc3339

MESSAGE_MAX = 16384
"""Characters. Ours: an encoded authorization failure, which must stay whole, has 10,240 at most.

Source: https://docs.aws.amazon.com/STS/latest/APIReference/API_DecodeAuthorizationMessage.html.
"""

TRACEBACK_LINES_MAX = 60
"""Ours: the deepest of our calls through grpc and SQLAlchemy have 40. The last ones say what happened."""

TRACEBACK_LINE_MAX = 500


KEYS = re.compile(r" (\w+)=(%\S+)")
"""In a message of ours, "released eni=%s", every value has its key, so that lines can be filtered."""


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
    """The keys of a message and what is left of it without; of a line with one dictionary all of it, whose parts are bounded."""
    if isinstance(record.args, Mapping) or not (keys := KEYS.findall(str(record.msg))):
        return record.args if isinstance(record.args, Mapping) else {}
    told = {key: printable(form % (value,), most=MESSAGE_MAX) for (key, form), value in zip(keys, record.args or (), strict=True)}
    return {"message": KEYS.sub("", record.msg), **told}


def _traceback(text: str) -> str:
    """Keep a traceback's lines, the last ones if there are many."""
    lines = text.splitlines()
    skipped = [f"({len(lines) - TRACEBACK_LINES_MAX} lines are left out)"] if len(lines) > TRACEBACK_LINES_MAX else []
    return "\n".join([*skipped, *(printable(line, most=TRACEBACK_LINE_MAX) for line in lines[-TRACEBACK_LINES_MAX:])])


def set_up(level: str) -> None:
    """Send every record of `level` (debug, info, warning, error) and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("botocore", "boto3", "urllib3", "pyroute2", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    for decoder in ("grpc._common", "grpc._cython.cygrpc", "urllib3.connection"):
        logging.getLogger(decoder).addFilter(_without_traceback)


def set_level(level: str) -> None:
    """Change the lowest level that is sent (debug, info, warning, error), for every logger that has none of its own."""
    logging.getLogger().setLevel(level.upper())


def _without_traceback(record: logging.LogRecord) -> bool:
    """Keep the cause only: a line for each message that is no protobuf, path that is no UTF-8, or HTTP header that is none."""
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        record.msg, record.args = "%s %s: %s", (record.getMessage(), type(error).__name__, error)
        record.exc_info, record.levelno, record.levelname = None, logging.WARNING, "WARNING"
    return True
