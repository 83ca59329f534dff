"""Pods with an interface of each of two network cards, on a real daemon and real packets (docs/adr/0086)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_interface

import pytest

from ipamd.model.pod_annotations import CARDS, MULTI_NIC, NIC_CONFIG, POD_ANNOTATIONS
from lab.fabric import talk
from lab.vpc.family import FAMILIES, IPV4, Family
from lab.vpc.model import Address, Eni
from tests.rig import CniReply, Rig, rig, wait_until

pytestmark = pytest.mark.privileged

TWO_CARDS = "c6in.32xlarge"
CONF = {"runtimeConfig": {POD_ANNOTATIONS: {NIC_CONFIG: MULTI_NIC}}}
ENV = {"ENABLE_MULTI_NIC": "true", "VPC_IPAMD_MULTI_NIC_NAMESPACES": "default", "WARM_IP_TARGET": "1"}


@dataclass
class Ground:
    """A node with two network cards, and a host of the VPC that talks with its pods."""

    rig: Rig
    servers: talk.Servers
    family: Family

    def add(self, name: str) -> dict[str, Address]:
        """ADD of a pod that asks for an interface of each card. Returns: the address of each, as the CNI result names it."""
        return addresses_of(self.rig.add(name, conf=CONF))

    def enis_of_card(self, card: int) -> list[Eni]:
        """The ENIs of a card, as EC2 has them."""
        enis = self.rig.lab.vpc.enis_of(self.rig.node.instance_id)
        return [eni for eni in enis if eni.attachment is not None and eni.attachment.network_card == card]

    def card_of(self, address: Address) -> int:
        """The card of the ENI that has an address, as EC2 has it."""
        eni = next(eni for eni in self.rig.lab.vpc.enis() if eni.eni_id == self.rig.eni_of(address))
        assert eni.attachment is not None
        return eni.attachment.network_card

    def answered(self, pod: str, address: Address) -> str | None:
        """Who answers the host at a pod's address: the answer leaves by the ENI of that address, or the VPC drops it."""
        path = self.rig.node.netns_path(f"/run/netns/{pod}")
        self.servers.add(pod, path, address=address)
        heard = talk.ask(self.rig.lab.hosts["host-a"].path, address)
        self.servers.remove(pod)
        return heard.by if heard else None

    def rows(self) -> dict[str, str]:
        """Interface -> address of every attachment that the daemon has, as `container/interface`."""
        answer = self.rig.client(lambda client: client.ask("ListAttachments"))
        assert answer is not None
        return {f"{row['container_id']}/{row['ifname']}": row["address"] for row in answer["attachments"]}


def addresses_of(reply: CniReply) -> dict[str, Address]:
    """Interface inside -> address, of a CNI result."""
    assert reply.ok, reply.body
    assert reply.body is not None
    names = [interface["name"] for interface in reply.body["interfaces"]]
    return {names[item["interface"]]: ip_interface(item["address"]).ip for item in reply.body["ips"]}


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.nft)
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """The node has an ENI on each card by now."""
    family: Family = request.param
    with rig(env=ENV, instance_type=TWO_CARDS, family=family) as made, talk.Servers() as servers:
        yield Ground(made, servers, family)
        made.assert_sound(expected=0)
        assert made.lab.fabric.problems == []


def test_each_interface_has_packets_by_the_eni_of_its_card(ground: Ground) -> None:
    """Also after a restart. A CHECK finds the missing routes of the second one, and one DEL ends both."""
    addresses = ground.add("pod")
    assert list(addresses) == ["eth0", "mNicIf1"]
    assert [ground.card_of(address) for address in addresses.values()] == [0, 1]
    for address in addresses.values():
        assert ground.answered("pod", address) == "pod"
    assert ground.rig.cni("CHECK", "pod", conf=CONF).ok
    ground.rig.restart()
    assert ground.rows() == {f"pod/{ifname}": str(address) for ifname, address in addresses.items()}
    for address in addresses.values():
        assert ground.answered("pod", address) == "pod"
    ground.rig.node.run(["ip", "-n", "pod", "-6" if ground.family is not IPV4 else "-4", "route", "flush", "table", "1"])
    assert ground.rig.cni("CHECK", "pod", conf=CONF).code == 103
    assert ground.rig.delete("pod").ok
    assert ground.rows() == {}


def test_a_pod_names_its_cards(ground: Ground) -> None:
    """The runtime and the plugin hand over our annotation too. A card that the node lacks refuses the pod."""
    for cards, names in (("0", ["eth0"]), ("1", ["eth0", "mNicIf1"])):
        pod = f"named-{cards}"
        addresses = addresses_of(ground.rig.add(pod, conf={"runtimeConfig": {POD_ANNOTATIONS: {CARDS: cards}}}))
        assert list(addresses) == names
        assert [ground.card_of(address) for address in addresses.values()] == list(range(len(names)))
        assert all(ground.answered(pod, address) == pod for address in addresses.values())
        assert ground.rig.delete(pod).ok
    assert ground.rig.add("named-2", conf={"runtimeConfig": {POD_ANNOTATIONS: {CARDS: "2"}}}).code == 11
    assert ground.rig.delete("named-2").ok
    assert ground.rows() == {}


@pytest.mark.parametrize("failpoint", ["attach.interface-wired", "attach.interface-wired:2", "attach.committed"])
def test_a_kill_in_the_middle_of_add_loses_nothing(ground: Ground, failpoint: str) -> None:
    """The daemon dies after the first, after the second interface, or after the commit."""
    victim, successor = (f"{name}-{failpoint.replace(':', '.')}" for name in ("victim", "next"))
    ground.rig.restart(env={"VPC_IPAMD_FAILPOINT": failpoint})
    ground.rig.node.make_netns(victim)
    ground.rig.lose_add(victim, conf=CONF)
    ground.rig.start()
    assert ground.rig.delete(victim).ok
    wait_until(lambda: ground.rows() == {}, what="nothing of the victim")
    addresses = ground.add(successor)
    assert [ground.card_of(address) for address in addresses.values()] == [0, 1]
    assert ground.answered(successor, addresses["mNicIf1"]) == successor
    assert ground.rig.delete(successor).ok
    assert len(ground.enis_of_card(1)) == 1
