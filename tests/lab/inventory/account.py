"""A VPC with its EC2 over HTTP, ENIs put into it by the thousand, and the inventory with a clock that nobody waits for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import IPv4Address, IPv4Network

from ipamd.cloud.calls import Ec2Calls
from ipamd.cloud.inventory_client import PAGE_BYTES_MAX, InventoryClient
from ipamd.inventory.memory import InventoryMemory
from ipamd.inventory.report import InventoryReport, SubnetReport
from ipamd.inventory.take import InventoryOrder, take_inventory
from ipamd.model.eni_tags import CLUSTER_TAG, CREATED_AT_TAG, INSTANCE_TAG
from ipamd.model.time_text import rfc3339
from ipamd.settings import CloudConfig
from lab.ec2.server import Ec2Server
from lab.vpc.model import Eni, Subnet
from lab.vpc.state import Vpc
from tests.fakes.clock import FakeClock

CLUSTER = "blue"


@dataclass
class InventoryAccount:
    """The parts. `memory` is that of the job; each `take` is one run."""

    vpc: Vpc
    url: str
    clock: FakeClock = field(default_factory=FakeClock)
    memory: InventoryMemory = field(default_factory=InventoryMemory)
    slept_s: list[float] = field(default_factory=list)
    bytes_max: int = PAGE_BYTES_MAX
    calls: Ec2Calls | None = None
    """Those of the last run."""

    def order(self, **changes: object) -> InventoryOrder:
        """All subnets of the VPC, with the bounds of the command."""
        values = {
            "cluster_name": CLUSTER,
            "vpc_id": self.vpc.vpc_id,
            "region": self.vpc.region,
            "subnet_names": ("all",),
            "calls_max": 20,
            "leak_age": timedelta(minutes=30),
            "second_look_s": 60.0,
        }
        return InventoryOrder(**(values | changes))  # type: ignore[arg-type]

    def take(self, **changes: object) -> InventoryReport:
        """Run once."""
        config = CloudConfig(ec2_endpoint=self.url)
        client = InventoryClient(config, region=lambda: self.vpc.region, bytes_max=self.bytes_max)
        self.calls = Ec2Calls(client, clock=self.clock, sleep=self.clock.advance)
        self.vpc.clear_calls()
        return take_inventory(self.order(**changes), self.memory, calls=self.calls, clock=self.clock, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.clock.advance(seconds)

    def tags(self, maker: str, *, age: timedelta = timedelta(hours=2), cluster: str = CLUSTER) -> dict[str, str]:
        """The tags that a daemon gives an ENI."""
        created_at = rfc3339(self.clock.now() - age, timespec="seconds")
        return {INSTANCE_TAG: maker, CREATED_AT_TAG: created_at, CLUSTER_TAG: cluster}

    def eni(
        self, subnet: Subnet, primary: IPv4Address, *, secondary: Sequence[IPv4Address] = (), prefixes: Sequence[IPv4Network] = ()
    ) -> Eni:
        """Make an ENI with these addresses, attached to nothing and without tags."""
        return Eni(
            eni_id=self.vpc.ids.make("eni"),
            mac=self.vpc.ids.mac(),
            subnet_id=subnet.subnet_id,
            subnet_cidr=subnet.cidr,
            az=subnet.az,
            primary_address=primary,
            secondary_addresses=tuple(secondary),
            prefixes=tuple(prefixes),
            security_groups=(self.vpc.default_group_id,),
        )

    def many(self, subnet: Subnet, count: int) -> list[Eni]:
        """Put as many ENIs with one address each into a subnet, from its beginning."""
        first = subnet.cidr.network_address + 4
        enis = [self.eni(subnet, first + number) for number in range(count)]
        self.vpc.add_enis(enis)
        return enis


@contextmanager
def an_account(*, cidr: str = "10.0.0.0/16") -> Iterator[InventoryAccount]:
    """Run the lab's EC2 for one VPC."""
    with Vpc(cidr=cidr) as vpc, Ec2Server(vpc, sockets=[("127.0.0.1", 0)]) as server:
        yield InventoryAccount(vpc, server.url)


def report_of(report: InventoryReport, subnet: Subnet) -> SubnetReport:
    """The report of one subnet."""
    (own,) = [shown for shown in report.subnets if shown.subnet_id == subnet.subnet_id]
    return own
