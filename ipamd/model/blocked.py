"""Name the reason why there is no address by one word of a closed list, for a metric's label. Pure.

`GrowthRefusal` has the sentence for people.
"""

from __future__ import annotations

from enum import StrEnum

from ipamd.model.errors import (
    CloudDeniedError,
    CloudQuotaError,
    EniLimitError,
    SubnetChoiceError,
    SubnetExhaustedError,
    ThrottledError,
)


class Blocked(StrEnum):
    """The reason why the pool does not grow.

    GROWING: it does grow, but the address would come after the caller's deadline.
    EGRESS: the pool has an address, and the range for egress has none.
    UNDELETED: earlier sandboxes of pods hold addresses, because no DEL came for them.
    """

    MAX_PODS = "max-pods"
    NODE_FULL = "node-full"
    SUBNET_FULL = "subnet-full"
    SUBNET_CHOICE = "subnet-choice"
    ENI_LIMIT = "eni-limit"
    QUOTA = "quota"
    DENIED = "denied"
    THROTTLED = "throttled"
    FROZEN = "frozen"
    HOST_ROUTING = "host-routing"
    ERROR = "error"
    EGRESS = "egress"
    UNDELETED = "undeleted-sandboxes"
    GROWING = "growing"


_BY_ERROR: tuple[tuple[type[BaseException], Blocked], ...] = (
    (ThrottledError, Blocked.THROTTLED),
    (SubnetExhaustedError, Blocked.SUBNET_FULL),
    (SubnetChoiceError, Blocked.SUBNET_CHOICE),
    (EniLimitError, Blocked.ENI_LIMIT),
    (CloudQuotaError, Blocked.QUOTA),
    (CloudDeniedError, Blocked.DENIED),
)


def blocked_by(error: BaseException) -> Blocked:
    """Return the word for an error of EC2 or of our own that stopped growth."""
    for error_type, word in _BY_ERROR:
        if isinstance(error, error_type):
            return word
    return Blocked.ERROR
