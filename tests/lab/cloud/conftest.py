"""A VPC on a hand-moved clock, an EC2 endpoint on loopback, and real boto3 clients that do not retry."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from moto_players import arena  # noqa: F401  a fixture of the two moto files

from lab.ec2 import Ec2Server
from lab.httpd import Listener
from lab.vpc.interfaces import Delays
from lab.vpc.model import Eni, Instance, Subnet
from lab.vpc.state import Vpc

ATTACH_S = 2.0
DETACH_S = 3.0

Ec2Client = Any  # boto3 makes its clients at run time
ClientMaker = Callable[..., Ec2Client]
Refused = Callable[..., AbstractContextManager[None]]


class ManualClock:
    """A monotonic clock that only `advance` moves."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Return the time in seconds."""
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> None:
        """Move on."""
        with self._lock:
            self._now += seconds


@dataclass
class Cloud:
    """One VPC with a /24 and an m5.large, and a client whose calls come in tagged node-a."""

    vpc: Vpc
    clock: ManualClock
    server: Ec2Server
    ec2: Ec2Client
    subnet: Subnet
    node: Instance

    def advance(self, seconds: float) -> None:
        """Move the clock and apply what fell due."""
        self.clock.advance(seconds)
        self.vpc.tick()

    def create(self, **params: object) -> str:
        """Create an ENI in the subnet, return its ID."""
        answer = self.ec2.create_network_interface(SubnetId=self.subnet.subnet_id, **params)
        return str(answer["NetworkInterface"]["NetworkInterfaceId"])

    def attach(self, eni_id: str, device_index: int = 1) -> str:
        """Start to attach an ENI to the node, return the attachment ID."""
        answer = self.ec2.attach_network_interface(
            NetworkInterfaceId=eni_id, InstanceId=self.node.instance_id, DeviceIndex=device_index
        )
        return str(answer["AttachmentId"])

    def show(self, eni_id: str) -> dict[str, Any]:
        """Describe one ENI."""
        found: dict[str, Any] = self.ec2.describe_network_interfaces(NetworkInterfaceIds=[eni_id])["NetworkInterfaces"][0]
        return found

    def primary(self) -> Eni:
        """Return the node's primary ENI."""
        return self.vpc.world.attached_to(self.node.instance_id)[0]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Fail a test that leaves a thread of the lab behind."""
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith(("lab-", "vpc-"))]
    assert left == []


@pytest.fixture(scope="session")
def aws() -> boto3.Session:
    """Return one session, so that the service model is read once."""
    return boto3.Session(aws_access_key_id="any", aws_secret_access_key="any", region_name="us-west-2")


@pytest.fixture
def make_client(aws: boto3.Session) -> Iterator[ClientMaker]:
    """Return a maker of EC2 clients without retries, which are closed at the end."""
    made: list[Ec2Client] = []

    def make(url: str, *, read_timeout_s: float = 10.0, attempts: int = 1, validate: bool = True) -> Ec2Client:
        config = Config(
            retries={"total_max_attempts": attempts, "mode": "standard"},
            connect_timeout=5,
            read_timeout=read_timeout_s,
            max_pool_connections=20,
            parameter_validation=validate,
        )
        client: Ec2Client = aws.client("ec2", endpoint_url=url, config=config)
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that stands still."""
    return ManualClock()


@pytest.fixture
def vpc(clock: ManualClock) -> Iterator[Vpc]:
    """Return a VPC whose attachments take ATTACH_S and DETACH_S."""
    with Vpc(clock=clock, delays=Delays(ATTACH_S, DETACH_S)) as made:
        yield made
        assert made.listener_errors == []


@pytest.fixture
def cloud(vpc: Vpc, clock: ManualClock, make_client: ClientMaker) -> Iterator[Cloud]:
    """Return a running cloud with one node."""
    subnet = vpc.add_subnet("10.0.1.0/24")
    node = vpc.add_instance(name="node-a", subnet_id=subnet.subnet_id)
    with Ec2Server(vpc, sockets=[Listener(("127.0.0.1", 0), "node-a")]) as server:
        yield Cloud(vpc, clock, server, make_client(server.url), subnet, node)


@pytest.fixture
def refused() -> Refused:
    """Return a context in which EC2 must refuse with a code, a part of the message and, if given, a status."""

    @contextmanager
    def expect(code: str, part: str = "", *, status: int = 400) -> Iterator[None]:
        with pytest.raises(ClientError) as caught:
            yield
        error = caught.value.response["Error"]
        assert (error["Code"], part in error["Message"]) == (code, True), error
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == status

    return expect
