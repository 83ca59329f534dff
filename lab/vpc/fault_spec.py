"""The faults that can be asked of the simulated cloud, as values, and their reading from a JSON-able dict.

`lab/vpc/faults.py` draws the format. Reading is strict: every problem is found and reported at once, so that a misspelt
fault does not silently test nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import TypeVar

from lab.errors import LabError

T = TypeVar("T")


class FaultSpecError(LabError):
    """The dict given to Faults.apply is wrong; the message lists every problem."""


class Reach(StrEnum):
    """Whether a server can be reached at all."""

    OPEN = "open"
    REFUSE = "refuse"
    HANG = "hang"


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


@dataclass(frozen=True)
class Throttle:
    """A token bucket."""

    rate_per_s: float
    burst: int


@dataclass(frozen=True)
class ErrorFault:
    """An error answer instead of the effect; `status` None means the usual one of the code."""

    code: str
    message: str
    status: int | None
    times: Times


@dataclass(frozen=True)
class AttachFault:
    """Accepted attachments that go wrong: they stay `attaching` for `stuck_s`, and vanish then if `vanishes`."""

    stuck_s: float = 0.0
    vanishes: bool = False
    times: Times = field(default_factory=Times)


@dataclass(frozen=True)
class ApiFault:
    """Everything that is wrong with one API."""

    latency: Delay | None = None
    answer_latency: Delay | None = None
    throttle: Throttle | None = None
    error: ErrorFault | None = None
    lost_answers: Times | None = None
    hang: bool = False
    lag_s: float = 0.0


@dataclass(frozen=True)
class FaultSpec:
    """What one `apply` changes. A None value clears that entry; a key that is absent leaves things as they are."""

    apis: Mapping[str, ApiFault | None]
    changes: Mapping[str, AttachFault | int | None]
    unreachable: Mapping[str, Reach]


def parse(spec: Mapping[str, object]) -> FaultSpec:
    """Read a spec. Raises: FaultSpecError with every problem found."""
    problems: list[str] = []
    top = _Reader(spec, "", problems)
    apis: dict[str, ApiFault | None] = {}
    for name, raw in top.mapping("apis").items():
        apis[name] = _api(_Reader(_dict(raw), f"apis.{name}.", problems)) if raw else None
    changes: dict[str, AttachFault | int | None] = {}
    if "attach" in spec:
        changes["attach"] = top.nested("attach", _attach)
    if "interface_quota" in spec:
        changes["interface_quota"] = top.optional_count("interface_quota")
    unreachable = {name: top.reach(name, raw) for name, raw in top.mapping("unreachable").items()}
    top.done()
    if problems:
        raise FaultSpecError("the fault spec is wrong: " + "; ".join(problems))
    return FaultSpec(apis, changes, unreachable)


class _Reader:
    """Reads one dict, remembering which keys were asked for and collecting problems."""

    def __init__(self, raw: Mapping[str, object] | None, where: str, problems: list[str]) -> None:
        self._raw = raw if raw is not None else {}
        self._where = where
        self._problems = problems
        self._known: set[str] = set()
        if raw is None:
            problems.append(f"{where.rstrip('.')} must be an object")

    def number(self, key: str, default: float = 0.0, *, most: float = math.inf) -> float:
        value = self._get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            self._problem(key, f"must be a number from 0 to {most}")
            return default
        return float(value)

    def optional_count(self, key: str) -> int | None:
        value = self._get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
            return value
        self._problem(key, "must be a whole number, 0 or more")
        return None

    def text(self, key: str, default: str = "") -> str:
        value = self._get(key)
        if value is not None and not isinstance(value, str):
            self._problem(key, "must be a string")
        return value if isinstance(value, str) else default

    def flag(self, key: str) -> bool:
        value = self._get(key)
        if value is not None and not isinstance(value, bool):
            self._problem(key, "must be true or false")
        return value is True

    def mapping(self, key: str) -> Mapping[str, object]:
        value = self._get(key)
        if value is None:
            return {}
        found = _dict(value)
        if found is None:
            self._problem(key, "must be an object")
        return found or {}

    def nested(self, key: str, read: Callable[[_Reader], T]) -> T | None:
        if self._get(key) is None:
            return None
        inner = _Reader(self.mapping(key), f"{self._where}{key}.", self._problems)
        value = read(inner)
        inner.done()
        return value

    def delay(self, key: str) -> Delay | None:
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            fixed = self.number(key)
            return Delay(fixed, fixed)
        inner = _Reader(_dict(value), f"{self._where}{key}.", self._problems)
        low = inner.number("median") if "median" in value else inner.number("low")
        delay = Delay(low, inner.number("high", low), inner.number("sigma"))
        if delay.high < delay.low or (delay.sigma > 0 and delay.low == 0):
            self._problem(key, "needs high >= low, and a median above 0 with sigma")
        inner.done()
        return delay

    def times(self) -> Times:
        rate = self.number("rate", most=1.0) if self._raw.get("rate") is not None else None
        self._known.update(("rate", "count"))
        return Times(self.optional_count("count"), rate)

    def reach(self, name: str, raw: object) -> Reach:
        if name not in ("ec2", "imds") or (raw is not None and raw not in list(Reach)):
            self._problems.append(f"unreachable.{name}={raw} is not one of ec2, imds with {', '.join(Reach)} or null")
            return Reach.OPEN
        return Reach(str(raw)) if raw is not None else Reach.OPEN

    def done(self) -> None:
        for key in self._raw.keys() - self._known:
            self._problem(key, "is not known")

    def _get(self, key: str) -> object:
        self._known.add(key)
        return self._raw.get(key)

    def _problem(self, key: str, text: str) -> None:
        self._problems.append(f"{self._where}{key} {text}")


def _api(reader: _Reader) -> ApiFault:
    fault = ApiFault(
        latency=reader.delay("latency_s"),
        answer_latency=reader.delay("answer_latency_s"),
        throttle=reader.nested("throttle", _throttle),
        error=reader.nested("error", _error),
        lost_answers=reader.nested("lost_answers", _Reader.times),
        hang=reader.flag("hang"),
        lag_s=reader.number("lag_s"),
    )
    reader.done()
    return fault


def _throttle(reader: _Reader) -> Throttle:
    return Throttle(reader.number("rate_per_s"), int(reader.number("burst", 1)))


def _error(reader: _Reader) -> ErrorFault:
    code = reader.text("code", "InternalError")
    message = reader.text("message", "Injected by the lab.")
    return ErrorFault(code, message, reader.optional_count("status"), reader.times())


def _attach(reader: _Reader) -> AttachFault:
    return AttachFault(reader.number("stuck_s"), reader.flag("vanishes"), reader.times())


def _dict(raw: object) -> Mapping[str, object] | None:
    return {str(key): value for key, value in raw.items()} if isinstance(raw, Mapping) else None
