"""Every retry of this package, as tenacity values: a stop, a full-jitter wait, a named set of exceptions.

Full jitter spreads the nodes of a cluster that fail at one moment (AWS Architecture Blog, "Exponential backoff and
jitter"). botocore's own retries are off, and a policy is applied at exactly one place (`BotoEc2._call`, `ImdsMetadata._get`),
so nothing retries a retry. The time limit is read from the injected clock: tenacity's own stop uses the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from ipamd.cloud.errors import BusyAttempt, ThrottledAttempt, UnansweredAttempt, UnseenAttempt, UnsentAttempt
from ipamd.ports import Clock

FIRST_WAIT_S = 0.2
"""Upper end of the first wait. Source: upstream_reference 2.12 (detach 200 ms, doubled)."""

WAIT_CAP_S = 5.0
"""Upper end of every wait. Ours: the incumbent's 60 s outlasts any caller; the call budget does the slowing down."""


@dataclass(frozen=True)
class RetryPolicy:
    """When to try again: on which exceptions, how often, for how long, after which waits."""

    on: tuple[type[Exception], ...]
    attempts: int
    total_s: float
    first_wait_s: float = FIRST_WAIT_S
    wait_cap_s: float = WAIT_CAP_S

    def retrying(self, clock: Clock, sleep: Callable[[float], None]) -> Retrying:
        """Make tenacity's object for one call; the last exception is raised as it is."""
        deadline = clock.monotonic() + self.total_s

        def is_late(_: RetryCallState) -> bool:
            return clock.monotonic() >= deadline

        return Retrying(
            retry=retry_if_exception_type(self.on),
            wait=wait_random_exponential(multiplier=self.first_wait_s, max=self.wait_cap_s),
            stop=lambda state: stop_after_attempt(self.attempts)(state) or is_late(state),
            sleep=sleep,
            reraise=True,
        )


IDEMPOTENT = RetryPolicy((ThrottledAttempt, UnsentAttempt, UnansweredAttempt, UnseenAttempt), attempts=6, total_s=30.0)
"""Calls that may be sent twice: Describe, Create with its token, Attach, Unassign. Ours: 6 tries wait 3 s on
average and 6 s at most, which a blip survives; the pool loop comes back by itself after that."""

AT_MOST_ONCE = RetryPolicy((ThrottledAttempt, UnsentAttempt, UnseenAttempt), attempts=6, total_s=30.0)
"""AssignPrivateIpAddresses has no client token: after a lost answer, only Describe may say what happened."""

SETTLING = RetryPolicy((*IDEMPOTENT.on, BusyAttempt), attempts=40, total_s=60.0)
"""Detach, Delete and Modify while another attach or detach is under way. Ours: detaches take seconds, and the incumbent's 303 s
(upstream_reference 2.12) hold its whole pool loop; an open intent brings us back later (I9)."""

HURRIED = RetryPolicy((), attempts=1, total_s=0.0)
"""Where a good answer is at hand without EC2: instance limits at start (design 6)."""


class NotAttachedYet(Exception):
    """EC2 described the ENI, and its attachment is still under way."""


ATTACHING = RetryPolicy((NotAttachedYet,), attempts=40, total_s=60.0, wait_cap_s=2.0)
"""Waiting for an attachment, one Describe per look. Ours: attaches take 1 to 10 s; the incumbent waits up to 162 s at worst
(upstream_reference 2.12), we come back through the open intent."""
