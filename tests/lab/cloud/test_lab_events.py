"""What the fabric hears: order, replay, delays; and that many callers at once break nothing."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lab.errors import LabError
from lab.vpc.addresses import AddressRequest
from lab.vpc.interfaces import Delays
from lab.vpc.model import AddressesChanged, EniAttached, EniDetached, VpcEvent
from lab.vpc.state import Vpc
from tests.patience import PATIENCE_S


def sketch(event: VpcEvent) -> tuple[object, ...]:
    """Say the essence of an event."""
    if isinstance(event, EniAttached):
        return "attached", event.instance_name, event.eni.eni_id
    if isinstance(event, EniDetached):
        return "detached", event.instance_name, event.eni_id
    return "addresses", event.instance_name, event.eni_id, len(event.addresses), len(event.prefixes)


def test_life_of_an_interface_in_events(cloud: Any) -> None:
    """Events come in commit order: addresses, attached when it appears, detached when it is gone, empty when deleted."""
    heard: list[tuple[object, ...]] = []
    cloud.vpc.subscribe(lambda event: heard.append(sketch(event)))
    primary = cloud.primary().eni_id
    eni_id = cloud.create(SecondaryPrivateIpAddressCount=1)
    attachment_id = cloud.attach(eni_id)
    cloud.ec2.assign_private_ip_addresses(NetworkInterfaceId=eni_id, Ipv4PrefixCount=1)
    cloud.advance(2)
    cloud.ec2.detach_network_interface(AttachmentId=attachment_id)
    cloud.advance(3)
    cloud.ec2.delete_network_interface(NetworkInterfaceId=eni_id)
    cloud.vpc.drain()
    assert heard == [
        ("attached", "node-a", primary),
        ("addresses", "node-a", primary, 1, 0),
        ("addresses", None, eni_id, 2, 0),
        ("addresses", None, eni_id, 2, 1),
        ("attached", "node-a", eni_id),
        ("addresses", "node-a", eni_id, 2, 1),
        ("detached", "node-a", eni_id),
        ("addresses", None, eni_id, 2, 1),
        ("addresses", None, eni_id, 0, 0),
    ]


def test_tags_and_descriptions_are_no_event(cloud: Any) -> None:
    """What the fabric cannot see is not announced."""
    heard: list[VpcEvent] = []
    cloud.vpc.subscribe(heard.append)
    cloud.vpc.drain()
    before = len(heard)
    cloud.ec2.create_tags(Resources=[cloud.primary().eni_id], Tags=[{"Key": "a", "Value": "b"}])
    cloud.vpc.drain()
    assert len(heard) == before


def test_termination_in_events(cloud: Any) -> None:
    """A terminated instance loses its interfaces, and their addresses with them."""
    heard: list[tuple[object, ...]] = []
    primary = cloud.primary().eni_id
    cloud.vpc.subscribe(lambda event: heard.append(sketch(event)))
    cloud.vpc.terminate_instance(cloud.node.instance_id)
    cloud.vpc.drain()
    assert heard[2:] == [("detached", "node-a", primary), ("addresses", None, primary, 0, 0)]


def test_late_subscriber_is_told_the_present(cloud: Any) -> None:
    """A subscriber that comes late hears the present only, and from then on the same as the others."""
    early: list[VpcEvent] = []
    late: list[VpcEvent] = []
    cloud.vpc.subscribe(early.append)
    bound, idle = cloud.create(), cloud.create()
    cloud.attach(bound)
    cloud.advance(2)
    cloud.vpc.drain()
    cloud.vpc.subscribe(late.append)
    cloud.vpc.drain()
    primary = cloud.primary().eni_id
    assert [sketch(event)[:3] for event in late] == [
        ("attached", "node-a", primary),
        ("addresses", "node-a", primary),
        ("attached", "node-a", bound),
        ("addresses", "node-a", bound),
        ("addresses", None, idle),
    ]
    told = len(early), len(late)
    cloud.ec2.assign_private_ip_addresses(NetworkInterfaceId=bound, SecondaryPrivateIpAddressCount=1)
    cloud.vpc.drain()
    assert early[told[0] :] == late[told[1] :] != []


def test_replay_loses_and_doubles_nothing_under_load(vpc: Vpc) -> None:
    """However subscribing falls between changes, replay plus events give exactly the final state."""
    subnet = vpc.add_subnet("10.0.4.0/22")
    eni = vpc.interfaces.create(subnet.subnet_id, AddressRequest(), groups=())
    finals: list[dict[str, AddressesChanged]] = [{} for _ in range(8)]

    def listener(final: dict[str, AddressesChanged]) -> Any:
        return lambda event: final.__setitem__(event.eni_id, event) if isinstance(event, AddressesChanged) else None

    with ThreadPoolExecutor(3) as pool:
        churn = [pool.submit(_churn, vpc, eni.eni_id) for _ in range(2)]
        for final in finals:
            vpc.subscribe(listener(final))
        for done in churn:
            done.result(30)
    vpc.drain()
    assert all(final[eni.eni_id].addresses == vpc.eni(eni.eni_id).addresses for final in finals)


def _churn(vpc: Vpc, eni_id: str) -> None:
    for _ in range(60):
        addresses, _ = vpc.interfaces.assign(eni_id, AddressRequest(address_count=3))
        vpc.interfaces.unassign(eni_id, addresses=addresses[:2], prefixes=())
        if len(vpc.eni(eni_id).addresses) > 40:
            vpc.interfaces.unassign(eni_id, addresses=addresses[2:], prefixes=())


def test_attach_event_comes_by_itself() -> None:
    """With a real clock nobody has to ask: the event comes when the delay has passed, and not before."""
    heard: queue.SimpleQueue[tuple[float, VpcEvent]] = queue.SimpleQueue()
    with Vpc(delays=Delays(attach_s=0.15)) as vpc:
        subnet = vpc.add_subnet("10.0.1.0/24")
        node = vpc.add_instance(name="node-a", subnet_id=subnet.subnet_id)
        eni = vpc.interfaces.create(subnet.subnet_id, AddressRequest(), groups=())
        vpc.subscribe(lambda event: heard.put((time.monotonic(), event)))
        begun = time.monotonic()
        vpc.interfaces.attach(eni.eni_id, node.instance_id, device_index=1)
        while True:
            at, event = heard.get(timeout=PATIENCE_S)
            if isinstance(event, EniAttached) and event.eni.eni_id == eni.eni_id:
                break
    assert at - begun >= 0.15


def test_listeners_may_call_back(cloud: Any) -> None:
    """A listener runs outside the state's lock: it may read and change, and its changes are announced after."""
    heard: list[VpcEvent] = []

    def listener(event: VpcEvent) -> None:
        heard.append(event)
        if isinstance(event, EniAttached):
            cloud.vpc.interfaces.assign(event.eni.eni_id, AddressRequest(address_count=1))

    cloud.vpc.subscribe(listener)
    cloud.vpc.drain()
    cloud.vpc.drain()
    assert len(cloud.primary().addresses) == 2
    assert sketch(heard[-1])[3] == 2


