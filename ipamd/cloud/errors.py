"""Convert botocore's exceptions into errors of our tree, by one table.

The table decides which `CloudError` the caller gets, and how the attempt ended: `retries.py` must know whether the request may have
taken effect, and metrics count it. `AttemptError` never leaves this package. Rejected: matching the
exception classes that botocore generates per code, because EC2's model declares none. Source of the codes:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html; where a row says so, observed wording.
"""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase

from ipamd.cloud.bounded_http import AnswerLimitError, broken_bound
from ipamd.model.call_report import Outcome
from ipamd.model.errors import (
    CloudDeniedError,
    CloudError,
    CloudNotFoundError,
    CloudQuotaError,
    DeviceIndexTakenError,
    EniLimitError,
    SubnetExhaustedError,
    ThrottledError,
)
from ipamd.model.record import dataclass
from ipamd.model.words import printable

SERVER_ERROR = 500
"""HTTP status from which the fault is EC2's own and the outcome unknown. Source: RFC 9110, 15.6."""

MESSAGE_MAX = 300
"""Characters of EC2's message that we quote. Ours: an encoded authorization failure has kilobytes."""

CODE_MAX = 100
"""Characters of EC2's code that we quote. Ours: the longest has 60."""

ENCODED = "Encoded authorization failure message:"
"""Begins the part of a denial that only `sts:DecodeAuthorizationMessage` can read: which statement and condition decided. It has
kilobytes, so it goes to the log once and into no message.
Source: https://docs.aws.amazon.com/STS/latest/APIReference/API_DecodeAuthorizationMessage.html."""

DECODE = "Which statement decided is in the daemon's log: aws sts decode-authorization-message --encoded-message TEXT"

_log = logging.getLogger(__name__)


