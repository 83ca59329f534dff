"""Convert botocore's exceptions into errors of our tree, by one table.

The table decides which `CloudError` the caller gets, and the outcome of the attempt, by which `retries.py` decides whether to
repeat it. `AttemptError` never leaves this package. Rejected: matching the exception classes that botocore generates per code,
because EC2's model declares none. Source of the codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html.
Rows with the comment "observed wording" match texts that no documentation of EC2 has.
"""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from typing import TypeVar

from ipamd.cloud.attempt_failure import AttemptFailure
from ipamd.cloud.credential_errors import MissingCredentials, cause
from ipamd.model.call_report import CallOutcome
from ipamd.model.errors import (
    CloudCredentialsError,
    CloudDeniedError,
    CloudError,
    CloudNotFoundError,
    CloudQuotaError,
    DeviceIndexTakenError,
    EniLimitError,
    SubnetExhaustedError,
    ThrottledError,
)
from ipamd.model.failures import FailureCode
from ipamd.model.failures import failure as make_failure
from ipamd.model.record import dataclass
from ipamd.model.words import printable

SERVER_ERROR = 500
"""HTTP status from which the fault is EC2's own and the outcome unknown. Source: RFC 9110, 15.6."""

MESSAGE_MAX = 700
"""Characters of EC2's message that we quote. Ours: a denial names the kind of policy that decided at its end, after role and
resource, and has at most 600. A bound is needed, because other messages are several kilobytes long."""

CODE_MAX = 100
"""Characters of EC2's code that we quote. Ours: the longest has 60."""

ENCODED = "Encoded authorization failure message:"
"""Begins the part of a denial that only `sts:DecodeAuthorizationMessage` can read: the deciding statement and condition. This part is
several kilobytes long, so it is logged once per denial and left out of every error message.
Source: https://docs.aws.amazon.com/STS/latest/APIReference/API_DecodeAuthorizationMessage.html."""

DECODE = (
    "for the statement that decided search the daemon's log for `encoded authorization failure`, and run aws sts "
    "decode-authorization-message --encoded-message with its text"
)

_log = logging.getLogger(__name__)

C = TypeVar("C", bound=CloudError)


