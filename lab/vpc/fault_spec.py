"""The faults of the simulated cloud as values, and the functions that read them from a JSON-able dict.

`lab/vpc/faults.py` describes the format. Reading is strict: a misspelt fault is not ignored, and all problems are reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lab.vpc.account import LargeAccount, read_large_account
from lab.vpc.iam import Denial, read_denial
from lab.vpc.lies import BY_ID, Lies, read_lies
from lab.vpc.rules import Rules, read_rules
from lab.vpc.spec_reader import Delay, FaultSpecError, Reader, Times, as_dict

IMDS = "imds"


class Reach(StrEnum):
    """How a server treats connections: it serves them (OPEN), refuses them (REFUSE), or accepts them and never answers (HANG)."""

    OPEN = "open"
    REFUSE = "refuse"
    HANG = "hang"


@dataclass(frozen=True)
class Throttle:
    """A token bucket."""

    rate_per_s: float
    burst: int


@dataclass(frozen=True)
class ErrorFault:
    """An error answer instead of the effect of a call. `status`: the HTTP status; None for the usual status of the code."""

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
    """All faults of one API; `lab/vpc/faults.py` describes the fields."""

    latency: Delay | None = None
    answer_latency: Delay | None = None
    throttle: Throttle | None = None
    error: ErrorFault | None = None
    lost_answers: Times | None = None
    hang: bool = False
    lag_s: float = 0.0
    frozen: bool = False
    absent: tuple[str, ...] = ()


@dataclass(frozen=True)
class SubnetFault:
    """The faults of one subnet.

    `leave`: number of addresses that stay free; None for all.
    `fragmented`: whether no aligned /28 is free, although single addresses are free.
    `without_ipv6_prefixes`: whether no /80 is free.
    """

    leave: int | None = None
    fragmented: bool = False
    without_ipv6_prefixes: bool = False


@dataclass(frozen=True)
class Conditions:
    """The faults of the cloud as a whole. The default is a cloud without faults. Each field is a key of the spec, which
    `lab/vpc/faults.py` describes."""

    attach: AttachFault | None = None
    interface_quota: int | None = None
    describe: Lies | None = None
    unseen: Mapping[str, int] | None = None
    iam: tuple[Denial, ...] | None = None
    rules: Rules | None = None
    large_account: LargeAccount | None = None
    account_limits: float | None = None
    subnets: Mapping[str, SubnetFault] | None = None
    volumes: Mapping[str, int] | None = None


@dataclass(frozen=True)
class FaultSpec:
    """The changes of one `apply`. The value None clears an entry, and an entry that is absent is not changed."""

    apis: Mapping[str, ApiFault | None]
    changes: Mapping[str, object]
    unreachable: Mapping[str, Reach]


_READERS: Mapping[str, Callable[[Reader], object]] = {
    "attach": lambda top: top.nested("attach", _attach),
    "interface_quota": lambda top: top.optional_count("interface_quota"),
    "describe": lambda top: top.nested("describe", read_lies),
    "unseen": lambda top: top.counts("unseen", known=BY_ID),
    "iam": lambda top: top.nested_each("iam", read_denial),
    "rules": lambda top: top.nested("rules", read_rules),
    "large_account": lambda top: top.nested("large_account", read_large_account),
    "account_limits": lambda top: top.nested("account_limits", lambda inner: inner.number("scale", 1.0)),
    "subnets": lambda top: top.nested_by_name("subnets", _subnet),
    "volumes": lambda top: top.counts("volumes"),
}


def parse(spec: Mapping[str, object]) -> FaultSpec:
    """Read a spec. Raises: FaultSpecError with every problem found."""
    problems: list[str] = []
    top = Reader(spec, "", problems)
    apis: dict[str, ApiFault | None] = {}
    for name, raw in top.mapping("apis").items():
        apis[name] = _api(Reader(as_dict(raw), f"apis.{name}.", problems), name) if raw else None
    changes = {name: read(top) for name, read in _READERS.items() if name in spec}
    unreachable = {name: _reach(name, raw, problems) for name, raw in top.mapping("unreachable").items()}
    top.done()
    if problems:
        raise FaultSpecError("the fault spec is wrong: " + "; ".join(problems))
    return FaultSpec(apis, changes, unreachable)


def _api(reader: Reader, name: str) -> ApiFault:
    fault = ApiFault(
        latency=reader.delay("latency_s"),
        answer_latency=reader.delay("answer_latency_s"),
        throttle=reader.nested("throttle", _throttle),
        error=reader.nested("error", _error),
        lost_answers=reader.nested("lost_answers", Reader.times),
        hang=reader.flag("hang"),
        lag_s=reader.number("lag_s"),
        frozen=reader.flag("frozen"),
        absent=reader.texts("absent"),
    )
    if name != IMDS and (fault.frozen or fault.absent):
        reader.problem("frozen, absent", f"are for {IMDS} only")
    reader.done()
    return fault


def _throttle(reader: Reader) -> Throttle:
    return Throttle(reader.number("rate_per_s"), int(reader.number("burst", 1)))


def _error(reader: Reader) -> ErrorFault:
    code = reader.text("code", "InternalError")
    message = reader.text("message", "Injected by the lab.")
    return ErrorFault(code, message, reader.optional_count("status"), reader.times())


def _attach(reader: Reader) -> AttachFault:
    return AttachFault(reader.number("stuck_s"), reader.flag("vanishes"), reader.times())


def _subnet(reader: Reader) -> SubnetFault:
    return SubnetFault(reader.optional_count("leave"), reader.flag("fragmented"), reader.flag("without_ipv6_prefixes"))


def _reach(name: str, raw: object, problems: list[str]) -> Reach:
    if name not in ("ec2", IMDS) or (raw is not None and raw not in list(Reach)):
        problems.append(f"unreachable.{name}={raw} is not one of ec2, {IMDS} with {', '.join(Reach)} or null")
        return Reach.OPEN
    return Reach(str(raw)) if raw is not None else Reach.OPEN
