"""How much fits into a subnet that is short of addresses.

EC2 refuses a request whole if the subnet has less than it asks for. So after a refusal the subnet is described once, and less is
asked for: what is free, or half of what was refused where the count is no answer. The count says nothing about whole /28s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ipamd.model.blocked import Blocked
from ipamd.model.errors import CloudError, SubnetExhaustedError, log_text
from ipamd.model.growth import AllocateAddresses, CreateEni, Growth, Refusal
from ipamd.model.words import counted
from ipamd.ports import Clock
from ipamd.service.backoff import Retry

PAUSE_FIRST_S = 120.0
PAUSE_MAX_S = 600.0
"""After a subnet had no free address. The first is amazon-vpc-cni-k8s's (pkg/ipamd/ipamd.go, insufficientCidrErrorCooldown), doubled
while it stays empty: each look is one DescribeSubnets. Ours."""

log = logging.getLogger(__name__)


class SubnetRoom:
    """What is known of the subnet's free addresses since EC2 refused for want of them. Used by the pool's thread."""

    def __init__(self, *, clock: Clock, free_count: Callable[[Growth], int]) -> None:
        """`free_count` asks EC2 about the subnet of an action. Raises: CloudError."""
        self._clock = clock
        self._free_count = free_count
        self._retry = Retry(first_s=PAUSE_FIRST_S, max_s=PAUSE_MAX_S)
        self._count: int | None = None
        self._reason = ""
        self._next_step = ""

    def refused(self, action: Growth, error: SubnetExhaustedError) -> None:
        """Learn from a refusal: what is free according to EC2, or half of what it refused if the count should have been enough."""
        asked = _needs(action)
        told = self._told(action) if self._count is None else self._count
        self._know(told if 0 <= told < asked else asked // 2, error)

    def look(self, action: Growth) -> bool:
        """Once a lesson has run out, ask for the count before asking for addresses. Returns: whether less fits than was planned."""
        if self._count is None or not self._retry.is_due(now_s=self._clock.monotonic()):
            return False
        told = self._told(action)
        if told < 0 or told >= _needs(action):
            self._count = None
            return False
        self._know(told, None)
        return True

    def note(self, count: int, reason: str) -> None:
        """Learn without a refusal that too little is free; what is known already stays."""
        if self.count() is None:
            self._reason, self._next_step = reason, "delete unused ENIs in the subnet, or use another one"
            self._know(count, None)

    def took(self, action: Growth) -> None:
        """Count what an action took."""
        if self._count is not None:
            self._count = max(self._count - _needs(action), 0)
            self._retry.shorten()

    def count(self) -> int | None:
        """Addresses that may be asked for; None if EC2 has not refused, or that is long ago."""
        return None if self._retry.is_due(now_s=self._clock.monotonic()) else self._count

    def refusal(self) -> Refusal | None:
        """Why there is no room, while there is less than a new ENI needs."""
        left_s = self._retry.left_s(now_s=self._clock.monotonic())
        if self._count is None or not left_s:
            return None
        reason = f"{self._reason}; {counted(self._count, 'address')} left of it"
        return Refusal(reason, self._next_step, left_s, is_lasting=True, kind=Blocked.SUBNET_FULL)

    def _know(self, count: int, error: SubnetExhaustedError | None) -> None:
        log.info("the subnet has room for %s", counted(count, "address"))
        self._count = count
        self._retry.put_off(now_s=self._clock.monotonic())
        if error is not None:
            self._reason, self._next_step = error.cause, error.next_step

    def _told(self, action: Growth) -> int:
        """Free addresses of the action's subnet, -1 if EC2 does not say."""
        try:
            return self._free_count(action)
        except CloudError as error:
            log.info("the subnet's free addresses are not known: %s", log_text(error))
            return -1


def _needs(action: Growth) -> int:
    """Addresses of the subnet that an action takes, a new ENI's primary address included; prefixes are not counted."""
    match action:
        case AllocateAddresses(count=count):
            return count
        case CreateEni(address_count=count):
            return count + 1
        case _:
            return 0
