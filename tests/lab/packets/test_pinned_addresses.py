"""An address that moves between two nodes with its pod: who answers, who may take it, and who is heard no more (ADR 0083)."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.model.pinned_refusals import REFUSALS, PinnedRefusalCode
from ipamd.model.pod_annotations import ADDRESS, ADDRESS_KEPT, POD_ANNOTATIONS
from lab.fabric import talk
from lab.lab import Lab
from lab.vpc.model import ReservationKind
from tests.patience import PATIENCE_S
from tests.rig import CniReply, Rig, wait_until

pytestmark = pytest.mark.privileged

MOVE_S = PATIENCE_S
"""How long a pod that is made again on another node may wait for its address here: a bound on waiting in vain."""

AGAIN_S = 0.5
"""Pause before a refused ADD is repeated; kubelet's is of this order."""

CRASHES = ("pinned.withdrawn", "pinned.assigned", "pinned.recorded", "attach.reserved", "attach.wired", "attach.committed")
"""Between every two effects of a move."""

REFUSED = REFUSALS[PinnedRefusalCode.HELD].error.cni_code


@dataclass
class Place:
    """Two nodes whose pods may name the addresses of a range, and a host that speaks with them."""

    lab: Lab
    first: Rig
    second: Rig
    servers: talk.Servers
    free: Iterator[IPv4Address]

    def conf(self, address: IPv4Address, *, kept_s: int = 0) -> dict[str, object]:
        """The configuration of an ADD whose pod asks for an address."""
        return {"runtimeConfig": {POD_ANNOTATIONS: {ADDRESS: str(address), ADDRESS_KEPT: str(kept_s)}}}

    def add(self, rig: Rig, name: str, address: IPv4Address) -> CniReply:
        """ADD of a pod in a namespace that may be there."""
        if rig.node.run(["test", "-e", f"/run/netns/{name}"], check=False).returncode != 0:
            rig.node.make_netns(name)
        return rig.cni("ADD", name, conf=self.conf(address))

    def add_until_ok(self, rig: Rig, name: str, address: IPv4Address) -> float:
        """ADD as kubelet repeats it. Returns: seconds until the pod has its address."""
        began = time.monotonic()
        reply = self.add(rig, name, address)
        while not reply.ok and time.monotonic() - began < MOVE_S:
            time.sleep(AGAIN_S)
            reply = self.add(rig, name, address)
        assert reply.address == address
        return time.monotonic() - began

    def serve(self, rig: Rig, name: str, address: IPv4Address) -> None:
        """Let a pod answer at its address."""
        self.servers.add(name, rig.node.netns_path(f"/run/netns/{name}"), address=address)

    def answers(self, address: IPv4Address) -> str | None:
        """Who answers the host at an address."""
        heard = talk.ask(self.lab.hosts["host-a"].path, address)
        return heard and heard.by

    def owner(self, address: IPv4Address) -> str | None:
        """The instance on whose ENI EC2 has an address."""
        eni_id = self.lab.vpc.owner_of(address)
        attachment = self.lab.vpc.eni(eni_id).attachment if eni_id else None
        return attachment.instance_id if attachment else None

    def end(self, rig: Rig, name: str) -> None:
        """Remove what a test left of a pod."""
        self.servers.remove(name)
        assert rig.delete(name).ok


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """The range is the end of the nodes' subnet, reserved so that EC2 gives none of it by itself."""
    with Lab(nodes=["node-a", "node-b"], hosts=["host-a"], containerd=False) as lab:
        subnet = next(s for s in lab.vpc.subnets() if s.subnet_id == lab.vpc.instance("node-a").subnet_id)
        *_, pinned = IPv4Network(subnet.cidr).subnets(new_prefix=27)
        lab.vpc.reserve_cidr(subnet.subnet_id, str(pinned), ReservationKind.EXPLICIT)
        env = {"MAX_ENI": "1", "WARM_IP_TARGET": "1", "VPC_IPAMD_PINNED_ADDRESSES": f"default={pinned}"}
        rigs = [Rig(lab, lab.node(name), env=env) for name in ("node-a", "node-b")]
        for rig in rigs:
            rig.start()
        with talk.Servers() as servers:
            yield Place(lab, *rigs, servers, iter(list(pinned.hosts())))
        for rig in rigs:
            rig.assert_sound()
        assert lab.fabric.problems == []


def test_a_pod_comes_again_on_another_node(place: Place) -> None:
    """While it runs on the first node it is refused on the second; after its DEL it has the address there within seconds."""
    address = next(place.free)
    assert place.add(place.first, "moving", address).address == address
    place.serve(place.first, "moving", address)
    assert place.answers(address) == "moving"
    reply = place.add(place.second, "moved", address)
    assert (reply.ok, reply.code) == (False, REFUSED)
    place.end(place.first, "moving")
    assert place.add_until_ok(place.second, "moved", address) < MOVE_S
    place.serve(place.second, "moved", address)
    wait_until(lambda: place.answers(address) == "moved", what="the fabric follows EC2's answer")
    assert place.owner(address) == place.second.node.instance_id
    place.end(place.second, "moved")


