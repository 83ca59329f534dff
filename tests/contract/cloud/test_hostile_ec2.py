"""The EC2 adapter against servers that misbehave: bounded bytes, bounded time, a typed error that says what came (I11)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ipamd.cloud.bounded_http import AWS_BYTES_MAX
from ipamd.cloud.client import Ec2Client
from ipamd.cloud.ec2 import BotoEc2
from ipamd.cloud.retries import HURRIED, IDEMPOTENT
from ipamd.model.errors import CloudError
from ipamd.model.failures import FailureCode
from ipamd.model.ids import EniId, InstanceId
from ipamd.settings import CloudConfig
from tests.contract.cloud.server import MISBEHAVIOURS, HostileServer, answer, misbehaviours
from tests.errors import failed
from tests.patience import PATIENCE_S
from tests.unit.cloud.clocks import FakeClock

BUFFERS_BYTES = 16 << 20
"""What lies in the sockets' queues of one connection, beyond what the reader took."""

HTML = b"<html><head><title>Sign in</title></head><body>Welcome to the hotel<br></body></html>"
XHTML = b"<html><head/><body><p>Welcome</p></body></html>"


@pytest.fixture
def ec2(server: HostileServer, monkeypatch: pytest.MonkeyPatch) -> BotoEc2:
    """The adapter, with one second for an answer, and one attempt."""
    return adapter(server, monkeypatch, http_timeout_s=1)


@pytest.fixture
def patient_ec2(server: HostileServer, monkeypatch: pytest.MonkeyPatch) -> BotoEc2:
    """The same where an answer is to be read."""
    return adapter(server, monkeypatch, http_timeout_s=round(PATIENCE_S))


def adapter(server: HostileServer, monkeypatch: pytest.MonkeyPatch, *, http_timeout_s: int) -> BotoEc2:
    """With one attempt."""
    for policy in ("IDEMPOTENT", "SETTLING", "DELETING"):
        monkeypatch.setattr(f"ipamd.cloud.ec2.{policy}", HURRIED)
    clock = FakeClock()
    config = CloudConfig(ec2_endpoint=server.url, http_timeout_s=http_timeout_s)
    return BotoEc2(config, region=lambda: "us-west-2", clock=clock, sleep=clock.sleep)


@pytest.mark.parametrize("what", MISBEHAVIOURS)
def test_an_answer_that_does_not_end_is_given_up(server: HostileServer, ec2: BotoEc2, what: str) -> None:
    """The error says that it was given up, and that the call may have taken effect."""
    server.script = misbehaviours(server)[what]
    for _ in range(20):
        with pytest.raises(CloudError) as failed:
            ec2.describe_enis(InstanceId("i-1"))
        if "could not be sent" not in failed.value.message:  # to connect takes a second on a busy machine
            break
    assert "DescribeNetworkInterfaces was not answered" in failed.value.message
    assert failed.value.may_have_happened
    if "crumbs" in what:
        assert "had not ended after 1 s" in failed.value.details
    assert server.sent_bytes <= AWS_BYTES_MAX + BUFFERS_BYTES


@pytest.mark.parametrize(
    "body",
    [HTML, XHTML, b"", b"   ", b"\xff\xfe\x00", b'{"error": "no"}', b"<a>" * 20_000, b"<DescribeNetworkInterfacesResponse/>"],
    ids=["html", "xhtml", "empty", "blank", "bytes", "json", "deep", "no request id"],
)
@pytest.mark.parametrize("status", ["200 OK", "403 Forbidden", "503 Service Unavailable", "302 Found"])
def test_what_is_no_answer_of_ec2_is_a_typed_error(server: HostileServer, ec2: BotoEc2, body: bytes, status: str) -> None:
    """A proxy's page, or nothing: neither an empty list nor the success of a change (I11)."""
    server.script = answer(body, status=status)
    for call in (lambda: ec2.describe_enis(InstanceId("i-1")), lambda: ec2.delete_eni(EniId("eni-1"))):
        with pytest.raises(CloudError) as failed:
            call()
        assert len(str(failed.value)) < 1000


def test_the_error_of_an_html_page_names_what_to_check(server: HostileServer, ec2: BotoEc2) -> None:
    """I14: not only that it could not be parsed."""
    server.script = answer(HTML)
    with pytest.raises(CloudError, check=failed(FailureCode.EC2_UNREADABLE)):
        ec2.describe_enis(InstanceId("i-1"))


def described(entry: str) -> bytes:
    """An answer with one ENI."""
    return (
        "<DescribeNetworkInterfacesResponse><requestId>r</requestId><networkInterfaceSet><item>"
        f"<networkInterfaceId>eni-1</networkInterfaceId>{entry}</item></networkInterfaceSet></DescribeNetworkInterfacesResponse>"
    ).encode()


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param("<attachment><deviceIndex>one</deviceIndex></attachment>", id="word for a number"),
        pytest.param("<attachment><attachTime>yesterday</attachTime></attachment>", id="word for a time"),
        pytest.param("<ipOwnerId/><availabilityZone><deep>x</deep></availabilityZone>", id="structure for a word"),
        pytest.param("<macAddress>02:00:00:00:00:01</macAddress><subnetId>subnet-1</subnetId>"
                     "<privateIpAddress>10.0.0.999</privateIpAddress>", id="no address"),
    ],
)  # fmt: skip
def test_wrong_types_are_an_error_or_a_problem_of_one_entry(server: HostileServer, ec2: BotoEc2, entry: str) -> None:
    """Never an exception of somebody else's class."""
    server.script = answer(described(entry))
    try:
        found = ec2.describe_enis(InstanceId("i-1"))
    except CloudError:
        return
    assert [eni.problem != "" for eni in found] == [True]


