"""The daemon's log under a fuzzer: set up as in the daemon, judged line by line."""

from __future__ import annotations

import json
import logging
import re

from fuzz.target import Violation
from ipamd import logs


class LogSink:
    """Where the daemon's log goes: every line is JSON in UTF-8, and a terminal that shows it obeys nobody."""

    _CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

    def __init__(self) -> None:
        """Set logging up as the daemon does, and take the place of its standard error."""
        self._problem = ""
        logs.set_up("info")
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(self)

    def write(self, text: str) -> int:
        """Judge it."""
        text.encode()
        for line in text.rstrip("\n").split("\n"):
            json.loads(line)
        found = self._CONTROL.search(text)
        if found:
            self._problem = f"raw {found.group()!r} in the log: {text[:300]!r}"
        return len(text)

    def judge(self) -> None:
        """Raises: Violation if a line since the last call had control characters."""
        problem, self._problem = self._problem, ""
        if problem:
            raise Violation("log", problem)

    def flush(self) -> None:
        """Nothing is kept."""
        return
