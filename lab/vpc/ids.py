"""Random identifiers in the form of AWS. The same seed gives the same identifiers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

_HEX_DIGITS = 17  # length of AWS resource IDs since 2018


class Ids:
    """Makes IDs and MAC addresses, and none of them twice."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._made: set[str] = set()

    def make(self, kind: str) -> str:
        """Make an ID such as `eni-0a1b2c...`. Like those of AWS, its digits begin with 0."""
        return self._fresh(lambda: f"{kind}-0{self._rng.getrandbits(4 * (_HEX_DIGITS - 1)):016x}")

    def mac(self) -> str:
        """Make a locally administered unicast MAC address. It begins with 02, one of the beginnings that EC2 uses."""
        return self._fresh(lambda: "02:" + ":".join(f"{self._rng.getrandbits(8):02x}" for _ in range(5)))

    def _fresh(self, draw: Callable[[], str]) -> str:
        while True:
            identifier = draw()
            if identifier not in self._made:
                self._made.add(identifier)
                return identifier
