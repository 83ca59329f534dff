"""All retry policies of this package: the outcomes after which to retry, how often and for how long, with waits of full jitter.

Full jitter spreads nodes that fail at the same moment (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
botocore's retries are off, and each policy is applied in one place (`Ec2Calls.attempts`, `BotoEc2.describe_attached_eni`,
`ImdsMetadata.identity`), so no retry is retried. The time limit uses the injected clock, because tenacity's own stop uses the real
one.
"""

from __future__ import annotations

from collections.abc import Callable

from tenacity import Retrying, retry_if_exception, wait_fixed, wait_random_exponential

from ipamd.cloud.errors import AttemptError
from ipamd.model.call_report import CallOutcome
from ipamd.model.record import dataclass
from ipamd.ports.process import Clock

FIRST_WAIT_S = 0.2
"""Upper bound of the first wait. Source: amazon-vpc-cni-k8s pkg/awsutils/awsutils.go, freeENI (detach: 200 ms, doubled)."""

WAIT_CAP_S = 5.0
"""Upper bound of every wait. Ours: amazon-vpc-cni-k8s waits up to 60 s (pkg/awsutils/awsutils.go, maxENIBackoffDelay), but here one
call has at most 60 s for all its attempts. A short bound does no harm, because the call budget (`budget.py`) slows us down."""


@dataclass(frozen=True)
class RetryPolicy:
    """When to retry a call.

    `on`: the outcomes after which to retry.
    `attempts`: the most attempts, including the first.
    `total_s`: an attempt that fails after this long is not followed by another one.
    `first_wait_s`: upper bound of the random wait before the second attempt. It doubles with each attempt, up to `wait_cap_s`.
    `least_wait_s`: seconds that are added to each random wait.
    """

    on: frozenset[CallOutcome]
    attempts: int
    total_s: float
    first_wait_s: float = FIRST_WAIT_S
    wait_cap_s: float = WAIT_CAP_S
    least_wait_s: float = 0.0

    def retrying(self, clock: Clock, sleep: Callable[[float], None]) -> Retrying:
        """Make the tenacity object for one call; the last exception is raised unchanged."""
        deadline = clock.monotonic() + self.total_s
        return Retrying(
            retry=retry_if_exception(lambda failed: isinstance(failed, AttemptError) and failed.outcome in self.on),
            wait=wait_fixed(self.least_wait_s) + wait_random_exponential(multiplier=self.first_wait_s, max=self.wait_cap_s),
            stop=lambda state: state.attempt_number >= self.attempts or clock.monotonic() >= deadline,
            sleep=sleep,
            reraise=True,
        )


PASSING = frozenset({CallOutcome.THROTTLED, CallOutcome.UNSENT, CallOutcome.UNANSWERED, CallOutcome.NOT_FOUND})
"""Outcomes after which the next attempt may succeed. NOT_FOUND: only of an object that we created just now (`calls.py`), or in
metadata, which lags."""

IDEMPOTENT = RetryPolicy(PASSING, attempts=6, total_s=30.0)
"""Calls that may be sent twice: Describe, Create with its token, Attach, Unassign. Ours: 6 attempts wait 3 s on
average and 6 s at most, enough for a short disturbance; after that the pool loop retries."""

UNHURRIED = RetryPolicy(PASSING - {CallOutcome.THROTTLED}, attempts=6, total_s=30.0)
"""A creation that no ADD waits for. If EC2 throttles it, it is retried much later, because other nodes of the account may need EC2's
tokens now."""

AT_MOST_ONCE = RetryPolicy(PASSING - {CallOutcome.UNANSWERED}, attempts=6, total_s=30.0)
"""Calls that must not be repeated after a lost answer. AssignPrivateIpAddresses has no client token, so a repetition could assign
further addresses; only Describe can show what happened."""

SETTLING = RetryPolicy(PASSING | {CallOutcome.BUSY}, attempts=40, total_s=60.0)
"""Detach and Modify while another attach or detach is under way. Ours: detaches take seconds, so a minute is usually
enough. amazon-vpc-cni-k8s retries 12 times, with pauses of up to 60 s (pkg/awsutils/awsutils.go, maxENIEC2APIRetries), and its pool
loop waits all that time. Our pool loop need not wait longer, because the open intent makes it continue later (I9)."""

DELETING = RetryPolicy(SETTLING.on, attempts=20, total_s=60.0, least_wait_s=1.0)
"""Delete of an ENI whose detach is under way: for the same outcomes and as long as SETTLING, but with pauses of at least a second, so
that fewer refused attempts count against the account's limit."""

HURRIED = RetryPolicy(frozenset(), attempts=1, total_s=0.0)
"""One attempt, for a query with a good fallback: instance limits at start (docs/life.md, Start)."""

ATTACHING = RetryPolicy(frozenset({CallOutcome.BUSY}), attempts=40, total_s=60.0, wait_cap_s=2.0)
"""Waiting for an attachment, one Describe per attempt. Ours: attaches take 1 to 10 s, so a minute is usually enough.
amazon-vpc-cni-k8s makes 12 attempts, with pauses of up to 60 s (pkg/awsutils/awsutils.go, waitForENIAndIPsAttached). We need not wait
longer than a minute, because the open intent makes the pool continue later."""
