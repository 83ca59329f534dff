"""The lab's EC2 held against moto's: the same boto3 calls to both, answers compared after renaming.

IDs become ordinals, addresses that the service chose become `auto`. The common subset must agree, in fixed scripts and
in generated ones. Where moto is known to differ from the real EC2 it stands in DEVIATIONS with the reason, and each row is
shown to be still true, of both sides, so that the table cannot rot.
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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moto import mock_aws
from moto.ec2.exceptions import FilterNotImplementedError
from moto.moto_api._internal import mock_random

from lab.ec2 import Ec2Server
from lab.vpc.state import AddressChoice, Vpc

NOT_FOUND = "InvalidNetworkInterfaceID.NotFound"
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


@pytest.fixture
def no_thread_left() -> None:
    """Replace the check of the other files: here one server serves all tests of the file."""


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    """Return a maker of pairs (lab, moto), each with a fresh subnet and a fresh m5.large in it."""
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


def test_the_whole_life_of_an_interface(arena: Arena) -> None:
    """Create, tag, assign, attach, change, detach, unassign and delete look the same on both sides."""
    pair = arena()
    agree(pair, lambda p: p.create(Description="a", SecondaryPrivateIpAddressCount=2) and None)
    agree(pair, lambda p: p.create(PrivateIpAddress=9) and None)
    agree(pair, lambda p: p.tag(0, "k", "v"))
    agree(pair, lambda p: p.assign_named(0, 5))
    agree(pair, lambda p: p.attach(0, 1))
    agree(pair, lambda p: p.attach(1, 2))
    agree(pair, lambda p: p.assign(1, SecondaryPrivateIpAddressCount=3) and None)
    agree(pair, lambda p: p.unassign(0, 1, 3))
    agree(pair, lambda p: p.untag(0, "k"))
    agree(pair, lambda p: p.detach(1))
    agree(pair, lambda p: p.delete(1))
    agree(pair, lambda p: p.delete(1))
    agree(pair, lambda p: p.show(1))


def test_refusals_in_common(arena: Arena) -> None:
    """Unknown IDs, bad types and DryRun are refused with the same code and status."""
    pair = arena()
    steps: list[Callable[[Player], Any]] = [
        lambda p: p.ec2.create_network_interface(SubnetId="subnet-0"),
        lambda p: p.ec2.create_network_interface(SubnetId=p.subnet_id, DryRun=True),
        lambda p: p.ec2.attach_network_interface(NetworkInterfaceId="eni-0", InstanceId=p.instance_id, DeviceIndex=1),
        lambda p: p.ec2.detach_network_interface(AttachmentId="eni-attach-0"),
        lambda p: p.ec2.delete_network_interface(NetworkInterfaceId="eni-0"),
        lambda p: p.ec2.modify_network_interface_attribute(NetworkInterfaceId="eni-0", Description={"Value": "x"}),
        lambda p: p.ec2.assign_private_ip_addresses(NetworkInterfaceId="eni-0", SecondaryPrivateIpAddressCount=1),
        lambda p: p.ec2.unassign_private_ip_addresses(NetworkInterfaceId="eni-0", PrivateIpAddresses=["10.0.0.9"]),
        lambda p: p.ec2.describe_network_interfaces(NetworkInterfaceIds=["eni-0"]),
        lambda p: p.ec2.describe_instances(InstanceIds=["i-0"]),
        lambda p: p.ec2.describe_subnets(SubnetIds=["subnet-0"]),
        lambda p: p.ec2.describe_instance_types(InstanceTypes=["z9.huge"]),
    ]
    for step in steps:
        assert agree(pair, step)[0] == "refused"


def test_readings_in_common(arena: Arena) -> None:
    """Counts of free addresses, instance interfaces and type limits are read alike."""
    pair = arena()

    def free(p: Player) -> int:
        return int(p.ec2.describe_subnets(SubnetIds=[p.subnet_id])["Subnets"][0]["AvailableIpAddressCount"])

    def interfaces(p: Player) -> list[tuple[int, str, int]]:
        (instance,) = p.ec2.describe_instances(InstanceIds=[p.instance_id])["Reservations"][0]["Instances"]
        return [
            (eni["Attachment"]["DeviceIndex"], eni["Status"], len(eni["PrivateIpAddresses"]))
            for eni in sorted(instance["NetworkInterfaces"], key=lambda eni: int(eni["Attachment"]["DeviceIndex"]))
        ]

    def limits(p: Player) -> tuple[object, ...]:
        network = p.ec2.describe_instance_types(InstanceTypes=["m5.large"])["InstanceTypes"][0]["NetworkInfo"]
        keys = ("MaximumNetworkInterfaces", "Ipv4AddressesPerInterface", "MaximumNetworkCards", "DefaultNetworkCardIndex")
        return tuple(network[key] for key in keys)

    agree(pair, free)
    agree(pair, lambda p: p.create(SecondaryPrivateIpAddressCount=2) and None)
    agree(pair, lambda p: p.attach(0, 2))
    assert agree(pair, interfaces) == [(0, "in-use", 1), (2, "in-use", 3)]
    assert agree(pair, limits) == (3, 10, 1, 0)


Step = tuple[str, int, int]
OPERATIONS = ("create", "attach", "detach", "delete", "assign", "assign_named", "unassign", "tag", "untag", "find", "show")


def translate(step: Step, ours: Player) -> Callable[[Player], Any] | None:
    """Turn a generated step into a call of the common subset; None when it would leave it."""
    name, first, second = step
    if name == "create":
        return lambda p: p.create(Description=f"d{second}", SecondaryPrivateIpAddressCount=first % 4) and None
    if not ours.enis:
        return None
    k = first % len(ours.enis)
    living = {eni["ordinal"]: eni for eni in ours.picture()}
    eni = living.get(k)
    indexes = {e["bond"]["DeviceIndex"] for e in living.values() if e["bond"]}
    free_index = next(index for index in (1, 2, 3) if index not in indexes)
    room = 10 - len(eni["addresses"]) if eni else 10
    pool_number = 16 * k + second % 16
    calls: dict[str, tuple[bool, Callable[[Player], Any]]] = {
        "attach": (eni is None or (eni["bond"] is None and free_index < 3), lambda p: p.attach(k, free_index)),
        "detach": (eni is not None and eni["bond"] is not None, lambda p: p.detach(k)),
        "delete": (eni is None or eni["bond"] is None, lambda p: p.delete(k)),
        "assign": (room > 3, lambda p: p.assign(k, SecondaryPrivateIpAddressCount=1 + second % 3) and None),
        "assign_named": (room > 0 and k < 15, lambda p: p.assign_named(k, pool_number)),
        "unassign": (eni is None or room < 9, lambda p: p.unassign(k, 1 + second % max(1, 9 - room))),
        "tag": (eni is not None, lambda p: p.tag(k, f"k{second % 3}", f"v{second}")),
        "untag": (eni is not None, lambda p: p.untag(k, f"k{second % 3}")),
        "show": (eni is None, lambda p: p.show(k)),
        "find": (
            True,
            lambda p: [
                p.find("status", "available"),
                p.find("attachment.instance-id", p.instance_id),
                p.find("tag-key", f"k{second % 3}"),
                p.find(f"tag:k{second % 3}", f"v{second}", "v1"),
                p.find("description", f"d{second}"),
                p.find("network-interface-id", p.enis[k]),
            ],
        ),
    }
    is_common, call = calls[name]
    return call if is_common else None


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9), st.integers(0, 30)), min_size=5, max_size=25))
def test_generated_scripts_agree(arena: Arena, steps: list[Step]) -> None:
    """Any script within the common subset gives the same outcomes and the same state after each step."""
    pair = arena()
    agree(pair, lambda p: p.create() and None)
    for step in steps:
        call = translate(step, pair[0])
        if call is not None:
            agree(pair, call)


def _attached(p: Player, count: int) -> None:
    for number in range(count):
        p.create()
        p.attach(number, number + 1)


def _first_three_bound(p: Player) -> Any:
    _attached(p, 3)
    return "attached"


def _same_index(p: Player) -> Any:
    _attached(p, 1)
    p.create()
    p.attach(1, 1)
    return "attached"


def _delete_bound(p: Player) -> Any:
    _attached(p, 1)
    p.delete(0)
    return "deleted"


def _detach_primary(p: Player) -> Any:
    _attached(p, 1)
    mine = {"Name": "attachment.instance-id", "Values": [p.instance_id]}
    shown = [eni["Attachment"] for eni in p.ec2.describe_network_interfaces(Filters=[mine])["NetworkInterfaces"]]
    p.ec2.detach_network_interface(AttachmentId=next(b["AttachmentId"] for b in shown if b["DeviceIndex"] == 0))
    return "detached"


def _mark_deletion(p: Player) -> Any:
    _attached(p, 1)
    change = {"AttachmentId": p.bonds[0], "DeleteOnTermination": True}
    p.ec2.modify_network_interface_attribute(NetworkInterfaceId=p.enis[0], Attachment=change)
    return p.show(0)["Attachment"]["DeleteOnTermination"]


def _after_create(act: Callable[[Player], Any]) -> Callable[[Player], Any]:
    def play(p: Player) -> Any:
        p.create()
        return act(p)

    return play


def _bad_filter(p: Player) -> Any:
    try:
        return p.find("colour", "red")
    except FilterNotImplementedError:  # moto raises through the client: it is no answer of a service
        return "not implemented"


def _refused(code: str) -> tuple[str, str, int]:
    return "refused", code, 400


@dataclass(frozen=True)
class Deviation:
    """Something that moto does unlike EC2: what each side gives for `play`, and why ours is right."""

    name: str
    reason: str
    play: Callable[[Player], Any]
    ours: Any
    theirs: Any


DEVIATIONS = [
    Deviation("status of a new ENI", "EC2 answers Create with pending", lambda p: p.create()["Status"], "pending", "available"),
    Deviation(
        "answer of Assign",
        "EC2 lists the addresses this call added; moto all there are, the primary one too",
        _after_create(lambda p: len(p.assign(0, SecondaryPrivateIpAddressCount=1)["AssignedPrivateIpAddresses"])),
        1,
        2,
    ),
    Deviation(
        "client token",
        "EC2 makes one ENI of two calls with one token; moto ignores it",
        lambda p: (
            p.create(ClientToken=p.subnet_id)["NetworkInterfaceId"] == p.create(ClientToken=p.subnet_id)["NetworkInterfaceId"]
        ),
        True,
        False,
    ),
    Deviation(
        "prefixes",
        "moto has no prefix delegation: the parameter is ignored",
        lambda p: len(p.create(Ipv4PrefixCount=1).get("Ipv4Prefixes", [])),
        1,
        0,
    ),
    Deviation(
        "attachment limit",
        "EC2 refuses the fourth ENI of an m5.large",
        _first_three_bound,
        _refused("AttachmentLimitExceeded"),
        "attached",
    ),
    Deviation(
        "device index taken",
        "EC2 refuses a second ENI on an index",
        _same_index,
        _refused("InvalidParameterValue"),
        "attached",
    ),
    Deviation(
        "delete of a bound ENI",
        "EC2 refuses while it is in use",
        _delete_bound,
        _refused("InvalidParameterValue"),
        "deleted",
    ),
    Deviation(
        "detach of the primary ENI",
        "EC2 never detaches device 0; moto only minds the last one",
        _detach_primary,
        _refused("OperationNotPermitted"),
        "detached",
    ),
    Deviation("delete on termination", "moto ignores the change of the attachment", _mark_deletion, True, False),
    Deviation(
        "address limit",
        "EC2 bounds the addresses of an interface",
        _after_create(lambda p: p.assign(0, SecondaryPrivateIpAddressCount=60) and "assigned"),
        _refused("PrivateIpAddressLimitExceeded"),
        "assigned",
    ),
    Deviation(
        "reserved addresses",
        "EC2 keeps the first four addresses and the last one of a subnet",
        lambda p: p.create(PrivateIpAddress=str(next(p.pool.supernet(new_prefix=20).hosts()))) and "created",
        _refused("InvalidParameterValue"),
        "created",
    ),
    Deviation(
        "address taken",
        "EC2 gives an address once",
        lambda p: [p.create(PrivateIpAddress=7), p.create(PrivateIpAddress=7)] and "created twice",
        _refused("InvalidIPAddress.InUse"),
        "created twice",
    ),
    Deviation(
        "unassign of what is not there",
        "EC2 refuses; clients match on the message",
        _after_create(
            lambda p: (
                p.ec2.unassign_private_ip_addresses(NetworkInterfaceId=p.enis[0], PrivateIpAddresses=["10.0.0.9"]) and "done"
            )
        ),
        _refused("InvalidParameterValue"),
        "done",
    ),
    Deviation(
        "unassign of the primary address",
        "EC2 refuses it",
        _after_create(lambda p: p.unassign(0, 0) or "done"),
        _refused("InvalidParameterValue"),
        "done",
    ),
    Deviation(
        "unknown security group",
        "EC2 refuses; moto makes the group",
        lambda p: [group["GroupId"] for group in p.create(Groups=["sg-0"])["Groups"]],
        _refused("InvalidGroup.NotFound"),
        ["sg-0"],
    ),
    Deviation(
        "pages",
        "moto ignores MaxResults of DescribeNetworkInterfaces",
        lambda p: [[p.create() for _ in range(6)], len(p.ec2.describe_network_interfaces(MaxResults=5)["NetworkInterfaces"]) > 5][
            1
        ],
        False,
        True,
    ),
    Deviation(
        "tags of an unknown ENI",
        "EC2 says not found under the resource's own code",
        lambda p: p.ec2.create_tags(Resources=["eni-0"], Tags=[{"Key": "a", "Value": "b"}]),
        _refused(NOT_FOUND),
        _refused("InvalidID"),
    ),
    Deviation("unknown filter", "EC2 refuses it as a value", _bad_filter, _refused("InvalidParameterValue"), "not implemented"),
    Deviation(
        "private DNS name",
        "EC2 names every address; moto only in a VPC with DNS host names",
        lambda p: "PrivateDnsName" in p.create(),
        True,
        False,
    ),
]


@pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda deviation: deviation.name.replace(" ", "-"))
def test_known_deviations_are_still_true(arena: Arena, deviation: Deviation) -> None:
    """Each row of the table describes what both sides really do; a row that moto has mended must go."""
    ours, theirs = arena()
    assert outcome(deviation.play, ours) == deviation.ours
    assert outcome(deviation.play, theirs) == deviation.theirs
