"""Instance metadata over the wire: tokens, paths, lag, credentials for a real boto3."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest

from lab.imds import ImdsServer

TTL = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN = "X-aws-ec2-metadata-token"
META = "/latest/meta-data/"


class Metadata:
    """A plain client of one metadata server."""

    def __init__(self, server: ImdsServer) -> None:
        self.server = server
        self.token = self.ask("PUT", "/latest/api/token", {TTL: "60"})[1]

    def ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        """Send one request; return status and text."""
        with closing(HTTPConnection(urlsplit(self.server.url).netloc, timeout=5)) as connection:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def get(self, path: str) -> str:
        """Get one path under meta-data that must be there."""
        status, text = self.ask("GET", META + path, {TOKEN: self.token})
        assert status == 200, (path, status)
        return text

    def status(self, path: str) -> int:
        """Get the status of one path under meta-data."""
        return self.ask("GET", META + path, {TOKEN: self.token})[0]


@pytest.fixture
def imds(cloud: Any) -> Iterator[Metadata]:
    """Return a client of the node's metadata."""
    with ImdsServer(cloud.vpc, cloud.node.instance_id, socket=("127.0.0.1", 0)) as server:
        yield Metadata(server)


def test_version_one_is_off(imds: Metadata) -> None:
    """A GET without a token, or with a wrong one, is 401."""
    assert imds.ask("GET", META + "instance-id", {})[0] == 401
    assert imds.ask("GET", META + "instance-id", {TOKEN: "forged"})[0] == 401


@pytest.mark.parametrize("ttl", ["", "0", "21601", "x"])
def test_token_needs_a_ttl(imds: Metadata, ttl: str) -> None:
    """A PUT without a TTL in range is 400."""
    headers = {TTL: ttl} if ttl else {}
    assert imds.ask("PUT", "/latest/api/token", headers)[0] == 400


def test_token_refusals(imds: Metadata) -> None:
    """A forwarded PUT gets no token, and a token is not got by GET."""
    assert imds.ask("PUT", "/latest/api/token", {TTL: "60", "X-Forwarded-For": "10.0.0.9"})[0] == 403
    assert imds.ask("GET", "/latest/api/token", {TTL: "60"})[0] == 405
    assert imds.ask("PUT", META + "mac", {TOKEN: imds.token})[0] == 405


def test_token_dies(cloud: Any, imds: Metadata) -> None:
    """A token is good for its TTL and not longer."""
    cloud.advance(59)
    assert imds.status("mac") == 200
    cloud.advance(2)
    assert imds.status("mac") == 401


def test_paths_of_the_instance(cloud: Any, imds: Metadata) -> None:
    """The instance's own paths say what EC2 says."""
    primary = cloud.primary()
    assert imds.get("instance-id") == cloud.node.instance_id
    assert imds.get("instance-type") == "m5.large"
    assert imds.get("mac") == primary.mac
    assert imds.get("local-ipv4") == str(primary.primary_address)
    assert imds.get("placement/availability-zone") == "us-west-2a"
    assert imds.get("placement/region") == "us-west-2"
    assert imds.get("services/domain") == "amazonaws.com"
    assert "network/" in imds.get("").splitlines()
    assert imds.status("no-such-thing") == 404
    assert imds.status("mac/deeper") == 404
    document = json.loads(imds.ask("GET", "/latest/dynamic/instance-identity/document", {TOKEN: imds.token})[1])
    assert (document["region"], document["instanceId"]) == ("us-west-2", cloud.node.instance_id)
    assert document["privateIp"] == str(primary.primary_address)


