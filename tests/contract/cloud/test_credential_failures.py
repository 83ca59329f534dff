"""Who did not give credentials is named, with what helps there; a call that was never made changed nothing (I9, I14, I18)."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from ipamd.cloud import credentials
from ipamd.cloud.client import Ec2Client
from ipamd.cloud.credential_errors import Party
from ipamd.cloud.ec2 import BotoEc2
from ipamd.model.errors import CloudCredentialsError, CloudDeniedError, CloudError
from ipamd.model.ids import EniId, InstanceId
from ipamd.settings import CloudConfig
from tests.contract.cloud.server import HostileServer, Script, answer, hostile
from tests.errors import refused_by_ec2
from tests.unit.cloud.clocks import FakeClock

ROLE = "arn:aws-eusc:iam::111122223333:role/pods"
FAR = "2036-01-01T00:00:00Z"
NOTHING = b"<DescribeNetworkInterfacesResponse><requestId>r</requestId></DescribeNetworkInterfacesResponse>"


def granted(until: str = FAR, key: str = "ASIAONE") -> bytes:
    """What STS answers."""
    name = "AssumeRoleWithWebIdentity"
    keys = f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
    return (
        f'<{name}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{name}Result><Credentials>{keys}'
        f"<Expiration>{until}</Expiration></Credentials></{name}Result>"
        f"<ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></{name}Response>"
    ).encode()


def sts_error(code: str, *, status: str = "400 Bad Request") -> Script:
    """A refusal by STS."""
    error = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>no</Message></Error>"
    body = f"<ErrorResponse>{error}<RequestId>r</RequestId></ErrorResponse>"
    return answer(body.encode(), status=status)


def ec2_refusal(code: str) -> bytes:
    """A refusal by EC2."""
    error = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
    return f"<Response><Errors>{error}</Errors><RequestID>r</RequestID></Response>".encode()


def silent(sock: socket.socket, _path: str) -> None:
    """Nothing comes until the other side leaves."""
    sock.recv(1)


def closing(sock: socket.socket, _path: str) -> None:
    """The connection ends."""
    sock.shutdown(socket.SHUT_RDWR)


def keys(**changed: object) -> bytes:
    """What a container's endpoint and instance metadata give."""
    given = {"Code": "Success", "AccessKeyId": "ASIATWO", "SecretAccessKey": "s", "Token": "t", "Expiration": FAR}
    return json.dumps(given | changed).encode()


@pytest.fixture(autouse=True)
def _without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.TIMEOUT_SECONDS", 1)
    monkeypatch.setattr(credentials, "STS_ANSWER_S", 1)
    monkeypatch.setattr("time.sleep", lambda _: None)  # botocore's own pauses between two attempts


class World:
    """The adapter in this process, before an EC2 that answers, or that nobody may ask."""

    def __init__(self, *, ec2: str = "http://127.0.0.1:9", metadata: str = "http://127.0.0.1:9") -> None:
        clock = FakeClock()
        config = CloudConfig(ec2_endpoint=ec2, imds_endpoint=metadata, http_timeout_s=5)
        self.client = Ec2Client(config, region=lambda: "eusc-de-east-1")
        self.ec2 = BotoEc2(config, region=str, clock=clock, sleep=clock.sleep, client=self.client)

    def failure(self) -> CloudCredentialsError:
        """How a call that changes something ends."""
        with pytest.raises(CloudCredentialsError) as failed:
            self.ec2.assign_addresses(EniId("eni-1"), count=1)
        return failed.value


def judge(failure: CloudCredentialsError, party: Party, hint: str) -> None:
    """What holds of each: the party, the advice, and that nothing was changed."""
    assert failure.party == party
    assert failure.message.startswith("EC2 AssignPrivateIpAddresses was not called for ")
    assert party in failure.details
    assert re.search(hint, failure.next_step), failure.next_step
    assert not failure.may_have_happened
    assert "may have taken effect" not in str(failure)
    assert str(failure).isprintable()
    assert len(str(failure)) < 1200


