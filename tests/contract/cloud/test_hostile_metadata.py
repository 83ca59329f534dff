"""The metadata adapter against servers that misbehave: bounded, typed, and nothing that is not metadata becomes an identity."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipamd.cloud import metadata
from ipamd.cloud.bounded_http import METADATA_BYTES_MAX
from ipamd.cloud.metadata import ImdsMetadata
from ipamd.model.errors import CloudError
from ipamd.model.failures import FailureCode
from ipamd.model.ids import MacAddress
from ipamd.pb import introspection_pb2 as pb
from ipamd.settings import CloudConfig
from tests.contract.cloud.server import MISBEHAVIOURS, HostileServer, Script, answer, misbehaviours
from tests.errors import failed, failed_by_metadata
from tests.fakes.node import FakeNode
from tests.unit.cloud.clocks import FakeClock

BUFFERS_BYTES = 16 << 20
HTML = "<html><body>Sign in to the wireless network</body></html>"
MAC = "02:00:00:00:00:01"
MACS = "/latest/meta-data/network/interfaces/macs"
DOCUMENT = {
    "instanceId": "i-0123456789abcdef0",
    "instanceType": "m5.large",
    "region": "us-west-2",
    "availabilityZone": "us-west-2a",
    "privateIp": "10.0.0.4",
}
GOOD = {
    "/latest/api/token": "AQAEAtoken==",
    "/latest/dynamic/instance-identity/document": json.dumps(DOCUMENT),
    "/latest/meta-data/mac": MAC,
    f"{MACS}/": f"{MAC}/\n",
    f"{MACS}/{MAC}/vpc-id": "vpc-1",
    f"{MACS}/{MAC}/vpc-ipv4-cidr-blocks": "10.0.0.0/16",
    f"{MACS}/{MAC}/interface-id": "eni-1",
    f"{MACS}/{MAC}/device-number": "0",
    f"{MACS}/{MAC}/local-ipv4s": "10.0.0.4\n10.0.0.5",
    f"{MACS}/{MAC}/subnet-id": "subnet-1",
    f"{MACS}/{MAC}/subnet-ipv4-cidr-block": "10.0.0.0/24",
    f"{MACS}/{MAC}/security-group-ids": "sg-1\nsg-2",
}


def tree(**changes: str) -> Script:
    """Good metadata, with other text at the paths whose last part is named."""
    texts = {path: changes.get(path.rpartition("/")[2].replace("-", "_"), text) for path, text in GOOD.items()}

    def script(sock: socket.socket, path: str) -> None:
        status = "200 OK" if path in texts else "404 Not Found"
        answer(texts.get(path, "").encode(), status=status, kind="text/plain")(sock, path)

    return script


@pytest.fixture
def imds(server: HostileServer, monkeypatch: pytest.MonkeyPatch) -> ImdsMetadata:
    """The adapter, with little time for an answer, and enough for its first byte on a busy machine."""
    monkeypatch.setattr(metadata, "READ_TIMEOUT_S", 0.6)
    clock = FakeClock()
    return ImdsMetadata(CloudConfig(imds_endpoint=server.url), clock=clock, sleep=clock.sleep)


def questions(imds: ImdsMetadata) -> list[Callable[[], object]]:
    """Everything that it asks."""
    return [imds.identity, imds.list_interfaces, lambda: imds.interface(MacAddress(MAC)), lambda: imds.read("meta-data/mac")]


def test_good_metadata_is_read(server: HostileServer, imds: ImdsMetadata) -> None:
    """What the other tests spoil."""
    server.script = tree()
    found = imds.identity()
    assert (found.instance_id, found.primary_mac, found.security_group_ids) == (DOCUMENT["instanceId"], MAC, ("sg-1", "sg-2"))
    assert imds.list_interfaces() == {MAC}
    assert imds.interface(MacAddress(MAC)).eni_id == "eni-1"


@pytest.mark.parametrize("what", MISBEHAVIOURS)
def test_an_answer_that_does_not_end_is_given_up(server: HostileServer, imds: ImdsMetadata, what: str) -> None:
    """In bytes and in time, from the token's first byte on; the error names the path and what happened."""
    server.script = misbehaviours(server)[what]
    for number, question in enumerate(questions(imds)):
        server.sent_bytes = server.request_count = 0
        with pytest.raises(CloudError, check=failed_by_metadata("api/token")) as refused:
            question()
        if "crumbs" in what:
            assert "had not ended after 0.6 s" in refused.value.details
        attempts = metadata.POLICY.attempts if number == 0 else 1
        assert server.request_count <= attempts
        assert server.sent_bytes <= attempts * (METADATA_BYTES_MAX + BUFFERS_BYTES)


