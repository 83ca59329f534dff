"""EC2 codes and botocore exceptions become errors of our tree by one table."""

from __future__ import annotations

import pytest
from botocore import exceptions as theirs

from ipamd.cloud import errors
from ipamd.cloud.attempt_failure import failure_of
from ipamd.model.call_report import CallOutcome
from ipamd.model.cause import Ec2Refusal
from ipamd.model.errors import (
    CloudCredentialsError,
    CloudDeniedError,
    CloudError,
    CloudNotFoundError,
    CloudQuotaError,
    DeviceIndexTakenError,
    EniLimitError,
    SubnetChoiceError,
    SubnetExhaustedError,
    ThrottledError,
)
from ipamd.model.words import printable

ANSWERS = [
    ("RequestLimitExceeded", "Request limit exceeded.", 503, ThrottledError, CallOutcome.THROTTLED),
    ("Throttling", "Rate exceeded", 400, ThrottledError, CallOutcome.THROTTLED),
    ("ThrottlingException", "Rate exceeded", 400, ThrottledError, CallOutcome.THROTTLED),
    ("RequestThrottledException", "", 400, ThrottledError, CallOutcome.THROTTLED),
    ("TooManyRequestsException", "", 429, ThrottledError, CallOutcome.THROTTLED),
    ("EC2ThrottledException", "", 400, ThrottledError, CallOutcome.THROTTLED),
    ("SlowDown", "", 503, ThrottledError, CallOutcome.THROTTLED),
    ("InsufficientFreeAddressesInSubnet", "not enough", 400, SubnetExhaustedError, CallOutcome.SUBNET_FULL),
    ("InsufficientCidrBlocks", "not enough", 400, SubnetExhaustedError, CallOutcome.SUBNET_FULL),
    (
        "InvalidParameterValue",
        "There aren't sufficient free Ipv4 addresses or prefixes",
        400,
        SubnetExhaustedError,
        CallOutcome.SUBNET_FULL,
    ),
    ("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.", 400, EniLimitError, CallOutcome.LIMIT),
    ("AttachmentLimitExceeded", "Interface count 4 exceeds the limit for m5.large", 400, EniLimitError, CallOutcome.LIMIT),
    ("NetworkInterfaceLimitExceeded", "quota", 400, CloudQuotaError, CallOutcome.QUOTA),
    (
        "InvalidNetworkInterfaceID.NotFound",
        "The networkInterface ID 'eni-1' does not exist",
        400,
        CloudNotFoundError,
        CallOutcome.NOT_FOUND,
    ),
    ("InvalidAttachmentID.NotFound", "", 400, CloudNotFoundError, CallOutcome.NOT_FOUND),
    ("InvalidSubnetID.NotFound", "", 400, CloudNotFoundError, CallOutcome.NOT_FOUND),
    (
        "InvalidParameterValue",
        "Some of the specified addresses are not assigned to interface eni-1",
        400,
        CloudNotFoundError,
        CallOutcome.NOT_FOUND,
    ),
    ("UnauthorizedOperation", "You are not authorized", 403, CloudDeniedError, CallOutcome.DENIED),
    ("AccessDenied", "", 403, CloudDeniedError, CallOutcome.DENIED),
    ("RequestExpired", "", 400, CloudDeniedError, CallOutcome.DENIED),
    ("SignatureDoesNotMatch", "", 403, CloudDeniedError, CallOutcome.DENIED),
    ("AuthFailure", "", 401, CloudDeniedError, CallOutcome.DENIED),
    ("ExpiredTokenException", "", 400, CloudDeniedError, CallOutcome.DENIED),
    ("InvalidClientTokenId", "", 403, CloudDeniedError, CallOutcome.DENIED),
    ("UnrecognizedClientException", "", 400, CloudDeniedError, CallOutcome.DENIED),
    ("InvalidNetworkInterface.InUse", "Interface: [eni-1] in use.", 400, CloudError, CallOutcome.BUSY),
    ("IncorrectState", "", 400, CloudError, CallOutcome.BUSY),
    ("InvalidParameterValue", "Network interface 'eni-1' is currently in use.", 400, CloudError, CallOutcome.BUSY),
    (
        "InvalidParameterValue",
        "Instance 'i-1' already has an interface attached at device index '1'.",
        400,
        DeviceIndexTakenError,
        CallOutcome.BUSY,
    ),
    (
        "OperationNotPermitted",
        "The network interface at device index 0 cannot be detached.",
        400,
        CloudDeniedError,
        CallOutcome.DENIED,
    ),
    ("IdempotentParameterMismatch", "", 400, CloudError, CallOutcome.REFUSED),
    ("InternalError", "", 500, CloudError, CallOutcome.UNANSWERED),
    ("Unavailable", "", 503, CloudError, CallOutcome.UNANSWERED),
    ("", "no code at all", 502, CloudError, CallOutcome.UNANSWERED),
    ("InvalidParameterValue", "something else", 400, CloudError, CallOutcome.REFUSED),
    ("NeverHeardOf", "", 400, CloudError, CallOutcome.REFUSED),
]


