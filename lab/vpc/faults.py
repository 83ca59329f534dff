"""What goes wrong in the simulated cloud, on purpose.

One object holds all faults; the EC2 and metadata servers ask it at every call. `apply` takes a JSON-able dict:

    {"apis": {"AssignPrivateIpAddresses": {fields below}, "*": {every EC2 API}, "imds": {instance metadata}},
     "attach": {"vanishes": false, "stuck_s": 30, "count": 1}, "interface_quota": 5,
     "unreachable": {"ec2": "refuse", "imds": "hang"}}

    latency_s         before the call takes effect: seconds, {"low", "high"} uniform, {"median", "sigma"} log-normal
    answer_latency_s  the same, after it took effect (a client that gives up in between does not know)
    throttle          {"rate_per_s", "burst"}: token bucket, RequestLimitExceeded when empty
    error             {"code", "message", "status", "count" | "rate"}: the next `count` calls, or a share `rate` of them
    lost_answers      {"count" | "rate"}: the call takes effect, then the connection is cut
    hang              true: no effect and no answer until the fault is cleared; then the connection is cut
    lag_s             Describe APIs and imds: answer from the state as of that many seconds ago

A given entry replaces the one of that name; null or {} clears it. "*" and an API's own entry both count. A wrong spec
is refused whole, with every problem named.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from lab.vpc.errors import Ec2Error, request_limit
from lab.vpc.fault_spec import ApiFault, AttachFault, Delay, ErrorFault, FaultSpecError, Reach, Throttle, Times, parse

__all__ = ["AttachFault", "FaultSpecError", "Faults", "Reach", "Verdict"]

IMDS = "imds"
_USUAL_STATUS = {  # EC2 "Error codes" page: server errors; and the client errors that are not 400
    "InternalError": 500,
    "InternalFailure": 500,
    "RequestLimitExceeded": 503,
    "ServiceUnavailable": 503,
    "Unavailable": 503,
    "AuthFailure": 401,
    "UnauthorizedOperation": 403,
}


@dataclass(frozen=True)
class Verdict:
    """What happens to one call."""

    latency_s: float = 0.0
    answer_latency_s: float = 0.0
    error: Ec2Error | None = None
    loses_answer: bool = False


class Faults:
    """All faults in force. Thread-safe; its lock is a leaf."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, seed: int = 0) -> None:
        self._clock = clock
        self._rng = Random(seed)
        self._lock = threading.Lock()
        self._apis: dict[str, _Live] = {}
        self._attach: AttachFault | None = None
        self._attach_times: _Counter | None = None
        self._interface_quota: int | None = None
        self._reach: dict[str, Reach] = {}
        self._specs: dict[str, object] = {}
        self._listeners: list[Callable[[], None]] = []

    def apply(self, spec: Mapping[str, object]) -> None:
        """Put faults in force; what the spec does not name stays. Raises: FaultSpecError, and nothing is changed."""
        parsed = parse(spec)
        with self._lock:
            for name, fault in parsed.apis.items():
                self._apis.pop(name, None)
                if fault is not None:
                    self._apis[name] = _Live(fault, self._clock())
            if "attach" in parsed.changes:
                attach = parsed.changes["attach"]
                self._attach = attach if isinstance(attach, AttachFault) else None
                self._attach_times = _Counter(self._attach.times) if self._attach else None
            if "interface_quota" in parsed.changes:
                quota = parsed.changes["interface_quota"]
                self._interface_quota = quota if isinstance(quota, int) else None
            self._reach.update(parsed.unreachable)
            for key, value in spec.items():
                old = self._specs.get(key)
                merged = {**old, **value} if isinstance(old, Mapping) and isinstance(value, Mapping) else value
                self._specs[key] = merged if key in ("apis", "unreachable") else value
        self._tell()

    def clear(self) -> None:
        """Remove every fault."""
        with self._lock:
            self._apis.clear()
            self._attach = self._attach_times = self._interface_quota = None
            self._reach.clear()
            self._specs.clear()
        self._tell()

    def as_dict(self) -> dict[str, object]:
        """Return what was applied since the last clear, for display."""
        with self._lock:
            return dict(self._specs)

    def decide(self, api: str) -> Verdict:
        """Judge one call now; counts and tokens are used up by it."""
        with self._lock:
            live = self._entries(api)
            latency_s = sum(_draw(entry.fault.latency, self._rng) for entry in live)
            answer_latency_s = sum(_draw(entry.fault.answer_latency, self._rng) for entry in live)
            error: Ec2Error | None = None
            for entry in live:
                if error is None and not entry.admits(self._clock()):
                    error = request_limit()
                if error is None:
                    error = entry.strike(self._rng)
            loses = any(entry.lost is not None and entry.lost.strikes(self._rng) for entry in live)
            return Verdict(latency_s, answer_latency_s, error, loses)

    def hangs(self, api: str) -> bool:
        """Whether a call of that API is never answered."""
        with self._lock:
            return any(entry.fault.hang for entry in self._entries(api))

    def lag_s(self, api: str) -> float:
        """How old the state is that an API shows."""
        with self._lock:
            return max((entry.fault.lag_s for entry in self._entries(api)), default=0.0)

    def reach(self, server: str) -> Reach:
        """Whether the server `ec2` or `imds` can be reached."""
        with self._lock:
            return self._reach.get(server, Reach.OPEN)

    @property
    def interface_quota(self) -> int | None:
        """How many ENIs the account may have."""
        with self._lock:
            return self._interface_quota

    def take_attach_fault(self) -> AttachFault | None:
        """Return what goes wrong with the attachment now accepted; a count is used up by it."""
        with self._lock:
            if self._attach is None or self._attach_times is None or not self._attach_times.strikes(self._rng):
                return None
            return self._attach

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every apply and clear."""
        with self._lock:
            self._listeners.append(listener)

    def off_change(self, listener: Callable[[], None]) -> None:
        """Stop calling `listener`; nothing if it is not called anyway."""
        with self._lock:
            self._listeners = [kept for kept in self._listeners if kept != listener]

    def _tell(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def _entries(self, api: str) -> list[_Live]:
        names = (api,) if api == IMDS else ("*", api)
        return [self._apis[name] for name in names if name in self._apis]


class _Counter:
    """How often a fault still strikes."""

    def __init__(self, times: Times) -> None:
        self._left = times.count
        self._rate = times.rate

    def strikes(self, rng: Random) -> bool:
        if self._left == 0 or (self._rate is not None and rng.random() >= self._rate):
            return False
        if self._left is not None:
            self._left -= 1
        return True


class _Live:
    """One ApiFault with its counters and its bucket."""

    def __init__(self, fault: ApiFault, now: float) -> None:
        self.fault = fault
        self.lost = _Counter(fault.lost_answers) if fault.lost_answers else None
        self._error = _Counter(fault.error.times) if fault.error else None
        self._tokens = float(fault.throttle.burst) if fault.throttle else 0.0
        self._filled_at = now

    def admits(self, now: float) -> bool:
        """Take a token; False when there is none."""
        throttle: Throttle | None = self.fault.throttle
        if throttle is None:
            return True
        gained = (now - self._filled_at) * throttle.rate_per_s
        self._tokens = min(float(throttle.burst), self._tokens + gained)
        self._filled_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def strike(self, rng: Random) -> Ec2Error | None:
        """Return the injected error of this call, if any."""
        error: ErrorFault | None = self.fault.error
        if error is None or self._error is None or not self._error.strikes(rng):
            return None
        status = error.status or _USUAL_STATUS.get(error.code, 400)
        return Ec2Error(error.code, error.message, status=status)


def _draw(delay: Delay | None, rng: Random) -> float:
    return delay.draw(rng) if delay is not None else 0.0