class AttemptError(Exception):
    """One HTTP attempt failed; `error` is what the caller gets when no retry follows.

    `outcome`: NOT_FOUND may be of an object that we created just now: EC2 is eventually consistent. UNANSWERED may have taken effect,
    BUSY can succeed later. None: nothing was sent, and a repetition would not help.
    """

    def __init__(self, error: CloudError, outcome: Outcome | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.outcome = outcome


class UnreadableAnswerError(Exception):
    """Something answered, and it was not EC2: HTML, nothing, or XML of another kind."""


@dataclass(frozen=True)
class Failure:
    """What an attempt ended with, in words that pass from one process to another.

    `code` and `status`: of an error answer of EC2, whose message is `text`; else `names` are those of the exception's classes.
    """

    names: list[str]
    text: str
    endpoint: str = ""
    code: str | None = None
    status: int = 0


@dataclass(frozen=True)
class Rule:
    """One row: EC2 codes (`*` stands for any text), a part of the message if the code is ambiguous, and what they mean."""

    codes: tuple[str, ...]
    error: type[CloudError]
    outcome: Outcome
    advice: str
    contains: str = ""


RULES = (
    Rule(
        ("RequestLimitExceeded", "Throttl*", "RequestThrottled*", "TooManyRequests*", "EC2ThrottledException", "SlowDown"),
        ThrottledError,
        Outcome.THROTTLED,
        "this node makes fewer calls automatically; if it lasts, ask AWS for a higher limit of this API or lower the warm targets",
    ),
    Rule(
        ("InsufficientFreeAddressesInSubnet",),
        SubnetExhaustedError,
        Outcome.SUBNET_FULL,
        "the subnet has no free address: delete unused ENIs in it, lower the warm targets or use a larger subnet",
    ),
    Rule(
        ("InsufficientCidrBlocks",),
        SubnetExhaustedError,
        Outcome.SUBNET_FULL,
        "the subnet has no free {prefix}: reserve a part of it for prefixes (subnet CIDR reservation), or use {instead}",
    ),
    Rule(  # observed wording; the code alone says nothing (cilium issue 31016)
        ("InvalidParameterValue",),
        SubnetExhaustedError,
        Outcome.SUBNET_FULL,
        "the subnet is too full for a /28: use a larger subnet or single addresses",
        contains="sufficient free Ipv4 addresses or prefixes",
    ),
    Rule(
        ("PrivateIpAddressLimitExceeded",),
        EniLimitError,
        Outcome.LIMIT,
        "the ENI has no slot left: read it again with Describe; the pool continues with another ENI",
    ),
    Rule(
        ("AttachmentLimitExceeded",),
        EniLimitError,
        Outcome.LIMIT,
        "the instance takes no further ENI. On most types volumes take the same places: move volumes or pods elsewhere, or use a "
        "larger instance type or prefixes",
    ),
    Rule(
        ("NetworkInterfaceLimitExceeded",),
        CloudQuotaError,
        Outcome.QUOTA,
        "the account's quota of network interfaces is used up in this region: delete leaked ENIs or ask for a higher quota",
    ),
    Rule(
        ("*.NotFound",),
        CloudNotFoundError,
        Outcome.NOT_FOUND,
        "it was deleted, or by someone else: the pool reads EC2 again; check for other controllers if this comes back",
    ),
    Rule(  # observed wording (cilium issue 15877)
        ("InvalidParameterValue",),
        CloudNotFoundError,
        Outcome.NOT_FOUND,
        "the pool reads the ENI again; check for other controllers if this comes back",
        contains="not assigned to interface",
    ),
    Rule(
        ("UnauthorizedOperation", "AccessDenied*"),
        CloudDeniedError,
        Outcome.DENIED,
        "allow {actions} to the node's role (manifests/iam-policy.json); conditions on tags, resources and boundaries count too",
    ),
    Rule(
        ("RequestExpired", "SignatureDoesNotMatch", "InvalidSignatureException"),
        CloudDeniedError,
        Outcome.DENIED,
        "the request's signature was refused: check the node's clock and its credentials; IAM action {actions}",
    ),
    Rule(
        (
            "AuthFailure", "ExpiredToken*", "InvalidClientTokenId", "UnrecognizedClientException",
            "MissingAuthenticationToken", "OptInRequired", "Blocked", "PendingVerification",
        ),
        CloudDeniedError,
        Outcome.DENIED,
        "AWS refused the credentials: check the node's role and its instance profile; IAM action {actions}",
    ),
    Rule(
        ("InvalidNetworkInterface.InUse", "IncorrectState", "IncorrectInstanceState"),
        CloudError,
        Outcome.BUSY,
        "it is in use or changing state, and the call is retried; if this lasts, check its attachment in EC2",
    ),
    Rule(  # observed wording of DeleteNetworkInterface (cloud-nuke issue 1132)
        ("InvalidParameterValue",),
        CloudError,
        Outcome.BUSY,
        "it is still attached; it is tried again until the detach has finished",
        contains="currently in use",
    ),
    Rule(  # observed wording of AttachNetworkInterface (k8s-vpcnet issue 71, terraform-provider-aws issue 27513)
        ("InvalidParameterValue",),
        DeviceIndexTakenError,
        Outcome.BUSY,
        "another ENI has that device index: the pool reads EC2 again and takes the next one",
        contains="already has an interface attached at device index",
    ),
    Rule(
        ("IdempotentParameterMismatch",),
        CloudError,
        Outcome.REFUSED,
        "the client token was used for another request before: the pool searches for what that made, and goes on with a new token",
    ),
    Rule(
        ("OperationNotPermitted",),
        CloudDeniedError,
        Outcome.DENIED,
        "EC2 does not allow this on this object (a primary ENI, or one that another service manages): nothing is retried soon",
    ),
    Rule(
        ("InternalError", "InternalFailure", "Unavailable", "ServiceUnavailable", "RequestTimeout"),
        CloudError,
        Outcome.UNANSWERED,
        "EC2 has a fault of its own: see the AWS health dashboard if it lasts",
    ),
)  # fmt: skip
"""First match wins."""

UNKNOWN = Rule(
    ("*",), CloudError, Outcome.REFUSED, "EC2 does not accept the request: look the code up in EC2's list of error codes"
)
SERVER = Rule(("*",), CloudError, Outcome.UNANSWERED, "EC2 has a fault of its own: see the AWS health dashboard if it lasts")

UNSENT_NAMES = frozenset({"ConnectTimeoutError", "EndpointConnectionError", "ProxyConnectionError", "SSLError"})
"""botocore exceptions (by name, so that naming them imports nothing) raised before a request was sent."""

UNANSWERED_NAMES = frozenset({"ReadTimeoutError", "ConnectionClosedError", "HTTPClientError", "ResponseStreamingError"})

CREDENTIAL_NAMES = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "MetadataRetrievalError"}
)