class AttemptError(Exception):
    """One HTTP attempt failed; `error` is raised if no retry follows.

    `outcome`: the kind of failure, by which `retries.py` decides. After NOT_FOUND the object may exist, because EC2 is eventually
        consistent. After UNANSWERED the attempt may have taken effect. After BUSY a later attempt may succeed. None: the attempt must
        not be repeated.
    """

    def __init__(self, error: CloudError, outcome: CallOutcome | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.outcome = outcome


@dataclass(frozen=True)
class ErrorRule:
    """One row of the table: the answers of EC2 that it matches, and the error that they become.

    `codes`: EC2's codes; `*` stands for any text.
    `contains`: a part of EC2's message that must occur too, if the code is ambiguous.
    `advice`: what an operator can do.
    """

    codes: tuple[str, ...]
    error: type[CloudError]
    outcome: CallOutcome
    advice: str
    contains: str = ""


RULES = (
    ErrorRule(
        ("RequestLimitExceeded", "Throttl*", "RequestThrottled*", "TooManyRequests*", "EC2ThrottledException", "SlowDown"),
        ThrottledError,
        CallOutcome.THROTTLED,
        "this node makes fewer calls automatically; if it lasts, ask AWS for a higher limit of this API or lower the warm targets",
    ),
    ErrorRule(
        ("InsufficientFreeAddressesInSubnet",),
        SubnetExhaustedError,
        CallOutcome.SUBNET_FULL,
        "the subnet has no free address: delete unused ENIs in it, lower the warm targets or use a larger subnet",
    ),
    ErrorRule(
        ("InsufficientCidrBlocks",),
        SubnetExhaustedError,
        CallOutcome.SUBNET_FULL,
        "the subnet has no free {prefix}: reserve a part of it for prefixes (subnet CIDR reservation), or use {instead}",
    ),
    ErrorRule(  # observed wording; the code alone says nothing (cilium issue 31016)
        ("InvalidParameterValue",),
        SubnetExhaustedError,
        CallOutcome.SUBNET_FULL,
        "the subnet is too full for a /28: use a larger subnet or single addresses",
        contains="sufficient free Ipv4 addresses or prefixes",
    ),
    ErrorRule(
        ("PrivateIpAddressLimitExceeded",),
        EniLimitError,
        CallOutcome.LIMIT,
        "the ENI has no slot left: read it again with Describe; the pool continues with another ENI",
    ),
    ErrorRule(
        ("AttachmentLimitExceeded",),
        EniLimitError,
        CallOutcome.LIMIT,
        "the instance takes no further ENI. On most types volumes take the same places: move volumes or pods elsewhere, or use a "
        "larger instance type or prefixes",
    ),
    ErrorRule(
        ("NetworkInterfaceLimitExceeded",),
        CloudQuotaError,
        CallOutcome.QUOTA,
        "the account's quota of network interfaces is used up in this region: delete leaked ENIs or ask for a higher quota",
    ),
    ErrorRule(
        ("*.NotFound",),
        CloudNotFoundError,
        CallOutcome.NOT_FOUND,
        "it was deleted, perhaps by another program: the pool reads EC2 again; if this comes back, look for other controllers",
    ),
    ErrorRule(  # observed wording (cilium issue 15877)
        ("InvalidParameterValue",),
        CloudNotFoundError,
        CallOutcome.NOT_FOUND,
        "the pool reads the ENI again; if this comes back, look for other controllers",
        contains="not assigned to interface",
    ),
    ErrorRule(
        ("UnauthorizedOperation", "AccessDenied*"),
        CloudDeniedError,
        CallOutcome.DENIED,
        "allow {actions} to the node's role (manifests/iam-policy.json); conditions on tags, resources and boundaries count too",
    ),
    ErrorRule(
        ("RequestExpired", "SignatureDoesNotMatch", "InvalidSignatureException"),
        CloudDeniedError,
        CallOutcome.DENIED,
        "EC2 refused the request's signature: check the node's clock (chronyc tracking), then the keys in AWS_* variables if there "
        "are any; other keys are searched for, and it is tried again; IAM action {actions}",
    ),
    ErrorRule(
        (
            "AuthFailure", "ExpiredToken*", "InvalidClientTokenId", "UnrecognizedClientException",
            "MissingAuthenticationToken", "OptInRequired", "Blocked", "PendingVerification",
        ),
        CloudDeniedError,
        CallOutcome.DENIED,
        "EC2 refused the credentials: check the node's clock (chronyc tracking), whether their role still exists, and whether the "
        "account may use EC2 here; other keys are searched for, and it is tried again; IAM action {actions}",
    ),
    ErrorRule(
        ("InvalidNetworkInterface.InUse", "IncorrectState", "IncorrectInstanceState"),
        CloudError,
        CallOutcome.BUSY,
        "it is in use or changing state, and the call is retried; if this lasts, check its attachment in EC2",
    ),
    ErrorRule(  # observed wording of DeleteNetworkInterface (cloud-nuke issue 1132)
        ("InvalidParameterValue",),
        CloudError,
        CallOutcome.BUSY,
        "it is still attached; it is tried again until the detach has finished",
        contains="currently in use",
    ),
    ErrorRule(  # observed wording of AttachNetworkInterface (k8s-vpcnet issue 71, terraform-provider-aws issue 27513)
        ("InvalidParameterValue",),
        DeviceIndexTakenError,
        CallOutcome.BUSY,
        "another ENI has that device index: the pool reads EC2 again and takes the next one",
        contains="already has an interface attached at device index",
    ),
    ErrorRule(
        ("IdempotentParameterMismatch",),
        CloudError,
        CallOutcome.REFUSED,
        "the client token was used for another request before: the pool searches for the ENI of that request, and uses a new token",
    ),
    ErrorRule(
        ("OperationNotPermitted",),
        CloudDeniedError,
        CallOutcome.DENIED,
        "EC2 does not allow this on this object (a primary ENI, or one that another service manages): nothing is retried soon",
    ),
    ErrorRule(
        ("InternalError", "InternalFailure", "Unavailable", "ServiceUnavailable", "RequestTimeout"),
        CloudError,
        CallOutcome.UNANSWERED,
        "EC2 has a fault of its own: see the AWS health dashboard if it lasts",
    ),
)  # fmt: skip
"""First match wins."""

UNKNOWN = ErrorRule(
    ("*",), CloudError, CallOutcome.REFUSED, "EC2 does not accept the request: look the code up in EC2's list of error codes"
)
SERVER = ErrorRule(
    ("*",), CloudError, CallOutcome.UNANSWERED, "EC2 has a fault of its own: see the AWS health dashboard if it lasts"
)

UNSENT_NAMES = frozenset({"ConnectTimeoutError", "EndpointConnectionError", "ProxyConnectionError", "SSLError"})
"""botocore exceptions (by name, so that naming them imports nothing) that are raised before a request was sent."""

UNANSWERED_NAMES = frozenset({"ReadTimeoutError", "ConnectionClosedError", "HTTPClientError", "ResponseStreamingError"})


def refused(api: str, subject: str, *, code: str, message: str, status: int) -> AttemptError:
    """Translate an error answer of EC2. The `details` of the error begin with EC2's code."""
    code = printable(code, most=CODE_MAX)
    rule = _rule_for(code, message, status)
    message, _, encoded = message.partition(ENCODED)
    quoted = printable(message, most=MESSAGE_MAX)
    # CreateNetworkInterface also sends tags, for which IAM requires a second action.
    actions = f"ec2:{api} and ec2:CreateTags" if api == "CreateNetworkInterface" else f"ec2:{api}"
    prefix, instead = "/28", "single addresses"
    if "Ipv6" in api:
        prefix, instead, actions = "/80", "a subnet with more room", f"{actions} (AmazonEKS_CNI_Policy lacks it)"
    advice = rule.advice.format(actions=actions, prefix=prefix, instead=instead)
    if encoded:
        _log.warning("encoded authorization failure api=%s subject=%s text=%s", api, subject, encoded.strip())
        quoted, advice = quoted.strip(), f"{advice}; {DECODE}"
    answer = f"{code}: {quoted}"
    error = _failed_call(rule.error, FailureCode.EC2_REFUSED, api, subject, cause=answer, step=advice)
    error.code = code
    return AttemptError(error, rule.outcome)


def _rule_for(code: str, message: str, status: int) -> ErrorRule:
    """Return the first rule that fits a code and its message."""
    for rule in RULES:
        if rule.contains in message and any(fnmatchcase(code, pattern) for pattern in rule.codes):
            return rule
    return SERVER if status >= SERVER_ERROR else UNKNOWN


def failed(api: str, subject: str, failure: AttemptFailure) -> AttemptError:
    """Translate a failed attempt. Returns: an error of `ipamd/model/errors.py`, which names the next step, and the outcome that
    decides whether the call is retried.
    """
    if failure.lack is not None:
        return without_credentials(api, subject, MissingCredentials(**failure.lack))
    if failure.code is not None:
        return refused(api, subject, code=failure.code, message=failure.text, status=failure.status)
    names, endpoint = set(failure.names), failure.endpoint
    text, outcome = printable(failure.text, most=MESSAGE_MAX), CallOutcome.UNANSWERED
    code = FailureCode.EC2_UNANSWERED
    if "AnswerLimitError" in names:
        advice = f"it may have taken effect; Describe will show it; check what answers at {endpoint}"
    elif "UnreadableAnswerError" in names:
        code = FailureCode.EC2_UNREADABLE
        advice = (
            f"it may have taken effect; a proxy or another service may answer at {endpoint}; check AWS_EC2_ENDPOINT if it is set"
        )
    elif names & UNSENT_NAMES:
        code, outcome = FailureCode.EC2_UNSENT, CallOutcome.UNSENT
        advice = f"nothing was changed; check the node's route, DNS, proxy and security groups to {endpoint}"
    elif names & UNANSWERED_NAMES:
        advice = f"it may have taken effect; Describe will show it (HTTP_TIMEOUT sets the wait for {endpoint})"
    else:
        advice = "the request or the AWS configuration is wrong; report it with this line"
        cause = f"{failure.names[0]}: {text}"
        return AttemptError(_failed_call(CloudError, FailureCode.EC2_NOT_CALLED, api, subject, cause=cause, step=advice))
    return AttemptError(_failed_call(CloudError, code, api, subject, cause=text, step=advice), outcome)


def _failed_call(kind: type[C], code: FailureCode, operation: str, subject: str, *, cause: str, step: str) -> C:
    """Return the error of a call that failed."""
    error = make_failure(kind, code, operation=operation, subject=subject, cause=cause, step=step)
    error.operation, error.subject, error.answer, error.next_step = operation, subject, cause, step
    return error


def without_credentials(api: str, subject: str, lack: MissingCredentials) -> AttemptError:
    """Return the error for a call that was not made because there are no credentials.

    No retry follows (`AttemptError.outcome` is None), because the search for credentials has made several attempts already.
    """
    reason, advice = cause(lack), f"{lack.advice}; nothing was changed, and it is tried again"
    error = _failed_call(CloudCredentialsError, FailureCode.EC2_NOT_CALLED, api, subject, cause=reason, step=advice)
    error.party = lack.party
    return AttemptError(error)
