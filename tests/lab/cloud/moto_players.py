"""The lab's EC2 and moto's, driven by the same boto3 calls.

IDs become ordinals and addresses that the service chose become `auto`, so that what the two answer can be compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from lab.ec2 import Ec2Server
from lab.vpc.space import AddressChoice
from lab.vpc.state import Vpc

ZONE = "us-west-2a"


@dataclass
class Player:
    """One side: a client, and where it plays. ENIs and attachments are kept by ordinal, dead ones too."""

    ec2: Any
    subnet_id: str
    instance_id: str
    pool: IPv4Network
    enis: list[str] = field(default_factory=list)
    bonds: dict[int, str] = field(default_factory=dict)
    named: set[tuple[str, str]] = field(default_factory=set)

    def create(self, **params: Any) -> dict[str, Any]:
        """Create an ENI and remember it; an address given as a number is that one of the subnet's pool."""
        if isinstance(number := params.get("PrivateIpAddress"), int):
            params["PrivateIpAddress"] = str(self.pool[number])
        eni: dict[str, Any] = self.ec2.create_network_interface(SubnetId=self.subnet_id, **params)["NetworkInterface"]
        self.enis.append(eni["NetworkInterfaceId"])
        if "PrivateIpAddress" in params:
            self.named.add((self.enis[-1], params["PrivateIpAddress"]))
        return eni

    def attach(self, ordinal: int, index: int) -> None:
        """Attach an ENI."""
        answer = self.ec2.attach_network_interface(
            NetworkInterfaceId=self.enis[ordinal], InstanceId=self.instance_id, DeviceIndex=index
        )
        self.bonds[ordinal] = answer["AttachmentId"]

    def detach(self, ordinal: int) -> None:
        """Detach an ENI."""
        self.ec2.detach_network_interface(AttachmentId=self.bonds[ordinal])

    def delete(self, ordinal: int) -> None:
        """Delete an ENI."""
        self.ec2.delete_network_interface(NetworkInterfaceId=self.enis[ordinal])

    def assign(self, ordinal: int, **params: Any) -> Any:
        """Assign by count."""
        return self.ec2.assign_private_ip_addresses(NetworkInterfaceId=self.enis[ordinal], **params)

    def assign_named(self, ordinal: int, number: int) -> None:
        """Assign one address of the pool."""
        address = str(self.pool[number])
        self.assign(ordinal, PrivateIpAddresses=[address])
        self.named.add((self.enis[ordinal], address))

    def unassign(self, ordinal: int, *positions: int) -> None:
        """Unassign addresses by position; 0 is the primary one."""
        listed = [entry["PrivateIpAddress"] for entry in self.show(ordinal)["PrivateIpAddresses"]]
        gone = [listed[position] for position in positions]
        self.ec2.unassign_private_ip_addresses(NetworkInterfaceId=self.enis[ordinal], PrivateIpAddresses=gone)

    def tag(self, ordinal: int, key: str, value: str) -> None:
        """Tag an ENI."""
        self.ec2.create_tags(Resources=[self.enis[ordinal]], Tags=[{"Key": key, "Value": value}])

    def untag(self, ordinal: int, key: str) -> None:
        """Remove a tag."""
        self.ec2.delete_tags(Resources=[self.enis[ordinal]], Tags=[{"Key": key}])

    def show(self, ordinal: int) -> dict[str, Any]:
        """Describe one ENI."""
        answer = self.ec2.describe_network_interfaces(NetworkInterfaceIds=[self.enis[ordinal]])
        found: dict[str, Any] = answer["NetworkInterfaces"][0]
        return found

    def find(self, name: str, *values: str) -> list[int]:
        """Find ENIs of the subnet by one filter; ordinals, ascending."""
        mine = {"Name": "subnet-id", "Values": [self.subnet_id]}
        answer = self.ec2.describe_network_interfaces(Filters=[mine, {"Name": name, "Values": list(values)}])
        ids = [eni["NetworkInterfaceId"] for eni in answer["NetworkInterfaces"]]
        return sorted(self.enis.index(eni_id) for eni_id in ids if eni_id in self.enis)

    def picture(self) -> list[dict[str, Any]]:
        """Show every living ENI we made, renamed."""
        answer = self.ec2.describe_network_interfaces(Filters=[{"Name": "subnet-id", "Values": [self.subnet_id]}])
        mine = [eni for eni in answer["NetworkInterfaces"] if eni["NetworkInterfaceId"] in self.enis]
        return sorted((self._renamed(eni) for eni in mine), key=lambda eni: eni["ordinal"])

    def _renamed(self, eni: dict[str, Any]) -> dict[str, Any]:
        eni_id, bond = eni["NetworkInterfaceId"], eni.get("Attachment")
        texts = [(entry["PrivateIpAddress"], entry["Primary"]) for entry in eni["PrivateIpAddresses"]]
        return {
            "ordinal": self.enis.index(eni_id),
            "addresses": [(text if (eni_id, text) in self.named else "auto", primary) for text, primary in texts],
            "primary": eni["PrivateIpAddress"] == texts[0][0],
            "bond": bond and {key: bond[key] for key in ("DeviceIndex", "NetworkCardIndex", "Status", "DeleteOnTermination")},
            "bound to us": bond and bond["InstanceId"] == self.instance_id,
            "tags": sorted((tag["Key"], tag["Value"]) for tag in eni["TagSet"]),
            "groups": [group["GroupName"] for group in eni["Groups"]],
            **{key: eni[key] for key in ("Status", "Description", "AvailabilityZone", "InterfaceType", "SourceDestCheck")},
        }