def test_a_failing_listener_harms_nobody(clock: Any) -> None:
    """One listener's exception is kept and reported; the others hear everything; an unsubscribed one hears nothing."""
    heard: list[VpcEvent] = []
    with Vpc(clock=clock) as vpc:
        subnet = vpc.add_subnet("10.0.1.0/24")

        def broken(event: VpcEvent) -> None:
            raise ValueError(str(event))

        vpc.subscribe(broken)
        vpc.subscribe(heard.append)
        vpc.add_host(name="h", subnet_id=subnet.subnet_id)
        vpc.drain()
        assert (len(vpc.listener_errors), len(heard)) == (2, 2)
        vpc.unsubscribe(broken)
        vpc.add_host(name="i", subnet_id=subnet.subnet_id)
        vpc.drain()
        assert (len(vpc.listener_errors), len(heard)) == (2, 4)


def test_close_ends_the_thread_and_refuses_more() -> None:
    """After close no thread runs and no one may subscribe; closing again does no harm."""
    vpc = Vpc()
    vpc.subscribe(lambda event: None)
    vpc.close()
    vpc.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "vpc-events"]
    with pytest.raises(LabError):
        vpc.subscribe(lambda event: None)


def test_parallel_assign_never_doubles_an_address(cloud: Any) -> None:
    """Sixteen callers at once over the wire get disjoint addresses, until the subnet or the ENIs are full."""
    enis = [cloud.create() for _ in range(8)]

    def grab(number: int) -> list[str]:
        got: list[str] = []
        for _ in range(6):
            try:
                answer = cloud.ec2.assign_private_ip_addresses(
                    NetworkInterfaceId=enis[number % len(enis)], SecondaryPrivateIpAddressCount=4
                )
            except ClientError as exc:
                got.append(exc.response["Error"]["Code"])
            else:
                got.extend(entry["PrivateIpAddress"] for entry in answer["AssignedPrivateIpAddresses"])
        return got

    with ThreadPoolExecutor(16) as pool:
        every = [item for got in pool.map(grab, range(16)) for item in got]
    addresses = [item for item in every if item[0].isdigit()]
    assert len(set(addresses)) == len(addresses) > 200
    assert {item for item in every if not item[0].isdigit()} <= {"InsufficientFreeAddressesInSubnet"}
    owned = [address for eni in cloud.vpc.enis() for address in eni.addresses]
    assert len(set(owned)) == len(owned) == len(addresses) + 9
    assert all(cloud.vpc.owner_of(IPv4Address(address)) in enis for address in addresses)


