"""The log of every EC2 call that the lab received. With it tests prove that an idle node makes no EC2 call (invariant I13).

Calls are recorded whether they succeed, fail, are throttled or lose their answer.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

OK = "OK"


class Call(NamedTuple):
    """One call.

    `at`: the time of the call by the VPC's clock.
    `instance`: the instance whose node made the call, found by the socket on which it came; None for a caller that is no node.
    `outcome`: OK, or the error code.
    `answered`: False if a fault cut the connection after the call was decided.
    """

    at: float
    instance: str | None
    api: str
    params: Mapping[str, str]
    outcome: str
    answered: bool = True


class CallLog:
    """The log of calls. Thread-safe; while it holds its lock it takes no other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[Call] = []

    def record(self, call: Call) -> None:
        """Append one call."""
        with self._lock:
            self._calls.append(call)

    def calls(self, *, instance: str | None = None) -> list[Call]:
        """List the calls in order of arrival: all, or those of one instance."""
        with self._lock:
            return [call for call in self._calls if instance is None or call.instance == instance]

    def counts(self, *, instance: str | None = None) -> Counter[str]:
        """Count calls per API."""
        return Counter(call.api for call in self.calls(instance=instance))

    def clear(self) -> None:
        """Remove all calls, for the start of a measurement."""
        with self._lock:
            self._calls.clear()
