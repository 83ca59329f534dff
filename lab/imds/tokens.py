"""Session tokens of IMDSv2: made by PUT, needed by every GET, invalid after their TTL."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable

LONGEST_TTL_S = 21600  # "Use IMDSv2" in the EC2 user guide: six hours


class Tokens:
    """The tokens of one instance. Thread-safe; expired ones are dropped when a new one is made."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._dead_at: dict[str, float] = {}

    def issue(self, ttl_s: int) -> str:
        """Make a token that is valid for `ttl_s`."""
        now = self._clock()
        token = secrets.token_urlsafe(40)
        with self._lock:
            self._dead_at = {old: dead_at for old, dead_at in self._dead_at.items() if dead_at > now}
            self._dead_at[token] = now + ttl_s
        return token

    def is_valid(self, token: str | None) -> bool:
        """Whether a token is valid."""
        with self._lock:
            return token is not None and self._dead_at.get(token, 0.0) > self._clock()


def read_ttl(header: str | None) -> int | None:
    """Read the TTL header; None when it is absent or out of range, which the service answers with 400."""
    try:
        ttl_s = int(header or "")
    except ValueError:
        return None
    return ttl_s if 1 <= ttl_s <= LONGEST_TTL_S else None