def test_a_list_without_a_last_page_is_given_up(server: HostileServer, ec2: BotoEc2) -> None:
    """Each page names a next one."""
    api = "DescribeNetworkInterfacesResponse"
    server.script = answer(f"<{api}><requestId>r</requestId><nextToken>again</nextToken></{api}>".encode())
    with pytest.raises(CloudError, check=failed(FailureCode.EC2_LIST_ENDLESS)):
        ec2.describe_enis(InstanceId("i-1"))
    assert server.request_count < 50


def test_an_answer_of_megabytes_that_ends_is_read(server: HostileServer, patient_ec2: BotoEc2) -> None:
    """The bound is above the largest instance's."""
    item = "<item><privateIpAddress>10.0.0.9</privateIpAddress><privateDnsName>ip-10-0-0-9.ec2.internal</privateDnsName></item>"
    server.script = answer(described(f"<privateIpAddressesSet>{item * 20_000}</privateIpAddressesSet>"))
    assert len(patient_ec2.describe_enis(InstanceId("i-1"))) == 1


def test_a_connection_is_used_again_with_the_whole_time_for_each_answer(server: HostileServer, patient_ec2: BotoEc2) -> None:
    """Ten answers on kept connections: none has less time because the one before took some."""
    server.script = answer(described("<macAddress>02:00:00:00:00:01</macAddress><subnetId>subnet-1</subnetId>"))
    for _ in range(10):
        assert len(patient_ec2.describe_enis(InstanceId("i-1"))) == 1


@pytest.mark.parametrize("what", ["body without length", "body in crumbs"])
def test_credentials_that_do_not_end_are_a_typed_error(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of instance metadata and of a container's endpoint: botocore fetches them itself."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.TIMEOUT_SECONDS", 1)
    server.script = misbehaviours(server)[what]
    clock = FakeClock()
    for container in (False, True):
        if container:
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/credentials")
        config = CloudConfig(ec2_endpoint=server.url, imds_endpoint=server.url, http_timeout_s=1)
        client = Ec2Client(config, region=lambda: "us-west-2")  # in this process, where botocore's pauses are none
        ec2 = BotoEc2(config, region=str, clock=clock, sleep=clock.sleep, client=client)
        with pytest.raises(CloudError, check=failed(FailureCode.EC2_NOT_CALLED)):
            ec2.describe_enis(InstanceId("i-1"))
        assert any("the answer" in record.message for record in caplog.records), "what happened is in the log"
        caplog.clear()
    assert server.sent_bytes <= 8 * (AWS_BYTES_MAX + BUFFERS_BYTES)


@pytest.mark.parametrize(
    "body",
    [HTML, b"", b"[]", b"null", b'"text"', b"{}", b"[" * 100_000, b"\xff\xfe",
     json.dumps({"AccessKeyId": 1, "SecretAccessKey": [], "Token": {}, "Expiration": "never"}).encode()],
    ids=["html", "empty", "list", "null", "text", "nothing", "deep", "bytes", "types"],
)  # fmt: skip
@pytest.mark.parametrize("container", [False, True])
def test_credentials_of_another_shape_are_a_typed_error(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch, body: bytes, container: bool
) -> None:
    """What gives them is not ours, and may be anything: the call is not made, and the error says so."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    if container:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/credentials")
    server.script = answer(body, kind="application/json")
    clock = FakeClock()
    config = CloudConfig(ec2_endpoint=server.url, imds_endpoint=server.url, http_timeout_s=1)
    client = Ec2Client(config, region=lambda: "us-west-2")
    ec2 = BotoEc2(config, region=str, clock=clock, sleep=clock.sleep, client=client)
    with pytest.raises(CloudError) as failed:
        ec2.describe_enis(InstanceId("i-1"))
    assert len(str(failed.value)) < 1000


def test_a_token_file_that_is_not_there_is_no_answer_of_ec2(
    server: HostileServer, ec2: BotoEc2, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Credentials of a service account (IRSA) whose volume is not mounted: nothing was sent, and the file is named."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/x")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(CloudError) as failure:
        ec2.describe_enis(InstanceId("i-1"))
    assert f"{tmp_path / 'token'}" in failure.value.details
    assert "it may have taken effect" not in str(failure.value)
    assert server.request_count == 0


def test_attempts_are_bounded_by_the_policy(server: HostileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the retries as they are: a proxy's page is asked for a few times, not for ever."""
    server.script = answer(HTML)
    clock = FakeClock()
    ec2 = BotoEc2(CloudConfig(ec2_endpoint=server.url), region=lambda: "us-west-2", clock=clock, sleep=clock.sleep)
    with pytest.raises(CloudError):
        ec2.describe_enis(InstanceId("i-1"))
    assert server.request_count == IDEMPOTENT.attempts
