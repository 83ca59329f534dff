"""Parsed netlink bodies, kept by their bytes: a dump of a quiet node parses nothing.

The bodies of a link differ with each change of its state, so pods that come and go leave bodies behind that never come again. Each
survey drops them (`keep`). Rejected: `functools.lru_cache`, which keeps them until it is full: 4 MiB after 300 pods (measured).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Generic, TypeVar

A = TypeVar("A")

SPARE_COUNT = 128
"""`keep` drops nothing while the number of answers is at most this much above twice the number of bodies that it must keep. Ours:
enough room for the links, routes and rules that only other readers than the survey need, such as those of ENIs."""


class AnswerCache(Generic[A]):
    """A function from a body to its parsed answer that remembers its results.

    Concurrency: safe from any thread; at worst a body is parsed twice.
    """

    def __init__(self, read: Callable[[bytes], A], *, most: int) -> None:
        """`most`: the largest number of remembered bodies; then all are dropped. A host may have far more routes and rules than we
        make.
        """
        self._read = read
        self._most = most
        self._answers: dict[bytes, A] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def __call__(self, body: bytes) -> A:
        """Return the parsed body. Raises: what `read` raises."""
        answer = self._answers.get(body)
        if answer is None:
            answer = self._read(body)
            if len(self._answers) >= self._most:
                self._answers = {}
            self._answers[body] = answer
        return answer

    def keep(self, bodies: Collection[bytes]) -> None:
        """Drop the answers of all bodies except `bodies`, unless there are only few others.

        All answers stay while there are at most 2 * len(bodies) + SPARE_COUNT of them. So a survey of IPv4 does not drop the answers
        of a survey of IPv6, and the reverse.
        """
        answers = self._answers
        if len(answers) > 2 * len(bodies) + SPARE_COUNT:
            self._answers = {body: answers[body] for body in bodies if body in answers}
