"""One refusal of EC2 and for how long it is believed."""

from __future__ import annotations

from dataclasses import dataclass, field

from ipamd.core.backoff import Retry
from ipamd.model.errors import CloudError, log_text
from ipamd.model.growth import Blocked, Refusal, blocked_by

DENIED_PAUSE_FIRST_S = 600.0
DENIED_PAUSE_MAX_S = 3600.0
"""After IAM or the account's quota refused: a person changes it, and then waits for us. Ours."""

ERROR_PAUSE_FIRST_S = 1.0
ERROR_PAUSE_MAX_S = 60.0
"""Doubling pause after any other EC2 error. Ours; amazon-vpc-cni-k8s pauses a minute at most too (pkg/ipamd/ipamd.go)."""


@dataclass(slots=True)
class Lesson:
    """One refusal that is in force until a monotonic deadline; learned again, it lasts twice as long, up to a bound."""

    first_s: float
    max_s: float
    is_lasting: bool = False
    reason: str = ""
    next_step: str = ""
    kind: Blocked = Blocked.ERROR
    value: int = 0
    _retry: Retry = field(init=False)

    def __post_init__(self) -> None:
        self._retry = Retry(first_s=self.first_s, max_s=self.max_s)

    @property
    def deadline(self) -> float:
        """Monotonic point until which it is in force."""
        return self._retry.deadline

    def learn(self, error: BaseException, *, now_s: float, value: int = 0, reason: str = "") -> None:
        """Put it in force."""
        self.reason = reason or (error.cause if isinstance(error, CloudError) else log_text(error))
        self.kind = blocked_by(error)
        self.next_step = error.next_step if isinstance(error, CloudError) else ""
        self.value = value
        self._retry.put_off(now_s=now_s)

    def learn_once(self, error: BaseException, *, now_s: float) -> None:
        """Put it in force unless it is: what is refused for several objects at a time is one refusal."""
        if self._retry.is_due(now_s=now_s):
            self.learn(error, now_s=now_s)

    def forget(self) -> None:
        """End it for good: what it was about has succeeded."""
        self._retry.end()

    def left_s(self, *, now_s: float) -> float:
        """Seconds for which it is in force still; 0.0 if it is not."""
        return self._retry.left_s(now_s=now_s)

    def refusal(self, *, now_s: float) -> Refusal | None:
        """What it says, while it is in force."""
        left_s = self._retry.left_s(now_s=now_s)
        return Refusal(self.reason, self.next_step, left_s, self.is_lasting, self.kind) if left_s else None


def error_pause() -> Lesson:
    """What any error teaches that says nothing else."""
    return Lesson(ERROR_PAUSE_FIRST_S, ERROR_PAUSE_MAX_S)


def denial() -> Lesson:
    """What a denial teaches."""
    return Lesson(DENIED_PAUSE_FIRST_S, DENIED_PAUSE_MAX_S, is_lasting=True)
