"""Convert botocore's exceptions into errors of our tree, by one table.

The table decides which `CloudError` the caller gets, and for `retries.py` how the attempt failed, because a retry must know
whether the request may have taken effect. `AttemptError` and its subclasses never leave this package. Rejected: matching the
exception classes that botocore generates per code, because EC2's model declares none. Source of the codes:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html; where a row says so, observed wording.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ipamd.cloud.bounded_http import broken_bound
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
    """One HTTP attempt failed; `error` is what the caller gets when no retry follows. This class itself: EC2 refused."""

    def __init__(self, error: CloudError) -> None:
        super().__init__(str(error))
        self.error = error


class ThrottledAttempt(AttemptError):
    """EC2 did nothing and asked for fewer calls."""


class UnsentAttempt(AttemptError):
    """No connection was made, so nothing was done."""


class UnansweredAttempt(AttemptError):
    """Sent, but the answer was lost or reports a fault in EC2: the call may have taken effect."""


class BusyAttempt(AttemptError):
    """The object is in use or in transition; the same call can succeed later."""


class UnseenAttempt(AttemptError):
    """NotFound of an object that we created just now: EC2 is eventually consistent."""


class UnreadableAnswerError(Exception):
    """Something answered, and it was not EC2: HTML, nothing, or XML of another kind."""


@dataclass(frozen=True)
class Rule:
    """One row: EC2 codes (`*` stands for any text), a part of the message if the code is ambiguous, and what they mean."""

    codes: tuple[str, ...]
    error: type[CloudError]
    advice: str
    attempt: type[AttemptError] = AttemptError
    contains: str = ""


RULES = (
    Rule(
        ("RequestLimitExceeded", "Throttl*", "RequestThrottled*", "TooManyRequests*", "EC2ThrottledException", "SlowDown"),
        ThrottledError,
        "this node makes fewer calls automatically; if it lasts, ask AWS for a higher limit of this API or lower the warm targets",
        attempt=ThrottledAttempt,
    ),
    Rule(
        ("InsufficientFreeAddressesInSubnet",),
        SubnetExhaustedError,
        "the subnet has no free address: delete unused ENIs in it, lower the warm targets or use a larger subnet",
    ),
    Rule(
        ("InsufficientCidrBlocks",),
        SubnetExhaustedError,
        "the subnet has no free /28: reserve a part of it for prefixes (subnet CIDR reservation) or use single addresses",
    ),
    Rule(  # observed wording; the code alone says nothing (cilium issue 31016)
        ("InvalidParameterValue",),
        SubnetExhaustedError,
        "the subnet is too full for a /28: use a larger subnet or single addresses",
        contains="sufficient free Ipv4 addresses or prefixes",
    ),
    Rule(
        ("PrivateIpAddressLimitExceeded",),
        EniLimitError,
        "the ENI has no slot left: read it again with Describe; the pool continues with another ENI",
    ),
    Rule(
        ("AttachmentLimitExceeded",),
        EniLimitError,
        "the instance takes no further ENI. On most types volumes take the same places: move volumes or pods elsewhere, or use a "
        "larger instance type or prefixes",
    ),
    Rule(
        ("NetworkInterfaceLimitExceeded",),
        CloudQuotaError,
        "the account's quota of network interfaces is used up in this region: delete leaked ENIs or ask for a higher quota",
    ),
    Rule(
        ("*.NotFound",),
        CloudNotFoundError,
        "it was deleted, or by someone else: the pool reads EC2 again; check for other controllers if this comes back",
    ),
    Rule(  # observed wording (cilium issue 15877)
        ("InvalidParameterValue",),
        CloudNotFoundError,
        "the pool reads the ENI again; check for other controllers if this comes back",
        contains="not assigned to interface",
    ),
    Rule(
        ("UnauthorizedOperation", "AccessDenied*"),
        CloudDeniedError,
        "allow {actions} to the node's role (manifests/iam-policy.json); conditions on tags, resources and boundaries count too",
    ),
    Rule(
        ("RequestExpired", "SignatureDoesNotMatch", "InvalidSignatureException"),
        CloudDeniedError,
        "the request's signature was refused: check the node's clock and its credentials; IAM action {actions}",
    ),
    Rule(
        (
            "AuthFailure", "ExpiredToken*", "InvalidClientTokenId", "UnrecognizedClientException",
            "MissingAuthenticationToken", "OptInRequired", "Blocked", "PendingVerification",
        ),
        CloudDeniedError,
        "AWS refused the credentials: check the node's role and its instance profile; IAM action {actions}",
    ),
    Rule(
        ("InvalidNetworkInterface.InUse", "IncorrectState", "IncorrectInstanceState"),
        CloudError,
        "it is in use or changing state, and the call is retried; if this lasts, check its attachment in EC2",
        attempt=BusyAttempt,
    ),
    Rule(  # observed wording of DeleteNetworkInterface (cloud-nuke issue 1132)
        ("InvalidParameterValue",),
        CloudError,
        "it is still attached; it is tried again until the detach has finished",
        attempt=BusyAttempt,
        contains="currently in use",
    ),
    Rule(  # observed wording of AttachNetworkInterface (k8s-vpcnet issue 71, terraform-provider-aws issue 27513)
        ("InvalidParameterValue",),
        DeviceIndexTakenError,
        "another ENI has that device index: the pool reads EC2 again and takes the next one",
        attempt=BusyAttempt,
        contains="already has an interface attached at device index",
    ),
    Rule(
        ("IdempotentParameterMismatch",),
        CloudError,
        "the client token was used for another request before: the pool searches for what that made, and goes on with a new token",
    ),
    Rule(
        ("OperationNotPermitted",),
        CloudDeniedError,
        "EC2 does not allow this on this object (a primary ENI, or one that another service manages): nothing is retried soon",
    ),
    Rule(
        ("InternalError", "InternalFailure", "Unavailable", "ServiceUnavailable", "RequestTimeout"),
        CloudError,
        "EC2 has a fault of its own: see the AWS health dashboard if it lasts",
        attempt=UnansweredAttempt,
    ),
)  # fmt: skip
"""First match wins."""

UNKNOWN = Rule(("*",), CloudError, "EC2 does not accept the request: look the code up in EC2's list of error codes")
SERVER = Rule(("*",), CloudError, "EC2 has a fault of its own: see the AWS health dashboard if it lasts", UnansweredAttempt)

UNSENT_NAMES = frozenset({"ConnectTimeoutError", "EndpointConnectionError", "ProxyConnectionError", "SSLError"})
"""botocore exceptions (by name, so that naming them imports nothing) raised before a request was sent."""

UNANSWERED_NAMES = frozenset({"ReadTimeoutError", "ConnectionClosedError", "HTTPClientError", "ResponseStreamingError"})

CREDENTIAL_NAMES = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "MetadataRetrievalError"}
)


def refused(api: str, subject: str, *, code: str, message: str, status: int) -> AttemptError:
    """Translate an error answer of EC2; `details` begins with EC2's code."""
    code = printable(code, most=CODE_MAX)
    rule = next((rule for rule in RULES if _matches(rule, code, message)), SERVER if status >= SERVER_ERROR else UNKNOWN)
    message, _, encoded = message.partition(ENCODED)
    told = printable(message, most=MESSAGE_MAX)
    advice = rule.advice.format(actions=iam_actions(api))
    if encoded:
        _log.warning("EC2 %s for %s, what IAM decided, encoded: %s", api, subject, encoded.strip())
        told, advice = told.strip(), f"{advice}. {DECODE}"
    said = f"{code}: {told}"
    error = rule.error(f"EC2 {api} failed for {subject}", details=f"{said}; {advice}", code=code, said=said, next_step=advice)
    return rule.attempt(error)


