"""Where moto is known to differ from the real EC2, and the lab does not follow it.

Each row has its reason and is shown to be still true of both sides, so that the table cannot rot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from moto_players import Arena, Player, outcome

NOT_FOUND = "InvalidNetworkInterfaceID.NotFound"


@pytest.fixture
def no_thread_left() -> None:
    """Replace the check of the other files: here one server serves all tests of the file."""


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


def _unassign_primary(p: Player) -> str:
    p.unassign(0, 0)
    return "done"


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
    from moto.ec2.exceptions import FilterNotImplementedError

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
        _after_create(lambda p: p.assign(0, SecondaryPrivateIpAddressCount=70) and "assigned"),
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
        _after_create(_unassign_primary),
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
