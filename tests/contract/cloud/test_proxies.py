"""What goes by the proxy of the environment: EC2 and STS; instance metadata and a container's endpoint never, credentials included.

A proxy would ask its own host's metadata, and hand over its own role's keys.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator

import pytest

from ipamd.cloud.client import Ec2Client
from ipamd.cloud.ec2 import BotoEc2
from ipamd.cloud.metadata import ImdsMetadata
from ipamd.model.errors import CloudError
from ipamd.model.failures import FailureCode
from ipamd.model.ids import InstanceId
from ipamd.settings import CloudConfig
from tests.contract.cloud.server import HostileServer, Script, answer, hostile
from tests.errors import failed
from tests.unit.cloud.clocks import FakeClock

KEYS = {
    "Code": "Success",
    "AccessKeyId": "ASIAOURS",
    "SecretAccessKey": "ours",
    "Token": "token",
    "SessionToken": "token",
    "Expiration": "2036-01-01T00:00:00Z",
}
NOTHING = b"<DescribeNetworkInterfacesResponse><requestId>r</requestId></DescribeNetworkInterfacesResponse>"
EC2_URL = "http://ec2.example"


def recording(paths: list[str], script: Script) -> Script:
    """The script, which notes each request's path."""

    def record(sock: socket.socket, path: str) -> None:
        paths.append(path)
        script(sock, path)

    return record


def of_a_role(sock: socket.socket, path: str) -> None:
    """Answer as instance metadata does: a token, a role, its keys."""
    body = {"token": b"token", "security-credentials": b"role"}.get(
        path.rstrip("/").rpartition("/")[2], json.dumps(KEYS).encode()
    )
    answer(body, kind="text/plain")(sock, path)


@pytest.fixture
def proxy_paths(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a proxy was asked for, which is set for everything and plays EC2."""
    paths: list[str] = []
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with hostile(recording(paths, answer(NOTHING))) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.setenv(name, "169.254.169.253,.cluster.local")
        yield paths


def asked(url: str = "http://127.0.0.1:9") -> BotoEc2:
    """The adapter in this process; its instance metadata is at the URL."""
    clock = FakeClock()
    config = CloudConfig(ec2_endpoint=EC2_URL, imds_endpoint=url, http_timeout_s=5)
    return BotoEc2(config, region=str, clock=clock, sleep=clock.sleep, client=Ec2Client(config, region=lambda: "us-west-2"))


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_credentials_of_a_role_are_asked_for_directly(
    server: HostileServer, proxy_paths: list[str], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """EC2 goes by the proxy, as it is set; not what botocore asks metadata for, the region of its mode `auto` included."""
    monkeypatch.setenv("AWS_DEFAULTS_MODE", mode)
    paths: list[str] = []
    server.script = recording(paths, of_a_role)
    assert asked(server.url).describe_enis(InstanceId("i-1")) == ()
    assert any("security-credentials" in path for path in paths)
    assert {path.rstrip("/") for path in proxy_paths} == {EC2_URL}


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_credentials_of_a_container_are_asked_for_directly(
    server: HostileServer, proxy_paths: list[str], monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """Pod Identity and ECS, by an address and by a name."""
    paths: list[str] = []
    server.script = recording(paths, answer(json.dumps(KEYS).encode(), kind="application/json"))
    url = server.url.replace("127.0.0.1", address)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/v1/credentials")
    asked().describe_enis(InstanceId("i-1"))
    assert paths == ["/v1/credentials"]
    assert {path.rstrip("/") for path in proxy_paths} == {EC2_URL}


@pytest.mark.parametrize(
    "variables",
    [
        {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials"},
        {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://[fd00:ec2::23]/v1/credentials"},
        {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/credentials"},
        {"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "ipv6"},
        {},
    ],
    ids=["pod identity", "pod identity by ipv6", "ecs", "metadata by ipv6", "metadata"],
)
def test_no_address_of_credentials_goes_by_a_proxy(
    proxy_paths: list[str], monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    """Each that AWS has. Nobody answers there; the proxy is not tried instead."""
    hosts: list[str] = []

    def refuse(address: tuple[str, int], *_: object, **__: object) -> None:
        hosts.append(address[0])
        raise ConnectionRefusedError

    monkeypatch.setattr("urllib3.util.connection.create_connection", refuse)
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    endpoint = "http://[fd00:ec2::254]" if "ipv6" in variables.values() else "http://169.254.169.254"
    with pytest.raises(CloudError, check=failed(FailureCode.EC2_NOT_CALLED)):
        asked(endpoint).describe_enis(InstanceId("i-1"))
    assert set(hosts) <= {"169.254.169.254", "fd00:ec2::254", "169.254.170.2", "169.254.170.23", "fd00:ec2::23"}
    assert hosts
    assert proxy_paths == []


@pytest.mark.parametrize("kind", ["credentials", "identity", "container"])
def test_a_redirection_is_not_followed(
    server: HostileServer, proxy_paths: list[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Neither of metadata nor of a container's endpoint: what it leads to may be anybody."""
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    paths: list[str] = []
    with hostile(recording(paths, of_a_role)) as elsewhere:

        def redirect(sock: socket.socket, _: str) -> None:
            sock.sendall(
                f"HTTP/1.1 302 Found\r\nLocation: {elsewhere.url}/latest/api/token\r\nContent-Length: 0\r\n\r\n".encode()
            )

        server.script = redirect
        clock = FakeClock()
        metadata = ImdsMetadata(CloudConfig(imds_endpoint=server.url), clock=clock, sleep=clock.sleep)
        if kind == "container":
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/v1/credentials")
        ask: Callable[[], object] = (
            metadata.identity if kind == "identity" else lambda: asked(server.url).describe_enis(InstanceId("i-1"))
        )
        with pytest.raises(CloudError):
            ask()
    assert server.request_count
    assert (paths, proxy_paths) == ([], [])