@pytest.mark.parametrize(("code", "message", "status", "error", "outcome"), ANSWERS, ids=[f"{a[0]}-{a[1][:24]}" for a in ANSWERS])
def test_each_ec2_code_has_its_class(code: str, message: str, status: int, error: type[CloudError], outcome: CallOutcome) -> None:
    """Every EC2 code becomes exactly one class, says the API, the object and EC2's own code, and ends with advice (I14)."""
    failed = errors.refused("AttachNetworkInterface", "eni-1", code=code, message=message, status=status)
    assert failed.outcome is outcome
    assert type(failed.error) is error
    assert failed.error.message == "EC2 AttachNetworkInterface failed for eni-1"
    assert failed.error.details.startswith(f"{code}: {message}; ")
    assert len(failed.error.details.rpartition("; ")[2]) > 20


def test_every_rule_is_exercised() -> None:
    """The table above reaches every row of the adapter's table."""
    said = [errors.refused("Call", "it", code=code, message=message, status=400).error.next_step for code, message, *_ in ANSWERS]
    unreached = [
        rule
        for rule in errors.RULES
        if rule.advice.format(actions="ec2:Call", prefix="/28", instead="single addresses") not in said
    ]
    assert unreached == []
    assert len({rule.advice for rule in errors.RULES}) == len(errors.RULES), "each row is known by its advice"


NOT_OF_EC2 = (SubnetChoiceError, CloudCredentialsError)
"""Both come before EC2 is asked: our own conclusion, and what others than EC2 gave (`test_credential_errors.py`)."""

OF_EC2 = [one for one in CloudError.__subclasses__() if one.__module__ == CloudError.__module__ and one not in NOT_OF_EC2]


@pytest.mark.parametrize("error", [CloudError, *OF_EC2])
def test_every_cloud_error_has_a_cause(error: type[CloudError]) -> None:
    """Each class of the cloud branch is raised for at least one EC2 code."""
    assert error in {row[3] for row in ANSWERS}


def test_denied_names_the_iam_action() -> None:
    """A refusal by IAM names every action that the policy lacks; an ENI is created with tags, which is an action too."""
    failed = errors.refused("CreateNetworkInterface", "subnet-1", code="UnauthorizedOperation", message="no", status=403)
    assert "ec2:CreateNetworkInterface and ec2:CreateTags" in failed.error.details


def test_a_refusal_of_ipv6_names_what_the_managed_policy_lacks() -> None:
    """AWS's own policy for nodes has no call of IPv6, so a denial says which line to add; a full subnet lacks a /80 (I14)."""
    denied = errors.refused("AssignIpv6Addresses", "eni-1", code="UnauthorizedOperation", message="no", status=403).error
    assert "allow ec2:AssignIpv6Addresses (AmazonEKS_CNI_Policy lacks it) to the node's role" in denied.details
    full = errors.refused("AssignIpv6Addresses", "eni-1", code="InsufficientCidrBlocks", message="no", status=400).error
    assert "no free /80" in full.next_step
    assert "single addresses" not in full.next_step