Arena = Callable[[], tuple[Player, Player]]


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    """Return a maker of pairs (lab, moto), each with a fresh subnet and a fresh m5.large in it."""
    from moto import mock_aws  # here: each worker that only lists the tests would import it for nothing
    from moto.moto_api._internal import mock_random

    cidrs = IPv4Network("10.0.0.0/8").subnets(new_prefix=20)
    names = itertools.count()
    with mock_aws():
        mock_random.seed(1)
        session = boto3.Session(aws_access_key_id="any", aws_secret_access_key="any", region_name="us-west-2")
        vpc = Vpc(cidr="10.0.0.0/8", choice=AddressChoice.LOWEST)
        with vpc, Ec2Server(vpc, sockets=[("127.0.0.1", 0)]) as server:
            ours, theirs = session.client("ec2", endpoint_url=server.url), session.client("ec2")
            image = theirs.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]

            def make() -> tuple[Player, Player]:
                cidr = next(cidrs)
                pool = list(cidr.subnets(new_prefix=24))[-2]
                subnet = vpc.add_subnet(str(cidr), az=ZONE)
                node = vpc.add_instance(name=f"node-{next(names)}", subnet_id=subnet.subnet_id)
                their_vpc = theirs.create_vpc(CidrBlock=str(cidr))["Vpc"]["VpcId"]
                answer = theirs.create_subnet(VpcId=their_vpc, CidrBlock=str(cidr), AvailabilityZone=ZONE)
                their_subnet = answer["Subnet"]["SubnetId"]
                run = theirs.run_instances(ImageId=image, MinCount=1, MaxCount=1, InstanceType="m5.large", SubnetId=their_subnet)
                their_node = run["Instances"][0]["InstanceId"]
                return (
                    Player(ours, subnet.subnet_id, node.instance_id, pool),
                    Player(theirs, their_subnet, their_node, pool),
                )

            yield make
            ours.close()
            theirs.close()


def outcome(play: Callable[[Player], Any], player: Player) -> Any:
    """Return what a step gave: its value, or the code of the refusal."""
    try:
        return play(player)
    except ClientError as exc:
        return "refused", exc.response["Error"]["Code"], exc.response["ResponseMetadata"]["HTTPStatusCode"]


def agree(pair: tuple[Player, Player], play: Callable[[Player], Any]) -> Any:
    """Play one step on both sides; outcomes and pictures must be equal."""
    ours, theirs = (outcome(play, player) for player in pair)
    assert ours == theirs
    assert pair[0].picture() == pair[1].picture()
    return ours