def test_parallel_attach_takes_one_index_once(cloud: Any) -> None:
    """Of many callers that attach to one device index, one wins."""
    enis = [cloud.create() for _ in range(8)]

    def attach(eni_id: str) -> str:
        try:
            cloud.attach(eni_id, 1)
        except ClientError as exc:
            return str(exc.response["Error"]["Code"])
        return "won"

    with ThreadPoolExecutor(8) as pool:
        outcomes = sorted(pool.map(attach, enis))
    assert outcomes == ["InvalidParameterValue"] * 7 + ["won"]


def test_parallel_creates_with_one_token(cloud: Any) -> None:
    """Of many callers with one client token all get the same ENI."""
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: cloud.create(ClientToken="one"), range(8)))
    assert len(made) == 1


def test_operators_mistakes_are_theirs(vpc: Vpc) -> None:
    """Overlapping subnets, foreign subnets, unknown types and doubled names are refused as lab errors."""
    subnet = vpc.add_subnet("10.0.1.0/24")
    for cidr in ("10.0.1.128/25", "10.1.0.0/24", "10.0.2.0/29"):
        with pytest.raises(LabError):
            vpc.add_subnet(cidr)
    with pytest.raises(LabError, match=r"z9\.huge"):
        vpc.add_instance(name="a", instance_type="z9.huge", subnet_id=subnet.subnet_id)
    vpc.add_instance(name="a", subnet_id=subnet.subnet_id)
    with pytest.raises(LabError, match="named a"):
        vpc.add_instance(name="a", subnet_id=subnet.subnet_id)


def test_same_seed_same_vpc() -> None:
    """A seed fixes IDs, MAC addresses and the choice of addresses."""

    def build(seed: int) -> list[object]:
        vpc = Vpc(seed=seed)
        subnet = vpc.add_subnet("10.0.1.0/24")
        vpc.add_instance(name="a", subnet_id=subnet.subnet_id)
        vpc.interfaces.create(subnet.subnet_id, AddressRequest(address_count=3, prefix_count=0), groups=())
        return [(eni.eni_id, eni.mac, eni.addresses) for eni in vpc.enis()]

    assert build(1) == build(1) != build(2)