def test_what_only_sts_can_read_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A denial keeps IAM's own words, says how to decode the rest, and the rest is in the log, whole (I14)."""
    said = "You are not authorized to perform: ec2:CreateNetworkInterface because no identity-based policy allows it."
    message = f"{said} {errors.ENCODED} {'x' * 5000}"
    with caplog.at_level("WARNING"):
        failed = errors.refused("CreateNetworkInterface", "a new ENI", code="UnauthorizedOperation", message=message, status=403)
    (refusal,) = failed.error.cause.refusals
    assert refusal == Ec2Refusal("CreateNetworkInterface", "a new ENI", "UnauthorizedOperation", "")
    assert refusal.text == f"EC2 CreateNetworkInterface failed for a new ENI: UnauthorizedOperation: {said}"
    assert "aws sts decode-authorization-message" in failed.error.next_step
    assert "xxxx" not in str(failed.error)
    assert "x" * 5000 in caplog.text


def test_long_messages_are_cut() -> None:
    """An encoded authorization failure of kilobytes does not flood the log."""
    failed = errors.refused("DescribeSubnets", "subnet-1", code="UnauthorizedOperation", message="x" * 5000, status=403)
    assert len(failed.error.details) < errors.MESSAGE_MAX + 300


def test_a_denial_keeps_the_policy_that_decided() -> None:
    """It is at the message's end, after the longest names of role, session and resource."""
    role = f"arn:aws-us-gov:sts::123456789012:assumed-role/{'r' * 64}/{'s' * 64}"
    resource = f"arn:aws-us-gov:ec2:us-gov-west-1:123456789012:network-interface/eni-{'0' * 17}"
    reason = "because no identity-based policy allows the ec2:AssignPrivateIpAddresses action"
    said = f"User: {role} is not authorized to perform: ec2:AssignPrivateIpAddresses on resource: {resource} {reason}"
    failed = errors.refused("AssignPrivateIpAddresses", "eni-1", code="UnauthorizedOperation", message=said, status=403)
    assert reason in failed.error.details
    assert errors.DECODE not in failed.error.next_step


EXCEPTIONS = [
    (theirs.ConnectTimeoutError(endpoint_url="http://ec2"), CallOutcome.UNSENT),
    (theirs.EndpointConnectionError(endpoint_url="http://ec2"), CallOutcome.UNSENT),
    (theirs.ProxyConnectionError(proxy_url="http://proxy"), CallOutcome.UNSENT),
    (theirs.SSLError(endpoint_url="http://ec2", error="bad"), CallOutcome.UNSENT),
    (theirs.ReadTimeoutError(endpoint_url="http://ec2"), CallOutcome.UNANSWERED),
    (theirs.ConnectionClosedError(endpoint_url="http://ec2"), CallOutcome.UNANSWERED),
    (theirs.HTTPClientError(error="cut"), CallOutcome.UNANSWERED),
    (theirs.NoCredentialsError(), None),
    (theirs.CredentialRetrievalError(provider="iam", error_msg="no"), None),
    (theirs.MetadataRetrievalError(error_msg="no"), None),
    (theirs.ParamValidationError(report="bad"), None),
]


@pytest.mark.parametrize(("exc", "outcome"), EXCEPTIONS, ids=[type(row[0]).__name__ for row in EXCEPTIONS])
def test_each_transport_exception_has_its_class(exc: Exception, outcome: CallOutcome | None) -> None:
    """What botocore raises becomes a CloudError; whether the request may have taken effect decides about a retry (I9)."""
    failed = errors.failed("DescribeSubnets", "subnet-1", failure_of(exc, "http://ec2"))
    assert failed.outcome is outcome
    assert type(failed.error) is CloudError
    assert "DescribeSubnets" in failed.error.message
    assert "subnet-1" in failed.error.message
    assert printable(str(exc)) in failed.error.details
