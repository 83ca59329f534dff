"""What a target is: it makes cases, runs them, and raises `Violation` when a promise is broken.

A case is a dict of plain literals, so that it can be written down, read and edited as text. Where bytes stand, a list of
`(bytes, count)` may stand too: each part repeated, which keeps large cases small on paper (`blob`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, ClassVar

Case = dict[str, Any]
Blob = bytes | Sequence[tuple[bytes, int]]

PIECE_BYTES = 1 << 20
"""Of a flood that is written out piece by piece: as a whole it would count as growth of what reads it."""


class Violation(Exception):
    """A promise was broken. `kind`: one or two words; `message`: what was seen; `signature`: equal for the same defect."""

    def __init__(self, kind: str, message: str, *, signature: str = "") -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.signature = signature or kind


class Target(ABC):
    """Something that reads what others send. One object serves many cases in one process."""

    memory_bytes: ClassVar[int] = 64 << 20
    """By how much the process may grow, in all and in any case."""

    cpu_s: ClassVar[float] = 1.0
    """CPU time that a case may take: a busy machine does not matter."""

    batch: ClassVar[int] = 200
    """Cases between two calls of `check`."""

    shrink_tries: ClassVar[int] = 400
    """Cases that making a finding small may take."""

    seeds: tuple[Case, ...] = ()
    """The corpus, set by the worker before the first case."""

    @abstractmethod
    def generate(self, random: Random) -> Case:
        """Make a case, from `random` and `seeds` only."""

    @abstractmethod
    def run(self, case: Case) -> None:
        """Run it. Raises: Violation; any other exception is a traceback of the code under test, and a finding too."""

    def check(self) -> None:
        """Look whether what serves many cases is still well, after a batch and at the end. Raises: Violation."""
        return

    def close(self) -> None:
        """End what was started."""
        return


def blob(value: Blob) -> bytes:
    """Write out bytes that a case may state as repeated parts."""
    return b"".join(pieces(value))


def pieces(value: Blob) -> Iterator[bytes]:
    """Write them out in order, each piece a number of whole parts and, unless one part alone is more, at most PIECE_BYTES."""
    for part, count in [(value, 1)] if isinstance(value, bytes) else value:
        most = max(PIECE_BYTES // max(len(part), 1), 1)
        for done in range(0, count, most):
            yield part * min(most, count - done)


def random_of(seed: int, target: str, number: int) -> Random:
    """The source of chance of one case: independent of the cases before it and of how they are shared out."""
    return Random(f"{seed}/{target}/{number}")