def test_paths_of_an_interface(cloud: Any, imds: Metadata) -> None:
    """Each plugged interface has its directory, with prefixes only where there are some and no card on this type."""
    eni_id = cloud.create(SecondaryPrivateIpAddressCount=2)
    cloud.attach(eni_id, 2)
    base = "network/interfaces/macs/"
    assert imds.get(base).splitlines() == [f"{cloud.primary().mac}/"]
    cloud.advance(2)
    eni = cloud.vpc.eni(eni_id)
    assert sorted(imds.get(base).splitlines()) == sorted(f"{e.mac}/" for e in cloud.vpc.enis())
    here = f"{base}{eni.mac}/"
    assert imds.get(here + "interface-id") == eni_id
    assert imds.get(here + "device-number") == "2"
    assert imds.get(here + "subnet-id") == cloud.subnet.subnet_id
    assert imds.get(here + "subnet-ipv4-cidr-block") == "10.0.1.0/24"
    assert imds.get(here + "vpc-id") == cloud.vpc.vpc_id
    assert imds.get(here + "vpc-ipv4-cidr-block") == imds.get(here + "vpc-ipv4-cidr-blocks") == "10.0.0.0/16"
    assert imds.get(here + "local-ipv4s").splitlines() == [str(a) for a in eni.addresses]
    assert imds.get(here + "security-group-ids") == cloud.vpc.default_group_id
    assert imds.get(here + "owner-id") == "123456789012"
    assert imds.status(here + "network-card") == 404
    assert imds.status(here + "ipv4-prefix") == 404
    cloud.ec2.assign_private_ip_addresses(NetworkInterfaceId=eni_id, Ipv4PrefixCount=2)
    assert imds.get(here + "ipv4-prefix").splitlines() == [str(p) for p in cloud.vpc.eni(eni_id).prefixes]
    assert len(imds.get(here + "local-ipv4s").splitlines()) == 3


def test_network_card_where_there_are_several(cloud: Any) -> None:
    """On a type with several cards the card is told."""
    big = cloud.vpc.add_instance(name="gpu", instance_type="p4d.24xlarge", subnet_id=cloud.subnet.subnet_id)
    with ImdsServer(cloud.vpc, big.instance_id, socket=("127.0.0.1", 0)) as server:
        imds = Metadata(server)
        assert imds.get(f"network/interfaces/macs/{imds.get('mac')}/network-card") == "0"


def test_metadata_lags_behind(cloud: Any, imds: Metadata) -> None:
    """With a lag the metadata shows the state of a while ago, while EC2 shows the present."""
    eni = cloud.primary()
    path = f"network/interfaces/macs/{eni.mac}/local-ipv4s"
    cloud.vpc.faults.apply({"apis": {"imds": {"lag_s": 10}}})
    cloud.advance(20)
    cloud.ec2.assign_private_ip_addresses(NetworkInterfaceId=eni.eni_id, SecondaryPrivateIpAddressCount=3)
    assert len(cloud.show(eni.eni_id)["PrivateIpAddresses"]) == 4
    assert len(imds.get(path).splitlines()) == 1
    cloud.advance(9)
    assert len(imds.get(path).splitlines()) == 1
    cloud.advance(1)
    assert len(imds.get(path).splitlines()) == 4


def test_metadata_faults(cloud: Any, imds: Metadata) -> None:
    """Metadata can fail, lose answers and refuse, apart from EC2."""
    cloud.vpc.faults.apply({"apis": {"imds": {"error": {"status": 503, "count": 1}}}})
    assert imds.status("mac") == 503
    assert imds.status("mac") == 200
    cloud.vpc.faults.apply({"apis": {"imds": {"lost_answers": {"count": 1}}}})
    with pytest.raises((HTTPException, ConnectionError)):
        imds.get("mac")
    cloud.vpc.faults.apply({"unreachable": {"imds": "refuse"}})
    with pytest.raises(ConnectionRefusedError):
        imds.get("mac")
    cloud.ec2.describe_vpcs()
    cloud.vpc.faults.clear()
    assert imds.status("mac") == 200


def test_terminated_instance_has_no_metadata(cloud: Any, imds: Metadata) -> None:
    """Once terminated, everything is 404."""
    cloud.vpc.terminate_instance(cloud.node.instance_id)
    assert imds.status("instance-id") == 404


def test_a_real_client_needs_nothing_else(cloud: Any, imds: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 without any configuration gets its credentials from the instance role here, and calls EC2 with them."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", imds.server.url)
    session = boto3.Session()
    credentials = session.get_credentials()
    assert credentials is not None
    assert (credentials.method, credentials.token) == ("iam-role", "lab-session-token")
    before = imds.server.request_count
    ec2: Any = session.client("ec2", endpoint_url=cloud.server.url, region_name=cloud.vpc.region)
    with closing(ec2):
        assert ec2.describe_instances()["Reservations"]
    assert before >= 3
    assert imds.server.request_count == before