@pytest.fixture
def irsa(server: HostileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A service account's role: the token file; the server plays STS."""
    token = tmp_path / "token"
    token.write_text("eyJhbGciOiJub25lIn0.e30.")
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
    return token


@pytest.mark.parametrize(
    ("script", "hint"),
    [
        (sts_error("AccessDenied", status="403 Forbidden"), f"trust policy of role {ROLE}"),
        (sts_error("InvalidIdentityToken"), "OIDC provider of this cluster"),
        (sts_error("ExpiredTokenException"), "clock"),
        (sts_error("IDPCommunicationError"), "OIDC issuer"),
        (sts_error("IDPRejectedClaim", status="403 Forbidden"), "OIDC provider"),
        (sts_error("RegionDisabledException", status="403 Forbidden"), "activate STS"),
        (sts_error("Throttling"), "throttles"),
        (sts_error("SomethingNew"), "STS's list of errors"),
        (sts_error("InternalFailure", status="500 Internal Server Error"), "fault of its own"),
        (answer(b"", status="503 Service Unavailable"), "fault of its own"),
        (silent, "route, DNS, proxy and security groups to STS"),
        (closing, "route, DNS, proxy and security groups to STS"),
        (answer(b"<html>Sign in</html>"), "AWS_ENDPOINT_URL_STS"),
        (answer(b"<html>Sign in", status="403 Forbidden"), "AWS_ENDPOINT_URL_STS"),
        (answer(b"{}"), "AWS_ENDPOINT_URL_STS"),
        (answer(granted(until="never")), "AWS_ENDPOINT_URL_STS"),
    ],
    ids=["denied", "token", "expired", "issuer", "claim", "region", "throttled", "new", "500", "503", "silent", "closes", "html",
         "403 html", "json", "no time"],
)  # fmt: skip
def test_a_failure_of_sts_is_one_of_sts(server: HostileServer, irsa: Path, script: Script, hint: str) -> None:
    """It refuses, is silent, has a fault, or somebody else answers."""
    assert irsa.exists()
    server.script = script
    judge(World().failure(), Party.STS, hint)


def test_an_sts_that_nobody_reaches(server: HostileServer, irsa: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is refused."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9")
    judge(World().failure(), Party.STS, "STS at http://127.0.0.1:9")
    assert irsa.exists()
    assert server.request_count == 0


def _missing(token: Path) -> None:
    token.unlink()


def _empty(token: Path) -> None:
    token.write_text("")


def _binary(token: Path) -> None:
    token.write_bytes(b"\xff\xfe\x00")


def _directory(token: Path) -> None:
    token.unlink()
    token.mkdir()


BROKEN_FILES = [_missing, _empty, _binary, _directory]


@pytest.mark.parametrize("damage", BROKEN_FILES)
def test_a_token_file_that_cannot_be_used(server: HostileServer, irsa: Path, damage: Callable[[Path], None]) -> None:
    """STS is not asked, and the file is named."""
    damage(irsa)
    failure = World().failure()
    judge(failure, Party.TOKEN_FILE, re.escape(str(irsa)))
    assert server.request_count == 0


def test_keys_that_have_ended_when_they_come_are_the_clocks(server: HostileServer, irsa: Path) -> None:
    """The node's clock is ahead."""
    assert irsa.exists()
    server.script = answer(granted(until="2020-01-01T00:00:00Z"))
    judge(World().failure(), Party.CLOCK, "chronyc")


@pytest.mark.parametrize(
    ("script", "hint"),
    [
        (silent, "DaemonSet eks-pod-identity-agent"),
        (closing, "DaemonSet eks-pod-identity-agent"),
        (answer(b"no association", status="404 Not Found"), "association"),
        (answer(b"denied", status="400 Bad Request"), "association"),
        (answer(b"denied", status="403 Forbidden"), "pods.eks.amazonaws.com"),
        (answer(b"", status="500 Internal Server Error"), "log of the DaemonSet"),
        (answer(b"<html>"), "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        (answer(b"{}"), "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        (answer(b"[]"), "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        (answer(keys(Expiration="never")), "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    ],
    ids=["silent", "closes", "404", "400", "403", "500", "html", "empty", "list", "no time"],
)
def test_a_failure_of_the_pod_identity_agent(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch, script: Script, hint: str
) -> None:
    """Silent, refusing, with a fault, or somebody else."""
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/v1/credentials")
    server.script = script
    judge(World().failure(), Party.CONTAINER, hint)


def test_a_pod_identity_token_that_is_not_there(server: HostileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The agent is not asked."""
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/v1/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "eks-pod-identity-token"))
    judge(World().failure(), Party.TOKEN_FILE, "eks-pod-identity-token")
    assert server.request_count == 0


def of_metadata(*, token: Script, role: Script, keys: Script) -> Script:
    """Instance metadata, by what is asked for."""

    def script(sock: socket.socket, path: str) -> None:
        kind = token if path.endswith("api/token") else role if path.endswith("security-credentials/") else keys
        kind(sock, path)

    return script


TOKEN, ROLE_NAME, ABSENT = answer(b"token"), answer(b"role"), answer(b"", status="404 Not Found")


@pytest.mark.parametrize(
    ("script", "hint"),
    [
        (of_metadata(token=TOKEN, role=ABSENT, keys=ABSENT), "instance profile"),
        (of_metadata(token=silent, role=ABSENT, keys=ABSENT), "hop limit of 2"),
        (of_metadata(token=closing, role=ABSENT, keys=ABSENT), "hop limit of 2"),
        (of_metadata(token=answer(b"", status="403 Forbidden"), role=ABSENT, keys=ABSENT), "HttpEndpoint=enabled"),
        (of_metadata(token=TOKEN, role=answer(b"", status="503 Slow Down"), keys=ABSENT), "so often"),
        (of_metadata(token=TOKEN, role=ROLE_NAME, keys=answer(b"<html>")), "AWS_EC2_METADATA_SERVICE_ENDPOINT"),
        (of_metadata(token=TOKEN, role=ROLE_NAME, keys=answer(b'{"Code": "AssumeRoleUnauthorizedAccess", "Message": "no"}')),
         "trusts ec2.amazonaws.com"),
        (of_metadata(token=TOKEN, role=ROLE_NAME, keys=answer(b"{}")), "AWS_EC2_METADATA_SERVICE_ENDPOINT"),
        (of_metadata(token=TOKEN, role=answer(b"", kind="text/plain; charset=odd"), keys=ABSENT), "AWS_EC2_METADATA_SERVICE_ENDPOINT"),
        (of_metadata(token=TOKEN, role=ROLE_NAME, keys=answer(b"[" * 100_000)), "AWS_EC2_METADATA_SERVICE_ENDPOINT"),
    ],
    ids=["no role", "silent", "closes", "off", "busy", "html", "no trust", "empty", "charset", "deep"],
)  # fmt: skip
def test_a_failure_of_instance_metadata(server: HostileServer, script: Script, hint: str) -> None:
    """No role, no answer, switched off, busy, or somebody else."""
    server.script = script
    judge(World(metadata=server.url).failure(), Party.METADATA, hint)


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_half_of_the_keys(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The other variable is not set."""
    monkeypatch.setenv(name, "half")
    judge(World().failure(), Party.SETTINGS, "AWS_")


def test_metadata_that_is_switched_off_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_EC2_METADATA_DISABLED."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    judge(World().failure(), Party.METADATA, "AWS_EC2_METADATA_DISABLED")


@pytest.mark.parametrize("damage", ["denied", "token file"])
def test_keys_that_hold_are_used_while_their_renewal_fails(
    server: HostileServer, irsa: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Ten minutes before their end, when botocore by itself would give up; STS is asked again after a pause, not for each call."""
    until = (datetime.now(UTC) + timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    server.script = answer(granted(until=until))
    with hostile(answer(NOTHING)) as ec2:
        world = World(ec2=ec2.url)
        assert world.ec2.describe_enis(InstanceId("i-1")) == ()
        server.script = sts_error("AccessDenied", status="403 Forbidden")
        if damage == "token file":
            irsa.unlink()
        world.client._credentials._renew_at_s = 0.0
        before = server.request_count
        for _ in range(5):
            assert world.ec2.describe_enis(InstanceId("i-1")) == ()
        assert server.request_count - before <= 1
        monkeypatch.setattr(credentials, "HOLDS_S", 3600)
        with pytest.raises(CloudCredentialsError):
            world.ec2.describe_enis(InstanceId("i-1"))


def test_keys_that_ec2_refuses_are_replaced(server: HostileServer, irsa: Path) -> None:
    """The role was made anew, say: the next call searches for others, with which it succeeds."""
    assert irsa.exists()
    refusal = ec2_refusal("AuthFailure")
    server.script = answer(granted())
    with hostile(answer(refusal, status="401 Unauthorized")) as ec2:
        world = World(ec2=ec2.url)
        with pytest.raises(CloudDeniedError, check=refused_by_ec2("AuthFailure")):
            world.ec2.describe_enis(InstanceId("i-1"))
        ec2.script = answer(NOTHING)
        before = server.request_count
        assert world.ec2.describe_enis(InstanceId("i-1")) == ()
        assert server.request_count == before + 1


@pytest.mark.parametrize(
    "code", ["RequestExpired", "AuthFailure", "SignatureDoesNotMatch", "ExpiredToken", "InvalidClientTokenId"]
)
def test_a_clock_that_differs_is_measured(server: HostileServer, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """By the time in EC2's answer."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    body = (
        f"<Response><Errors><Error><Code>{code}</Code><Message>no</Message></Error></Errors><RequestID>r</RequestID></Response>"
    )
    date = format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)
    head = f"HTTP/1.1 400 Bad Request\r\nDate: {date}\r\nContent-Length: {len(body)}\r\n\r\n"
    server.script = lambda sock, _: sock.sendall((head + body).encode())
    with pytest.raises(CloudDeniedError, match=r"the node's clock is (599|600|601) s behind"):
        World(ec2=server.url).ec2.describe_enis(InstanceId("i-1"))


def test_who_waits_for_a_search_that_fails_gets_its_failure(server: HostileServer, irsa: Path) -> None:
    """Eight calls at once ask STS once, not one after the other until their time is over."""
    assert irsa.exists()
    go = threading.Event()

    def slow(sock: socket.socket, path: str) -> None:
        go.wait(5)
        sts_error("AccessDenied", status="403 Forbidden")(sock, path)

    server.script = slow
    world, failures = World(), []

    def call() -> None:
        try:
            world.ec2.describe_enis(InstanceId("i-1"))
        except CloudError as error:
            failures.append(error)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    while server.request_count == 0 or world.client._credentials is None:
        threading.Event().wait(0.01)
    threading.Event().wait(0.2)  # the others wait for the lock by now
    go.set()
    for thread in threads:
        thread.join()
    assert [type(failure) for failure in failures] == [CloudCredentialsError] * 8
    assert server.request_count <= 2
