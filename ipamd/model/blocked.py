"""Why there is no address, as one word of a closed list: the label of a metric. The sentence for people is `Refusal`'s. Pure."""

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
    """What keeps the pool from growing. GROWING: nothing, but the address would come after the caller's deadline."""

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
    """The word for an error of EC2 or of our own that stopped growth."""
    return next((word for kind, word in _BY_ERROR if isinstance(error, kind)), Blocked.ERROR)
