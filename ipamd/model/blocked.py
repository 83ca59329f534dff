"""Name, by one word of a closed list, the reason why a pod got no address; the word is a metric's label. Pure.

`GrowthRefusal` (`growth_state.py`) has the reason as a sentence for people.
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
    """The reason why a pod got no address.

    MAX_PODS: the pool has as many addresses as maxPods allows (VPC_IPAMD_MAX_PODS, or the limit of the instance type).
    NODE_FULL: every ENI that the node may have, or that the pool may have as its share, is attached, and all their slots are taken.
    SUBNET_FULL: the subnet has no free address or prefix.
    SUBNET_CHOICE: no subnet may have a new ENI.
    ENI_LIMIT: EC2 takes no more addresses on the ENI, or no more ENIs on the instance.
    QUOTA: the account's quota of ENIs is used up.
    DENIED: IAM, or EC2 itself, does not allow the call.
    THROTTLED: EC2 throttles.
    FROZEN: the pool is frozen.
    HOST_ROUTING: the host's routing of an attached ENI is not in place.
    ERROR: any other error.
    EGRESS: the pool has a free address, but the range for egress has none.
    UNDELETED: earlier sandboxes of pods hold addresses, because no DEL came for them.
    GROWING: the pool grows, but the address would come after the caller's deadline.
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