def test_a_stopped_node_goes_on_sending_and_nothing_arrives(place: Place) -> None:
    """Its daemon is gone and EC2 calls it stopped: the other node takes the address, and what the old pod sends is dropped."""
    address = next(place.free)
    assert place.add(place.first, "old", address).ok
    place.first.kill()
    try:
        place.lab.vpc.stop_instance(place.first.node.instance_id)
        before = len(place.lab.vpc.calls(instance=place.second.node.instance_id))
        began = place.add_until_ok(place.second, "new", address)
        calls = [call.api for call in place.lab.vpc.calls(instance=place.second.node.instance_id)[before:]]
        assert began < MOVE_S
        move = calls[calls.index("DescribeInstances") :][:3]  # before it the pool may release what the test before left
        assert move == ["DescribeInstances", "UnassignPrivateIpAddresses", "AssignPrivateIpAddresses"]
        place.serve(place.second, "new", address)
        wait_until(lambda: place.answers(address) == "new", what="the fabric follows EC2's answer")
        old_path = place.first.node.netns_path("/run/netns/old")
        assert talk.ask(old_path, place.lab.primary_address("host-a")) is None
        assert place.lab.fabric.dropped(address) > 0
        assert place.answers(address) == "new"
    finally:
        place.lab.vpc.stop_instance(place.first.node.instance_id, is_stopped=False)
        place.first.start()
    place.end(place.first, "old")
    assert place.owner(address) == place.second.node.instance_id, "the loser never takes it back"
    place.end(place.second, "new")


def test_nothing_is_taken_where_no_source_is_checked(place: Place) -> None:
    """EC2 would carry what the old node goes on sending, so the ADD is refused, and the address stays."""
    address = next(place.free)
    assert place.add(place.first, "open", address).ok
    eni_id = place.first.eni_of(address)
    assert eni_id is not None
    place.lab.vpc.hands.check_source(eni_id, is_on=False)
    place.lab.vpc.stop_instance(place.first.node.instance_id)
    try:
        assert not place.add(place.second, "refused", address).ok
        assert place.owner(address) == place.first.node.instance_id
    finally:
        place.lab.vpc.stop_instance(place.first.node.instance_id, is_stopped=False)
        place.lab.vpc.hands.check_source(eni_id, is_on=True)
    place.second.node.remove_netns("refused")
    place.end(place.first, "open")


@pytest.mark.parametrize("is_stopped", [False, True], ids=["free", "of a stopped node"])
def test_two_nodes_that_want_it_at_once(place: Place, is_stopped: bool) -> None:
    """One gets it, the other one nothing; what a third node held is withdrawn from it once."""
    address = next(place.free)
    if is_stopped:
        third = place.lab.vpc.add_host(name=f"third-{address}", subnet_id=place.lab.vpc.instance("node-a").subnet_id)
        (eni,) = place.lab.vpc.enis_of(third.instance_id)
        place.lab.vpc.hands.assign(eni.eni_id, address=address)
        place.lab.vpc.stop_instance(third.instance_id)
    with ThreadPoolExecutor(2) as threads:
        rigs = (place.first, place.second)
        replies = list(threads.map(lambda rig: place.add(rig, f"both-{is_stopped}", address), rigs))
    winners = [rig for rig, reply in zip(rigs, replies, strict=True) if reply.ok]
    assert len(winners) == 1, [reply.body for reply in replies]
    assert place.owner(address) == winners[0].node.instance_id
    for rig in rigs:
        place.end(rig, f"both-{is_stopped}")


@pytest.mark.parametrize("failpoint", CRASHES)
def test_a_crash_in_the_move(place: Place, failpoint: str) -> None:
    """kill -9 on the node that takes the address: its next daemon gives it to the same pod and to no other."""
    address = next(place.free)
    victim, plain = f"victim-{failpoint}", f"plain-{failpoint}"  # a sandbox whose DEL was done does not come again
    third = place.lab.vpc.add_host(name=f"third-{address}", subnet_id=place.lab.vpc.instance("node-a").subnet_id)
    (eni,) = place.lab.vpc.enis_of(third.instance_id)
    place.lab.vpc.hands.assign(eni.eni_id, address=address)
    place.lab.vpc.stop_instance(third.instance_id)
    place.second.restart(env={"VPC_IPAMD_FAILPOINT": f"{failpoint}:1"})
    place.second.node.make_netns(victim)
    place.second.lose_add(victim, conf=place.conf(address))
    daemon = place.second.daemon
    assert daemon is not None
    assert daemon.returncode == -signal.SIGKILL
    place.second.start()
    assert place.second.add(plain, conf={"runtimeConfig": {POD_ANNOTATIONS: {}}}).address != address
    assert place.add_until_ok(place.second, victim, address) < MOVE_S
    assert place.owner(address) == place.second.node.instance_id
    place.second.assert_sound(expected=2)
    place.end(place.second, plain)
    place.end(place.second, victim)
    wait_until(lambda: place.owner(address) is None, what="the address is released")
