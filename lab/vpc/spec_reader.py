"""Reads a JSON-able dict strictly: every problem is found and reported at once, so that a misspelt fault is not silently ignored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import TypeVar

from lab.errors import LabError

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
Share = float | frozenset[str]  # a share of all, or the ones named


class FaultSpecError(LabError):
    """The dict given to Faults.apply is wrong; the message lists every problem."""


@dataclass(frozen=True)
class Delay:
    """A delay in seconds: uniform in [low, high], or log-normal when `sigma` is above 0 (`low` is then the median)."""

    low: float
    high: float
    sigma: float = 0.0

    def draw(self, rng: Random) -> float:
        """Draw one delay."""
        if self.sigma > 0:
            return rng.lognormvariate(math.log(self.low), self.sigma)
        return rng.uniform(self.low, self.high)


@dataclass(frozen=True)
class Times:
    """How often a fault strikes: the next `count` times, or a share `rate`; every time when both are None."""

    count: int | None = None
    rate: float | None = None


class Counter:
    """How often a fault still strikes. Not thread-safe: the lock of Faults is around it."""

    def __init__(self, times: Times) -> None:
        self._left = times.count
        self._rate = times.rate

    def strikes(self, rng: Random) -> bool:
        """Whether it strikes now; a count is used up by it."""
        if self._left == 0 or (self._rate is not None and rng.random() >= self._rate):
            return False
        if self._left is not None:
            self._left -= 1
        return True


class Reader:
    """Reads one dict, remembering which keys were asked for and collecting problems."""

    def __init__(self, raw: Mapping[str, object] | None, where: str, problems: list[str]) -> None:
        self.raw = raw if raw is not None else {}
        self._where = where
        self._problems = problems
        self._known: set[str] = set()
        if raw is None:
            problems.append(f"{where.rstrip('.')} must be an object")

    def number(self, key: str, default: float = 0.0, *, most: float = math.inf) -> float:
        """Read a number, `default` when absent."""
        value = self._get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            self._problem(key, f"must be a number from 0 to {most}")
            return default
        return float(value)

    def optional_count(self, key: str) -> int | None:
        """Read a whole number, None when absent."""
        value = self._get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
            return value
        self._problem(key, "must be a whole number, 0 or more")
        return None

    def text(self, key: str, default: str = "") -> str:
        """Read a string."""
        value = self._get(key)
        if value is not None and not isinstance(value, str):
            self._problem(key, "must be a string")
        return value if isinstance(value, str) else default

    def flag(self, key: str) -> bool:
        """Read a truth value, false when absent."""
        value = self._get(key)
        if value is not None and not isinstance(value, bool):
            self._problem(key, "must be true or false")
        return value is True

    def mapping(self, key: str) -> Mapping[str, object]:
        """Read an object, empty when absent."""
        value = self._get(key)
        if value is None:
            return {}
        found = as_dict(value)
        if found is None:
            self._problem(key, "must be an object")
        return found or {}

    def nested(self, key: str, read: Callable[[Reader], T]) -> T | None:
        """Read an object by `read`, None when absent."""
        if self._get(key) is None:
            return None
        inner = Reader(self.mapping(key), f"{self._where}{key}.", self._problems)
        value = read(inner)
        inner.done()
        return value

    def delay(self, key: str) -> Delay | None:
        """Read a delay: a number, or an object of low and high or median and sigma."""
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            fixed = self.number(key)
            return Delay(fixed, fixed)
        inner = Reader(as_dict(value), f"{self._where}{key}.", self._problems)
        low = inner.number("median") if "median" in value else inner.number("low")
        delay = Delay(low, inner.number("high", low), inner.number("sigma"))
        if delay.high < delay.low or (delay.sigma > 0 and delay.low == 0):
            self._problem(key, "needs high >= low, and a median above 0 with sigma")
        inner.done()
        return delay

    def times(self) -> Times:
        """Read count and rate of the object itself."""
        rate = self.number("rate", most=1.0) if self.raw.get("rate") is not None else None
        self._known.update(("rate", "count"))
        return Times(self.optional_count("count"), rate)

    def numbers(self, key: str, *, known: Iterable[str] = ()) -> Mapping[str, float]:
        """Read an object of numbers; its keys are among `known`, if any are named."""
        inner = Reader(self.mapping(key), f"{self._where}{key}.", self._problems)
        allowed = frozenset(known)
        found = {name: inner.number(name) for name in inner.raw if not allowed or name in allowed}
        inner.done()
        return found

    def counts(self, key: str, *, known: Iterable[str] = ()) -> Mapping[str, int]:
        """Read an object of whole numbers; its keys are among `known`, if any are named."""
        inner = Reader(self.mapping(key), f"{self._where}{key}.", self._problems)
        allowed = frozenset(known)
        found = {name: inner.optional_count(name) or 0 for name in inner.raw if not allowed or name in allowed}
        inner.done()
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        """Read a list of strings, empty when absent."""
        value = self._get(key)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            self._problem(key, "must be a list of strings")
            return ()
        return tuple(value)

    def share_or_texts(self, key: str) -> Share:
        """Read a share from 0 to 1, or a list of strings."""
        if isinstance(self.raw.get(key), list | tuple):
            return frozenset(self.texts(key))
        return self.number(key, most=1.0)

    def choice(self, key: str, default: E) -> E:
        """Read one of the words of an enumeration."""
        value = self._get(key)
        if value is None:
            return default
        if value not in list(type(default)):
            self._problem(key, f"must be one of {', '.join(type(default))}")
            return default
        return type(default)(str(value))

    def nested_each(self, key: str, read: Callable[[Reader], T]) -> tuple[T, ...]:
        """Read a list of objects by `read`, empty when absent."""
        value = self._get(key)
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            self._problem(key, "must be a list of objects")
            return ()
        readers = [Reader(as_dict(one), f"{self._where}{key}.{at}.", self._problems) for at, one in enumerate(value)]
        found = tuple(map(read, readers))
        for reader in readers:
            reader.done()
        return found

    def nested_by_name(self, key: str, read: Callable[[Reader], T]) -> Mapping[str, T]:
        """Read an object of objects by `read`; null ones are left out."""
        found = {}
        for name, one in self.mapping(key).items():
            if one is not None:
                reader = Reader(as_dict(one), f"{self._where}{key}.{name}.", self._problems)
                found[name] = read(reader)
                reader.done()
        return found

    def problem(self, key: str, text: str) -> None:
        """Report that a key's value is wrong."""
        self._problem(key, text)

    def done(self) -> None:
        """Report the keys that nobody asked for."""
        for key in self.raw.keys() - self._known:
            self._problem(key, "is not known")

    def _get(self, key: str) -> object:
        self._known.add(key)
        return self.raw.get(key)

    def _problem(self, key: str, text: str) -> None:
        self._problems.append(f"{self._where}{key} {text}")


def as_dict(raw: object) -> Mapping[str, object] | None:
    """Return an object with its keys as strings, None for anything else."""
    return {str(key): value for key, value in raw.items()} if isinstance(raw, Mapping) else None
