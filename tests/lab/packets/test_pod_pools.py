"""Pods of two pools in two subnets with different security groups, beside the node's own pool (docs/adr/0084)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.model.pod_annotations import POD_ANNOTATIONS, POOL
from lab.fabric import talk
from lab.lab import Lab
from lab.vpc.limits import InstanceLimits
from lab.vpc.state import Vpc
from tests.rig import CniReply, Rig

pytestmark = pytest.mark.privileged

CARDS, BATCH = IPv4Network("10.0.48.0/24"), IPv4Network("10.0.64.0/28")
SLOTS = 3
NETWORK_FILE = "/run/vpc-ipamd/network.json"


@dataclass
class Ground:
    """A node with two pools beside its own, and two hosts: `friend` may begin conversations with pods of cards, `stranger` may not."""

    lab: Lab
    rig: Rig
    servers: talk.Servers
    group: str
    addresses: dict[str, IPv4Address] = field(default_factory=dict)

    def add(self, name: str, pool: str = "") -> CniReply:
        """ADD of a pod that chooses its pool by the annotation, "" for none."""
        annotations: Mapping[str, str] = {POOL: pool} if pool else {}
        reply = self.rig.add(name, conf={"runtimeConfig": {POD_ANNOTATIONS: dict(annotations)}})
        if reply.ok:
            self.addresses[name] = reply.address
            self.servers.add(name, self.path(name), address=reply.address)
        return reply

    def delete(self, name: str) -> None:
        """DEL of a pod."""
        self.servers.remove(name)
        assert self.rig.delete(name).ok

    def path(self, name: str) -> str:
        """The namespace of a pod or of a host."""
        if name in self.lab.hosts:
            return self.lab.hosts[name].path
        return self.rig.node.netns_path(f"/run/netns/{name}")

    def answered(self, sender: str, pod: str) -> str | None:
        """Who answers a packet to a pod's address."""
        heard = talk.ask(self.path(sender), self.addresses[pod])
        return heard.by if heard else None


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    """The node with one pod of each pool."""
    vpc = Vpc(limits={"m5.large": InstanceLimits((4,), SLOTS + 1), "t3.nano": InstanceLimits((2,), 2)})
    with Lab(nodes=["node-a"], hosts=["friend", "stranger"], containerd=False, vpc=vpc) as lab, talk.Servers() as servers:
        cards = vpc.add_subnet(str(CARDS))
        vpc.add_subnet(str(BATCH), tags={"team": "batch"})
        group = vpc.add_security_group("cards", sources=[IPv4Network(lab.primary_address("friend"))])
        pools = {
            "cards": {"subnets": [cards.subnet_id], "securityGroups": [group]},
            "batch": {"subnetTags": {"team": "batch"}, "warmIpTarget": 1},
        }
        node = lab.node("node-a")
        node.write_file(NETWORK_FILE, json.dumps({"pools": pools}).encode())
        env = {
            "VPC_IPAMD_NETWORK_FILE": NETWORK_FILE,
            "VPC_IPAMD_POOL_ANNOTATION_NAMESPACES": "default=cards,default=batch",
            "WARM_IP_TARGET": "1",
        }
        rig = Rig(lab, node, env=env)
        rig.start()
        made = Ground(lab, rig, servers, group)
        for name, pool in (("own", ""), ("card", "cards"), ("job", "batch")):
            assert made.add(name, pool).ok
        yield made
        rig.assert_sound()
        assert lab.fabric.problems == []


def test_each_pod_has_an_address_of_its_pool(ground: Ground) -> None:
    """Of its subnet, on an ENI with its groups: EC2 shows so."""
    vpc = ground.lab.vpc
    enis = {name: vpc.eni(ground.rig.ec2_addresses()[address]) for name, address in ground.addresses.items()}
    assert (enis["card"].subnet_cidr, list(enis["card"].security_groups)) == (CARDS, [ground.group])
    assert enis["job"].subnet_cidr == BATCH
    assert ground.addresses["own"] not in CARDS
    assert ground.addresses["own"] not in BATCH
    assert enis["job"].security_groups == enis["own"].security_groups


def test_the_groups_of_a_pool_filter_its_pods_and_no_others(ground: Ground) -> None:
    """The friend reaches all three; the stranger is kept away from the pod of cards only. Pods reach each other on their node."""
    assert {pod: ground.answered("friend", pod) for pod in ("own", "card", "job")} == {"own": "own", "card": "card", "job": "job"}
    assert {pod: ground.answered("stranger", pod) for pod in ("own", "card", "job")} == {"own": "own", "card": None, "job": "job"}
    assert ground.answered("card", "job") == "job"


def test_what_a_pool_sends_leaves_with_its_own_address(ground: Ground) -> None:
    """By its own ENI, whose source check lets nothing else through."""
    for name in ("own", "card", "job"):
        ground.servers.add(f"host-of-{name}", ground.path("stranger"), address=ground.lab.primary_address("stranger"), port=9000)
        heard = talk.ask(ground.path(name), ground.lab.primary_address("stranger"), port=9000)
        ground.servers.remove(f"host-of-{name}")
        assert heard is not None
        assert heard.seen_as == ground.addresses[name]


def test_a_full_pool_refuses_its_pods_and_no_others(ground: Ground) -> None:
    """Batch has one ENI more that it could take, and no place for it: the places are of cards and of the node's own."""
    made = []
    refused = None
    for number in range(2 * SLOTS):
        reply = ground.add(f"job-{number}", "batch")
        if not reply.ok:
            refused = reply
            break
        made.append(f"job-{number}")
    assert refused is not None
    assert refused.code == 11
    assert ground.rig.delete(f"job-{len(made)}").ok
    for name, pool in (("card-2", "cards"), ("own-2", "")):
        assert ground.add(name, pool).ok
        ground.delete(name)
    status = ground.rig.status()
    assert status is not None
    pools = {pool["name"]: pool for pool in status["pod_pools"]}
    assert pools["batch"]["free_count"] == 0
    for name in made:
        ground.delete(name)


def test_a_restart_keeps_the_pools(ground: Ground) -> None:
    """After a kill -9 the next pods get addresses of the same ENIs, and the groups are as before."""
    enis = {name: ground.rig.ec2_addresses()[ground.addresses[name]] for name in ("own", "card", "job")}
    ground.rig.kill()
    ground.rig.start()
    for name, pool in (("card-3", "cards"), ("own-3", "")):
        assert ground.add(name, pool).ok
    assert ground.rig.ec2_addresses()[ground.addresses["card-3"]] == enis["card"]
    assert list(ground.lab.vpc.eni(enis["card"]).security_groups) == [ground.group]
    assert ground.answered("stranger", "card-3") is None
    assert ground.answered("friend", "card-3") == "card-3"
    for name in ("card-3", "own-3"):
        ground.delete(name)