@pytest.mark.parametrize(
    "text", [HTML, "", "\x1b[2J", "a\r\nX-Injected: 1", "\u00e9"], ids=["html", "empty", "escape", "header", "latin"]
)
def test_what_is_no_token_is_not_sent_back(server: HostileServer, imds: ImdsMetadata, text: str) -> None:
    """It would be a header of every later request."""
    server.script = tree(token=text)
    with pytest.raises(CloudError, check=failed_by_metadata("api/token")):
        imds.read("meta-data/mac")
    assert server.request_count == 1


@pytest.mark.parametrize(
    "change",
    [{"instanceId": 7}, {"instanceId": None}, {"instanceId": ["i-1"]}, {"instanceId": ""}, {"instanceId": "\ud800"},
     {"instanceId": "\x1b[2J"}, {"instanceType": {}}, {"region": True}, {"availabilityZone": 1.5}, {"privateIp": 167772164},
     {"privateIp": ["10.0.0.4"]}, {"instanceId": "x" * 2000}],
    ids=lambda change: ascii(change)[:40],
)  # fmt: skip
def test_wrong_types_in_the_identity_document_are_an_error(
    server: HostileServer, imds: ImdsMetadata, change: dict[str, Any]
) -> None:
    """Not an identity that every later answer of the daemon stumbles over."""
    server.script = tree(document=json.dumps(DOCUMENT | change))
    with pytest.raises(CloudError, check=failed(FailureCode.METADATA_MALFORMED, path="dynamic/instance-identity/document")):
        imds.identity()


@pytest.mark.parametrize("text", ["[]", "null", '"text"', "7", "[" * 100_000, HTML, "", "{}"], ids=lambda text: ascii(text)[:12])
def test_an_identity_document_of_another_shape_is_an_error(server: HostileServer, imds: ImdsMetadata, text: str) -> None:
    """JSON of any kind, and what is none."""
    server.script = tree(document=text)
    with pytest.raises(CloudError, check=failed_by_metadata("dynamic/instance-identity/document")):
        imds.identity()


@pytest.mark.parametrize(
    "leaf", ["mac", "vpc_id", "vpc_ipv4_cidr_blocks", "interface_id", "subnet_id", "subnet_ipv4_cidr_block", "security_group_ids"]
)
@pytest.mark.parametrize("text", [HTML, "\x1b[2J", "x" * 5000], ids=["html", "escape", "long"])
def test_a_page_in_place_of_a_leaf_is_an_error(server: HostileServer, imds: ImdsMetadata, leaf: str, text: str) -> None:
    """A proxy that answers 200 to everything does not become a VPC."""
    server.script = tree(**{leaf: text})
    with pytest.raises(CloudError, check=failed(FailureCode.METADATA_MALFORMED)) as refused:
        imds.identity()
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("text", [HTML, "\x1b", "7"], ids=["html", "escape", "number"])
def test_a_page_in_place_of_the_interfaces_is_an_error(server: HostileServer, imds: ImdsMetadata, text: str) -> None:
    """Silence about an ENI frees it; a page is no silence (I11)."""
    server.script = answer(text.encode())
    imds._token = ("known", imds._clock.monotonic() + 1000)
    with pytest.raises(CloudError, check=failed(FailureCode.METADATA_MALFORMED)):
        imds.list_interfaces()
    with pytest.raises(CloudError, check=failed(FailureCode.METADATA_MALFORMED)):
        imds.interface(MacAddress(MAC))


def test_a_malformed_leaf_is_asked_for_again(server: HostileServer, imds: ImdsMetadata) -> None:
    """What does not change is read once, but not if it could not be understood."""
    server.script = tree(device_number="one")
    with pytest.raises(CloudError):
        imds.interface(MacAddress(MAC))
    server.script = tree()
    assert imds.interface(MacAddress(MAC)).device_index == 0


def test_status_is_told_whatever_the_identity_document_says(server: HostileServer, imds: ImdsMetadata, tmp_path: Path) -> None:
    """An instance ID that is a number made GetStatus fail for ever: it is refused, and the status is told without one."""
    server.script = tree(document=json.dumps(DOCUMENT | {"instanceId": 7}))
    node = FakeNode(tmp_path)
    node.node_info._metadata = imds
    with pytest.raises(CloudError):
        node.node_info.learn_identity()
    assert node.app.introspection.GetStatus(pb.GetStatusRequest()).instance_id == ""
    node.datastore.close()
