"""The lab's EC2 compared with moto's on the subset that both have, in fixed scripts and in generated ones.

What moto is known to do unlike the real EC2 is left out here and shown in test_lab_moto_deviations.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moto_players import Arena, Player, agree


@pytest.fixture
def no_thread_left() -> None:
    """Replace the check of the other files: here one server serves all tests of the file."""


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


SCRIPTS = 25 if os.environ.get("VPC_IPAMD_HEAVY") else 5


@settings(max_examples=SCRIPTS, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3), st.integers(0, 30)), min_size=25, max_size=40))
def test_generated_scripts_agree(arena: Arena, steps: list[Step]) -> None:
    """Any script within the common subset gives the same outcomes and the same state after each step."""
    pair = arena()
    agree(pair, lambda p: p.create() and None)
    for step in steps:
        call = translate(step, pair[0])
        if call is not None:
            agree(pair, call)
