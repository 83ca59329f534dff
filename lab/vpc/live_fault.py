"""The faults of one API while they are in force, with the remaining counts and the tokens of their bucket."""

from __future__ import annotations

from random import Random

from lab.vpc.account import Bucket
from lab.vpc.errors import Ec2Error
from lab.vpc.fault_spec import ApiFault, ErrorFault
from lab.vpc.spec_reader import Counter, Delay

_USUAL_STATUS = {  # of server errors, and of client errors without the usual 400 (EC2 "Error codes" page)
    "InternalError": 500,
    "InternalFailure": 500,
    "RequestLimitExceeded": 503,
    "ServiceUnavailable": 503,
    "Unavailable": 503,
    "AuthFailure": 401,
    "RequestExpired": 400,
    "UnauthorizedOperation": 403,
}


class Live:
    """One ApiFault with its counters and its bucket. Not thread-safe: the caller (`Faults`) holds its lock."""

    def __init__(self, fault: ApiFault, now: float) -> None:
        self.fault = fault
        self.lost = Counter(fault.lost_answers) if fault.lost_answers else None
        self._error = Counter(fault.error.times) if fault.error else None
        self._bucket = Bucket(fault.throttle.rate_per_s, fault.throttle.burst, now) if fault.throttle else None

    def admits(self, now: float) -> bool:
        """Take a token; False when there is none."""
        return self._bucket is None or self._bucket.admits(now)

    def strike(self, rng: Random) -> Ec2Error | None:
        """Return the injected error of this call, if any."""
        error: ErrorFault | None = self.fault.error
        if error is None or self._error is None or not self._error.strikes(rng):
            return None
        status = error.status or _USUAL_STATUS.get(error.code, 400)
        return Ec2Error(error.code, error.message, status=status)


def draw(delay: Delay | None, rng: Random) -> float:
    """Draw a delay in seconds; 0 if there is no delay."""
    return delay.draw(rng) if delay is not None else 0.0