def refused(api: str, subject: str, *, code: str, message: str, status: int) -> AttemptError:
    """Translate an error answer of EC2; `details` begins with EC2's code."""
    code = printable(code, most=CODE_MAX)
    named = (one for one in RULES if one.contains in message and any(fnmatchcase(code, pattern) for pattern in one.codes))
    rule = next(named, SERVER if status >= SERVER_ERROR else UNKNOWN)
    message, _, encoded = message.partition(ENCODED)
    told = printable(message, most=MESSAGE_MAX)
    # Create sends tags along, which is an action of its own.
    actions = f"ec2:{api} and ec2:CreateTags" if api == "CreateNetworkInterface" else f"ec2:{api}"
    prefix, instead = "/28", "single addresses"
    if "Ipv6" in api:
        prefix, instead, actions = "/80", "a subnet with more room", f"{actions} (AmazonEKS_CNI_Policy lacks it)"
    advice = rule.advice.format(actions=actions, prefix=prefix, instead=instead)
    if encoded:
        _log.warning("what IAM decided, encoded api=%s subject=%s text=%s", api, subject, encoded.strip())
        told, advice = told.strip(), f"{advice}. {DECODE}"
    said = f"{code}: {told}"
    error = rule.error(f"EC2 {api} failed for {subject}", details=f"{said}; {advice}", code=code, said=said, next_step=advice)
    return AttemptError(error, rule.outcome)


def failed(api: str, subject: str, failure: Failure) -> AttemptError:
    """Translate whatever an attempt ended with."""
    if failure.code is not None:
        return refused(api, subject, code=failure.code, message=failure.text, status=failure.status)
    names, endpoint = set(failure.names), failure.endpoint
    cause, outcome = printable(failure.text, most=MESSAGE_MAX), Outcome.UNANSWERED
    message = f"EC2 {api} was not answered for {subject}"
    if names & CREDENTIAL_NAMES:
        return no_credentials(api, subject, cause=cause)
    if "AnswerLimitError" in names:
        advice = f"it may have taken effect; Describe will show it; check what answers at {endpoint}"
    elif "UnreadableAnswerError" in names:
        message = f"the answer to EC2 {api} for {subject} is not one of EC2's"
        advice = (
            f"it may have taken effect; a proxy or another service may answer at {endpoint}; check AWS_EC2_ENDPOINT if it is set"
        )
    elif names & UNSENT_NAMES:
        message, outcome = f"EC2 {api} could not be sent for {subject}", Outcome.UNSENT
        advice = f"nothing was changed; check the node's route, DNS, proxy and security groups to {endpoint}"
    elif names & UNANSWERED_NAMES:
        advice = f"it may have taken effect; Describe will show it (HTTP_TIMEOUT sets the wait for {endpoint})"
    else:
        advice = "the request or the AWS configuration is wrong; report it with this line"
        return AttemptError(
            CloudError(f"EC2 {api} was not called for {subject}", details=f"{failure.names[0]}: {cause}; {advice}")
        )
    return AttemptError(CloudError(message, details=f"{cause}; {advice}"), outcome)


def failure_of(exc: Exception, endpoint: str) -> Failure:
    """Describe a botocore exception that is not an answer of EC2."""
    cause = broken_bound(exc) or getattr(exc, "kwargs", {}).get("error")
    told = cause if isinstance(cause, AnswerLimitError | UnreadableAnswerError) else exc
    return Failure([kind.__name__ for kind in (*type(exc).__mro__, type(told))], str(told)[: 16 * MESSAGE_MAX], endpoint)


def said(exc: BaseException) -> str:
    """Return the beginning of a library's text: it may quote a whole answer."""
    return printable(str(exc), most=MESSAGE_MAX)


def no_credentials(api: str, subject: str, *, cause: str) -> AttemptError:
    """Return the error for missing credentials."""
    advice = (
        "give the node an instance profile, and let this pod reach instance metadata (hostNetwork, or a hop limit of 2); "
        "it is tried again"
    )
    return AttemptError(CloudError(f"EC2 {api} was not called for {subject}", details=f"{cause}; {advice}"))
