"""Read a JSON-able dict strictly: unknown keys are problems too, so that no misspelt fault is ignored, and all problems are reported
at once."""

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
Share = float | frozenset[str]  # the share of all objects, from 0 to 1, or the names of single objects


class FaultSpecError(LabError):
    """The argument of `Faults.apply` is wrong. The message lists every problem."""


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
    """Decides at each call whether a fault strikes, and counts. Not thread-safe: the caller (`Faults`) holds its lock."""

    def __init__(self, times: Times) -> None:
        self._left = times.count
        self._rate = times.rate

    def strikes(self, rng: Random) -> bool:
        """Whether the fault strikes now. If so, this uses up a count."""
        if self._left == 0 or (self._rate is not None and rng.random() >= self._rate):
            return False
        if self._left is not None:
            self._left -= 1
        return True


class Reader:
    """Reads the values of one dict. It records which keys were read, and appends problems to a list."""

    def __init__(self, raw: Mapping[str, object] | None, where: str, problems: list[str]) -> None:
        self.raw = raw if raw is not None else {}
        self._where = where
        self._problems = problems
        self._known: set[str] = set()
        if raw is None:
            problems.append(f"{where.rstrip('.')} must be an object")

    def number(self, key: str, default: float = 0.0, *, most: float = math.inf) -> float:
        """Read a number from 0 to `most`; `default` if it is absent."""
        value = self._get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            self._problem(key, f"must be a number from 0 to {most}")
            return default
        return float(value)

    def optional_count(self, key: str) -> int | None:
        """Read a whole number; None if it is absent."""
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
        """Read a truth value; false if it is absent."""
        value = self._get(key)
        if value is not None and not isinstance(value, bool):
            self._problem(key, "must be true or false")
        return value is True

    def mapping(self, key: str) -> Mapping[str, object]:
        """Read an object; an empty one if it is absent."""
        value = self._get(key)
        if value is None:
            return {}
        read = as_dict(value)
        if read is None:
            self._problem(key, "must be an object")
        return read or {}

    def nested(self, key: str, read: Callable[[Reader], T]) -> T | None:
        """Read an object by `read`; None if it is absent."""
        if self._get(key) is None:
            return None
        inner = Reader(self.mapping(key), f"{self._where}{key}.", self._problems)
        value = read(inner)
        inner.done()
        return value

    def delay(self, key: str) -> Delay | None:
        """Read a delay: a number, an object with low and high, or an object with median and sigma."""
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
        """Read the keys `count` and `rate` of this object."""
        rate = self.number("rate", most=1.0) if self.raw.get("rate") is not None else None
        self._known.update(("rate", "count"))
        return Times(self.optional_count("count"), rate)

    def numbers(self, key: str, *, known: Iterable[str] = ()) -> Mapping[str, float]:
        """Read an object whose values are numbers. `known`: the keys that it may have; empty: any."""
        inner = Reader(self.mapping(key), f"{self._where}{key}.", self._problems)
        allowed = frozenset(known)
        found = {name: inner.number(name) for name in inner.raw if not allowed or name in allowed}
        inner.done()
        return found

    def counts(self, key: str, *, known: Iterable[str] = ()) -> Mapping[str, int]:
        """Read an object whose values are whole numbers. `known`: the keys that it may have; empty: any."""
        inner = Reader(self.mapping(key), f"{self._where}{key}.", self._problems)
        allowed = frozenset(known)
        found = {name: inner.optional_count(name) or 0 for name in inner.raw if not allowed or name in allowed}
        inner.done()
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        """Read a list of strings; an empty one if it is absent."""
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
        """Read a value of the enumeration to which `default` belongs; `default` if it is absent."""
        value = self._get(key)
        if value is None:
            return default
        if value not in list(type(default)):
            self._problem(key, f"must be one of {', '.join(type(default))}")
            return default
        return type(default)(str(value))

    def nested_each(self, key: str, read: Callable[[Reader], T]) -> tuple[T, ...]:
        """Read a list of objects by `read`; an empty one if it is absent."""
        value = self._get(key)
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            self._problem(key, "must be a list of objects")
            return ()
        readers = [Reader(as_dict(item), f"{self._where}{key}.{at}.", self._problems) for at, item in enumerate(value)]
        values = tuple(map(read, readers))
        for reader in readers:
            reader.done()
        return values

    def nested_by_name(self, key: str, read: Callable[[Reader], T]) -> Mapping[str, T]:
        """Read an object whose values are objects, each by `read`. Entries with the value null are left out."""
        values = {}
        for name, raw in self.mapping(key).items():
            if raw is not None:
                reader = Reader(as_dict(raw), f"{self._where}{key}.{name}.", self._problems)
                values[name] = read(reader)
                reader.done()
        return values

    def problem(self, key: str, text: str) -> None:
        """Report that a key's value is wrong."""
        self._problem(key, text)

    def done(self) -> None:
        """Report the keys that were not read: they are unknown."""
        for key in self.raw.keys() - self._known:
            self._problem(key, "is not known")

    def _get(self, key: str) -> object:
        self._known.add(key)
        return self.raw.get(key)

    def _problem(self, key: str, text: str) -> None:
        self._problems.append(f"{self._where}{key} {text}")


def as_dict(raw: object) -> Mapping[str, object] | None:
    """Return a mapping with its keys converted to strings; None if the value is no mapping."""
    return {str(key): value for key, value in raw.items()} if isinstance(raw, Mapping) else None