def unreached(api: str, subject: str, *, endpoint: str, exc: Exception) -> AttemptError:
    """Convert a botocore exception that is not an answer of EC2."""
    names = {kind.__name__ for kind in type(exc).__mro__}
    if names & CREDENTIAL_NAMES:
        return AttemptError(no_credentials(f"EC2 {api} was not called for {subject}", said(exc)))
    if bound := broken_bound(exc):
        advice = f"it may have taken effect; Describe will show it; check what answers at {endpoint}"
        return UnansweredAttempt(CloudError(f"EC2 {api} was not answered for {subject}", details=f"{bound}; {advice}"))
    unreadable = getattr(exc, "kwargs", {}).get("error")
    if isinstance(unreadable, UnreadableAnswerError):
        advice = (
            f"it may have taken effect; a proxy or another service may answer at {endpoint}; check AWS_EC2_ENDPOINT if it is set"
        )
        error = CloudError(f"the answer to EC2 {api} for {subject} is not one of EC2's", details=f"{said(unreadable)}; {advice}")
        return UnansweredAttempt(error)
    if names & UNSENT_NAMES:
        advice = f"nothing was changed; check the node's route, DNS, proxy and security groups to {endpoint}"
        return UnsentAttempt(CloudError(f"EC2 {api} could not be sent for {subject}", details=f"{said(exc)}; {advice}"))
    if names & UNANSWERED_NAMES:
        advice = f"it may have taken effect; Describe will show it (HTTP_TIMEOUT sets the wait for {endpoint})"
        return UnansweredAttempt(CloudError(f"EC2 {api} was not answered for {subject}", details=f"{said(exc)}; {advice}"))
    advice = "the request or the AWS configuration is wrong; report it with this line"
    return AttemptError(
        CloudError(f"EC2 {api} was not called for {subject}", details=f"{type(exc).__name__}: {said(exc)}; {advice}")
    )


def said(exc: BaseException) -> str:
    """Return the beginning of a library's text: it may quote a whole answer."""
    return printable(str(exc), most=MESSAGE_MAX)


def no_credentials(message: str, cause: str) -> CloudError:
    """Return the error for missing credentials."""
    return CloudError(
        message,
        details=f"{cause}; give the node an instance profile, and let this pod reach instance metadata "
        "(hostNetwork, or a hop limit of 2); it is tried again",
    )


def iam_actions(api: str) -> str:
    """Name the IAM actions that an API needs. Create sends tags along, which is an action of its own."""
    return f"ec2:{api} and ec2:CreateTags" if api == "CreateNetworkInterface" else f"ec2:{api}"


def _matches(rule: Rule, code: str, message: str) -> bool:
    return rule.contains in message and any(_code_matches(pattern, code) for pattern in rule.codes)


def _code_matches(pattern: str, code: str) -> bool:
    if pattern.startswith("*"):
        return code.endswith(pattern[1:])
    return code.startswith(pattern[:-1]) if pattern.endswith("*") else code == pattern
