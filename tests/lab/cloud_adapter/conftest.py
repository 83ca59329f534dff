"""A small VPC with its EC2 and metadata servers on loopback, and adapters whose sleep moves the lab's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.cloud import trim_model
from ipamd.cloud.child import Ec2Child
from ipamd.cloud.client import Ec2Client
from ipamd.cloud.ec2 import BotoEc2
from ipamd.cloud.metadata import ImdsMetadata
from ipamd.model.cloud import EniRequest
from ipamd.model.ids import EniId, InstanceId, SubnetId
from ipamd.settings import CloudConfig
from lab.ec2.server import Ec2Server
from lab.imds.server import ImdsServer
from lab.vpc.interfaces import Delays
from lab.vpc.state import Vpc
from tests import aws_environment
from tests.unit.cloud.clocks import FakeClock

TAGS = {"node.k8s.amazonaws.com/instance_id": "i-lab", "team": "net"}


@dataclass
class Bench:
    """The lab, its clock and the adapters under test."""

    vpc: Vpc
    clock: FakeClock
    ec2: BotoEc2
    imds: ImdsMetadata
    config: CloudConfig
    instance_id: InstanceId
    subnet_id: SubnetId
    imds_server: ImdsServer
    model_dir: Path

    def new_ec2(self, *, in_process: bool = False, **changes: object) -> BotoEc2:
        """Another adapter, as after a restart, with other settings if named."""
        config = replace(self.config, **changes)
        return self.over(self.in_process(config) if in_process else self.child(config))

    def over(self, client: Ec2Client) -> BotoEc2:
        """The adapter over a client, in the lab's time."""
        return BotoEc2(self.config, region=str, clock=self.clock, sleep=self.clock.sleep, client=client)

    def child(self, config: CloudConfig) -> Ec2Child:
        """What the daemon uses."""
        return Ec2Child(config, region=lambda: self.vpc.region)

    def in_process(self, config: CloudConfig) -> Ec2Client:
        """What that process runs, here, for a test that looks inside."""
        return Ec2Client(config, region=lambda: self.vpc.region, model_dir=self.model_dir)

    def request(self, *, token: str = "token-1", addresses: int = 0, prefixes: int = 0) -> EniRequest:
        """A CreateNetworkInterface request."""
        return EniRequest(
            subnet_id=self.subnet_id,
            security_group_ids=(self.vpc.default_group_id,),
            description="aws-K8S-lab",
            tags=TAGS,
            client_token=token,
            address_count=addresses,
            prefix_count=prefixes,
        )

    def attached(self, *, addresses: int = 3, device_index: int = 1) -> EniId:
        """An ENI made and attached through the adapter."""
        eni = self.ec2.create_eni(self.request(token=f"token-{device_index}", addresses=addresses))
        self.ec2.attach_eni(eni.eni_id, instance_id=self.instance_id, device_index=device_index, network_card=0)
        return eni.eni_id

    def fault(self, api: str, **spec: object) -> None:
        """Put one fault in force."""
        self.vpc.faults.apply({"apis": {api: spec}})

    def owned(self, eni_id: EniId) -> frozenset[IPv4Address]:
        """Secondary addresses of an ENI as the lab holds them."""
        return frozenset(self.vpc.eni(eni_id).secondary_addresses)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trimmed data of the installed botocore, apart from the checkout's own."""
    directory = tmp_path_factory.mktemp("model") / "data"
    trim_model.write(directory)
    return directory


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No AWS settings, credentials or proxies of the machine leak in."""
    aws_environment.clean(monkeypatch)


@pytest.fixture
def make_bench(model_dir: Path) -> Iterator[Callable[..., Bench]]:
    """Build benches; everything they started is stopped afterwards."""
    started: list[Ec2Server | ImdsServer | Vpc] = []

    def make(
        *, instance_type: str = "m5.large", attach_delay_s: float = 0.0, detach_delay_s: float = 0.0, has_ipv6: bool = False
    ) -> Bench:
        clock = FakeClock()
        cidrs = ("2600:1f14:abc:de00::/56", "2600:1f14:abc:de01::/64") if has_ipv6 else ("", "")
        vpc = Vpc(clock=clock.monotonic, delays=Delays(attach_delay_s, detach_delay_s), ipv6_cidr=cidrs[0])
        started.append(vpc)
        subnet = vpc.add_subnet("10.0.0.0/24", ipv6_cidr=cidrs[1])
        instance = vpc.add_instance(name="node", instance_type=instance_type, subnet_id=subnet.subnet_id)
        server = Ec2Server(vpc, sockets=[("127.0.0.1", 0)])
        metadata = ImdsServer(vpc, instance.instance_id)
        for one in (server, metadata):
            one.start()
            started.append(one)
        config = CloudConfig(ec2_endpoint=server.url, imds_endpoint=metadata.url, http_timeout_s=10)
        # What the daemon's process of EC2 runs; that the answers pass from there as they are is tests/contract/ports/test_ec2.py's.
        client = Ec2Client(config, region=lambda: vpc.region, model_dir=model_dir)
        return Bench(
            vpc=vpc,
            clock=clock,
            ec2=BotoEc2(config, region=str, clock=clock, sleep=clock.sleep, client=client),
            imds=ImdsMetadata(config, clock=clock, sleep=clock.sleep),
            config=config,
            instance_id=InstanceId(instance.instance_id),
            subnet_id=SubnetId(subnet.subnet_id),
            imds_server=metadata,
            model_dir=model_dir,
        )

    yield make
    for one in reversed(started):
        one.close() if isinstance(one, Vpc) else one.stop()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """The usual bench: an m5.large (3 ENIs of 10 addresses) in a /24."""
    return make_bench()
